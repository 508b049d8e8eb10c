"""How entries and changes of the log look: as lines for people, as plain data for programs. All of it is pure."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from penstock.changelog.change import Logged, LoggedChange, LoggedTransaction, Values
from penstock.changelog.entry import Entry
from penstock.cli import console
from penstock.model.cell import Cell
from penstock.model.event import Truncate
from penstock.model.lsn import Lsn
from penstock.model.table import TableId

_WORDS = {"I": "insert", "U": "update", "D": "delete"}
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))

NameOf: TypeAlias = Callable[[TableId], str]
"""What a table is called now."""
_TABLES_NAMED = 3


@dataclass(frozen=True, slots=True)
class EntryLine:
    """One entry, as far as it concerns the tables asked for."""

    sequence: int
    state: str
    """complete; part, of a chain that a later entry closes; or open, of a transaction that has not committed."""
    start_lsn: str
    end_lsn: str | None
    """None of a part: only the entry that closes the chain has an end."""
    written_at: str
    transactions: int
    inserts: int
    updates: int
    deletes: int
    truncates: int
    tables: Sequence[str]
    size_bytes: int


def entry_line(entry: Entry, name_of: NameOf, table: TableId | None, *, is_open: bool = False) -> EntryLine:
    """Return what is said of an entry; with a table given, what it holds of that one."""
    files = [file for file in entry.files if table in (None, file.table)]
    truncates = [each for each in entry.truncates if table is None or table in each.tables]
    touched = {file.table for file in files} | {each for truncate in truncates for each in truncate.tables}
    return EntryLine(
        sequence=entry.sequence,
        state="open" if is_open else "complete" if entry.is_complete else "part",
        start_lsn=str(entry.start_lsn),
        end_lsn=str(entry.end_lsn) if entry.is_complete else None,
        written_at=moment(entry.written_us),
        transactions=entry.transactions,
        inserts=sum(file.inserts for file in files),
        updates=sum(file.updates for file in files),
        deletes=sum(file.deletes for file in files),
        truncates=len(truncates),
        tables=sorted(name_of(each) for each in touched if table in (None, each)),
        size_bytes=entry.size_bytes if table is None else sum(file.size_bytes for file in files),
    )


def entry_table(lines: Sequence[EntryLine]) -> Iterator[str]:
    """Yield a heading and a line per entry, in columns; what may be long comes last, where a terminal cuts it."""
    rows = [_ENTRY_COLUMNS, *map(_entry_cells, lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (
            cell.rjust(width) if name in _NUMBERS else cell.ljust(width)
            for name, cell, width in zip(_ENTRY_COLUMNS, row, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()


_ENTRY_COLUMNS = ("entry", "positions", "", "written", "transactions", "changes", "size", "tables")
_NUMBERS = {"entry", "transactions", "size"}


def _entry_cells(line: EntryLine) -> tuple[str, ...]:
    return (
        str(line.sequence),
        f"{line.start_lsn}..{line.end_lsn or ''}",
        "" if line.state == "complete" else line.state,
        f"{line.written_at[:10]} {line.written_at[11:19]}",
        console.count(line.transactions),
        _operations(line),
        console.size(line.size_bytes),
        printable(_listed(line.tables)),
    )


def _operations(line: EntryLine) -> str:
    """Return how many inserts, updates, deletes and truncates there are: 3I 1U."""
    counts = zip((line.inserts, line.updates, line.deletes, line.truncates), "IUDT", strict=True)
    return " ".join(f"{console.count(count)}{letter}" for count, letter in counts if count) or "—"


def _listed(tables: Sequence[str]) -> str:
    more = len(tables) - _TABLES_NAMED
    named = ", ".join(tables[:_TABLES_NAMED]) or "—"
    return f"{named} and {more} more" if more > 0 else named


def moment(time_us: int) -> str:
    """Return a time in microseconds since 1970 as people and programs read it."""
    return _time(dt.datetime.fromtimestamp(time_us // 1_000_000, dt.UTC).replace(microsecond=time_us % 1_000_000))


def duration(time_ms: int) -> str:
    """Return a duration in its largest whole unit: 3600000 is 1h."""
    return next(f"{time_ms // size}{unit}" for unit, size in _UNITS if time_ms % size == 0)


def held_back(report: Mapping[str, Any] | None) -> str | None:
    """Return which table holds the log back, as a replicator last reported it; None if none does."""
    holder = (report or {}).get("log_held_by")
    if not holder:
        return None
    others = f" and {holder['others']} more" if holder["others"] else ""
    return f"held by {holder['table']}{others} at {holder['watermark']} ({holder['phase']})"


def why_kept(report: Mapping[str, Any] | None, start: Lsn) -> Iterable[str]:
    """Yield why the log still has what it has, from its start on, as a replicator last reported it."""
    if not report:
        return
    needed, kept, held = Lsn.parse(report["log_start"]), kept_for_replay(report), held_back(report)
    if kept and start < needed:
        yield f"{start}..{needed} is {kept}"
    if held:
        yield f"{needed}..{report['log_end']} is {held}"


def kept_for_replay(report: Mapping[str, Any] | None) -> str | None:
    """Return the settings that keep more of the log than is needed, as a replicator last reported them."""
    keep_ms, keep_bytes = (report or {}).get("log_keep_ms", 0), (report or {}).get("log_keep_bytes", 0)
    said = [f"log.keep_ms {duration(keep_ms)}"] if keep_ms else []
    said += [f"log.keep_bytes {console.size(keep_bytes)}"] if keep_bytes else []
    return f"kept for replay: {', '.join(said)}" if said else None


def to_json(logged: Logged, name_of: NameOf) -> dict[str, Any]:
    """Return a transaction or a change as plain data."""
    match logged:
        case LoggedTransaction():
            return {
                "type": "begin",
                "commit_lsn": str(logged.commit_lsn),
                "end_lsn": str(logged.end_lsn),
                "commit_time": _time(logged.commit_time),
                "xid": logged.xid,
                "changes": logged.changes,
            }
        case LoggedChange():
            return _change_to_json(logged)
        case Truncate(position, tables, cascade, restart_identity):
            return {
                "type": "truncate",
                "commit_lsn": str(position.commit_lsn),
                "ordinal": position.ordinal,
                "tables": [name_of(table) for table in tables],
                "cascade": cascade,
                "restart_identity": restart_identity,
            }


def commit_to_json(transaction: LoggedTransaction) -> dict[str, Any]:
    """Return a transaction's end as plain data."""
    return {"type": "commit", "commit_lsn": str(transaction.commit_lsn), "end_lsn": str(transaction.end_lsn)}


def gap_to_json(start: Lsn, end: Lsn) -> dict[str, Any]:
    """Return as plain data that changes went before they could be shown."""
    return {"type": "gap", "start_lsn": str(start), "end_lsn": str(end)}


def gap_line(start: Lsn, end: Lsn) -> str:
    """Return as a line that changes went before they could be shown."""
    return f"-- trimmed before they could be shown: {start}..{end}; log.keep_ms keeps changes for longer"


def _change_to_json(change: LoggedChange) -> dict[str, Any]:
    data = {
        "type": _WORDS[change.op],
        "table": str(change.table),
        "commit_lsn": str(change.position.commit_lsn),
        "ordinal": change.position.ordinal,
        "values": _plain_values(change.values),
    }
    if change.unchanged:
        data["unchanged"] = list(change.unchanged)
    if change.old_key is not None:
        data["old_key"] = _plain_values(change.old_key)
    if change.before is not None:
        data["before"] = _plain_values(change.before)
    return data


def to_line(logged: Logged, name_of: NameOf) -> str:
    """Return a transaction or a change as one line, without control characters whatever the row holds."""
    match logged:
        case LoggedTransaction():
            when = _time(logged.commit_time)
            counted = f"{console.count(logged.changes)} change{'s' * (logged.changes != 1)}"
            return f"BEGIN {logged.commit_lsn}  xid {logged.xid}  {when}  {counted}"
        case LoggedChange():
            place = f"  {logged.position.ordinal:>4}  {_WORDS[logged.op].upper():8}"
            return "  ".join([f"{place}  {printable(str(logged.table))}", *_change_parts(logged)])
        case Truncate(position, tables, cascade, restart_identity):
            options = [" cascade"] * cascade + [" restart identity"] * restart_identity
            listed = ", ".join(printable(name_of(table)) for table in tables)
            return f"  {position.ordinal:>4}  TRUNCATE  {listed}{''.join(options)}"


def commit_line(transaction: LoggedTransaction) -> str:
    """Return a transaction's end as one line."""
    return f"COMMIT {transaction.commit_lsn}  ends at {transaction.end_lsn}"


def _change_parts(change: LoggedChange) -> Iterable[str]:
    if change.op != "D" or change.before is None:
        yield _assignments(change.values)
    if change.unchanged:
        yield f"[unchanged: {', '.join(map(printable, change.unchanged))}]"
    if change.old_key is not None:
        yield f"[old key: {_assignments(change.old_key)}]"
    if change.before is not None:
        yield f"[before: {_assignments(change.before)}]"


def _assignments(values: Values) -> str:
    return " ".join(f"{printable(name)}={_printed(value)}" for name, value in values.items())


def _printed(value: Cell) -> str:
    return printable(json.dumps(plain(value), ensure_ascii=False))


def printable(text: str) -> str:
    """Return text without what a terminal would act upon: row data must not move the cursor or colour the screen."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _plain_values(values: Values) -> dict[str, Any]:
    return {name: plain(value) for name, value in values.items()}


def plain(value: Cell) -> Any:  # noqa: PLR0911  # a line per type is how it is read best
    """Return a value as JSON can hold it, exactly: what has no type of its own there is text, as Postgres prints it."""
    match value:
        case list():
            return [plain(item) for item in value]
        case bytes():
            return f"\\x{value.hex()}"
        case Decimal():
            return format(value, "f")
        case dt.datetime():
            return _time(value) if value.tzinfo else value.isoformat(sep=" ")
        case dt.date():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return value


def _time(value: dt.datetime) -> str:
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
