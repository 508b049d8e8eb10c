select n.nspname, c.relname, c.relreplident::text
from pg_catalog.pg_class as c
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where c.oid = %(table)s
