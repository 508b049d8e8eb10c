create table if not exists migration_history (
    version integer primary key,
    name text not null,
    applied_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
)
