"""The jobs of one run in one process of their own, for a run that does a step for many small tables.

The process is `jobs.running.job_server`. It starts with the first job of a run and ends with the run, when it was idle
for a minute, and with this process; a job that kills it fails its own step, and the next one gets a new process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from jobs.requests.audit import AuditRequest
from jobs.requests.request import JobRequest, to_argv
from jobs.running.job_server import BEGAN, ENDED, LEVEL, MESSAGE
from storage_core.errors import Unavailable

if TYPE_CHECKING:
    from assets.launcher import Context, JobName, Report

IDLE_SECONDS = 60.0
STOP_SECONDS = 20.0
"""So long a job that is to stop may take to release its leases."""

SharedRequest = JobRequest | AuditRequest
"""The requests of the steps that such a run may have."""


class JobKilled(Unavailable):
    """The process in which a job worked was ended by something else."""


class SharedJobs:
    """Runs jobs of one Dagster run after another; `root` is their working directory."""

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._process: _Process | None = None

    def submit(self, context: Context, job: JobName, request: SharedRequest, environment: Mapping[str, str]) -> Report:
        """Return what the job ended with: its report, or `{"status": "failed", …}`.

        `environment` is added to that of this process, where the job's process is started.
        Raises `JobKilled`, also where no process stays, and what interrupts the step, which stops
        the job.
        """
        line = json.dumps({"job": job, "argv": to_argv(request)})
        try:
            process = self._that_began(context.run.run_id, line, environment)
            context.log.info("jobs.%s in the process %d of this run: %s", job, process.id, " ".join(to_argv(request)))
            for answer in process.answers():
                if ENDED in answer:
                    ended: Report = answer[ENDED]  # type: ignore[assignment]  # an object of JSON
                    return ended
                context.log.log(logging.getLevelName(str(answer[LEVEL])), "%s", answer[MESSAGE])
        except BaseException:
            if self._process is not None:
                self._process.stop()
            raise
        raise JobKilled(
            f"the process of jobs.{job} on {request.table_uri} was ended by {process.end()}, as happens where memory "
            "runs out; nothing that it had not committed is in the table: run the step again, alone if it ends again"
        )

    def _that_began(self, run_id: str, line: str, environment: Mapping[str, str]) -> _Process:
        """The process in which the job has begun: that of the run or, where that has ended, a new one."""
        process = self._process
        if process is None or process.run_id != run_id or not process.begins(line):
            if process is not None:
                process.end()
            self._process = process = _Process(run_id, self._root, environment)
            if not process.begins(line):
                raise JobKilled(f"no process for jobs could be started, it was ended by {process.end()}: see stderr")
        return process


class _Process:
    """One process for jobs of a run. It ends when nothing refers to this object, too."""

    def __init__(self, run_id: str, root: str | None, environment: Mapping[str, str]) -> None:
        self.run_id = run_id
        reading, writing = os.pipe()
        try:
            self._started = subprocess.Popen(
                [sys.executable, "-m", "jobs.running.job_server", str(writing), str(IDLE_SECONDS)],
                cwd=root,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                pass_fds=[writing],
                text=True,
            )
        finally:
            os.close(writing)
        self._answers = os.fdopen(reading, encoding="utf-8")
        self._end = weakref.finalize(self, _end, self._started, self._answers)

    @property
    def id(self) -> int:
        """The id of the process."""
        return self._started.pid

    def begins(self, line: str) -> bool:
        """Hand the line over and return whether the job begins; not where the process has ended before."""
        try:
            stdin = _of(self._started.stdin)
            stdin.write(line + "\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):  # it has ended; it was told to
            return False
        return BEGAN in next(self.answers(), {})

    def answers(self) -> Iterator[Mapping[str, object]]:
        """The answers to come, until the process ends."""
        while line := self._answers.readline():
            answer: Mapping[str, object] = json.loads(line)
            yield answer

    def stop(self) -> None:
        """Stop the job as a signal does, and end the process."""
        with suppress(ProcessLookupError):
            self._started.send_signal(signal.SIGTERM)
        self.end()

    def end(self) -> str:
        """End the process, and return what ended it."""
        self._end()
        code = self._started.returncode
        return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"


def _end(process: subprocess.Popen[str], answers: IO[str]) -> None:
    """Let the process end as one does that is asked for nothing more; kill one that does not."""
    answers.close()
    with suppress(BrokenPipeError):
        _of(process.stdin).close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _of(stdin: IO[str] | None) -> IO[str]:
    if stdin is None:
        raise TypeError("the process was started without a pipe")
    return stdin
