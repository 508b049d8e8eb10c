"""Which tables a publication publishes, and which of their rows and columns."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ErrorKind, SourceError
from penstock.model.table import TableId, TableName, quote_identifier
from penstock.postgres import query
from penstock.postgres.connection import Connection, source_errors

_ROW_FILTERS_SINCE = 150000


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as a publication has it; with `publish_via_partition_root`, the root of its partitions."""

    id: TableId
    name: TableName
    row_filter: str | None = None
    """An SQL condition, its names qualified for the pinned search path; None for all rows."""
    columns: tuple[str, ...] | None = None
    """The published columns; None for those of a publication without a column list."""
    membership: str = ""
    """Which entry of the catalog makes it published, with its filter and columns: another one means that it left
    and came back, and that changes in between were not sent."""


def published_tables(connection: Connection, publication: str) -> tuple[PublishedTable, ...]:
    """Return a publication's tables by name; raise where there is no such publication, or nothing in it."""
    _require_publication(connection, publication)
    name = "published_tables" if connection.info.server_version >= _ROW_FILTERS_SINCE else "published_tables_14"
    with source_errors(f"reading publication {publication}"):
        rows = connection.execute(query.load(name), {"publication": publication}).fetchall()
    if not rows:
        raise SourceError(
            f"publication {publication} has no tables",
            kind=ErrorKind.PUBLICATION_EMPTY,
            remedy=f"Add tables: alter publication {quote_identifier(publication)} add table …;",
        )
    return tuple(
        PublishedTable(
            TableId(oid),
            TableName(schema, table),
            row_filter,
            None if columns is None else tuple(columns),
            f"{entry} {row_filter or ''} {','.join(columns or ())}".strip(),
        )
        for oid, schema, table, row_filter, columns, entry in rows
    )


def publishes_every_change(connection: Connection, publication: str) -> bool:
    """Whether the stream has all that touches a row: a publication may leave out updates, say."""
    with source_errors(f"reading publication {publication}"):
        row = connection.execute(query.load("publishes_every_change"), {"publication": publication}).fetchone()
    return row == (True,)


def _require_publication(connection: Connection, publication: str) -> None:
    with source_errors("listing publications"):
        names = [name for (name,) in connection.execute(query.load("publication_names")).fetchall()]
    if publication not in names:
        others = f"there are: {', '.join(names)}" if names else "there are none"
        raise SourceError(
            f"publication {publication} does not exist in database {connection.info.dbname}; {others}",
            kind=ErrorKind.PUBLICATION_MISSING,
            remedy=f"Create it: create publication {quote_identifier(publication)} for table …; "
            "or correct pipeline.publication_name.",
        )
