"""`penstock setup`: what Spark needs, fetched once."""

from __future__ import annotations

import importlib.util

from penstock.cli import console
from penstock.errors import ConfigError
from penstock.spark.java import find_java_home, java_version
from penstock.spark.session import resolve_jars


def set_up() -> None:
    """Fetch the jars unless they are there, and report what Spark will run on."""
    require_pyspark()
    home = find_java_home()
    with console.progress().status("looking for Spark's jars; the first time they are downloaded"):
        jars = resolve_jars()
    folder = jars[0].parent if jars else "no folder"
    console.results().print(f"Spark is ready: Java {java_version(home)} in {home}, {len(jars)} jars in {folder}")


def require_pyspark() -> None:
    """Raise if PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed", remedy="Run: pip install 'penstock[delta]'")
