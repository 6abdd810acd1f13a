"""Jobs one after the other in one process, on one Spark session: for a run that does a step for many small tables.

    python -m jobs.running.job_server ANSWERS IDLE_SECONDS

A line on stdin, `{"job": …, "argv": […]}`, is a job with the arguments of its command. Lines on the file descriptor
`ANSWERS` are `{"began": true}` before it begins, `{"log": …, "level": …}` for what it logs, and `{"ended": …}`: its
report, or its failure as `command` prints it. What it prints goes where this process prints.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import select
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TextIO

from jobs.process.parent import ending_with_parent
from jobs.process.stop_signals import heard_once
from jobs.requests import audit, request
from jobs.running.command import failure_of
from jobs.spark.spark import Spark
from storage_core.errors import Interrupted, TidemarkError, Unavailable, as_tidemark_error
from storage_core.foreign_text import log_to_stderr, printable

BEGAN, MESSAGE, LEVEL, ENDED = "began", "log", "level", "ended"
"""The fields of answers, which `assets.shared_jobs` reads."""


class Answers(logging.Handler):
    """Writes answers, a line each, whatever threads they come from; log records among them."""

    def __init__(self, lines: TextIO) -> None:
        super().__init__(logging.INFO)
        self._lines = lines
        self._writing = threading.RLock()

    def send(self, answer: Mapping[str, object]) -> None:
        """Write one answer; where nobody reads any more, nothing."""
        with self._writing, suppress(BrokenPipeError):
            self._lines.write(json.dumps(answer) + "\n")
            self._lines.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record; called by `logging`."""
        self.send({MESSAGE: record.getMessage(), LEVEL: record.levelname})


@heard_once()
def serve(requests: TextIO, answers: Answers, idle_seconds: float) -> int:
    """Run the jobs of the lines until there is none for so long, or no more of them; return 0.

    Ends after a job that a signal stopped, and after one that may have left Spark unusable: the next needs a new
    process. A `TidemarkError` ends its job only.
    """
    with suppress(KeyboardInterrupt), ending_with_parent(os.environ), Spark() as spark:
        for line in _until_idle(requests, idle_seconds):
            answers.send({BEGAN: True})
            error = _job(line, spark, answers)
            if isinstance(error, Interrupted) or _may_have_broken_spark(error):
                break
    return 0


def _until_idle(requests: TextIO, idle_seconds: float) -> Iterator[str]:
    """The lines. The writer waits for the answer to each, so none is in the buffer while this waits."""
    while select.select([requests], [], [], idle_seconds)[0] and (line := requests.readline()):
        yield line


def _job(line: str, spark: Spark, answers: Answers) -> TidemarkError | None:
    """Run one job and answer; the value is the error that ended it."""
    asked = json.loads(line)
    job, argv = str(asked["job"]), asked["argv"]
    spark.begin_job()
    try:
        report = importlib.import_module(f"jobs.{job}").run(_request(job, argv), spark)
    except TidemarkError as error:
        return _failed(job, error, answers)
    except KeyboardInterrupt:
        return _failed(job, Interrupted("stopped by a signal; run it again"), answers)
    except Exception as error:  # noqa: BLE001  # of this job: the next one is of another table
        sys.stderr.write(printable(traceback.format_exc()))
        return _failed(job, as_tidemark_error(error), answers)
    text = report.to_json()
    print(text, flush=True)  # noqa: T201  # as the command of the job does
    answers.send({ENDED: json.loads(text)})
    return None


def _failed(job: str, error: TidemarkError, answers: Answers) -> TidemarkError:
    sys.stderr.write(printable(f"{job}: {error.kind}: {error}") + "\n")
    answers.send({ENDED: failure_of(job, error)})
    return error


def _request(job: str, argv: Sequence[str]) -> object:
    if job == "audit":
        return audit.parse(audit.parser(job).parse_args(argv))
    return request.parse(request.parser(job, job).parse_args(argv))


def _may_have_broken_spark(error: TidemarkError | None) -> bool:
    """Whether Spark is running, and an error without a kind, or that something is away, may be of its JVM."""
    return "pyspark" in sys.modules and (type(error) is TidemarkError or isinstance(error, Unavailable))


def main(argv: Sequence[str]) -> int:
    """Serve what comes in on stdin."""
    where, idle_seconds = argv
    with suppress(BrokenPipeError), os.fdopen(int(where), "w", encoding="utf-8") as lines:
        # Its end is that of this process, not of Spark's.
        os.set_inheritable(lines.fileno(), False)  # noqa: FBT003  # takes no name
        log_to_stderr(logging.INFO)
        answers = Answers(lines)
        logging.getLogger().addHandler(answers)
        return serve(sys.stdin, answers, float(idle_seconds))
    return Unavailable.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
