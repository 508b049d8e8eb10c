select
    n.nspname,
    c.relname,
    c.relreplident::text,
    exists (
        select
        from pg_catalog.pg_index as x
        where
            x.indrelid = c.oid
            and x.indislive
            and case c.relreplident
                when 'i' then x.indisreplident
                when 'n' then false
                else x.indisprimary and x.indimmediate
            end
    )
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.oid = any (%(tables)s::oid[])
order by n.nspname, c.relname
