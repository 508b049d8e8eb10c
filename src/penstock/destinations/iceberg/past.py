"""Commits to tables that keep the past: `history` and `scd2`.

Rows are added, and in `scd2` versions that end are deleted by position and added again. Nothing else is ever removed
but rows of a copy that no change has followed yet, when that copy is settled or starts again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import pyarrow as pa

from penstock.contract.batch import CopiedFile, TableChanges
from penstock.destinations.iceberg.apply import Application, LakeTable
from penstock.destinations.iceberg.client import Mark, MarkKeys, Version
from penstock.destinations.iceberg.index import FileIndex, index_columns
from penstock.destinations.iceberg.rows import DataFolder
from penstock.errors import DestinationError, ErrorKind
from penstock.lake.keeping import forgotten, keep
from penstock.lake.key import Numbers
from penstock.lake.locate import Found
from penstock.lake.past import CopyStart, FoundRows
from penstock.lake.search import Search
from penstock.lake.sought import Sought, all_copied
from penstock.model.lsn import Lsn

_NOT_COPIED = Lsn(0)


class PastApplication(Application):
    """One table's changes on their way into one commit on one version of the table."""

    def __init__(self, table: LakeTable, version: Version, changes: TableChanges, mark: Mark, end: Lsn) -> None:
        super().__init__(table, version, changes, mark, end)
        # Every row stays, whatever is truncated.
        self.truncated = None
        self._copied_since = mark.since or _NOT_COPIED
        self.mark = replace(self.mark, since=mark.since if changes.is_settling else _NOT_COPIED)

    def run(self) -> None:
        """Add what the changes come to."""
        if self.changes.is_settling:
            self._commit([], _places(self._found(forgotten(self.changes, self.since, self._copied_since))))
            return
        place = f"the Iceberg table {self.table.known.place}"
        keeping = keep(self.changes, self.table.layout.mode, self.since, self._columns, place)
        found = self._found(keeping.sought)
        needed = [FoundRows(each, partial(self._read, self._index.path(name))) for name, each in found.items()]
        rows = self.folder.write_rows(keeping.rows(needed), self._columns)
        self._commit(rows, _places(found) if keeping.replaces else None)

    def _found(self, sought: Sought | None) -> dict[str, Found]:
        return {} if sought is None else self._index.find(self.table.search, sought)

    @cached_property
    def _index(self) -> FileIndex:
        return self.table.known.at(self.version, index_columns(self.schema, self.table.layout))

    def _read(self, path: str, columns: Sequence[str], places: Numbers) -> Iterator[pa.Table]:
        wanted = pa.schema([self._columns.field(name) for name in columns])
        physical = self._index.files.named(path, wanted)
        for table in self._index.files.values(path, physical, places):
            yield pa.Table.from_arrays(table.columns, schema=wanted)


class Beginning(PastApplication):
    """A copy that begins in a table which keeps what was before."""

    def __init__(self, table: LakeTable, version: Version, start: CopyStart, files: Sequence[CopiedFile]) -> None:
        super().__init__(table, version, start, Mark(Lsn(0), 0), start.watermark)
        self.mark = Mark(start.watermark, 1, start.watermark)
        self.copied = files

    def run(self) -> None:
        """Commit, unless somebody else began a copy since this one was prepared."""
        mark = self.version.mark(self.table.keys)
        if mark is not None and mark.lsn:
            raise DestinationError(
                f"The Iceberg table {self.table.known.place} has another copy by now.",
                kind=ErrorKind.DESTINATION_CONFLICT,
            )
        super().run()


def forget_unfinished_copy(version: Version, keys: MarkKeys, search: Search, place: str) -> None:
    """Take a table back to position 0, without the rows of a copy that no change has followed."""
    mark = version.mark(keys)
    if mark is None or not mark.lsn:
        return
    gone: dict[str, Numbers] = {}
    is_all = False
    if mark.since:
        sought = all_copied([mark.since, mark.lsn])
        index = FileIndex.read(version, sought.columns, place)
        gone = _places(index.find(search, sought))
        is_all = sum(map(len, gone.values())) == index.alive
    deletes = DataFolder.of(version.location, version.filesystem).write_deletes(gone) if gone and not is_all else None
    version.commit(keys, Mark(Lsn(0), 0, _NOT_COPIED), deletes=deletes, empties=is_all)


def _places(found: dict[str, Found]) -> dict[str, Numbers]:
    return {name: each.places for name, each in found.items()}
