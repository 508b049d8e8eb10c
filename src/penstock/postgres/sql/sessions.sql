select
    pg_catalog.count(*) filter (where a.application_name = %(named)s),
    pg_catalog.count(*) filter (
        where a.application_name = own.application_name and a.backend_start > own.backend_start
    )
from pg_catalog.pg_stat_activity as own
join pg_catalog.pg_stat_activity as a on a.usesysid = own.usesysid
where own.pid = pg_catalog.pg_backend_pid()
