-- Read from pg_class itself, which follows the snapshot; pg_relation_filenode() would always tell the newest.
select
    c.oid::regclass::text,
    c.relfilenode::bigint
from pg_catalog.pg_class as c
where
    c.relkind = 'r'
    and c.oid in (
        select given.name::regclass::oid from pg_catalog.unnest(%(tables)s::text[]) as given (name)
        union
        select tree.relid::oid
        from pg_catalog.unnest(%(tables)s::text[]) as given (name)
        cross join lateral pg_catalog.pg_partition_tree(given.name::regclass) as tree
    )
