"""Java that lives for seconds: no second compiler, no threads that collect garbage; up to half the processor time."""

from __future__ import annotations

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

ENVIRONMENT = {
    "SPARK_LAUNCHER_OPTS": OPTIONS,
    "PYSPARK_SUBMIT_ARGS": f"--conf 'spark.driver.extraJavaOptions={OPTIONS}' pyspark-shell",
}
"""What a process has in its environment whose Spark starts such a Java, and the one that builds its command."""
