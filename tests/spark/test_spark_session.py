from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.errors import StateError
from penstock.spark.session import SparkSettings, open_session

pytestmark = pytest.mark.spark

# Says what Spark computed and which JVM did it, then waits to be killed.
PROGRAM = """
import sys
from pathlib import Path
from pyspark.errors import AnalysisException
from penstock.spark.session import SparkSettings, open_session

spark = open_session(SparkSettings(master="local[1]"), "alone")
doubled = spark.range(5).rdd.map(lambda row: row.id * 2).collect()
try:
    spark.sql("select no_such_column")
except AnalysisException:
    pass
jvm = spark._jvm
print(doubled, jvm.System.getProperty("java.version").split(".")[0], jvm.ProcessHandle.current().pid(), flush=True)
sys.stdin.read()
"""


def wait_for_end(pid: int) -> None:
    """Block until a process that is not our child has ended; the test's own time limit bounds it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 60)[0], "the JVM outlived its driver by a minute"
    finally:
        os.close(descriptor)


@pytest.mark.slow
def test_without_java_the_wheel_runs_spark_silently_and_dies_with_its_driver(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    # The launcher scripts need these; whatever folder they are in may hold a java too.
    for tool in ("bash", "sh", "dirname", "basename", "uname", "cat", "ps", "env", "rm", "sed", "tr", "id", "readlink"):
        found = next((Path(d) / tool for d in [*os.defpath.split(":"), "/usr/bin"] if (Path(d) / tool).exists()), None)
        if found:
            (tools / tool).symlink_to(found)
    environ = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "SPARK_HOME"}}
    command = [sys.executable, "-c", PROGRAM]
    driver = subprocess.Popen(
        command,
        env={**environ, "PATH": str(tools)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with driver:
        assert driver.stdout is not None
        assert driver.stderr is not None
        said = driver.stdout.readline()
        driver.kill()
        assert driver.stderr.read() == ""
        assert driver.stdout.read() == ""
    result, java_version, jvm = said.rsplit(maxsplit=2)
    assert result == "[0, 2, 4, 6, 8]"
    assert java_version == "21"
    wait_for_end(int(jvm))


def test_a_second_session_is_refused_while_one_is_open(spark: SparkSession) -> None:
    with pytest.raises(StateError):
        open_session(SparkSettings(), "second")


def test_the_session_keeps_times_and_names_as_postgres_has_them(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.caseSensitive") == "true"


def test_workers_keep_the_memory_that_they_will_want_again(spark: SparkSession) -> None:
    def backend(_: int) -> str:
        return pa.default_memory_pool().backend_name

    assert spark.sparkContext.parallelize([0], 1).map(backend).collect() == ["system"]
