"""What part of a log someone means: an entry's number, a position, or a range of either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.changelog.change import Logged, LoggedTransaction
from penstock.changelog.entry import Entry
from penstock.changelog.reader import LogReader
from penstock.errors import ConfigError, StateError
from penstock.model.lsn import Lsn

BEGINNING = "beginning"
_LS = "`penstock log ls` lists what there is."


@dataclass(frozen=True, slots=True)
class Target:
    """Transactions with `start <= commit_lsn < end`; or only the first of them."""

    start: Lsn
    end: Lsn
    is_one_transaction: bool = False


def find_target(reader: LogReader, text: str) -> Target:
    """Return what is meant by `42`, `42..45`, `0/16B3748` or `0/16B3748..0/16B9000`; a side of `..` may be empty.

    Numbers of entries include both ends; a position alone is the first transaction at or after it.
    """
    first, dots, last = text.partition("..")
    if not dots:
        return _single(reader, first)
    start = _start(reader, first) if first else reader.start_lsn
    end = _end(reader, last) if last else reader.end_lsn
    if start > end:
        raise ConfigError(f"the range {text} ends before it begins", remedy="Give the older side first.")
    return Target(start, end)


def tail_start(reader: LogReader, text: str | None) -> Lsn:
    """Return from where on to follow a log: from its end unless a position, or its beginning, is named."""
    if text is None:
        return reader.end_lsn
    if text == BEGINNING:
        return reader.start_lsn
    return _require_within(reader, _parse(text), may_be_end=True)


def first_transaction(changes: Iterator[Logged]) -> Iterator[Logged]:
    """Yield a transaction and its changes, and stop at the next one."""
    is_inside = False
    for each in changes:
        if isinstance(each, LoggedTransaction) and is_inside:
            return
        is_inside = True
        yield each


def _single(reader: LogReader, text: str) -> Target:
    if text.isdecimal():
        entry = _entry(reader, int(text))
        return Target(entry.start_lsn, _closing(reader.entries, entry).end_lsn)
    return Target(_require_within(reader, _parse(text)), reader.end_lsn, is_one_transaction=True)


def _start(reader: LogReader, text: str) -> Lsn:
    return _entry(reader, int(text)).start_lsn if text.isdecimal() else _require_within(reader, _parse(text))


def _end(reader: LogReader, text: str) -> Lsn:
    if text.isdecimal():
        return _closing(reader.entries, _entry(reader, int(text))).end_lsn
    return _require_within(reader, _parse(text), may_be_end=True)


def _parse(text: str) -> Lsn:
    try:
        return Lsn.parse(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is neither the number of an entry nor a position",
            remedy="Write 42, 42..45, 0/16B3748 or 0/16B3748..0/16B9000; " + _LS,
        ) from None


def _require_within(reader: LogReader, position: Lsn, *, may_be_end: bool = False) -> Lsn:
    start, end = reader.start_lsn, reader.end_lsn
    if start <= position < end or (may_be_end and position == end):
        return position
    holds = f"which holds {start}..{end}" if start < end else f"which is empty: it starts and ends at {end}"
    raise StateError(f"position {position} is not in the log, {holds}", remedy=_LS)


def _entry(reader: LogReader, sequence: int) -> Entry:
    entries = reader.entries
    found = next((entry for entry in entries if entry.sequence == sequence), None)
    if found is None:
        holds = f"it has {entries[0].sequence} to {entries[-1].sequence}" if entries else "it has none yet"
        raise StateError(f"the log has no entry {sequence} that can be shown; {holds}", remedy=_LS)
    return found


def _closing(entries: Sequence[Entry], part: Entry) -> Entry:
    """Return the complete entry that an entry belongs to: itself, or the one that closes its chain."""
    return next(entry for entry in entries if entry.sequence >= part.sequence and entry.is_complete)
