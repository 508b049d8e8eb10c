"""Numbers as the wire has them, for compiled loops: most significant byte first. The caller minds the bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.wire.compiled import compiled


@compiled
def u16(data: Any, at: Any) -> Any:
    """Read an unsigned number of two bytes."""
    return (np.int64(data[at]) << 8) | np.int64(data[at + 1])


@compiled
def u32(data: Any, at: Any) -> Any:
    """Read an unsigned number of four bytes."""
    return (u16(data, at) << 16) | u16(data, at + 2)


@compiled
def i64(data: Any, at: Any) -> Any:
    """Read a number of eight bytes."""
    return (u32(data, at) << 32) | u32(data, at + 4)
