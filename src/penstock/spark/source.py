"""Penstock as a Spark data source: `format("penstock")`, in sessions that `register` was called for.

The options decide what is read: with `log` it is a table's changes, from a change log; with `url` or `host` it is
the table itself, from Postgres.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.spark.log_options import any_options, batch_options, stream_options
from penstock.spark.log_source import LogBatchReader, LogStreamReader
from penstock.spark.log_table import LogTable
from penstock.spark.message import as_spark_shows
from penstock.spark.option import in_lower_case
from penstock.spark.schema import from_arrow
from penstock.spark.table_options import reads_table, table_options
from penstock.spark.table_source import TableReader, table_schema


def register(spark: SparkSession) -> None:
    """Make `format("penstock")` known to a session. Doing it again changes nothing."""
    spark.dataSource.register(PenstockSource)


class PenstockSource(DataSource):
    """A table's changes, from a change log; or a table, from Postgres."""

    _inferred_version: int | None = None
    """Which version of the table gave the schema, where the user gave none: Spark keeps the instance it asked."""

    @classmethod
    def name(cls) -> str:
        """Return what users write behind `format`."""
        return "penstock"

    @as_spark_shows()
    def schema(self) -> StructType:
        """Return the table's columns; of a log, the newest ones and its own."""
        if reads_table(self.options):
            return table_schema(table_options(self.options))
        _require_log(self.options)
        options = any_options(self.options)
        table = LogTable(options.log, options.table)
        self._inferred_version = table.newest_version
        return from_arrow(table.columns(table.newest_version))

    @as_spark_shows()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader behind `spark.read`."""
        if reads_table(self.options):
            return TableReader(table_options(self.options), schema)
        return LogBatchReader(batch_options(self.options), schema)

    @as_spark_shows()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader behind `spark.readStream`."""
        if reads_table(self.options):
            raise ConfigError(
                "format penstock: a table of Postgres can be read with spark.read only",
                remedy="A stream of its changes is in a change log: give option log.",
            )
        return LogStreamReader(stream_options(self.options), schema, self._inferred_version)


def _require_log(options: Mapping[str, str]) -> None:
    if "log" not in in_lower_case(options):
        raise ConfigError(
            "format penstock: neither a change log nor a server is named",
            remedy="Give option log, the folder of a change log, to read changes; or option url, "
            "postgresql://user@host/dbname, to read a table.",
        )
