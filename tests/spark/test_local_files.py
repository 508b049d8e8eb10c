from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark.local_files import ease_local_files

pytestmark = pytest.mark.spark


@pytest.fixture
def files(spark: SparkSession) -> Any:
    """The file system that whoever asks gets; replaced twice, which is once."""
    ease_local_files(spark)
    ease_local_files(spark)
    jvm: Any = spark._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration()
    return jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), conf)


@pytest.mark.parametrize("mode", ["640", "755", "1777"])
def test_files_have_their_permissions_and_checksums(spark: SparkSession, files: Any, tmp_path: Path, mode: str) -> None:
    jvm: Any = spark._jvm
    assert files.getRawFileSystem().getClass().getName() == "penstock.LocalFiles$Raw"
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "made"))
    files.create(path).close()
    files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission(mode))
    assert (tmp_path / "made").stat().st_mode & 0o7777 == int(mode, 8)
    assert (tmp_path / ".made.crc").exists()


@pytest.mark.usefixtures("files")
def test_spark_reads_and_writes_as_before(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).write.parquet(str(tmp_path / "written"))
    assert spark.read.parquet(str(tmp_path / "written")).count() == 10
