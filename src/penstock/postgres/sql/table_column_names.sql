-- Generated columns included: they are there to be read.
select a.attname
from pg_catalog.pg_attribute as a
where a.attrelid = %(table)s and a.attnum > 0 and not a.attisdropped
order by a.attnum
