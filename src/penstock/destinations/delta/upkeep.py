"""Upkeep of a Delta table: small and worn files rewritten, the folder rid of what is out of retention.

A rewriting is one entry in the table's log, on the state that it finds then: the files that it replaces must still be
there, and rows of theirs that were deleted meanwhile are deleted in the new file too. If another writer's entry comes
first it is given up, and nothing is lost but the work. It states the table's position again, as it is.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import RLock

import pyarrow as pa

from penstock.contract.batch import CopiedFile
from penstock.contract.upkeep import Upkeep
from penstock.destinations.delta import action, validate, vector
from penstock.destinations.delta.apply import Draft, Edit, LakeTable, write_vectors
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.log import Member, TableState, stored_names
from penstock.destinations.delta.rows import write_rows
from penstock.destinations.delta.schema import arrow_schema
from penstock.failpoint import hit
from penstock.lake.key import Numbers
from penstock.lake.locate import LakeFiles
from penstock.lake.rewrite import COMPRESSION, Rewriting, SourceFile, StoppedError, clustering, unhurriedly
from penstock.lake.upkeep import Rest, StoredFile, UpkeepPolicy, choose_rewrites
from penstock.model.lsn import Lsn
from penstock.model.table import TableSchema

_LOG = "_delta_log"
# As often as Spark itself writes one; batches do so every hundredth time, and need not wait for it any more.
_CHECKPOINT_ENTRIES = 10
# In a brief upkeep rather from so many on: each is as large as what was removed within the retention, and kept as long.
_BRIEF_CHECKPOINT_ENTRIES = 25
_DATA_SUFFIXES = (".parquet", ".bin")


class Upholding(Edit):
    """A commit that leaves a table's rows and position as they are, on one state of it or not at all."""

    def __init__(self, table: LakeTable, state: TableState) -> None:
        super().__init__(table, f"Upkeep of the Delta table at {table.log.folder.location}", Lsn(0), Lsn(0))
        self.since = self.end = self._position(state)

    def is_made(self, state: TableState, draft: Draft) -> bool:
        """Make the commit; False, and what was written for it removed, if another one was made since."""
        return self._is_committed(state, draft)


@dataclass
class TableUpkeep:
    """One upkeep of one table."""

    table: LakeTable
    schema: TableSchema
    policy: UpkeepPolicy
    rest: Rest
    turn: RLock
    clock: Callable[[], dt.datetime]
    is_stopping: Callable[[], bool]
    is_brief: bool
    done: Upkeep = field(default_factory=Upkeep)

    def run(self) -> Upkeep:
        """Do what is due."""
        try:
            groups = self._planned()
            if groups is not None:
                self._follow(groups)
        except StoppedError:
            pass
        return self.done

    def _follow(self, groups: Iterable[Sequence[Member]]) -> None:
        for group in groups:
            self._rewrite(group)
        self._checkpoint(_BRIEF_CHECKPOINT_ENTRIES if self.is_brief else _CHECKPOINT_ENTRIES)
        if not self.is_brief:
            self._clean()

    def _planned(self) -> list[list[Member]] | None:
        with self.turn:
            state = self._state()
            if state is None:
                return None
            self._set_retention(state)
            position, now_s = Upholding(self.table, state).end, self.clock().timestamp()
            calm = self.rest.calm(self.schema.id, position, now_s, self.policy)
            members = {member.add["path"]: member for member in state.members.values()}
        self.done = self.done.with_more(files=len(members))
        described = (_described(member) for member in members.values())
        known = [each for each in described if each is not None]
        chosen = choose_rewrites(known, self.policy.target_file_bytes, calm, is_brief=self.is_brief)
        return [[members[file.name] for file in group] for group in chosen.groups]

    def _state(self) -> TableState | None:
        """Return the table's present state, if it is one that we may write to."""
        state = self.table.log.refresh()
        if state is None or not state.transactions.get(self.table.committer.app_id):
            return None
        validate.check_state(state, self.schema, self.table.layout, self._folder.location)
        return state

    def _set_retention(self, state: TableState) -> None:
        """Let the table itself say for how long it keeps what it was: others clean up by that, and checkpoints too."""
        policy = self.policy
        # Spark lists the whole log with every query.
        log_s = min(policy.all_versions_s, policy.keep_s) if policy.forgets_early(state.mode) else policy.keep_s
        retentions = {"delta.deletedFileRetentionDuration": policy.keep_s, "delta.logRetentionDuration": log_s}
        wanted = {name: f"interval {int(seconds)} seconds" for name, seconds in retentions.items()}
        if any(state.settings.get(name) != value for name, value in wanted.items()):
            metadata = {**state.metadata, "configuration": {**state.settings, **wanted}}
            Upholding(self.table, state).is_made(state, Draft("SET TBLPROPERTIES", [{"metaData": metadata}]))

    def _rewrite(self, members: Sequence[Member]) -> None:
        if self.is_stopping():
            raise StoppedError
        rewriting = Rewriting(self._sources(members), self._read, self._order, self.is_stopping)
        files = unhurriedly(lambda: self._written(rewriting))
        hit("delta.upkeep_written")
        with self.turn:
            is_made = self._is_committed(rewriting, files)
        if is_made:
            self.done = self.done.with_rewriting(
                [member.add["size"] for member in members], [file.size_bytes for file in files]
            )

    def _written(self, rewriting: Rewriting) -> list[CopiedFile]:
        return write_rows(self._folder, rewriting.tables(), self._target, COMPRESSION, is_grouped=True)

    def _sources(self, members: Sequence[Member]) -> list[SourceFile]:
        return [
            SourceFile(member.add["path"], member.rows or 0, self.table.log.deleted_rows(member)) for member in members
        ]

    def _read(self, path: str, places: Numbers) -> Iterator[pa.Table]:
        return self._files.values(self._folder.path(path), self._target, places)

    def _is_committed(self, rewriting: Rewriting, files: Sequence[CopiedFile]) -> bool:
        state = self._state()
        draft = None if state is None else self._draft(state, rewriting, files)
        if state is not None and draft is not None:
            return Upholding(self.table, state).is_made(state, draft)
        for file in files:
            self._folder.files.remove(file.path)
        return False

    def _draft(self, state: TableState, rewriting: Rewriting, files: Sequence[CopiedFile]) -> Draft | None:
        """Return what puts the new file into the place of its sources; None if they are not there to be replaced."""
        wanted = {source.path for source in rewriting.sources}
        members = {member.add["path"]: member for member in state.members.values() if member.add["path"] in wanted}
        lost = rewriting.lost({path: self.table.log.deleted_rows(member) for path, member in members.items()})
        if lost is None:
            return None
        draft = Draft("OPTIMIZE", [action.remove(member, is_change=False) for member in members.values()])
        for file in files:
            self._add(draft, file, lost)
        return draft

    def _add(self, draft: Draft, file: CopiedFile, lost: Numbers) -> None:
        draft.files.append(file.path)
        added = action.add_file(self._folder, file, is_change=False)
        if len(lost):
            writer = vector.VectorWriter(uuid.uuid4())
            member, rows = Member(added["add"]), writer.add(vector.bitmap(lost))
            added = action.with_vector(member, rows, file.rows, is_change=False)
            write_vectors(self._folder, writer, draft)
        draft.actions.append(added)

    def _checkpoint(self, entries: int) -> None:
        """Spare readers most entries of the log: they read them one by one, behind the newest checkpoint."""
        with self.turn:
            version = self.table.log.known_version
        if self.table.log.is_checkpoint_due(version, entries):
            self.table.committer.checkpoint()

    def _clean(self) -> None:
        """Remove files that no version within the retention needs, and what nobody ever committed."""
        now = self.clock()
        with self.turn:
            state = self._state()
            if state is None:
                return
            used = {self._path(name) for member in state.members.values() for name in stored_names(member.add)}
            ages = self._folder.ages("", now)
            removed = self._removals(state, ages)
        due = [name for name, age_s in ages.items() if self._is_due(name, age_s, used, removed)]
        logged = self._folder.ages(_LOG, now)
        due += [f"{_LOG}/{name}" for name, age_s in logged.items() if name.endswith(".tmp") and self._is_orphan(age_s)]
        for name in due:
            self._folder.remove(name)
        self.done = self.done.with_more(removed_files=len(due))

    def _removals(self, state: TableState, present: Iterable[str]) -> dict[str, int]:
        """Return when files were taken out of the table that are still in its folder; the others are forgotten."""
        paths = {f"{self._folder.base}/{name}" for name in present}
        state.removed = {name: at_ms for name, at_ms in state.removed.items() if self._path(name) in paths}
        return {self._path(name): at_ms for name, at_ms in state.removed.items()}

    def _is_due(self, name: str, age_s: float, used: set[str], removed: Mapping[str, int]) -> bool:
        path = f"{self._folder.base}/{name}"
        if path in used or name.startswith(("_", ".")) or not name.endswith(_DATA_SUFFIXES):
            return False
        if path in removed:
            return self.clock().timestamp() - removed[path] / 1000 >= self.policy.keep_s
        return self._is_orphan(age_s)

    def _is_orphan(self, age_s: float) -> bool:
        return age_s >= max(self.policy.orphan_s, self.policy.keep_s)

    def _path(self, name: str) -> str:
        return self._folder.path(name)

    @property
    def _folder(self) -> TableFolder:
        return self.table.log.folder

    @cached_property
    def _target(self) -> pa.Schema:
        return arrow_schema(self.schema, self.table.layout)

    @cached_property
    def _order(self) -> list[str]:
        return clustering(self.schema, self.table.layout)

    @cached_property
    def _files(self) -> LakeFiles:
        return LakeFiles(self._folder.files, pa.schema([]))


def _described(member: Member) -> StoredFile | None:
    """Return what is known of a file; None without its number of rows, which other writers may leave out."""
    rows = member.rows
    gone = member.vector["cardinality"] if member.vector else 0
    return None if rows is None else StoredFile(member.add["path"], member.add["size"], rows, gone)
