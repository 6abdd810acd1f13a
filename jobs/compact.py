"""Compact: rewrite the splits of every window with several as one sorted run (decisions 0068, 0078).

python -m jobs.compact --table-uri … [--window START | --from A --to B] [--policy]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from jobs.compacting.merge_in_parts import merge_in_parts
from jobs.compacting.rewindow import rewindow
from jobs.compacting.window_groups import GroupsOutcome, compact_groups
from jobs.reports.metrics import Metrics
from jobs.reports.prediction import Prediction
from jobs.reports.report import JobReport, with_report
from jobs.requests.request import JobRequest
from jobs.requests.window_range import EVERY_WINDOW, WindowRange, window_name
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark.spark import Spark
from storage_core.clock import Clock
from storage_core.compaction.debt import next_runs, together
from storage_core.compaction.merge_parts import is_too_large
from storage_core.compaction.next_run import Pieces, owed, window_starts
from storage_core.compaction.policy import Mode
from storage_core.errors import TidemarkError
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.rows.windows import by_start
from storage_core.wording import listed

LANES = 251
"""How many leases compactions of windows share; a prime (see `resource_of`)."""

SUMMARY = "Rewrite the splits of each window that holds several as one sorted run."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Compact the requested windows, in one commit per group of them; with nothing to do, start no Spark at all.

    A merge that is too large for one task has a commit of its own. Before the merges splits are written in windows of
    another duration: with `REWINDOW` all that have to be, with `POLICY` so many of those of cold windows as one run
    replaces (decision 0148). With `RESORT` all splits of another sort schema are written in the table's order (0186).
    With `most_bytes` a run takes pieces that read so much together, the newest first (0169).

    Raises `Held` while another run compacts these windows, and `Fenced` when one took over: files that were not
    committed are orphans then. Rows that were deleted meanwhile are hidden in what was written. A window that fails
    does not stop the others: they are committed, and then the first error by window is raised, naming all windows that
    failed, with the report in its context (`report_of`). Inputs that keep a merge from succeeding are skipped for a
    day; a request that names its windows tries them all the same.
    """
    wanted = request.windows
    job = JobRun("compact", request, spark, tells_windows=request.by_window or wanted != EVERY_WINDOW)
    wanted.require_fits(job.before.config.window_seconds, job.before.config.other_windows)
    resource = resource_of(wanted, job.before.config.window_seconds)
    with job.leased(partial(_plan, request, job.table.log.clock), [resource]) as work:
        runs = next_runs(work)
        by_window = {window: Prediction.of_compaction(run) for window, run in runs.items()}
        job.predict(Prediction.of_compaction(together(runs.values())), by_window)
        if not work:
            return job.report("nothing_to_do")
        if request.dry_run:
            inputs = [add for task in work.rewindowed for add in task.inputs]
            inputs += [add for task in work.merges.tasks() for add in task.inputs]
            windows = sorted({add.windowStart for add in inputs}, key=by_start)
            return job.report("planned", metrics=_planned(inputs), details={"windows": windows})
        outcome = rewindow(job, work.rewindowed)
        for tasks in work.merges.parts():
            large = [task for task in tasks if is_too_large(task)]
            outcome.take(compact_groups(job, [task for task in tasks if not is_too_large(task)]))
            outcome.take(merge_in_parts(job, large))
        report = _report(job, outcome)
        if outcome.failed:
            raise with_report(_failure(outcome), report)
        return report


def _plan(request: JobRequest, clock: Clock, snapshot: Snapshot) -> Pieces:
    wanted = request.windows
    is_every = wanted == EVERY_WINDOW
    found = owed(
        snapshot,
        now_ms=clock.now_ms(),
        mode=request.mode,
        windows=None if is_every else wanted.select(window_starts(snapshot)),
        retry_skipped=not is_every and request.mode is Mode.FINALIZE,
    )
    return found.first().within(request.most_bytes)


def _report(job: JobRun, outcome: GroupsOutcome) -> JobReport:
    last = outcome.commits[-1] if outcome.commits else None
    done = [window for each in outcome.commits for window in each.windows]
    metrics = Metrics.of(outcome.results)
    return job.report(
        "committed" if last else "nothing_to_do",
        last.version if last else None,
        metrics=metrics,
        benefit=metrics.splits_in - metrics.splits_out,
        commit_id=last.commit_id if last else None,
        details={
            "windows": sorted(done, key=by_start),
            "windows_failed": [
                {"window": window, "error": failed.kind, "reason": failed.message}
                for window, failed in outcome.failed_by_start()
            ],
            "commits": [each.as_mapping() for each in outcome.commits],
        },
    )


def _failure(outcome: GroupsOutcome) -> TidemarkError:
    """The first error by window, with the windows that failed and what was done beside them."""
    failed = outcome.failed_by_start()
    skipped = ", the inputs are skipped for a day" if any(each.lasting for _, each in failed) else ""
    versions = listed([each.version for each in outcome.commits if each.windows])  # not of the skips alone
    others = f"what else there was to do is in version {versions}" if versions else "no window was compacted"
    which = listed([window_name(window) for window, _ in failed])
    first = failed[0][1].error()
    return first.reworded(f"{first.found}; the windows {which} were not compacted{skipped}; {others}")


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


def _planned(inputs: Sequence[Add]) -> Metrics:
    return Metrics(
        rows_in=sum(add.visible_rows for add in inputs),
        bytes_in=sum(add.size for add in inputs),
        splits_in=len(inputs),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("compact", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
