"""What tables that keep the past have in common: whole rows of changes, and values that only the table has.

A change that leaves TOASTed values unchanged is written with them all the same. They come from the old row where the
source logs it (REPLICA IDENTITY FULL), from an earlier change of the batch, or from the table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.contract import columns as log
from penstock.contract.batch import TableChanges
from penstock.lake.fold import NOWHERE, unchanged_columns, values_at, with_columns
from penstock.lake.key import Numbers
from penstock.lake.lineage import Lineage
from penstock.lake.locate import Found
from penstock.lake.validate import refuse_keyless
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn, Position
from penstock.model.table import TableSchema
from penstock.wire.arrow import compute, wrap, wrap_mask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
BEFORE_COPY = -1
"""The ordinal of what is before a copy's rows, which have 0."""

Read: TypeAlias = Callable[[Sequence[str], Numbers], Iterable[pa.Table]]
"""What gives columns of one file at places in it, in order, a few rows at a time."""


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of one file that were looked for, and a way to read them."""

    found: Found
    read: Read

    def chunks(self, columns: Sequence[str]) -> Iterator[tuple[Found, pa.Table]]:
        """Yield columns of all of them, a few rows at a time."""
        done = 0
        for table in self.read(columns, self.found.places):
            here = slice(done, done + table.num_rows)
            yield Found(self.found.places[here], self.found.numbers[here]), table
            done += table.num_rows


@dataclass(frozen=True, slots=True)
class TimedTruncate:
    """A truncate, and when it was committed."""

    position: Position
    moment_us: int


def truncates_since(changes: TableChanges, since: Lsn) -> list[TimedTruncate]:
    """Return the truncates of transactions from a position on, in order."""
    positions = sorted(each.position for each in changes.truncates if each.position.commit_lsn >= since)
    times = changes.truncate_times if positions else {}
    return [TimedTruncate(each, microseconds(times[each.commit_lsn])) for each in positions]


def microseconds(moment: dt.datetime) -> int:
    """Return a moment as Arrow has it."""
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def whole_changes(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.Table:
    """Return changes, completed by the old rows that the source logged with them."""
    changes = pa.Table.from_batches(batches)
    old = _old_rows(changes)
    if not schema.key:
        _check_identified(changes, old, schema)
    if old is None:
        return changes
    has_old = old.is_valid()
    is_deleted = compute.and_(compute.equal(changes.column(log.OP), "D"), has_old)
    is_kept = {name: mask & has_old.to_numpy(zero_copy_only=False) for name, mask in unchanged_columns(changes, schema)}
    restored: dict[str, Any] = {log.UNCHANGED: _without(changes.column(log.UNCHANGED), has_old)}
    for column, values in zip(schema.columns, old.flatten(), strict=True):
        name = log.stored_name(column.name)
        wanted = compute.or_(is_deleted, wrap_mask(is_kept[name])) if name in is_kept else is_deleted
        restored[name] = compute.if_else(wanted, values, changes.column(name))
    return with_columns(changes, restored)


def _old_rows(changes: pa.Table) -> Any:
    """Return the old rows, or None if there are none."""
    if log.BEFORE not in changes.column_names:
        return None
    old: Any = changes.column(log.BEFORE).combine_chunks()
    return old if old.null_count < len(old) else None


def _without(values: Any, is_gone: Any) -> Any:
    return compute.if_else(is_gone, pa.scalar(None, values.type), values)


def _check_identified(changes: pa.Table, old: Any, schema: TableSchema) -> None:
    is_insert = compute.equal(changes.column(log.OP), "I")
    is_known = is_insert if old is None else compute.or_(is_insert, old.is_valid())
    if not compute.all(is_known).as_py():
        raise refuse_keyless(schema)


def former_rows(changes: pa.Table, schema: TableSchema) -> pa.Table:
    """Return the updates that changed what identifies their row, each with its old key, or its old row if logged."""
    old = _old_rows(changes)
    identity = changes.column(log.KEY).combine_chunks() if schema.key else _of_updates(old, changes)
    if identity is None:
        return changes.slice(0, 0)
    places = wrap(np.flatnonzero(identity.is_valid().to_numpy(zero_copy_only=False)), pa.int64())
    formers = changes.take(places)
    names = [log.stored_name(column.name) for column in schema.columns]
    nothing = {name: pa.nulls(formers.num_rows, formers.schema.field(name).type) for name in names}
    known = nothing | _fields(identity.take(places))
    if old is not None:
        rows = old.take(places)
        known |= {name: compute.if_else(rows.is_valid(), each, known[name]) for name, each in _fields(rows).items()}
    return with_columns(formers, known)


def _of_updates(old: Any, changes: pa.Table) -> Any:
    """Return the old rows of updates: what identifies rows of a table without a key."""
    if old is None:
        return None
    is_update = compute.equal(changes.column(log.OP), "U").combine_chunks()
    return compute.if_else(is_update, old, pa.scalar(None, old.type))


def _fields(struct: Any) -> dict[str, Any]:
    """Return a struct's columns, by the log's names."""
    return {field.name: values for field, values in zip(struct.type, struct.flatten(), strict=True)}


@dataclass(frozen=True)
class Wholes:
    """Changes whose values are whole but for those that the table has."""

    changes: pa.Table
    kept: Mapping[str, NDArray[np.bool_]]
    """By column, which of the changes have a value that is in the table."""
    origins: Numbers
    """For every change, the number of the key under which the table has it, or `NOWHERE`."""

    def where(self, wanted: NDArray[np.bool_]) -> Wholes:
        """Return some of them."""
        kept = {name: mask[wanted] for name, mask in self.kept.items()}
        return Wholes(self.changes.filter(wrap_mask(wanted)), kept, self.origins[wanted])


def completed_in_batch(changes: pa.Table, schema: TableSchema, lineage: Lineage) -> Wholes:
    """Give every change the values that an earlier one of its row carries."""
    kept: dict[str, NDArray[np.bool_]] = {}
    given: dict[str, Any] = {}
    for name, is_unchanged in unchanged_columns(changes, schema):
        givers = lineage.givers(is_unchanged)
        given[name] = values_at(changes.column(name), np.where(is_unchanged[givers], NOWHERE, givers))
        if is_unchanged[givers].any():
            kept[name] = is_unchanged[givers]
    return Wholes(with_columns(changes, given), kept, lineage.beginnings)


class Waiting:
    """Changes that wait for values of the table; any number of them for one row."""

    def __init__(self, wholes: Wholes) -> None:
        self._wholes = wholes
        lacking = np.zeros(wholes.changes.num_rows, np.bool_)
        for mask in wholes.kept.values():
            lacking |= mask
        self._lacking = lacking
        places = np.flatnonzero(lacking)
        self._places = places[np.argsort(wholes.origins[places], kind="stable")]
        self._origins = wholes.origins[self._places]
        self._missing = len(places)

    @property
    def columns(self) -> list[str]:
        """What they wait for, by the log's names."""
        return list(self._wholes.kept)

    @property
    def keys(self) -> Numbers:
        """The numbers of the keys that they wait for."""
        return np.unique(self._origins[self._origins != NOWHERE])

    @property
    def missing(self) -> int:
        """How many still wait."""
        return self._missing

    def others(self) -> pa.Table:
        """Return the changes that wait for nothing."""
        return self._wholes.changes.filter(wrap_mask(~self._lacking)) if self._missing else self._wholes.changes

    def completed(self, numbers: Numbers, values: pa.Table) -> pa.Table:
        """Return the changes that wait for the rows with these keys, completed by their values."""
        first = np.searchsorted(self._origins, numbers, "left")
        counts = np.searchsorted(self._origins, numbers, "right") - first
        parents = np.repeat(np.arange(len(numbers)), counts)
        steps = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = self._places[np.repeat(first, counts) + steps]
        self._missing -= len(places)
        own = self._wholes.changes.take(wrap(places, pa.int64()))
        taken = values.take(wrap(parents, pa.int64()))
        return with_columns(
            own,
            {
                name: compute.if_else(
                    wrap_mask(mask[places]), _cast(taken.column(name), own.column(name).type), own.column(name)
                )
                for name, mask in self._wholes.kept.items()
            },
        )


def _cast(values: Any, type_: pa.DataType) -> Any:
    return values if values.type == type_ else values.cast(type_)


@dataclass(frozen=True)
class CopyStart:
    """A copy that begins in a table which keeps an earlier one's past, as changes: all that is current ends there."""

    schema: TableSchema
    watermark: Lsn
    now: dt.datetime
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    has_unchanged: bool = False
    has_key_changes: bool = False
    is_settling: bool = False

    @property
    def truncates(self) -> Sequence[Truncate]:
        """Return one, right before the rows of the copy."""
        at = Position(self.watermark, BEFORE_COPY)
        return [Truncate(at, (self.schema.id,), cascade=False, restart_identity=False)]

    @property
    def truncate_times(self) -> Mapping[Lsn, dt.datetime]:
        """Return when that is."""
        return {self.watermark: self.now}

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Yield nothing."""
        return iter(())

    @property
    def frame(self) -> DataFrame:
        """Nothing needs Spark."""
        raise NotImplementedError
