"""Where files of a lake, or of the change log, are: what we ask of a disk and of an object store alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol


class NewFile(Protocol):
    """A file being written, which nothing refers to yet."""

    @property
    def file(self) -> Any:
        """What to write to: a Python or Arrow file."""
        ...

    @property
    def size(self) -> int:
        """How many bytes it has, once finished."""
        ...

    def finish(self, *, syncs_name: bool = True) -> None:
        """Make the file durable, and its name: unless it is told that `Files.sync` follows."""
        ...

    def discard(self) -> None:
        """Leave nothing of it; also after `finish`."""
        ...


class Files(Protocol):
    """One file system, or one bucket. Travels to Spark's tasks, so holds no connection across pickling.

    Paths are absolute on a disk, and keys in a bucket. What fails raises `OSError`, a denied access `PermissionError`.
    """

    is_local: ClassVar[bool]
    """Whether folders are to be made, and a look at a file costs nothing."""

    @property
    def options(self) -> Mapping[str, str] | None:
        """What the Delta library has to be told to reach the same files."""
        ...

    def path(self, location: str) -> str:
        """Return the path of what a table's metadata names by a path or a URL."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if there is no such folder."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder; none if there is no such folder."""
        ...

    def times(self, folder: str) -> dict[str, float]:
        """Return the same names, and when each file was last written, in seconds as clocks count them."""
        ...

    def read(self, path: str, start: int = 0, size: int = -1) -> bytes | None:
        """Return a file's content, or a part of it; None if there is no such file."""
        ...

    def identity(self, path: str) -> tuple[Any, ...] | None:
        """Return what changes when another file takes a file's place; None if there is none."""
        ...

    def open(self, path: str) -> Any:
        """Open a file that is there, as something that Arrow reads from."""
        ...

    def create(self, path: str) -> NewFile:
        """Begin a file with a name that nobody else uses."""
        ...

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Make a file with this content, durably, unless there is one of that name; return whether it was made."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file that nothing refers to, if it is there."""
        ...

    def remove_all(self, paths: Iterable[str]) -> None:
        """Remove files, those that are there."""
        ...

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with the files in it, if it is there."""
        ...

    def sync(self, folder: str) -> None:
        """Make the names of a folder's files durable."""
        ...

    def make_folder(self, path: str) -> None:
        """Make sure that files can be created in a folder."""
        ...
