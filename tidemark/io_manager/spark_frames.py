"""Rows as data frames of Spark, and back, in the session that this process has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from storage_core.errors import Unavailable
from storage_core.extras import PIPELINE, needs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def frame_of(rows: pa.Table) -> DataFrame:
    """Return the rows as a data frame of the active session, or of the one that Spark's own settings describe.

    Raises `Unavailable` without PySpark, and where Spark does not start.
    """
    with needs(PIPELINE, "a data frame of Spark"):
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    try:
        session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        return session.createDataFrame(rows)
    except (PySparkException, OSError) as error:
        raise _failed(error) from error


def rows_of(frame: DataFrame) -> pa.Table:
    """Return all rows of a data frame, which come into this process. Raises `Unavailable` where Spark fails."""
    from pyspark.errors import PySparkException

    try:
        return frame.toArrow()
    except (PySparkException, OSError) as error:
        raise _failed(error) from error


def _failed(error: Exception) -> Unavailable:
    return Unavailable(f"Spark did not give the rows: {str(error).partition('JVM stacktrace:')[0].strip()}")
