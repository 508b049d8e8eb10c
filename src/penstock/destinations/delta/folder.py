"""A table's folder: which file a path in the table's log means, and the only code that reads and writes files there.

A file is durable, with its name, before anything refers to it; an entry of the table's log appears whole or
not at all, and never in the place of another. So a commit is one step, and what it names survives it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from penstock.contract.files import Files, NewFile
from penstock.storage.local import LOCAL, new_file

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class TableFolder:
    """One table's files, by their path below the folder as the log has it, in the form of a URL."""

    location: str
    """As the Delta library is told it: a path, or a URL."""
    files: Files = LOCAL

    @property
    def base(self) -> str:
        """The folder's path among the files."""
        return self.files.path(self.location).rstrip("/")

    def path(self, logged: str) -> str:
        """Return where a file is that the log names."""
        plain = unquote(logged)
        if _SCHEME.match(plain):
            return self.files.path(plain)
        return plain if plain.startswith("/") else f"{self.base}/{plain}"

    def logged(self, path: str) -> str:
        """Return a file's path as the log has it."""
        base = f"{self.base}/"
        bare = path.removeprefix("file://")
        if not bare.startswith(base):
            raise ValueError(f"the file {path} is not below {self.location}")
        return quote(bare.removeprefix(base))

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder below; none if there is no such folder."""
        return self.files.names(f"{self.base}/{folder}")

    def ages(self, folder: str, now: dt.datetime) -> dict[str, float]:
        """Return the names of the files in a folder below, and for how many seconds each has not been written."""
        times = self.files.times(f"{self.base}/{folder}")
        return {name: now.timestamp() - written_s for name, written_s in times.items()}

    def read(self, name: str, start: int = 0, size: int = -1) -> bytes | None:
        """Return a file's bytes, or some of them; None if there is no such file."""
        return self.files.read(f"{self.base}/{name}", start, size)

    def identity(self, name: str) -> tuple[Any, ...] | None:
        """Return what changes when another file takes a file's place; None if there is none."""
        return self.files.identity(f"{self.base}/{name}")

    @contextmanager
    def new_file(self, name: str) -> Iterator[NewFile]:
        """Write a file that nothing refers to yet; durable at the end of the block, and gone if that fails."""
        with new_file(self.files, f"{self.base}/{name}") as new:
            yield new

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Make a file with this content, durably, unless there is one of that name; return whether it was made."""
        return self.files.put_if_absent(f"{self.base}/{name}", content)

    def remove(self, name: str) -> None:
        """Remove a file that nothing refers to, if it is there."""
        self.files.remove(f"{self.base}/{name}")

    def remove_all(self, names: Iterable[str]) -> None:
        """Remove several, at once where each takes its time."""
        self.files.remove_all([f"{self.base}/{name}" for name in names])
