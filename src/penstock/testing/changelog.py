"""Small change logs for tests: segments made of a few words."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.changelog.segment import Segment
from penstock.model.lsn import Lsn
from penstock.model.table import Column, Kind, PgType, TableId, TableName, TableSchema
from penstock.testing.assembly import Change, Text, Transaction, text_batch, transactions_batch

INT8 = PgType("bigint", Kind.INT8)
TEXT = PgType("text", Kind.TEXT)


def two_column_table(table: int = 1) -> TableSchema:
    """Return a table of a key and a text."""
    columns = (Column("id", INT8, nullable=False, key_ordinal=0), Column("v", TEXT))
    return TableSchema(TableId(table), TableName("public", f"t{table}"), columns)


def make_segment(
    commit_lsn: int, rows: Sequence[Sequence[Text]], *, is_committed: bool = True, table: int = 1
) -> Segment:
    """Return a segment with one transaction that inserts rows; uncommitted, it is a part of one."""
    segment = Segment()
    transaction = Transaction(Lsn(commit_lsn), 0, 7, end_lsn=Lsn(commit_lsn + 1), changes=len(rows))
    changes = [Change("I", values, transaction, ordinal) for ordinal, values in enumerate(rows, start=1)]
    if changes:
        segment.add_rows(two_column_table(table), 1, text_batch(two_column_table(table), changes))
    if is_committed:
        segment.add_transactions(transactions_batch([transaction]))
    return segment
