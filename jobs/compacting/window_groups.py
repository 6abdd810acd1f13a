"""Merges of many windows in groups (`group_plan`), each with a commit of its own (decision 0078)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from jobs.compacting.group_plan import GROUP_LIMITS, GroupLimits, bundled, bytes_of, grouped
from jobs.reports.failure import Failed
from jobs.reports.metrics import Metrics
from jobs.requests.window_range import window_name
from jobs.running.run import JobRun
from jobs.spark import tasks
from storage_core.compaction.carry_over import CarryOver
from storage_core.compaction.skips import skips_of
from storage_core.compaction.work import OPERATION, CompactionTask
from storage_core.errors import CommitConflict, Fenced, TidemarkError
from storage_core.log.actions import Action
from storage_core.rows.windows import by_start
from storage_core.split.rewrite import Rewrite

LOG = logging.getLogger(__name__)

Window = int | None


@dataclass(frozen=True, slots=True)
class CommittedGroup:
    """One commit of a run, and the windows that it finished."""

    version: int
    commit_id: str | None
    windows: tuple[Window, ...]

    def as_mapping(self) -> dict[str, object]:
        """Return it as job reports carry it."""
        return {"version": self.version, "commit_id": self.commit_id, "windows": list(self.windows)}


@dataclass(slots=True)
class GroupsOutcome:
    """What became so far of the windows of a run: its commits in order, what they did, and why windows failed."""

    commits: list[CommittedGroup] = field(default_factory=list)
    results: list[Rewrite] = field(default_factory=list)
    failed: dict[Window, Failed] = field(default_factory=dict)

    def take(self, later: GroupsOutcome) -> None:
        """Add what became of further windows of the run."""
        self.commits.extend(later.commits)
        self.results.extend(later.results)
        self.failed.update({window: self.failed.get(window, failed) for window, failed in later.failed.items()})

    def failed_by_start(self) -> list[tuple[Window, Failed]]:
        """Return the windows that failed, ascending, the null window last, each with the first error."""
        return sorted(self.failed.items(), key=lambda each: by_start(each[0]))

    def fail(self, windows: Sequence[Window], error: TidemarkError) -> None:
        """Record that the windows failed; what a window failed of first stays."""
        for window in windows:
            self.failed.setdefault(window, Failed.of(error))


@dataclass(frozen=True, slots=True)
class Executed:
    """A merge and the answer of its task."""

    task: CompactionTask
    answer: Mapping[str, Any]

    @property
    def window(self) -> Window:
        """Its window."""
        return self.task.window

    @property
    def result(self) -> Rewrite | None:
        """What it made, None when it failed."""
        return Rewrite.from_json(self.answer["result"]) if "result" in self.answer else None

    @property
    def failed(self) -> Failed | None:
        """Why it failed, None when it did not."""
        return Failed.from_object(self.answer["failed"]) if "failed" in self.answer else None


def compact_groups(job: JobRun, planned: Sequence[CompactionTask], limits: GroupLimits = GROUP_LIMITS) -> GroupsOutcome:
    """Execute the merges and commit each group when its tasks have ended.

    What fails concerns its own window: a merge by its inputs, which are skipped for a day, and a window that another
    commit changed meanwhile. When Spark or the store fails a whole group, it concerns the windows of that group.
    Raises `Fenced` when another run took over; groups committed before stay.
    """
    outcome, groups = GroupsOutcome(), grouped(planned, limits)
    items = [[{"tasks": [each.to_json() for each in bundle]} for bundle in bundled(group, limits)] for group in groups]
    read = sum(map(bytes_of, planned))
    with closing(job.map_groups(tasks.compact_several, items, input_bytes=read)) as ended:
        for number, answers in ended:
            group = groups[number]
            if isinstance(answers, TidemarkError):
                outcome.fail([each.window for each in group], answers)
            else:
                single = [each for answer in answers for each in answer["answers"]]
                merges = [Executed(task, answer) for task, answer in zip(group, single, strict=True)]
                settle(job, merges, outcome)
    for window, failed in outcome.failed.items():
        LOG.warning("window %s was not compacted: %s: %s", window_name(window), failed.kind, failed.message)
    return outcome


def settle(job: JobRun, merges: Sequence[Executed], outcome: GroupsOutcome) -> None:
    """Commit what these merges made, without the windows that another commit changed meanwhile. Raises `Fenced`."""
    _note_failures(merges, outcome)
    while merges:
        try:
            _commit(job, merges, outcome)
        except Fenced:
            raise
        except TidemarkError as error:
            hit = _windows_hit(error, merges)
            outcome.fail(list(hit), error)
            merges = [each for each in merges if each.window not in hit]
        else:
            return


def _note_failures(merges: Sequence[Executed], outcome: GroupsOutcome) -> None:
    for each in merges:
        if each.failed is not None:
            outcome.failed.setdefault(each.window, each.failed)


def _windows_hit(error: TidemarkError, merges: Sequence[Executed]) -> set[Window]:
    """The windows whose input a conflict is about; all of them where it is about something else."""
    path = error.context.get("path") if isinstance(error, CommitConflict) else None
    hit = {each.window for each in merges if any(add.path == path for add in each.task.inputs)}
    return hit or {each.window for each in merges}


def _commit(job: JobRun, merges: Sequence[Executed], outcome: GroupsOutcome) -> None:
    made = [(each.task, result) for each in merges if (result := each.result) is not None]
    results = [result for _, result in made]
    by_window: dict[Window, list[Rewrite]] = {}
    for task, result in made:
        by_window.setdefault(task.window, []).append(result)
    actions = [action for result in results for action in result.actions]
    actions += [skip for each in merges for skip in _skips(job, each)]
    if not actions:
        return
    carry_over = CarryOver(job.table.store, made, ids=job.table.log.ids)
    report = job.commit(
        actions,
        operation=OPERATION,
        metrics=Metrics.of(results),
        by_window={window: Metrics.of(each) for window, each in by_window.items()},
        rebase=carry_over,
    )
    windows = sorted({each.window for each in merges} - outcome.failed.keys(), key=by_start)
    outcome.commits.append(CommittedGroup(report.version, report.commit_id, tuple(windows)))
    outcome.results.extend(results)


def _skips(job: JobRun, merge: Executed) -> Sequence[Action]:
    if merge.failed is None or not merge.failed.lasting:
        return []
    return skips_of(job.before, merge.task.inputs, merge.failed.message, job.table.log.clock.now_ms())
