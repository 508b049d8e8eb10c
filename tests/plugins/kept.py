"""What a lake keeps of a source's tables, read back and compared with the source and with what its triggers saw."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from penstock.destinations.delta.schema import folder_name
from penstock.destinations.iceberg import CatalogSettings
from penstock.destinations.iceberg.catalog import place_of, sql_name
from penstock.model.mode import TableMode
from penstock.model.table import TableName
from penstock.testing.postgres import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LakeRow = Mapping[str, Any]
ReadTable = Callable[[str], Sequence[LakeRow]]
"""Returns all rows of a table of the schema `public`."""
Row = tuple[Any, ...]

AUDIT = """
    create schema audit;
    create table audit.log (number bigserial, tab text, op text, row jsonb);
    create function audit.record() returns trigger language plpgsql as $$
    begin
        insert into audit.log (tab, op, row)
        values (tg_table_name, tg_op, case when tg_op = 'DELETE' then to_jsonb(old) else to_jsonb(new) end);
        return null;
    end $$;
"""


def quoted(name: str) -> str:
    """Return a table's name for SQL."""
    escaped = name.replace('"', '""')
    return f'public."{escaped}"'


def audited(name: str) -> str:
    """Return what makes the source itself record every change of a table."""
    return f"""
        create trigger a after insert or update or delete on {name} for each row execute function audit.record();
        create trigger b after truncate on {name} execute function audit.record();
    """


def read_delta(lake: Path) -> ReadTable:
    def read(name: str) -> Sequence[LakeRow]:
        table = DeltaTable(lake / folder_name(TableName("public", name)))
        found = QueryBuilder().register("t", table).execute("select * from t").read_all()
        return pa.table(found).to_pylist()

    return read


def read_iceberg(spark: SparkSession, catalog: CatalogSettings) -> ReadTable:
    def read(name: str) -> Sequence[LakeRow]:
        return spark.read.table(sql_name(catalog.name, place_of(TableName("public", name)))).toArrow().to_pylist()

    return read


@dataclass(frozen=True)
class Kept:
    """A table of the source, and what is kept of it."""

    name: str
    mode: TableMode
    columns: tuple[str, ...] = ("id", "v", "big")
    key: tuple[str, ...] = ("id",)
    """None of them for a table without a key, which has to log old rows."""

    @property
    def quoted(self) -> str:
        return quoted(self.name)

    def source_rows(self, database: Database) -> Counter[Row]:
        names = ", ".join(f'"{name}"' for name in self.columns)
        return Counter(database.execute(f"select {names} from {self.quoted}"))

    def seen_by_triggers(self, database: Database) -> Counter[Row]:
        """Return how often the source saw each change; of a delete, its key."""
        # A version begins with each of these; that one ends is told by another.
        wanted = ["INSERT", "UPDATE"] if self.mode is TableMode.SCD2 else ["INSERT", "UPDATE", "DELETE", "TRUNCATE"]
        found = database.execute(
            "select op, row::text from audit.log where tab = %s and op = any(%s)", self.name, wanted
        )
        return Counter(self._shown(op, json.loads(row or "{}")) for op, row in found)

    def _shown(self, op: str, row: Mapping[str, Any]) -> Row:
        names = (self.key or self.columns) if op == "DELETE" else self.columns
        return op, *(row.get(name) for name in names)

    def _values(self, row: Mapping[str, Any], names: Iterable[str]) -> Row:
        return tuple(row[name] for name in names)

    def check(self, rows: Sequence[LakeRow], source: Counter[Row], seen: Counter[Row]) -> None:
        """Compare what the lake has with the source's rows, and what it kept with what the triggers saw."""
        present = self._present(rows)
        assert present == source, f"{self.name}: {difference(present, source)}"
        if self.mode is not TableMode.CURRENT:
            kept = self.kept_changes(rows)
            assert kept == seen, f"{self.name}: {difference(kept, seen)}"

    def kept_changes(self, rows: Sequence[LakeRow]) -> Counter[Row]:
        """Return how often the lake has each change, in the form in which triggers saw it."""
        kinds = {"INSERT", "UPDATE", "DELETE", "TRUNCATE"}
        return Counter(self._shown(row["_CHANGE_TYPE"], row) for row in rows if row["_CHANGE_TYPE"] in kinds)

    def _present(self, rows: Sequence[LakeRow]) -> Counter[Row]:
        match self.mode:
            case TableMode.CURRENT:
                return Counter(self._values(row, self.columns) for row in rows)
            case TableMode.SCD2:
                return Counter(self._values(row, self.columns) for row in rows if row["_is_current"])
            case TableMode.HISTORY:
                return self._replayed(rows)

    def _replayed(self, rows: Sequence[LakeRow]) -> Counter[Row]:
        """Do what a history says, change by change."""
        places = Counter((row["_LSN"], row["_ORDINAL"], row["_CHANGE_TYPE"]) for row in rows)
        copied = {place for place in places if place[2] == "COPY"}
        repeated = [place for place, times in places.items() if times > 1 and place not in copied]
        assert not repeated, f"{self.name}: kept more than once: {repeated}"
        state: Counter[Row] = Counter()
        by_key: dict[Row, Row] = {}
        order = {"KEY_CHANGE": 0, "DELETE": 0}
        for row in sorted(rows, key=lambda row: (row["_LSN"], row["_ORDINAL"], order.get(row["_CHANGE_TYPE"], 1))):
            self._replay(row, state, by_key)
        return +state

    def _replay(self, row: LakeRow, state: Counter[Row], by_key: dict[Row, Row]) -> None:
        values, key = self._values(row, self.columns), self._values(row, self.key)
        match row["_CHANGE_TYPE"]:
            case "TRUNCATE" | "RESYNC":
                state.clear()
                by_key.clear()
            case "DELETE" | "KEY_CHANGE":
                state[by_key.pop(key) if self.key else values] -= 1
            case _:
                if self.key and key in by_key:
                    state[by_key[key]] -= 1
                by_key[key] = values
                state[values] += 1


def difference(lake: Counter[Row], source: Counter[Row]) -> str:
    """Say what is missing and what is too much, shortly."""
    missing, extra = source - lake, lake - source
    shown = [f"{what} {sum(rows.values())}: {_shortly(rows)}" for what, rows in (("lacks", missing), ("has", extra))]
    return "the lake " + ", and ".join(shown)


def _shortly(rows: Counter[Row]) -> list[Row]:
    def short(value: Any) -> Any:
        return f"{value[:12]}…{len(value)}" if isinstance(value, str) and len(value) > 16 else value

    return [tuple(map(short, row)) for row in list(rows)[:5]]
