"""How a server's socket is reached: every address its name has, within one limit of time."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from penstock.postgres.connection import SourceAddress, connection_error

RECEIVE_BUFFER_BYTES = 4 << 20
"""Room for what a server sends while we are busy with what came before."""
_RECEIVE_BUFFER_LIMIT = Path("/proc/sys/net/core/rmem_max")


Place: TypeAlias = tuple[str | int | bytes, ...] | str
"""Where a socket connects to: an internet address, or a file."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment by which something must have happened."""

    limit_s: float
    at: float
    clock: Callable[[], float]

    @classmethod
    def within(cls, limit_s: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline that is so far from now."""
        return cls(limit_s, clock() + limit_s, clock)

    @property
    def left_s(self) -> float:
        """The time that is left."""
        return max(0.0, self.at - self.clock())


def is_local(address: SourceAddress) -> bool:
    """Whether the server is reached through a socket file, which needs no encryption."""
    return address.host.startswith("/") and address.hostaddr is None


def dial(address: SourceAddress, deadline: Deadline) -> socket.socket:
    """Connect to the server. Each of its addresses has its share of the time."""
    places = _places(address)
    failures: list[str] = []
    for number, (family, place) in enumerate(places):
        try:
            return _connect(address, family, place, deadline.left_s / (len(places) - number))
        except OSError as error:
            failures.append(f"{_name(place)}: {_why(error)}")
    raise connection_error("; ".join(failures))


def _places(address: SourceAddress) -> list[tuple[socket.AddressFamily, Place]]:
    if is_local(address):
        return [(socket.AF_UNIX, f"{address.host}/.s.PGSQL.{address.port}")]
    try:
        found = socket.getaddrinfo(address.hostaddr or address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise connection_error(f"the host's name has no address: {error.strerror}") from None
    except UnicodeError:
        raise connection_error("the host's name is not a name that a host can have") from None
    return [(family, place) for family, _, _, _, place in found]


def _connect(address: SourceAddress, family: socket.AddressFamily, place: Place, limit_s: float) -> socket.socket:
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family is not socket.AF_UNIX:
            _configure(connecting, address)
        connecting.settimeout(max(limit_s, 0.001))  # 0 would not wait at all
        connecting.connect(place)
    except BaseException:
        connecting.close()
        raise
    return connecting


def _configure(connecting: socket.socket, address: SourceAddress) -> None:
    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, address.keepalives_idle_s)
    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, address.keepalives_interval_s)
    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, address.keepalives_count)
    # Probes wait while something is unacknowledged, and a stream always owes or is owed a status update.
    connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, address.silence_limit_s * 1000)
    if _may_set_receive_buffer():
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)


def _may_set_receive_buffer() -> bool:
    """Tell whether we get as much as we ask for: with less, the kernel's own adjustment is the better choice."""
    with contextlib.suppress(OSError, ValueError):
        return int(_RECEIVE_BUFFER_LIMIT.read_text()) >= RECEIVE_BUFFER_BYTES
    return False


def _name(place: Place) -> str:
    return place if isinstance(place, str) else str(place[0])


def _why(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else error.strerror or type(error).__name__
