"""Download the JARs of Delta Lake before tests run in parallel. Two concurrent downloads by Spark break each other.

`python -m tests.support.delta_jars` does nothing if the JARs exist.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.spark.delta import JARS, PACKAGE, S3_PACKAGES, settings

FOLDER = Path.home() / ".ivy2.5.2" / "jars"
"""The folder in which Spark 4.2 keeps downloaded JARs."""


def main() -> None:
    """Start Spark with Delta Lake once to download the JARs, unless all JARs exist already."""
    names = [f"{each.replace(':', '_', 1).replace(':', '-')}.jar" for each in (PACKAGE, *S3_PACKAGES)]
    if os.environ.get(JARS) or all((FOLDER / name).exists() for name in names):
        return
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for name, value in settings(on_s3=True).items():
        builder = builder.config(name, value)
    builder.getOrCreate().stop()


if __name__ == "__main__":
    main()
