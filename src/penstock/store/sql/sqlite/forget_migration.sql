delete from migration_history where version = :version
