"""Files on a disk, local or mounted: what returns is on it, with its name."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from penstock.contract.files import Files, NewFile
from penstock.failpoint import hit


class LocalFile:
    """A file being written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.file = pa.OSFile(path, "wb")
        self.size = 0

    def finish(self, *, syncs_name: bool = True) -> None:
        """Make the file durable, and its name."""
        self.file.close()
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            self.size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if syncs_name:
            _sync_folder(Path(self._path).parent)

    def discard(self) -> None:
        """Remove it."""
        with suppress(OSError):
            self.file.close()
        Path(self._path).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The file system of this machine."""

    is_local: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str] | None] = None

    def path(self, location: str) -> str:
        """Return a path as it is, and that of a `file:` URL."""
        return location.removeprefix("file:").replace("///", "/", 1) if location.startswith("file:") else location

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        try:
            return [each.name for each in os.scandir(folder)]
        except FileNotFoundError:
            return []

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        try:
            return [each.name for each in os.scandir(folder) if each.is_dir()]
        except FileNotFoundError:
            return []

    def times(self, folder: str) -> dict[str, float]:
        """Return the same with times."""
        found: dict[str, float] = {}
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                # One that goes meanwhile is not there.
                with suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_mtime
        return found

    def read(self, path: str, start: int = 0, size: int = -1) -> bytes | None:
        """Return a file's content, or a part of it."""
        try:
            with Path(path).open("rb") as file:
                file.seek(start)
                return file.read(size)
        except FileNotFoundError:
            return None

    def identity(self, path: str) -> tuple[Any, ...] | None:
        """Return the inode with time and size."""
        try:
            found = Path(path).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def open(self, path: str) -> Any:
        """Open a file for Arrow, which then reads without Python."""
        return pa.OSFile(path, "rb")

    def create(self, path: str) -> NewFile:
        """Begin a file."""
        return LocalFile(path)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Write beside the place, then link: a link, unlike a rename, fails where the name is taken."""
        place = Path(path)
        temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}.tmp")
        new = self.create(str(temporary))
        try:
            new.file.write(content)
            new.finish(syncs_name=False)
            hit("storage.before_put")
            place.hardlink_to(temporary)
        except FileExistsError:
            return False
        finally:
            new.discard()
        _sync_folder(place.parent)
        return True

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        Path(path).unlink(missing_ok=True)

    def remove_all(self, paths: Iterable[str]) -> None:
        """Remove files."""
        for path in paths:
            self.remove(path)

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with all that is in it."""
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def sync(self, folder: str) -> None:
        """Make the names of a folder's files durable."""
        _sync_folder(Path(folder))

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""
        Path(path).mkdir(parents=True, exist_ok=True)


LOCAL: Files = LocalFiles()
"""What is meant where nothing else is said."""


@contextmanager
def new_file(files: Files, path: str) -> Iterator[NewFile]:
    """Write a file that nothing refers to yet; durable at the end of the block, and gone if that fails."""
    new = files.create(path)
    try:
        yield new
        new.finish()
    except BaseException:
        new.discard()
        raise


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
