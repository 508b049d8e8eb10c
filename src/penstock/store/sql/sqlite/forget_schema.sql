delete from table_schema where pipeline_id = :pipeline and table_id = :table
