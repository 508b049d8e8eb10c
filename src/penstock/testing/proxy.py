"""A network between a client and a server that can be made to fail: to fall silent, to break, or to lose an answer.

Silent, it takes every byte from either side and passes none on, as a proxy does whose other half is gone. It loses an
answer by breaking when that comes, or by giving another: the server has done what it was asked, and its client cannot
know.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from types import TracebackType
from typing import Self

_READ_BYTES = 1 << 16
_LINGER_NOT = struct.pack("ii", 1, 0)
"""A socket that is closed so is reset."""


class Proxy:
    """Passes bytes on, from a port of its own to a server and back, until told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._wake, self._woken = socket.socketpair()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._is_silent = self._is_resetting = self._is_closing = False
        self._lost_request: bytes | None = None
        self._instead = b""
        self._unanswered: set[socket.socket] = set()
        self.has_lost_answer = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.host, self.port = self._listener.getsockname()

    def fall_silent(self) -> None:
        """Pass nothing on any more."""
        self._is_silent = True

    def reset(self) -> None:
        """Break every connection that there is."""
        self._is_resetting = True
        self._wake.send(b"!")

    def lose_answer_to(self, request: bytes, instead: bytes = b"") -> None:
        """Pass on the next request that begins so, and not the answer to it: break, or give another `instead`."""
        self._lost_request, self._instead = request, instead

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closing = True
        self._wake.send(b"!")
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener, self._wake, self._woken:
            for each in (self._listener, self._woken):
                selector.register(each, selectors.EVENT_READ)
            while not self._is_closing:
                for key, _ in selector.select():
                    self._serve(selector, key.fileobj)
            self._break(selector)

    def _serve(self, selector: selectors.BaseSelector, ready: object) -> None:
        if ready is self._listener:
            self._accept(selector)
        elif ready is self._woken:
            self._woken.recv(1)
            if self._is_resetting:
                self._is_resetting = False
                self._break(selector)
        elif isinstance(ready, socket.socket) and ready in self._peers:
            self._pass_on(selector, ready)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        for one, other in ((client, server), (server, client)):
            self._peers[one] = other
            selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, selector: selectors.BaseSelector, ready: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = ready.recv(_READ_BYTES)
        if self._is_silent:
            if not data:
                selector.unregister(ready)  # its end is not passed on either
        elif ready in self._unanswered:
            self._lose_answer(selector, ready)
        elif data:
            if self._lost_request is not None and data.startswith(self._lost_request):
                self._lost_request = None
                self._unanswered.add(self._peers[ready])
            with contextlib.suppress(OSError):
                self._peers[ready].sendall(data)
        else:
            self._forget(selector, ready)

    def _lose_answer(self, selector: selectors.BaseSelector, server: socket.socket) -> None:
        self.has_lost_answer = True
        client = self._peers[server]
        if not self._instead:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        with contextlib.suppress(OSError):
            client.sendall(self._instead)
        self._forget(selector, server)

    def _forget(self, selector: selectors.BaseSelector, gone: socket.socket) -> None:
        for each in (gone, self._peers[gone]):
            with contextlib.suppress(KeyError):
                selector.unregister(each)
            del self._peers[each]
            self._unanswered.discard(each)
            each.close()

    def _break(self, selector: selectors.BaseSelector) -> None:
        for each in list(self._peers):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        while self._peers:
            self._forget(selector, next(iter(self._peers)))
