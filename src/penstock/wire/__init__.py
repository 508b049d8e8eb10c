"""Bytes from the server to values and columns: replication envelopes, pgoutput, Postgres text. No I/O, no clock."""
