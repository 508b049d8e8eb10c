"""From a place in the configuration, or in a table's metadata, to the files there."""

from __future__ import annotations

import uuid
from pathlib import Path

from penstock.contract.files import Files
from penstock.errors import DestinationError, ErrorKind
from penstock.storage.local import LOCAL
from penstock.storage.s3 import S3Files, S3Settings

PROBE = ".penstock-probe-"
"""What the name of a file begins with that is only there to see whether it can be."""


def files_at(location: str, s3: S3Settings | None = None) -> Files:
    """Return the files among which a location is; a kind of store that we do not know is refused by name."""
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        return LOCAL
    if scheme in {"s3", "s3a"} and rest.partition("/")[0]:
        import obstore  # noqa: F401  (what is not installed is missed before anything is written)

        return S3Files(rest.partition("/")[0], s3 or S3Settings())
    raise DestinationError(
        f"the lake at {location} is neither in a folder nor in a bucket of S3: other stores are not supported",
        kind=ErrorKind.DESTINATION_UNSUPPORTED,
        remedy="Name a folder, local or mounted, or s3://bucket/folder.",
    )


def check_writable(files: Files, folder: str) -> bool:
    """Write a file into a folder, and tell whether a second writer is refused its name."""
    probe = f"{folder.rstrip('/')}/{PROBE}{uuid.uuid4().hex}"
    files.make_folder(folder)
    try:
        return files.put_if_absent(probe, b"penstock") and not files.put_if_absent(probe, b"another")
    finally:
        files.remove(probe)


def in_full(location: str) -> str:
    """Return a path in full, and a URL as it is."""
    return location if "://" in location else str(Path(location).expanduser().absolute())
