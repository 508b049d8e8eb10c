"""What a Parquet file says about itself, as a destination's commit wants it; needs no JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from penstock.contract.batch import CopiedFile


def describe_file(path: str, size_bytes: int, metadata: pq.FileMetaData) -> CopiedFile:
    """Return a file with its columns' bounds and NULL counts, where every row group knows them."""
    minimums: dict[str, Any] = {}
    maximums: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        known: list[Any] = [
            metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)
        ]
        # Nested columns have a path of several names; a bound of their elements is none of the column.
        if "." in name or not all(item is not None and item.has_null_count for item in known):
            continue
        nulls[name] = sum(item.null_count for item in known)
        bounds = _bounds(known)
        if bounds is not None:
            minimums[name], maximums[name] = bounds
    return CopiedFile(path, metadata.num_rows, size_bytes, minimums, maximums, nulls)


def _bounds(known: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the least and greatest value, or None if some row group has values and no bounds."""
    if any(not item.has_min_max and item.num_values for item in known):
        return None
    bounded = [item for item in known if item.has_min_max]
    return (min(item.min for item in bounded), max(item.max for item in bounded)) if bounded else None
