select table_id, watermark from replication_progress where pipeline_id = :pipeline
