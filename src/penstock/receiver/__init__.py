"""The process that holds the slot: from the replication stream to the change log, never waiting for anyone."""
