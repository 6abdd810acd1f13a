"""Merge: apply the generations of a keyed table's regions to its base, newest wins (docs/architecture/ingestion.md,
"Merge").

python -m jobs.merge --table-uri … [--quarantine]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from jobs.reports.metrics import Metrics
from jobs.reports.prediction import Prediction, size_as_rows
from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark import tasks
from jobs.spark.spark import Spark
from storage_core.region.idle import MergeDue, flush_idle, merge_due
from storage_core.region.merge import actions_of, plan
from storage_core.region.merge_work import MergeResult, MergeWork

SUMMARY = "Apply flushed generations to the base table."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Merge consecutive generations, region by region in parallel, in one commit with their progress.

    Before that the driver flushes what silent writers left (`region.idle`). A region whose log is damaged keeps none of
    the others from being merged: its `Corrupt` is raised when they are.
    With `quarantine` the records of keys that cannot be applied go to quarantine, which no other upkeep touches.
    A run takes up to about a million records of a region: run it again until it says that there is nothing to do.
    Raises `Held` while another run merges this table, `Fenced` when one took over, and `CommitConflict` when a
    compaction of the same splits was first.
    """
    job = JobRun("merge", request, spark)
    store = job.table.store
    with job.leased(partial(merge_due, store), ["merge"]) as due:
        job.predict(_predicted(job, due.works))
        if not due:
            return job.report("nothing_to_do")
        if request.dry_run:
            return job.report("planned", details=_details(due))
        damaged = flush_idle(store, job.before, due.idle, clock=job.table.log.clock, ids=job.table.log.ids)
        flushed = replace(due, works=plan(store, job.before)) if due.idle else due
        report = _merge(job, flushed, quarantine=request.quarantine)
    for error in damaged:
        raise error
    return report


def _merge(job: JobRun, due: MergeDue, *, quarantine: bool) -> JobReport:
    job.predict(_predicted(job, due.works))
    if not due.works:
        return job.report("nothing_to_do")
    items = [{"work": item.to_json(), "quarantine": quarantine} for item in due.works]
    answers = job.map(tasks.merge, items, input_bytes=sum(item.input_bytes for item in due.works))
    results = [MergeResult.from_json(answer["result"]) for answer in answers]
    log = job.table.log
    return job.commit(
        actions_of(job.table.store, results, ids=log.ids, now_ms=log.clock.now_ms()),
        operation="MERGE",
        metrics=_metrics(due.works, results),
        requirements=[each for item in due.works for each in item.requirements],
        details=_details(due),
        benefit=_generations(due.works),
    )


def _metrics(works: Sequence[MergeWork], results: Sequence[MergeResult]) -> Metrics:
    """Bytes in are those of the records in memory, and of the splits that leave."""
    rewritten = Metrics.of([each.rewrite for each in results])
    return replace(rewritten, bytes_in=rewritten.bytes_in + sum(each.size_bytes for each in works))


def _predicted(job: JobRun, works: Sequence[MergeWork]) -> Prediction:
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


def _details(due: MergeDue) -> dict[str, object]:
    return {
        "generations": _generations(due.works),
        "regions": len(due.works),
        "idle_regions": len(due.idle),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("merge", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
