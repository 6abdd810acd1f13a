"""What a notebook does with a session of its own: read a table, and append what it found to another one.

python -m tests.integration.copy_in_spark MASTER SOURCE COPY [CHECKPOINT]

MASTER is that of a cluster, or the address of a Spark Connect server. With a checkpoint the copy is a stream.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidemark.spark


def follow(spark: SparkSession, source: str, copy: str, checkpoint: str) -> StreamingQuery:
    """A query that appends a table to another, three files at a time, until it has all that is there now."""
    read = spark.readStream.format("tidemark").option("max_files", 3).load(source)
    written = read.writeStream.format("tidemark").option("checkpointLocation", checkpoint)
    return written.trigger(availableNow=True).start(copy)


def main(master: str, source: str, copy: str, *checkpoint: str) -> None:
    """Copy the rows, and say how many a batch found."""
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
