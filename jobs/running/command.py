"""A job as a command: arguments in, a report out, and the exit code that says what to do next.

0 done, also when there was nothing to do; 1 a failure that Tidemark has no name for, with its traceback on stderr;
2 bad arguments or input; 3 conflict, run it again; 4 corrupt; 5 the store, or an outcome, is unavailable; 6 fenced,
stop; 130 stopped by a signal, run it again for the rest.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from jobs.process.parent import ending_with_parent
from jobs.process.stop_signals import heard_once
from jobs.reports.pipes import report_to_dagster
from jobs.reports.report import JobReport, report_of
from jobs.requests.request import JobRequest, parse, parser
from jobs.spark.small_work import SPARK, SmallWork
from jobs.spark.spark import Spark
from storage_core.errors import Interrupted, TidemarkError, as_tidemark_error
from storage_core.foreign_text import log_to_stderr, printable

Run = Callable[[JobRequest, Spark], JobReport]


def table_command(job: str, summary: str, run: Run, argv: Sequence[str] | None = None) -> int:
    """Run a job on one table with the arguments that all of them share; the rest as `command`."""
    return command(job, parser(job, summary), on_spark(parse, run), argv)


class Request(Protocol):
    """What a job is asked to do, and the Spark master that it is to use."""

    @property
    def master(self) -> str:
        """The URL of a Spark master."""
        ...


Requested = TypeVar("Requested", bound=Request)


def on_spark(
    parse: Callable[[argparse.Namespace], Requested], run: Callable[[Requested, Spark], JobReport]
) -> Callable[[argparse.Namespace], JobReport]:
    """Return what runs the job on Spark for arguments. They are parsed before Spark starts, which takes a while."""

    def start(arguments: argparse.Namespace) -> JobReport:
        request = parse(arguments)
        named = {SPARK: arguments.spark} if arguments.spark else {}
        with Spark(request.master, SmallWork.of({**os.environ, **named})) as spark:
            return run(request, spark)

    return start


@heard_once()
def command(
    job: str,
    arguments: argparse.ArgumentParser,
    start: Callable[[argparse.Namespace], JobReport],
    argv: Sequence[str] | None = None,
) -> int:
    """Run a job with arguments of its own, `--json` among them, print its report, and return the exit code."""
    log_to_stderr(logging.INFO)
    parsed = arguments.parse_args(argv)
    try:
        with ending_with_parent(os.environ):
            report = start(parsed)
    except TidemarkError as error:
        return _failed(job, error, as_json=parsed.json)
    except KeyboardInterrupt:
        stopped = Interrupted("stopped by a signal; run the same command again")
        return _failed(job, stopped, as_json=parsed.json)
    except Exception as error:  # noqa: BLE001  # the end of the process: the caller is told, whatever it was
        sys.stderr.write(printable(traceback.format_exc()))
        return _failed(job, as_tidemark_error(error), as_json=parsed.json)
    sys.stdout.write((report.to_json() if parsed.json else printable(report.to_text())) + "\n")
    report_to_dagster(json.loads(report.to_json()))
    return 0


def failure_of(job: str, error: TidemarkError) -> dict[str, object]:
    """Return what is said of a job that failed, with the report of what it did until then."""
    failure: dict[str, object] = {"job": job, "status": "failed", "error": error.kind, "message": str(error)}
    if (report := report_of(error)) is not None:
        failure["report"] = json.loads(report.to_json())
    return failure


def _failed(job: str, error: TidemarkError, *, as_json: bool) -> int:
    failure = failure_of(job, error)
    sys.stdout.write(json.dumps(failure) + "\n" if as_json else "")
    sys.stderr.write(printable(f"{job}: {error.kind}: {error}") + "\n")
    report_to_dagster(failure)
    return error.exit_code
