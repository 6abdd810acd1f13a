"""Tables in Spark. After `register(spark)`, use `spark.read.format("tidemark").load(uri)`.

The guide is docs/guide/7-spark.md.

    import tidemark.spark

    tidemark.spark.register(spark)
    spark.read.format("tidemark").option("columns", "path, status").load("warehouse/access_log")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.base.errors import PIPELINE, needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format `tidemark` in a Spark session, for batch reads, batch writes and streams.

    Args:
        spark: A local session, a session on a cluster, or a session of a Spark Connect server. The workers of a
            Connect server receive the code.

    Raises:
        Unavailable: PySpark is not installed.
    """
    with needs(PIPELINE, "Spark's format `tidemark`"):
        from jobs.spark.source import register as register_here
    register_here(spark)
