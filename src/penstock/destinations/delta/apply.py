"""One table's changes on their way into one commit, without a Spark job: rows are marked as gone where they stand.

What the batch comes to is computed from the changes alone; where the rows are that it replaces, from one state of
the table. The commit lands on that very state or not at all: if another writer was faster, the rows are looked for
again, in the state that it made, unless that already has our position.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from penstock.contract import columns as logged
from penstock.contract.batch import CopiedFile, TableChanges
from penstock.destinations.delta import action, validate, vector
from penstock.destinations.delta.checksum import write_checksum
from penstock.destinations.delta.commit import Committer
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import Action, Member, TableLog, TableState
from penstock.destinations.delta.rows import write_rows
from penstock.destinations.delta.schema import arrow_schema
from penstock.errors import DestinationError, ErrorKind
from penstock.failpoint import hit
from penstock.lake.completion import Completion
from penstock.lake.fold import Folded, changes_behind, fold
from penstock.lake.key import Numbers
from penstock.lake.layout import Layout
from penstock.lake.locate import Found, LakeFiles
from penstock.lake.rows import lake_rows
from penstock.lake.search import Search, SearchedFile
from penstock.lake.sought import Sought
from penstock.lake.validate import refuse_keyless, refuse_missing_row
from penstock.model.lsn import Lsn, Position
from penstock.wire.arrow import compute

# Each lost race means that somebody else made progress; a table that is written so often is not ours alone.
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table's place in the lake, and what is needed to change it."""

    log: TableLog
    committer: Committer
    search: Search
    layout: Layout


@dataclass
class Draft:
    """What a commit will do to a state of the table."""

    operation: str
    actions: list[Action] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """Paths of new files that only this draft refers to."""
    is_append: bool = False


def write_vectors(folder: TableFolder, writer: vector.VectorWriter, draft: Draft) -> None:
    """Write the deletion vectors that are too large for the log, as one file of the draft's."""
    if writer.file is not None:
        name, content = writer.file
        with folder.new_file(name) as new:
            new.file.write(content)
        draft.files.append(folder.path(name))


@dataclass(frozen=True, slots=True)
class Loss:
    """Rows that a file of the table loses."""

    member: Member
    gone: BitMap64
    """All of its rows that are gone then."""
    found: Found
    """Those that go now."""


Drafting: TypeAlias = Callable[[TableState], Draft]
"""What gives the commit for a state; called again for another state if the first one was outrun."""


class Edit:
    """A commit to a table that is at a position, in the making."""

    def __init__(self, table: LakeTable, what: str, since: Lsn, end: Lsn) -> None:
        self.table = table
        self.what = what
        self.folder = table.log.folder
        self.since = since
        self.end = end

    def _drafting(self) -> Drafting:
        raise NotImplementedError

    def _check(self, state: TableState) -> None:
        """Refuse a state that cannot be committed to."""

    def run(self, state: TableState) -> None:
        """Commit, on this state of the table or on one that others make of it meanwhile."""
        drafting = self._drafting()
        for _ in range(_ATTEMPTS):
            if self._is_committed(state, drafting(state)):
                return
            state = self._outrun()
            if self._is_done(state):
                return
        raise self._conflict()

    def _is_committed(self, state: TableState, draft: Draft) -> bool:
        committer, version = self.table.committer, state.version
        info = action.commit_info(committer, self.end, version, draft.operation, is_append=draft.is_append)
        hit("delta.commit")
        if not self.table.log.commit(state, [info, action.transaction(committer.app_id, self.end), *draft.actions]):
            for path in draft.files:
                self.folder.files.remove(path)
            return False
        hit("delta.committed")
        write_checksum(self.folder, state)
        if state.version % state.checkpoint_interval == 0:
            committer.checkpoint()
        return True

    def _outrun(self) -> TableState:
        """Return the state that another writer made; it must still be the same table, at the position we read."""
        state = self.table.log.refresh()
        if state is None:
            raise self._conflict()
        self._check(state)
        position = self._position(state)
        if position != self.since and position < self.end:
            raise self._conflict()
        return state

    def _is_done(self, state: TableState) -> bool:
        return self._position(state) >= self.end

    def _position(self, state: TableState) -> Lsn:
        return Lsn(state.transactions.get(self.table.committer.app_id, 0))

    def _losses(self, state: TableState, sought: Sought) -> list[Loss]:
        keys, columns = sought.keys, sought.columns
        members = [each for each in state.members.values() if keys.may_be_within(each.bounds(columns))]
        # No row takes less than a byte: a file of unknown length counts as a long one.
        searched = [SearchedFile(self._path(each), each.rows or each.add["size"]) for each in members]
        found = self.table.search.find(LakeFiles(self.folder.files, columns), searched, keys)
        losses = (self._loss(member, each) for member, each in zip(members, found, strict=True) if len(each.places))
        return [loss for loss in losses if len(loss.found.places)]

    def _loss(self, member: Member, found: Found) -> Loss:
        gone = self.table.log.deleted_rows(member)
        fresh = vector.bitmap(found.places) - gone
        is_fresh = np.isin(found.places, vector.positions(fresh), assume_unique=True)
        return Loss(member, gone | fresh, found.where(is_fresh))

    def _mark(self, losses: Sequence[Loss], draft: Draft) -> None:
        """Give every file that loses rows another deletion vector; one that loses its last row goes as a whole."""
        writer, files = vector.VectorWriter(uuid.uuid4()), LakeFiles(self.folder.files, pa.schema([]))
        for loss in losses:
            draft.actions.append(action.remove(loss.member))
            rows = loss.member.rows or files.rows(self._path(loss.member))
            if len(loss.gone) < rows:
                draft.actions.append(action.with_vector(loss.member, writer.add(loss.gone), rows))
        write_vectors(self.folder, writer, draft)

    def _path(self, member: Member) -> str:
        return self.folder.path(member.add["path"])

    def _conflict(self) -> DestinationError:
        return DestinationError(
            f"{self.what} lost to other writers' commits.",
            kind=ErrorKind.DESTINATION_CONFLICT,
        )


class Application(Edit):
    """One table's changes on their way into one commit."""

    def __init__(self, table: LakeTable, changes: TableChanges, since: Lsn, end: Lsn) -> None:
        what = f"Applying changes of {changes.schema.name} to the Delta table at {table.log.folder.location}"
        super().__init__(table, what, since, end)
        self.changes = changes
        self.schema = changes.schema
        self.target = arrow_schema(changes.schema, table.layout)
        truncates = [event.position for event in changes.truncates if event.position.commit_lsn >= since]
        self.truncated: Position | None = max(truncates, default=None)

    def _check(self, state: TableState) -> None:
        validate.check_state(state, self.schema, self.table.layout, self.folder.location)

    def _drafting(self) -> Drafting:
        """Choose the cheapest way that is right."""
        changes = self.changes
        if not changes.inserts and not changes.updates and not changes.deletes:
            return lambda state: self._drafted(state, [])
        if not self.schema.key or not (changes.updates or changes.deletes):
            return self._inserting()
        fresh = changes_behind(changes.arrow(), self.since, self.truncated)
        if not fresh:
            return lambda state: self._drafted(state, [])
        folded = fold(fresh, self.schema)
        return self._replacing(folded) if self.truncated else lambda state: self._rewritten(state, folded)

    def _drafted(self, state: TableState, files: Sequence[CopiedFile]) -> Draft:
        """Return a commit that adds files, to none if the table was truncated."""
        removed = [] if self.truncated is None else [action.remove(member) for member in state.members.values()]
        added = [action.add_file(self.folder, file) for file in files]
        return Draft("WRITE", removed + added, is_append=self.truncated is None)

    def _inserting(self) -> Drafting:
        """Write new rows without looking at the target: none of them can be there."""
        files = write_rows(self.folder, self._inserted(), self.target)
        hit("delta.files_written")
        return lambda state: self._drafted(state, files)

    def _inserted(self) -> Iterator[pa.Table]:
        for batch in self.changes.arrow():
            for fresh in changes_behind([batch], self.since, self.truncated):
                if compute.any(compute.not_equal(fresh.column(logged.OP), "I")).as_py():
                    raise refuse_keyless(self.schema)
                yield self._lake_rows(pa.Table.from_batches([fresh]))

    def _replacing(self, folded: Folded) -> Drafting:
        """Put the folded rows in place of all there are."""
        if folded.kept:
            raise refuse_missing_row(self.schema, f"the Delta table at {self.folder.location}")
        files = write_rows(self.folder, [self._lake_rows(folded.rows)], self.target)
        hit("delta.files_written")
        return lambda state: self._drafted(state, files)

    def _rewritten(self, state: TableState, folded: Folded) -> Draft:
        """Mark the rows that the folded changes replace as gone, and add the new ones."""
        losses = self._losses(state, Sought(self._key, folded.keys))
        draft = Draft("MERGE")
        completion = Completion(folded)
        if folded.rows.num_rows:
            files = write_rows(self.folder, self._completed(completion, losses), self.target)
            draft.actions += [action.add_file(self.folder, file) for file in files]
            draft.files += [file.path for file in files]
        self._mark(losses, draft)
        hit("delta.files_written")
        return draft

    def _completed(self, completion: Completion, losses: Sequence[Loss]) -> Iterator[pa.Table]:
        yield self._lake_rows(completion.whole())
        if not completion.missing:
            return
        for loss in losses:
            values = partial(self._kept_values, completion.columns, loss.member)
            yield from map(self._lake_rows, completion.completed(loss.found, values))
        if completion.missing:
            raise refuse_missing_row(self.schema, f"the Delta table at {self.folder.location}")

    def _kept_values(self, names: Sequence[str], member: Member, places: Numbers) -> Iterator[pa.Table]:
        columns = [column.name for column in self.schema.columns if logged.stored_name(column.name) in names]
        schema = pa.schema([self.target.field(name) for name in columns])
        for table in self._files.values(self._path(member), schema, places):
            yield table.rename_columns([logged.stored_name(name) for name in columns])

    def _lake_rows(self, changes: pa.Table) -> pa.Table:
        return lake_rows(changes, self.schema, self.target, cdc_columns=self.table.layout.cdc_columns)

    @cached_property
    def _key(self) -> pa.Schema:
        return pa.schema([self.target.field(column.name) for column in self.schema.key])

    @cached_property
    def _files(self) -> LakeFiles:
        return LakeFiles(self.folder.files, self._key)
