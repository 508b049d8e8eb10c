select
    pg_catalog.current_setting('server_version_num')::int,
    pg_catalog.current_setting('wal_level'),
    pg_catalog.current_setting('max_replication_slots')::int,
    (select pg_catalog.count(*) from pg_catalog.pg_replication_slots),
    pg_catalog.current_setting('max_wal_senders')::int,
    (select pg_catalog.count(*) from pg_catalog.pg_stat_replication),
    pg_catalog.current_setting('server_encoding')
