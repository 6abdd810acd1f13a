"""Options of a short-lived JVM for tests: without late optimizations, and with preloaded classes of Spark.

Together, these options save more than half of the processor time. `make java-archive` writes the classes to an archive.
"""

from __future__ import annotations

from pathlib import Path

from jobs.spark import java

NAMES = ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
"""Settings that make Spark use these options. Without the settings, Spark starts Java with a user's options."""


def options(messages: Path = java.MESSAGES) -> str:
    """Return the options of a short-lived JVM.

    The file `messages` contains the log4j settings of the JVM (default: the settings of jobs).
    """
    return java.options(java.QUICK, messages)


def environment() -> dict[str, str]:
    """Return an environment in which Spark uses a short-lived JVM.

    The JVM that builds the command line is also short-lived.
    """
    return java.submitting(options())
