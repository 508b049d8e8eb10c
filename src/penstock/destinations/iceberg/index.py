"""Which files a table has, what keys each can hold, and which of their rows are gone.

Read from the table's manifests once, and kept up to date by our own commits; it counts only for the
snapshot that it was made for, so after anybody else's commit it is read anew.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from penstock.contract.batch import CopiedFile
from penstock.destinations.iceberg import validate
from penstock.destinations.iceberg.client import KnownFile, Rewrite, Version
from penstock.destinations.iceberg.rows import read_deletes
from penstock.destinations.iceberg.schema import bound, field_ids, physical_names
from penstock.lake.key import Bound, KeySet, Numbers, ordered_value
from penstock.lake.layout import Layout
from penstock.lake.locate import Found, LakeFiles
from penstock.lake.search import Search, SearchedFile
from penstock.lake.sought import Sought, key_columns
from penstock.model.table import TableSchema

# Names that Iceberg's own writers use in files as they are; others they replace by something that Avro allows.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# What `content` says of a file.
_DATA, _POSITION_DELETES = 0, 1


@dataclass(frozen=True)
class IdentifiedFiles(LakeFiles):
    """The files of a table whose columns are known by their ids, whatever a file calls them."""

    ids: Mapping[str, int]

    def find(self, path: str, keys: KeySet) -> Found:
        """Return every row of a file that has one of the keys."""
        return self._of(path).find(path, keys)

    def keys(self, path: str, max_bytes: int) -> list[Any] | None:
        """Return the keys of all rows."""
        return self._of(path).keys(path, max_bytes)

    def _of(self, path: str) -> LakeFiles:
        return LakeFiles(self.files, self.named(path, self.key))

    def named(self, path: str, columns: pa.Schema) -> pa.Schema:
        """Return columns under the names that a file has for them."""
        if all(map(_PLAIN.match, columns.names)):
            return columns
        names = physical_names(
            pq.read_schema(self.files.open(path)), [self.ids[name] for name in columns.names], columns.names
        )
        return pa.schema([column.with_name(name) for column, name in zip(columns, names, strict=True)])


@dataclass
class FileIndex:
    """The files of one table at one snapshot."""

    snapshot_id: int | None
    files: IdentifiedFiles
    bounds: dict[str, Mapping[int, Bound]] = field(default_factory=dict)
    """What is known of every file's keys, by their columns' places in `files.key`."""
    rows: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """In bytes."""
    deletes: dict[str, KnownFile] = field(default_factory=dict)
    """The files that say which rows are gone."""
    gone: dict[str, BitMap64] = field(default_factory=dict)
    """Positions, by file, where any row is gone."""

    @classmethod
    def read(cls, version: Version, columns: pa.Schema, place: str) -> FileIndex:
        """Read what a version of the table has; rows can be looked for by these columns."""
        index = cls(version.snapshot_id, IdentifiedFiles(version.filesystem, columns, field_ids(version.schema)))
        listed: Sequence[Any] = [] if version.snapshot_id is None else version.files().to_pylist()
        for file in listed:
            _check_readable(file, place)
            if file["content"] == _DATA:
                index.add(_known(file), index.listed_bounds(file))
        for file in listed:
            if file["content"] == _POSITION_DELETES:
                index.deletes[file["file_path"]] = _known(file)
                for name, places in read_deletes(version.filesystem, index.path(file["file_path"])):
                    index.subtract(name, places)
        return index

    def path(self, name: str) -> str:
        """Return where a file is that the table's metadata names."""
        return self.files.files.path(name)

    def add(self, file: KnownFile | CopiedFile, bounds: Mapping[int, Bound | None]) -> None:
        """Know one more file."""
        path = file.path
        self.rows[path], self.sizes[path] = file.rows, file.size_bytes
        self.bounds[path] = {place: each for place, each in bounds.items() if each is not None}

    def subtract(self, path: str, places: Numbers) -> None:
        """Know rows as gone; a file of deletes may still name files that are no longer there."""
        if path in self.rows:
            self.gone[path] = self.gone.get(path, BitMap64()) | _bitmap(places)

    def clear(self) -> None:
        """Forget every file."""
        for known in (self.rows, self.sizes, self.deletes, self.bounds, self.gone):
            known.clear()

    def known(self, path: str) -> KnownFile:
        """Return a data file."""
        return KnownFile(path, self.sizes[path], self.rows[path])

    def follow(self, rewrite: Rewrite, lost: Numbers, snapshot_id: int) -> None:
        """Know files that have taken the place of others; `lost` are the rows of the new one that are gone."""
        for file in rewrite.replaced:
            del self.rows[file.path], self.sizes[file.path], self.bounds[file.path]
            self.gone.pop(file.path, None)
        for file in rewrite.merged:
            del self.deletes[file.path]
        for added in rewrite.rows:
            self.add(added, self.written_bounds(added))
            if len(lost):
                self.subtract(added.path, lost)
        self.deletes.update((each.path, _as_known(each)) for each in rewrite.deletes)
        self.snapshot_id = snapshot_id

    def listed_bounds(self, file: Mapping[str, Any]) -> dict[int, Bound | None]:
        """Return the key's bounds that a manifest has."""
        low, high = (dict(file[name] or ()) for name in ("lower_bounds", "upper_bounds"))
        ids = [(place, self.files.ids[column.name], column.type) for place, column in enumerate(self.files.key)]
        return {place: bound(low[id_], high[id_], type_) for place, id_, type_ in ids if id_ in low and id_ in high}

    def written_bounds(self, file: CopiedFile) -> dict[int, Bound | None]:
        """Return the key's bounds that a new file has."""
        return {
            place: _ordered(file, column) for place, column in enumerate(self.files.key) if column.name in file.minimums
        }

    @property
    def alive(self) -> int:
        """How many rows there are."""
        return sum(self.rows.values()) - sum(map(len, self.gone.values()))

    def find(self, search: Search, sought: Sought) -> dict[str, Found]:
        """Return the rows that are there and are sought, by their file."""
        keys, bounds = sought.keys, self.bounds
        files: LakeFiles = self.files
        if sought.columns != self.files.key:
            files, bounds = replace(self.files, key=sought.columns), self._bounds_for(sought.columns)
        names = [name for name, each in bounds.items() if keys.may_be_within(each)]
        searched = [SearchedFile(self.path(name), self.rows[name]) for name in names]
        found = zip(names, search.find(files, searched, keys), strict=True) if searched else ()
        present = {name: self._present(name, each) for name, each in found if len(each.places)}
        return {name: each for name, each in present.items() if len(each.places)}

    def _bounds_for(self, columns: pa.Schema) -> dict[str, Mapping[int, Bound]]:
        places = {self.files.key.get_field_index(name): place for place, name in enumerate(columns.names)}
        return {
            name: {places[known]: bound for known, bound in each.items() if known in places}
            for name, each in self.bounds.items()
        }

    def _present(self, name: str, found: Found) -> Found:
        gone = self.gone.get(name)
        if gone is None:
            return found
        lost = np.frombuffer((_bitmap(found.places) & gone).to_array(), np.uint64).astype(np.int64)
        return found.where(~np.isin(found.places, lost, assume_unique=True))


def _bitmap(places: Numbers) -> BitMap64:
    return BitMap64(places.astype(np.uint64))


def _known(listed: Mapping[str, Any]) -> KnownFile:
    return KnownFile(listed["file_path"], listed["file_size_in_bytes"], listed["record_count"])


def _as_known(file: CopiedFile) -> KnownFile:
    return KnownFile(file.path, file.size_bytes, file.rows)


def _check_readable(file: Mapping[str, Any], place: str) -> None:
    if file["content"] not in {_DATA, _POSITION_DELETES} or file["file_format"].lower() != "parquet":
        raise validate.refuse_foreign_files(place)


def _ordered(file: CopiedFile, column: pa.Field[Any]) -> Bound | None:
    low, high = (ordered_value(side.get(column.name), column.type) for side in (file.minimums, file.maximums))
    return None if low is None or high is None else (low, high)


def index_columns(schema: TableSchema, layout: Layout) -> pa.Schema:
    """Return what rows of a table may be looked for by."""
    return pa.schema([*key_columns(schema), *(layout.fields if layout.mode.keeps_past else ())])


class KnownFiles:
    """One table's index, as long as it is true."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.orphans_sought_s = -math.inf
        """When files that no version has were last looked for."""
        self._index: FileIndex | None = None

    def names(self) -> set[str]:
        """Return the paths of all files, as far as they are known."""
        return set() if self._index is None else self._index.rows.keys() | self._index.deletes.keys()

    def at(self, version: Version, columns: pa.Schema) -> FileIndex:
        """Return a version's files, from our own last commit or read anew; rows can be looked for by these columns."""
        index = self._index
        if index is None or index.snapshot_id != version.snapshot_id or index.files.key != columns:
            self._index = FileIndex.read(version, columns, self.place)
        assert self._index is not None
        return self._index

    def forget(self) -> None:
        """Read everything anew next time."""
        self._index = None

    def follow(
        self,
        version: Version,
        snapshot_id: int,
        added: Sequence[CopiedFile],
        gone: Mapping[str, Numbers],
        *,
        deletes: CopiedFile | None,
        is_emptied: bool,
    ) -> None:
        """Follow a commit of ours on a version, if that version's files are known."""
        index = self._index
        if index is None or index.snapshot_id != version.snapshot_id:
            return
        if is_emptied:
            index.clear()
        for file in added:
            index.add(file, index.written_bounds(file))
        for name, places in gone.items():
            index.subtract(name, places)
        if deletes is not None:
            index.deletes[deletes.path] = _as_known(deletes)
        index.snapshot_id = snapshot_id
