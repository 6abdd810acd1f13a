"""Expire: windows older than the table's retention leave it, in one commit (decision 0074).

python -m jobs.expire --table-uri … [--dry-run]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from jobs.reports.metrics import Metrics
from jobs.reports.prediction import Prediction
from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark.spark import Spark
from storage_core.compaction.expiry import Expiry, plan
from storage_core.errors import CommitConflict

MOST_PLANS = 10

SUMMARY = "Take the windows that are older than the table's retention out of it."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Do what `expire` does to the table of the request. No Spark task is needed: no file is read or written."""
    return expire(JobRun("expire", request, spark), dry_run=request.dry_run)


def expire(job: JobRun, *, dry_run: bool = False) -> JobReport:
    """Commit that every window leaves which the retention has passed by now; with none, commit nothing.

    The files stay for versions that name them, until the collector finds none. When another commit changed such a
    window, or the retention, meanwhile, it is planned again, at most 10 times; then `CommitConflict` is raised and
    nothing was written. No lease: a plan is cheap, and of two runs one finds nothing left to do. Idempotent: whatever
    kills it, the next run does what is left.
    """
    for _ in range(MOST_PLANS):
        now_ms = job.table.log.clock.now_ms()
        found = plan(job.before, retention_ms=job.before.config.retention_ms, now_ms=now_ms)
        size, gone = sum(each.bytes for each in found.windows), len(found.splits)
        job.predict(Prediction(benefit=gone, unit="splits", bytes_in=size, bytes_out=0, puts=1 if gone else 0))
        if not found.splits or dry_run:
            return job.report(
                "planned" if found.splits else "nothing_to_do", metrics=_metrics(found), details=_details(found)
            )
        try:
            return _commit(job, found, now_ms)
        except CommitConflict:  # somebody else rewrote such a window, deleted rows of it, or changed the retention
            job.before = job.table.log.refresh(job.before)
    raise CommitConflict(
        f"{job.table.uri}: other writers changed what was to leave during each of {MOST_PLANS} attempts; nothing was "
        "written, run it again",
        version=job.before.version,
    )


def _commit(job: JobRun, found: Expiry, now_ms: int) -> JobReport:
    return job.commit(
        found.removes(now_ms),
        operation="EXPIRE",
        metrics=_metrics(found),
        requirements=[found.requirement],
        details=_details(found),
        benefit=len(found.splits),
    )


def _metrics(found: Expiry) -> Metrics:
    return Metrics(
        rows_in=sum(each.rows for each in found.windows),
        bytes_in=sum(each.bytes for each in found.windows),
        splits_in=len(found.splits),
    )


def _details(found: Expiry) -> dict[str, object]:
    return {"retention_ms": found.retention_ms, "windows": [asdict(each) for each in found.windows]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("expire", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
