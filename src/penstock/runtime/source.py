"""The source as configured: its address, its slot, and the log that belongs to that slot."""

from __future__ import annotations

import math
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from penstock.changelog.folder import Folder, require_place
from penstock.changelog.header import read_header
from penstock.changelog.reader import LogReader
from penstock.changelog.visitor import open_log
from penstock.changelog.writer import create_log, drop_log
from penstock.config.connection import PgConnectionConfig, is_pem
from penstock.config.pipeline import LogConfig
from penstock.config.s3 import S3Config
from penstock.errors import ErrorKind, LogDamagedError, PenstockError, SourceError
from penstock.model.lsn import Lsn
from penstock.postgres.connection import SourceAddress, connect, source_errors
from penstock.postgres.slot import SlotState, create_slot, drop_slot, read_slot
from penstock.storage.s3 import S3Settings


def log_folder(config: LogConfig, state_dir: Path) -> Folder:
    """Return where the change log is."""
    if config.location is None:
        return Folder.on_disk(state_dir / "log")
    return Folder(config.location, s3_settings(config.s3) if "://" in config.location else None)


def s3_settings(config: S3Config) -> S3Settings:
    """Return how a bucket is reached, with what the configuration hides."""
    return S3Settings(
        config.endpoint,
        config.region,
        config.access_key_id,
        _revealed(config.secret_access_key),
        _revealed(config.session_token),
    )


def source_address(config: PgConnectionConfig, state_dir: Path) -> SourceAddress:
    """Return where the source is. Certificates and keys given as text are put into files, where libpq can read them."""
    tls = config.tls
    trusted = _as_file(tls.trusted_root_certs, state_dir / "trusted_root_certs.pem")
    return SourceAddress(
        host=config.host,
        port=config.port,
        dbname=config.name,
        user=config.username,
        password=_revealed(config.password),
        sslmode=tls.mode if tls.enabled else "prefer",
        sslrootcert=(trusted or _trusted_by_default(tls.mode)) if tls.enabled else None,
        sslcert=_as_file(tls.client_cert, state_dir / "client_cert.pem"),
        sslkey=_as_file(_revealed(tls.client_key), state_dir / "client_key.pem"),
        hostaddr=config.hostaddr,
        connect_timeout_s=math.ceil(config.connect_timeout_s),
        keepalives_idle_s=config.keepalive.idle_secs,
        keepalives_interval_s=config.keepalive.interval_secs,
        keepalives_count=config.keepalive.retries,
    )


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _trusted_by_default(mode: str) -> str | None:
    """Return `system` where names are checked; libpq refuses it elsewhere, as public authorities vouch for anyone."""
    return "system" if mode == "verify-full" else None


def _as_file(given: str | None, path: Path) -> str | None:
    """Return the path of a certificate or key; text is put there, whole at any moment and for our eyes only."""
    if given is None or not is_pem(given):
        return given
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:  # of mode 0600
            file.write(given)
        Path(file.name).replace(path)
    except OSError as error:
        raise PenstockError(f"{path} cannot be written: {error.strerror}", kind=ErrorKind.LOG_IO) from None
    return str(path)


@dataclass(frozen=True, slots=True)
class SlotAndLog:
    """A slot and the log of what it sent: they belong together, and neither is any good without the other."""

    address: SourceAddress
    slot: str
    log: Folder
    failover: bool = True

    def open(self, *, may_create: bool) -> LogReader:
        """Return a reader of the log, creating slot and log where `may_create`.

        A slot that is gone or was invalidated, or has moved past the end of the log, means that
        changes are lost: that is an error, never a quiet new beginning.
        """
        require_place(self.log)
        with closing(connect(self.address, application_name="penstock setup")) as connection:
            state = read_slot(connection, self.slot)
            with source_errors("identifying the source"):
                row = connection.execute("select system_identifier::text from pg_control_system()").fetchone()
        assert row is not None
        if not state.exists:
            state = self._create(may_create)
        self._require_usable(state)
        assert state.confirmed_flush_lsn is not None
        create_log(self.log, slot=self.slot, system_identifier=row[0], start_lsn=state.confirmed_flush_lsn)
        self._require_same_source(row[0])
        reader = open_log(self.log)
        self._require_no_gap(state.confirmed_flush_lsn, reader.end_lsn)
        return reader

    def drop(self) -> None:
        """Remove slot and log: everything will be copied anew."""
        with closing(connect(self.address, application_name="penstock setup")) as connection:
            if read_slot(connection, self.slot).exists:
                drop_slot(connection, self.slot, terminate=True)
        drop_log(self.log)

    def _create(self, may_create: bool) -> SlotState:
        if not may_create:
            raise SourceError(
                f"replication slot {self.slot} does not exist, but tables were replicated through it",
                kind=ErrorKind.SLOT_MISSING,
            )
        drop_log(self.log)  # of a slot that is gone
        with closing(connect(self.address, application_name="penstock setup", replication=True)) as connection:
            create_slot(connection, self.slot, failover=self.failover)
        with closing(connect(self.address, application_name="penstock setup")) as connection:
            return read_slot(connection, self.slot)

    def _require_usable(self, state: SlotState) -> None:
        if state.invalidation is not None:
            raise SourceError(
                f"replication slot {self.slot} was invalidated by the source: {state.invalidation}",
                kind=ErrorKind.SLOT_INVALIDATED,
            )

    def _require_same_source(self, system_identifier: str) -> None:
        if read_header(self.log).system_identifier != system_identifier:
            raise LogDamagedError(
                f"the change log in {self.log} belongs to another database cluster than {self.address}",
                kind=ErrorKind.LOG_GAP,
                remedy="Point pg_connection at the cluster it came from, or give this pipeline another log.",
            )

    def _require_no_gap(self, confirmed: Lsn, end_lsn: Lsn) -> None:
        if confirmed > end_lsn:
            raise LogDamagedError(
                f"the source's slot {self.slot} stands at {confirmed}, but the change log ends at {end_lsn}:"
                " what is in between is lost",
                kind=ErrorKind.LOG_GAP,
                remedy="Restore the newest state of the log's folder, or drop the slot and the state to copy anew.",
            )
