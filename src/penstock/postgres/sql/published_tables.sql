-- Columns are given only where they differ from what a publication without a column list
-- publishes: the columns that are neither dropped nor generated.
select
    c.oid::bigint,
    n.nspname,
    c.relname,
    pg_catalog.pg_get_expr(p.qual, p.relid),
    case
        when p.attrs is not null and k.published is distinct from k.ordinary then k.published
    end
from pg_catalog.pg_get_publication_tables(%(publication)s) as p
join pg_catalog.pg_class as c on c.oid = p.relid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
cross join lateral (
    select
        coalesce(
            pg_catalog.array_agg(a.attname::text order by a.attnum) filter (where a.attnum = any (p.attrs::int2[])),
            '{}'
        ) as published,
        coalesce(
            pg_catalog.array_agg(a.attname::text order by a.attnum) filter (where a.attgenerated = ''),
            '{}'
        ) as ordinary
    from pg_catalog.pg_attribute as a
    where a.attrelid = p.relid and a.attnum > 0 and not a.attisdropped
) as k
order by n.nspname, c.relname
