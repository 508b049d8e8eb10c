"""A table's folder: the only code that reads and writes its files itself, and what makes them durable.

A file is on disk, with its name, before anything refers to it; an entry of the table's log appears whole or
not at all, and never in the place of another. So a commit is one step, and what it names survives it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

from penstock.failpoint import hit

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class TableFolder:
    """One table's files, by their path below the folder as the log has it, in the form of a URL."""

    location: str

    def path(self, logged: str) -> str:
        """Return where a file is that the log names."""
        plain = unquote(logged)
        if _SCHEME.match(plain):
            return plain.removeprefix("file:").replace("///", "/", 1)
        return plain if plain.startswith("/") else f"{self.location}/{plain}"

    def logged(self, path: str) -> str:
        """Return a file's path as the log has it."""
        base = self.location.rstrip("/") + "/"
        bare = path.removeprefix("file://")
        if not bare.startswith(base):
            raise ValueError(f"the file {path} is not below {self.location}")
        return quote(bare.removeprefix(base))

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder below; none if there is no such folder."""
        try:
            return [path.name for path in self._absolute(folder).iterdir()]
        except FileNotFoundError:
            return []

    def ages(self, folder: str, now: dt.datetime) -> dict[str, float]:
        """Return the names of the files in a folder below, and for how many seconds each has not been written."""
        found: dict[str, float] = {}
        with os.scandir(self._absolute(folder)) as entries:
            for entry in entries:
                # One that goes meanwhile is not ours to look at.
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = now.timestamp() - entry.stat().st_mtime
        return found

    def read(self, name: str, start: int = 0, size: int = -1) -> bytes | None:
        """Return a file's bytes, or some of them; None if there is no such file."""
        try:
            with self._absolute(name).open("rb") as file:
                file.seek(start)
                return file.read(size)
        except FileNotFoundError:
            return None

    def identity(self, name: str) -> tuple[int, ...] | None:
        """Return what changes when another file takes a file's place; None if there is none."""
        try:
            found = self._absolute(name).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[IO[bytes]]:
        """Write a file that nothing refers to yet; durable at the end of the block, and gone if that fails."""
        path = self._absolute(name)
        try:
            with path.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Make a file with this content, durably, unless there is one of that name; return whether it was made."""
        path = self._absolute(name)
        temporary = f"{Path(name).parent}/.{path.name}.{uuid.uuid4().hex}.tmp"
        with self.new_file(temporary) as file:
            file.write(content)
        try:
            hit("delta.entry_written")
            # A link, unlike a rename, fails where the name is taken.
            path.hardlink_to(self._absolute(temporary))
        except FileExistsError:
            return False
        finally:
            self.remove(temporary)
        _sync_folder(path.parent)
        return True

    def remove(self, name: str) -> None:
        """Remove a file that nothing refers to, if it is there."""
        self._absolute(name).unlink(missing_ok=True)

    def _absolute(self, name: str) -> Path:
        return Path(self.location) / name


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
