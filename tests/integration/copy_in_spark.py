"""Test program: a notebook-like Spark session that reads one table and appends its rows to another table.

    python -m tests.integration.copy_in_spark MASTER SOURCE COPY [CHECKPOINT]

MASTER is the master of a cluster, or the address of a Spark Connect server. With CHECKPOINT, a streaming query writes
the copy.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidemark.spark


def follow(spark: SparkSession, source: str, copy: str, checkpoint: str) -> StreamingQuery:
    """Start a query that appends the current rows of a table to another table, three files per batch."""
    read = spark.readStream.format("tidemark").option("max_files", 3).load(source)
    written = read.writeStream.format("tidemark").option("checkpointLocation", checkpoint)
    return written.trigger(availableNow=True).start(copy)


def main(master: str, source: str, copy: str, *checkpoint: str) -> None:
    """Copy the rows and print the number of rows per batch."""
    builder = SparkSession.builder
    spark = (builder.remote(master) if master.startswith("sc://") else builder.master(master)).getOrCreate()
    tidemark.spark.register(spark)
    for each in checkpoint:
        follow(spark, source, copy, each).awaitTermination()
        return
    frame = spark.read.format("tidemark").load(source)
    frame.write.format("tidemark").mode("append").save(copy)
    print(frame.count())  # noqa: T201  # for the test
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
