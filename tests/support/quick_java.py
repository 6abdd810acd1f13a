"""Java that lives for seconds, as tests start it: nothing that pays later only, and Spark's classes read already.

Together they save more than half of the processor time. `make java-archive` leaves the classes in an archive.
"""

from __future__ import annotations

from pathlib import Path

from jobs.spark import java_archive

NAMES = ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
"""What tells Spark of such a Java: without these it starts the one that a user has."""


def options(messages: Path = java_archive.MESSAGES) -> str:
    """The options of such a Java, which says what these settings of log4j tell: those of jobs, if not told others."""
    return java_archive.options(java_archive.QUICK, messages)


def environment() -> dict[str, str]:
    """What a process has in its environment whose Spark starts such a Java, and the one that builds its command."""
    return java_archive.submitting(options())
