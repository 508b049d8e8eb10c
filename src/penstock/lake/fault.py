"""What goes wrong with a lake's files, told alike for every format, and without a value from any row."""

from __future__ import annotations

import errno

import pyarrow as pa

from penstock.errors import DestinationError, ErrorKind

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def file_fault(what: str, error: OSError) -> DestinationError:
    """Return the error for a file that could not be read or written."""
    reason = error.strerror or type(error).__name__
    if isinstance(error, PermissionError):
        return DestinationError(f"{what} was denied: {reason}.", kind=ErrorKind.DESTINATION_PERMISSION_DENIED)
    kind = ErrorKind.DESTINATION_UNAVAILABLE
    if error.errno in _FULL:
        return DestinationError(
            f"{what} failed: {reason}.", kind=kind, remedy="Free space where the lake is; it is tried again."
        )
    if isinstance(error, FileNotFoundError):
        missing = f" ({error.filename})" if error.filename else ""
        return DestinationError(
            f"{what} failed: {reason}{missing}.",
            kind=kind,
            remedy="It is tried again; if the file is gone for good, restore it, or resync the table.",
        )
    return DestinationError(f"{what} failed: {reason}.", kind=kind)


def parquet_fault(what: str, error: pa.ArrowException) -> DestinationError:
    """Return the error for a file that is no Parquet; Arrow's own words may quote what it read."""
    return DestinationError(
        f"{what} met a Parquet file that cannot be read or written ({type(error).__name__}).",
        remedy="It is tried again; if a file of the table is damaged, restore it, or resync the table.",
    )
