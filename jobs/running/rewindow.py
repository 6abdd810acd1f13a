"""`compact --rewindow`: splits of former windows written anew in windows of the table's duration (decision 0136)."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.reports.metrics import Metrics
from jobs.reports.report import JobReport
from jobs.running.run import JobRun
from jobs.spark import tasks as spark_tasks
from storage_core.compaction.rewindow import OPERATION, RewindowTask
from storage_core.rows.windows import by_start
from storage_core.split.rewrite import Rewrite

TASKS_PER_COMMIT = 64
"""So much work is lost at most when the run is killed, or when somebody deletes rows of its splits meanwhile."""


def rewindow(job: JobRun, planned: Sequence[RewindowTask]) -> JobReport:
    """Execute the tasks and commit them in groups. What is committed stays when a later group fails; run it again.

    Raises `CommitConflict` where a split was rewritten, or rows of it deleted, after the plan.
    """
    results: list[Rewrite] = []
    commits: list[dict[str, object]] = []
    for start in range(0, len(planned), TASKS_PER_COMMIT):
        group = planned[start : start + TASKS_PER_COMMIT]
        answers = job.map(spark_tasks.rewindow, [{"task": task.to_json()} for task in group])
        found = [Rewrite.from_json(answer["result"]) for answer in answers]
        done = job.commit(
            [action for each in found for action in each.actions], operation=OPERATION, metrics=Metrics.of(found)
        )
        results += found
        commits.append({"version": done.version, "commit_id": done.commit_id})
    windows = {add.windowStart for result in results for add in result.adds}
    return job.report(
        "committed",
        int(str(commits[-1]["version"])),
        metrics=Metrics.of(results),
        commit_id=str(commits[-1]["commit_id"]),
        details={"windows": sorted(windows, key=by_start), "commits": commits},
    )
