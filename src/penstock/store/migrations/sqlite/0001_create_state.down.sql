drop table replication_progress;
drop table table_mapping;
drop table table_schema;
drop table table_phase;
