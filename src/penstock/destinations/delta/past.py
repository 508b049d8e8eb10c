"""Commits to tables that keep the past: `history` and `scd2`.

Rows are added, and in `scd2` versions that end are marked as gone where they stand and added again. Nothing else is
ever removed but rows of a copy that no change has followed yet, when that copy is settled or starts again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from penstock.contract.batch import CopiedFile
from penstock.destinations.delta import action
from penstock.destinations.delta.apply import Application, Draft, Drafting, Edit, LakeTable
from penstock.destinations.delta.log import Action, Member, TableState
from penstock.destinations.delta.rows import write_rows
from penstock.failpoint import hit
from penstock.lake.keeping import Keeping, forgotten, keep
from penstock.lake.key import Numbers
from penstock.lake.past import CopyStart, FoundRows
from penstock.lake.sought import all_copied
from penstock.model.lsn import Lsn


class PastApplication(Application):
    """One table's changes on their way into one commit."""

    def _drafting(self) -> Drafting:
        if self.changes.is_settling:
            return self._forgetting
        place = f"the Delta table at {self.folder.location}"
        keeping = keep(self.changes, self.table.layout.mode, self.since, self.target, place)
        if keeping.sought is not None:
            return lambda state: self._kept(state, keeping)
        files = write_rows(self.folder, keeping.rows(), self.target)
        hit("delta.files_written")
        added = [action.add_file(self.folder, file) for file in files]
        return lambda state: Draft("WRITE", [*added, *self._copy_actions(state)], is_append=True)

    def _kept(self, state: TableState, keeping: Keeping) -> Draft:
        assert keeping.sought is not None
        losses = self._losses(state, keeping.sought)
        found = [FoundRows(loss.found, partial(self._read, loss.member)) for loss in losses]
        files = write_rows(self.folder, keeping.rows(found), self.target)
        added = [action.add_file(self.folder, file) for file in files]
        draft = Draft("MERGE", [*added, *self._copy_actions(state)], [file.path for file in files])
        if keeping.replaces:
            self._mark(losses, draft)
        hit("delta.files_written")
        return draft

    def _read(self, member: Member, columns: Sequence[str], places: Numbers) -> Iterator[pa.Table]:
        schema = pa.schema([self.target.field(name) for name in columns])
        return self._files.values(self._path(member), schema, places)

    def _forgetting(self, state: TableState) -> Draft:
        draft = Draft("DELETE")
        sought = forgotten(self.changes, self.since, Lsn(self._copied_since(state)))
        if sought is not None:
            self._mark(self._losses(state, sought), draft)
        return draft

    def _copied_since(self, state: TableState) -> int:
        return state.transactions.get(self.table.committer.since_app_id, 0)

    def _copy_actions(self, state: TableState) -> list[Action]:
        """Return what ends a copy: changes follow it."""
        is_copied = bool(self._copied_since(state))
        return [action.transaction(self.table.committer.since_app_id, 0)] if is_copied else []


class Beginning(PastApplication):
    """A copy that begins in a table which keeps what was before."""

    def __init__(self, table: LakeTable, start: CopyStart, files: Sequence[CopiedFile]) -> None:
        super().__init__(table, start, Lsn(0), start.watermark)
        self._copied_files = files

    def run(self, state: TableState) -> None:
        """Commit, unless somebody else began a copy since this one was prepared."""
        if self._position(state):
            raise self._conflict()
        super().run(state)

    def _copy_actions(self, state: TableState) -> list[Action]:  # noqa: ARG002
        committer = self.table.committer
        numbers = {committer.copy_app_id: 1, committer.since_app_id: int(self.end)}
        added = [action.add_file(self.folder, file) for file in self._copied_files]
        return [*added, *(action.transaction(name, number) for name, number in numbers.items())]


class Emptying(Edit):
    """The start of another copy: what an unfinished one left goes, all else stays."""

    def __init__(self, table: LakeTable, state: TableState) -> None:
        super().__init__(table, f"Preparing the Delta table at {table.log.folder.location}", Lsn(0), Lsn(0))
        self.since = self._position(state)

    def _drafting(self) -> Drafting:
        return self._drafted

    def _is_done(self, state: TableState) -> bool:
        return not self._position(state)

    def _drafted(self, state: TableState) -> Draft:
        committer, draft = self.table.committer, Draft("DELETE")
        since = state.transactions.get(committer.since_app_id, 0)
        if since:
            self._mark(self._losses(state, all_copied([Lsn(since), self._position(state)])), draft)
        draft.actions += [action.transaction(name, 0) for name in (committer.copy_app_id, committer.since_app_id)]
        return draft
