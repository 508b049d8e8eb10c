"""`penstock setup`: what Spark needs, fetched once, and what the receiver and copies need, compiled once."""

from __future__ import annotations

import importlib.util

from penstock.cli import console
from penstock.config.destination import SQLITE_PACKAGE
from penstock.errors import ConfigError
from penstock.spark.java import find_java_home, java_version
from penstock.spark.session import FORMATS, resolve_jars
from penstock.wire import binary_scan, scan


def set_up() -> None:
    """Fetch the jars and compile the loops over bytes unless that is done, and report what Spark will run on."""
    with console.progress().status("compiling the loops over bytes; the first time it takes some seconds"):
        scan.warm_up()
        binary_scan.warm_up()
    require_pyspark()
    home = find_java_home()
    with console.progress().status("looking for Spark's jars; the first time they are downloaded"):
        # For every destination, so that choosing another one later needs no network.
        jars = resolve_jars([*(each.package for each in FORMATS.values()), SQLITE_PACKAGE])
    folder = jars[0].parent.parent if jars else "no folder"
    console.results().print(f"Spark is ready: Java {java_version(home)} in {home}, {len(jars)} jars below {folder}")


def require_pyspark() -> None:
    """Raise if PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed", remedy="Run: pip install 'penstock[delta]'")
