"""Folds a table's changes to what its lake table has to lose and to gain, in Arrow.

Every key that a change names is lost, whichever rows have it; every row that is alive after the last
change is gained, whole. Per column the last change that carries a value wins, since an update may leave
TOAST unchanged; a value that no change carries has to be taken from the row that is lost. Only where keys
changed are changes followed one by one, to tell which of them are one row's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.contract import columns as log
from penstock.lake.key import KeySet, Numbers, number_keys
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableSchema
from penstock.replication.fold import KeyedChange, trace
from penstock.wire.arrow import compute, wrap, wrap_mask

NOWHERE = -1
"""The number of no key: of a row that the batch inserted."""


@dataclass(frozen=True)
class Folded:
    """What a batch comes to."""

    keys: KeySet
    """All that the table has to lose."""
    rows: pa.Table
    """What it has to gain, with the change log's names: the table's columns, `_op`, `_commit_lsn` and `_commit_ts`."""
    kept: Mapping[str, NDArray[np.bool_]]
    """By column, which of the rows have a value that none of the changes carries."""
    origins: Numbers
    """For every row, the number of the key that it has in the table before the batch, or `NOWHERE`."""

    @property
    def is_whole(self) -> bool:
        """Whether no value has to be taken from the table."""
        return not self.kept


def changes_behind(batches: Iterable[pa.RecordBatch], since: Lsn, after: Position | None) -> list[pa.RecordBatch]:
    """Return the changes of transactions from `since` on, behind the position `after`."""
    fresh = (batch.filter(_is_behind(batch, since, after)) for batch in batches)
    return [batch for batch in fresh if batch.num_rows]


def _is_behind(batch: pa.RecordBatch, since: Lsn, after: Position | None) -> Any:
    lsn = batch.column(log.COMMIT_LSN)
    fresh = compute.greater_equal(lsn, int(since))
    if after is None:
        return fresh
    start = int(after.commit_lsn)
    later = compute.and_(compute.equal(lsn, start), compute.greater(batch.column(log.ORDINAL), after.ordinal))
    return compute.and_(fresh, compute.or_(compute.greater(lsn, start), later))


def fold(batches: list[pa.RecordBatch], schema: TableSchema) -> Folded:
    """Fold changes that are in commit order; there is at least one, and the table has a key."""
    changes = pa.Table.from_batches(batches)
    keys, rows = _followed(changes, schema)
    last = rows.last(np.arange(changes.num_rows))
    deciding = np.sort(last[last != NOWHERE])
    is_deleted = compute.equal(changes.column(log.OP), "D").to_numpy()
    alive = deciding[~is_deleted[deciding] & rows.lives[rows.of[deciding]]]
    names = [log.stored_name(column.name) for column in schema.columns]
    gained = changes.select([*names, log.OP, log.COMMIT_LSN, log.COMMIT_TS]).take(wrap(alive, pa.int64()))
    kept: dict[str, NDArray[np.bool_]] = {}
    given_columns: dict[str, Any] = {}
    for name, is_unchanged in unchanged_columns(changes, schema):
        given = rows.last(np.flatnonzero(~is_unchanged))[rows.of[alive]]
        given_columns[name] = values_at(changes.column(name), given)
        if (given == NOWHERE).any():
            kept[name] = given == NOWHERE
    return Folded(keys, with_columns(gained, given_columns), kept, rows.origins[rows.of[alive]])


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which changes are one row's: a row is its key, or what `trace` found where keys changed."""

    of: Numbers
    """For every change, its row."""
    origins: Numbers
    """For every row, its key's number in the table before the batch."""
    lives: NDArray[np.bool_]
    """For every row, False if it is known to end."""

    def last(self, places: Numbers) -> Numbers:
        """Return, for every row, the last of its changes at these places, or `NOWHERE`."""
        found = np.full(len(self.origins), NOWHERE, np.int64)
        rows = self.of[places]
        if np.array_equal(rows, places):  # no key comes twice, as in most small batches
            found[rows] = places
            return found
        grouped = pa.table({"row": wrap(rows, pa.int64()), "place": wrap(places, pa.int64())}).group_by("row")
        lasts = grouped.aggregate([("place", "max")])
        found[lasts.column("row").to_numpy()] = lasts.column("place_max").to_numpy()
        return found


def _followed(changes: pa.Table, schema: TableSchema) -> tuple[KeySet, _Rows]:
    keys, news, former = number_changes(changes, schema)
    if former is None:
        return keys, _Rows(news, np.arange(len(keys)), np.ones(len(keys), np.bool_))
    return keys, _traced(changes.column(log.OP), news, former, len(keys))


def number_changes(changes: pa.Table, schema: TableSchema) -> tuple[KeySet, Numbers, Numbers | None]:
    """Return the keys of changes, each change's key by its number, and its key before if any change has another."""
    columns: list[Any] = [changes.column(log.stored_name(column.name)) for column in schema.key]
    moved: Any = changes.column(log.KEY).combine_chunks()
    movers = np.flatnonzero(moved.is_valid().to_numpy(zero_copy_only=False))
    if not len(movers):
        numbers, keys = number_keys(columns)
        return keys, numbers, None
    olds = moved.take(wrap(movers, pa.int64())).flatten()
    both = [pa.concat_arrays([*_chunks(new), old]) for new, old in zip(columns, olds, strict=True)]
    numbers, keys = number_keys(both)
    news, former = numbers[: changes.num_rows], np.full(changes.num_rows, NOWHERE, np.int64)
    former[movers] = numbers[changes.num_rows :]
    return keys, news, former


def _chunks(column: Any) -> list[Any]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _traced(ops: Any, news: Numbers, former: Numbers, keys: int) -> _Rows:
    """Follow the changes of every key that some change moved a row from or to; other keys cannot be involved."""
    is_involved = np.zeros(keys, np.bool_)
    is_involved[news[former != NOWHERE]] = True
    is_involved[former[former != NOWHERE]] = True
    places = np.flatnonzero(is_involved[news])
    picked = zip(ops.take(wrap(places, pa.int64())).to_pylist(), news[places], former[places], strict=True)
    found = trace(KeyedChange(op, (int(new),), None if old == NOWHERE else (int(old),)) for op, new, old in picked)
    of = news.copy()
    of[places] = keys + np.array(found.labels, np.int64)
    origins = [NOWHERE if row.origin is None else row.origin[0] for row in found.rows]
    lives = [row.final is not None for row in found.rows]
    return _Rows(
        of,
        np.concatenate([np.arange(keys), np.array(origins, np.int64)]),
        np.concatenate([np.ones(keys, np.bool_), np.array(lives, np.bool_)]),
    )


def unchanged_columns(changes: pa.Table, schema: TableSchema) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield every column that some change leaves unchanged, by the log's name, with which changes do."""
    lists: Any = changes.column(log.UNCHANGED).combine_chunks()
    named = lists.flatten()
    if not len(named):
        return
    places = compute.list_parent_indices(lists).to_numpy()
    for column in schema.columns:
        found = places[compute.equal(named, column.name).to_numpy(zero_copy_only=False)]
        if len(found):
            is_unchanged = np.zeros(changes.num_rows, np.bool_)
            is_unchanged[found] = True
            yield log.stored_name(column.name), is_unchanged


def values_at(values: Any, places: Numbers) -> Any:
    """Return a column's values at these places, NULL where there is none."""
    index: Any = compute.if_else(wrap_mask(places == NOWHERE), pa.scalar(None, pa.int64()), wrap(places, pa.int64()))
    return values.take(index)


def with_columns(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Put columns in the place of those of their names, all at once: one by one, wide tables would take for ever."""
    arrays = [columns.get(name, own) for name, own in zip(table.column_names, table.columns, strict=True)]
    return pa.Table.from_arrays(arrays, schema=table.schema)
