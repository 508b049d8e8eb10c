"""A table's columns, converted under the pipeline's policies, with errors that name table and column."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import WireError
from penstock.model.policy import ValuePolicies
from penstock.model.table import Column, TableSchema
from penstock.wire.arrow import ArrowArray, arrow_type
from penstock.wire.text import UnconvertibleValueError, convert_text


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """Return a table's columns in Arrow: every one nullable, as a replica's must be."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in schema.columns])


def convert_column(schema: TableSchema, column: Column, text: ArrowArray, policies: ValuePolicies) -> ArrowArray:
    """Convert one column of the server's text. The schema's types are those that its policies left."""
    try:
        return convert_text(text, column.type, policies.of(schema.name, column.name))
    except UnconvertibleValueError as error:
        raise UnconvertibleValueError(
            f"table {schema.name}, column {column.name}: {error.message}", error.row
        ) from None
    except WireError as error:
        raise WireError(f"table {schema.name}, column {column.name}: {error.message}", remedy=error.remedy) from None
