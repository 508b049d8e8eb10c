"""Opens Spark: the JVM, its jars and its settings, without a word on the user's terminal.

Jars are resolved through Ivy once, into a folder of their own, and given to every later start as
files, so that starting needs neither network nor Ivy. The JVM ends with the Python process, also
when that is killed: it reads a pipe whose other end only this process holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.errors import ConfigError, ErrorKind, PenstockError, StateError
from penstock.spark.java import default_cache_dir, find_java_home

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

DELTA_PACKAGE = "io.delta:delta-spark_4.1_2.13:4.4.0"
ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


@dataclass(frozen=True)
class TableFormat:
    """What Spark needs in order to know a format of tables."""

    package: str
    extension: str
    conf: Mapping[str, str] = field(default_factory=dict)


FORMATS: Mapping[str, TableFormat] = {
    "delta": TableFormat(
        DELTA_PACKAGE,
        "io.delta.sql.DeltaSparkSessionExtension",
        {
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
        },
    ),
    "iceberg": TableFormat(ICEBERG_PACKAGE, "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"),
}
"""Every format that Penstock writes, by the name of its destination."""

# Spark brings these itself; leaving them out saves half of the download.
_EXCLUDED = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
_ARTIFACT = re.compile(r"(?:.*_)?(?P<name>[A-Za-z][A-Za-z0-9.\-]*?(?:_\d[\d.]*)*)-\d[^/]*\.jar\Z")
_LOCAL_MASTER = re.compile(r"local(?:\[(?P<cores>\d+|\*)\])?")
_TASK_ATTEMPTS = 4
"""Spark's own default for clusters. A worker that is killed takes a task with it, and not the copy of a table."""
_TAIL_BYTES = 2000


@dataclass(frozen=True)
class SparkSettings:
    """How to start Spark; the defaults suit one machine."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of the user's; they win over ours."""
    driver_memory: str = "2g"
    cache_dir: Path | None = None
    """Where resolved jars are kept; below the user's cache folder if not given."""
    formats: tuple[str, ...] = ("delta",)
    """Names in `FORMATS`: those whose tables the session reads or writes."""
    packages: tuple[str, ...] = ()
    """What it needs besides, as Maven coordinates."""
    log_file: Path | None = None
    """Where the JVM's own output goes; nowhere if not given."""

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one JVM."""
        return self.master.startswith("local") and not self.master.startswith("local-cluster")

    @property
    def all_packages(self) -> tuple[str, ...]:
        """The Maven coordinates of everything the session needs."""
        return (*(FORMATS[name].package for name in self.formats), *self.packages)


def open_session(settings: SparkSettings, app_name: str) -> SparkSession:
    """Start a JVM and return its session; a process has one at a time.

    Raises `PenstockError` if there is no suitable Java, a jar cannot be had, or the JVM does not start.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    jars = resolve_jars(settings.all_packages, settings.cache_dir)
    conf = SparkConf(loadDefaults=False).setAll(list(session_conf(settings, app_name, jars).items()))
    if SparkContext._active_spark_context is not None:  # noqa: SLF001  (there is no public question)
        raise StateError("Spark is already running in this process; stop its session first.")
    # PySpark prints failed statements, with the values in them, as JSON on stderr.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    with _environment(settings):
        # A JVM outlives its session: the next session of this process goes on in it.
        gateway = SparkContext._gateway or _launch(conf, settings.log_file)  # noqa: SLF001
        context = SparkContext(conf=conf, gateway=gateway)
        context.setLogLevel("ERROR")
        return SparkSession(context)


def session_conf(settings: SparkSettings, app_name: str, jars: Sequence[Path] = ()) -> dict[str, str]:
    """Return every setting a session starts with, each with its reason here."""
    conf = {
        "spark.app.name": app_name,
        "spark.master": _patient(settings.master),
        "spark.driver.memory": settings.driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Postgres tells "Id" from "id", and so must we.
        "spark.sql.caseSensitive": "true",
        # The change log's pages have checksums, which Spark does not look at unless told to.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # What Spark hides from its logs and pages by itself, and what REST catalogs call their secrets.
        "spark.redaction.regex": "(?i)secret|password|token|credential|access[.]?key",
        **{f"spark.executorEnv.{name}": value for name, value in _WORKER_ENVIRONMENT.items()},
        **_format_conf(settings.formats),
        # Delta reads a table's log with 50 partitions by default: seconds per statement for nothing.
        "spark.databricks.delta.snapshotPartitions": "1" if settings.is_local else "2",
        **(_LOCAL if settings.is_local else {}),
    }
    conf.update(settings.conf)
    # In one JVM the class path is enough; spark.jars would copy each file at every start.
    _append(conf, "spark.driver.extraClassPath" if settings.is_local else "spark.jars", jars, settings.is_local)
    return conf


def _patient(master: str) -> str:
    """Let a task be tried as often in one JVM as in a cluster: there, `local[2]` would mean once."""
    match = _LOCAL_MASTER.fullmatch(master)
    return f"local[{match['cores'] or 1},{_TASK_ATTEMPTS}]" if match else master


# A Python worker that copies takes and frees some megabytes for every batch and row group. Given back to the system
# each time, they come back as pages to be cleared and faulted in: a sixth of the worker's CPU.
_WORKER_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most that the C library allows
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}


def _format_conf(names: Sequence[str]) -> dict[str, str]:
    formats = [FORMATS[name] for name in names]
    if not formats:
        return {}
    conf = {"spark.sql.extensions": ",".join(each.extension for each in formats)}
    for each in formats:
        conf.update(each.conf)
    return conf


_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    # With no more partitions than cores there is nothing to coalesce, and planning each stage anew costs a small
    # MERGE a quarter of its time: eight tables caught up in 31 s rather than 43.
    "spark.sql.adaptive.enabled": "false",
    # Delta's VACUUM lists a table with 10,000 tasks by default: a minute of nothing on one machine.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(os.cpu_count() or 2),
}


def resolve_jars(packages: Sequence[str], cache_dir: Path | None = None) -> list[Path]:
    """Return the packages' jars, fetching them from Maven the first time.

    Safe in several processes at once: one resolves, the others wait for it. Each package has its own folder, so that
    pipelines with other packages share what they have in common.
    """
    root = (cache_dir or default_cache_dir()) / "jars"
    jars = [jar for package in packages for jar in sorted(_package_folder(root, package).glob("*.jar"))]
    # One that two packages bring is there once.
    return list({jar.name: jar for jar in jars}.values())


def _package_folder(root: Path, package: str) -> Path:
    folder = root / re.sub(r"[^A-Za-z0-9.\-]+", "_", package)
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / ".lock"):
            if not folder.is_dir():
                _resolve_into(folder, [package])
    return folder


def _resolve_into(folder: Path, packages: Sequence[str]) -> None:
    """Fetch into a scratch folder and rename it: a folder that exists is complete."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".resolving-") as scratch:
        ivy, kept = Path(scratch) / "ivy", Path(scratch) / "jars"
        _run_ivy(ivy, packages)
        kept.mkdir()
        for jar in _foreign_to_spark((ivy / "jars").glob("*.jar")):
            shutil.copy(jar, kept / jar.name)
        kept.rename(folder)


def _run_ivy(ivy: Path, packages: Sequence[str]) -> None:
    """Let spark-submit resolve: it does so before it runs anything, and what it then runs ends on EOF."""
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False).setAll(
        [
            ("spark.jars.packages", ",".join(packages)),
            ("spark.jars.excludes", _EXCLUDED),
            ("spark.jars.ivy", str(ivy)),
            ("spark.master", "local[1]"),
        ]
    )
    with _environment(SparkSettings()):
        gateway = _launch(conf, None, "The jars of " + ", ".join(packages) + " could not be resolved")
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _foreign_to_spark(jars: Iterable[Path]) -> Iterator[Path]:
    """Leave out what Spark has in its own jars folder: its versions must win on the class path."""
    own = {_artifact(path.name) for path in (_spark_home() / "jars").glob("*.jar")}
    return (jar for jar in jars if _artifact(jar.name) not in own)


def _artifact(file_name: str) -> str:
    """Return the artifact's name, without Ivy's `<group>_` before it and the version behind."""
    match = _ARTIFACT.match(file_name)
    return match["name"] if match else file_name


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _launch(conf: SparkConf, log_file: Path | None, failure: str = "Spark's JVM did not start") -> Any:
    """Start the JVM with its output in a file, and quote that file's end if it fails."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    with _output(log_file) as output:
        # A session of its own keeps signals for our process group away: the JVM ends when we do, or say so.
        options = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        try:
            return launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
            said = output.read().decode(errors="replace").strip()
            raise PenstockError(f"{failure}; it said: …{said}", kind=ErrorKind.CONFIG, remedy=_START_REMEDY) from error


_START_REMEDY = (
    "Check spark.master, spark.conf and free memory; the first start needs network access to a Maven repository."
)


def _output(log_file: Path | None) -> IO[bytes]:
    if log_file is None:
        return tempfile.TemporaryFile()
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        return log_file.open("a+b")
    except OSError as error:
        raise ConfigError(f"Spark's log file {log_file} cannot be written: {error.strerror}.") from error


@contextlib.contextmanager
def _environment(settings: SparkSettings) -> Iterator[None]:
    """Set what PySpark reads from the environment while it starts, and put back what was there.

    Workers must run this interpreter: another one lacks our modules, or pyarrow.
    """
    wanted = {"JAVA_HOME": str(find_java_home(cache_dir=settings.cache_dir)), "SPARK_HOME": str(_spark_home())}
    if "spark.pyspark.python" not in settings.conf:
        wanted["PYSPARK_PYTHON"] = sys.executable
    former = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in former.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _append(conf: dict[str, str], name: str, jars: Sequence[Path], is_class_path: bool) -> None:
    """Add jars to a setting that the user may have used too."""
    separator = os.pathsep if is_class_path else ","
    conf[name] = separator.join(filter(None, [conf.get(name, ""), *map(str, jars)]))
