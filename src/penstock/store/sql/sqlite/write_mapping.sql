insert into table_mapping (pipeline_id, table_id, destination_table)
values (:pipeline, :table, :destination_table)
on conflict (pipeline_id, table_id) do update set destination_table = excluded.destination_table
