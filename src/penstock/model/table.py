"""Tables, columns and their types, as the rest of Penstock sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TableId(int):
    """A source table's oid: it survives renames and moves between schemas."""

    __slots__ = ()


class PipelineId(str):
    """What names a pipeline, and through it its slot and its state."""

    __slots__ = ()

    @property
    def slot_name(self) -> str:
        """The replication slot that this pipeline owns on the source."""
        return f"penstock_{self}"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's schema-qualified name. Names are kept as the catalog has them, unquoted."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> str:
        """The name as an SQL identifier."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"


def quote_identifier(name: str) -> str:
    """Quote one identifier, always, so that case and reserved words never matter."""
    return '"' + name.replace('"', '""') + '"'


class Kind(StrEnum):
    """How a value is represented on its way to a destination; many Postgres types share TEXT."""

    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    OID = "oid"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    NUMERIC = "numeric"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class PgType:
    """A resolved source type: domains are their base type, what has no kind of its own is TEXT."""

    name: str
    """As `format_type` prints it, e.g. `numeric(12,2)`."""
    kind: Kind
    precision: int | None = None
    """Of a NUMERIC with a declared precision; None when it has none."""
    scale: int | None = None
    element: PgType | None = None
    """Of an ARRAY."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "precision": self.precision,
            "scale": self.scale,
            "element": self.element.to_json() if self.element else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PgType:
        """Rebuild what `to_json` gave."""
        element = data["element"]
        return cls(
            name=data["name"],
            kind=Kind(data["kind"]),
            precision=data["precision"],
            scale=data["scale"],
            element=cls.from_json(element) if element else None,
        )


@dataclass(frozen=True, slots=True)
class Column:
    """One replicated column."""

    name: str
    type: PgType
    nullable: bool = True
    key_ordinal: int | None = None
    """Place in the key's index, from 0; None outside it."""
    attnum: int | None = None
    """The catalog's number for the column; None where only the stream described it."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back."""
        return {
            "name": self.name,
            "type": self.type.to_json(),
            "nullable": self.nullable,
            "key_ordinal": self.key_ordinal,
            "attnum": self.attnum,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Column:
        """Rebuild what `to_json` gave."""
        return cls(**{**data, "type": PgType.from_json(data["type"])})


class ReplicaIdentity(StrEnum):
    """What the source logs of a row's old version (`pg_class.relreplident`)."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A source table at one version: its name, replicated columns and key.

    The key is what identifies a row in the stream: the replica identity's index where one is
    set, the primary key otherwise. It may be empty.
    """

    id: TableId
    name: TableName
    columns: tuple[Column, ...]
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    membership: str = field(default="", compare=False)
    """Of a table that was copied: what made it a part of the publication then."""

    @property
    def key(self) -> tuple[Column, ...]:
        """The key's columns in table order, in which the stream has them too, whatever the order in the index is."""
        return tuple(column for column in self.columns if column.key_ordinal is not None)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names in table order."""
        return tuple(column.name for column in self.columns)

    @property
    def logs_old_rows(self) -> bool:
        """Whether the source logs the whole old row of updates and deletes; a row without columns is nothing to log."""
        return self.identity is ReplicaIdentity.FULL and bool(self.columns)

    def column(self, name: str) -> Column:
        """Look a column up by name."""
        return next(column for column in self.columns if column.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads back."""
        return {
            "id": int(self.id),
            "schema": self.name.schema,
            "name": self.name.name,
            "columns": [column.to_json() for column in self.columns],
            "identity": self.identity.value,
            "membership": self.membership,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TableSchema:
        """Rebuild what `to_json` gave."""
        return cls(
            id=TableId(data["id"]),
            name=TableName(data["schema"], data["name"]),
            columns=tuple(Column.from_json(column) for column in data["columns"]),
            identity=ReplicaIdentity(data["identity"]),
            membership=data["membership"],
        )
