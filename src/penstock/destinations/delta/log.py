"""A Delta table's log, read as far as it has grown since the last look, and written one entry at a time.

The state is what the protocol's replay of actions gives: from a checkpoint on, entry after entry. An entry is
made by `put_if_absent` of the version that follows the state it was computed from, so that it lands on exactly
that state or not at all. The Delta library commits no deletion vectors; that is why this is here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Field, Schema
from pyroaring import BitMap64

from penstock.destinations.delta import vector
from penstock.destinations.delta.folder import TableFolder
from penstock.destinations.delta.schema import bounds_of
from penstock.errors import DestinationError
from penstock.lake.key import Bound
from penstock.lake.layout import found_mode
from penstock.model.mode import TableMode

Action: TypeAlias = dict[str, Any]

_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet\Z")
# Readers start from a checkpoint and go on entry by entry. Ten times Spark's interval, as the Delta library has it:
# a checkpoint is as long as the table has files.
_CHECKPOINT_INTERVAL = 100
_REPLAYED = ("add", "remove", "txn", "metaData", "protocol")


@dataclass(frozen=True)
class Member:
    """A data file of the table's present state."""

    add: Action
    """The action that made it a member, as it stands in the log."""

    @property
    def identity(self) -> tuple[str, str | None]:
        """What a `remove` names: the file with its deletion vector."""
        return _identity(self.add)

    @property
    def vector(self) -> Mapping[str, Any] | None:
        """Which of its rows are gone."""
        found: Mapping[str, Any] | None = self.add.get("deletionVector")
        return found

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """What the log knows of its rows; fractions as decimals, so that they can be written again as they were."""
        text = self.add.get("stats")
        found: dict[str, Any] = json.loads(text, parse_float=Decimal) if text else {}
        return found

    @property
    def rows(self) -> int | None:
        """How many rows the file has, deleted ones included, if the log knows."""
        return self.statistics.get("numRecords")

    @cached_property
    def _bounds(self) -> dict[pa.Schema, Mapping[int, Bound]]:
        return {}

    def bounds(self, key: pa.Schema) -> Mapping[int, Bound]:
        """Return the bounds of a key's columns, where the log has them; computed once."""
        known = self._bounds.get(key)
        if known is None:
            known = self._bounds[key] = bounds_of(self.statistics, key)
        return known


def _identity(action: Action) -> tuple[str, str | None]:
    return action["path"], vector.unique_id(action.get("deletionVector"))


def stored_names(action: Action) -> list[str]:
    """Return the files that an action is about, as the log names them: the data's, and its deletion vector's."""
    found = action.get("deletionVector")
    return (
        [action["path"]]
        if found is None or found["storageType"] == "i"
        else [action["path"], vector.stored_path(found)]
    )


@dataclass
class TableState:
    """What the table is at a version."""

    version: int
    members: dict[tuple[str, str | None], Member] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    """When files were taken out of the table, in milliseconds, by name; their former readers may still need them."""
    metadata: Action = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)

    @property
    def checkpoint_interval(self) -> int:
        """After how many entries a checkpoint is due."""
        return int(self.settings.get("delta.checkpointInterval", _CHECKPOINT_INTERVAL))

    @property
    def columns(self) -> Sequence[Field]:
        """The table's columns."""
        return Schema.from_json(self.metadata["schemaString"]).fields

    @property
    def mode(self) -> TableMode:
        """What the table was made to keep."""
        return found_mode([column.name for column in self.columns])

    @property
    def settings(self) -> Mapping[str, str]:
        """The table's properties."""
        found: Mapping[str, str] = self.metadata.get("configuration", {})
        return found

    def replay(self, actions: Iterable[Action]) -> None:
        """Go on to what one entry makes of it. Its removals come first: their order within an entry means nothing."""
        added: list[Member] = []
        for action in actions:
            match action:
                case {"add": found}:
                    added.append(Member(found))
                case {"remove": found}:
                    self.members.pop(_identity(found), None)
                    self._note_removal(found)
                case {"txn": found}:
                    self.transactions[found["appId"]] = found["version"]
                case {"metaData": found}:
                    self.metadata = found
                case {"protocol": found}:
                    self.protocol = found
        self.members.update((member.identity, member) for member in added)

    def _note_removal(self, removal: Action) -> None:
        """Remember the last of a file's removals, one for each deletion vector: a checkpoint has them in any order."""
        removed_ms = removal.get("deletionTimestamp") or 0
        for name in stored_names(removal):
            self.removed[name] = max(removed_ms, self.removed.get(name, 0))


class TableLog:
    """One table's log. Calls must not overlap."""

    def __init__(self, folder: TableFolder) -> None:
        self.folder = folder
        self._state: TableState | None = None
        self._identity: tuple[Any, ...] | None = None
        self._checkpointed_version = -1

    @property
    def known_version(self) -> int:
        """The table's version at the last look; -1 if there was none."""
        return -1 if self._state is None else self._state.version

    def refresh(self) -> TableState | None:
        """Return the table's present state, reading what was committed since; None if there is no table."""
        # Forgotten until the end: what fails half way is read anew.
        state, self._state = self._state, None
        # If the last entry read is another one by now, the table is another one too.
        known = self._identity
        if state is None or known is None or self.folder.identity(_entry(state.version)) != known:
            state, known = self._load(), None
        if state is not None:
            for actions in self._entries(state.version + 1):
                self._advance(state, actions)
                known = None
            self._identity = known or self.folder.identity(_entry(state.version))
        self._state = state
        return state

    def commit(self, state: TableState, actions: Sequence[Action]) -> bool:
        """Make the actions the entry that follows a state; False, and nothing done, if another one does."""
        content = "".join(f"{json.dumps(action, separators=(',', ':'))}\n" for action in actions)
        if not self.folder.put_if_absent(_entry(state.version + 1), content.encode()):
            return False
        self._advance(state, actions)
        self._identity = self.folder.identity(_entry(state.version))
        return True

    def is_checkpoint_due(self, version: int, entries: int) -> bool:
        """Whether so many entries follow the newest checkpoint; the folder is listed only where that can be."""
        if version - self._checkpointed_version >= entries:
            self._checkpointed_version = self.checkpointed_version()
        return version - self._checkpointed_version >= entries

    def checkpointed_version(self) -> int:
        """Return the version that the newest checkpoint is of; -1 if there is none."""
        return _newest_checkpoint(self.folder.names(_LOG))[0]

    def deleted_rows(self, member: Member) -> BitMap64:
        """Return which rows of a file are gone."""
        found = member.vector
        if found is None:
            return BitMap64()
        try:
            return vector.read_inline(found) if found["storageType"] == "i" else self._stored(found)
        except ValueError as error:
            raise DestinationError(
                f"The deletion vector of {member.add['path']} in the Delta table at {self.folder.location} cannot be"
                f" read: {error}.",
                remedy="Restore the table's files, or resync the table.",
            ) from error

    def _stored(self, found: Mapping[str, Any]) -> BitMap64:
        path = self.folder.path(vector.stored_path(found))
        # The vector's length stands before it, its checksum behind.
        content = self.folder.files.read(path, found.get("offset") or 0, found["sizeInBytes"] + 8)
        if content is None:
            raise ValueError("its file is missing")
        return vector.read_stored(found, content)

    @staticmethod
    def _advance(state: TableState, actions: Iterable[Action]) -> None:
        state.replay(actions)
        state.version += 1

    def _load(self) -> TableState | None:
        self._checkpointed_version = -1
        names = self.folder.names(_LOG)
        versions = [int(match[1]) for name in names if (match := _COMMIT.match(name))]
        checkpoint, parts = _newest_checkpoint(names)
        if not versions and not parts:
            return None
        first = min((version for version in versions if version > checkpoint), default=checkpoint + 1)
        if first != checkpoint + 1:
            raise DestinationError(
                f"The log of the Delta table at {self.folder.location} lacks its entries before version {first}.",
                remedy="Restore the files of its _delta_log folder, or resync the table.",
            )
        state = TableState(checkpoint)
        for part in parts:
            state.replay(self._checkpointed(part))
        return state

    def _checkpointed(self, name: str) -> Iterator[Action]:
        with pq.ParquetFile(self.folder.files.open(self.folder.path(f"{_LOG}/{name}"))) as file:
            for batch in file.iter_batches(columns=list(_replayed_columns(file.schema_arrow))):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    yield {name: _without_nulls(value) for name, value in row.items() if value is not None}

    def _entries(self, version: int) -> Iterator[list[Action]]:
        """Yield what each entry from a version on says."""
        while (content := self.folder.read(_entry(version))) is not None:
            try:
                yield [json.loads(line) for line in content.splitlines() if line]
            except ValueError as error:
                raise DestinationError(
                    f"Entry {version} in the log of the Delta table at {self.folder.location} cannot be read.",
                    remedy="Restore that file of its _delta_log folder, or resync the table.",
                ) from error
            version += 1


def _entry(version: int) -> str:
    return f"{_LOG}/{version:020d}.json"


def _newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """Return the version and the files of the newest checkpoint that is complete; -1 if there is none."""
    found: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if match := _CHECKPOINT.match(name):
            found.setdefault((int(match[1]), int(match[3] or 1)), []).append(name)
    complete = [(version, files) for (version, parts), files in found.items() if len(files) == parts]
    return max(complete, key=lambda each: each[0], default=(-1, []))


def _replayed_columns(schema: pa.Schema) -> Iterator[str]:
    """Yield the parts of a checkpoint that an entry would have; Spark adds parsed forms of some for its own use."""
    for column in schema:
        if column.name in _REPLAYED:
            yield from (f"{column.name}.{part.name}" for part in column.type if not part.name.endswith("_parsed"))


def _without_nulls(value: Any) -> Any:
    """Return a checkpoint's value as an entry would have it: nothing where it has NULL."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return value
