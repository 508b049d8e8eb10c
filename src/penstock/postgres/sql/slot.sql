-- As JSON, because newer servers have more columns than older ones.
select pg_catalog.to_jsonb(s)
from pg_catalog.pg_replication_slots as s
where s.slot_name = %(slot)s
