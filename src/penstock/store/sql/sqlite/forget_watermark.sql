delete from replication_progress where pipeline_id = :pipeline and table_id = :table
