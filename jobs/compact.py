"""Compact: rewrite the splits of each window that holds several into one sorted split (design page 04).

python -m jobs.compact --table-uri … [--window START | --from A --to B]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jobs import tasks
from jobs.command import main as command
from jobs.report import JobReport
from jobs.request import JobRequest
from jobs.run import Figures, JobRun
from jobs.spark import Spark
from storage_core.compaction import planner
from storage_core.compaction.execute import CompactionResult
from storage_core.compaction.planner import MergeOperation

SUMMARY = "Rewrite the splits of each window that holds several into one sorted split."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Compact the requested windows in one commit; with nothing to do, start no Spark and commit nothing.

    Raises `CommitConflict` when another commit removed an input meanwhile; the files written are orphans then.
    """
    job = JobRun("compact", request, spark)
    wanted = request.windows.of_table(job.before.config.window_seconds)
    windows = wanted.select({add.windowStart for add in job.before.splits.values()})
    operations = planner.plan(job.before, windows=windows)
    if not operations:
        return job.report("nothing_to_do")
    if request.dry_run:
        return job.report("planned", figures=_planned(operations), details=_windows(operations))
    answers = job.map(tasks.compact, [{"operation": operation.to_json()} for operation in operations])
    results = [CompactionResult.from_json(answer["result"]) for answer in answers]
    actions = [action for result in results for action in result.actions]
    return job.commit(actions, operation="COMPACT", figures=Figures.of(results), details=_windows(operations))


def _planned(operations: Sequence[MergeOperation]) -> Figures:
    inputs = [add for operation in operations for add in operation.inputs]
    return Figures(
        rows_in=sum(add.visible_rows for add in inputs),
        bytes_in=sum(add.size for add in inputs),
        splits_in=len(inputs),
    )


def _windows(operations: Sequence[MergeOperation]) -> dict[str, object]:
    return {"windows": [operation.window for operation in operations]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return command("compact", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
