create table table_phase (
    id integer primary key,
    pipeline_id text not null,
    table_id integer not null,
    -- the phase as JSON, tagged by "type"
    phase text not null,
    -- the phase before this one, which a rollback returns to
    prev integer references table_phase (id),
    is_current integer not null check (is_current in (0, 1)),
    entered_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

create unique index table_phase_current on table_phase (pipeline_id, table_id) where is_current = 1;
create index table_phase_table on table_phase (pipeline_id, table_id);
-- without it every deleted row scans the table for rows that refer to it
create index table_phase_prev on table_phase (prev);

create table table_schema (
    pipeline_id text not null,
    table_id integer not null,
    -- the table with its columns and key, as JSON
    schema text not null,
    primary key (pipeline_id, table_id)
);

create table table_mapping (
    pipeline_id text not null,
    table_id integer not null,
    destination_table text not null,
    primary key (pipeline_id, table_id)
);

create table replication_progress (
    pipeline_id text not null,
    table_id integer not null,
    -- XXXXXXXX/XXXXXXXX: an integer column is signed and a position is not; at full width text sorts as positions do
    watermark text not null check (length(watermark) = 17),
    primary key (pipeline_id, table_id)
);
