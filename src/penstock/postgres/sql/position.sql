select
    pg_catalog.pg_current_wal_insert_lsn()::text,
    (select s.setting::bigint from pg_catalog.pg_settings as s where s.name = 'wal_segment_size')
