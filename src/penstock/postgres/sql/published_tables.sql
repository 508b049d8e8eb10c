-- Columns are given only where they differ from what a publication without a column list
-- publishes: the columns that are neither dropped nor generated.
select
    c.oid::bigint,
    n.nspname,
    c.relname,
    pg_catalog.pg_get_expr(p.qual, p.relid),
    case
        when p.attrs is not null and k.published is distinct from k.ordinary then k.published
    end,
    pg_catalog.concat_ws(
        ' ',
        (select 'publication ' || b.oid from pg_catalog.pg_publication as b where b.pubname = %(publication)s),
        (
            select 'table ' || pg_catalog.string_agg(r.oid::text, ' ' order by r.oid)
            from pg_catalog.pg_publication_rel as r
            join pg_catalog.pg_publication as b on b.oid = r.prpubid
            where
                b.pubname = %(publication)s
                and (
                    r.prrelid = c.oid
                    or r.prrelid in (select a.relid from pg_catalog.pg_partition_ancestors(c.oid) as a)
                )
        ),
        (
            select 'schema ' || pg_catalog.string_agg(s.oid::text, ' ' order by s.oid)
            from pg_catalog.pg_publication_namespace as s
            join pg_catalog.pg_publication as b on b.oid = s.pnpubid
            where b.pubname = %(publication)s and s.pnnspid = c.relnamespace
        )
    )
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
