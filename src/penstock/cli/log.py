"""`penstock log`: what the change log holds, change by change, and whether it is sound.

These commands only read, beside a replicator at work or without one. Their purpose is to show row
values, so they are the only ones that do; errors still never quote one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.text import Text

from penstock.changelog.change import Wanted, read_changes
from penstock.changelog.entry import Entry
from penstock.changelog.folder import Folder
from penstock.changelog.header import read_header
from penstock.changelog.reader import LogReader
from penstock.changelog.verification import Damage, Verification
from penstock.changelog.visitor import find_table, open_log, table_names
from penstock.cli import console, interrupt
from penstock.cli import log_view as view
from penstock.cli.log_tail import ChangePrinter, NewestNames, Tail
from penstock.cli.log_target import find_target, first_transaction, tail_start
from penstock.config.replicator import ReplicatorConfig
from penstock.errors import StateError
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId
from penstock.runtime.report import read_report
from penstock.runtime.source import log_folder

_LISTED = 100
"""Entries that people are shown unless they ask for more: a page or two."""


@dataclass(frozen=True, slots=True)
class Located:
    """A log, the folder that it belongs to, and how its values are to be read."""

    folder: Folder
    state_dir: Path | None
    """None if only the log is known."""
    policies: ValuePolicies

    @property
    def report(self) -> dict[str, Any] | None:
        """What the replicator last said of itself, where that is known."""
        return None if self.state_dir is None else read_report(self.state_dir)

    def table(self, name: str | None) -> TableId | None:
        """Look a table up, if one is named."""
        return find_table(table_names(self.folder), name) if name else None


def locate(config: Path | None, log: str | None) -> Located:
    """Find the log: a folder that is named, or that of a configuration file."""
    if log is not None:
        return Located(Folder(log), None if "://" in log else Path(log).parent, ValuePolicies())
    settings = ReplicatorConfig.load(config)
    folder = log_folder(settings.pipeline.log, settings.state_dir)
    return Located(folder, settings.state_dir, settings.pipeline.value_policies)


@dataclass(frozen=True, slots=True)
class Listing:
    """A log as a whole, and its entries line by line."""

    folder: Folder
    reader: LogReader
    entries: Sequence[Entry]
    lines: Sequence[view.EntryLine]
    report: dict[str, Any] | None
    """The replicator's last word, which knows what is needed."""

    @property
    def size_bytes(self) -> int:
        """Bytes that all entries take."""
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def written(self) -> tuple[str, str] | None:
        """When the oldest and the newest entry were written."""
        times = [entry.written_us for entry in self.entries]
        return (view.moment(min(times)), view.moment(max(times))) if times else None

    def summary(self) -> str:
        """Return all entries in a line."""
        when = f", written {' to '.join(self.written)}" if self.written else ""
        positions = f"{self.reader.start_lsn}..{self.reader.end_lsn}"
        return f"{console.count(len(self.entries))} entries, {console.size(self.size_bytes)}, {positions}{when}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        report = self.report or {}
        oldest, newest = self.written or (None, None)
        return {
            "log": str(self.folder),
            "start_lsn": str(self.reader.start_lsn),
            "end_lsn": str(self.reader.end_lsn),
            "total_entries": len(self.entries),
            "size_bytes": self.size_bytes,
            "oldest": oldest,
            "newest": newest,
            "needed_from": report.get("log_start"),
            "held_by": report.get("log_held_by"),
            "keep_ms": report.get("log_keep_ms"),
            "keep_bytes": report.get("log_keep_bytes"),
            "entries": [asdict(line) for line in self.lines],
        }


def list_entries(located: Located, *, table: str | None, limit: int | None, as_json: bool) -> None:
    """Print the entries, newest last, and what they are together; a limit of 0 prints all."""
    listing = _listing(located, open_log(located.folder), located.table(table), None if as_json else _LISTED, limit)
    if as_json:
        console.print_json(listing.to_json())
        return
    results, width = console.results(), console.terminal_width()
    for line in view.entry_table(listing.lines) if listing.lines else ():
        results.print(Text(console.cut(line, width)))
    for text in (listing.summary(), *view.why_kept(listing.report, listing.reader.start_lsn)):
        results.print(Text(text))


def _listing(
    located: Located, reader: LogReader, table: TableId | None, default_limit: int | None, limit: int | None
) -> Listing:
    names = NewestNames(located.folder)
    entries = [*reader.entries, *reader.open_chain]
    shown = [entry for entry in entries if table is None or _touches(entry, table)]
    kept = default_limit if limit is None else limit
    lines = [
        view.entry_line(entry, names, table, is_open=entry.sequence >= reader.next_sequence)
        for entry in (shown[-kept:] if kept else shown)
    ]
    return Listing(located.folder, reader, entries, lines, located.report)


def _touches(entry: Entry, table: TableId) -> bool:
    return any(file.table == table for file in entry.files) or any(table in each.tables for each in entry.truncates)


def show_changes(located: Located, target: str, *, table: str | None, limit: int | None, as_json: bool) -> None:
    """Print the changes of an entry, of a transaction, or of a range; a limit of 0 prints all."""
    reader = open_log(located.folder)
    found = find_target(reader, target)
    changes = read_changes(reader, Wanted(found.start, found.end, _only(located.table(table))), located.policies)
    if found.is_one_transaction:
        changes = first_transaction(changes)
    printer = ChangePrinter(NewestNames(located.folder), as_json=as_json)
    printer.print(changes, limit or None)
    if found.is_one_transaction and not printer.printed:
        raise StateError(
            f"no transaction{f' of {table}' if table else ''} committed at or after {found.start};"
            f" the log ends at {found.end}",
            remedy="Name an earlier position; `penstock log ls` lists what there is.",
        )


def _only(table: TableId | None) -> Collection[TableId] | None:
    return None if table is None else {table}


def follow_changes(located: Located, start: str | None, *, table: str | None, as_json: bool) -> None:
    """Print changes as they come into the log, until interrupted: that is how it ends, and no failure."""
    reader = open_log(located.folder)
    printer = ChangePrinter(NewestNames(located.folder), as_json=as_json)
    tail = Tail(reader, tail_start(reader, start), _only(located.table(table)), located.policies, printer)
    with interrupt.ending():
        try:
            tail.run()
        except KeyboardInterrupt:
            return


def verify_log(located: Located, *, as_json: bool) -> bool:
    """Read the whole log, print what is damaged, and say whether nothing is."""
    read_header(located.folder)
    verification = Verification(located.folder)
    damages = _run(verification)
    if as_json:
        console.print_json(
            {
                "log": str(located.folder),
                "entries": len(verification.entries),
                "size_bytes": verification.size_bytes,
                "damaged": [asdict(damage) for damage in damages],
            }
        )
    else:
        _print_damages(located.folder, verification, damages)
    return not damages


def _run(verification: Verification) -> list[Damage]:
    err = console.progress()
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("reading", total=verification.size_bytes)
        return verification.run(lambda entry: progress.advance(task, entry.size_bytes))


def _print_damages(folder: Folder, verification: Verification, damages: Sequence[Damage]) -> None:
    results = console.results()
    for damage in damages:
        results.print(Text.assemble(console.mark(console.FAILED), f" {damage.path} {damage.what}"))
    counted = f"{console.count(len(verification.entries))} entries, {console.size(verification.size_bytes)}"
    damaged = len({damage.path for damage in damages})
    verdict = f"{damaged} damaged of the files of {folder}" if damages else f"{folder} is sound"
    sign = console.FAILED if damages else console.OK
    results.print(Text.assemble(console.mark(sign), f" {verdict}: {counted}"))
