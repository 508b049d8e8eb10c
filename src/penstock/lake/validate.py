"""What no table of a lake can hold, refused before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.errors import DestinationError, ErrorKind
from penstock.lake.layout import Layout
from penstock.lake.rows import CDC_NAMES
from penstock.model.mode import TableMode
from penstock.model.table import TableSchema


def check_columns(schema: TableSchema, layout: Layout, destination: str) -> None:
    """Refuse column names that readers, most of which ignore case, would take for one another or for ours."""
    folded = Counter(name.lower() for name in schema.column_names)
    twice = [name for name in schema.column_names if folded[name.lower()] > 1]
    if twice:
        raise unsupported(
            f"Table {schema.name} has columns that differ only in case ({', '.join(twice)}); most readers of a lake's"
            " tables cannot tell them apart.",
            "Rename one of them at the source, or leave one out with a column list in the publication.",
        )
    taken = {name.lower() for name in layout.names}
    ours = [name for name in schema.column_names if name.lower() in taken]
    if ours:
        raise unsupported(
            f"Table {schema.name} has a column {ours[0]}, and Penstock adds one of that name.",
            _remedy(layout, destination),
        )


def _remedy(layout: Layout, destination: str) -> str:
    if layout.mode.keeps_past:
        return (
            "Rename the column at the source, leave it out with a column list in the publication, or give the table"
            f" the mode current in destination.{destination}.modes."
        )
    return (
        "Rename the column at the source, or leave it out with a column list in the publication; or set"
        f" destination.{destination}.cdc_columns to false and resync the tables that are copied already."
    )


def check_mode(schema: TableSchema, wanted: TableMode, found: TableMode) -> None:
    """Refuse changes in another mode than that in which the table was made."""
    if wanted is not found:
        raise unsupported(
            f"Table {schema.name} has the mode {wanted}, and its table in the lake was made with the mode {found}.",
            _remedy_for_other(found, f"give it the mode {found} again"),
        )


def other_columns(schema: TableSchema, layout: Layout, destination: str, differing: Sequence[str]) -> DestinationError:
    """Return the error for a lake's table whose columns are not those of the changes."""
    if layout.mode is TableMode.CURRENT and set(differing) == set(CDC_NAMES):
        then, now = ("false", "true") if layout.cdc_columns else ("true", "false")
        return unsupported(
            f"The {destination.title()} table of {schema.name} was made with cdc_columns: {then}, and now it is {now}.",
            f"Set destination.{destination}.cdc_columns to {then} again, or resync the table.",
        )
    return DestinationError(
        f"The columns of {schema.name} changed, at the source or in the lake; its {destination.title()} table differs"
        f" in: {', '.join(differing)}.",
        kind=ErrorKind.SCHEMA_CHANGED,
    )


def refuse_loss(schema: TableSchema, place: str, found: TableMode) -> DestinationError:
    """Return the error for a copy that could only be made by removing what a table keeps of the past."""
    return unsupported(
        f"Copying {schema.name} anew would remove what {place} keeps of the past (its mode is {found}): its columns"
        " are no longer the same.",
        _remedy_for_other(found, "undo the change"),
    )


def _remedy_for_other(found: TableMode, alternative: str) -> str:
    if found.keeps_past:
        return f"Move the lake's table away, or remove it, and resync the table; or {alternative}."
    return f"Resync the table, or {alternative}."


def refuse_keyless(schema: TableSchema) -> DestinationError:
    """Return the error for a change that names no row."""
    return unsupported(
        f"Table {schema.name} has no key, so its updates and deletes cannot be applied.",
        "Give it a primary key that is not deferrable, or a replica identity with a unique index, at the source, or"
        " give it the mode history and REPLICA IDENTITY FULL; then resync the table.",
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
