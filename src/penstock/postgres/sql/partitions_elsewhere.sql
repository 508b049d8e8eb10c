-- Partitions that hold rows but no blocks of this server's.
select n.nspname, c.relname
from pg_catalog.pg_partition_tree(%(table)s::oid::regclass) as t
join pg_catalog.pg_class as c on c.oid = t.relid
join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
where t.isleaf and c.relkind = 'f'
order by n.nspname, c.relname
