"""What is done with a value that its target type cannot hold."""

from __future__ import annotations

from enum import StrEnum


class SpecialValues(StrEnum):
    """The special-value policy: of ±infinity, BC, years past 9999, NaN in a decimal, nested arrays."""

    ERROR = "error"
    """Refused: the table stops, and nothing is altered."""
    NULL = "null"
    """Replaced by NULL."""
    CLAMP = "clamp"
    """Replaced by the nearest value the type holds; by NULL where none is near."""
    STRING = "string"
    """Kept, in Postgres's own text: the whole column becomes a string."""
