"""The how-to page on querying the log, word for word, and its examples: on a log that a real pipeline wrote."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from plugins.pipeline import Pipelines
from pyspark.sql import SparkSession

from penstock.destinations.memory import MemoryDestination
from penstock.testing.postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "how-to" / "query-the-log.md"
NEIGHBOURS = 20  # more than may have small files of their own in one segment

Publish = Callable[[str], None]


@dataclass(frozen=True)
class Orders:
    """A log with the changes of `public.orders`, some in files of its own and some in shared ones."""

    log: Path
    oid: int
    rows: list[tuple[Any, ...]]
    """What the source has at the end."""
    operations: list[tuple[str, int]]

    def adapt(self, code: str) -> str:
        """Put this log's place and oid where the page has its own."""
        folder = str(self.log.parent)
        code = code.replace('"orders_', f'"{folder}/orders_')
        return code.replace(".penstock/log", str(self.log)).replace("16385", str(self.oid))


@pytest.fixture
def orders(database: Database, publish: Publish, pipelines: Pipelines) -> Orders:
    neighbours = "; ".join(f"create table n{number}(id int primary key)" for number in range(NEIGHBOURS))
    publish(f"create table orders(id bigint primary key, customer text, amount numeric(10, 2)); {neighbours}")
    pipeline = pipelines.start(MemoryDestination(), log={"keep_ms": 3_600_000})
    pipelines.catch_up(pipeline)
    database.execute("insert into orders values (1, 'Ä', 1.5), (2, null, 2), (3, 'c', -0.01)")
    pipelines.catch_up(pipeline)
    inserts = "; ".join(f"insert into n{number} values (1)" for number in range(NEIGHBOURS))
    database.execute(
        f"begin; update orders set amount = 7 where id = 1; delete from orders where id = 2; {inserts}; commit"
    )
    pipelines.catch_up(pipeline)
    pipelines.stop(pipeline)
    return Orders(
        log=pipelines.state_dir / "log",
        oid=database.execute("select 'orders'::regclass::oid::bigint")[0][0],
        rows=[tuple(row) for row in database.execute("select id, customer, amount from orders order by id")],
        operations=[("I", 1), ("I", 2), ("I", 3), ("U", 1), ("D", 2)],
    )


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def in_order(rows: Any) -> list[tuple[str, int]]:
    return [(row["_op"], row["id"]) for row in sorted(rows, key=lambda row: (row["_commit_lsn"], row["_ordinal"]))]


def test_what_the_page_says_of_spark_and_pandas_is_so(orders: Orders, spark: SparkSession) -> None:
    batch, stream, _, pandas = blocks("python")  # what it says of buckets is tried where there is one
    names: dict[str, Any] = {"spark": spark}
    exec(orders.adapt(batch), names)
    assert in_order(names["changes"].collect()) == orders.operations
    exec(orders.adapt(stream), names)
    assert in_order(spark.read.parquet(f"{orders.log.parent}/orders_changes").collect()) == orders.operations
    exec(orders.adapt(pandas), names)
    assert in_order(names["changes"].to_dict("records")) == orders.operations[:3]


def test_what_the_page_says_of_duckdb_is_so(orders: Orders) -> None:
    with duckdb.connect() as connection:
        found = [connection.execute(orders.adapt(block)).fetchall() for block in blocks("sql")]
    assert found[0] == [("public.orders", orders.oid)]
    assert [row[:4] for row in found[1]] == [
        ("I", 1, "Ä", Decimal("1.50")),
        ("I", 2, None, Decimal("2.00")),
        ("I", 3, "c", Decimal("-0.01")),
    ]
    assert found[-1] == orders.rows == [(1, "Ä", Decimal("7.00")), (3, "c", Decimal("-0.01"))]


def test_the_examples_print_what_the_log_has(
    orders: Orders, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str) -> list[str]:
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(orders.log), "public.orders"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.splitlines()

    assert run("duckdb_log") == ["1 Ä 7.00", "3 c -0.01"]
    assert [line.split()[4] for line in run("pandas_log")[1:]] == ["I", "I", "I", "U", "D"]
    # In the session that is there: starting Spark is tested elsewhere, and takes as long as everything here.
    load("spark_batch").print_counts(spark, str(orders.log), "public.orders")
    for _ in range(2):
        load("spark_stream").catch_up(spark, str(orders.log), "public.orders", str(tmp_path / "out"))
    assert capsys.readouterr().out.splitlines() == ["D 1", "I 3", "U 1", "5 changes", "5 changes"]


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
