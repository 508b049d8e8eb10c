-- Names as the catalog has them or quoted, so that a dot in a name can be told from the one between two names.
select c.oid::bigint, n.nspname, c.relname, c.relkind::text
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
cross join lateral unnest(
    array[n.nspname::text, '"' || pg_catalog.replace(n.nspname, '"', '""') || '"']
) as s (schema)
cross join lateral unnest(
    array[c.relname::text, '"' || pg_catalog.replace(c.relname, '"', '""') || '"']
) as r (name)
where
    c.relkind in ('r', 'p', 'v', 'm', 'f')
    and (c.oid::text = %(wanted)s or s.schema || '.' || r.name = %(wanted)s or r.name = %(wanted)s)
group by c.oid, n.nspname, c.relname, c.relkind
order by n.nspname, c.relname
