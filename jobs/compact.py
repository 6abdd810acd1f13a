"""Compact: rewrite the splits of each window that holds several into one sorted run (design page 04, decision 0068).

python -m jobs.compact --table-uri … [--window START | --from A --to B] [--policy]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial

from jobs import tasks
from jobs.command import main as command
from jobs.report import JobReport
from jobs.request import JobRequest, WindowRange
from jobs.run import Figures, JobRun
from jobs.spark import Spark
from storage_core.clock import Clock
from storage_core.compaction import planner
from storage_core.compaction.carry_over import CarryOver
from storage_core.compaction.execute import CompactionResult
from storage_core.compaction.planner import MergeOperation
from storage_core.compaction.policy import Mode
from storage_core.compaction.skips import skips_of
from storage_core.errors import TidemarkError, error_of
from storage_core.log.actions import Action, MergeSkip
from storage_core.log.snapshot import Snapshot

LANES = 251
"""How many leases compactions of windows share; a prime (see `resource_of`)."""

Failed = tuple[MergeOperation, Mapping[str, str]]
"""A merge and the kind and message of the error that ended it."""

SUMMARY = "Rewrite the splits of each window that holds several into one sorted split."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Compact the requested windows in one commit; with nothing to do, start no Spark and commit nothing.

    Raises `Held` while another run compacts these windows, `Fenced` when one took over, and `CommitConflict` when
    another commit removed an input meanwhile; the files written are orphans then. Rows that were deleted meanwhile are
    hidden in what was written. A merge that its inputs keep from
    succeeding does not stop the others: they are committed, its inputs are skipped for a day, and then its error is
    raised.
    """
    job = JobRun("compact", request, spark)
    wanted = request.windows.of_table(job.before.config.window_seconds)
    resource = resource_of(wanted, job.before.config.window_seconds)
    with job.leased(partial(_plan, wanted, request.mode, job.table.log.clock), [resource]) as operations:
        if not operations:
            return job.report("nothing_to_do")
        if request.dry_run:
            return job.report("planned", figures=_planned(operations), details=_windows(operations))
        answers = job.map(tasks.compact, [{"operation": operation.to_json()} for operation in operations])
        results = [CompactionResult.from_json(answer["result"]) for answer in answers if "result" in answer]
        actions: list[Action] = [action for result in results for action in result.actions]
        failed = [
            (each, answer["failed"]) for each, answer in zip(operations, answers, strict=True) if "failed" in answer
        ]
        actions += _skips(job, failed)
        done = [each for each, answer in zip(operations, answers, strict=True) if "result" in answer]
        carry = CarryOver(job.table.store, list(zip(done, results, strict=True)), ids=job.table.log.ids)
        report = job.commit(
            actions, operation="COMPACT", figures=Figures.of(results), details=_windows(done), rebase=carry
        )
        if failed:
            raise _failure(failed, report)
        return report


def _plan(wanted: WindowRange, mode: Mode, clock: Clock, snapshot: Snapshot) -> Sequence[MergeOperation]:
    windows = snapshot.splits.table().column("windowStart").unique().to_pylist()
    return planner.plan(snapshot, windows=wanted.select(windows), now_ms=clock.now_ms(), mode=mode)


def _skips(job: JobRun, failed: Sequence[Failed]) -> list[MergeSkip]:
    now_ms = job.table.log.clock.now_ms()
    return [skip for each, error in failed for skip in skips_of(job.before, each, error["message"], now_ms)]


def _failure(failed: Sequence[Failed], report: JobReport) -> TidemarkError:
    """The first error, with the windows that failed and what was done beside them."""
    windows = ", ".join(dict.fromkeys(str(operation.window) for operation, _ in failed))
    error = failed[0][1]
    return error_of(
        error["kind"],
        f"{error['message']}; the windows {windows} were not compacted, the inputs are skipped for a day; "
        f"what else there was to do is in version {report.version}",
    )


def resource_of(wanted: WindowRange, window_seconds: int | None) -> str:
    """Return the lease of a run on these windows: one per first window, so that runs on other windows go on beside it.

    Two runs on overlapping ranges that start apart do not see each other here: the one that commits second finds its
    inputs gone. Windows that are a multiple of `LANES` apart share a lease, so that a table has so many of them however
    long it lives; a prime, because ranges of whole days start a multiple of 24 or 96 windows apart.
    """
    if wanted.null_only:
        return "compact.null"
    if wanted.start is None or window_seconds is None:
        return "compact.all"
    return f"compact.{wanted.start // window_seconds % LANES}"


def _planned(operations: Sequence[MergeOperation]) -> Figures:
    inputs = [add for operation in operations for add in operation.inputs]
    return Figures(
        rows_in=sum(add.visible_rows for add in inputs),
        bytes_in=sum(add.size for add in inputs),
        splits_in=len(inputs),
    )


def _windows(operations: Sequence[MergeOperation]) -> dict[str, object]:
    return {"windows": list(dict.fromkeys(operation.window for operation in operations))}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return command("compact", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
