"""Merge: apply the generations of a keyed table's regions to its base, newest wins (docs/architecture/ingestion.md,
"Merge").

python -m jobs.merge --table-uri … [--quarantine]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jobs.reports.metrics import Metrics
from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark import tasks
from jobs.spark.spark import Spark
from storage_core.region.merge import actions_of, plan
from storage_core.region.merge_work import MergeResult, MergeWork

SUMMARY = "Apply flushed generations to the base table."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Merge consecutive generations, region by region in parallel, in one commit with their progress.

    With `quarantine` the records of keys that cannot be applied go to quarantine, which no other upkeep touches.
    A run takes up to about a million records of a region: run it again until it says that there is nothing to do.
    Raises `Held` while another run merges this table, `Fenced` when one took over, and `CommitConflict` when a
    compaction of the same splits was first.
    """
    job = JobRun("merge", request, spark)
    store = job.table.store
    with job.leased(lambda snapshot: plan(store, snapshot), ["merge"]) as work:
        if not work:
            return job.report("nothing_to_do")
        if request.dry_run:
            return job.report("planned", details=_details(work))
        answers = job.map(tasks.merge, [{"work": item.to_json(), "quarantine": request.quarantine} for item in work])
        results = [MergeResult.from_json(answer["result"]) for answer in answers]
        return job.commit(
            actions_of(store, results, ids=job.table.log.ids, now_ms=job.table.log.clock.now_ms()),
            operation="MERGE",
            metrics=Metrics.of([each.rewrite for each in results]),
            requirements=[each for item in work for each in item.requirements],
            details=_details(work),
        )


def _details(work: Sequence[MergeWork]) -> dict[str, object]:
    return {"generations": sum(len(item.generations) for item in work), "regions": len(work)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("merge", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
