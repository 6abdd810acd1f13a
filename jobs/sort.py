"""Sort: many unsorted generations of a region become one that is sorted (decision 0054).

python -m jobs.sort --table-uri …
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from jobs.reports.metrics import Metrics
from jobs.reports.prediction import Prediction
from jobs.reports.report import JobReport, Status
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark import tasks
from jobs.spark.spark import Spark
from storage_core.errors import CommitConflict
from storage_core.region.sorting import SortingResult, SortingWork, finish, plan

LOG = logging.getLogger(__name__)

SUMMARY = "Sort the unsorted generations of regions that have many."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Sort a run of generations of every region that is due, region by region in parallel, each in a commit of its own.

    Nothing is committed to the log. A run takes up to about a million records of a region: run it again until it says
    that there is nothing to do. A region that somebody else sorted meanwhile stops no other. Raises `Held` while
    another run sorts this table, and `Fenced` when one took over.
    """
    job = JobRun("sort", request, spark)
    table = job.table
    with job.leased(lambda snapshot: plan(table.store, snapshot), ["sort"]) as work:
        job.predict(_predicted(work))
        if not work:
            return job.report("nothing_to_do")
        if request.dry_run:
            return job.report("planned", details=_details(work))
        answers = job.map(
            tasks.sort, [{"work": item.to_json()} for item in work], input_bytes=sum(each.record_bytes for each in work)
        )
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
        return job.report(status, metrics=metrics, details=_details(sorted_), benefit=_fewer(sorted_))


def _committed(job: JobRun, work: SortingWork, result: SortingResult) -> bool:
    job.require_held()
    log = job.table.log
    try:
        finish(log.store, work, result, clock=log.clock, writer_id=log.ids.uuid())
    except CommitConflict as error:
        LOG.warning("%s", error)
        return False
    return True


def _predicted(work: Sequence[SortingWork]) -> Prediction:
    size = sum(item.size_bytes for item in work)
    gets = sum(len(item.generations) for item in work)
    return Prediction(
        benefit=_fewer(work), unit="generations", bytes_in=size, bytes_out=size, gets=gets, puts=4 * len(work)
    )


def _fewer(work: Sequence[SortingWork]) -> int:
    return sum(len(item.generations) - 1 for item in work)


def _details(work: Sequence[SortingWork]) -> dict[str, object]:
    return {"generations": sum(len(item.generations) for item in work), "regions": len(work)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("sort", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
