"""One table's changes on their way into one commit, without a Spark job: rows are marked as gone where they stand.

What the batch comes to is computed from the changes alone; where the rows are that it replaces, from one version of
the table. The commit lands on that very version or not at all: if another writer was faster, the rows are looked for
again in what it made, unless that already has our position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from penstock.contract import columns as log
from penstock.contract.batch import CopiedFile, TableChanges
from penstock.destinations.iceberg.client import Mark, MarkKeys, Version, is_outrun
from penstock.destinations.iceberg.index import FileIndex, KnownFiles, index_columns
from penstock.destinations.iceberg.rows import DataFolder
from penstock.destinations.iceberg.schema import arrow_schema, with_ids
from penstock.errors import DestinationError
from penstock.failpoint import hit
from penstock.lake.completion import Completion
from penstock.lake.fold import Folded, changes_behind, fold
from penstock.lake.key import Numbers
from penstock.lake.layout import Layout
from penstock.lake.locate import Found
from penstock.lake.rows import lake_rows
from penstock.lake.search import Search
from penstock.lake.sought import Sought
from penstock.lake.validate import refuse_keyless, refuse_missing_row
from penstock.model.lsn import Lsn, Position
from penstock.wire.arrow import compute


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table, and what is needed to change it."""

    keys: MarkKeys
    search: Search
    known: KnownFiles
    layout: Layout


class Application:
    """One table's changes on their way into one commit on one version of the table."""

    def __init__(self, table: LakeTable, version: Version, changes: TableChanges, mark: Mark, end: Lsn) -> None:
        self.table = table
        self.version = version
        self.changes = changes
        self.schema = changes.schema
        self.since = mark.lsn
        self.mark = Mark(end, mark.parts)
        self.copied: Sequence[CopiedFile] = ()
        truncates = [event.position for event in changes.truncates if event.position.commit_lsn >= mark.lsn]
        self.truncated: Position | None = max(truncates, default=None)

    def run(self) -> None:
        """Choose the cheapest way that is right."""
        changes = self.changes
        if not changes.inserts and not changes.updates and not changes.deletes:
            self._commit([])
        elif not self.schema.key or not (changes.updates or changes.deletes):
            # Inserts from the position on are certainly new: the target is not looked at.
            self._commit(self.folder.write_rows(self._inserted(), self._columns))
        else:
            self._fold(changes_behind(changes.arrow(), self.since, self.truncated))

    def _fold(self, fresh: list[pa.RecordBatch]) -> None:
        if not fresh:
            self._commit([])
            return
        folded = fold(fresh, self.schema)
        if self.truncated is None:
            self._rewrite(folded)
        elif folded.kept:
            raise self._missing_row()
        else:
            self._commit(self.folder.write_rows([self._lake_rows(folded.rows)], self._columns))

    def _inserted(self) -> Iterator[pa.Table]:
        for batch in self.changes.arrow():
            for fresh in changes_behind([batch], self.since, self.truncated):
                if compute.any(compute.not_equal(fresh.column(log.OP), "I")).as_py():
                    raise refuse_keyless(self.schema)
                yield self._lake_rows(pa.Table.from_batches([fresh]))

    def _rewrite(self, folded: Folded) -> None:
        """Delete the rows that the folded changes replace, and add the new ones."""
        key = index_columns(self.schema, self.table.layout)
        index = self.table.known.at(self.version, key)
        found = index.find(self.table.search, Sought(key, folded.keys))
        rows = self.folder.write_rows(self._completed(index, Completion(folded), found), self._columns)
        self._commit(rows, {name: each.places for name, each in found.items()})

    def _completed(self, index: FileIndex, completion: Completion, found: dict[str, Found]) -> Iterator[pa.Table]:
        yield self._lake_rows(completion.whole())
        if not completion.missing:
            return
        for name, each in found.items():
            values = partial(self._kept_values, index, completion.columns, index.path(name))
            yield from map(self._lake_rows, completion.completed(each, values))
        if completion.missing:
            raise self._missing_row()

    def _kept_values(self, index: FileIndex, names: Sequence[str], path: str, places: Numbers) -> Iterator[pa.Table]:
        columns = [column for column in self._columns if log.stored_name(column.name) in names]
        physical = index.files.named(path, pa.schema(columns))
        for table in index.files.values(path, physical, places):
            yield table.rename_columns([log.stored_name(column.name) for column in columns])

    def _commit(self, rows: Sequence[CopiedFile], gone: Mapping[str, Numbers] | None = None) -> None:
        """Commit files and positions with the mark, in place of all rows if the table was truncated."""
        deletes = self.folder.write_deletes(gone) if gone else None
        hit("iceberg.files_written")
        is_emptied = self.truncated is not None
        try:
            snapshot_id = self.version.commit(
                self.table.keys, self.mark, rows=[*self.copied, *rows], deletes=deletes, empties=is_emptied
            )
        except Py4JJavaError as error:
            if is_outrun(error):
                self.folder.remove([*rows, *([deletes] if deletes else [])])
            raise
        added = [*self.copied, *rows]
        self.table.known.follow(self.version, snapshot_id, added, gone or {}, deletes=deletes, is_emptied=is_emptied)

    def _missing_row(self) -> DestinationError:
        return refuse_missing_row(self.schema, f"the Iceberg table {self.table.known.place}")

    def _lake_rows(self, changes: pa.Table) -> pa.Table:
        return lake_rows(changes, self.schema, self._columns, cdc_columns=self.table.layout.cdc_columns)

    @cached_property
    def folder(self) -> DataFolder:
        """Where the table's files are."""
        return DataFolder.of(self.version.location, self.version.filesystem)

    @cached_property
    def _columns(self) -> pa.Schema:
        columns = arrow_schema(self.schema, self.table.layout)
        return with_ids(columns, self.version.schema)
