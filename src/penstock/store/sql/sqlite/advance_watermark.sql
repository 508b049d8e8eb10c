insert into replication_progress (pipeline_id, table_id, watermark)
values (:pipeline, :table, :watermark)
on conflict (pipeline_id, table_id) do update set watermark = excluded.watermark
where excluded.watermark > replication_progress.watermark
