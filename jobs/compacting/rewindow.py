"""Splits written anew in windows of another duration: those of former windows when asked (decision 0136), those of cold
ones, which are joined to longer ones, in scheduled runs, too (decision 0148). Or in another order, when asked
(decision 0186).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.compacting.window_groups import CommittedGroup, GroupsOutcome, Window
from jobs.reports.failure import Failed
from jobs.reports.metrics import Metrics
from jobs.running.run import JobRun
from jobs.spark import tasks as spark_tasks
from storage_core.compaction.rewindow import RewindowTask
from storage_core.compaction.skips import skips_of
from storage_core.errors import Fenced, TidemarkError
from storage_core.log.actions import Action
from storage_core.rows.windows import by_start
from storage_core.split.rewrite import Rewrite

TASKS_PER_COMMIT = 64
"""So much work is lost at most when the run is killed, or when somebody deletes rows of its splits meanwhile."""


def rewindow(job: JobRun, planned: Sequence[RewindowTask]) -> GroupsOutcome:
    """Execute the tasks and commit them in groups.

    What fails concerns the windows of its inputs: a task by these, which are skipped for a day, and a group of which
    somebody rewrote a split, or deleted rows of one, after the plan. Raises `Fenced` when another run took over.
    """
    outcome = GroupsOutcome()
    for start in range(0, len(planned), TASKS_PER_COMMIT):
        group = planned[start : start + TASKS_PER_COMMIT]
        try:
            items = [{"task": task.to_json()} for task in group]
            read = sum(add.size for task in group for add in task.inputs)
            answers = job.map(spark_tasks.rewindow, items, input_bytes=read)
            _commit(job, group, answers, outcome)
        except Fenced:
            raise
        except TidemarkError as error:
            outcome.fail([window for task in group for window in _windows(task)], error)
    return outcome


def _commit(
    job: JobRun, group: Sequence[RewindowTask], answers: Sequence[Mapping[str, Any]], outcome: GroupsOutcome
) -> None:
    now_ms = job.table.log.clock.now_ms()
    actions: list[Action] = []
    made: list[Rewrite] = []
    for task, answer in zip(group, answers, strict=True):
        if "result" in answer:
            made.append(Rewrite.from_json(answer["result"]))
            actions += made[-1].actions
            continue
        failed = Failed.from_object(answer["failed"])
        for window in _windows(task):
            outcome.failed.setdefault(window, failed)
        if failed.lasting:
            actions += skips_of(job.before, task.inputs, failed.message, now_ms)
    if not actions:
        return
    done = job.commit(actions, operation=group[0].operation, metrics=Metrics.of(made))
    windows = sorted({add.windowStart for each in made for add in each.adds}, key=by_start)
    outcome.commits.append(CommittedGroup(done.version, done.commit_id, tuple(windows)))
    outcome.results.extend(made)


def _windows(task: RewindowTask) -> list[Window]:
    return list(dict.fromkeys(add.windowStart for add in task.inputs))
