from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from plugins.handmade_log import COMMIT_TIME_US, XID, HandmadeLog, Row
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.changelog.folder import Folder
from penstock.model.lsn import Lsn
from penstock.model.table import Column, Kind, PgType, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.spark import log_table
from penstock.testing.postgres import wait_until

pytestmark = pytest.mark.spark

INT4, INT8, TEXT = PgType("integer", Kind.INT4), PgType("bigint", Kind.INT8), PgType("text", Kind.TEXT)
UTC = dt.UTC
COMMIT_TIME = dt.datetime.fromtimestamp(COMMIT_TIME_US / 1_000_000, UTC)

VALUES: dict[PgType, tuple[str, Any]] = {
    PgType("boolean", Kind.BOOL): ("t", True),
    PgType("smallint", Kind.INT2): ("-32768", -32768),
    INT4: ("2147483647", 2**31 - 1),
    PgType("oid", Kind.OID): ("4294967295", 2**32 - 1),
    PgType("real", Kind.FLOAT4): ("1.5", 1.5),
    PgType("double precision", Kind.FLOAT8): ("-Infinity", float("-inf")),
    PgType("numeric(38,10)", Kind.NUMERIC, 38, 10): (
        "-1234567890123456789012345678.0123456789",
        Decimal("-1234567890123456789012345678.0123456789"),
    ),
    PgType("numeric", Kind.NUMERIC): ("NaN", "NaN"),
    TEXT: ("naïve \U0001f30a 'x' \\ ${y}", "naïve \U0001f30a 'x' \\ ${y}"),
    PgType("bytea", Kind.BYTES): ("\\x00ff", b"\x00\xff"),
    PgType("date", Kind.DATE): ("0001-01-01", dt.date(1, 1, 1)),
    PgType("timestamp without time zone", Kind.TIMESTAMP): (
        "2026-03-29 02:30:00.999999",
        dt.datetime(2026, 3, 29, 2, 30, 0, 999_999),  # noqa: DTZ001
    ),
    PgType("timestamp with time zone", Kind.TIMESTAMPTZ): (
        "1969-12-31 23:59:59.999999+00",
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    ),
    PgType("text[]", Kind.ARRAY, element=TEXT): ('{a,NULL,""}', ["a", None, ""]),
    PgType("numeric(5,2)[]", Kind.ARRAY, element=PgType("numeric(5,2)", Kind.NUMERIC, 5, 2)): (
        "{1.50,NULL}",
        [Decimal("1.50"), None],
    ),
    PgType("timestamp with time zone[]", Kind.ARRAY, element=PgType("timestamptz", Kind.TIMESTAMPTZ)): (
        '{"2026-03-29 02:30:00+00"}',
        [dt.datetime(2026, 3, 29, 2, 30, tzinfo=UTC)],
    ),
}
ODD = TableSchema(
    TableId(16_385),
    TableName("Odd schema", 'ta"ble `ü`'),
    (
        Column('the "key" ü', TEXT, nullable=False, key_ordinal=0),
        Column("_op", TEXT),
        *(Column(f"c{number}", type_) for number, type_ in enumerate(VALUES)),
    ),
    ReplicaIdentity.FULL,
)
NAMES = ['the "key" ü', "_op_", *(f"c{number}" for number in range(len(VALUES)))]
TEXTS = [text for text, _ in VALUES.values()]
CELLS = [value for _, value in VALUES.values()]
NOTHING: list[Any] = [None] * len(VALUES)

SMALL = TableSchema(TableId(1), TableName("public", "t1"), (Column("id", INT8, key_ordinal=0), Column("v", TEXT)))


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    penstock.register(spark)


def changes(spark: SparkSession, log: HandmadeLog, table: str = "public.t1", **options: str) -> DataFrame:
    return spark.read.format("penstock").options(log=str(log.root), table=table, **options).load()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows as they came, times with a zone in UTC's own class."""
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return [{name: in_utc(value) for name, value in row.items()} for row in rows]


def in_utc(value: Any) -> Any:
    if isinstance(value, list):
        return [in_utc(item) for item in value]
    if isinstance(value, dict):
        return {name: in_utc(item) for name, item in value.items()}
    return value.astimezone(UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


def odd_rows(commit_lsn: int) -> list[Row]:
    return [
        Row(commit_lsn, 1, ["k", "op", *TEXTS]),
        Row(commit_lsn, 2, ["new", None, *NOTHING], "U", ["k"], ["k", "op", *TEXTS], ["c8"]),
        Row(commit_lsn, 3, ["new", None, *NOTHING], "D", None, ["new", None, *NOTHING]),
        Row(commit_lsn, 5, ["again", "T", *NOTHING]),
    ]


def odd_expected(commit_lsn: int) -> list[dict[str, Any]]:
    def row(ordinal: int, op: str, *cells: Any, **more: Any) -> dict[str, Any]:
        place = {"_op": op, "_commit_lsn": commit_lsn, "_ordinal": ordinal, "_commit_ts": COMMIT_TIME, "_xid": XID}
        rest = {"_key": None, "_before": None, "_unchanged": None, **more}
        return {**dict(zip(NAMES, cells, strict=True)), **place, **rest}

    old, new = ["k", "op", *CELLS], ["new", None, *NOTHING]
    named = [dict(zip(NAMES, cells, strict=True)) for cells in (old, new)]
    return [
        row(1, "I", *old),
        row(2, "U", *new, _key={NAMES[0]: "k"}, _before=named[0], _unchanged=["c8"]),
        row(3, "D", *new, _before=named[1]),
        row(4, "T", None, None, *NOTHING),
        row(5, "I", "again", "T", *NOTHING),
        row(6, "T", None, None, *NOTHING),
    ]


@pytest.mark.cluster
def test_every_kind_of_change_and_value_is_the_same_from_typed_shared_and_unconverted_files(
    spark: SparkSession, handmade_log: HandmadeLog
) -> None:
    handmade_log.define(ODD)
    expected = []
    for commit_lsn, form in ((0x200, "own"), (0x300, "shared"), (0x400, "problem")):
        emptied = [(commit_lsn, 4), (commit_lsn, 6)]
        handmade_log.append(ODD, odd_rows(commit_lsn), truncates=emptied, form=form)
        expected += odd_expected(commit_lsn)
    frame = changes(spark, handmade_log, ODD.name.quoted)
    assert rows_of(frame) == expected
    assert dict(frame.dtypes)["c11"] == "timestamp_ntz"
    # The JVM's own reading of the values, and names that need quoting.
    assert frame.where("`the \"key\" ü` = 'k' and _before is null and c6 < 0 and c9 = X'00FF'").count() == 3


def test_a_range_has_whole_transactions_and_a_frame_does_not_change_once_it_was_read(
    spark: SparkSession, handmade_log: HandmadeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    handmade_log.define(SMALL)
    assert rows_of(changes(spark, handmade_log)) == []
    for number in (1, 2):
        handmade_log.append(SMALL, [Row(0x200, number, [str(number), "x"])], is_complete=number == 2)
    handmade_log.append(SMALL, truncates=[(0x300, 1)])
    handmade_log.append(SMALL, [Row(0x400, 1, ["3", "x"]), Row(0x500, 1, ["4", "x"])])
    handmade_log.append(SMALL, end_lsn=0x1000)
    handmade_log.append(SMALL, [Row(0x2000, 1, ["5", "x"])], is_complete=False)

    def found(**options: str) -> list[Any]:
        return [(row._op, row.id) for row in changes(spark, handmade_log, **options).collect()]

    everything = [("I", 1), ("I", 2), ("T", None), ("I", 3), ("I", 4)]
    assert found() == everything
    assert found(startingPosition="0/200", endingPosition="0/500", table="1") == everything[:-1]
    assert found(startingPosition="0/201", endingPosition="0/301") == [("T", None)]
    assert found(startingPosition="0/501") == found(startingPosition="latest") == found(endingPosition="earliest") == []
    frame = changes(spark, handmade_log)
    assert frame.count() == 5
    handmade_log.append(SMALL, [Row(0x2000, 2, ["6", "x"])])
    assert (frame.count(), changes(spark, handmade_log).count()) == (5, 7)
    monkeypatch.setattr(log_table, "_PARTITION_BYTES", 1)
    parts = log_table.LogTable(Folder.on_disk(handmade_log.root), "1")
    wanted = parts.columns(1)
    ranges = parts.plan(parts.reader.start_lsn, parts.reader.end_lsn, wanted)
    assert [(len(part.files), len(part.truncates)) for part in ranges] == [(1, 0), (1, 1), (1, 0), (1, 0), (1, 0)]


def test_older_columns_are_read_as_the_newest_and_what_cannot_be_is_refused(
    spark: SparkSession, handmade_log: HandmadeLog
) -> None:
    key = Column("id", INT4, key_ordinal=0)
    first = replace(
        SMALL, columns=(key, Column("gone", TEXT), Column("n", PgType("numeric(38,8)", Kind.NUMERIC, 38, 8)))
    )
    second = replace(
        first,
        columns=(
            replace(key, type=INT8),
            Column("n", PgType("numeric", Kind.NUMERIC)),
            Column("added", PgType("text[]", Kind.ARRAY, element=TEXT)),
        ),
        identity=ReplicaIdentity.FULL,
    )
    handmade_log.define(first)
    for commit_lsn, form in ((0x200, "own"), (0x300, "shared")):
        row = Row(commit_lsn, 1, ["1", "x", "0.00000001"], "U", key=["7"])
        handmade_log.append(first, [row], form=form)
    handmade_log.define(second)
    handmade_log.append(second, [Row(0x400, 1, ["2", "1.20", "{a}"], "U", ["8"], ["8", None, None])])
    chosen = ["id", "n", "added", "_key", "_before"]
    old = {"id": 1, "n": "0.00000001", "added": None, "_key": {"id": 7}, "_before": None}
    before = {"id": 8, "n": None, "added": None}
    new = {"id": 2, "n": "1.20", "added": ["a"], "_key": {"id": 8}, "_before": before}
    assert rows_of(changes(spark, handmade_log).select(chosen)) == [old, old, new]

    third = replace(second, columns=(replace(key, type=TEXT), Column("n", PgType("date", Kind.DATE))))
    handmade_log.define(third)
    handmade_log.append(third, [Row(0x500, 1, ["a", "2026-03-29"])])
    with pytest.raises(AnalysisException, match=r"column n is date32.* here, but was decimal.* up to 0/300"):
        changes(spark, handmade_log).collect()
    recent = changes(spark, handmade_log, startingPosition="0/401").select("id", "n")
    assert rows_of(recent) == [{"id": "a", "n": dt.date(2026, 3, 29)}]

    reader = spark.read.format("penstock").options(log=str(handmade_log.root), table="1")
    assert rows_of(reader.schema("_op string, gone string").load()) == [
        *[{"_op": "U", "gone": "x"}] * 2,
        {"_op": "U", "gone": None},
        {"_op": "I", "gone": None},
    ]
    for schema, message in (
        ("_op string, wrong int", "table public.t1 has no column wrong. It has id, n, _op"),
        ("_op string not null", "column _op is declared not null"),
    ):
        with pytest.raises(AnalysisException, match=message):
            reader.schema(schema).load().collect()


def test_mistakes_and_values_that_a_policy_refuses_are_explained_by_spark(
    spark: SparkSession, handmade_log: HandmadeLog
) -> None:
    dated = replace(SMALL, columns=(Column("id", INT8, key_ordinal=0), Column("d", PgType("date", Kind.DATE))))
    handmade_log.define(dated)
    handmade_log.append(dated, [Row(0x200, 1, ["1", "infinity"])], form="problem")
    with pytest.raises(AnalysisException, match=r"has no table public\.none\. It has public\.t1;"):
        changes(spark, handmade_log, "public.none")
    with pytest.raises(AnalysisException, match=r"endingPosition is 0/999, but the log ends at 0/201\. Wait until"):
        changes(spark, handmade_log, endingPosition="0/999").collect()
    with pytest.raises(AnalysisException, match=r"changes from 0/10 on are needed, but the log now starts at 0/100"):
        changes(spark, handmade_log, startingPosition="0/10").collect()
    with pytest.raises(PythonException, match=r"table public\.t1, column d: .*Choose another special-value policy"):
        changes(spark, handmade_log).collect()
    assert [row.d for row in changes(spark, handmade_log, specialValues="null").collect()] == [None]
    assert [row.d for row in changes(spark, handmade_log, specialValues="clamp").collect()] == [dt.date.max]


class Stream:
    """A query that copies a table's changes into Parquet, stopped and started at will."""

    def __init__(self, spark: SparkSession, log: HandmadeLog, folder: Path) -> None:
        self._spark, self._log, self._folder = spark, log, folder

    def start(self, *, is_available_now: bool = False, **options: Any) -> StreamingQuery:
        options = {"log": str(self._log.root), "table": "public.t1", **options}
        writer = self._spark.readStream.format("penstock").options(**options).load().writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        return (writer.trigger(availableNow=True) if is_available_now else writer).start(str(self._folder / "out"))

    def run(self, **options: Any) -> list[int]:
        """Read what there is, and return how many rows each batch had."""
        query = self.start(**options)
        try:
            query.processAllAvailable()
            return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        finally:
            query.stop()

    @property
    def rows(self) -> list[tuple[str, int | None]]:
        frame = self._spark.read.parquet(str(self._folder / "out")).orderBy("_commit_lsn", "_ordinal")
        return [(row._op, row.id) for row in frame.collect()]


def test_a_stream_has_every_change_once_across_restarts_and_stops_where_the_log_was_trimmed(
    spark: SparkSession, handmade_log: HandmadeLog, tmp_path: Path
) -> None:
    stream = Stream(spark, handmade_log, tmp_path)
    handmade_log.define(SMALL)
    append: Callable[[int], None] = lambda number: handmade_log.append(  # noqa: E731
        SMALL, [Row(number << 8, 1, [str(number), "x"])], truncates=[(number << 8, 2)] if number == 3 else []
    )
    for number in (2, 3):
        append(number)
    assert stream.run(maxEntriesPerTrigger="1") == [1, 2]
    for number in (4, 5, 6):
        append(number)
    assert stream.run(maxBytesPerTrigger="1") == [1, 1, 1]

    query = stream.start()
    try:
        append(7)
        wait_until(lambda: ("I", 7) in stream.rows or not query.isActive, "a change made while the query runs", 60)
    finally:
        query.stop()
    append(8)
    append(9)
    query = stream.start(is_available_now=True)
    assert query.awaitTermination(60)
    everything = [("I", 2), ("I", 3), ("T", None), *(("I", number) for number in range(4, 10))]
    assert stream.rows == everything

    append(10)
    append(11)
    handmade_log.trim(9, 10 << 8 | 1)
    with pytest.raises(StreamingQueryException, match=rf"the log now starts at {Lsn(10 << 8 | 1)}\. .*keep_ms"):
        stream.run()
    assert stream.rows == everything
