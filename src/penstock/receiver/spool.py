"""Where the blocks of transactions wait that are still in progress at the source: one file each, as received.

Nothing here needs to survive: until such a transaction's commit is in the log the server sends it again.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import numpy as np

from penstock import failpoint
from penstock.changelog.folder import io_errors
from penstock.wire.scan import FRAME_BYTES, Bytes, Followed, Stop, follow

_READ_BYTES = 4 << 20
_PREFIX = "spool-"


class Spool:
    """One transaction's blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self.size_bytes = 0
        self.aborted: list[int] = []
        """Parts of the transaction that were rolled back."""
        self.relations: list[int] = []
        """When each of the descriptions in the blocks arrived, by the decoder's count."""

    def append(self, frames: Bytes) -> None:
        """Add whole frames."""
        with io_errors(self._path):
            if self._file is None:
                self._file = FileIO(self._path, "w+b")
            unwritten = frames.data
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        self.size_bytes += len(frames)
        failpoint.hit("receiver.after_spool")

    def aborted_parts(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the parts that were rolled back, in order."""
        return np.unique(np.array(self.aborted, np.int64))

    def read(self, after_each: Callable[[], object] = lambda: None) -> Iterator[Bytes]:
        """Yield all frames again, a bounded number of whole ones at a time.

        `after_each` is called when a piece's memory is free again, for whatever is made of what it held.
        """
        if self._file is None:
            return
        with io_errors(self._path):
            self._file.seek(0)
            rest, wanted = np.empty(0, np.uint8), 0
            while True:
                buffer = np.empty(max(_READ_BYTES, wanted + FRAME_BYTES), np.uint8)
                buffer[: len(rest)] = rest
                count = self._file.readinto(buffer[len(rest) :].data)
                if not count:
                    return
                have = len(rest) + count
                used, stop, wanted = follow(buffer, 0, have, np.zeros(len(Followed), np.int64))
                assert stop == Stop.END
                rest = buffer[used:have].copy()
                yield buffer[:used]
                del buffer
                after_each()

    def remove(self) -> None:
        """Forget the transaction."""
        if self._file is not None:
            self._file.close()
            with io_errors(self._path):
                self._path.unlink(missing_ok=True)


class Spools:
    """The transactions in progress, by their id."""

    def __init__(self, root: Path) -> None:
        # Of this process alone: an earlier one that is still alive must not write into a file of ours.
        self._folder = root / f"{_PREFIX}{uuid.uuid4().hex}"
        self._open: dict[int, Spool] = {}
        with io_errors(root):
            for earlier in root.glob(f"{_PREFIX}*"):  # and nothing else, whatever folder we are given
                shutil.rmtree(earlier, ignore_errors=True)
            self._folder.mkdir(parents=True)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(spool.size_bytes for spool in self._open.values())

    def get(self, xid: int) -> Spool:
        """Return a transaction's blocks, none to begin with."""
        if xid not in self._open:
            self._open[xid] = Spool(self._folder / str(xid))
        return self._open[xid]

    def remove(self, xid: int) -> None:
        """Forget a transaction."""
        spool = self._open.pop(xid, None)
        if spool is not None:
            spool.remove()

    def close(self) -> None:
        """Forget them all."""
        for xid in list(self._open):
            self.remove(xid)
