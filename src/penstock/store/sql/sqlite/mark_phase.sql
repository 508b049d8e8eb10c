update table_phase set is_current = :is_current where id = :id
