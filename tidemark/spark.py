"""Tables in Spark: `spark.read.format("tidemark").load(uri)`, after `register(spark)` (docs/guide/7-spark.md).

import tidemark.spark

tidemark.spark.register(spark)
spark.read.format("tidemark").option("columns", "path, status").load("warehouse/access_log")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.extras import PIPELINE, needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format `tidemark` known to a session: batch reads and writes, and streams of both.

    The session may be of this process, on a cluster, or of a Connect server, whose workers get the code. Raises
    `Unavailable` without PySpark.
    """
    with needs(PIPELINE, "the format tidemark of Spark"):
        from jobs.spark.source import register as register_here
    register_here(spark)
