"""Arrow columns as Spark types, so that copy, log and lake agree."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType


def from_arrow(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as Spark's, nested types and `timestamp_ntz` included."""
    return StructType(
        [StructField(item.name, from_arrow_type(item.type, prefer_timestamp_ntz=True)) for item in schema]
    )
