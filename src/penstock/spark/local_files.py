"""Makes a JVM's local files cheap to create.

Without its native library, which PySpark does not bring, Hadoop starts a process (`chmod`) for every file and folder
that it makes, and for the file's checksum another; a commit of Iceberg's makes several. So the JVM's local file system
is replaced by one that asks the system itself, and is the same otherwise.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCE = "LocalFiles.java"
_CLASS = "penstock.LocalFiles"


def ease_local_files(spark: SparkSession) -> None:
    """Let whoever asks this JVM for its local file system from now on get ours; compiled by Spark's own compiler."""
    jvm = spark._jvm  # noqa: SLF001  (Hadoop has no other door for Python on the driver)
    assert jvm is not None
    local, files = jvm.java.net.URI("file:///"), jvm.org.apache.hadoop.fs.FileSystem
    present = files.get(local, spark._jsc.hadoopConfiguration())  # noqa: SLF001
    if present.getClass().getName() == _CLASS:
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook(resources.files(__package__).joinpath(_SOURCE).read_text())
    conf = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())  # noqa: SLF001
    conf.setClassLoader(compiler.getClassLoader())
    conf.set("fs.file.impl", _CLASS)
    # Hadoop keeps one for all; closing it makes it forget, and whoever has it can go on using it.
    present.close()
    files.get(local, conf)
