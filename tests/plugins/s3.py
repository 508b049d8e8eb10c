"""An S3 server for tests: S3Proxy in front of a folder, from Maven Central, run by the Java that Spark runs on.

It signs, lists and uploads in parts as S3 does, and refuses a PUT with `If-None-Match: *` where the name is taken,
also of several that come at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from plugins.iceberg import new_catalog_name, open_catalog
from pyspark.sql import SparkSession

from penstock.config.destination import IcebergCatalogConfig, IcebergConfig, JdbcCatalogConfig
from penstock.config.s3 import S3Config
from penstock.destinations.iceberg import CatalogSettings
from penstock.spark.java import default_cache_dir, find_java_home
from penstock.storage.s3 import S3Settings

_VERSION = "4.1.0"
_JAR = f"s3proxy-{_VERSION}-jar-with-dependencies.jar"
_PATH = f"org/gaul/s3proxy/{_VERSION}/{_JAR}"
_SHA256 = "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d"
_KEY, _SECRET = "test-key", "test-secret"
_PATIENCE_S = 60
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Bucket:
    """A bucket of a test's own."""

    name: str
    settings: S3Settings
    root: Path
    """Where its objects are, as files."""

    @property
    def config(self) -> dict[str, Any]:
        """How a configuration file names the store."""
        settings = self.settings
        keys = {"access_key_id": settings.access_key_id, "secret_access_key": settings.secret_access_key}
        return {"endpoint": settings.endpoint, "region": settings.region, **keys}


@pytest.fixture(scope="session")
def s3_server(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[S3Settings, Path]]:
    """The server, and the folder whose folders are its buckets."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / "buckets").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    (folder / "s3proxy.conf").write_text(
        f"s3proxy.endpoint={endpoint}\ns3proxy.authorization=aws-v2-or-v4\ns3proxy.identity={_KEY}\n"
        f"s3proxy.credential={_SECRET}\njclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={folder}/buckets\n"
    )
    with _running(folder, port, _jar(spark)):
        yield S3Settings(endpoint, "us-east-1", _KEY, _SECRET), folder / "buckets"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def bucket(s3_server: tuple[S3Settings, Path]) -> Bucket:
    settings, folder = s3_server
    name = f"test-{next(_NUMBERS)}"
    (folder / name).mkdir()
    return Bucket(name, settings, folder / name)


@pytest.fixture
def bucket_catalog(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> CatalogSettings:
    """A database beside a bucket."""
    catalog = IcebergCatalogConfig(jdbc=JdbcCatalogConfig(uri=f"jdbc:sqlite:{tmp_path}/catalog.sqlite"))
    config = IcebergConfig(
        warehouse=f"s3://{bucket.name}/lake",
        catalog_name=new_catalog_name(),
        catalog=catalog,
        s3=S3Config(**bucket.config),
    )
    return open_catalog(spark, config, bucket.settings)


@contextlib.contextmanager
def _running(folder: Path, port: int, jar: Path) -> Iterator[None]:
    java = find_java_home() / "bin" / "java"
    # Small and quick to start: it serves a few requests a second.
    command = [str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", str(jar)]
    with (folder / "s3proxy.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--properties", str(folder / "s3proxy.conf")], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _wait_for(port, server, folder / "s3proxy.log")
        yield
    finally:
        server.kill()
        server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def _jar(spark: SparkSession) -> Path:
    """Return the server's jar, fetched the first time from where Spark's come from, and kept beside them."""
    path = default_cache_dir() / "s3proxy" / _JAR
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        central: str = spark._jvm.org.apache.ivy.plugins.resolver.IBiblioResolver.DEFAULT_M2_ROOT  # type: ignore[union-attr]
        urllib.request.urlretrieve(f"{central}{_PATH}", partial)
        assert hashlib.sha256(partial.read_bytes()).hexdigest() == _SHA256
        partial.rename(path)
    return path
