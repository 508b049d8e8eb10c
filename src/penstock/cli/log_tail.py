"""Prints changes, those that are in a log and those that are still to come."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from penstock.changelog.change import Logged, LoggedTransaction, Wanted, read_changes
from penstock.changelog.folder import Folder
from penstock.changelog.header import read_header
from penstock.changelog.reader import LogReader
from penstock.changelog.visitor import is_overtaken, open_log, table_names
from penstock.cli import console
from penstock.cli import log_view as view
from penstock.errors import ErrorKind, LogDamagedError
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.table import TableId, TableName

_POLL_S = 0.1  # a new entry is then seen within half a second on a busy machine too
_POLL_BUCKET_S = 1.0  # where every look is a few requests


class NewestNames:
    """What tables are called; looked up anew when one is not known, since tables join while one watches."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._names: Mapping[TableId, list[TableName]] = {}

    def __call__(self, table: TableId) -> str:
        """Return a table's newest name; its oid where the log has never described it."""
        if table not in self._names:
            self._names = table_names(self._folder)
        return str(self._names[table][-1]) if table in self._names else f"oid {int(table)}"


class ChangePrinter:
    """Writes a line per transaction's begin, change and commit, as they come: for people, or as JSON."""

    def __init__(self, name_of: view.NameOf, *, as_json: bool) -> None:
        self._name_of = name_of
        self._as_json = as_json
        self._width = console.terminal_width()
        self.printed = 0
        """Lines so far."""

    def print(self, changes: Iterator[Logged], limit: int | None = None) -> None:
        """Print whole transactions; or stop after so many changes, and say so on standard error."""
        current: LoggedTransaction | None = None
        counted = 0
        for each in changes:
            if isinstance(each, LoggedTransaction):
                self._end(current)
                current = each
            elif counted == limit:
                console.progress().print(f"there is more: this is what --limit {limit} asked for")
                break
            else:
                counted += 1
            self._put(view.to_json(each, self._name_of) if self._as_json else view.to_line(each, self._name_of))
        else:
            self._end(current)
        sys.stdout.flush()

    def print_gap(self, start: Lsn, end: Lsn) -> None:
        """Tell that changes were trimmed before they could be shown."""
        self._put(view.gap_to_json(start, end) if self._as_json else view.gap_line(start, end))
        sys.stdout.flush()

    def _end(self, transaction: LoggedTransaction | None) -> None:
        if transaction is not None:
            self._put(view.commit_to_json(transaction) if self._as_json else view.commit_line(transaction))

    def _put(self, said: dict[str, Any] | str) -> None:
        line = console.cut(said, self._width) if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        sys.stdout.write(line + "\n")
        self.printed += 1


class Tail:
    """Follows a log from a position on, like `tail -f`."""

    def __init__(
        self,
        reader: LogReader,
        position: Lsn,
        tables: Collection[TableId] | None,
        policies: ValuePolicies,
        printer: ChangePrinter,
    ) -> None:
        self._reader = reader
        self._position = position
        self._tables = tables
        self._policies = policies
        self._printer = printer

    def run(self) -> None:
        """Print what comes, for ever."""
        pause = threading.Event()
        while True:
            self.step()
            pause.wait(_POLL_S if self._reader.folder.is_local else _POLL_BUCKET_S)

    def step(self) -> None:
        """Print what has come since the last time."""
        if not self._reader.poll() and is_overtaken(self._reader):
            self._reader = open_log(self._reader.folder)
        if self._reader.start_lsn > self._position:
            self._skip_to(self._reader.start_lsn)
        end = self._reader.end_lsn
        if end > self._position:
            self._print_to(end)

    def _print_to(self, end: Lsn) -> None:
        wanted = Wanted(self._position, end, self._tables)
        try:
            self._printer.print(read_changes(self._reader, wanted, self._policies))
        except LogDamagedError as error:
            if error.kind is not ErrorKind.LOG_GAP:
                raise
            self._skip_to(read_header(self._reader.folder).start_lsn)
        else:
            self._move_to(end)

    def _skip_to(self, start: Lsn) -> None:
        self._printer.print_gap(self._position, start)
        self._move_to(start)

    def _move_to(self, position: Lsn) -> None:
        self._position = position
        self._reader.forget(position)
