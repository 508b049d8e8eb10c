delete from table_phase where pipeline_id = :pipeline and table_id = :table
