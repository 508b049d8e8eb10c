"""What the stream's RELATION messages leave out, asked of the catalog: types by their meaning, and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from penstock.errors import ErrorKind, SourceError
from penstock.model.policy import ValuePolicies
from penstock.model.table import Column, Kind, PgType, ReplicaIdentity, TableId, TableName, TableSchema
from penstock.postgres.catalog import describe_table, describe_types
from penstock.postgres.connection import SourceAddress, connect
from penstock.receiver.decoder import LoggedRelation
from penstock.wire.pgoutput import RelationColumn, RelationMessage

_DROPPED = PgType("a type that was dropped", Kind.TEXT)


class RelationDescriber:
    """Turns RELATION messages into table schemas. Holds one ordinary connection, opened when first needed."""

    def __init__(
        self, address: SourceAddress, policies: ValuePolicies, version_of: Callable[[TableSchema], int]
    ) -> None:
        self._address = address
        self._policies = policies
        self._version_of = version_of
        self._connection: psycopg.Connection[Any] | None = None
        self._types: dict[tuple[int, int], PgType] = {}

    def describe(self, message: RelationMessage) -> LoggedRelation:
        """Return the table as the log knows it, recording a new version if its columns changed."""
        self._learn_types(message.columns)
        keys = self._key_names(message)
        schema = TableSchema(
            id=TableId(message.relation_id),
            name=TableName(message.namespace, message.name),
            columns=tuple(self._column(column, keys) for column in message.columns),
            identity=message.replica_identity,
        )
        schema = self._policies.resolve(schema)
        indexes = tuple(schema.column_names.index(column.name) for column in schema.key)
        return LoggedRelation(schema, self._version_of(schema), indexes)

    def _column(self, column: RelationColumn, keys: list[str]) -> Column:
        type_ = self._types[column.type_oid, column.type_modifier]
        ordinal = keys.index(column.name) if column.name in keys else None
        return Column(column.name, type_, key_ordinal=ordinal)

    def _key_names(self, message: RelationMessage) -> list[str]:
        # Under FULL the stream flags every column, so the key is the catalog's primary key.
        if message.replica_identity is ReplicaIdentity.FULL:
            return self._primary_key(message)
        return [column.name for column in message.columns if column.is_key]

    def _primary_key(self, message: RelationMessage) -> list[str]:
        published = {column.name for column in message.columns}
        try:
            return [column.name for column in describe_table(self._open(), TableId(message.relation_id), published).key]
        except SourceError as error:
            # The message is about the past: the table may be gone by now, and with it anyone's interest in its key.
            if error.kind is not ErrorKind.SOURCE_SCHEMA:
                raise
            return []

    def _learn_types(self, columns: tuple[RelationColumn, ...]) -> None:
        wanted = {(column.type_oid, column.type_modifier) for column in columns} - self._types.keys()
        if wanted:
            self._types.update(describe_types(self._open(), sorted(wanted), missing=_DROPPED))

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._address, application_name="penstock receiver catalog")
        return self._connection
