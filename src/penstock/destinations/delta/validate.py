"""What a Delta table cannot hold, refused before anything is written, and what the lake's folder must allow."""

from __future__ import annotations

from deltalake import DeltaTable

from penstock.contract.files import Files
from penstock.destinations.delta.log import TableState
from penstock.destinations.delta.schema import delta_fields
from penstock.errors import DestinationError, ErrorKind
from penstock.lake.layout import Layout
from penstock.lake.validate import check_mode, other_columns, unsupported
from penstock.model.table import TableSchema
from penstock.storage.place import check_writable

# What a table may have without asking anything of a writer that sets every column of every row itself.
_KNOWN_FEATURES = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "invariants",
        "timestampNtz",
        "typeWidening",
        "vacuumProtocolCheck",
        "variantType",
    }
)
# Of those, what must not be in use.
_NEEDED_SETTINGS = {
    "delta.appendOnly": "false",
    "delta.columnMapping.mode": "none",
    "delta.enableChangeDataFeed": "false",
    "delta.enableDeletionVectors": "true",
}
_DEFAULTS = {"delta.enableDeletionVectors": "false"}


def check_lake(path: str, files: Files) -> None:
    """Write a file into the lake's folder, or say why that is not possible, or not safe."""
    try:
        is_safe = check_writable(files, files.path(path))
    except OSError as error:
        raise DestinationError(
            f"The lake's folder {path} cannot be written: {error.strerror or type(error).__name__}.",
            kind=ErrorKind.DESTINATION_PERMISSION_DENIED,
            remedy=f"Give this process's user write access to {path}, or set destination.delta.path to another folder.",
        ) from error
    if not is_safe:
        raise unsupported(
            f"At {path} one writer can overwrite what another has just written: no commit would be safe there.",
            "Use a store that honours If-None-Match: * in a PUT, as S3 does, or a file system with hard links.",
        )


def is_owned(table: DeltaTable, description: str) -> bool:
    """Whether this pipeline made a table."""
    return bool(table.metadata().description == description)


def check_owner(table: DeltaTable, description: str, location: str) -> None:
    """Refuse to replace a table that this pipeline did not make."""
    if not is_owned(table, description):
        raise unsupported(
            f"There is a Delta table at {location} that this pipeline did not make; it is left as it is.",
            "Set destination.delta.path to another folder, or move that table away.",
        )


def check_state(state: TableState, schema: TableSchema, layout: Layout, location: str) -> None:
    """Refuse changes that the table, as it is now, cannot take from us."""
    _check_protocol(state, location)
    differing = differing_columns(state, schema, layout)
    if differing:
        check_mode(schema, layout.mode, state.mode)
        raise other_columns(schema, layout, "delta", differing)


def differing_columns(state: TableState, schema: TableSchema, layout: Layout) -> list[str]:
    """Return the columns that are not alike in a table and in what it replicates."""
    present = {item.name: item.type for item in state.columns}
    wanted = delta_fields(schema, layout)
    return sorted(name for name in present.keys() | wanted.keys() if str(present.get(name)) != str(wanted.get(name)))


def _check_protocol(state: TableState, location: str) -> None:
    """Refuse a table that asks something of its writers that we do not do; silence would break its promises."""
    features = {*state.protocol.get("readerFeatures", ()), *state.protocol.get("writerFeatures", ())}
    unknown = sorted(features - _KNOWN_FEATURES)
    if unknown:
        raise unsupported(
            f"The Delta table at {location} was given features that Penstock does not write: {', '.join(unknown)}.",
            "Drop the features from the table, or move it away and resync.",
        )
    settings = {**_DEFAULTS, **state.metadata.get("configuration", {})}
    wrong = sorted(name for name, wanted in _NEEDED_SETTINGS.items() if settings.get(name, wanted) != wanted)
    wrong += sorted(name for name in settings if name.startswith("delta.constraints."))
    if wrong or "deletionVectors" not in features or state.metadata.get("partitionColumns"):
        raise unsupported(
            f"The Delta table at {location} was changed so that Penstock cannot write it:"
            f" {', '.join(wrong) or 'it is partitioned or has lost its deletion vectors'}.",
            f"Set {', '.join(f'{name} = {value}' for name, value in _NEEDED_SETTINGS.items())}, remove constraints"
            " and partitions, or move the table away and resync.",
        )
