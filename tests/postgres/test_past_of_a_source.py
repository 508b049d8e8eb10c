"""Tables that keep the past, from a real source: its own triggers, which record every change, are the measure."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from plugins.kept import AUDIT
from plugins.local_lake import LocalDelta
from plugins.pipeline import Pipelines

from penstock import failpoint
from penstock.contract import EventBatch
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import PipelineId
from penstock.spark.changes import LogEvents
from penstock.store.memory import MemoryStore
from penstock.testing.batch import no_spark
from penstock.testing.postgres import Database

pytestmark = pytest.mark.postgres

MODES = TableModes(TableMode.HISTORY, {"public.versioned": TableMode.SCD2, "public.present": TableMode.CURRENT})
NAMES = ("recorded", "versioned", "present")
KEYED = """
    create table {0} (id int primary key, v int, big text) with (autovacuum_enabled = off);
    alter table {0} alter column big set storage external;
    insert into {0} select g, 0, repeat(md5(g::text), 3 + 100 * (g % 2)) from generate_series(1, 200) g;
"""
SOURCE = f"""
    {"".join(KEYED.format(name) for name in NAMES)}
    create table keyless (id int, v int, big text);
    alter table keyless replica identity full, alter column big set storage external;
    insert into keyless select g, 0, repeat(md5(g::text), 100) from generate_series(1, 20) g;
    {AUDIT}
    create trigger a after insert or update or delete on recorded for each row execute function audit.record();
    create trigger b after truncate on recorded execute function audit.record();
    create trigger a after insert or update or delete on keyless for each row execute function audit.record();
    create publication test_pub for tables in schema public;
"""


class Lake:
    def __init__(self, path: Path) -> None:
        self.path, self.store = path, MemoryStore()
        self.destination = LocalDelta(
            str(path), pipeline=PipelineId("p"), spark=no_spark, tables=self.store, modes=MODES
        )

    def query(self, name: str, sql: str) -> list[dict[str, Any]]:
        table = DeltaTable(self.path / "public" / name)
        return pa.table(QueryBuilder().register(name, table).execute(sql).read_all()).to_pylist()

    def rows(self, name: str, condition: str = "true") -> list[tuple[Any, ...]]:
        return sorted(
            tuple(row.values()) for row in self.query(name, f"select id, v, big from {name} where {condition}")
        )

    def last_state(self, name: str) -> list[tuple[Any, ...]]:
        """Return what the how-to's query makes of a history."""
        found = self.query(
            name,
            f"""
            with changes as (
                select *, sum(case when "_CHANGE_TYPE" in ('TRUNCATE', 'RESYNC') then 1 else 0 end)
                    over (order by "_LSN" desc, "_ORDINAL" desc) as emptied_later
                from {name}
            ), latest as (
                select *, row_number() over (partition by id order by "_LSN" desc, "_ORDINAL" desc) as place
                from changes where emptied_later = 0
            )
            select id, v, big from latest where place = 1 and "_CHANGE_TYPE" in ('COPY', 'INSERT', 'UPDATE')
            """,
        )
        return sorted(tuple(row.values()) for row in found)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    yield Lake(tmp_path / "lake")
    failpoint.arm("")


def source_rows(database: Database, name: str) -> list[tuple[Any, ...]]:
    return sorted(database.execute(f"select id, v, big from {name}"))


def change(chance: random.Random, name: str) -> str:
    """Return a transaction that changes, moves, adds or removes rows."""
    low, span = chance.randrange(1, 200), chance.randrange(1, 15)
    near, missing = f"id between {low} and {low + span}", f"g not in (select id from {name})"
    bump = f"update {name} set v = v + 1 where {near}"
    return chance.choice(
        [
            bump,
            f"update {name} set v = v + 1, big = repeat(md5(v::text), 60) where {near}",
            f"{bump}; update {name} set v = v * 2 where {near}; delete from {name} where id = {low}",
            f"delete from {name} where {near}",
            f"insert into {name} select g, -1, 'new' from generate_series({low}, {low + span}) g where {missing}",
            f"update {name} set id = id + 1000 where {near} and id + 1000 not in (select id from {name})",
            f"update {name} set id = id - 1000 where id > 1000 and id - 1000 not in (select id from {name})",
        ]
    )


def recorded(lake: Lake, name: str, *, has_old_rows: bool) -> Counter[tuple[str, str]]:
    """Return how often the history has each change, with its row; of a delete, all that is known."""
    found = lake.query(name, f"""select * from {name} where "_CHANGE_TYPE" not in ('COPY', 'KEY_CHANGE')""")
    return Counter((row["_CHANGE_TYPE"], _shown(row, has_old_rows=has_old_rows)) for row in found)


def audited(database: Database, name: str, *, has_old_rows: bool) -> Counter[tuple[str, str]]:
    """Return how often the source's triggers saw each."""
    found = database.execute(f"select op, row::text from audit.log where tab = '{name}'")
    rows = ((op, {"id": None, "v": None, "big": None} if row is None else json.loads(row)) for op, row in found)
    return Counter((op, _shown({**row, "_CHANGE_TYPE": op}, has_old_rows=has_old_rows)) for op, row in rows)


def _shown(row: dict[str, Any], *, has_old_rows: bool) -> str:
    is_whole = has_old_rows or row["_CHANGE_TYPE"] != "DELETE"
    return repr((row["id"], row["v"], row["big"]) if is_whole else row["id"])


def test_every_change_that_the_sources_triggers_saw_is_kept_once(
    lake: Lake, pipelines: Pipelines, database: Database
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201
    chance = random.Random(seed)
    database.execute(SOURCE)
    pipeline = pipelines.start(lake.destination, lake.store)
    pipelines.catch_up(pipeline)
    failpoint.arm("delta.files_written=raise*2,delta.commit=raise*2@8,delta.committed=raise*4@16")
    for step in range(30):
        for name in NAMES:
            database.execute(change(chance, name))
        database.execute(f"update keyless set v = v + 1 where id % {step + 2} = 0")
        if step == 20:
            database.execute(
                "begin; delete from recorded where id < 20; truncate recorded, versioned, present;"
                "insert into recorded values (1, 1, 'behind'); commit; delete from keyless where v > 2"
            )
        if step % 8 == 0:
            pipelines.catch_up(pipeline)
    pipelines.catch_up(pipeline)
    assert recorded(lake, "recorded", has_old_rows=False) == audited(database, "recorded", has_old_rows=False)
    assert recorded(lake, "keyless", has_old_rows=True) == audited(database, "keyless", has_old_rows=True)
    assert lake.last_state("recorded") == source_rows(database, "recorded")
    assert lake.rows("versioned", '"_is_current"') == source_rows(database, "versioned")
    assert lake.rows("present") == source_rows(database, "present")
    check_versions(lake)


def check_versions(lake: Lake) -> None:
    """Versions of a key follow one another, each valid from when the one before was no longer."""
    found = lake.query("versioned", 'select * from versioned order by id, "_LSN", "_ORDINAL"')
    for row in found:
        assert row["_is_current"] is (row["_valid_to"] is None)
        assert row["_valid_to"] is None or row["_valid_from"] <= row["_valid_to"]
    for one, next_ in pairwise(found):
        if one["id"] == next_["id"] and one["_CHANGE_TYPE"] != "COPY":
            assert one["_valid_to"] <= next_["_valid_from"]


def test_a_copy_in_parts_with_changes_between_begins_a_past_without_contradictions(
    lake: Lake, pipelines: Pipelines, database: Database
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201
    chance = random.Random(seed)
    database.execute(SOURCE)

    def interfere(_: int) -> None:
        for name in NAMES:
            database.execute(change(chance, name))

    lake.destination.before_part = interfere
    pipeline = pipelines.start(
        lake.destination, lake.store, initial_copy={"commit_bytes": 8192, "max_snapshot_age_ms": 1}
    )
    pipelines.catch_up(pipeline)
    pipelines.catch_up(pipeline)
    for name in ("recorded", "versioned"):
        copied = lake.rows(name, """"_CHANGE_TYPE" = 'COPY'""")
        assert len({row[0] for row in copied}) == len(copied), "a key was copied twice"
    assert lake.last_state("recorded") == source_rows(database, "recorded")
    assert lake.rows("versioned", '"_is_current"') == source_rows(database, "versioned")
    check_versions(lake)


def test_a_table_truncated_during_its_copy_has_nothing_from_before(
    lake: Lake, pipelines: Pipelines, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(SOURCE)
    left = ["recorded", "versioned"]
    snapshots: list[int] = []
    """How many there were when tables began at their truncate."""

    def interfere(_: int) -> None:
        while left:
            name = left.pop()
            # The large value of the row that is updated is nowhere but in a file that is gone.
            database.execute(
                f"begin; update {name} set v = v + 1 where id = 5; delete from {name} where id = 6; truncate {name};"
                f"insert into {name} values (1, 1, 'behind'); update {name} set v = 2 where id = 1; commit;"
                f"insert into {name} values (2, 2, 'later')"
            )

    write_events = lake.destination.write_events

    def look_and_write(events: EventBatch) -> None:
        if isinstance(events, LogEvents) and events.begins is not None:
            sql = "select count(*) from pg_stat_activity where application_name = 'penstock snapshot'"
            snapshots.extend(row[0] for row in database.execute(sql))
        write_events(events)

    lake.destination.before_part = interfere
    monkeypatch.setattr(lake.destination, "write_events", look_and_write)
    pipeline = pipelines.start(lake.destination, lake.store)
    pipelines.catch_up(pipeline)
    assert snapshots == [0, 0], "the source can vacuum, however large those transactions are"
    changes = lake.query("recorded", 'select "_CHANGE_TYPE", id from recorded order by "_LSN", "_ORDINAL"')
    assert [tuple(row.values()) for row in changes] == [("TRUNCATE", None), ("INSERT", 1), ("UPDATE", 1), ("INSERT", 2)]
    assert lake.last_state("recorded") == source_rows(database, "recorded")
    assert lake.rows("versioned", '"_is_current"') == source_rows(database, "versioned")
    assert {row[0] for row in lake.rows("versioned")} == {1, 2}
    check_versions(lake)
