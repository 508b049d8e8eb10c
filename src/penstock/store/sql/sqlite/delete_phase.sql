delete from table_phase where id = :id
