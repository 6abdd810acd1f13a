"""Fetches the JARs of Delta Lake before tests run side by side: two resolutions of Spark at a time break each other.

`python -m tests.support.delta_jars` does nothing where they are there.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.spark.delta import JARS, PACKAGE, settings

FETCHED = Path.home() / ".ivy2.5.2" / "jars" / f"{PACKAGE.replace(':', '_', 1).replace(':', '-')}.jar"
"""Where Spark 4.2 keeps what it fetched."""


def main() -> None:
    """Start a Spark with Delta Lake once, unless its JARs were fetched or given."""
    if FETCHED.exists() or os.environ.get(JARS):
        return
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for name, value in settings().items():
        builder = builder.config(name, value)
    builder.getOrCreate().stop()


if __name__ == "__main__":
    main()
