insert into migration_history (version, name) values (:version, :name)
