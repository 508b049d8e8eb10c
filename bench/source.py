"""The source of the benchmarks: a durable server of our own, workloads, and backlogs that wait behind a slot.

A backlog ends with the commit of a marker row, whose position is known exactly; every contender gets
its own copy of the slot that was there before the first change, so all of them are sent the same stream.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.changelog.folder import Folder
from penstock.changelog.writer import create_log
from penstock.model.lsn import Lsn
from penstock.model.table import quote_identifier
from penstock.postgres.connection import SourceAddress
from penstock.postgres.embedded import EmbeddedServer, ServerBinaries
from penstock.testing.postgres import Cluster, Database, wait_until

PUBLICATION = "bench"
MARKER_CHANGES = 1
"""What the marker adds to the changes of a backlog."""
_BASE_SLOT = "bench_base"
_HOST_NAME = "localhost"
_WRITERS = 2
"""Sessions that write transactions of one row: their commits are the cost, and the machine may have two cores."""

SETTINGS = {
    # Generous, as on a real server: a checkpoint seldom falls into a measurement, and each backlog starts after one.
    "shared_buffers": "512MB",
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    # Vacuum would take one of few cores whenever it likes.
    "autovacuum": "off",
    "log_min_messages": "warning",
    # Two thousand tables in one transaction.
    "max_locks_per_transaction": "256",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A running server. Everything written during a run is below `directory`."""

    cluster: Cluster
    directory: Path
    certificate: Path | None
    """What a client trusts to reach the server over TLS; None where the server was built without it."""

    @property
    def version_major(self) -> int:
        """The server's major version."""
        return self.cluster.version_major

    def program(self, name: str) -> str:
        """Return the path of one of the server's programs."""
        return self.cluster.server.binaries.program(name)

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """Lend a database with the workload's tables and procedures."""
        with self.cluster.database() as database:
            database.execute(Path(__file__).with_name("workload.sql").read_text())
            yield database

    def address(self, database: Database, *, tls: bool) -> SourceAddress:
        """Return how to reach a database, in the clear or over TLS with the server's name verified."""
        if not tls:
            return replace(database.address, sslmode="disable")
        return replace(
            database.address,
            host=_HOST_NAME,
            hostaddr=database.host,
            sslmode="verify-full",
            sslrootcert=str(self.certificate),
        )


def knows_tls(binaries: ServerBinaries) -> bool:
    """Tell whether a server was built with OpenSSL: those of some wheels are not."""
    return b"libssl" in Path(binaries.program("postgres")).read_bytes()


@contextlib.contextmanager
def start_source(binaries: ServerBinaries) -> Iterator[Source]:
    """Start a server whose commits are fsynced, with TLS where it can; it is gone afterwards, with all files."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    server = EmbeddedServer(binaries, directory / "postgres", SETTINGS)
    try:
        server.start()
        yield Source(Cluster(server), directory, _enable_tls(server) if knows_tls(binaries) else None)
    finally:
        server.remove()
        shutil.rmtree(directory, ignore_errors=True)


def _enable_tls(server: EmbeddedServer) -> Path:
    certificate = server.cluster_dir / "server.crt"
    _write_certificate(certificate, server.cluster_dir / "server.key")
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("alter system set ssl = on")
        connection.execute("select pg_reload_conf()")
    wait_until(lambda: _speaks_tls(server), "the server to speak TLS")
    # Clients cannot see into the server's own directory.
    return Path(shutil.copy(certificate, server.data_dir.parent / "server.crt"))


def _speaks_tls(server: EmbeddedServer) -> bool:
    try:
        psycopg.connect(server.conninfo(sslmode="require")).close()
    except psycopg.OperationalError:
        return False
    return True


def _write_certificate(certificate: Path, key: Path) -> None:
    """Make a self-signed certificate for the loopback address; both files belong to the server's user."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _HOST_NAME)])
    names = [x509.DNSName(_HOST_NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=7))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.touch(mode=0o600)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    owner = key.parent.stat()
    for path in (certificate, key):
        shutil.chown(path, owner.st_uid, owner.st_gid)


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of workload: which operations, in transactions of how many rows."""

    operations: str
    rows_per_transaction: int

    @property
    def name(self) -> str:
        """What the shape is called on the command line and in results."""
        return f"{self.operations}-{self.rows_per_transaction}"


SHAPES = {
    shape.name: shape
    for shape in (Shape(operations, rows) for operations in ("inserts", "mix") for rows in (1, 100, 10_000))
}


def prepare_shape(database: Database, shape: Shape, changes: int) -> None:
    """Put the rows in place that a mix updates and deletes."""
    if shape.operations == "mix":
        database.execute(f"call write_inserts(1, {_existing(changes)}, 100000)")


def write_shape(database: Database, shape: Shape, changes: int) -> None:
    """Write so many changes of a shape."""
    writers = _WRITERS if shape.rows_per_transaction == 1 else 1
    calls = [_call(shape, changes, part, writers) for part in range(writers)]
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(lambda call: _write(database, call), calls))


def _existing(changes: int) -> int:
    """Return how many rows a mix needs: it deletes 15 % of as many as it makes changes, from half of them."""
    return changes * 2 // 5


def _call(shape: Shape, changes: int, part: int, parts: int) -> str:
    share = changes * (part + 1) // parts - changes * part // parts
    first_id = (part + 1) * 1_000_000_000
    common = f"{first_id}, {share}, {shape.rows_per_transaction}"
    if shape.operations == "inserts":
        return f"call write_inserts({common})"
    return f"call write_mix({common}, {_existing(changes)}, {part}, {parts})"


def _write(database: Database, call: str) -> None:
    with database.connect() as connection:
        # Nobody measures the writing: neither an fsync for every commit nor a plan for every statement is worth it.
        connection.execute("set synchronous_commit = off; set plan_cache_mode = force_generic_plan")
        connection.execute(call)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Changes that wait in the source's WAL."""

    source: Source
    database: Database
    changes: int
    """How many, the marker's included."""
    start_lsn: Lsn
    end_lsn: Lsn
    """Where the last transaction ends."""
    _numbers: Iterator[int]

    @contextlib.contextmanager
    def slot(self) -> Iterator[str]:
        """Lend a slot that stands before the first change."""
        name = f"bench_{next(self._numbers)}"
        self.database.execute("select pg_copy_logical_replication_slot(%s, %s)", _BASE_SLOT, name)
        try:
            yield name
        finally:
            wait_until(lambda: not self._is_active(name), f"slot {name} to be let go")
            self.database.execute("select pg_drop_replication_slot(%s)", name)

    @contextlib.contextmanager
    def log(self, slot: str) -> Iterator[Path]:
        """Lend an empty change log for a slot."""
        root = self.source.directory / slot
        [(system_identifier,)] = self.database.execute("select system_identifier::text from pg_control_system()")
        create_log(Folder.on_disk(root), slot=slot, system_identifier=system_identifier, start_lsn=self.start_lsn)
        try:
            yield root
        finally:
            shutil.rmtree(root)

    def walsender_pid(self, slot: str) -> int:
        """Return the server process that sends a slot's stream; 0, which is no process, if it has gone already."""
        [(pid,)] = self.database.execute("select active_pid from pg_replication_slots where slot_name = %s", slot)
        return int(pid or 0)

    def _is_active(self, slot: str) -> bool:
        return self.database.execute("select active from pg_replication_slots where slot_name = %s", slot) != [(False,)]


def make_backlog(
    source: Source, database: Database, tables: Sequence[str], changes: int, write: Callable[[Database], None]
) -> Backlog:
    """Publish tables, take a slot, let `write` make its changes, and end them with a marker."""
    start_lsn = publish(database, tables)
    write(database)
    end_lsn = write_marker(database)
    return Backlog(source, database, changes + MARKER_CHANGES, start_lsn, end_lsn, itertools.count())


def publish(database: Database, tables: Sequence[str]) -> Lsn:
    """Publish tables and the marker, and take the slot that all others are copied from; return where it begins."""
    names = ", ".join(quote_identifier(name) for name in (*tables, "marker"))
    database.execute(f"create publication {PUBLICATION} for table {names}")
    database.execute("checkpoint")
    return _create_slot(database, _BASE_SLOT)


def write_marker(database: Database) -> Lsn:
    """Commit a marker and return where its transaction ends, as the stream will say."""
    probe = "bench_probe"
    _create_slot(database, probe)
    database.execute("insert into marker default values")
    rows = database.execute(
        "select lsn::text from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version', '1',"
        " 'publication_names', %s)",
        probe,
        PUBLICATION,
    )
    database.execute("select pg_drop_replication_slot(%s)", probe)
    return Lsn.parse(rows[-1][0])


def _create_slot(database: Database, name: str) -> Lsn:
    [(lsn,)] = database.execute("select lsn::text from pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    return Lsn.parse(lsn)
