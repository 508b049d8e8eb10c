"""How fast a table is copied, beside the server's own COPY to nowhere and Spark's JDBC source: `make bench-copy`.

Tables of three and of twenty million rows are copied by each contender in turn, over TLS, with one core and with
two, and once as TPC-H has its largest table. Tables first, all figures as one line of JSON last.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from bench.copier import (
    REFERENCE,
    Copier,
    Lakes,
    Run,
    copy_by_jdbc,
    copy_into,
    copy_to_arrow,
    copy_to_nowhere,
    open_lakes,
)
from bench.copy_profile import profile_copy
from bench.measure import describe_machine, median, per_million, print_json, print_table, say
from bench.source import Source, knows_tls, start_source
from bench.table import LINEITEM, TEN_COLUMNS, CopiedTable, fill_table
from penstock.errors import PenstockError
from penstock.postgres.embedded import ServerBinaries, find_servers, newest_server

Figures = dict[str, Any]

ARROW, DELTA, ICEBERG, JDBC_DELTA, JDBC_ICEBERG = "arrow", "delta", "iceberg", "jdbc-delta", "jdbc-iceberg"
RATIOS = {ARROW: 1.3, DELTA: 1.0, ICEBERG: 0.9}
"""The least rate of ours, as a part of that of the server's own COPY in the same round."""
RATIO_OF_PEER = 3.0
RATIO_OVER_TLS = 0.8
CPU_S_PER_MILLION = 1.6
"""Of all our processes, into Delta's Parquet files."""
GROWTH_OF_TIME = 1.15
"""The most time per row of the large table, as a part of that of the small one."""
_CLUSTERS = ("local-cluster[1,1,1024]", "local-cluster[2,1,1024]")
_WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    rows: tuple[int, ...]
    repeat: int
    master: str
    parts: frozenset[str]
    profile: bool

    @property
    def smallest(self) -> int:
        """The rows of tables that are copied in one size only."""
        return min(self.rows)


PARTS = ("sizes", "lineitem", "tls", "cores")


def main() -> int:
    """Measure what the command line asks for."""
    options = _parse(sys.argv[1:])
    if options.profile:
        return _profile(options)
    sections: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-lake-") as lake:
        sections += _measure(options, Path(lake))
    _report(options, sections)
    return 1 if any("error" in section for section in sections) else 0


def _measure(options: Options, lake: Path) -> Iterator[Figures]:
    if options.parts & {"sizes", "lineitem"}:
        with start_source(newest_server()) as source, open_lakes(options.master, lake) as lakes:
            yield from _measure_copies(options, source, lakes)
    secure = _tls_server()
    if "tls" in options.parts and secure is not None:
        with (
            start_source(secure) as source,
            open_lakes(options.master, lake) as lakes,
            fill_table(source, TEN_COLUMNS, options.smallest) as table,
        ):
            yield _section("tls", table, _tls_contenders(lakes), options)
    if "cores" in options.parts:
        yield from _measure_cores(options, lake)


def _measure_copies(options: Options, source: Source, lakes: Lakes) -> Iterator[Figures]:
    for rows in options.rows if "sizes" in options.parts else ():
        with fill_table(source, TEN_COLUMNS, rows) as table:
            # The peers take minutes for the large table, and are no faster with it.
            yield _section("copy", table, _contenders(lakes, with_peers=rows == options.smallest), options)
    if "lineitem" in options.parts:
        with fill_table(source, LINEITEM, options.smallest) as table:
            yield _section("copy", table, _contenders(lakes, with_peers=False), options)


def _measure_cores(options: Options, lake: Path) -> Iterator[Figures]:
    """Copy with one executor of one core, then with two: each a process of its own."""
    with start_source(newest_server()) as source, fill_table(source, TEN_COLUMNS, options.smallest) as table:
        for master in _CLUSTERS:
            with open_lakes(master, lake) as lakes:
                contenders = [
                    Copier(REFERENCE, copy_to_nowhere),
                    Copier(ARROW, partial(copy_to_arrow, lakes.spark)),
                    Copier(DELTA, partial(copy_into, lakes.delta)),
                ]
                yield {**_section("cores", table, contenders, options), "master": master}


def _tls_server() -> ServerBinaries | None:
    return next((server for server in reversed(find_servers()) if knows_tls(server)), None)


def _contenders(lakes: Lakes, *, with_peers: bool) -> list[Copier]:
    ours = [
        Copier(REFERENCE, copy_to_nowhere),
        Copier(ARROW, partial(copy_to_arrow, lakes.spark)),
        Copier(DELTA, partial(copy_into, lakes.delta)),
        Copier(ICEBERG, partial(copy_into, lakes.iceberg)),
    ]
    peers = [
        Copier(JDBC_DELTA, partial(copy_by_jdbc, lakes.delta)),
        Copier(JDBC_ICEBERG, partial(copy_by_jdbc, lakes.iceberg)),
    ]
    return ours + (peers if with_peers else [])


def _tls_contenders(lakes: Lakes) -> list[Copier]:
    return [
        Copier(REFERENCE, copy_to_nowhere),
        Copier(ARROW, partial(copy_to_arrow, lakes.spark)),
        Copier(f"{ARROW} over TLS", partial(copy_to_arrow, lakes.spark, tls=True)),
        Copier(DELTA, partial(copy_into, lakes.delta)),
        Copier(f"{DELTA} over TLS", partial(copy_into, lakes.delta, tls=True)),
    ]


def _section(name: str, table: CopiedTable, contenders: Sequence[Copier], options: Options) -> Figures:
    """Let everyone copy a table, once for nothing and then in rounds."""
    subject = {"section": name, "postgres": table.source.version_major, "table": table.kind.name, "rows": table.rows}
    try:
        for _ in range(_WARM_UP_ROUNDS):
            _run_round(table, contenders, 0)
        rounds = [_run_round(table, contenders, number) for number in range(options.repeat)]
    except (PenstockError, psycopg.Error) as error:
        return {**subject, "error": str(error)}
    figures = {each.name: _summarise(each.name, rounds, table.rows) for each in contenders}
    return {**subject, "ranges": len(table.ranges), "contenders": figures}


def _run_round(table: CopiedTable, contenders: Sequence[Copier], number: int) -> dict[str, Run]:
    """Let everyone copy once, another one first in each round: what changes slowly then favours nobody."""
    first = number % len(contenders)
    round_ = {}
    for contender in (*contenders[first:], *contenders[:first]):
        run = round_[contender.name] = contender.copy(table)
        cpu = ", ".join(f"{role} {seconds:.1f}" for role, seconds in run.accounts.cpu_s.items())
        say(f"  {contender.name}: {table.rows / run.seconds:,.0f} rows/s; CPU s: {cpu}")
    return round_


def _summarise(name: str, rounds: Sequence[Mapping[str, Run]], rows: int) -> Figures:
    runs = [round_[name] for round_ in rounds]
    roles = runs[0].accounts.cpu_s
    return {
        "rows_per_s": median([rows / run.seconds for run in runs]),
        "each_rows_per_s": [rows / run.seconds for run in runs],
        "ratio": _ratio(name, REFERENCE, rounds),
        "cpu_s_per_million": {
            role: median([per_million(run.accounts.cpu_s[role], rows) for run in runs]) for role in roles
        },
        "client_cpu_s_per_million": median([per_million(run.accounts.client_cpu_s, rows) for run in runs]),
        "peak_mib": {
            role: max(run.accounts.peak_mib.get(role, 0.0) for run in runs) for role in runs[0].accounts.peak_mib
        },
    }


def _ratio(name: str, reference: str, rounds: Sequence[Mapping[str, Run]]) -> float:
    """Compare within a round, where the machine was the same."""
    return median([round_[reference].seconds / round_[name].seconds for round_ in rounds])


def _report(options: Options, sections: Sequence[Figures]) -> None:
    done = [section for section in sections if "error" not in section]
    for section in done:
        print_table(_title(section), [_row(name, figures) for name, figures in section["contenders"].items()])
    targets = list(_judge(done))
    print_table("targets", targets)
    print_table("failures", [{"what": _title(each), "error": each["error"]} for each in sections if "error" in each])
    print_json(
        {
            "bench": "copy",
            "machine": describe_machine(),
            "master": options.master,
            "repeat": options.repeat,
            "sections": sections,
            "targets": targets,
            "is_ok": len(done) == len(sections) and all(target["is_ok"] for target in targets),
        }
    )


def _title(section: Figures) -> str:
    where = f", {section['master']}" if "master" in section else ""
    return f"{section['table']}, {section['rows']:,} rows, postgres {section['postgres']}, {section['section']}{where}"


def _row(name: str, figures: Figures) -> dict[str, Any]:
    cpu, peak = figures["cpu_s_per_million"], figures["peak_mib"]
    return {
        "contender": name,
        "rows/s": figures["rows_per_s"],
        "ratio": figures["ratio"],
        "client CPU s/M": figures["client_cpu_s_per_million"],
        "driver": cpu.get("driver"),
        "JVM": cpu.get("jvm"),
        "workers": cpu.get("workers"),
        "backends": cpu.get("backends"),
        "peak MiB: driver": peak.get("driver"),
        "JVM ": peak.get("jvm"),
        "worker": peak.get("workers"),
    }


def _judge(sections: Sequence[Figures]) -> Iterator[Figures]:
    """Yield every target that the sections speak to."""
    copies = [each for each in sections if each["section"] == "copy" and each["table"] == TEN_COLUMNS.name]
    for section in copies:
        yield from _judge_copy(section)
    if len(copies) > 1:
        yield from _judge_growth(copies[0], copies[-1])
    for section in sections:
        if section["section"] == "tls":
            for name in (ARROW, DELTA):
                rates = [section["contenders"][each]["rows_per_s"] for each in (f"{name} over TLS", name)]
                yield _at_least(f"{name} over TLS, of plain", rates[0] / rates[1], RATIO_OVER_TLS)
    clusters = {each["master"]: each["contenders"] for each in sections if each["section"] == "cores"}
    if len(clusters) == len(_CLUSTERS):
        one, two = (clusters[master][DELTA]["rows_per_s"] for master in _CLUSTERS)
        yield _at_least(f"{DELTA}, two executors, of one", two / one, 1.0)


def _judge_copy(section: Figures) -> Iterator[Figures]:
    found, rows = section["contenders"], f"{section['rows']:,} rows"
    for name, least in RATIOS.items():
        yield _at_least(f"{name}, of COPY, {rows}", found[name]["ratio"], least)
    for ours, peer in ((DELTA, JDBC_DELTA), (ICEBERG, JDBC_ICEBERG)):
        if peer in found:
            ratio = found[ours]["rows_per_s"] / found[peer]["rows_per_s"]
            yield _at_least(f"{ours}, of {peer}, {rows}", ratio, RATIO_OF_PEER)
    yield _at_most(f"{DELTA}, client CPU s/M, {rows}", found[DELTA]["client_cpu_s_per_million"], CPU_S_PER_MILLION)


def _judge_growth(small: Figures, large: Figures) -> Iterator[Figures]:
    for name in (ARROW, DELTA, ICEBERG):
        rates = [section["contenders"][name]["rows_per_s"] for section in (small, large)]
        yield _at_most(f"{name}, time per row, large of small", rates[0] / rates[1], GROWTH_OF_TIME)


def _at_least(name: str, value: float, least: float) -> Figures:
    return {"target": name, "value": value, "bound": f">= {least:g}", "is_ok": value >= least}


def _at_most(name: str, value: float, most: float) -> Figures:
    return {"target": name, "value": value, "bound": f"<= {most:g}", "is_ok": value <= most}


def _profile(options: Options) -> int:
    with start_source(newest_server()) as source, fill_table(source, TEN_COLUMNS, options.smallest) as table:
        figures = profile_copy(table)
    print_table(f"microseconds of a row by stage, {table.rows:,} rows, one process", figures["stages"])
    print_json({"bench": "copy-profile", "machine": describe_machine(), **figures})
    return 0


def _parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="bench.copy", description=__doc__)
    parser.add_argument("--rows", help="rows of the ten-column table, one size or several (default 3000000,20000000)")
    parser.add_argument("--repeat", type=int, help="rounds, of which medians are taken (default 3)")
    parser.add_argument("--master", default="local[2]", help="where Spark runs (default local[2])")
    parser.add_argument("--parts", help=f"some of {','.join(PARTS)} (default: all; when quick, sizes)")
    parser.add_argument("--quick", action="store_true", help="100,000 rows, one round: to see that it works")
    parser.add_argument("--profile", action="store_true", help="only show where a row's time goes")
    given = parser.parse_args(arguments)
    try:
        return _options(given)
    except ValueError as error:
        parser.error(f"unknown part, or not a number: {error}")


def _options(given: argparse.Namespace) -> Options:
    rows = given.rows or ("100000" if given.quick else "3000000,20000000")
    parts = frozenset((given.parts or ("sizes" if given.quick else ",".join(PARTS))).split(","))
    if parts - set(PARTS):
        raise ValueError(", ".join(sorted(parts - set(PARTS))))
    options = Options(
        rows=tuple(sorted(int(each) for each in rows.split(","))),
        repeat=given.repeat or (1 if given.quick else 3),
        master=given.master,
        parts=parts,
        profile=given.profile,
    )
    return replace(options, rows=options.rows[:1]) if given.profile else options


if __name__ == "__main__":
    raise SystemExit(main())
