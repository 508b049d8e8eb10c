"""What an Iceberg table cannot hold, refused before anything is written, and what the warehouse must allow."""

from __future__ import annotations

import pyarrow as pa

from penstock.contract.files import Files
from penstock.destinations.iceberg.catalog import HADOOP, CatalogSettings
from penstock.destinations.iceberg.client import Version
from penstock.destinations.iceberg.schema import arrow_schema, column_types, iceberg_schema
from penstock.errors import DestinationError, ErrorKind
from penstock.lake import validate as shared
from penstock.lake.layout import Layout, found_mode
from penstock.lake.validate import unsupported
from penstock.model.table import PipelineId, TableSchema
from penstock.storage.place import check_writable

_FORMAT_VERSION = 2


def check_folder(path: str, files: Files) -> None:
    """Create the warehouse's folder and write a file in it, or say why that is not possible."""
    try:
        # Whether a second writer is refused is no matter: who may commit is for the catalog to say.
        check_writable(files, files.path(path))
    except OSError as error:
        raise DestinationError(
            f"The warehouse {path} cannot be written: {error.strerror or type(error).__name__}.",
            kind=ErrorKind.DESTINATION_PERMISSION_DENIED,
            remedy=f"Give this process's user write access to {path}, or set destination.iceberg.warehouse to another"
            " folder.",
        ) from error


def check_catalog(settings: CatalogSettings) -> None:
    """Refuse a catalog of folders in a bucket, and a store that we do not know."""
    if not settings.is_local and settings.kind == HADOOP:
        raise unsupported(
            f"a hadoop catalog at {settings.folder} is not safe: it commits by renaming, which in an object store lets"
            " one writer overwrite another",
            "Set destination.iceberg.catalog to jdbc or rest, or the warehouse to a folder.",
        )


def check_columns(schema: TableSchema, layout: Layout) -> None:
    """Refuse column names that readers of Iceberg tables would take for one another or for ours."""
    shared.check_columns(schema, layout, "iceberg")
    _check_elements(schema, arrow_schema(schema, layout))


def _check_elements(schema: TableSchema, columns: pa.Schema) -> None:
    """Refuse what Iceberg would take for an array's elements: it names them by a path."""
    elements = {f"{column.name}.element" for column in columns if isinstance(column.type, pa.ListType)}
    taken = sorted(elements & set(columns.names))
    if taken:
        raise unsupported(
            f"Table {schema.name} has a column {taken[0]}, which is what Iceberg calls an array's elements.",
            "Rename the column at the source, or leave it out with a column list in the publication.",
        )
    if not columns:
        raise unsupported(
            f"Table {schema.name} has no columns.", "Add one at the source, or drop the table from the publication."
        )


def check_owner(version: Version, pipeline: PipelineId, place: str) -> None:
    """Refuse to replace a table that this pipeline did not make."""
    if version.owner != pipeline:
        raise unsupported(
            f"There is an Iceberg table {place} that this pipeline did not make; it is left as it is.",
            "Set destination.iceberg.warehouse or catalog to another one, or move that table away.",
        )


def differing_columns(version: Version, schema: TableSchema, layout: Layout) -> list[str]:
    """Return the columns that are not alike in a table and in what it replicates."""
    present = column_types(version.schema)
    wanted = column_types(iceberg_schema(arrow_schema(schema, layout)))
    return sorted(name for name in present.keys() | wanted.keys() if present.get(name) != wanted.get(name))


def check_same_columns(version: Version, schema: TableSchema, layout: Layout) -> None:
    """Refuse changes whose columns are not the table's."""
    differing = differing_columns(version, schema, layout)
    if differing:
        shared.check_mode(schema, layout.mode, found_mode(version.column_names))
        raise shared.other_columns(schema, layout, "iceberg", differing)


def check_format(version: Version, place: str) -> None:
    """Refuse a table that somebody raised to a format whose deletes are not ours to write."""
    if version.format_version != _FORMAT_VERSION:
        raise unsupported(
            f"The Iceberg table {place} has format version {version.format_version}; Penstock writes version"
            f" {_FORMAT_VERSION}.",
            "A table cannot be taken back to an older format: move it away, then resync it.",
        )


def refuse_foreign_files(place: str) -> DestinationError:
    """Return the error for files of another writer that are not ours to read."""
    return unsupported(
        f"The Iceberg table {place} has files of another writer that are not Parquet, or deletes by equality.",
        "Let that writer rewrite the table's data files as Parquet, or resync the table.",
    )


def check_free(location: str, files: Files) -> None:
    """Refuse to make a table where a Delta table is: each would take the other's files for its own to remove."""
    if files.names(f"{files.path(location).rstrip('/')}/_delta_log"):
        raise unsupported(
            f"There is a Delta table in {location}, where the Iceberg table would be.",
            "Set destination.iceberg.warehouse to another folder, or move the Delta table away.",
        )


def never_copied(schema: TableSchema, place: str) -> DestinationError:
    """Return the error for changes without a table to apply them to."""
    return unsupported(
        f"There is no copy of {schema.name} in {place} to apply changes to.",
        "Resync the table; its Iceberg table was moved, removed or replaced.",
    )


def other_copy(schema: TableSchema, place: str) -> DestinationError:
    """Return the error for a part of a copy that the table is not waiting for."""
    return unsupported(
        f"The Iceberg table {place} does not hold the earlier parts of this copy of {schema.name}.",
        "Something else changed the Iceberg table: resync the table.",
    )
