"""Counts a table's changes by kind, from a change log: python examples/spark_batch.py .penstock/log public.orders."""

import sys

from pyspark.sql import SparkSession

import penstock
from penstock.spark.session import SparkSettings, open_session


def print_counts(spark: SparkSession, log: str, table: str) -> None:
    """Read everything that the log has of the table."""
    penstock.register(spark)
    changes = spark.read.format("penstock").option("log", log).option("table", table).load()
    for row in changes.groupBy("_op").count().orderBy("_op").collect():
        print(row["_op"], row["count"])


def main() -> None:
    """Start Spark for it; a session of your own does as well."""
    spark = open_session(SparkSettings(), "spark_batch")
    print_counts(spark, *sys.argv[1:])
    spark.stop()


if __name__ == "__main__":
    main()
