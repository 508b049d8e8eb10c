"""What the source's catalog says of a table: its columns, their types, its key, and where its rows lie."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.errors import ErrorKind, SourceError
from penstock.model.table import (
    Column,
    Kind,
    PgType,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
)
from penstock.postgres import query
from penstock.postgres.connection import Connection, source_errors

TypeRef = tuple[int, int]
"""A type's oid and modifier, as `pg_attribute` and the stream name it."""

KINDS: Mapping[int, Kind] = {
    16: Kind.BOOL,
    17: Kind.BYTES,
    20: Kind.INT8,
    21: Kind.INT2,
    23: Kind.INT4,
    26: Kind.OID,
    700: Kind.FLOAT4,
    701: Kind.FLOAT8,
    1082: Kind.DATE,
    1114: Kind.TIMESTAMP,
    1184: Kind.TIMESTAMPTZ,
    1700: Kind.NUMERIC,
}
"""The built-in types that have a kind of their own, by oid; every other scalar is TEXT."""

_TYPMOD_HEADER = 4
_SCALE_SIGN = 0x400


@dataclass(frozen=True, slots=True)
class Leaf:
    """A relation that holds rows itself: a plain table, or a partition without partitions."""

    id: TableId
    name: TableName
    blocks: int
    rows_estimate: int | None
    """As of the last VACUUM or ANALYZE; None before the first."""
    file: int
    """The number of its file, as of the reader's snapshot."""


def describe_table(connection: Connection, table: TableId, columns: Collection[str] | None = None) -> TableSchema:
    """Return a table's replicated columns and key.

    `columns` are the published ones; without them, all that are not generated. A key of which a part
    is not published identifies nothing, so it counts as none.
    """
    with source_errors(f"reading the catalog for table {int(table)}"):
        head = connection.execute(query.load("table"), {"table": int(table)}).fetchone()
        rows = connection.execute(query.load("table_columns"), {"table": int(table)}).fetchall()
    if head is None:
        raise SourceError(f"there is no table with oid {int(table)} any more", kind=ErrorKind.SOURCE_SCHEMA)
    schema, name, identity = head
    chosen = [row for row in rows if (row[1] in columns if columns is not None else not row[5])]
    types = describe_types(connection, {(oid, typmod) for _, _, oid, typmod, *_ in chosen})
    described = [
        Column(name=name, type=types[oid, typmod], nullable=nullable, key_ordinal=place, attnum=attnum)
        for attnum, name, oid, typmod, nullable, _, place in chosen
    ]
    if _count_keyed(rows) != _count_keyed(chosen):
        described = [replace(column, key_ordinal=None) for column in described]
    return TableSchema(table, TableName(schema, name), tuple(described), ReplicaIdentity(identity))


def _count_keyed(rows: Iterable[tuple[object, ...]]) -> int:
    return sum(row[-1] is not None for row in rows)


@dataclass(frozen=True, slots=True)
class _TypeRow:
    name: str
    base: TypeRef | None
    element: TypeRef | None


def describe_types(
    connection: Connection, types: Iterable[TypeRef], *, missing: PgType | None = None
) -> dict[TypeRef, PgType]:
    """Resolve types: domains to their base type, arrays to their elements, the rest to a kind.

    One that the source does not have any more is an error, or `missing` if that is given.
    """
    wanted = set(types)
    known: dict[TypeRef, _TypeRow] = {}
    pending, gone = wanted, set[TypeRef]()
    while pending:
        known |= _fetch_types(connection, pending)
        gone |= pending - known.keys()
        inner = {ref for row in known.values() for ref in (row.base, row.element) if ref is not None}
        pending = inner - known.keys() - gone
    if gone and missing is None:
        oids = ", ".join(str(oid) for oid, _ in sorted(gone))
        raise SourceError(f"the source has no type with oid {oids} any more", kind=ErrorKind.SOURCE_SCHEMA)
    resolved = {ref: _resolve(ref, known) for ref in wanted - gone}
    return resolved | (dict.fromkeys(wanted & gone, missing) if missing is not None else {})


def _fetch_types(connection: Connection, refs: set[TypeRef]) -> dict[TypeRef, _TypeRow]:
    ordered = sorted(refs)
    parameters = {"oids": [oid for oid, _ in ordered], "typmods": [typmod for _, typmod in ordered]}
    with source_errors("reading types from the catalog"):
        rows = connection.execute(query.load("types"), parameters).fetchall()
    return {
        (oid, typmod): _TypeRow(
            name,
            base=None if base is None else (base, base_typmod),
            # An array's modifier is its elements'.
            element=None if element is None else (element, typmod),
        )
        for oid, typmod, name, base, base_typmod, element in rows
    }


def _resolve(ref: TypeRef, known: Mapping[TypeRef, _TypeRow]) -> PgType:
    row = known[ref]
    if row.base is not None:
        return replace(_resolve(row.base, known), name=row.name)
    if row.element is not None:
        return PgType(row.name, Kind.ARRAY, element=_resolve(row.element, known))
    oid, typmod = ref
    kind = KINDS.get(oid, Kind.TEXT)
    if kind is not Kind.NUMERIC or typmod < _TYPMOD_HEADER:
        return PgType(row.name, kind)
    precision, scale = numeric_precision(typmod)
    return PgType(row.name, kind, precision, scale)


def numeric_precision(typmod: int) -> tuple[int, int]:
    """Unpack a numeric's modifier: precision above, and an 11-bit scale with a sign (15+; before it had none) below."""
    packed = typmod - _TYPMOD_HEADER
    scale = packed & (2 * _SCALE_SIGN - 1)
    return packed >> 16 & 0xFFFF, (scale ^ _SCALE_SIGN) - _SCALE_SIGN


def blocks(connection: Connection, table: TableId) -> tuple[Leaf, ...]:
    """Return where a table's rows lie and how much there is: the table itself, or its leaf partitions."""
    with source_errors(f"measuring table {int(table)}"):
        rows = connection.execute(query.load("leaves"), {"table": int(table)}).fetchall()
    return tuple(
        Leaf(TableId(oid), TableName(schema, name), size, None if estimate < 0 else estimate, file)
        for oid, schema, name, size, estimate, file in rows
    )
