"""A Spark session that starts when it is first used: what never asks for it never pays for a JVM."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.spark.session import SparkSettings, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LazySession:
    """Call it for the session. Safe in several threads at once."""

    def __init__(self, settings: SparkSettings, app_name: str = "penstock") -> None:
        self._settings = settings
        self._app_name = app_name
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def __call__(self) -> SparkSession:
        """Return the session, starting it if need be."""
        with self._lock:
            if self._session is None:
                self._session = open_session(self._settings, self._app_name)
            return self._session

    def stop(self) -> None:
        """End the session, if it was started."""
        with self._lock:
            if self._session is not None:
                self._session.stop()
                self._session = None
