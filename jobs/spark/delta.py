"""Delta Lake in the Spark of a job: the required packages, and data frames of changes between versions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from jobs.spark.session import CONNECT
from storage_core.base.errors import Unavailable
from storage_core.interop.delta_source import CHANGE_TYPE, DeltaFile, DeltaGroup, DeltaLog, DeltaSchema, excerpt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructField

# Packages of Delta Lake.
#
# Spark's own package resolution loads the packages of Delta Lake for tables that land from Delta. No other job requests
# these packages. If a Spark session lacks the packages, the error explains how to install them
# (docs/architecture/ingestion.md). For tables on S3, Spark also loads Hadoop's file system `s3a` with the needed
# modules of Amazon's SDK. The complete SDK is one JAR of 600 MB.


PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The Maven package of Delta Lake that matches the PySpark version of the extra `pipeline`.

The version of this Delta Lake package must be equal to the Delta Lake version that the extra `delta` installs.
"""

S3_PACKAGES: Final = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    *(f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts")),
)
"""The packages for S3, in the versions that the Hadoop of this PySpark requires."""

JARS: Final = "TIDEMARK_DELTA_JARS"
"""The name of an environment variable with a folder of JARs.

If the variable is set, Spark loads the JARs in the folder and downloads no packages.
"""

_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_EXTENSIONS: Final = "spark.sql.extensions"
_LEFT_OUT: Final = (
    "com.*:*,javax.*:*,jakarta.*:*,commons-*:*,io.airlift:*,io.netty:*,"
    "org.[^ar]*:*,org.ro*:*,org.a[^p]*:*,org.apache.[^h]*:*,org.apache.h[^a]*:*,org.apache.hadoop:hadoop-[^a]*,"
    "software.amazon.awssdk:bundle"
)
"""Dependencies that Spark already has.

The patterns for `org` match all dependencies except Reactive Streams and Hadoop's packages for S3.
"""

_SETTINGS: Final = {
    _EXTENSIONS: _EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # the default is 50, which suits many files
}


def settings(environment: Mapping[str, str] = os.environ, *, on_s3: bool = False) -> dict[str, str]:
    """Return the settings of a new session with Delta Lake. With `on_s3`, the session also reads Delta tables on S3.

    Raises `Unavailable` if the folder of JARs contains no JARs.
    """
    folder = environment.get(JARS)
    if not folder:
        packages = ",".join((PACKAGE, *(S3_PACKAGES if on_s3 else ())))
        return {"spark.jars.packages": packages, "spark.jars.excludes": _LEFT_OUT, **_SETTINGS}
    jars = sorted(map(str, Path(folder).glob("*.jar")))
    if not jars:
        raise Unavailable(
            f"{JARS}={folder} is not a folder with the JARs of {PACKAGE}. Copy the JARs into this "
            f"folder, or unset {JARS}."
        )
    return {"spark.jars": ",".join(jars), **_SETTINGS}


def require_delta(session: SparkSession, master: str) -> None:
    """Raise `Unavailable` if a session cannot read Delta tables.

    The message explains how to start a session with Delta Lake.
    """
    if _EXTENSION in (session.conf.get(_EXTENSIONS, "") or ""):
        return
    where = f"the Spark Connect server {master}" if master.startswith(CONNECT) else "the Spark that runs here already"
    raise Unavailable(
        f"{where} was started without Delta Lake. Start Spark with --packages {PACKAGE} --conf "
        f"{_EXTENSIONS}={_EXTENSION}. Or run the job in its own process, which loads Delta Lake. See `Rows of a "
        "Delta table do not arrive` in docs/operations.md"
    )


def cannot_start(error: Exception) -> Unavailable:
    """Return the error for a failed start of Spark with Delta Lake. Usually, Spark could not download the JARs."""
    return Unavailable(
        f"Spark did not start with Delta Lake, which landing from a Delta table needs ({error}). "
        f"The output of Spark above contains the cause. {PACKAGE} is downloaded from Maven "
        "Central once, or taken from the cache of Spark or "
        f"Maven. If Spark can use neither source, set {JARS} to a folder with the JARs of {PACKAGE}."
    )


# The rows that the versions of a Delta table inserted or removed.


COUNT: Final = "_tidemark_count"
"""A column with the number of inserted copies of a row. For removed copies, the number is negative.

In a data frame without this column, each row was inserted once and no row was removed.
"""

_CAME: Final = ("insert", "update_postimage")


def frame_of(session: SparkSession, log: DeltaLog, group: DeltaGroup, folder: Path) -> DataFrame:
    """Return a data frame with the changes of the group. Delta Lake reads the rows only when the data frame is used.

    The function writes Delta logs to `folder`. These logs list the files of the group. The tasks must have access to
    this folder. The folder must exist until all rows are read. If versions removed rows, the data frame contains each
    distinct row once, with the column `COUNT`. Rows with the count 0 are omitted.
    """
    from pyspark.sql import functions as f

    reader = session.read.format("delta").options(**log.options)
    if group.is_snapshot:
        return reader.option("versionAsOf", group.last).load(_path(log.root))
    schema = group.table.schema
    added = _excerpt(reader, folder / "added", schema, group.added)
    if not group.removed and not group.feed:
        return added
    parts = [added.withColumn(COUNT, f.lit(1))]
    if group.removed:
        parts.append(_excerpt(reader, folder / "removed", schema, group.removed).withColumn(COUNT, f.lit(-1)))
    if group.feed:
        feed = _excerpt(reader, folder / "feed", schema.with_change_type(), group.feed)
        came = f.when(f.col(CHANGE_TYPE).isin(*_CAME), 1).otherwise(-1)
        parts.append(feed.withColumn(COUNT, came).drop(CHANGE_TYPE))
    return _summed(reduce(lambda one, other: one.unionByName(other), parts))


def by_key(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the same rows, with all rows of one key in the same partition."""
    from pyspark.sql import functions as f

    return frame.repartition(*(f.col(_quoted(name)) for name in key))


def _excerpt(reader: DataFrameReader, folder: Path, schema: DeltaSchema, files: Sequence[DeltaFile]) -> DataFrame:
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    data = excerpt(schema, files)
    with Path(log / f"{0:020}.json").open("wb") as file:  # an empty log is a Delta table without rows
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return reader.load(_path(folder.as_uri()))


def _path(uri: str) -> str:
    """Return the URI as a Hadoop path without percent-encoding."""
    return unquote(uri)


def _summed(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    fields = [each for each in frame.schema.fields if each.name != COUNT]
    row = f.struct(*(f.col(_quoted(each.name)) for each in fields))
    exact = [_exact(each).alias(f"k{number}") for number, each in enumerate(fields)]
    summed = frame.groupBy(*exact).agg(f.first(row).alias("row"), f.sum(COUNT).alias(COUNT))
    return summed.where(f.col(COUNT) != 0).select("row.*", COUNT)


def _exact(field: StructField) -> Column:
    """Return a column for `groupBy` whose values are equal only if the values of the field are equal.

    The column distinguishes the two floating-point zeros. The column ignores the order of map entries, unless the map
    is inside another type.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import DoubleType, FloatType, MapType

    column, kind = f.col(_quoted(field.name)), field.dataType
    if isinstance(kind, FloatType | DoubleType):
        return column.cast("string")
    if isinstance(kind, MapType) and not _has_map(kind.keyType) and not _has_map(kind.valueType):
        return f.array_sort(f.map_entries(column))
    return f.to_json(f.struct(column)) if _has_map(kind) else column


def _has_map(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case MapType():
            return True
        case ArrayType():
            return _has_map(kind.elementType)
        case StructType():
            return any(_has_map(each.dataType) for each in kind.fields)
        case _:
            return False


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
