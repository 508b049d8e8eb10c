insert into table_phase (pipeline_id, table_id, phase, prev, is_current)
values (:pipeline, :table, :phase, :prev, 1)
