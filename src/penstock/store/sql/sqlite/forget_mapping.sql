delete from table_mapping where pipeline_id = :pipeline and table_id = :table
