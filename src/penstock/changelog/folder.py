"""Where a log is: a folder on a disk or in a bucket. What returns is durable there, what appears is whole.

Travels: to the receiver, whose settings it is a part of, and to Spark's tasks.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from penstock.contract.files import Files, NewFile
from penstock.errors import ConfigError, ErrorKind, PenstockError
from penstock.storage.place import check_writable, files_at
from penstock.storage.s3 import S3Settings

_BUCKET = re.compile(r"s3a?://[^/]+/+(?P<folder>.*[^/])/*")
_READ_AT_ONCE = 16
"""How many small files are asked for together in a bucket, where each answer takes its time."""
_DETAIL = re.compile(r".*Detail: \[errno \d+\] ", re.DOTALL)  # what Arrow puts before the system's own words


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder's place, and how it is reached."""

    location: str
    """A path, or `s3://bucket/folder`."""
    s3: S3Settings | None = None

    @classmethod
    def on_disk(cls, path: os.PathLike[str]) -> Folder:
        """Return a folder of this machine."""
        return cls(os.fspath(path))

    def __str__(self) -> str:
        return self.location

    @property
    def files(self) -> Files:
        """The files among which it is."""
        return _placed(self)[0]

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk, where a look at a file costs nothing."""
        return self.files.is_local

    def path(self, relative: str = "") -> str:
        """Return a file's path among the files."""
        root = _placed(self)[1]
        return f"{root}/{relative}" if relative else root

    def make(self, relative: str = "") -> None:
        """Create a subfolder, durably."""
        path = self.path(relative)
        with self.errors(relative):
            self.files.make_folder(path)
            self.files.sync(os.path.dirname(path) or ".")  # noqa: PTH120

    def create(self, relative: str) -> NewFile:
        """Begin a file; its caller sees to errors with `errors`."""
        return self.files.create(self.path(relative))

    def put_if_absent(self, relative: str, content: bytes) -> bool:
        """Make a file with this content, durably, unless there is one; return whether it was made."""
        with self.errors(relative):
            return self.files.put_if_absent(self.path(relative), content)

    def read(self, relative: str) -> bytes:
        """Read a file whole; one that is missing is an error."""
        with self.errors(relative):
            content = self.read_if_there(relative)
            if content is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return content

    def read_if_there(self, relative: str) -> bytes | None:
        """Read a file whole; None if there is none."""
        with self.errors(relative):
            return self.files.read(self.path(relative))

    def read_those_there(self, relatives: Sequence[str]) -> list[bytes | None]:
        """Read several files, at once where each takes its time."""
        if self.is_local or len(relatives) == 1:
            return [self.read_if_there(relative) for relative in relatives]
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            return list(pool.map(self.read_if_there, relatives))

    def open(self, relative: str) -> Any:
        """Open a file for Arrow; its caller sees to errors."""
        return self.files.open(self.path(relative))

    def names(self, relative: str, suffix: str) -> list[str]:
        """List the files of a subfolder that end with `suffix`, sorted."""
        with self.errors(relative):
            return sorted(name for name in self.files.names(self.path(relative)) if name.endswith(suffix))

    def folders(self, relative: str) -> list[str]:
        """List the folders of a subfolder, sorted."""
        with self.errors(relative):
            return sorted(self.files.folders(self.path(relative)))

    def remove_all(self, relatives: Iterable[str]) -> None:
        """Remove files, those that are there."""
        with self.errors(""):
            self.files.remove_all([self.path(relative) for relative in relatives])

    def remove_folder(self, relative: str) -> None:
        """Remove a subfolder, if there."""
        with self.errors(relative):
            self.files.remove_folder(self.path(relative))

    def sync(self, relative: str) -> None:
        """Make the names in a subfolder durable."""
        with self.errors(relative):
            self.files.sync(self.path(relative))

    @contextmanager
    def errors(self, relative: str) -> Iterator[None]:
        """Turn a refusal of the disk or the store into an error that names the file."""
        with io_errors(f"{self.location}/{relative}" if relative else self.location):
            yield


@cache
def _placed(folder: Folder) -> tuple[Files, str]:
    """Return the files that a folder is among, and its path there."""
    location, in_bucket = folder.location, _BUCKET.fullmatch(folder.location)
    if "://" in location and not location.startswith("file:") and in_bucket is None:
        raise ConfigError(
            f"a change log cannot be at {location}", remedy="Name a folder, local or mounted, or s3://bucket/folder."
        )
    try:
        files = files_at(location, folder.s3)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a change log in a bucket needs the Python package {error.name}, which is not installed",
            remedy="Run: pip install 'penstock[s3]'",
        ) from None
    return files, in_bucket["folder"] if in_bucket else files.path(location).rstrip("/")


def require_place(folder: Folder) -> None:
    """Refuse a place where a log cannot be written, or where it would not be safe from a second writer."""
    with folder.errors(""):
        is_safe = check_writable(folder.files, folder.path())
    if not is_safe:
        raise ConfigError(
            f"at {folder} one writer can overwrite what another has just written: no change log is safe there",
            remedy="Use a store that honours If-None-Match: * in a PUT, as S3 does, or a file system with hard links.",
        )


@contextmanager
def io_errors(place: object) -> Iterator[None]:
    """Turn the operating system's refusal into an error that names the place."""
    try:
        yield
    except OSError as error:
        what = _DETAIL.sub("", error.strerror or str(error))
        raise PenstockError(f"change log: {what}: {place}", kind=ErrorKind.LOG_IO) from error
