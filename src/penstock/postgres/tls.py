"""TLS over a socket that we read ourselves, because a server makes one record of every small message.

OpenSSL on a socket makes two system calls per record. Here large reads feed it from memory, and
records are decrypted one behind the other, straight into the caller's buffer.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from penstock.errors import ErrorKind, SourceError
from penstock.postgres.connection import SourceAddress, connection_error
from penstock.postgres.transport import PlainTransport

CHUNK_BYTES = 256 * 1024
"""What is read ahead of decryption, and with it the memory that a session holds: it should fit the CPU's cache."""


class TlsTransport:
    """An encrypted session on a plain one."""

    def __init__(self, plain: PlainTransport, context: ssl.SSLContext, server_name: str) -> None:
        self._plain = plain
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        try:
            self.session = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        except ValueError:
            raise connection_error("the host's name is not one that a certificate can bear") from None
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._is_drained = False
        self._is_over = False

    def fileno(self) -> int:
        """Return the socket, for `poll`."""
        return self._plain.fileno()

    @property
    def has_pending(self) -> bool:
        """Whether bytes have arrived that `poll` cannot see: the caller's buffer was full before they were through."""
        return not self._is_drained and bool(self._incoming.pending or self.session.pending())

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for the socket to take them."""
        return self._plain.wants_write

    def shake_hands(self) -> bool:
        """Go on with the handshake as far as it goes, and say whether it is done."""
        while not self._is_agreed():
            if not self._load():
                return False
        return True

    def receive_into(self, view: memoryview) -> int:
        """Take what has arrived, as much as fits; 0 when nothing has. Raises once the connection has ended."""
        filled = self._decrypt(view, 0)
        try:
            while filled < len(view) and self._load():
                filled = self._decrypt(view, filled)
        except SourceError:
            # What came before the end is the caller's first; the end is met again at the next call.
            if not filled:
                raise
        # An answer to a key update, which OpenSSL gives by itself.
        self._send_records()
        return filled

    def send(self, data: bytes) -> None:
        """Give the socket what it takes now, and keep the rest for `flush`."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self.session.write(rest) :]
        except ssl.SSLError:
            return
        self._send_records()

    def flush(self) -> None:
        """Give the socket what it takes now of what was kept."""
        self._plain.flush()

    def close(self) -> None:
        """Close the socket."""
        self._plain.close()

    def _is_agreed(self) -> bool:
        try:
            self.session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _tls_error(error) from None
        finally:
            self._send_records()
        return True

    def _load(self) -> int:
        """Read a chunk of records off the socket; 0 when none is there."""
        size = self._plain.receive_into(self._chunk)
        if size:
            self._incoming.write(self._chunk[:size])
        return size

    def _decrypt(self, view: memoryview, filled: int) -> int:
        """Decrypt records behind what is filled, until there are no more or no room; return what is filled then.

        One call into OpenSSL per record is all there is to a record here: this is the inner loop.
        """
        if self._is_over:
            raise connection_error("the server closed the connection")
        read: Callable[[int, memoryview], int] = self.session.read  # type: ignore[assignment]
        size = len(view)
        try:
            while filled < size and (taken := read(size - filled, view[filled:])):
                filled += taken
        except ssl.SSLWantReadError:
            self._is_drained = True
            return filled
        except ssl.SSLError as error:
            raise _tls_error(error) from None
        self._is_drained = False
        self._is_over = filled < size
        return filled

    def _send_records(self) -> None:
        if self._outgoing.pending:
            self._plain.send(self._outgoing.read())


def client_context(address: SourceAddress) -> ssl.SSLContext:
    """Return what TLS is to check and to show, with libpq's meaning of `sslmode`.

    As with libpq, trusted certificates that are given are checked against in every mode. Unlike it,
    files in the home folder are not looked for, and certificates that are given must be there.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if address.sslrootcert is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = address.sslmode == "verify-full"
        _trust(context, address.sslrootcert, address.sslmode)
    elif address.sslmode.startswith("verify-"):
        raise _unusable(f"sslmode {address.sslmode} needs trusted certificates, and none are given")
    if address.sslcert is not None:
        _show(context, address.sslcert, address.sslkey)
    return context


def _trust(context: ssl.SSLContext, certificates: str, mode: str) -> None:
    if certificates == "system":
        # Any of the world's authorities may vouch for any name, so the name has to be checked.
        if mode != "verify-full":
            raise _unusable(f"the system's trusted certificates need sslmode verify-full, not {mode}")
        context.set_default_verify_paths()
        return
    try:
        context.load_verify_locations(certificates)
    except OSError as error:
        raise _unusable(f"the trusted certificates in {certificates} cannot be used: {_reason(error)}") from None


def _show(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    try:
        # An encrypted key must not ask for its password on a terminal that nobody watches.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise _unusable(f"the client certificate {certificate} or its key cannot be used: {_reason(error)}") from None


def _unusable(what: str) -> SourceError:
    return SourceError(what, kind=ErrorKind.CONFIG, remedy="Correct pipeline.pg_connection.tls.")


def _tls_error(error: ssl.SSLError) -> SourceError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return connection_error(f"certificate verify failed: {error.verify_message}")
    return connection_error(f"TLS failed: {_reason(error)}")


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else error.strerror or type(error).__name__
