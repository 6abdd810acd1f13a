"""How an asset runs a job: in a subprocess over Dagster Pipes, or in this process on a Spark session that is shared.

Both give the same report and fail a step the same way, so an asset never knows which one it has
(docs/architecture/orchestration.md, "Spark"). The launcher is the Dagster resource `launcher`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

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

from assets.run_tags import PROCESS, TABLES
from assets.shared_jobs import JobKilled, SharedJobs, SharedRequest
from jobs.process.holder import holder_of
from jobs.process.parent import as_parent
from jobs.reports.failure import Failed
from jobs.reports.report import report_of
from jobs.requests.audit import AuditRequest
from jobs.requests.catalog import CatalogRequest
from jobs.requests.distribute import DistributeRequest
from jobs.requests.forget import ForgetRequest
from jobs.requests.raw_log import RawLogRequest
from jobs.requests.request import JobRequest, to_argv
from jobs.spark.code_archive import first_on_path
from jobs.spark.small_work import DRIVER_ITEMS, DRIVER_MIB, SPARK
from jobs.spark.spark import Spark
from storage_core.errors import TidemarkError
from storage_core.foreign_text import shortened
from storage_core.scratch import scratch_folder
from tidemark.io_manager.failures import shown, typed_failures

JobName = Literal[
    "ingest",
    "merge",
    "sort",
    "expire",
    "compact",
    "checkpoint",
    "catch_up",
    "collect",
    "publish",
    "distribute",
    "audit",
    "collect_raw",
    "heal_raw",
    "forget",
    "refresh_catalog",
]
Request = JobRequest | AuditRequest | DistributeRequest | RawLogRequest | ForgetRequest | CatalogRequest
Report = Mapping[str, object]
Context = AssetExecutionContext | OpExecutionContext
"""Of an asset, or of the op that runs asset checks."""

LAUNCHER = "launcher"

MOST_DEATHS = 2
"""A step whose job was killed starts it again so often."""

COMMITS_STAY = "what it committed stays, and the next run does the rest"
_KILLED = f"ended without a word, mostly killed for lack of memory; its output is in the compute logs; {COMMITS_STAY}"


class Launcher(Protocol):
    """Runs one job to its end. Implementations differ in where it runs, never in what it does."""

    def submit(self, context: Context, job: JobName, request: Request) -> Report:
        """Return the job's report as plain data (the fields of `JobReport`).

        Raises `Failure` with the kind and message of the job's typed error, `PartlyDone` when the job has done a part
        of its work. A run that is cancelled stops the job.
        """
        ...


class PartlyDone(Failure):
    """The failure of a job that has done a part of its work: `report` says which."""

    def __init__(self, failed: Failed, report: Report) -> None:
        """Hold the kind and message of the job's error, and its report."""
        super().__init__(**shown(failed.kind, failed.message))
        self.report = report


class PipesLauncher(ConfigurableResource):  # type: ignore[type-arg]  # of nothing but itself
    """Runs `python -m jobs.<job>` in a subprocess, which starts Spark where the work is not small; the default.

    `root` is the working directory of the job, against which relative places are resolved (default: this process's).
    The bounds of the windows travel as arguments, because Pipes drops the partition range of a ranged run.
    """

    root: str | None = Field(default=None, description="The working directory of jobs (default: that of Dagster).")
    spark: str | None = Field(
        default=None,
        description="auto: small work is executed without Spark; always: never (default: TIDEMARK_SPARK, else auto).",
    )
    driver_mib: int | None = Field(
        default=None, description="Small work reads at most so many MiB (default: TIDEMARK_DRIVER_MIB, else 64)."
    )
    driver_items: int | None = Field(
        default=None, description="Small work is at most so many items (default: TIDEMARK_DRIVER_ITEMS, else 32)."
    )

    _shared: SharedJobs | None = PrivateAttr(default=None)

    def __init__(self, root: Path | str | None = None, **settings: Any) -> None:
        """Take the settings; a value that is none of a setting's is the error of each job."""
        super().__init__(**{"root": None if root is None else str(root), **settings})

    def _jobs_of_run(self) -> SharedJobs:
        """The process of a run of several tables."""
        if self._shared is None:
            self._shared = SharedJobs(self.root)
        return self._shared

    def _settings(self) -> dict[str, str]:
        """The settings as jobs read them."""
        given = {SPARK: self.spark, DRIVER_MIB: self.driver_mib, DRIVER_ITEMS: self.driver_items}
        return {name: str(value) for name, value in given.items() if value is not None}

    def submit(self, context: Context, job: JobName, request: Request) -> Report:
        """Run the subprocess, which ends with this one; what it writes to stdout and stderr is in the compute logs.

        Jobs of a run of several tables share one.
        """
        command = [sys.executable, "-m", f"jobs.{job}", *to_argv(request), "--json"]
        if context.run.tags.get(PROCESS) != (process := holder_of(context.run.run_id)):
            context.instance.add_run_tags(context.run.run_id, {PROCESS: process})
        environment = {**first_on_path(os.environ), **as_parent(), **self._settings()}
        if TABLES in context.run.tags and isinstance(request, SharedRequest):
            with typed_failures():
                try:
                    return _done(self._jobs_of_run().submit(context, job, request, environment))
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
    """Runs jobs in this process on one Spark session: for tests, and for several steps in a row.

    The session starts with the first step that has work for it and stays warm; the caller stops it.
    """

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def submit(self, context: Context, job: JobName, request: Request) -> Report:
        """Call the job's `run`; its log lines go where this process logs."""
        context.log.info("jobs.%s in this process: %s", job, " ".join(to_argv(request)))
        self._spark.begin_job()
        with _job_failures():
            report = importlib.import_module(f"jobs.{job}").run(request, self._spark)
        return _as_report(json.loads(report.to_json()))


@contextmanager
def _job_failures() -> Iterator[None]:
    """Turn the `TidemarkError` of a job into the `Failure` that shows it, with what the job had done until then."""
    try:
        yield
    except TidemarkError as error:
        report = report_of(error)
        done = None if report is None else _as_report(json.loads(report.to_json()))
        raise _failure(Failed.of(error), done) from error


@contextmanager
def _reported_failure(job: str, messages: Path, *, is_last: bool) -> Iterator[None]:
    """Raise what the job reported as its error; the exit code alone says less.

    A job that ended without a word was killed: the step is tried again, or fails where that was the last time.
    The interruption of the step stays, which is no `Exception`: what a job makes of its end is not why it ended.
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
            raise _failure(Failed(TidemarkError.kind, f"jobs.{job} {_KILLED}: {error}")) from error
        raise


@contextmanager
def _quiet_previews() -> Iterator[None]:
    """Dagster's own client calls a part of Pipes that is in preview, and warns of it in each step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreviewWarning)
        yield


def _done(report: Report) -> Report:
    if report.get("status") == "failed":
        raise _failure_in(report)
    return report


def _failure_in(report: Report) -> Failure:
    done = report.get("report")
    failed = Failed(str(report.get("error")), str(report.get("message")))
    return _failure(failed, None if done is None else _as_report(done))


def _failure(failed: Failed, done: Report | None = None) -> Failure:
    return Failure(**shown(failed.kind, failed.message)) if done is None else PartlyDone(failed, done)


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
            sent = f"jobs.{job} ended well but sent {shortened(repr(messages))} instead of one report"
            raise _failure(Failed(TidemarkError.kind, sent))


def _as_report(body: object) -> Report:
    if not isinstance(body, dict):
        raise TypeError(f"a job report is an object, found {type(body).__name__}")
    return {str(name): value for name, value in body.items()}
