"""Commits to Delta tables without a JVM: milliseconds, with the position in the same commit as the data."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from penstock.contract.batch import CopiedFile
from penstock.destinations.delta.checksum import remove_checksums
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.schema import statistics
from penstock.failpoint import hit
from penstock.model.lsn import Lsn
from penstock.model.mode import TableMode
from penstock.model.table import PipelineId, TableId

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Committer:
    """One table's place in the lake, and how its commits name its pipeline and position."""

    folder: TableFolder
    pipeline: PipelineId
    table: TableId

    @property
    def location(self) -> str:
        """Where the table is, as the Delta library is told it."""
        return self.folder.location

    @property
    def app_id(self) -> str:
        """What the table's position is stored under."""
        return f"penstock/{self.pipeline}/{int(self.table)}"

    @property
    def description(self) -> str:
        """What marks the table as this pipeline's."""
        return f"Replicated by Penstock, pipeline {self.pipeline}"

    def metadata(self, position: Lsn) -> str:
        """Return what a commit says about itself, for people who read the table's history."""
        return json.dumps({"pipeline": self.pipeline, "table": int(self.table), "lsn": str(position)})

    def open(self) -> DeltaTable | None:
        """Read the table's present state, or None if there is none."""
        return self._opened() if DeltaTable.is_deltatable(self.location, self._options) else None

    def _opened(self) -> DeltaTable:
        return DeltaTable(self.location, storage_options=self._options)

    @property
    def _options(self) -> dict[str, str] | None:
        options = self.folder.files.options
        return None if options is None else dict(options)

    def checkpoint(self) -> None:
        """Write down the table's present state, and drop what of its log is past its retention, or its use.

        The commit before it stands whether or not this succeeds.
        """
        try:
            table = self._opened()
            table.create_checkpoint()
            table.cleanup_metadata()
            remove_checksums(self.folder, table.version())
        except (DeltaError, OSError):
            _log.warning("the Delta table at %s got no checkpoint", self.location, exc_info=True)

    @property
    def copy_app_id(self) -> str:
        """What the number of committed parts of the table's copy is stored under."""
        return f"{self.app_id}/copy"

    @property
    def since_app_id(self) -> str:
        """What the position is stored under at which a copy began, in a table that keeps the past.

        It is 0 once changes follow the copy: until then its rows are not yet past, and go when it starts again.
        """
        return f"{self.copy_app_id}/since"

    def replace(
        self,
        schema: Schema,
        files: Iterable[CopiedFile],
        position: Lsn,
        parts: int = 1,
        mode: TableMode = TableMode.CURRENT,
    ) -> None:
        """Create the table, or put these columns and files in place of all it has."""
        create_table_with_add_actions(
            self.location,
            schema,
            self._added(files),
            mode="overwrite",
            partition_by=[],
            description=self.description,
            configuration={"delta.enableDeletionVectors": "true"},
            storage_options=self._options,
            commit_properties=self._properties(position, parts, since=position if mode.keeps_past else None),
        )
        hit("delta.committed")

    def append(
        self, table: DeltaTable, files: Iterable[CopiedFile], position: Lsn, *, parts: int | None = None
    ) -> None:
        """Add files; without any, move only the position. `parts` is given with files of a copy."""
        self._write(table, files, position, "append", parts)

    def empty(self, table: DeltaTable, position: Lsn, *, parts: int | None = None) -> None:
        """Remove every row."""
        self._write(table, [], position, "overwrite", parts)

    def _write(
        self, table: DeltaTable, files: Iterable[CopiedFile], position: Lsn, mode: str, parts: int | None
    ) -> None:
        table.create_write_transaction(
            list[AddAction | RemoveAction](self._added(files)),
            mode=mode,
            schema=table.schema(),
            partition_by=[],
            commit_properties=self._properties(position, parts),
        )
        hit("delta.committed")

    def _added(self, files: Iterable[CopiedFile]) -> list[AddAction]:
        hit("delta.commit")
        now_ms = time.time_ns() // 1_000_000
        return [
            AddAction(
                self.folder.logged(file.path), file.size_bytes, {}, now_ms, data_change=True, stats=statistics(file)
            )
            for file in files
        ]

    def _properties(self, position: Lsn, parts: int | None, since: Lsn | None = None) -> CommitProperties:
        transactions = [Transaction(self.app_id, int(position))]
        if parts is not None:
            transactions.append(Transaction(self.copy_app_id, parts))
        if since is not None:
            transactions.append(Transaction(self.since_app_id, int(since)))
        return CommitProperties(
            app_transactions=transactions, custom_metadata={"userMetadata": self.metadata(position)}
        )
