-- Postgres 14 has neither row filters nor column lists.
select
    c.oid::bigint,
    n.nspname,
    c.relname,
    null::text,
    null::text[],
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
        )
    )
from pg_catalog.pg_get_publication_tables(%(publication)s) as p
join pg_catalog.pg_class as c on c.oid = p.relid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
order by n.nspname, c.relname
