"""Maintenance steps of the regions of a keyed table: `merge` and `sort`.

`merge` applies pending generations to the base. For each key, the newest record wins (docs/architecture/ingestion.md,
"Merge"). `sort` replaces many unsorted generations of a region by one sorted generation
(docs/architecture/ingestion.md).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from storage_core.base.errors import CommitConflict
from storage_core.base.text import counted
from storage_core.data.steps import Merge, Sort
from storage_core.log.job_run import (
    Answer,
    DueRun,
    InProcessExecutor,
    Inputs,
    Item,
    JobReport,
    JobRun,
    Metrics,
    PlannedRun,
    Prediction,
    Status,
    TaskEnvironment,
    as_task,
    size_as_rows,
)
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.write.region import generation_write, merge
from storage_core.write.region.generation_write import SortingResult, SortingWork
from storage_core.write.region.idle import MergeDue, flush_idle, merge_due
from storage_core.write.region.merge_work import MergeResult, MergeWork, naming_works


def run_merge(job: JobRun[Merge]) -> JobReport:
    """Merge consecutive generations of each region, with regions in parallel.

    One commit contains all results and the progress of all regions.

    First the driver flushes the rows of idle writers (`region.idle`). A region with a damaged log does not stop the
    merge of other regions. The `Corrupt` error of this region is raised after the merge. With `quarantine`, the merge
    quarantines the records that it cannot apply. Only the merge step quarantines records that cannot be applied.
    A run merges up to about a million records per region. Run the step again until it reports that there is nothing to
    do.

    Raises:
        Held: another run merges this table.
        Fenced: another run took over.
        CommitConflict: other processes changed the same regions or splits during each plan (`job.carry_out`).
    """
    return job.carry_out(
        partial(merge_due, job.store),
        partial(_flushed_and_merged, job),
        predict=lambda due: _merge_predicted(job, due.works),
        planned=lambda due: {"details": _merge_details(due)},
    )


def _flushed_and_merged(job: JobRun[Merge], due: MergeDue) -> JobReport:
    store, log = job.store, job.log
    damaged = flush_idle(store, job.before, due.idle, clock=log.clock, ids=log.ids)
    if due.idle:
        due = replace(due, works=merge.plan(store, job.before))
        job.predict(_merge_predicted(job, due.works))
    report = _merged(job, due.works, _merge_details(due)) if due.works else job.report("nothing_to_do")
    for error in damaged:
        raise error
    return report


def _merged(job: JobRun[Merge], works: Sequence[MergeWork], details: dict[str, object]) -> JobReport:
    items = [{"work": item.to_json(), "quarantine": job.options.quarantine} for item in works]
    answers = job.map(merge_region, items, input_bytes=sum(item.input_bytes for item in works))
    results = [MergeResult.from_json(answer["result"]) for answer in answers]
    log = job.log
    with naming_works(*works):
        return job.commit(
            merge.actions_of(job.store, results, ids=log.ids, now_ms=log.clock.now_ms()),
            operation="MERGE",
            metrics=_metrics(works, results),
            requirements=[each for item in works for each in item.requirements],
            details=details,
            benefit=_generations(works),
        )


def merge_regions(
    log: TransactionLog, head: Snapshot, regions: Collection[str] | None = None, *, quarantine: bool = False
) -> Snapshot:
    """Merge these regions, or all regions, in this process, until no generation is pending.

    Return the last version. Takes no lease. Raises `CommitConflict` if another process changed a region or a touched
    split after the plan.

    Cost:
        The requests of `merge.plan`, of each merge, and of one commit per plan.
    """
    job = JobRun(Merge(table_uri=log.store.uri, quarantine=quarantine), InProcessExecutor(log), takes_leases=False)
    job.use(log, head)
    while works := merge.plan(job.store, job.before, regions=regions):
        _merged(job, works, {})
        job.before = job.head
    return job.before


def _metrics(works: Sequence[MergeWork], results: Sequence[MergeResult]) -> Metrics:
    """Return the metrics. Input bytes count the records in memory and the removed splits."""
    rewritten = Metrics.of([each.rewrite for each in results])
    return replace(rewritten, bytes_in=rewritten.bytes_in + sum(each.size_bytes for each in works))


def _merge_predicted(job: JobRun[Merge], works: Sequence[MergeWork]) -> Prediction:
    return Prediction(
        benefit=_generations(works),
        unit="generations",
        bytes_in=sum(each.size_bytes for each in works),
        bytes_out=size_as_rows(job.before, sum(each.records for each in works)),
        gets=_generations(works),
        puts=len(works) + 1 if works else 0,
    )


def _generations(works: Sequence[MergeWork]) -> int:
    return sum(len(item.generations) for item in works)


def _merge_details(due: MergeDue) -> dict[str, object]:
    return {
        "generations": _generations(due.works),
        "regions": len(due.works),
        "idle_regions": len(due.idle),
    }


def due_merge(inputs: Inputs) -> PlannedRun:
    """Return the merge run that is needed, and the time until another writer counts as idle."""
    found = merge_due(inputs.store, inputs.snapshot)
    waiting = sum(len(each.generations) for each in found.works)
    reasons = [f"generations that wait: {waiting}"] if waiting else []
    if found.idle:
        reasons.append(f"{counted(len(found.idle), 'region')} with rows of a silent writer")
    known = sum(each.size_bytes for each in found.works)
    run = DueRun(reason=", ".join(reasons), items=waiting + len(found.idle), bytes=known) if reasons else None
    return PlannedRun(due=run, in_ms=found.silent_in_ms)


LOG = logging.getLogger(__name__)


def run_sort(job: JobRun[Sort]) -> JobReport:
    """Sort generations of every region that needs a sort. Regions are sorted in parallel, with one commit per region.

    Nothing is committed to the table's log. A run sorts up to about a million records per region. Run the step again
    until it reports that there is nothing to do. If another process sorted a region in the meantime, the other regions
    continue. Raises `Held` if another run sorts this table, and `Fenced` if another run took over.
    """
    return job.carry_out(
        lambda snapshot: generation_write.plan_sort(job.store, snapshot),
        partial(_sorted, job),
        predict=_sort_predicted,
        planned=lambda work: {"details": _sort_details(work)},
    )


def _sorted(job: JobRun[Sort], work: Sequence[SortingWork]) -> JobReport:
    items = [{"work": item.to_json()} for item in work]
    answers = job.map(sort_region, items, input_bytes=sum(each.record_bytes for each in work))
    results = [SortingResult.from_json(answer["result"]) for answer in answers]
    done = [each for each in zip(work, results, strict=True) if _committed(job, *each)]
    metrics = Metrics(
        rows_in=sum(result.records_in for _, result in done),
        rows_out=sum(result.records_out for _, result in done),
        bytes_in=sum(item.size_bytes for item, _ in done),
        bytes_out=sum(result.size_bytes for _, result in done),
    )
    status: Status = "committed" if done else "nothing_to_do"
    sorted_ = [item for item, _ in done]
    return job.report(status, metrics=metrics, details=_sort_details(sorted_), benefit=_fewer(sorted_))


def _committed(job: JobRun[Sort], work: SortingWork, result: SortingResult) -> bool:
    job.require_held()
    log = job.log
    try:
        generation_write.finish(log.store, work, result, clock=log.clock, writer_id=log.ids.uuid())
    except CommitConflict as error:
        LOG.warning("%s", error)
        return False
    return True


def _sort_predicted(work: Sequence[SortingWork]) -> Prediction:
    size = sum(item.size_bytes for item in work)
    gets = sum(len(item.generations) for item in work)
    return Prediction(
        benefit=_fewer(work), unit="generations", bytes_in=size, bytes_out=size, gets=gets, puts=4 * len(work)
    )


def _fewer(work: Sequence[SortingWork]) -> int:
    return sum(len(item.generations) - 1 for item in work)


def _sort_details(work: Sequence[SortingWork]) -> dict[str, object]:
    return {"generations": sum(len(item.generations) for item in work), "regions": len(work)}


def due_sort(inputs: Inputs) -> DueRun | None:
    """Return the sort run that is needed now, or None."""
    works = generation_write.plan_sort(inputs.store, inputs.snapshot)
    if not works:
        return None
    waiting = sum(len(each.generations) for each in works)
    known = sum(each.size_bytes for each in works)
    return DueRun(reason=f"generations that wait unsorted: {waiting}", items=waiting, bytes=known)


@as_task
def merge_region(place: TaskEnvironment, item: Item) -> Answer:
    """Merge the pending generations of one region.

    `quarantine=True` quarantines records that cannot be applied.
    """
    work = MergeWork.from_json(item["work"])
    now_ms = place.clock.now_ms()
    result = merge.execute(place.store, work, ids=place.ids, now_ms=now_ms, quarantine=item["quarantine"])
    return {"result": result.to_json()}


@as_task
def sort_region(place: TaskEnvironment, item: Item) -> Answer:
    """Write consecutive unsorted generations of one region as one sorted generation."""
    work = SortingWork.from_json(item["work"])
    result = generation_write.execute_sort(place.store, work, clock=place.clock, ids=place.ids)
    return {"result": result.to_json()}
