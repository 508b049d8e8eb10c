"""The bytes that were read and not yet handed over, and where they may be cut.

Blocks end between transactions wherever there is such a place, so that everything handed over so far
can be sealed as whole transactions; only one that is larger than the buffer is handed over in parts.
Knows neither sockets nor threads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.errors import WireError
from penstock.model.lsn import Lsn
from penstock.wire.scan import FRAME_BYTES, Bytes, Followed, Stop, follow

BLOCK_BYTES = 4 << 20
_SPARE = 8  # with less than this part of it free a buffer counts as full: small reads cost more than they bring


class Intake:
    """One stream's bytes on their way in."""

    def __init__(
        self, end_lsn: Lsn, on_other_frame: Callable[[bytes, bytes], None], block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._on_other_frame = on_other_frame
        self._block_bytes = block_bytes
        self._buffer = np.empty(block_bytes, np.uint8)
        self._have = 0
        self._at = 0
        self._wanted = 0
        """How large the next frame is, where that is known."""
        self._state = np.zeros(len(Followed), np.int64)
        self._state[Followed.RECEIVED] = self._state[Followed.END_LSN] = end_lsn

    @property
    def room(self) -> memoryview:
        """Where the next bytes go."""
        return self._buffer[self._have :].data

    @property
    def capacity(self) -> int:
        """Bytes of memory in use."""
        return len(self._buffer)

    @property
    def received(self) -> Lsn:
        """The server's end of WAL as it last told."""
        return Lsn(self._state[Followed.RECEIVED])

    @property
    def end_lsn(self) -> Lsn:
        """Every transaction that committed before this position has been received whole."""
        return Lsn(self._state[Followed.END_LSN])

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction, or a block of one in progress, is open."""
        return bool(self._state[Followed.IN_TRANSACTION] or self._state[Followed.IN_STREAM])

    @property
    def whole_bytes(self) -> int:
        """How much there is up to the last place between transactions."""
        return int(self._state[Followed.BOUNDARY])

    @property
    def commits(self) -> int:
        """How many transactions have committed since `forget_commits`."""
        return int(self._state[Followed.COMMITS])

    @property
    def is_full(self) -> bool:
        """Whether something must be handed over, or the buffer grow, before more is read."""
        has_little_room = len(self._buffer) - self._have < self._block_bytes // _SPARE
        # The last bytes of one frame that fills the buffer are read: handing over nothing would make no room.
        return (has_little_room and self._at > 0) or self.wanted_bytes > 0

    @property
    def wanted_bytes(self) -> int:
        """How large the buffer would have to be for the frame that is coming in, if it is too small for it."""
        needed = self._wanted + FRAME_BYTES
        return needed if self._wanted and self._at == 0 and needed > len(self._buffer) else 0

    def forget_commits(self) -> None:
        """Begin to count anew."""
        self._state[Followed.COMMITS] = 0

    def take_reply_requested(self) -> bool:
        """Say whether the server asked for an answer since the last time."""
        requested = bool(self._state[Followed.REPLY_REQUESTED])
        self._state[Followed.REPLY_REQUESTED] = 0
        return requested

    def advance(self, count: int) -> None:
        """Take note of bytes that were put into the room."""
        self._have += count
        while True:
            self._at, stop, self._wanted = follow(self._buffer, self._at, self._have, self._state)
            if stop == Stop.END:
                return
            if stop == Stop.MALFORMED:
                raise WireError("the replication stream is malformed: it has something that is not a message")
            self._drop_other_frame()

    def cut_whole(self) -> Bytes:
        """Hand over everything up to the last place between transactions."""
        return self._cut(self.whole_bytes)

    def cut_all(self) -> Bytes:
        """Hand over all whole frames."""
        return self._cut(self._at)

    def grow(self) -> None:
        """Make the buffer as large as the next frame wants."""
        self._move(0, max(self.wanted_bytes, self._block_bytes))

    def _cut(self, end: int) -> Bytes:
        block = self._buffer[:end]
        self._move(end, max(self._block_bytes, self._have - end))
        return block

    def _move(self, start: int, capacity: int) -> None:
        rest = self._buffer[start : self._have]
        self._buffer = np.empty(capacity, np.uint8)
        self._buffer[: len(rest)] = rest
        self._have, self._at = len(rest), self._at - start
        self._state[Followed.BOUNDARY] = max(0, self._state[Followed.BOUNDARY] - start)

    def _drop_other_frame(self) -> None:
        """Give away a frame that is not the stream's data, and close the gap: decoders never meet one."""
        after = self._at + self._wanted
        frame = self._buffer[self._at : after].tobytes()
        self._on_other_frame(frame[:1], frame[FRAME_BYTES:])
        rest = self._buffer[after : self._have].copy()
        self._have = self._at + len(rest)
        self._buffer[self._at : self._have] = rest
