"""Catch-up: build the index segments that live splits lack, merge small ones, and drop those that cover nothing.

python -m jobs.catch_up --table-uri … [--index NAME] [--merges-only] [--retrain]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from jobs.reports.metrics import Metrics
from jobs.reports.prediction import Prediction
from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark import tasks
from jobs.spark.spark import Answer, Spark
from storage_core.index.catch_up import CatchUpPlan, CatchUpWork, actions_of, merge_all, plan
from storage_core.index.segment_merge_work import MergedSegments, SegmentMerge
from storage_core.log.actions import IndexSegment
from storage_core.log.encoding.action_json import read_action
from storage_core.log.snapshot import Snapshot

SUMMARY = "Build the index segments that live splits lack, and merge small ones."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Catch up one index, or every index of the table, in one commit. Commutes with data commits.

    Small segments become one in the same commit; with `merges_only` nothing is built. A merge that finds a segment
    damaged is left out, and the report says so. With `retrain` all segments of vectors are trained again; the old ones
    answer until the commit. Raises `NotFound` for an index that the table does not have, `Held` while another run
    catches one of them up, and `Fenced` when one took over.
    """
    job = JobRun("catch_up", request, spark)
    names = [request.index] if request.index else [index.name for index in job.before.config.indexes]
    plans_of = partial(_plans, request)
    lacking = [each.index for each in plans_of(names, job.before)]
    with job.leased(partial(plans_of, lacking), [f"catch_up.{name}" for name in lacking]) as plans:
        job.predict(_predicted(job.before, plans))
        if not plans:
            return job.report("nothing_to_do")
        work = [item for each in plans for item in each.work]
        details: dict[str, object] = {"segments_built": {each.index: len(each.work) for each in plans}}
        if request.dry_run:
            merges = [item for each in plans for item in each.merges]
            details |= _counts(plans, merges) if merges else {}
            return job.report("planned", metrics=Metrics(splits_in=len(work)), details=details)
        read = sum(item.add.size for item in work)
        answers = job.map(tasks.build_segment, [{"work": item.to_json()} for item in work], input_bytes=read)
        built, failed = [_segment(answer) for answer in answers], list[object]()
        merged, idle = merge_all(job.before, plans, built, partial(_merged, job, failed))
        details |= _counts(plans, [each.work for each in merged]) if merged else {}
        details |= {"merges_failed": failed} if failed else {}
        actions = actions_of(plans, built, merged, idle)
        if not actions:
            return job.report("nothing_to_do", details=details)
        metrics = _metrics(work, built, merged)
        return job.commit(actions, operation="CATCH UP", metrics=metrics, details=details, benefit=metrics.rows_in)


def _merged(job: JobRun, failed: list[object], items: Sequence[SegmentMerge]) -> list[MergedSegments]:
    read = sum(each.size for item in items for each in item.segments)
    read += sum(each.size for item in items if item.again for each in item.splits)
    answers = job.map(tasks.merge_segments, [{"work": item.to_json()} for item in items], input_bytes=read)
    failed += [answer["failed"] for answer in answers if "failed" in answer]
    return [
        MergedSegments(item, _segment(each)) for item, each in zip(items, answers, strict=True) if "segment" in each
    ]


def _counts(plans: Sequence[CatchUpPlan], items: Sequence[SegmentMerge]) -> dict[str, object]:
    """How many segments of each index were merged, and how many trained again."""

    def count(*, again: bool) -> dict[str, int]:
        return {
            each.index: sum(
                len(item.segments) for item in items if item.definition.name == each.index and item.again is again
            )
            for each in plans
        }

    return {"segments_merged": count(again=False), "segments_retrained": count(again=True)}


def _plans(request: JobRequest, names: Sequence[str], snapshot: Snapshot) -> Sequence[CatchUpPlan]:
    found = [plan(snapshot, name, retrain=request.retrain) for name in names]
    if request.merges_only:
        found = [replace(each, work=(), stale=(), idle=()) for each in found]
    return [each for each in found if not each.empty]


def _predicted(snapshot: Snapshot, plans: Sequence[CatchUpPlan]) -> Prediction:
    """Bytes out by those that the segments of the same index have per row."""
    work, merges = [item for each in plans for item in each.work], [item for each in plans for item in each.merges]
    old = [segment for item in merges for segment in item.segments]
    written = [_size(snapshot, each) for each in plans]
    return Prediction(
        benefit=sum(item.add.visible_rows for item in work),
        unit="rows",
        bytes_in=sum(item.add.size for item in work) + sum(each.size for each in old),
        bytes_out=None if None in written else sum(each or 0 for each in written),
        gets=len(work) + len(old),
        puts=len(work) + len(merges) + 1 if plans else 0,
    )


def _size(snapshot: Snapshot, plan: CatchUpPlan) -> int | None:
    built = sum(item.add.visible_rows for item in plan.work)
    merged = sum(old.size for item in plan.merges for old in item.segments)
    known = [each for each in snapshot.segments.values() if each.index == plan.index]
    rows = sum(each.numRecords for each in known)
    if built and not rows:
        return None
    return merged + (round(sum(each.size for each in known) / rows * built) if built else 0)


def _segment(answer: Answer) -> IndexSegment:
    return read_action(answer["segment"], IndexSegment, "catch-up answer")


def _metrics(work: Sequence[CatchUpWork], built: Sequence[IndexSegment], merged: Sequence[MergedSegments]) -> Metrics:
    """Rows are those of splits that were indexed; bytes also those of segments that were merged."""
    return Metrics(
        rows_in=sum(segment.numRecords for segment in built),
        rows_out=sum(segment.numRecords for segment in built),
        bytes_in=sum(item.add.size for item in work) + sum(old.size for each in merged for old in each.work.segments),
        bytes_out=sum(segment.size for segment in built) + sum(each.segment.size for each in merged),
        splits_in=len(work),
        splits_out=len(built) + len(merged),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("catch_up", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
