"""A place in the source's write-ahead log, and the order of changes in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")
_LOW_BITS = 32
_LIMIT = 1 << 64
_NUMBER_FORMATS = tuple("bcdoxXn")


class Lsn(int):
    """A log sequence number: a byte position in the write-ahead log, written `16/B374D848`."""

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Self:
        """Refuse what the server could not have sent."""
        if not 0 <= value < _LIMIT:
            raise ValueError(f"not a log position: {value}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read the form Postgres prints, `high/low` in hexadecimal."""
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"not a log position: {text!r}")
        return cls(int(match[1], 16) << _LOW_BITS | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> _LOW_BITS:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"

    # f"{lsn}" must read like str(lsn); int's own __format__ would print the number.
    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec) if spec[-1:] in _NUMBER_FORMATS else format(str(self), spec)


NOWHERE = Lsn(0)
"""Before everything: what the server takes for "no position"."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A change's place in the total order of changes.

    `commit_lsn` is the position of its transaction's commit record; `ordinal` counts the
    transaction's messages, its Begin being 0. No two changes of one source share a position.
    """

    commit_lsn: Lsn
    ordinal: int

    @property
    def sequence_key(self) -> str:
        """A string that sorts as positions do, for destinations that need one ordering column."""
        return f"{int(self.commit_lsn):016x}/{self.ordinal:016x}"
