"""The durable change log: what the receiver writes and every reader, Spark included, reads.

A log is a folder with one writer and any number of readers:

    LOG.json                      what log this is, and the position it starts at
    schemas/16385-1.json          a table's columns, one file per version
    data/000000000042/16385-1.parquet
    entries/000000000042.json     the manifest: one checksummed entry per segment, in order

A segment's data files are durable before its entry is, and an entry appears whole or not at all.
An entry is *complete* when the log holds whole transactions up to its end; a transaction too large
for one segment is a chain of incomplete entries closed by a complete one, and no reader looks past
the last complete entry.
"""
