-- Returns when the process is gone, or when the time is up.
select pg_catalog.pg_terminate_backend(%(pid)s, %(timeout_ms)s)
