"""A small transaction at intervals, for sources where nothing else moves the slot.

Keepalives already free an idle database's WAL. A heartbeat also proves that a commit makes its way through
the stream, and moves slots behind servers or proxies that send no keepalives. It must be transactional:
other messages do not let the source free its WAL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.postgres.connection import Connection, SourceAddress, connect, source_errors

_BEAT = "select pg_catalog.pg_logical_emit_message(true, 'penstock_heartbeat', '')"


class Heartbeat:
    """Beats on a thread of its own until stopped; a source that refuses is told about once, and tried again."""

    def __init__(self, address: SourceAddress, interval_s: float, tell: Callable[..., None]) -> None:
        self._address = address
        self._interval_s = interval_s
        self._tell = tell
        self._connection: Connection | None = None
        self._is_failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin, after the first interval."""
        self._thread.start()

    def stop(self) -> None:
        """End it; a beat under way may still be made."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            try:
                self._beat()
            except PenstockError as error:
                self._complain(error)

    def _beat(self) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._address, application_name="penstock heartbeat")
        with source_errors("sending a heartbeat"):
            self._connection.execute(_BEAT)
        self._is_failing = False

    def _complain(self, error: PenstockError) -> None:
        if not self._is_failing:
            self._tell("heartbeat_failed", message=error.message)
        self._is_failing = True
