"""Servers for tests that are Java programs: their jars from Maven Central, run by the Java that Spark runs on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.java import default_cache_dir, find_java_home

_PATIENCE_S = 60
# Small and quick to start: they serve a few requests a second.
_JAVA_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def fetched_jar(spark: SparkSession, server: str, path: str, sha256: str) -> Path:
    """Return one of a server's jars, fetched the first time from where Spark's come from, and kept beside them."""
    kept = default_cache_dir() / server / path.rpartition("/")[2]
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        central: str = spark._jvm.org.apache.ivy.plugins.resolver.IBiblioResolver.DEFAULT_M2_ROOT  # type: ignore[union-attr]
        urllib.request.urlretrieve(f"{central}{path}", partial)
        assert hashlib.sha256(partial.read_bytes()).hexdigest() == sha256, path
        partial.rename(kept)
    return kept


@contextlib.contextmanager
def serving(
    port: int, jars: Sequence[Path], main: Sequence[str], log: Path, environ: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server until the end, from when it answers at its port on."""
    java = str(find_java_home() / "bin" / "java")
    command = [java, *_JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, jars)), *main]
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environ or {})}
        )
    try:
        _wait_for(port, server, log)
        yield
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
