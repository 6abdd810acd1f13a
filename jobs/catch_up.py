"""Catch-up: build the index segments that live splits lack, and drop those that cover nothing.

python -m jobs.catch_up --table-uri … [--index NAME]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from jobs.reports.metrics import Metrics
from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark import tasks
from jobs.spark.spark import Spark
from storage_core.index.catch_up import CatchUpPlan, CatchUpWork, actions_of, plan
from storage_core.log.actions import IndexSegment
from storage_core.log.encoding.action_json import read_action
from storage_core.log.snapshot import Snapshot

SUMMARY = "Build the index segments that live splits lack."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Catch up one index, or every index of the table, in one commit. Commutes with data commits.

    Raises `NotFound` for an index that the table does not have, `Held` while another run catches one of them up, and
    `Fenced` when one took over.
    """
    job = JobRun("catch_up", request, spark)
    names = [request.index] if request.index else [index.name for index in job.before.config.indexes]
    lacking = [name for name in names if not plan(job.before, name).empty]
    with job.leased(partial(_plans, lacking), [f"catch_up.{name}" for name in lacking]) as plans:
        if not plans:
            return job.report("nothing_to_do")
        work = [item for each in plans for item in each.work]
        details = {"segments_built": {each.index: len(each.work) for each in plans}}
        if request.dry_run:
            return job.report("planned", metrics=Metrics(splits_in=len(work)), details=details)
        answers = job.map(tasks.build_segment, [{"work": item.to_json()} for item in work])
        built = [read_action(answer["segment"], IndexSegment, "catch-up answer") for answer in answers]
        metrics = _metrics(work, built)
        return job.commit(actions_of(plans, built), operation="CATCH UP", metrics=metrics, details=details)


def _plans(names: Sequence[str], snapshot: Snapshot) -> Sequence[CatchUpPlan]:
    return [each for name in names if not (each := plan(snapshot, name)).empty]


def _metrics(work: Sequence[CatchUpWork], built: Sequence[IndexSegment]) -> Metrics:
    return Metrics(
        rows_in=sum(segment.numRecords for segment in built),
        rows_out=sum(segment.numRecords for segment in built),
        bytes_in=sum(item.add.size for item in work),
        bytes_out=sum(segment.size for segment in built),
        splits_in=len(work),
        splits_out=len(built),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("catch_up", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
