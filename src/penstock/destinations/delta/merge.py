"""The MERGE statement that applies folded changes, and the bounds that spare it most of the target's files."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.destinations.delta.schema import CDC_NAMES
from penstock.model.table import Kind, TableSchema
from penstock.spark.fold import COMMIT_TS, DELETE, LSN, OP, ROW_MISSING, Folded, kept, value
from penstock.spark.schema import spark_type

# Bytes have no literal that Delta prunes by, floats have NaN, arrays no statistics.
_ORDERED = frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID, Kind.NUMERIC, Kind.TEXT, Kind.DATE}) | {
    Kind.TIMESTAMP,
    Kind.TIMESTAMPTZ,
}
_MAX_LITERAL = 256
_UNSAFE = re.compile(r"[^A-Za-z0-9 _.\-]")
_CHANGE_TYPE = f"if(s.{OP} = 'I', 'INSERT', 'UPDATE')"
_CDC_VALUES = (_CHANGE_TYPE, f"s.{LSN}", f"s.{COMMIT_TS}")


def table_rows(folded: Folded, schema: TableSchema, *, cdc_columns: bool) -> DataFrame:
    """Return the upserts as rows of the lake's table; a value nobody carried is an error here."""
    rows = folded.frame.filter(~f.col(DELETE)).alias("s")
    picked = [_expression(_required(i, folded, schema), column.name) for i, column in enumerate(schema.columns)]
    return rows.select(*picked, *(cdc_values() if cdc_columns else []))


def cdc_values() -> list[Column]:
    """Return our columns, from the change that decided."""
    return [_expression(text, name) for text, name in zip(_CDC_VALUES, CDC_NAMES, strict=True)]


def merge_statement(
    location: str, source: str, folded: Folded, schema: TableSchema, bounds: Iterable[str], *, cdc_columns: bool
) -> str:
    """Return the MERGE of a source view into the table; unchanged values stay the target's."""
    names = [column.name for column in schema.columns]
    on = [f"t.{quoted(names[i])} = s.{value(i)}" for i in _key(schema)]
    kept_values = [_kept_or_new(i, name, folded) for i, name in enumerate(names)]
    required = [_required(i, folded, schema) for i in range(len(names))]
    targets = [quoted(name) for name in (*names, *(CDC_NAMES if cdc_columns else ()))]
    ours = _CDC_VALUES if cdc_columns else ()
    sets = (f"t.{target} = {new}" for target, new in zip(targets, (*kept_values, *ours), strict=True))
    # Names are quoted and values literals of our own making: `literal` and `quoted` are all that enters here.
    return (
        f"merge into delta.{quoted(location)} t using {source} s on {' and '.join([*on, *bounds])} "  # noqa: S608
        f"when matched and s.{DELETE} then delete "
        f"when matched then update set {', '.join(sets)} "
        f"when not matched and not s.{DELETE} "
        f"then insert ({', '.join(targets)}) values ({', '.join((*required, *ours))})"
    )


def key_bounds(frame: DataFrame, schema: TableSchema) -> tuple[int, list[str]]:
    """Count the folded rows, and return predicates on the target that every one of their keys meets."""
    places = [i for i in _key(schema) if schema.columns[i].type.kind in _ORDERED]
    bounds = [agg(value(i)).alias(f"{name}{i}") for i in places for agg, name in ((f.min, "lo"), (f.max, "hi"))]
    # By way of Arrow: a Row would have timestamps in this process's time zone, without saying so.
    [row] = frame.agg(f.count(f.lit(1)).alias("rows"), *bounds).toArrow().to_pylist()
    return row["rows"], [text for i in places for text in _between(row, i, schema)]


def _between(row: Mapping[str, Any], place: int, schema: TableSchema) -> list[str]:
    column = schema.columns[place]
    sql_type = spark_type(column.type).simpleString()
    low, high = (literal(row[f"{name}{place}"], sql_type) for name in ("lo", "hi"))
    if low is None or high is None:
        return []
    return [f"t.{quoted(column.name)} >= {low}", f"t.{quoted(column.name)} <= {high}"]


def literal(item: Any, sql_type: str) -> str | None:
    """Return a key's value as SQL, or None where it is too long to be worth it."""
    match item:
        case int():
            return str(item)
        case Decimal():
            return f"cast('{item}' as {sql_type})"
        case str():
            return f"'{_UNSAFE.sub(_escape, item)}'" if len(item) <= _MAX_LITERAL else None
        case dt.datetime():
            zone, plain = ("Z", item.astimezone(dt.UTC)) if item.tzinfo else ("", item)
            return f"{sql_type} '{plain.replace(tzinfo=None).isoformat(sep=' ')}{zone}'"
        case dt.date():
            return f"date '{item.isoformat()}'"
    return None


def _escape(match: re.Match[str]) -> str:
    return f"\\U{ord(match[0]):08X}"


def quoted(name: str) -> str:
    """Quote an identifier for Spark."""
    return "`" + name.replace("`", "``") + "`"


def _key(schema: TableSchema) -> Sequence[int]:
    return [schema.columns.index(column) for column in schema.key]


def _kept_or_new(index: int, name: str, folded: Folded) -> str:
    if index not in folded.keeps:
        return f"s.{value(index)}"
    return f"if(s.{kept(index)}, t.{quoted(name)}, s.{value(index)})"


def _required(index: int, folded: Folded, schema: TableSchema) -> str:
    """Return a new row's value, or fail inside Spark: an unchanged value without a row to keep it from."""
    if index not in folded.keeps:
        return f"s.{value(index)}"
    sql_type = spark_type(schema.columns[index].type).simpleString()
    return f"if(s.{kept(index)}, cast(raise_error('{ROW_MISSING}') as {sql_type}), s.{value(index)})"


def _expression(text: str, name: str) -> Column:
    return f.expr(text).alias(name)
