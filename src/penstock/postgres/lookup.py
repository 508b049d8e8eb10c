"""Finding a table by the name that somebody wrote, and making sure that its rows can be read in ranges."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ErrorKind, SourceError
from penstock.model.table import TableId, TableName, quote_identifier
from penstock.postgres import query
from penstock.postgres.connection import Connection, source_errors

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


def find_table(connection: Connection, wanted: str) -> tuple[TableId, TableName]:
    """Return the table that is written `schema.name`, each name quoted or not, or that has this oid."""
    with source_errors(f"looking for table {wanted}"):
        rows = connection.execute(query.load("find_tables"), {"wanted": wanted}).fetchall()
    found = [(TableId(oid), TableName(schema, name), kind) for oid, schema, name, kind in rows]
    exact = [each for each in found if wanted in {str(int(each[0])), *_written(each[1])}]
    if len(exact) != 1:
        raise _not_found(connection, wanted, [name for _, name, _ in found], [table for table, _, _ in exact])
    [(table, name, kind)] = exact
    _require_rows_here(connection, table, name, kind)
    return table, name


def column_names(connection: Connection, table: TableId) -> tuple[str, ...]:
    """Return all columns that a table has now, generated ones too."""
    with source_errors(f"reading the columns of table {int(table)}"):
        rows = connection.execute(query.load("table_column_names"), {"table": int(table)}).fetchall()
    return tuple(name for (name,) in rows)


def _written(name: TableName) -> set[str]:
    schemas, names = ((each, quote_identifier(each)) for each in (name.schema, name.name))
    return {f"{schema}.{table}" for schema in schemas for table in names}


def _not_found(
    connection: Connection, wanted: str, alike: Sequence[TableName], exact: Sequence[TableId]
) -> SourceError:
    database = connection.info.dbname
    if exact:
        message = f"database {database} has several tables {wanted}: a dot can stand in a name, or between two"
        remedy = f"Quote the names, or give an oid: {', '.join(str(int(each)) for each in exact)}."
    else:
        message = f"database {database} has no table {wanted}"
        hint = f"There is {', '.join(map(str, alike))}." if alike else "Upper and lower case are different."
        remedy = f"Give its schema and its name as the catalog has them, such as public.orders. {hint}"
    return SourceError(message, kind=ErrorKind.SOURCE_SCHEMA, remedy=remedy)


def _require_rows_here(connection: Connection, table: TableId, name: TableName, kind: str) -> None:
    """Refuse what has no blocks to divide into ranges: reading nothing would look like an empty table."""
    if kind in _KINDS:
        raise SourceError(
            f"{name} is {_KINDS[kind]}, which cannot be read in ranges",
            kind=ErrorKind.SOURCE_SCHEMA,
            remedy="Read the tables behind it, or use Spark's own JDBC source.",
        )
    with source_errors(f"looking at the partitions of {name}"):
        elsewhere = connection.execute(query.load("partitions_elsewhere"), {"table": int(table)}).fetchall()
    if elsewhere:
        names = ", ".join(str(TableName(*each)) for each in elsewhere)
        raise SourceError(
            f"table {name} has partitions on another server: {names}",
            kind=ErrorKind.SOURCE_SCHEMA,
            remedy="Read the other partitions one by one.",
        )
