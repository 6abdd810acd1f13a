"""What Spark raises when it did not run tasks to their end, as an error of ours with one line that says why."""

from __future__ import annotations

import sys

from storage_core.errors import TidemarkError, Unavailable


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the classes of what Spark raises; of a Spark that was never imported there is nothing to raise."""
    if "pyspark" not in sys.modules:
        return (ConnectionError,)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types; imported once something failed
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError, ConnectionError  # the last one: the JVM is gone


def failure_of(error: Exception) -> TidemarkError:
    """Return `Unavailable` for what Spark may do better later, and a plain error for an exception of a task.

    That one is a defect, which a later try meets again.
    """
    from pyspark.errors import PythonException

    if isinstance(error, PythonException):
        return TidemarkError(f"a task failed: {cause(error)}")
    return Unavailable(f"Spark did not run the tasks to their end: {cause(error)}")


def cause(error: Exception) -> str:
    """Return the line that says what happened: the end of a worker's traceback, or the start of Spark's message."""
    head = str(error).partition("\n\nJVM stacktrace:")[0]
    lines = [line for line in head.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in head:
        frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
        lines = lines[frames[-1] + 1 :] if frames else lines
    elif len(lines) > 1 and lines[1].startswith(": "):  # Py4J names the call first, then what Java threw
        lines = [lines[1].removeprefix(": ")]
    return lines[0].strip() if lines else type(error).__name__
