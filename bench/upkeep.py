"""How tables read after a long steady load, beside the same rows freshly written; and what their upkeep took."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from bench.contender import FAILURES
from bench.freshness import TABLES, Steady, load_of, load_steadily, settle, steady_replicator
from bench.measure import median, say
from bench.replicator import DELTA, Replicator, Running, Workshop, require_equal
from bench.source import Source
from bench.steady import write
from bench.witness import Batch, UpkeepNote, Witness
from penstock.model.table import TableId
from penstock.testing.postgres import Database, wait_until

Figures = dict[str, Any]

READ_RATIO = 1.5
"""The most that reading a table may take, as a part of what its rows take freshly written."""
_READ = ("steady_1", f"steady_{TABLES}")
"""One with all kinds of changes, and one with inserts only."""
_READS, _READS_WHILE_STREAMING = 17, 9
_AFTER_S = 10.0
"""How long after the last change "right after" is: it was followed by a brief upkeep, if there was one to come."""
_STREAMING, _STREAMING_S = "while streaming", 150.0
"""For how long the load goes on while tables are read: longer than that takes, and than some brief upkeeps."""
_UPKEEPS_TO_REST = 3
"""One may be under way when the last change comes, the next notes how far the table is, the third finds it there."""
_FRESH_FILE_BYTES = 64 << 20
# A count alone is answered from statistics, without a look at the data, where no row was ever deleted.
_SUM = "select count(*), sum(id) from {}"
_SCAN = "select count(*), sum(quantity), max(length(note)) from {} where note like '%7%' and quantity >= 0"


def measure_upkeep(
    source: Source, workshop: Workshop, steady: Steady, lakes: Sequence[str], every_s: float | None
) -> Iterator[Figures]:
    """Load tables for long, then read them."""
    for lake in lakes:
        how = "no upkeep" if every_s is None else f"upkeep every {every_s:g} s"
        say(f"upkeep: {lake}, {steady.changes_per_s:,.0f} changes/s for {steady.seconds:g} s, {how}")
        try:
            yield {"lake": lake, "every_s": every_s, **_measure(source, workshop, steady, lake, every_s)}
        except FAILURES as error:
            yield {"lake": lake, "error": str(error)}


def _measure(source: Source, workshop: Workshop, steady: Steady, lake: str, every_s: float | None) -> Figures:
    with steady_replicator(source, workshop, lake, steady, every_s) as (database, replicator):
        with replicator.running() as running:
            settle(database, running, steady)
            figures = _loaded(database, workshop, replicator, running, steady)
            time.sleep(_AFTER_S)
        # From here on nothing happens to the tables: however long it takes, they are read as they were then.
        with _alone():
            fresh = {name: _written(workshop, replicator, name) for name in _READ}
            read = [_read(workshop, replicator, name, fresh[name], "right after") for name in _READ]
        with replicator.running() as running:
            with _alone():
                more = replace(steady, seconds=min(_STREAMING_S, steady.seconds))
                found, is_streaming = _read_while_streaming(database, workshop, replicator, more, fresh)
            running.catch_up()
            read += found
            if every_s is not None:
                _wait_for_rest(running.witness)
                with _alone():
                    read += [_read(workshop, replicator, name, fresh[name], "at rest") for name in _READ]
        for name in _READ:
            require_equal(replicator, database, name)
    return {**figures, "read": read, "was_streaming_while_read": is_streaming}


def _loaded(
    database: Database, workshop: Workshop, replicator: Replicator, running: Running, steady: Steady
) -> Figures:
    """Write for long, and return what that took."""
    began = time.time()
    figures = load_steadily(database, workshop, replicator, running, steady)
    witness = running.witness
    batches = [each for each in witness.batches if each.visible_at >= began]
    return {
        **figures,
        "batch_ms": _parts(batches, began, steady.seconds),
        "upkeep": _upkeep_figures([note for note in witness.upkeeps if not note.is_brief], running),
        "brief_upkeep": _upkeep_figures([note for note in witness.upkeeps if note.is_brief], running),
    }


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep other runs of this bench from reading at the same time: loads go on beside each other, times do not."""
    with (Path(tempfile.gettempdir()) / "penstock-bench-reading.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read_while_streaming(
    database: Database, workshop: Workshop, replicator: Replicator, steady: Steady, fresh: Mapping[str, str]
) -> tuple[list[Figures], bool]:
    """Read tables that change; and say whether they did until the end."""
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write, load_of(database, steady))
        found = [_read(workshop, replicator, name, fresh[name], _STREAMING) for name in _READ]
        is_streaming = not writing.done()
        writing.result()
    return found, is_streaming


def _parts(batches: Sequence[Batch], began: float, seconds: float) -> list[float]:
    """Return the median milliseconds of a batch in each tenth of the time."""
    tenths: list[list[float]] = [[] for _ in range(10)]
    for batch in batches:
        tenths[min(int((batch.visible_at - began) / seconds * 10), 9)].append(1000 * batch.seconds)
    return [median(each) if each else 0.0 for each in tenths]


def _upkeep_figures(notes: Sequence[UpkeepNote], running: Running) -> Figures:
    seconds = [note.seconds for note in notes]
    return {
        "runs": len(notes),
        "seconds": sum(seconds),
        "median_s": median(seconds) if seconds else 0.0,
        "longest_s": max(seconds, default=0.0),
        "rewritten_files": sum(note.done.rewritten_files for note in notes),
        "rewritten_mb": sum(note.done.rewritten_bytes for note in notes) / 1e6,
        "written_files": sum(note.done.written_files for note in notes),
        "expired_versions": sum(note.done.expired_versions for note in notes),
        "removed_files": sum(note.done.removed_files for note in notes),
        "failures": sum(table.upkeep_failures for table in running.pipeline.report.tables),
        "files": _last_files(notes),
    }


def _last_files(notes: Sequence[UpkeepNote]) -> dict[TableId, int]:
    return {note.table: note.done.files for note in notes}


def _wait_for_rest(witness: Witness) -> None:
    """Wait until upkeep has found that no table changes any more, and done what it does then."""
    seen, tables = len(witness.upkeeps), len(_last_files(witness.upkeeps))

    def are_resting() -> bool:
        since = Counter(note.table for note in witness.upkeeps[seen:] if not note.is_brief)
        return sum(count >= _UPKEEPS_TO_REST for count in since.values()) >= tables

    wait_until(are_resting, "all tables to be put in order", timeout_s=600)


def _read(workshop: Workshop, replicator: Replicator, table: str, fresh: str, when: str) -> Figures:
    """Read a table and a fresh copy of it in turns; medians."""
    streamed = replicator.sql_name(table)
    by_spark = partial(_by_spark, workshop, is_cold=replicator.lake == DELTA and when == _STREAMING)
    ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        name: (by_spark(query.format(streamed)), by_spark(query.format(fresh)))
        for name, query in (("spark sum", _SUM), ("spark scan", _SCAN))
    }
    if replicator.lake == DELTA:
        paths = replicator.location(table), _fresh_folder(replicator, table)
        ways["delta-rs scan"] = (_by_library(paths[0]), _by_library(paths[1]))
    reads = _READS_WHILE_STREAMING if when == _STREAMING else _READS
    found = {name: _compared(*pair, reads) for name, pair in ways.items()}
    files, versions = replicator.count_files(table)
    for name, each in found.items():
        times = f"{each['ms']:.0f} ms, freshly written {each['fresh_ms']:.0f}: {each['ratio']:.2f}"
        say(f"  {table}, {when}, {name}: {times}")
    say(f"  {table}: {files} files, {versions} versions")
    return {"table": table, "when": when, "files": files, "versions": versions, "ways": found}


def _written(workshop: Workshop, replicator: Replicator, table: str) -> str:
    """Write the table's rows anew, with Spark, in as few files as they fill; return the new table's name."""
    frame = workshop.spark.table(replicator.sql_name(table))
    size = sum(path.stat().st_size for path in Path(replicator.location(table)).rglob("part-*.parquet"))
    frame = frame.repartition(max(1, size // _FRESH_FILE_BYTES // 4))
    if replicator.lake == DELTA:
        folder = _fresh_folder(replicator, table)
        frame.write.format("delta").save(str(folder))
        return f"delta.`{folder}`"
    name = replicator.sql_name(f"fresh_{table}")
    frame.writeTo(name).using("iceberg").create()
    return name


def _fresh_folder(replicator: Replicator, table: str) -> Path:
    location = Path(replicator.location(table))
    return location.with_name(f"fresh_{table}")


def _by_spark(workshop: Workshop, query: str, *, is_cold: bool) -> Callable[[], object]:
    """Return what runs a query; if `is_cold`, by a reader of Delta that has not met the table's version before.

    Spark takes longer to make itself a picture of a version than for the rest, whoever wrote it. Of a table that
    changes every query meets another one; so that is compared with the first query of the other table.
    """
    jvm: Any = workshop.spark._jvm  # noqa: SLF001  # no other way

    def run() -> object:
        if is_cold:
            jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        return workshop.spark.sql(query).collect()

    return run


def _by_library(folder: Path) -> Callable[[], object]:
    query = _SCAN.format("t")
    return lambda: pa.table(QueryBuilder().register("t", DeltaTable(folder)).execute(query).read_all())


def _compared(streamed: Callable[[], object], fresh: Callable[[], object], reads: int) -> Mapping[str, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(reads):
        for read, taken in zip((streamed, fresh), times, strict=True):
            began = time.perf_counter()
            read()
            taken.append(1000 * (time.perf_counter() - began))
    # The first of each compile what the others use.
    one, other = (median(taken[2:]) for taken in times)
    return {"ms": one, "fresh_ms": other, "ratio": one / other}


def upkeep_rows(figures: Figures) -> Iterator[dict[str, Any]]:
    """Yield figures for people."""
    for read in figures["read"]:
        for way, each in read["ways"].items():
            yield {
                "lake": figures["lake"],
                "table": read["table"],
                "when": read["when"],
                "files": read["files"],
                "versions": read["versions"],
                "read by": way,
                "ms": each["ms"],
                "freshly written": each["fresh_ms"],
                "ratio": each["ratio"],
            }
