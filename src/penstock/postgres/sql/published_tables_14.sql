-- Postgres 14 has neither row filters nor column lists.
select c.oid::bigint, n.nspname, c.relname, null::text, null::text[]
from pg_catalog.pg_get_publication_tables(%(publication)s) as p
join pg_catalog.pg_class as c on c.oid = p.relid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
order by n.nspname, c.relname
