"""Delta Lake in the Spark of a job: brought by Spark's own resolution of packages, for tables that land from Delta.

No other job asks for it, and one whose Spark lacks it says how to have it (decision 0158). For tables on S3 Hadoop's
file system `s3a` comes along, with the modules of Amazon's SDK that it uses instead of all of it in one JAR of 600 MB.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobs.spark.master import CONNECT
from storage_core.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""For the PySpark of the extra `pipeline`, at the version of the extra `delta`."""

S3_PACKAGES: Final = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts")),
)
"""For the Hadoop that this PySpark brings along, and at the version that it asks for."""

JARS: Final = "TIDEMARK_DELTA_JARS"
"""The environment names a folder with the JARs by it, where no repository is to be asked."""

_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_EXTENSIONS: Final = "spark.sql.extensions"
_LEFT_OUT: Final = (
    "com.*:*,javax.*:*,jakarta.*:*,commons-*:*,io.airlift:*,io.netty:*,"
    "org.[^ar]*:*,org.ro*:*,org.a[^p]*:*,org.apache.[^h]*:*,org.apache.h[^a]*:*,org.apache.hadoop:hadoop-[^a]*,"
    "software.amazon.awssdk:bundle"
)
"""What the packages depend on, and Spark has itself: of `org`, all but Hadoop's for S3 and Reactive Streams."""

_SETTINGS: Final = {
    _EXTENSIONS: _EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # of logs that name a few files; 50 are for millions
}


def settings(environment: Mapping[str, str] = os.environ, *, on_s3: bool = False) -> dict[str, str]:
    """Return what a session is started with that has Delta Lake, and reads it on S3 where that is wanted.

    Raises `Unavailable` for a folder without JARs.
    """
    folder = environment.get(JARS)
    if not folder:
        packages = ",".join((PACKAGE, *(S3_PACKAGES if on_s3 else ())))
        return {"spark.jars.packages": packages, "spark.jars.excludes": _LEFT_OUT, **_SETTINGS}
    jars = sorted(map(str, Path(folder).glob("*.jar")))
    if not jars:
        raise Unavailable(f"{JARS}={folder} is no folder with the JARs of {PACKAGE}; copy them there, or unset it")
    return {"spark.jars": ",".join(jars), **_SETTINGS}


def require_delta(session: SparkSession, master: str) -> None:
    """Return when a session reads Delta tables. Raises `Unavailable` that says how to have one that does."""
    if _EXTENSION in (session.conf.get(_EXTENSIONS, "") or ""):
        return
    where = f"the Spark Connect server {master}" if master.startswith(CONNECT) else "the Spark that runs here already"
    raise Unavailable(
        f"{where} was started without Delta Lake: start it with --packages {PACKAGE} "
        f"--conf {_EXTENSIONS}={_EXTENSION}, or run the job in a process of its own, which brings it along "
        "(`Rows of a Delta table do not arrive` in docs/operations.md)"
    )


def cannot_start(error: Exception) -> Unavailable:
    """Return the error of a Spark that did not start with Delta Lake: as a rule its JARs could not be fetched."""
    return Unavailable(
        f"Spark did not start with Delta Lake, which a table that lands from Delta needs ({error}): its output above "
        f"says why. {PACKAGE} is fetched from Maven Central once, or taken from what Spark or Maven fetched before. "
        f"Where neither can be, name a folder with its JARs by {JARS}"
    )
