"""Which special-value policy each column has, and what that means for its type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.model.special import SpecialValues
from penstock.model.table import Column, Kind, PgType, TableName, TableSchema

_CAN_BE_SPECIAL = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.NUMERIC, Kind.ARRAY})


@dataclass(frozen=True, slots=True)
class ValuePolicies:
    """A pipeline's policy, with exceptions by `schema.table.column`."""

    default: SpecialValues = SpecialValues.ERROR
    columns: Mapping[str, SpecialValues] = field(default_factory=dict)

    def of(self, table: TableName, column: str) -> SpecialValues:
        """Return the policy of one column."""
        return self.columns.get(f"{table}.{column}", self.default)

    def resolve(self, schema: TableSchema) -> TableSchema:
        """Return the schema with every column that its policy makes a string typed as text.

        From here on nobody needs to know that policy: the server's own text passes through.
        """
        return replace(schema, columns=tuple(self._resolve(schema.name, column) for column in schema.columns))

    def _resolve(self, table: TableName, column: Column) -> Column:
        wants_text = self.of(table, column.name) is SpecialValues.STRING
        if not wants_text or column.type.kind not in _CAN_BE_SPECIAL:
            return column
        return replace(column, type=PgType(column.type.name, Kind.TEXT))


DEFAULT_POLICIES = ValuePolicies()
"""Refuse every special value."""
