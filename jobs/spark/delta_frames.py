"""Data frames of what versions of a Delta table changed: its rows, with how many of each came or went."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from storage_core.delta_source.files import CHANGE_TYPE, DeltaFile, DeltaSchema, excerpt
from storage_core.delta_source.log import DeltaLog
from storage_core.delta_source.plan import DeltaGroup

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructField

COUNT: Final = "_tidemark_count"
"""How many of a row came, or went where it is negative. A frame without it has rows that came once."""

_CAME: Final = ("insert", "update_postimage")


def frame_of(session: SparkSession, log: DeltaLog, group: DeltaGroup, folder: Path) -> DataFrame:
    """Return what the group brings, read by Delta. Nothing is read yet.

    In the folder, which the tasks must see and which must stay until the frame was read, are logs of the files.
    Where rows went, the frame has each row once, with `COUNT`, and none that came as often as it went.
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
    """Return the same rows, those of a key in one partition."""
    from pyspark.sql import functions as f

    return frame.repartition(*(f.col(_quoted(name)) for name in key))


def _excerpt(reader: DataFrameReader, folder: Path, schema: DeltaSchema, files: Sequence[DeltaFile]) -> DataFrame:
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    data = excerpt(schema, files)
    with Path(log / f"{0:020}.json").open("wb") as file:  # one of no files is a table without rows
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return reader.load(_path(folder.as_uri()))


def _path(uri: str) -> str:
    """The URI as Hadoop's paths have it, which are not encoded."""
    return unquote(uri)


def _summed(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    fields = [each for each in frame.schema.fields if each.name != COUNT]
    row = f.struct(*(f.col(_quoted(each.name)) for each in fields))
    exact = [_exact(each).alias(f"k{number}") for number, each in enumerate(fields)]
    summed = frame.groupBy(*exact).agg(f.first(row).alias("row"), f.sum(COUNT).alias(COUNT))
    return summed.where(f.col(COUNT) != 0).select("row.*", COUNT)


def _exact(field: StructField) -> Column:
    """What is equal for equal values only, and can be grouped by: both zeros differ, orders of a map do not.

    Those of a map inside another type do.
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
