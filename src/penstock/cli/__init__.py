"""The command line: the replicator, and what its operator types."""
