-- A copy reads leaf partitions by their own names, so the rights to each of them count. Whether a policy
-- applies to this role (its owner, BYPASSRLS, FORCE) is the server's own judgement.
select
    r.oid::bigint,
    n.nspname,
    r.relname,
    pg_catalog.has_schema_privilege(n.oid, 'usage'),
    pg_catalog.has_table_privilege(r.oid, 'select'),
    pg_catalog.row_security_active(r.oid)
from pg_catalog.pg_class as r
join pg_catalog.pg_namespace as n on n.oid = r.relnamespace
where
    r.oid = any (%(tables)s::oid[])
    or r.oid in (
        select t.relid
        from unnest(%(tables)s::oid[]) as p (oid)
        cross join lateral pg_catalog.pg_partition_tree(p.oid::regclass) as t
        where t.isleaf
    )
order by n.nspname, r.relname
