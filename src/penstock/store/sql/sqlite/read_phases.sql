select table_id, phase from table_phase where pipeline_id = :pipeline and is_current = 1
