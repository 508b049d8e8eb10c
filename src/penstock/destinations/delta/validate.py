"""What a Delta table cannot hold, refused before anything is written, and what the lake's folder must allow."""

from __future__ import annotations

import uuid
from collections import Counter

from deltalake import DeltaTable
from pyarrow import fs

from penstock.destinations.delta.schema import CDC_NAMES, delta_fields
from penstock.errors import DestinationError, ErrorKind
from penstock.model.table import TableSchema


def check_lake(path: str, filesystem: fs.FileSystem, folder: str) -> None:
    """Create the lake's folder and write a file in it, or say why that is not possible."""
    probe = f"{folder}/.penstock-probe-{uuid.uuid4().hex}"
    try:
        filesystem.create_dir(folder, recursive=True)
        with filesystem.open_output_stream(probe) as stream:
            stream.write(b"penstock")
        filesystem.delete_file(probe)
    except OSError as error:
        raise DestinationError(
            f"The lake's folder {path} cannot be written: {error.strerror or type(error).__name__}.",
            kind=ErrorKind.DESTINATION_PERMISSION_DENIED,
            remedy=f"Give this process's user write access to {path}, or set destination.delta.path to another folder.",
        ) from error


def check_columns(schema: TableSchema, *, cdc_columns: bool) -> None:
    """Refuse column names that Delta, which ignores case, would take for one another or for ours."""
    folded = Counter(name.lower() for name in schema.column_names)
    twice = [name for name in schema.column_names if folded[name.lower()] > 1]
    if twice:
        raise _unsupported(
            f"Table {schema.name} has columns that differ only in case ({', '.join(twice)}); Delta cannot hold both.",
            "Rename one of them at the source, or leave one out with a column list in the publication.",
        )
    ours = [name for name in schema.column_names if cdc_columns and name.upper() in CDC_NAMES]
    if ours:
        raise _unsupported(
            f"Table {schema.name} has a column {ours[0]}, and Penstock adds one of that name.",
            "Set destination.delta.cdc_columns to false, or rename the column at the source.",
        )


def check_owner(table: DeltaTable, description: str, location: str) -> None:
    """Refuse to replace a table that this pipeline did not make."""
    if table.metadata().description != description:
        raise _unsupported(
            f"There is a Delta table at {location} that this pipeline did not make; it is left as it is.",
            "Set destination.delta.path to another folder, or move that table away.",
        )


def check_same_columns(table: DeltaTable, schema: TableSchema, *, cdc_columns: bool) -> None:
    """Refuse changes whose columns are not the table's."""
    present = {item.name: item.type for item in table.schema().fields}
    wanted = delta_fields(schema, cdc_columns=cdc_columns)
    differing = sorted(
        name for name in present.keys() | wanted.keys() if str(present.get(name)) != str(wanted.get(name))
    )
    if differing:
        raise DestinationError(
            f"The columns of {schema.name} changed at the source; its Delta table differs in: {', '.join(differing)}.",
            kind=ErrorKind.SCHEMA_CHANGED,
        )


def refuse_keyless(schema: TableSchema) -> DestinationError:
    """Return the error for a change that names no row."""
    return _unsupported(
        f"Table {schema.name} has no key, so its updates and deletes cannot be applied.",
        "Give it a primary key, or a replica identity with a unique index, at the source; then resync the table.",
    )


def _unsupported(message: str, remedy: str) -> DestinationError:
    return DestinationError(message, kind=ErrorKind.DESTINATION_UNSUPPORTED, remedy=remedy)
