"""What users read when a lake's file fails."""

from __future__ import annotations

import errno
import os

import pyarrow as pa
import pytest

from penstock.errors import ErrorKind
from penstock.lake.fault import file_fault, parquet_fault


def failed(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("error", "kind", "message", "remedy"),
    [
        (failed(errno.ENOSPC), ErrorKind.DESTINATION_UNAVAILABLE, "No space left on device", "Free space"),
        (failed(errno.EDQUOT), ErrorKind.DESTINATION_UNAVAILABLE, "Disk quota exceeded", "Free space"),
        (failed(errno.ENOENT, "/lake/a"), ErrorKind.DESTINATION_UNAVAILABLE, "directory (/lake/a)", "resync the table"),
        (failed(errno.EACCES), ErrorKind.DESTINATION_PERMISSION_DENIED, "Permission denied", "write access"),
        (failed(errno.EIO), ErrorKind.DESTINATION_UNAVAILABLE, "Input/output error", "did not answer"),
        (TimeoutError(), ErrorKind.DESTINATION_UNAVAILABLE, "TimeoutError", "did not answer"),
    ],
)
def test_a_files_fault_says_what_helps(error: OSError, kind: ErrorKind, message: str, remedy: str) -> None:
    fault = file_fault("Applying changes", error)
    assert fault.kind is kind
    assert fault.message.startswith("Applying changes ")
    assert message in fault.message
    assert remedy in fault.remedy


def test_a_damaged_files_fault_quotes_nothing_of_it() -> None:
    fault = parquet_fault("Applying changes", pa.ArrowInvalid("a row said 'secret'"))
    assert "secret" not in fault.message
    assert "resync the table" in fault.remedy
