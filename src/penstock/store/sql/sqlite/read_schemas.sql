select table_id, schema from table_schema where pipeline_id = :pipeline
