"""What a notebook does with a session of its own: read a table, and append what it found to another one.

python -m tests.integration.copy_in_spark MASTER SOURCE COPY

MASTER is that of a cluster, or the address of a Spark Connect server.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import tidemark.spark


def main(master: str, source: str, copy: str) -> None:
    """Copy the rows by one batch, and say how many there were."""
    builder = SparkSession.builder
    spark = (builder.remote(master) if master.startswith("sc://") else builder.master(master)).getOrCreate()
    tidemark.spark.register(spark)
    frame = spark.read.format("tidemark").load(source)
    frame.write.format("tidemark").mode("append").save(copy)
    print(frame.count())  # noqa: T201  # for the test
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
