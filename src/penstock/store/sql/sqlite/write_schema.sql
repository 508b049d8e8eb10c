insert into table_schema (pipeline_id, table_id, schema)
values (:pipeline, :table, :schema)
on conflict (pipeline_id, table_id) do update set schema = excluded.schema
