"""How an asset runs a job.

The job runs in a subprocess with Dagster Pipes, or in this process on a shared Spark session.

The launcher for subprocesses and the launcher for this process return the same report and report failures in the same
way. Assets therefore do not depend on the launcher. See docs/architecture/orchestration.md, "Spark". The launcher is
the Dagster resource `launcher`.

If a run does a step for many small tables, all its jobs share one process, `jobs.job_server`. The shared process starts
with the first job of the run. The shared process ends when the run ends, after one minute without jobs, or when the
present process ends. A job can crash the shared process. Then only the step of this job fails, and the next job gets a
new process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

from dagster import (
    AssetExecutionContext,
    ConfigurableResource,
    Failure,
    OpExecutionContext,
    PipesFileMessageReader,
    PipesSubprocessClient,
    PreviewWarning,
    RetryRequested,
)
from dagster._core.errors import DagsterPipesExecutionError
from pydantic import Field, PrivateAttr

from assets.failures import failure_arguments, typed_failures
from assets.run_tags import PROCESS, TABLES
from jobs.command import to_arguments
from jobs.job_server import BEGAN, ENDED, LEVEL, MESSAGE
from jobs.process import parent_environment
from jobs.spark.java import first_on_path
from jobs.spark.spark import DRIVER_ITEMS, DRIVER_MIB, SPARK, Spark
from storage_core.base.errors import TidemarkError, Unavailable
from storage_core.base.process import holder_of, scratch_folder
from storage_core.base.text import shortened
from storage_core.data.steps import Audit, RunOptions, TableOptions, step_of
from storage_core.log.job_run import TaskFailure, report_of, run

Report = Mapping[str, object]
Context = AssetExecutionContext | OpExecutionContext
"""The Dagster context of an asset, or of the op that runs asset checks."""

LAUNCHER = "launcher"

MOST_DEATHS = 2
"""The number of times that a step restarts its job after the job was killed."""

COMMITS_STAY = "Committed work is kept, and the next run does the rest"
_KILLED = (
    "ended without a report. The usual cause is that memory ran out. The output of the job is in the "
    f"compute logs. {COMMITS_STAY}"
)


class Launcher(Protocol):
    """Runs one step until the step ends. Implementations differ only in the process that runs the step."""

    def submit(self, context: Context, options: RunOptions) -> Report:
        """Return the report of the job as a mapping of plain values (the fields of `JobReport`).

        If the run is cancelled, the job is stopped.

        Raises:
            Failure: The job failed. The failure contains the kind and message of the typed error.
            PartlyDone: The job failed after it had finished a part of its work.
        """
        ...


class PartlyDone(Failure):
    """The failure of a job that has finished a part of its work. The attribute `report` contains the finished part."""

    def __init__(self, failed: TaskFailure, report: Report) -> None:
        """Store the kind and message of the job's error, and the report of the finished work."""
        super().__init__(**failure_arguments(failed.kind, failed.message))
        self.report = report


class PipesLauncher(ConfigurableResource):  # type: ignore[type-arg]  # of nothing but itself
    """Runs `python -m jobs STEP` in a subprocess. This is the default launcher.

    The job starts Spark only if its work is not small. `root` is the working directory of the job, and relative
    locations start there. The default of `root` is the working directory of this process. The launcher passes the range
    of windows as arguments, because Pipes does not pass the partition range of a run.
    """

    root: str | None = Field(default=None, description="The working directory of jobs (default: that of Dagster).")
    spark: str | None = Field(
        default=None,
        description="auto: do small work without Spark. always: use Spark (default: TIDEMARK_SPARK, else auto).",
    )
    driver_mib: int | None = Field(
        default=None, description="Small work reads at most this many MiB (default: TIDEMARK_DRIVER_MIB, else 64)."
    )
    driver_items: int | None = Field(
        default=None, description="Small work has at most this many items (default: TIDEMARK_DRIVER_ITEMS, else 32)."
    )

    _shared: SharedJobs | None = PrivateAttr(default=None)

    def __init__(self, root: Path | str | None = None, **settings: Any) -> None:
        """Store the settings. If a value is invalid, every job fails."""
        super().__init__(**{"root": None if root is None else str(root), **settings})

    def _jobs_of_run(self) -> SharedJobs:
        """Return the process for a run that does a step of several tables."""
        if self._shared is None:
            self._shared = SharedJobs(self.root)
        return self._shared

    def _settings(self) -> dict[str, str]:
        """Return the settings as environment variables for jobs."""
        given = {SPARK: self.spark, DRIVER_MIB: self.driver_mib, DRIVER_ITEMS: self.driver_items}
        return {name: str(value) for name, value in given.items() if value is not None}

    def submit(self, context: Context, options: RunOptions) -> Report:
        """Run the subprocess.

        The subprocess ends when this process ends. The compute logs contain the standard output and standard error of
        the subprocess.

        The jobs of a run of several tables share one subprocess.
        """
        job = step_of(options).name
        command = [sys.executable, "-m", "jobs", job, *to_arguments(options), "--json"]
        if context.run.tags.get(PROCESS) != (process := holder_of(context.run.run_id)):
            context.instance.add_run_tags(context.run.run_id, {PROCESS: process})
        environment = {**first_on_path(os.environ), **parent_environment(), **self._settings()}
        if TABLES in context.run.tags and isinstance(options, SHARED):
            with typed_failures():
                try:
                    return _done(self._jobs_of_run().submit(context, options, environment))
                except JobKilled as error:
                    if context.retry_number < MOST_DEATHS:
                        raise RetryRequested(max_retries=MOST_DEATHS) from error
                    raise
        with scratch_folder("pipes") as folder:
            messages = folder / "messages"
            reader = PipesFileMessageReader(str(messages), cleanup_file=False)
            client = PipesSubprocessClient(cwd=self.root, message_reader=reader)
            with _reported_failure(job, messages, is_last=context.retry_number >= MOST_DEATHS), _quiet_previews():
                completed = client.run(context=context, command=command, env=environment)
        return _only_report(job, completed.get_custom_messages())


class InProcessLauncher:
    """Runs jobs in this process on one Spark session. Tests and programs that run several steps use this launcher.

    The session starts with the first step that needs it, and stays open. The caller must stop the session.
    """

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def submit(self, context: Context, options: RunOptions) -> Report:
        """Run the step. The log lines of the step go to the log of this process."""
        context.log.info("the job %s in this process: %s", step_of(options).name, " ".join(to_arguments(options)))
        self._spark.begin_job()
        with _job_failures():
            report = run(options, self._spark)
        return _as_report(json.loads(report.to_json()))


@contextmanager
def _job_failures() -> Iterator[None]:
    """Convert a `TidemarkError` of a job into a `Failure`.

    The failure contains a report of the finished work, if there is one.
    """
    try:
        yield
    except TidemarkError as error:
        report = report_of(error)
        done = None if report is None else _as_report(json.loads(report.to_json()))
        raise _failure(TaskFailure.of(error), done) from error


@contextmanager
def _reported_failure(job: str, messages: Path, *, is_last: bool) -> Iterator[None]:
    """Raise the error from the report of the job, because this error contains more than the exit code.

    A job without a report was killed. In this case, the step is retried, and it fails after the last retry. An
    interruption of the step is not an `Exception`, so this function does not catch it. Errors that the job reports
    afterwards therefore do not replace the interruption.
    """
    try:
        yield
    except Exception as error:
        for report in _custom_messages(messages):
            if report.get("status") == "failed":
                raise _failure_in(report) from error
        if isinstance(error, DagsterPipesExecutionError):
            if not is_last:
                raise RetryRequested(max_retries=MOST_DEATHS) from error
            raise _failure(TaskFailure(TidemarkError.kind, f"the job {job} {_KILLED}: {error}")) from error
        raise


@contextmanager
def _quiet_previews() -> Iterator[None]:
    """Suppress the warnings about a preview feature of Pipes. Dagster's Pipes client uses this feature in each step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreviewWarning)
        yield


def _done(report: Report) -> Report:
    if report.get("status") == "failed":
        raise _failure_in(report)
    return report


def _failure_in(report: Report) -> Failure:
    done = report.get("report")
    failed = TaskFailure(str(report.get("error")), str(report.get("message")))
    return _failure(failed, None if done is None else _as_report(done))


def _failure(failed: TaskFailure, done: Report | None = None) -> Failure:
    return Failure(**failure_arguments(failed.kind, failed.message)) if done is None else PartlyDone(failed, done)


def _custom_messages(messages: Path) -> Iterator[Report]:
    if not messages.exists():
        return
    for line in messages.read_text(encoding="utf-8").splitlines():
        message = json.loads(line)
        if message["method"] == "report_custom_message":
            yield _as_report(message["params"]["payload"])


def _only_report(job: str, messages: object) -> Report:
    match messages:
        case [dict() as report]:
            return _as_report(report)
        case _:
            sent = f"the job {job} ended well but sent {shortened(repr(messages))} instead of one report"
            raise _failure(TaskFailure(TidemarkError.kind, sent))


def _as_report(body: object) -> Report:
    if not isinstance(body, dict):
        raise TypeError(f"a job report is an object, found {type(body).__name__}")
    return {str(name): value for name, value in body.items()}


# One process for the jobs of a run.


IDLE_SECONDS = 60.0
STOP_SECONDS = 20.0
"""The number of seconds that a stopped job has to release its leases."""

SHARED = (TableOptions, Audit)
"""The option classes of the steps that may share a process."""


class JobKilled(Unavailable):
    """The error that is raised if something outside the job ended its process."""


class SharedJobs:
    """Runs the jobs of one Dagster run sequentially in one process. `root` is the working directory of this process."""

    def __init__(self, root: str | None) -> None:
        self._root = root
        self._process: _Process | None = None

    def submit(self, context: Context, options: TableOptions | Audit, environment: Mapping[str, str]) -> Report:
        """Return the report of the job, or `{"status": "failed", …}` if the job failed.

        Args:
            context: The context of the step.
            options: The options of the step.
            environment: Variables that are added to the environment of this process when the job's process starts.

        Raises:
            JobKilled: The process of the job was ended, or no process could be started. An interruption of the step is
                raised too, after the job was stopped.
        """
        job, arguments = step_of(options).name, to_arguments(options)
        line = json.dumps({"job": job, "argv": arguments})
        try:
            process = self._that_began(context.run.run_id, line, environment)
            context.log.info("the job %s in the process %d of this run: %s", job, process.id, " ".join(arguments))
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
            f"the process of the job {job} on {options.table_uri} was ended by {process.end()}. The usual cause is "
            "that memory ran out. Uncommitted work is not in the table. Run the step again. If the process ends "
            "again, run no other step at the same time."
        )

    def _that_began(self, run_id: str, line: str, environment: Mapping[str, str]) -> _Process:
        """Begin the job and return its process.

        This is the process of the run, or a new process if the former has ended.
        """
        process = self._process
        if process is None or process.run_id != run_id or not process.begins(line):
            if process is not None:
                process.end()
            self._process = process = _Process(run_id, self._root, environment)
            if not process.begins(line):
                raise JobKilled(f"the process for jobs could not start, and was ended by {process.end()}. See stderr")
        return process


class _Process:
    """One process for the jobs of a run.

    The process also ends when the program drops the last reference to this object.
    """

    def __init__(self, run_id: str, root: str | None, environment: Mapping[str, str]) -> None:
        self.run_id = run_id
        reading, writing = os.pipe()
        try:
            self._started = subprocess.Popen(
                [sys.executable, "-m", "jobs.job_server", str(writing), str(IDLE_SECONDS)],
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
        """The operating system's id of the process."""
        return self._started.pid

    def begins(self, line: str) -> bool:
        """Send the job to the process. Return True if the process starts the job.

        A process that has ended does not start the job.
        """
        try:
            stdin = _of(self._started.stdin)
            stdin.write(line + "\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):  # the process has ended
            return False
        return BEGAN in next(self.answers(), {})

    def answers(self) -> Iterator[Mapping[str, object]]:
        """Yield the answers until the process ends."""
        while line := self._answers.readline():
            answer: Mapping[str, object] = json.loads(line)
            yield answer

    def stop(self) -> None:
        """Stop the job with a signal, and end the process."""
        with suppress(ProcessLookupError):
            self._started.send_signal(signal.SIGTERM)
        self.end()

    def end(self) -> str:
        """End the process, and return how it ended."""
        self._end()
        code = self._started.returncode
        return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"


def _end(process: subprocess.Popen[str], answers: IO[str]) -> None:
    """Close the input of the process, so that the process ends. Kill the process if it does not end in time."""
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
