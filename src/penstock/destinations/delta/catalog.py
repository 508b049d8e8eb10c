"""The names of our tables in a catalog of Spark's: each is an external table, registered at the folder it has.

Where a table is, and what is in it, stays the table's own: a catalog that was lost is made again, and a name that is
another table's is left alone.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.contract.files import Files
from penstock.errors import DestinationError
from penstock.lake.validate import unsupported
from penstock.model.table import TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# All that Spark's own catalog and Hive's let a name have.
_OTHER = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class CatalogNames:
    """Where tables are named."""

    catalog: str = "spark_catalog"
    schema: str | None = None
    """For all tables; that of the source if None."""


class Registry:
    """Registers tables, each once in every process. Used by several tables at once."""

    def __init__(self, spark: Callable[[], SparkSession], names: CatalogNames, lake: str, files: Files) -> None:
        self._spark = spark
        self._names = names
        self._lake = lake
        self._files = files
        self._lock = threading.Lock()
        self._known: dict[TableId, str] = {}

    def register(self, table: TableId, place: str) -> str:
        """Make sure that the table at a place below the lake has a name, and return it as SQL has it."""
        with self._lock:
            if table not in self._known:
                self._known[table] = self._registered(table, place)
            return self._known[table]

    def _registered(self, table: TableId, place: str) -> str:
        schema, name = (_plain(part) for part in place.split("/"))
        schema = self._names.schema or schema
        location = f"{self._lake}/{place}"
        self._run(f"create schema if not exists `{self._names.catalog}`.`{schema}`")
        for each in (name, f"{name}_{int(table)}"):
            full = f"`{self._names.catalog}`.`{schema}`.`{each}`"
            self._run(f"create table if not exists {full} using delta location '{_quoted(location)}'")
            if self._is_at(full, location):
                return full
        raise unsupported(
            f"There is no name for the Delta table at {location}: {full} is another table in this lake.",
            f"Drop the name {full} from the catalog; the table behind it stays.",
        )

    def _is_at(self, name: str, location: str) -> bool:
        """Whether a name is that of the table at a location; one of somebody else's is an error."""
        found = self._location(name)
        if found == location:
            return True
        if found is None or not found.startswith(f"{self._lake}/"):
            raise unsupported(
                f"There is a table {name} that this pipeline did not make; it is left as it is.",
                "Set destination.delta.catalog.schema_name to another schema, or drop that table.",
            )
        return False

    def _location(self, name: str) -> str | None:
        rows = self._spark().sql(f"describe table extended {name}").where("col_name = 'Location'").collect()
        return self._files.path(rows[0]["data_type"]).rstrip("/") if rows else None

    def _run(self, statement: str) -> None:
        self._spark().sql(statement)


def refuse_catalog(lake: str) -> DestinationError:
    """Return the error for tables that Spark could not read where they are."""
    return unsupported(
        f"The tables at {lake} cannot be registered in a catalog: Spark itself would have to read them there.",
        "Leave destination.delta.catalog out, or set destination.delta.path to a folder.",
    )


def _plain(name: str) -> str:
    return _OTHER.sub("_", name)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
