"""How fast changes reach a lake, how fresh it is, and what a batch costs: `make bench-apply`.

A backlog from the slot to the committed table beside `pg_recvlogical`; a steady load over eight tables; batches as
their table grows; Spark's jobs for each kind of batch; how tables read after half an hour. Tables first, all figures as
one line of JSON last.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.backlog import RATIOS, backlog_rows, measure_backlogs
from bench.freshness import (
    BOUNDS_S,
    INSERTS_BOUND_S,
    UPKEEP_EVERY_S,
    Steady,
    freshness_row,
    measure_ceiling,
    measure_freshness,
)
from bench.growth import CLUSTERED, GROWTH_OF_CLUSTERED, measure_growth, measure_jobs
from bench.measure import describe_machine, print_json, print_table
from bench.replicator import LAKES, Workshop, open_workshop
from bench.source import Source, start_source
from bench.upkeep import READ_RATIO, measure_upkeep, upkeep_rows
from bench.witness import STAGES
from penstock.postgres.embedded import newest_server
from penstock.telemetry.log import configure_logging

Figures = dict[str, Any]

PARTS = ("backlog", "freshness", "ceiling", "growth", "jobs", "upkeep")


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    parts: frozenset[str]
    lakes: tuple[str, ...]
    master: str
    changes: int
    steady: Steady
    search: Steady
    long: Steady
    upkeep_every_s: float | None
    rows: tuple[int, ...]
    updates: int
    repeat: int


def main() -> int:
    """Measure what the command line asks for."""
    options = _parse(sys.argv[1:])
    configure_logging(level="warning")
    found: dict[str, list[Figures]] = {}
    with open_workshop(options.master) as workshop, start_source(newest_server()) as source:
        for part in (part for part in PARTS if part in options.parts):
            found[part] = list(_measure(part, source, workshop, options))
    _report(options, found)
    return 1 if any("error" in figures for part in found.values() for figures in part) else 0


def _measure(part: str, source: Source, workshop: Workshop, options: Options) -> Iterator[Figures]:
    lakes = options.lakes
    match part:
        case "backlog":
            return measure_backlogs(source, workshop, options.changes, lakes)
        case "freshness":
            return measure_freshness(source, workshop, options.steady, lakes)
        case "ceiling":
            return measure_ceiling(source, workshop, options.search, lakes)
        case "growth":
            return measure_growth(source, workshop, options.rows, options.updates, options.repeat, lakes)
        case "upkeep":
            return measure_upkeep(source, workshop, options.long, lakes, options.upkeep_every_s)
        case _:
            return measure_jobs(source, workshop, options.steady.existing, options.updates // 10, options.repeat, lakes)


def _report(options: Options, found: dict[str, list[Figures]]) -> None:
    done = {part: [each for each in figures if "error" not in each] for part, figures in found.items()}
    for section in done.get("backlog", ()):
        print_table(f"backlog of {section['changes']:,} {section['workload']}", backlog_rows(section))
    print_table("freshness", [freshness_row(each) for each in done.get("freshness", ())])
    for figures in done.get("ceiling", ()):
        print_table(f"ceiling, {figures['lake']}", [freshness_row({**figures, **each}) for each in figures["tried"]])
    print_table("reading", [row for figures in done.get("upkeep", ()) for row in upkeep_rows(figures)])
    print_table("milliseconds of a batch by stage", _stage_rows(done))
    targets = list(_judge(done))
    print_table("targets", targets)
    failures = [(part, each) for part, figures in found.items() for each in figures if "error" in each]
    print_table(
        "failures", [{"part": part, "lake": each.get("lake"), "error": each["error"]} for part, each in failures]
    )
    print_json(
        {
            "bench": "apply",
            "machine": describe_machine(),
            "master": options.master,
            **found,
            "targets": targets,
            "is_ok": not failures and all(target["is_ok"] for target in targets),
        }
    )


def _stage_rows(done: dict[str, list[Figures]]) -> list[dict[str, Any]]:
    return [
        {
            "what": what,
            "lake": lake,
            "jobs/batch": figures.get("jobs_per_batch"),
            "ms": figures.get("ms_per_batch"),
            **{stage: figures["stages_ms"].get(stage) for stage in STAGES},
        }
        for what, lake, figures in _staged(done)
    ]


def _staged(done: dict[str, list[Figures]]) -> Iterator[tuple[str, str, Figures]]:
    for section in done.get("backlog", ()):
        for lake in LAKES:
            if lake in section["contenders"]:
                yield f"backlog of {section['workload']}", lake, section["contenders"][lake]
    for figures in done.get("freshness", ()):
        yield "steady load", figures["lake"], figures
    for figures in done.get("upkeep", ()):
        yield "long load", figures["lake"], figures
    for figures in done.get("growth", ()):
        what = f"{figures['updates']:,} updates of {figures['rows']:,} rows, {figures['keys']}"
        yield what, figures["lake"], figures
    for figures in done.get("jobs", ()):
        yield figures["batch"], figures["lake"], figures


def _judge(done: dict[str, list[Figures]]) -> Iterator[Figures]:
    """Yield every target that the figures speak to."""
    for section in done.get("backlog", ()):
        for lake in LAKES:
            if lake in section["contenders"]:
                ratio = section["contenders"][lake]["ratio"]
                least = RATIOS[section["workload"]]
                yield _target(f"{lake}, backlog of {section['workload']}, of pg_recvlogical", ratio, least, ">=")
    for figures in done.get("freshness", ()):
        yield from _judge_freshness(figures)
    yield from _judge_growth(done.get("growth", ()))
    for figures in done.get("upkeep", ()):
        yield from _judge_upkeep(figures)
    for figures in done.get("jobs", ()):
        if not figures["batch"].startswith("first"):
            yield _target(f"{figures['lake']}, Spark jobs, {figures['batch']}", figures["jobs_per_batch"], 0, "<=")


def _judge_upkeep(figures: Figures) -> Iterator[Figures]:
    for read in figures["read"]:
        for way, each in read["ways"].items():
            name = f"{figures['lake']}, {read['table']} {read['when']}, {way}, of fresh"
            yield _target(name, each["ratio"], READ_RATIO, "<=")


def _judge_freshness(figures: Figures) -> Iterator[Figures]:
    lake = figures["lake"]
    for name, bound in zip(("p50_s", "p95_s"), BOUNDS_S[lake], strict=True):
        yield _target(f"{lake}, freshness {name}", figures["all"][name], bound, "<=")
    yield _target(f"{lake}, insert-only p50_s", figures["insert_only"]["p50_s"], INSERTS_BOUND_S, "<=")


def _judge_growth(grown: Sequence[Figures]) -> Iterator[Figures]:
    for lake in LAKES:
        sizes = [each for each in grown if each["lake"] == lake and each["keys"] == CLUSTERED]
        if len(sizes) > 1:
            factor = sizes[-1]["ms_per_batch"] / sizes[0]["ms_per_batch"]
            yield _target(f"{lake}, clustered batch, largest table of smallest", factor, GROWTH_OF_CLUSTERED, "<=")


def _target(name: str, value: float, bound: float, sign: str) -> Figures:
    is_ok = value >= bound if sign == ">=" else value <= bound
    return {"target": name, "value": float(value), "bound": f"{sign} {bound:g}", "is_ok": is_ok}


def _parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="bench.apply", description=__doc__)
    parser.add_argument("--parts", help=f"some of {','.join(PARTS)} (default: all)")
    parser.add_argument("--lakes", default=",".join(LAKES), help=f"some of {','.join(LAKES)} (default: all)")
    parser.add_argument("--master", default="local[2]", help="where Spark runs (default local[2])")
    parser.add_argument("--changes", type=int, help="changes of each backlog (default 1,000,000)")
    parser.add_argument(
        "--seconds", type=float, help="how long a steady load is (default 60; of the search a third; of upkeep 1800)"
    )
    parser.add_argument("--without-upkeep", action="store_true", help="in the part upkeep: do without, to compare")
    parser.add_argument("--rate", type=float, default=1000.0, help="changes a second of the steady load (default 1000)")
    parser.add_argument("--rows", help="rows of the growing table, ascending (default 1000000,10000000)")
    parser.add_argument("--huge", action="store_true", help="let the table grow to 50,000,000 rows too")
    parser.add_argument("--repeat", type=int, help="batches of each kind, of which medians are taken (default 5)")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works")
    given = parser.parse_args(arguments)
    try:
        return _options(given)
    except ValueError as error:
        parser.error(f"unknown part or lake, or not a number: {error}")


def _options(given: argparse.Namespace) -> Options:
    seconds = given.seconds or (6.0 if given.quick else 60.0)
    existing = 2_000 if given.quick else 100_000
    rows = given.rows or ("20000,40000" if given.quick else "1000000,10000000") + (",50000000" if given.huge else "")
    return Options(
        parts=frozenset(_chosen(given.parts or ",".join(PARTS), PARTS)),
        lakes=_chosen(given.lakes, LAKES),
        master=given.master,
        changes=given.changes or (20_000 if given.quick else 1_000_000),
        steady=Steady(given.rate, seconds, existing),
        search=Steady(given.rate, seconds / 3, existing),
        long=Steady(given.rate, given.seconds or (20.0 if given.quick else 1800.0), existing),
        upkeep_every_s=None if given.without_upkeep else 2.0 if given.quick else UPKEEP_EVERY_S,
        rows=tuple(int(each) for each in rows.split(",")),
        updates=1_000 if given.quick else 10_000,
        repeat=given.repeat or (2 if given.quick else 5),
    )


def _chosen(names: str, known: Sequence[str]) -> tuple[str, ...]:
    wanted = names.split(",")
    if set(wanted) - set(known):
        raise ValueError(", ".join(sorted(set(wanted) - set(known))))
    return tuple(name for name in known if name in wanted)


if __name__ == "__main__":
    raise SystemExit(main())
