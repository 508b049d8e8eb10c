"""Upkeep of an Iceberg table: small and worn files rewritten, deletes put together, old versions forgotten.

A rewriting is one commit on the version that it finds then: rows of the files that it replaces that were deleted
meanwhile are deleted in the new file too. If another writer's commit comes first it is given up, and nothing is lost
but the work. It states the table's position again, as it is.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import RLock

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyroaring import BitMap64

from penstock.contract.batch import CopiedFile
from penstock.contract.upkeep import Upkeep
from penstock.destinations.iceberg import validate
from penstock.destinations.iceberg.apply import LakeTable
from penstock.destinations.iceberg.client import KnownFile, Mark, Rewrite, Version, is_outrun, is_refused
from penstock.destinations.iceberg.index import FileIndex, IdentifiedFiles, index_columns
from penstock.destinations.iceberg.rows import DataFolder, read_deletes
from penstock.destinations.iceberg.schema import arrow_schema, with_ids
from penstock.failpoint import hit
from penstock.lake.key import Numbers
from penstock.lake.rewrite import COMPRESSION, Rewriting, SourceFile, StoppedError, clustering, unhurriedly
from penstock.lake.upkeep import Calm, Rest, Rewrites, StoredFile, UpkeepPolicy, choose_rewrites, growing_run
from penstock.model.table import TableSchema

_ORPHANS_EVERY_S = 3600.0  # to look for them takes jobs of Spark
_FEWER_AT_REST = 6  # times as few superfluous versions: nobody's commit waits for their removal
_NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Seen:
    """A version of a table that may be rewritten."""

    version: Version
    mark: Mark
    index: FileIndex


@dataclass(frozen=True)
class Plan:
    """What is to be rewritten, as it was when that was decided."""

    rewrites: Rewrites
    sources: Mapping[str, SourceFile]
    version: Version
    deletes: frozenset[str]
    """The files of deletes that there were, as far as we knew."""
    files: IdentifiedFiles
    columns: pa.Schema
    folder: DataFolder
    is_resting: bool

    @cached_property
    def dropped(self) -> frozenset[str]:
        """Those that were not there: Iceberg itself drops them once no data is so old that they could be about it."""
        return self.deletes and self.deletes - self.version.delete_files()

    def read(self, name: str, places: Numbers) -> Iterator[pa.Table]:
        """Yield a file's rows at places, a few at a time."""
        path = self.files.files.path(name)
        for table in self.files.values(path, self.files.named(path, self.columns), places):
            yield pa.Table.from_arrays(table.columns, schema=self.columns)


@dataclass
class TableUpkeep:
    """One upkeep of one table."""

    table: LakeTable
    schema: TableSchema
    open: Callable[[], Version | None]
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
            plan = self._plan()
            if plan is not None:
                self._follow(plan)
        except StoppedError:
            pass
        return self.done

    def _follow(self, plan: Plan) -> None:
        for group in plan.rewrites.groups:
            self._rewrite(plan, group)
        if not plan.rewrites.groups:
            self._merge_deletes(plan)
        if not self.is_brief:
            self._forget(plan)

    def _plan(self) -> Plan | None:
        with self.turn:
            seen = self._seen()
            if seen is None:
                return None
            index = seen.index
            gone = {name: index.gone.get(name, BitMap64()) for name in index.rows}
            files = [StoredFile(name, index.sizes[name], rows, len(gone[name])) for name, rows in index.rows.items()]
            self.done = self.done.with_more(files=len(files))
            now_s = self.clock().timestamp()
            calm = self.rest.calm(self.schema.id, seen.mark.lsn, now_s, self.policy)
            return Plan(
                choose_rewrites(files, self.policy.target_file_bytes, calm, is_brief=self.is_brief),
                {name: SourceFile(name, rows, gone[name]) for name, rows in index.rows.items()},
                seen.version,
                frozenset(index.deletes),
                index.files,
                with_ids(arrow_schema(self.schema, self.table.layout), seen.version.schema),
                DataFolder.of(seen.version.location, seen.version.filesystem),
                calm is Calm.REST,
            )

    def _seen(self) -> Seen | None:
        """Return the table's present version, if it is one that we may write to."""
        version = self.open()
        mark = None if version is None else version.mark(self.table.keys)
        if version is None or mark is None or not mark.lsn or version.snapshot_id is None:
            return None
        validate.check_format(version, self.table.known.place)
        validate.check_same_columns(version, self.schema, self.table.layout)
        columns = index_columns(self.schema, self.table.layout)
        return Seen(version, mark, self.table.known.at(version, columns))

    def _rewrite(self, plan: Plan, group: Sequence[StoredFile]) -> None:
        if self.is_stopping():
            raise StoppedError
        order = clustering(self.schema, self.table.layout)
        rewriting = Rewriting([plan.sources[file.name] for file in group], plan.read, order, self.is_stopping)
        files = unhurriedly(lambda: plan.folder.write_rows(rewriting.tables(), plan.columns, COMPRESSION))
        hit("iceberg.upkeep_written")
        _ = plan.dropped  # takes a while, and would make others wait
        with self.turn:
            is_made = self._is_replaced(plan, rewriting, files)
        if is_made:
            self.done = self.done.with_rewriting(
                [file.size_bytes for file in group], [file.size_bytes for file in files]
            )

    def _is_replaced(self, plan: Plan, rewriting: Rewriting, files: Sequence[CopiedFile]) -> bool:
        """Put a new file into the place of its sources, unless they are not there to be replaced."""
        seen = self._seen()
        rows = {} if seen is None else seen.index.rows
        present = [source.path for source in rewriting.sources if source.path in rows]
        lost: Numbers | None = None
        if seen is not None and present:
            lost = rewriting.lost({name: seen.index.gone.get(name, BitMap64()) for name in present})
        if seen is None or lost is None:
            plan.folder.remove(files)
            return False
        replaced = [seen.index.known(name) for name in present]
        return self._is_committed(plan, seen, replaced, files, lost)

    def _merge_deletes(self, plan: Plan) -> None:
        """Put files of deletes together, where there are many and nothing else is to be done."""
        if len(plan.deletes) == len(plan.dropped):
            return
        with self.turn:
            seen = self._seen()
            if seen is not None and self._merged(plan, seen.index, [], loses_rows=False):
                self._is_committed(plan, seen, [], [], _NO_ROWS)

    def _is_committed(
        self, plan: Plan, seen: Seen, replaced: Sequence[KnownFile], files: Sequence[CopiedFile], lost: Numbers
    ) -> bool:
        merged = self._merged(plan, seen.index, replaced, loses_rows=bool(len(lost)))
        gone = _positions(seen.index, merged, {file.path for file in replaced})
        gone.update((file.path, lost) for file in files if len(lost))
        deletes = [plan.folder.write_deletes(gone)] if gone else []
        rewrite = Rewrite(replaced, files, merged, deletes)
        try:
            snapshot_id = seen.version.rewrite(self.table.keys, seen.mark, rewrite)
        except Py4JJavaError as error:
            if is_outrun(error) or is_refused(error):
                plan.folder.remove([*files, *deletes])
                self.table.known.forget()
            if is_outrun(error):
                return False
            raise
        seen.index.follow(rewrite, lost, snapshot_id)
        return True

    def _merged(
        self, plan: Plan, index: FileIndex, replaced: Sequence[KnownFile], *, loses_rows: bool
    ) -> list[KnownFile]:
        """Return the files of deletes that another takes the place of.

        All of them once a large file goes, since most of what they name may be its rows, or any file of a table that
        is put in order. Else those that are many and small; and where rows have to be deleted in the new file, those
        that did so in its sources.
        """
        for name in plan.dropped:
            index.deletes.pop(name, None)
        if any(plan.rewrites.in_order or file.size_bytes > self.policy.target_file_bytes // 2 for file in replaced):
            return list(index.deletes.values())
        chosen = _many(index.deletes.values())
        if loses_rows:
            chosen |= index.deletes.keys() - plan.deletes
        return [file for name, file in index.deletes.items() if name in chosen]

    def _forget(self, plan: Plan) -> None:
        """Forget versions that are out of retention, with their files, and what nobody ever committed."""
        with self.turn:
            version = self.open()
            known = self.table.known.names()
        if version is None:
            return
        now_s = self.clock().timestamp()
        self.done = self.done.with_more(expired_versions=version.expire(int((now_s - self.policy.keep_s) * 1000)))
        if self.policy.forgets_early(self.table.layout.mode):
            most = self.policy.most_superfluous // (_FEWER_AT_REST if plan.is_resting else 1)
            older_than_ms = int((now_s - self.policy.all_versions_s) * 1000)
            thinned = version.thin_out(older_than_ms, self.policy.most_young, most)
            self.done = self.done.with_more(expired_versions=thinned)
        orphan_s = now_s - max(self.policy.orphan_s, self.policy.keep_s)
        is_due = now_s - self.table.known.orphans_sought_s >= _ORPHANS_EVERY_S
        if is_due and plan.folder.has_strangers(known, orphan_s):
            self.table.known.orphans_sought_s = now_s
            self.done = self.done.with_more(removed_files=version.remove_orphans(int(orphan_s * 1000)))


def _many(deletes: Iterable[KnownFile]) -> set[str]:
    """Return the files of deletes that are so many and so small that one should take their place."""
    return {file.name for file in growing_run(StoredFile(each.path, each.size_bytes, 1, 0) for each in deletes)}


def _positions(index: FileIndex, merged: Sequence[KnownFile], replaced: Collection[str]) -> dict[str, Numbers]:
    """Return what files of deletes say of data files that stay; without a look at them if they are all there are."""
    found: dict[str, BitMap64] = {}
    if len(merged) == len(index.deletes):
        found = dict(index.gone)
    else:
        for file in merged:
            for name, places in read_deletes(index.files.files, index.path(file.path)):
                found[name] = found.get(name, BitMap64()) | BitMap64(places.astype(np.uint64))
    stays = index.rows.keys() - replaced
    return {
        name: np.frombuffer(places.to_array(), np.uint64).astype(np.int64)
        for name, places in found.items()
        if name in stays and places
    }
