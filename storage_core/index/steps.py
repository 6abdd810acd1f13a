"""The job steps of indexes: `catch_up` builds missing segments of live splits, `merge_segments` merges small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from storage_core.base.errors import Corrupt, NotFound
from storage_core.base.text import counted
from storage_core.data.steps import CatchUp, MergeSegments
from storage_core.index import segment_merge
from storage_core.index.catch_up import CatchUpPlan, CatchUpWork, actions_of, execute, merge_all, plan
from storage_core.index.segment_merge import MergedSegments, SegmentMerge
from storage_core.log.actions import IndexSegment, read_action, to_json_object
from storage_core.log.job_run import (
    Answer,
    DueRun,
    Inputs,
    Item,
    JobReport,
    JobRun,
    Metrics,
    Prediction,
    TaskEnvironment,
    TaskFailure,
    as_task,
)
from storage_core.log.snapshot import Snapshot

Plan = Callable[[Sequence[str], Snapshot], Sequence[CatchUpPlan]]


def run_catch_up(job: JobRun[CatchUp]) -> JobReport:
    """Build the missing segments of one index, or of every index of the table, in one commit.

    The commit does not conflict with data commits.

    Small segments are merged in the same commit. If a merge finds a damaged segment, the merge is skipped and the
    report contains the error. With `retrain`, all segments of embeddings are trained again. Searches use the old
    segments until the commit.

    Raises:
        NotFound: The table does not have the index.
        Held: Another run is catching up one of the indexes.
        Fenced: Another run took over.
    """
    return carry_out(job, partial(plans_of, retrain=job.options.retrain), index=job.options.index)


def carry_out(job: JobRun[Any], plan: Plan, *, index: str | None) -> JobReport:
    """Execute the plans for one index, or for every index of the table. Each plan runs under the lease of its index."""
    names = [index] if index else [each.name for each in job.before.config.indexes]
    lacking = [each.index for each in plan(names, job.before)]
    return job.carry_out(
        partial(plan, lacking),
        partial(_caught_up, job),
        predict=lambda plans: _predicted(job.before, plans),
        leases=[job.step.lease.format(index=name) for name in lacking],
        planned=_planned,
    )


def plans_of(names: Sequence[str], snapshot: Snapshot, *, retrain: bool = False) -> Sequence[CatchUpPlan]:
    """Return the plans of those indexes that need work. Makes no request."""
    found = [plan(snapshot, name, retrain=retrain) for name in names]
    return [each for each in found if not each.empty]


def _planned(plans: Sequence[CatchUpPlan]) -> dict[str, object]:
    merges = [item for each in plans for item in each.merges]
    details = _built(plans) | (_counts(plans, merges) if merges else {})
    return {"metrics": Metrics(splits_in=sum(len(each.work) for each in plans)), "details": details}


def _caught_up(job: JobRun[Any], plans: Sequence[CatchUpPlan]) -> JobReport:
    work = [item for each in plans for item in each.work]
    read = sum(item.add.size for item in work)
    answers = job.map(build_segment, [{"work": item.to_json()} for item in work], input_bytes=read)
    built, failed = [_segment(answer) for answer in answers], list[object]()
    merged, idle = merge_all(job.before, plans, built, partial(_merged, job, failed))
    details = _built(plans) | (_counts(plans, [each.work for each in merged]) if merged else {})
    details |= {"merges_failed": failed} if failed else {}
    actions = actions_of(plans, built, merged, idle)
    if not actions:
        return job.report("nothing_to_do", details=details)
    metrics = _metrics(work, built, merged)
    return job.commit(actions, operation="CATCH UP", metrics=metrics, details=details, benefit=metrics.rows_in)


def _built(plans: Sequence[CatchUpPlan]) -> dict[str, object]:
    return {"segments_built": {each.index: len(each.work) for each in plans}}


def _merged(job: JobRun[Any], failed: list[object], items: Sequence[SegmentMerge]) -> list[MergedSegments]:
    read = sum(each.size for item in items for each in item.segments)
    read += sum(each.size for item in items if item.again for each in item.splits)
    answers = job.map(merge_several, [{"work": item.to_json()} for item in items], input_bytes=read)
    failed += [answer["failed"] for answer in answers if "failed" in answer]
    return [
        MergedSegments(item, _segment(each)) for item, each in zip(items, answers, strict=True) if "segment" in each
    ]


def _counts(plans: Sequence[CatchUpPlan], items: Sequence[SegmentMerge]) -> dict[str, object]:
    """Return the number of merged segments of each index, and the number of segments that were trained again."""

    def count(*, again: bool) -> dict[str, int]:
        return {
            each.index: sum(
                len(item.segments) for item in items if item.definition.name == each.index and item.again is again
            )
            for each in plans
        }

    return {"segments_merged": count(again=False), "segments_retrained": count(again=True)}


def _predicted(snapshot: Snapshot, plans: Sequence[CatchUpPlan]) -> Prediction:
    """Return the predicted cost. The bytes to write are estimated from the current bytes per row of the index."""
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
    """Return the metrics of a run.

    The number of rows counts only indexed splits. The number of bytes also includes merged segments.
    """
    return Metrics(
        rows_in=sum(segment.numRecords for segment in built),
        rows_out=sum(segment.numRecords for segment in built),
        bytes_in=sum(item.add.size for item in work) + sum(old.size for each in merged for old in each.work.segments),
        bytes_out=sum(segment.size for segment in built) + sum(each.segment.size for each in merged),
        splits_in=len(work),
        splits_out=len(built) + len(merged),
    )


def due_catch_up(inputs: Inputs) -> DueRun | None:
    """Return the run that the table needs now, or None."""
    declared = inputs.declared.indexes
    defined = [index.name for index in declared if index in inputs.snapshot.config.indexes]
    new = [index.name for index in declared if index.name not in defined]  # declared indexes that are new or changed
    plans = [plan(inputs.snapshot, name) for name in defined]
    missing = {each.index: len(each.work) for each in plans if not each.empty}
    if not missing and not new:
        return None
    merged = {each.index for each in plans if each.merges}
    lacking = [
        f"{name} lacks {counted(count, 'split')}" for name, count in missing.items() if count or name not in merged
    ]
    for again, waits in ((False, "to merge"), (True, "to train again")):
        counts = {each.index: sum(len(one.segments) for one in each.merges if one.again is again) for each in plans}
        lacking += [f"{name} has {counted(count, 'segment')} {waits}" for name, count in counts.items() if count]
    reason = ", ".join([*lacking, *(f"{name} is new" for name in new)])
    read = [work.add.size for each in plans for work in each.work]
    read += [one.size for each in plans for merge in each.merges for one in merge.segments]
    return DueRun(reason=reason, items=sum(missing.values()) + len(new), bytes=sum(read), indexes=(*missing, *new))


def run_merge_segments(job: JobRun[MergeSegments]) -> JobReport:
    """Merge the small segments of one index, or of every index, in one commit. Raises the errors of `run_catch_up`."""
    return carry_out(job, merges_of, index=job.options.index)


def merges_of(names: Sequence[str], snapshot: Snapshot) -> Sequence[CatchUpPlan]:
    """Return the plans of these indexes, reduced to their merges."""
    found = (replace(each, work=(), stale=(), idle=()) for each in plans_of(names, snapshot))
    return [each for each in found if not each.empty]


@as_task
def build_segment(place: TaskEnvironment, item: Item) -> Answer:
    """Build and store one index segment."""
    segment = execute(place.store, CatchUpWork.from_json(item["work"]), ids=place.ids)
    return {"segment": to_json_object(segment)}


@as_task
def merge_several(place: TaskEnvironment, item: Item) -> Answer:
    """Merge several index segments into one, and store the merged segment.

    If one of these segments is damaged or does not exist, the answer contains the error. An error in one merge does not
    stop the merges of the other work items.
    """
    try:
        segment = segment_merge.execute(place.store, SegmentMerge.from_json(item["work"]), ids=place.ids)
    except (Corrupt, NotFound) as error:
        return {"failed": TaskFailure.of(error).to_object()}
    return {"segment": to_json_object(segment)}
