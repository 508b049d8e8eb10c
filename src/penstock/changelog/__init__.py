"""The durable change log: what the receiver writes and every reader, Spark included, reads.

A log is a folder with one writer and any number of readers:

    LOG-000000000007.json         what log this is, and where it starts; the greatest number counts
    schemas/16385-1.json          a table's columns, one file per version
    data/000000000042-1b9c03fe/16385-1.parquet
    entries/000000000042.json     the manifest: one checksummed entry per segment, in order

It is on a disk or in a bucket, and is written in one way in both: a file is made once and never
changed, and of two writers that want one number, one is refused.
A segment's data files are durable before its entry is, and an entry appears whole or not at all.
An entry is *complete* when the log holds whole transactions up to its end; a transaction too large
for one segment is a chain of incomplete entries closed by a complete one, and no reader looks past
the last complete entry. Incomplete entries that an entry of another session follows do not count:
their writer ended inside the transaction.
"""
