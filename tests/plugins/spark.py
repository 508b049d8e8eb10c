"""Spark for tests: one session for the whole run, started when a test first needs it.

Its master is this process, or what `--master` says: tests marked `cluster` are run a second time with executors that
are processes of their own. `--master standalone` starts a master and two workers, as on separate machines.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.config.destination import SQLITE_PACKAGE
from penstock.config.s3 import AWS_PACKAGE
from penstock.spark.java import find_java_home
from penstock.spark.session import FORMATS, SparkSettings, open_session

LOCAL = "local[2]"
STANDALONE = "standalone"
WORKERS = 2
_PATIENCE_S = 60
_SPARK_HOME = Path(pyspark.__file__).parent
# No test runs long enough to earn back what Java's second compiler costs, which is half of the JVM's time; programs
# that tests start inherit this.
_JAVA = "-XX:TieredStopAtLevel=1"
os.environ.setdefault("SPARK_SUBMIT_OPTS", _JAVA)
_EXECUTOR = {
    "spark.executor.memory": "1g",
    "spark.executor.cores": "1",
    "spark.cores.max": str(WORKERS),
    "spark.executor.extraJavaOptions": _JAVA,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--master", default=LOCAL, help=f"where Spark runs: a master's URL, or {STANDALONE} to start one")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--master") == LOCAL:
        elsewhere = [item for item in items if item.get_closest_marker("cluster_only")]
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]
    for item in items:
        # PySpark leaves the sockets that results come through to the garbage collector.
        if "spark" in getattr(item, "fixturenames", ()) or item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder: Path = tmp_path_factory.mktemp("spark")
    with contextlib.ExitStack() as stack:
        master = request.config.getoption("--master")
        if master == STANDALONE:
            master = stack.enter_context(standalone_cluster(folder))
        session = _open(master, folder)
        yield session
        session.stop()


def _open(master: str, folder: Path) -> SparkSession:
    conf = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": "1",
        **(_EXECUTOR if master != LOCAL else {}),
    }
    settings = SparkSettings(
        master=master,
        conf=conf,
        formats=tuple(FORMATS),
        packages=(SQLITE_PACKAGE, AWS_PACKAGE),
        log_file=folder / "jvm.log",
    )
    return open_session(settings, "penstock-tests")


@contextlib.contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Run a master and two workers of one core each, and yield the master's address."""
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(_daemon("master.Master", ["--port", "0", "--webui-port", "0"], log))
        master = _awaited(log, r"Starting Spark master at (spark://\S+)")
        for number in range(WORKERS):
            place = folder / f"worker-{number}"
            given = ["--cores", "1", "--memory", "1500m", "--webui-port", "0", "--work-dir", str(place), master]
            log = folder / f"worker-{number}.log"
            stack.enter_context(_daemon("worker.Worker", given, log))
            _awaited(log, r"(Successfully registered)")
        yield master


@contextlib.contextmanager
def _daemon(name: str, arguments: list[str], log: Path) -> Iterator[None]:
    environment = {**os.environ, "JAVA_HOME": str(find_java_home()), "SPARK_HOME": str(_SPARK_HOME)}
    command = [str(_SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            env={**environment, "SPARK_DAEMON_MEMORY": "256m"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _awaited(log: Path, pattern: str) -> str:
    """Wait for a line in a daemon's log, and return what was looked for in it."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found[1]
