"""What no table of a lake can hold, refused before anything is written."""

from __future__ import annotations

from collections import Counter

from penstock.errors import DestinationError, ErrorKind
from penstock.lake.rows import CDC_NAMES
from penstock.model.table import TableSchema


def check_columns(schema: TableSchema, destination: str, *, cdc_columns: bool) -> None:
    """Refuse column names that readers, most of which ignore case, would take for one another or for ours."""
    folded = Counter(name.lower() for name in schema.column_names)
    twice = [name for name in schema.column_names if folded[name.lower()] > 1]
    if twice:
        raise unsupported(
            f"Table {schema.name} has columns that differ only in case ({', '.join(twice)}); most readers of a lake's"
            " tables cannot tell them apart.",
            "Rename one of them at the source, or leave one out with a column list in the publication.",
        )
    ours = [name for name in schema.column_names if cdc_columns and name.upper() in CDC_NAMES]
    if ours:
        raise unsupported(
            f"Table {schema.name} has a column {ours[0]}, and Penstock adds one of that name.",
            f"Set destination.{destination}.cdc_columns to false, or rename the column at the source.",
        )


def refuse_keyless(schema: TableSchema) -> DestinationError:
    """Return the error for a change that names no row."""
    return unsupported(
        f"Table {schema.name} has no key, so its updates and deletes cannot be applied.",
        "Give it a primary key, or a replica identity with a unique index, at the source; then resync the table.",
    )


def refuse_missing_row(schema: TableSchema, place: str) -> DestinationError:
    """Return the error for an unchanged value that is nowhere to be kept from."""
    return unsupported(
        f"Applying changes of {schema.name} to {place} met an update of a row that the table does not have.",
        f"Something else changed {place}: resync the table.",
    )


def unsupported(message: str, remedy: str) -> DestinationError:
    """Return an error that trying again does not help against."""
    return DestinationError(message, kind=ErrorKind.DESTINATION_UNSUPPORTED, remedy=remedy)
