"""Runs several jobs sequentially in one process, on one Spark session.

    python -m jobs.job_server ANSWERS IDLE_SECONDS

A Dagster run that executes one step for many small tables uses this process.

Each line on standard input is one job, `{"job": …, "argv": […]}`, with the arguments of its command. The process writes
these lines to the file descriptor `ANSWERS`:

- `{"began": true}` before the job begins.
- `{"log": …, "level": …}` for each log record of the job.
- `{"ended": …}` with the report of the job. If the job failed, the line contains the failure in the format of
  `jobs.command`.

All other output of a job goes to the output of this process.
"""

from __future__ import annotations

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

from jobs.command import failure_of, from_arguments
from jobs.process import end_with_parent, interrupt_on_first_signal
from jobs.spark.spark import Spark
from storage_core.base.errors import Interrupted, TidemarkError, Unavailable, as_tidemark_error
from storage_core.base.text import log_to_stderr, printable
from storage_core.log.job_run import run

BEGAN, MESSAGE, LEVEL, ENDED = "began", "log", "level", "ended"
"""The fields of the answers, which `assets.launcher` reads."""


class Answers(logging.Handler):
    """Writes answers and log records, one line each. Thread-safe."""

    def __init__(self, lines: TextIO) -> None:
        super().__init__(logging.INFO)
        self._lines = lines
        self._writing = threading.RLock()

    def send(self, answer: Mapping[str, object]) -> None:
        """Write one answer. Do nothing if the reader has closed the pipe."""
        with self._writing, suppress(BrokenPipeError):
            self._lines.write(json.dumps(answer) + "\n")
            self._lines.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record. The module `logging` calls this method."""
        self.send({MESSAGE: record.getMessage(), LEVEL: record.levelname})


@interrupt_on_first_signal()
def serve(requests: TextIO, answers: Answers, idle_seconds: float) -> int:
    """Run one job per line of the input. Stop if no job arrives for `idle_seconds`, or if the input ends. Return 0.

    The process also ends after a signal stops a job, or if a job may have made Spark unusable. The next job then needs
    a new process. Any other `TidemarkError` ends only the job that raised it.
    """
    with suppress(KeyboardInterrupt), end_with_parent(os.environ), Spark() as spark:
        for line in _until_idle(requests, idle_seconds):
            answers.send({BEGAN: True})
            error = _job(line, spark, answers)
            if isinstance(error, Interrupted) or _may_have_broken_spark(error):
                break
    return 0


def _until_idle(requests: TextIO, idle_seconds: float) -> Iterator[str]:
    """Yield the lines. The sender waits for each answer, so the input buffer is empty while this function waits."""
    while select.select([requests], [], [], idle_seconds)[0] and (line := requests.readline()):
        yield line


def _job(line: str, spark: Spark, answers: Answers) -> TidemarkError | None:
    """Run one job and send the answer. Return the error that ended the job, or None."""
    asked = json.loads(line)
    job, argv = str(asked["job"]), asked["argv"]
    spark.begin_job()
    try:
        report = run(from_arguments(job, argv), spark)
    except TidemarkError as error:
        return _failed(job, error, answers)
    except KeyboardInterrupt:
        return _failed(job, Interrupted("stopped by a signal. Run the job again."), answers)
    except Exception as error:  # noqa: BLE001  # any error concerns only this job
        sys.stderr.write(printable(traceback.format_exc()))
        return _failed(job, as_tidemark_error(error), answers)
    text = report.to_json()
    print(text, flush=True)  # noqa: T201  # the command of a job prints in the same way
    answers.send({ENDED: json.loads(text)})
    return None


def _failed(job: str, error: TidemarkError, answers: Answers) -> TidemarkError:
    sys.stderr.write(printable(f"{job}: {error.kind}: {error}") + "\n")
    answers.send({ENDED: failure_of(job, error)})
    return error


def _may_have_broken_spark(error: TidemarkError | None) -> bool:
    """Return whether Spark is running and the error may come from its JVM.

    An error from the JVM has no specific type, or is `Unavailable`.
    """
    return "pyspark" in sys.modules and (type(error) is TidemarkError or isinstance(error, Unavailable))


def main(argv: Sequence[str]) -> int:
    """Run the jobs that arrive on standard input."""
    where, idle_seconds = argv
    with suppress(BrokenPipeError), os.fdopen(int(where), "w", encoding="utf-8") as lines:
        # A child process such as Spark must not keep the pipe open. The end of the pipe means that this process has
        # ended.
        os.set_inheritable(lines.fileno(), False)  # noqa: FBT003  # the function accepts no keyword
        log_to_stderr(logging.INFO)
        answers = Answers(lines)
        logging.getLogger().addHandler(answers)
        return serve(sys.stdin, answers, float(idle_seconds))
    return Unavailable.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
