"""Plain Spark that reads landed files and writes a Delta table that is partitioned by day.

Usage: `python -m benchmarks.programs.spark_landing JARS`. The program reads lines from standard input, and each line is
a JSON array. The array contains the folder of the files and the format of the files. The array also contains the
columns as a schema of Spark, and the folder of the new table. After each table, the program prints an empty line. All
tables use one session. `JARS` is a folder with the JARs of Delta Lake.
"""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from jobs.spark import delta


def main(jars: str) -> None:
    """Write the tables."""
    builder = SparkSession.builder.master("local[*]").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    for name, value in delta.settings({delta.JARS: jars}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    for landing, kind, columns, target in map(json.loads, sys.stdin):
        reader = session.read.schema(columns).format("json" if kind == "ndjson" else kind)
        rows = reader.option("header", "true").load(landing)
        rows = rows.where("time IS NOT NULL").withColumn("day", sf.to_date("time"))
        rows.write.format("delta").partitionBy("day").save(target)
        print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
