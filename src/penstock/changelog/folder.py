"""Durable file operations below one folder: what returns is on disk, what appears is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penstock import failpoint
from penstock.errors import ErrorKind, PenstockError


class Folder:
    """A local folder with durable, atomic writes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __truediv__(self, relative: str) -> Path:
        return self.root / relative

    def make(self, relative: str = "") -> Path:
        """Create a subfolder, durably."""
        path = self.root / relative
        with io_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
        return path

    def write(self, relative: str, fill: Callable[[BinaryIO], object]) -> int:
        """Write a file through `fill` and fsync it; return its size. The name is not durable yet."""
        path = self.root / relative
        with io_errors(path), path.open("wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def write_by_path(self, relative: str, fill: Callable[[str], object]) -> int:
        """Let `fill` write a file by its path, and fsync it; return its size. The name is not durable yet."""
        path = self.root / relative
        with io_errors(path):
            fill(str(path))
            return sync_file(path)

    def replace(self, relative: str, content: bytes) -> None:
        """Put a file in place atomically and durably: after a crash it is as before or as given."""
        path = self.root / relative
        self.write(f"{relative}.tmp", lambda file: file.write(content))
        failpoint.hit("changelog.before_rename")
        with io_errors(path):
            path.with_name(path.name + ".tmp").replace(path)
            sync_folder(path.parent)

    def read(self, relative: str) -> bytes:
        """Read a file whole."""
        path = self.root / relative
        with io_errors(path):
            return path.read_bytes()

    def names(self, relative: str, suffix: str) -> list[str]:
        """List the files of a subfolder that end with `suffix`, sorted."""
        with io_errors(self.root / relative):
            return sorted(path.name for path in (self.root / relative).iterdir() if path.name.endswith(suffix))

    def remove(self, relative: str) -> None:
        """Remove a file or a whole subfolder, if there."""
        path = self.root / relative
        with io_errors(path):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def sync(self, relative: str) -> None:
        """Make the names in a subfolder durable."""
        with io_errors(self.root / relative):
            sync_folder(self.root / relative)


def sync_file(path: Path) -> int:
    """Fsync a file that is closed already, and return its size."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Fsync a folder, which is what makes a new or renamed file's name durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def io_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal into an error that names the path."""
    try:
        yield
    except OSError as error:
        raise PenstockError(f"change log: {error.strerror or error}: {path}", kind=ErrorKind.LOG_IO) from error
