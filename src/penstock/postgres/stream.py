"""A logical replication stream over libpq: messages out, status updates in, nothing ever waits for long."""

from __future__ import annotations

import select
from typing import Any

import psycopg
from psycopg import pq

from penstock.errors import ErrorKind, SourceError
from penstock.model.lsn import Lsn
from penstock.model.table import quote_identifier
from penstock.postgres.connection import source_errors

_MESSAGES_PER_READ = 4096  # so that timers get their turn under a flood: about 20 ms of decoding


class ReplicationStream:
    """One slot's stream of changes. Takes the connection over, and closes it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._pg = connection.pgconn

    def start(self, slot: str, publication: str, start_lsn: Lsn) -> None:
        """Start streaming the transactions that end after `start_lsn` and after what the server knows to be flushed."""
        names = quote_identifier(publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start_lsn}"
            f" (proto_version '1', publication_names '{names}')"
        )
        with source_errors():
            result = self._pg.exec_(command.encode())
            if result.status != pq.ExecStatus.COPY_BOTH:
                raise psycopg.errors.error_from_result(result)
        self._pg.nonblocking = 1

    def fileno(self) -> int:
        """Return the socket, for `select`."""
        return self._pg.socket

    def receive(self) -> list[bytes]:
        """Return the messages that have arrived, at most a few thousand, without waiting."""
        messages = self._drain()
        if not messages and select.select([self._pg.socket], [], [], 0)[0]:
            with source_errors():
                self._pg.consume_input()
            messages = self._drain()
        return messages

    def send(self, message: bytes) -> None:
        """Send a status update; what the socket does not take now is sent with the next one."""
        with source_errors():
            self._pg.put_copy_data(message)
            self._pg.flush()

    def close(self) -> None:
        """End the stream and the connection."""
        self._connection.close()

    def _drain(self) -> list[bytes]:
        messages: list[bytes] = []
        get = self._pg.get_copy_data
        while len(messages) < _MESSAGES_PER_READ:
            with source_errors():
                size, data = get(1)
            if size > 0:
                messages.append(bytes(data))
            elif size == 0:
                return messages
            else:
                raise self._ended()
        return messages

    def _ended(self) -> Exception:
        with source_errors():
            result = self._pg.get_result()
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
        return SourceError("the source ended the replication stream", kind=ErrorKind.SOURCE_CONNECTION_FAILED)
