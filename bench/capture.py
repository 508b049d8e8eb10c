"""How fast and how small the receiver is, beside `pg_recvlogical`: `make bench-capture`.

Backlogs of one million changes, in six shapes, are drained by each contender in turn; then come the
cases that must not make the receiver large. A table first, all figures as one line of JSON last.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.bound import BOUND_MIB, QUICK, Figures, Sizes, measure_bounds
from bench.comparison import compare_last_values
from bench.contender import FAILURES, Drain, ReceiverDrains, drain_with_pg_recvlogical
from bench.measure import describe_machine, median, per_million, print_json, print_table, say
from bench.source import (
    SHAPES,
    Backlog,
    Shape,
    Source,
    knows_tls,
    make_backlog,
    prepare_shape,
    start_source,
    write_shape,
)
from penstock.postgres.embedded import ServerBinaries, find_servers
from penstock.testing.postgres import Database

CPU_S_PER_MILLION = 3.0
RATIO = 1.0
RATIO_OF_SINGLE_ROWS = RATIO_OVER_TLS = 0.8
"""The least rate of the receiver, as a part of that of `pg_recvlogical` in the clear, in the same round."""
_REFERENCE = "pg_recvlogical"
_PROFILE_LINES = 40
_QUICK_SHAPES = "inserts-1,mix-100"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    changes: int
    repeat: int
    shapes: tuple[Shape, ...]
    servers: tuple[ServerBinaries, ...]
    bounds: Sizes | None
    max_fill_ms: int | None
    profile: Shape | None


@dataclass(frozen=True, slots=True)
class Contender:
    """Who drains, and how it reaches the server."""

    name: str
    drain: Callable[[Backlog], Drain]
    tls: bool = False

    @property
    def is_receiver(self) -> bool:
        """Whether it is ours, which has targets."""
        return self.name.startswith("receiver")


def main() -> int:
    """Measure what the command line asks for."""
    options = _parse(sys.argv[1:])
    if options.profile is not None:
        return _profile(options, options.profile)
    shapes: list[Figures] = []
    bounds: list[Figures] = []
    for server in options.servers:
        with start_source(server) as source:
            shapes += _measure_shapes(source, options)
            # Bounds are the receiver's own: one server is enough to show them.
            if options.bounds is not None and server is options.servers[0]:
                bounds += measure_bounds(source, options.bounds, options.max_fill_ms)
    _report(options, shapes, bounds)
    return 1 if any("error" in figures for figures in (*shapes, *bounds)) else 0


def _report(options: Options, shapes: Sequence[Figures], bounds: Sequence[Figures]) -> None:
    print_table("speed, medians", [_shape_row(figures) for figures in shapes if "error" not in figures])
    print_table("bounds", [_bound_row(figures) for figures in bounds if "error" not in figures])
    print_table("failures", [_failure_row(figures) for figures in (*shapes, *bounds) if "error" in figures])
    print_json(
        {
            "bench": "capture",
            "machine": describe_machine(),
            "changes": options.changes,
            "repeat": options.repeat,
            "shapes": shapes,
            "bounds": bounds,
            "is_ok": all(figures.get("is_ok", True) for figures in (*shapes, *bounds)),
        }
    )


def _shape_row(figures: Figures) -> dict[str, Any]:
    return {
        "postgres": figures["postgres"],
        "shape": figures["shape"],
        "contender": figures["contender"],
        "changes/s": figures["changes_per_s"],
        "ratio": figures["ratio"],
        "client CPU s/M": figures["client_cpu_s_per_million"],
        "walsender CPU s/M": figures["walsender_cpu_s_per_million"],
        "peak MiB": figures["peak_mib"],
        "start-up s": figures["startup_s"],
        "entries": figures["entries"],
        "target": figures.get("is_ok"),
    }


def _bound_row(figures: Figures) -> dict[str, Any]:
    return {
        "case": figures["case"],
        "changes": figures["events"],
        "seconds": figures["seconds"],
        "changes/s": figures["events_per_s"],
        "client CPU s": figures["client_cpu_s"],
        "entries": figures["entries"],
        "files/s": figures.get("files_per_s"),
        "peak MiB": figures["peak_mib"],
        "bound": figures["is_ok"],
    }


def _failure_row(figures: Figures) -> dict[str, Any]:
    return {"what": figures.get("shape") or figures["case"], "error": figures["error"]}


def _measure_shapes(source: Source, options: Options) -> Iterator[Figures]:
    for shape in options.shapes:
        say(f"postgres {source.version_major}, {shape.name}: {options.changes:,} changes")
        try:
            yield from _measure_shape(source, shape, options)
        except FAILURES as error:
            yield {"postgres": source.version_major, "shape": shape.name, "error": str(error), "is_ok": False}


def _measure_shape(source: Source, shape: Shape, options: Options) -> list[Figures]:
    receivers = ReceiverDrains(options.max_fill_ms)
    with source.database() as database:
        backlog = _make_shape(source, shape, options, database)
        receivers.drain(backlog, examine=partial(compare_last_values, database))
        contenders = _contenders(source, receivers)
        rounds = [_run_round(backlog, contenders, number) for number in range(options.repeat)]
    subject = {"postgres": source.version_major, "shape": shape.name}
    return [{**subject, **_summarise(contender, shape, rounds, backlog.changes)} for contender in contenders]


def _make_shape(source: Source, shape: Shape, options: Options, database: Database) -> Backlog:
    began = time.monotonic()
    prepare_shape(database, shape, options.changes)
    backlog = make_backlog(
        source, database, ["changes"], options.changes, lambda each: write_shape(each, shape, options.changes)
    )
    say(f"  written in {time.monotonic() - began:.1f} s")
    return backlog


def _contenders(source: Source, receivers: ReceiverDrains) -> list[Contender]:
    return [
        Contender(f"{name}{' over TLS' if tls else ''}", partial(drain, tls=tls), tls)
        for tls in ((False, True) if source.certificate else (False,))
        for name, drain in ((_REFERENCE, drain_with_pg_recvlogical), ("receiver", receivers.drain))
    ]


def _run_round(backlog: Backlog, contenders: Sequence[Contender], number: int) -> dict[str, Drain]:
    """Let everyone drain once, another one first in each round: what changes slowly then favours nobody."""
    first = number % len(contenders)
    round_ = {}
    for contender in (*contenders[first:], *contenders[:first]):
        drain = round_[contender.name] = contender.drain(backlog)
        rate = backlog.changes / drain.seconds
        say(f"  {contender.name}: {rate:,.0f} changes/s, client CPU {drain.client_cpu_s:.2f} s")
    return round_


def _summarise(contender: Contender, shape: Shape, rounds: Sequence[dict[str, Drain]], changes: int) -> Figures:
    drains = [round_[contender.name] for round_ in rounds]
    last = drains[-1]
    figures: Figures = {
        "contender": contender.name,
        "changes_per_s": median([changes / drain.seconds for drain in drains]),
        "each_changes_per_s": [changes / drain.seconds for drain in drains],
        "ratio": _ratio(contender.name, _REFERENCE, rounds),
        "client_cpu_s_per_million": median([per_million(drain.client_cpu_s, changes) for drain in drains]),
        "walsender_cpu_s_per_million": median([per_million(drain.walsender_cpu_s, changes) for drain in drains]),
        "peak_mib": max(drain.peak_mib for drain in drains),
        "startup_s": last.startup_s,
        "startup_mib": last.startup_mib,
        "entries": last.entries,
    }
    if contender.tls:
        figures["ratio_over_tls"] = _ratio(contender.name, f"{_REFERENCE} over TLS", rounds)
    return {**figures, **_judge(contender, shape, figures)} if contender.is_receiver else figures


def _ratio(name: str, reference: str, rounds: Sequence[dict[str, Drain]]) -> float:
    """Compare within a round, where the machine was the same."""
    return median([round_[reference].seconds / round_[name].seconds for round_ in rounds])


def _judge(contender: Contender, shape: Shape, figures: Figures) -> Figures:
    least = RATIO_OVER_TLS if contender.tls else RATIO_OF_SINGLE_ROWS if shape.rows_per_transaction == 1 else RATIO
    verdicts = {
        "is_fast_enough": figures["ratio"] >= least,
        "is_lean_enough": figures["client_cpu_s_per_million"] <= CPU_S_PER_MILLION,
        "is_small_enough": figures["peak_mib"] <= BOUND_MIB,
    }
    return {"least_ratio": least, **verdicts, "is_ok": all(verdicts.values())}


def _profile(options: Options, shape: Shape) -> int:
    """Drain one backlog with a witness beside the receiver, and show which lines its CPU time went to."""
    with start_source(options.servers[0]) as source, source.database() as database:
        backlog = _make_shape(source, shape, options, database)
        result = source.directory / "profile.json"
        command = (sys.executable, "-m", "bench.sample", str(result))
        drain = ReceiverDrains(options.max_fill_ms, command=command).drain(backlog)
        seen: dict[str, Any] = json.loads(result.read_text())
    title = f"CPU seconds of the receiver by function, {shape.name}, {backlog.changes / drain.seconds:,.0f} changes/s"
    print_table(title, [_profile_row(place, backlog.changes) for place in seen["places"][:_PROFILE_LINES]])
    print(f"{seen['unseen_cpu_s']:.2f} s in threads that run no Python")
    print_json({"bench": "capture-profile", "shape": shape.name, "changes": backlog.changes, **seen})
    return 0


def _profile_row(place: Figures, changes: int) -> dict[str, Any]:
    per_event = per_million(place["cpu_s"], changes)
    return {**place, "line": str(place["line"]), "µs per change": per_event}


def _parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="bench.capture", description=__doc__)
    parser.add_argument("--changes", type=int, help="changes of each backlog (default 1,000,000)")
    parser.add_argument("--repeat", type=int, help="rounds, of which medians are taken (default 3)")
    parser.add_argument("--shapes", help=f"some of {','.join(SHAPES)} (default: all; when quick, {_QUICK_SHAPES})")
    parser.add_argument("--versions", help="major versions of the servers, e.g. 18,15; bounds run on the first")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: to see that it works")
    parser.add_argument("--skip-bounds", action="store_true", help="speed only")
    parser.add_argument("--skip-shapes", action="store_true", help="bounds only")
    parser.add_argument("--max-fill-ms", type=int, help="the receiver's setting, if not its default")
    parser.add_argument("--profile", metavar="SHAPE", help="only show where the receiver's time goes for one shape")
    given = parser.parse_args(arguments)
    try:
        return _options(given)
    except (KeyError, ValueError) as error:
        parser.error(f"unknown shape or version, or not a number: {error}")


def _options(given: argparse.Namespace) -> Options:
    return Options(
        changes=given.changes or (20_000 if given.quick else 1_000_000),
        repeat=given.repeat or (1 if given.quick else 3),
        shapes=() if given.skip_shapes else _shapes(given.shapes, quick=given.quick),
        servers=_servers(given.versions),
        bounds=None if given.skip_bounds else QUICK if given.quick else Sizes(),
        max_fill_ms=given.max_fill_ms,
        profile=SHAPES[given.profile] if given.profile else None,
    )


def _shapes(names: str | None, *, quick: bool) -> tuple[Shape, ...]:
    chosen = names or (_QUICK_SHAPES if quick else ",".join(SHAPES))
    return tuple(SHAPES[name] for name in chosen.split(","))


def _servers(versions: str | None) -> tuple[ServerBinaries, ...]:
    """Choose servers: those named, or the newest and, if another one, the newest that speaks TLS."""
    found = {server.version_major: server for server in find_servers()}
    if versions is not None:
        return tuple(found[int(version)] for version in versions.split(","))
    newest = list(reversed(found.values()))
    chosen = {newest[0], *[server for server in newest if knows_tls(server)][:1]}
    return tuple(server for server in newest if server in chosen)


if __name__ == "__main__":
    raise SystemExit(main())
