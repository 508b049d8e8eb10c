"""Penstock: Postgres logical replication into lakehouse tables."""
