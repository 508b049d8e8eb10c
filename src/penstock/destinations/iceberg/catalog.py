"""Which catalog the tables are in, and what they are called there.

Names are written so that every kind of catalog can hold them: a folder of the Hadoop catalog, a row of
the JDBC catalog, a part of the REST catalog's URLs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.model.table import TableName
from penstock.storage.place import files_at
from penstock.storage.s3 import S3Settings

HADOOP, JDBC, REST = "hadoop", "jdbc", "rest"

_ESCAPE = "~"
# No dots: a catalog joins namespace and name with them.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclass(frozen=True)
class CatalogSettings:
    """A catalog as Iceberg's library is told of it."""

    name: str
    """What Spark calls it; the JDBC catalog also stores it with every table."""
    properties: Mapping[str, str] = field(repr=False)
    """Iceberg's own names: `type`, `warehouse`, `uri` and what else the kind takes. Some are secrets."""
    s3: S3Settings | None = None
    """How we reach tables in a bucket; how the library does is among its properties."""

    @property
    def kind(self) -> str:
        """Hadoop, JDBC or REST, in small letters."""
        return self.properties["type"]

    @property
    def folder(self) -> str | None:
        """Where new tables go, if that is ours to say: a REST catalog's server decides for itself."""
        return None if self.kind == REST else self.properties["warehouse"]

    @property
    def is_local(self) -> bool:
        """Whether tables are on a disk, as far as that is known."""
        return self.folder is not None and files_at(self.folder).is_local


def place_of(name: TableName) -> str:
    """Return a table's name in the catalog, `namespace.table`: different for different tables."""
    return f"{_escaped(name.schema)}.{_escaped(name.name)}"


def _escaped(name: str) -> str:
    return "".join(c if c in _PLAIN else "".join(f"{_ESCAPE}{byte:02X}" for byte in c.encode()) for c in name)


def sql_name(catalog: str, place: str) -> str:
    """Return a table's name for Spark's SQL and readers."""
    return ".".join(f"`{part}`" for part in (catalog, *place.split(".")))
