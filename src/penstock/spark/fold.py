"""Folds a table's changes to one action per key, as Spark plans.

Changes are ordered by `(_commit_lsn, _ordinal)`; the last decides between upsert and delete, and
per column the last change that carries a value wins, since an update may leave TOAST unchanged.
Only where keys changed does the driver look at keys itself, to tell which changes are one row's.
Columns go by place (`v0`, `v1`, …) in here, so that no source column's name can meet one of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from penstock.contract import columns as log
from penstock.contract.batch import TableChanges
from penstock.model.lsn import Lsn, Position
from penstock.model.table import Kind, TableSchema
from penstock.replication.fold import Key, KeyedChange, Trace, trace

DELETE = "delete"
"""bool: the key is to be removed, rather than to get this row."""
OP, LSN, COMMIT_TS = "op", "lsn", "commit_ts"
"""Of the change that decided: its operation, transaction and commit time."""
ROW_MISSING = "PENSTOCK_ROW_MISSING"
"""Raised inside Spark when an update's unchanged value is not in the target, where it must be."""

_ORDINAL, _ROW = "ordinal", "row"
_LIVE, _MOVED = "live", "moved"
# Only variable-length types are ever stored out of line.
_TOASTED = frozenset({Kind.TEXT, Kind.BYTES, Kind.NUMERIC, Kind.ARRAY})


def value(index: int) -> str:
    """Name the folded value of a table's column."""
    return f"v{index}"


def kept(index: int) -> str:
    """Name the flag that says: no change carries this column's value, the target's stays."""
    return f"kept{index}"


@dataclass(frozen=True)
class Folded:
    """One row per key: values, `delete`, `op`, `lsn`, `commit_ts`, and `kept…` flags where `keeps` lists them."""

    frame: DataFrame
    keeps: tuple[int, ...]
    """Columns that may still be unchanged; their rows are in the target under the same key."""

    @classmethod
    def of_inserts(cls, rows: DataFrame) -> Folded:
        """Take new rows as they are: each is the only change of its key, or there is no key."""
        return cls(rows.withColumn(DELETE, f.lit(False)), ())


def fold(
    changes: TableChanges,
    *,
    since: Lsn | None = None,
    after: Position | None = None,
    target: Callable[[], DataFrame] | None = None,
) -> Folded:
    """Fold the changes of transactions from `since` on, behind the position `after`.

    `target` gives the table's present rows by its own column names; it is asked only for values that a row with
    a changed key left unchanged. Without one (the table is being emptied) there are no such values.
    """
    folding = _Folding(changes.schema, changes.has_unchanged)
    rows = folding.rows(changes.frame, since, after)
    if not changes.has_key_changes:
        return Folded(folding.by_key(rows), folding.keeps)
    return Folded(folding.by_row(rows, target), folding.keeps)


def placed_rows(frame: DataFrame, schema: TableSchema, since: Lsn | None, after: Position | None) -> DataFrame:
    """Return changes behind both positions, columns by place."""
    return _Folding(schema, has_unchanged=False).rows(frame, since, after)


class _Folding:
    def __init__(self, schema: TableSchema, has_unchanged: bool) -> None:
        self.schema = schema
        self.key = tuple(schema.columns.index(column) for column in schema.key)
        self.rest = tuple(i for i in range(len(schema.columns)) if i not in self.key)
        toasted = tuple(i for i in self.rest if schema.columns[i].type.kind in _TOASTED)
        self.keeps = toasted if has_unchanged else ()

    def rows(self, frame: DataFrame, since: Lsn | None, after: Position | None) -> DataFrame:
        """Rename everything by place, and leave out what comes before."""
        names = [log.stored_name(column.name) for column in self.schema.columns]
        picked = [_quoted(name).alias(value(i)) for i, name in enumerate(names)]
        picked += [
            f.col(log.OP).alias(OP),
            f.col(log.COMMIT_LSN).alias(LSN),
            f.col(log.ORDINAL).alias(_ORDINAL),
            f.col(log.COMMIT_TS).alias(COMMIT_TS),
        ]
        picked += [
            f.coalesce(f.array_contains(log.UNCHANGED, self.schema.columns[i].name), f.lit(False)).alias(kept(i))
            for i in self.keeps
        ]
        if self.key:
            fields = [log.stored_name(self.schema.columns[i].name) for i in self.key]
            changed = f.col(log.KEY).isNotNull()
            picked += [
                f.when(changed, f.col(log.KEY).getField(n)).alias(_old(i))
                for i, n in zip(self.key, fields, strict=True)
            ]
            picked.append(changed.alias(_MOVED))
        return _behind(frame, since, after).select(*picked)

    def by_key(self, rows: DataFrame) -> DataFrame:
        """Fold where no key changed: a row is its key."""
        grouped = rows.groupBy(*self._key_names).agg(*self._last(self.rest))
        return grouped.select(*self._key_names, *self._unpacked(self.rest))

    @property
    def _key_names(self) -> list[str]:
        return [value(i) for i in self.key]

    def _last(self, places: Sequence[int]) -> list[Column]:
        """Aggregate to the last change, and per column that may be unchanged to the last one that has it."""
        at = f.struct(LSN, _ORDINAL)
        plain = [value(i) for i in places if i not in self.keeps]
        last = f.max_by(f.struct(*plain, OP, LSN, COMMIT_TS), at).alias("last")
        # The value travels in a struct: max_by of a bare NULL could not be told from no value at all.
        given = [
            f.max_by(f.when(~f.col(kept(i)), f.struct(value(i))), f.when(~f.col(kept(i)), at)).alias(f"given{i}")
            for i in self.keeps
        ]
        return [last, *given]

    def _unpacked(self, places: Sequence[int]) -> list[Column]:
        picked = [
            f.col(f"given{i}.{value(i)}").alias(value(i)) if i in self.keeps else f.col(f"last.{value(i)}")
            for i in places
        ]
        picked += [f.col(f"last.{name}") for name in (OP, LSN, COMMIT_TS)]
        picked.append((f.col(f"last.{OP}") == "D").alias(DELETE))
        picked += [f.col(f"given{i}").isNull().alias(kept(i)) for i in self.keeps]
        return picked

    def by_row(self, rows: DataFrame, target: Callable[[], DataFrame] | None) -> DataFrame:
        """Fold where keys changed: changes of keys involved in that are followed on the driver."""
        labels, traced = self._trace(rows)
        labelled = rows.join(f.broadcast(labels), [LSN, _ORDINAL], "left")
        unmoved_key = [f.when(f.col(_ROW).isNull(), f.col(name)).alias(f"key_{name}") for name in self._key_names]
        origins = [f.max(_origin(i)).alias(_origin(i)) for i in self.key]
        everything = (*self.key, *self.rest)
        grouped = labelled.groupBy(_ROW, *unmoved_key).agg(*self._last(everything), f.max(_LIVE).alias(_LIVE), *origins)
        alive = grouped.filter(f.coalesce(_LIVE, f.lit(True)))
        folded = alive.select(*self._unpacked(everything), *[_origin(i) for i in self.key])
        if self.keeps and target is not None:
            folded = self._fetched(folded, traced, target())
        result = folded.drop(*[_origin(i) for i in self.key])
        return result.unionByName(self._vacated(result, traced), allowMissingColumns=True)

    def _trace(self, rows: DataFrame) -> tuple[DataFrame, Trace]:
        """Follow the changes of every key that some change moved a row from or to; other keys cannot be involved."""
        moves = rows.filter(_MOVED).select(*self._key_names, *[_old(i) for i in self.key]).toArrow()
        involved = {key for row in moves.to_pylist() for key in self._both_keys(row)}
        keys = self._key_frame(rows, list(involved), value)
        near = rows.join(f.broadcast(keys), self._key_names, "leftsemi")
        picked = near.select(LSN, _ORDINAL, OP, _MOVED, *self._key_names, *[_old(i) for i in self.key]).toArrow()
        ordered = sorted(picked.to_pylist(), key=lambda row: (row[LSN], row[_ORDINAL]))
        traced = trace(self._keyed(row) for row in ordered)
        return self._label_frame(rows, ordered, traced), traced

    def _keyed(self, row: dict[str, Any]) -> KeyedChange:
        key, old = self._both_keys(row)
        return KeyedChange(row[OP], key, old if row[_MOVED] else None)

    def _both_keys(self, row: dict[str, Any]) -> tuple[Key, Key]:
        return tuple(_frozen(row[value(i)]) for i in self.key), tuple(_frozen(row[_old(i)]) for i in self.key)

    def _label_frame(self, rows: DataFrame, ordered: Sequence[dict[str, Any]], traced: Trace) -> DataFrame:
        """Return, for every followed change, its row's number, whether it lives on, and where it came from if moved."""
        fields = [StructField(LSN, LongType()), StructField(_ORDINAL, LongType())]
        fields += [StructField(_ROW, LongType()), StructField(_LIVE, BooleanType())]
        fields += [StructField(_origin(i), rows.schema[value(i)].dataType) for i in self.key]
        data: list[tuple[Any, ...]] = []
        for change, label in zip(ordered, traced.labels, strict=True):
            row = traced.rows[label]
            origin = _thawed(row.origin) if row.is_moved and row.origin else (None,) * len(self.key)
            data.append((change[LSN], change[_ORDINAL], label, row.final is not None, *origin))
        return _local_frame(rows, fields, data)

    def _fetched(self, folded: DataFrame, traced: Trace, target: DataFrame) -> DataFrame:
        """Fill in what rows with a new key left unchanged, from where the target has them under the old one."""
        moved = [row.origin for row in traced.rows if row.is_moved and row.origin is not None]
        columns = self.schema.columns
        origins = self._key_frame(folded, moved, _origin)
        held = target.select(
            *[_quoted(columns[i].name).alias(_origin(i)) for i in self.key],
            *[_quoted(columns[i].name).alias(f"held{i}") for i in self.keeps],
            f.lit(True).alias("found"),
        ).join(f.broadcast(origins), [_origin(i) for i in self.key], "leftsemi")
        joined = folded.join(f.broadcast(held), [_origin(i) for i in self.key], "left")
        is_moved = f.col(_origin(self.key[0])).isNotNull()
        for i in self.keeps:
            found = f.when(f.col("found"), f.col(f"held{i}")).otherwise(_missing(joined, value(i)))
            joined = joined.withColumn(value(i), f.when(is_moved & f.col(kept(i)), found).otherwise(f.col(value(i))))
            joined = joined.withColumn(kept(i), f.col(kept(i)) & ~is_moved)
        return joined.drop("found", *[f"held{i}" for i in self.keeps])

    def _vacated(self, like: DataFrame, traced: Trace) -> DataFrame:
        removed = self._key_frame(like, list(traced.vacated), value).withColumn(DELETE, f.lit(True))
        for i in self.keeps:
            removed = removed.withColumn(kept(i), f.lit(False))
        return removed

    def _key_frame(self, like: DataFrame, keys: Sequence[Key], name: Callable[[int], str]) -> DataFrame:
        fields = [StructField(name(i), like.schema[value(i)].dataType) for i in self.key]
        return _local_frame(like, fields, [_thawed(key) for key in keys])


def _local_frame(like: DataFrame, fields: Sequence[StructField], rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Return a small frame that is part of the plan itself; made from Arrow, so that no value changes on the way."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(fields)
    arrays = [pa.array(values, to_arrow_type(item.dataType)) for values, item in zip(columns, fields, strict=True)]
    table = pa.Table.from_arrays(arrays, names=[item.name for item in fields])
    return like.sparkSession.createDataFrame(table, StructType(list(fields)))


def _behind(frame: DataFrame, since: Lsn | None, after: Position | None) -> DataFrame:
    rows = frame.filter(f.col(log.COMMIT_LSN) >= int(since)) if since else frame
    if after is None:
        return rows
    lsn, ordinal = f.col(log.COMMIT_LSN), f.col(log.ORDINAL)
    start = int(after.commit_lsn)
    return rows.filter((lsn > start) | ((lsn == start) & (ordinal > after.ordinal)))


def _missing(frame: DataFrame, name: str) -> Column:
    return f.raise_error(f.lit(ROW_MISSING)).cast(frame.schema[name].dataType)


def _old(index: int) -> str:
    return f"old{index}"


def _origin(index: int) -> str:
    return f"origin{index}"


def _quoted(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")


_NAN = object()


def _frozen(item: Any) -> Any:
    """Make a key's value hashable and equal to itself, as keys are in Postgres."""
    if isinstance(item, list):
        return tuple(_frozen(element) for element in item)
    return _NAN if isinstance(item, float) and math.isnan(item) else item


def _thawed(key: Key) -> tuple[Any, ...]:
    return tuple(_thaw(item) for item in key)


def _thaw(item: Any) -> Any:
    if item is _NAN:
        return math.nan
    return [_thaw(element) for element in item] if isinstance(item, tuple) else item
