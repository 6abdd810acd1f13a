"""Print what delta-spark finds in a table, in one session. The program starts a JVM with the JARs of Delta Lake.

- spark_delta.py PLACE VERSIONS_AS_JSON COLUMNS_AS_JSON STREAMED: read these versions, with the columns of each. The
  program prints one JSON value. The JSON value has the rows of each version. For the newest version, the value also has
  the result of a SQL count with a condition. In addition, the JSON value has the results of a delete and a vacuum, and
  the rows that streams read from the table STREAMED.
- spark_delta.py EXPRESSION: print the number of rows of the data frame.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import reduce
from tempfile import TemporaryDirectory

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from jobs.spark.delta import settings


def main(place: str, versions: str, columns: str, streamed: str) -> None:
    session = _session()
    read = [_rows(session, place, *each) for each in zip(json.loads(versions), json.loads(columns), strict=True)]
    rows = reduce(DataFrame.unionAll, read).collect()
    found: dict[int, list[object]] = {version: [] for version in json.loads(versions)}
    for version, width, row in rows:
        values = json.loads(row)  # there are no nulls
        found[version].append([values.get(f"c{place}") for place in range(width)])
    counted = session.sql(f"SELECT count(*) FROM delta.`{place}` WHERE n % 2 = 0 AND at >= '2024-02-29T11:00:00Z'")
    refused = [_refused(session, text) for text in (f"DELETE FROM delta.`{place}`", f"VACUUM delta.`{place}`")]
    told = {"rows": [*found.values()], "counted": counted.collect()[0][0], "refused": refused}
    sys.stdout.write(json.dumps(told | _streams(session, streamed)))


def _streams(session: SparkSession, place: str) -> dict[str, object]:
    """Return the row counts of the change feed and of the table, and the values of `n` in the added rows."""
    row = f.to_json(f.struct(*(f.col(name) for name in session.read.format("delta").load(place).columns)))
    left = Counter[str]()
    for change, text in _streamed(session, place, "readChangeFeed").select("_change_type", row).collect():
        left[text] += 1 if change == "insert" else -1
    added = _streamed(session, place, "skipChangeCommits").select("n").collect()
    there = Counter(text for (text,) in session.read.format("delta").load(place).select(row).collect())
    return {
        "left": {text: count for text, count in left.items() if count},
        "there": there,
        "added": sorted(n for (n,) in added),
    }


def _streamed(session: SparkSession, place: str, option: str) -> DataFrame:
    """Return the rows of a stream that begins at the first version and ends at the newest version."""
    stream = session.readStream.format("delta").option(option, "true").option("startingVersion", 0).load(place)
    with TemporaryDirectory() as folder:
        written = stream.writeStream.format("memory").queryName(option).option("checkpointLocation", folder)
        written.trigger(availableNow=True).start().awaitTermination()
    return session.table(option)


def count(expression: str) -> None:
    """Evaluate an expression of `spark`."""
    sys.stdout.write(json.dumps(eval(expression, {"spark": _session()}).count()))  # noqa: S307  # of docs/readers.md


def _session() -> SparkSession:
    """Return a session with the JARs of Delta Lake."""
    given = {
        **settings(),
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
    }
    builder = SparkSession.builder.master("local[2]")
    session = reduce(lambda made, each: made.config(*each), given.items(), builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def _rows(session: SparkSession, place: str, version: int, names: list[str]) -> DataFrame:
    """Return the rows of a version as JSON, so that the rows of all versions have the same columns."""
    table = session.read.format("delta").option("versionAsOf", version).load(place)
    kinds = dict(table.dtypes)
    values = [_plain(f.col(f"`{name}`"), kinds[name]).alias(f"c{place}") for place, name in enumerate(names)]
    return table.select(f.lit(version), f.lit(len(names)), f.to_json(f.struct(*values)))


def _plain(column: Column, kind: str) -> Column:
    if kind == "timestamp":
        return f.unix_micros(column)
    return column.cast("string") if kind.startswith("decimal") else column


def _refused(session: SparkSession, statement: str) -> str:
    try:
        session.sql(statement).collect()
    except Exception as error:  # noqa: BLE001  # of a JVM, whose errors have no types
        return str(error).partition("[")[2].partition("]")[0]
    return "done"


if __name__ == "__main__":
    (count if len(sys.argv) == 2 else main)(*sys.argv[1:])
