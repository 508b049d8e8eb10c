"""The bytes of a connection as the socket has them: taken and given without ever waiting.

A failure to send is never reported where it happens. The server may have said why it closed the
connection, and those words can still be read: so the reader meets them, and then the end.
"""

from __future__ import annotations

import socket
from typing import Protocol

from penstock.errors import SourceError
from penstock.postgres.connection import connection_error


class Transport(Protocol):
    """Bytes to and from one server."""

    def fileno(self) -> int:
        """Return the socket, for `poll`."""

    @property
    def has_pending(self) -> bool:
        """Whether bytes have arrived that `poll` cannot see."""

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for the socket to take them."""

    def receive_into(self, view: memoryview) -> int:
        """Take what has arrived, as much as fits; 0 when nothing has. Raises once the connection has ended."""

    def send(self, data: bytes) -> None:
        """Give the socket what it takes now, and keep the rest for `flush`."""

    def flush(self) -> None:
        """Give the socket what it takes now of what was kept."""

    def close(self) -> None:
        """Close the socket."""


class PlainTransport:
    """The socket itself."""

    has_pending = False

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._unsent = bytearray()

    def fileno(self) -> int:
        """Return the socket, for `poll`."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for the socket to take them."""
        return bool(self._unsent)

    def receive_into(self, view: memoryview) -> int:
        """Take what has arrived, as much as fits; 0 when nothing has. Raises once the connection has ended."""
        try:
            size = self._socket.recv_into(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise lost(error) from None
        if not size and len(view):
            raise connection_error("the server closed the connection")
        return size

    def send(self, data: bytes) -> None:
        """Give the socket what it takes now, and keep the rest for `flush`."""
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Give the socket what it takes now of what was kept."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def lost(error: OSError) -> SourceError:
    """Return the error for a connection that the system reports as broken."""
    return connection_error(f"the connection was lost: {error.strerror or type(error).__name__}")
