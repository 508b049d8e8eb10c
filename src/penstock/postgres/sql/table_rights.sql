-- A copy reads leaves by their own names, so the rights to each of them count, and those to a partitioned table do
-- not. Whether a policy applies to this role (its owner, BYPASSRLS, FORCE) is the server's own judgement.
-- ctid, column -1, is what ranges are bounded by; a right to columns does not include it.
select
    p.oid::bigint,
    n.nspname,
    r.relname,
    -- NULL is said of what was dropped since the snapshot, which is for others to notice.
    coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage'), true),
    coalesce(pg_catalog.has_table_privilege(r.oid, 'select'), true),
    pg_catalog.has_any_column_privilege(r.oid, 'select') is true,
    (
        select coalesce(pg_catalog.array_agg(a.attname::text order by a.attnum < 0, a.attnum), '{}')
        from pg_catalog.pg_attribute as a
        where
            a.attrelid = r.oid
            and not a.attisdropped
            and case
                when a.attnum < 0 then a.attnum = -1
                when p.columns is null then a.attgenerated = ''
                else pg_catalog.jsonb_exists(p.columns, a.attname::text)
            end
            and not pg_catalog.has_column_privilege(r.oid, a.attnum, 'select')
    ),
    pg_catalog.row_security_active(r.oid)
from (
    select t.oid::oid as oid, pg_catalog.jsonb_extract_path(%(columns)s::jsonb, t.oid::text) as columns
    from unnest(%(tables)s::oid[]) as t (oid)
) as p
join pg_catalog.pg_class as r
    on r.relkind = 'r'
    and (
        r.oid = p.oid
        or r.oid in (select l.relid from pg_catalog.pg_partition_tree(p.oid::regclass) as l where l.isleaf)
    )
join pg_catalog.pg_namespace as n on n.oid = r.relnamespace
order by n.nspname, r.relname
