"""A table's columns as Spark types: those of its Arrow columns, so that copy, log and lake agree."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from penstock.model.special import SpecialValues
from penstock.model.table import Column, PgType, TableSchema
from penstock.wire.arrow import arrow_type


def spark_type(type_: PgType, policy: SpecialValues = SpecialValues.ERROR) -> DataType:
    """Return the Spark type of a column; a timestamp without time zone is `timestamp_ntz`."""
    return from_arrow_type(arrow_type(type_, policy), prefer_timestamp_ntz=True)


def spark_schema(schema: TableSchema, policy: SpecialValues = SpecialValues.ERROR) -> StructType:
    """Return a table's columns, all nullable: the source has checked its own constraints."""
    return spark_columns(schema.columns, policy)


def spark_columns(columns: Iterable[Column], policy: SpecialValues = SpecialValues.ERROR) -> StructType:
    """Return some columns, by their own names."""
    return StructType([StructField(column.name, spark_type(column.type, policy)) for column in columns])


def from_arrow(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as Spark's, nested types and `timestamp_ntz` included."""
    return StructType(
        [StructField(item.name, from_arrow_type(item.type, prefer_timestamp_ntz=True)) for item in schema]
    )
