"""Whether our role may read what a copy reads: every row and published column of every leaf.

Asked before a copy, because the server's own refusal comes late, and names neither the column nor the statement
that mends it. Should a policy begin to hide rows later, it ends the copy: sessions run with `row_security = off`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.errors import ErrorKind, SourceError
from penstock.model.table import TableId, TableName, quote_identifier
from penstock.postgres import query
from penstock.postgres.connection import Connection, source_errors
from penstock.postgres.publication import PublishedTable

_SHOWN = 5
"""How many partitions a table's error names: of a thousand, the first show the pattern."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps our role from reading one leaf, and the statement that mends it."""

    check: Literal["select", "row_security"]
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Rights:
    """What our role may do with one leaf."""

    table: TableId
    leaf: TableName
    may_use: bool
    """Its schema."""
    may_select: bool
    """All of it."""
    may_select_some: bool
    denied: tuple[str, ...]
    """Columns that the copy reads and the role may not, `ctid` among them."""
    is_hidden: bool
    """Whether a policy applies to the role."""


def require_readable(connection: Connection, table: PublishedTable) -> None:
    """Raise unless our role may read all of a table; in a transaction too, which is over when this raises."""
    found = obstacles(connection, [table])
    if found:
        message = "; ".join(obstacle.message for obstacle in found[:_SHOWN])
        remedy = " ".join(dict.fromkeys(obstacle.remedy for obstacle in found[:_SHOWN]))
        left = len(found) - _SHOWN
        if left > 0:
            message, remedy = f"{message}; and {left} more like it", f"{remedy} `penstock check` lists the others."
        raise SourceError(message, kind=ErrorKind.SOURCE_PERMISSION_DENIED, remedy=remedy)


def obstacles(connection: Connection, tables: Sequence[PublishedTable]) -> list[Obstacle]:
    """Return what keeps our role from reading these tables, leaf by leaf."""
    published = {table.id: table for table in tables}
    return [
        obstacle
        for rights in _read_rights(connection, tables)
        for obstacle in _judge(connection, published[rights.table], rights)
    ]


def _read_rights(connection: Connection, tables: Sequence[PublishedTable]) -> list[_Rights]:
    columns = {str(int(table.id)): table.columns for table in tables if table.columns is not None}
    parameters = {"tables": [int(table.id) for table in tables], "columns": json.dumps(columns)}
    with source_errors("reading the role's rights"):
        rows = connection.execute(query.load("table_rights"), parameters).fetchall()
    return [
        _Rights(TableId(oid), TableName(schema, name), may_use, may_select, may_some, tuple(denied), is_hidden)
        for oid, schema, name, may_use, may_select, may_some, denied, is_hidden in rows
    ]


def _judge(connection: Connection, table: PublishedTable, rights: _Rights) -> Iterator[Obstacle]:
    role = quote_identifier(connection.info.user)
    usage = "" if rights.may_use else f"grant usage on schema {quote_identifier(rights.leaf.schema)} to {role}; "
    if not (rights.may_select or rights.may_select_some):
        yield _denied(table, rights, role, "", f"{usage}grant select on {rights.leaf.quoted} to {role};")
    elif not rights.may_select and rights.denied:
        names = ", ".join(map(quote_identifier, rights.denied))
        columns = f"column{'s' * (len(rights.denied) > 1)} {', '.join(rights.denied)} of "
        yield _denied(table, rights, role, columns, f"{usage}grant select ({names}) on {rights.leaf.quoted} to {role};")
    elif usage:
        yield _denied(table, rights, role, "", usage.rstrip())
    elif not (rights.may_select or rights.is_hidden or _may_filter(connection, table, rights.leaf)):
        remedy = f"grant select (…) on {rights.leaf.quoted} to {role}; with the columns that the filter names."
        yield _denied(table, rights, role, "a column of the publication's row filter of ", remedy)
    if rights.is_hidden:
        yield _hidden(table, rights, role)


def _denied(table: PublishedTable, rights: _Rights, role: str, what: str, remedy: str) -> Obstacle:
    return Obstacle("select", f"role {role} may not read {what}{_named(table, rights.leaf)}", remedy)


def _hidden(table: PublishedTable, rights: _Rights, role: str) -> Obstacle:
    return Obstacle(
        "row_security",
        f"row-level security may hide rows of {_named(table, rights.leaf)} from role {role}: a copy would miss them",
        f"alter role {role} with bypassrls;",
    )


def _named(table: PublishedTable, leaf: TableName) -> str:
    return f"table {leaf}" if leaf == table.name else f"table {leaf}, a partition of {table.name},"


def _may_filter(connection: Connection, table: PublishedTable, leaf: TableName) -> bool:
    """Ask the server itself, which alone knows the columns of an expression; nothing is read to explain a statement."""
    if table.row_filter is None:
        return True
    try:
        with source_errors(f"asking for the rights to the row filter of {leaf}"):
            connection.execute(f"explain select from only {leaf.quoted} where {table.row_filter}".encode())
    except SourceError as error:
        if error.kind is not ErrorKind.SOURCE_PERMISSION_DENIED:
            raise
        return False
    return True
