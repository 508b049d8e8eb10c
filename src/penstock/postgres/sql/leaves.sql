-- A table without partitions is not in its own partition tree before it has a parent: it stands for itself.
select
    c.oid::bigint,
    n.nspname,
    c.relname,
    coalesce(pg_catalog.pg_relation_size(c.oid, 'main'), 0)
    / pg_catalog.current_setting('block_size')::bigint,
    c.reltuples::bigint,
    -- Read from pg_class itself, which follows the snapshot; pg_relation_filenode() would always tell the newest.
    c.relfilenode::bigint
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where
    c.relkind = 'r'
    and (
        c.oid = %(table)s
        or c.oid in (select t.relid from pg_catalog.pg_partition_tree(%(table)s::oid::regclass) as t where t.isleaf)
    )
order by n.nspname, c.relname
