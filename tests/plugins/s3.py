"""An S3 server for tests: S3Proxy in front of a folder.

It signs, lists and uploads in parts as S3 does, and refuses a PUT with `If-None-Match: *` where the name is taken,
also of several that come at once.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from plugins.iceberg import new_catalog_name, open_catalog
from plugins.java_server import fetched_jar, serving
from pyspark.sql import SparkSession

from penstock.config.destination import IcebergCatalogConfig, IcebergConfig, JdbcCatalogConfig
from penstock.config.s3 import S3Config
from penstock.destinations.iceberg import CatalogSettings
from penstock.postgres.embedded import free_port
from penstock.storage.s3 import S3Settings

_VERSION = "4.1.0"
_PATH = f"org/gaul/s3proxy/{_VERSION}/s3proxy-{_VERSION}-jar-with-dependencies.jar"
_SHA256 = "a4d025969aaf796616ed4b1e2491d87d455ce84bb28cb9db086b2e6aaa68b48d"
_MAIN = "org.gaul.s3proxy.Main"
_KEY, _SECRET = "test-key", "test-secret"
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
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    (folder / "s3proxy.conf").write_text(
        f"s3proxy.endpoint={endpoint}\ns3proxy.authorization=aws-v2-or-v4\ns3proxy.identity={_KEY}\n"
        f"s3proxy.credential={_SECRET}\njclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={folder}/buckets\n"
    )
    jar = fetched_jar(spark, "s3proxy", _PATH, _SHA256)
    with serving(port, [jar], [_MAIN, "--properties", str(folder / "s3proxy.conf")], folder / "s3proxy.log"):
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
