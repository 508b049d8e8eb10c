"""Appends a table's changes to Parquet: python examples/spark_stream.py .penstock/log public.orders out.

Takes what is there and ends; the next run goes on from there. Leave `trigger` out to follow the log for ever.
"""

import sys

from pyspark.sql import SparkSession

import penstock
from penstock.spark.session import SparkSettings, open_session


def catch_up(spark: SparkSession, log: str, table: str, folder: str) -> None:
    """Append what is new since the last run."""
    penstock.register(spark)
    changes = spark.readStream.format("penstock").option("log", log).option("table", table).load()
    query = (
        changes.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/changes")
    )
    query.awaitTermination()
    print(spark.read.parquet(f"{folder}/changes").count(), "changes")


def main() -> None:
    """Start Spark for it; a session of your own does as well."""
    spark = open_session(SparkSettings(), "spark_stream")
    catch_up(spark, *sys.argv[1:])
    spark.stop()


if __name__ == "__main__":
    main()
