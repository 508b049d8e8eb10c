select pubname
from pg_catalog.pg_publication
order by pubname
