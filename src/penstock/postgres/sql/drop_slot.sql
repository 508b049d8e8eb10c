select pg_catalog.pg_drop_replication_slot(s.slot_name)
from pg_catalog.pg_replication_slots as s
where s.slot_name = %(slot)s
