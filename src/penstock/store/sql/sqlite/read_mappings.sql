select table_id, destination_table from table_mapping where pipeline_id = :pipeline
