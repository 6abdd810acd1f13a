"""Merges of many windows in bounded groups, each with a commit of its own (design page 08, decision 0078).

A window is in one group, so all of its merges are in one commit, unless it has more than a part of a plan. The largest
windows come first: a huge one is alone in its group and has the longest time, while the others go on beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from jobs import tasks
from jobs.failure import Failed
from jobs.figures import Figures
from jobs.run import JobRun
from storage_core.compaction.carry_over import CarryOver
from storage_core.compaction.skips import skips_of
from storage_core.compaction.work import OPERATION, MergeOperation
from storage_core.errors import CommitConflict, Fenced, TidemarkError
from storage_core.log.actions import Action
from storage_core.rows.windows import by_start
from storage_core.split.rewrite import Rewrite

LOG = logging.getLogger(__name__)

Window = int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A group ends with so many windows, or so many bytes of input, or one of `parts` of all input where that is more.

    So a commit stays small, a small run is one commit, a large one loses few of its parts with its driver, and the
    commits of a run stay few. A task takes one merge, and more while they are together within `task_merges` and
    `task_bytes`: beginning a task costs more than a merge of that size.
    """

    windows: int = 256
    bytes: int = 256 * 2**20
    parts: int = 32
    task_merges: int = 8
    task_bytes: int = 8 * 2**20


BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Committed:
    """One commit of a run, and the windows that it finished."""

    version: int
    commit_id: str | None
    windows: tuple[Window, ...]

    def as_mapping(self) -> dict[str, object]:
        """Return it as job reports carry it."""
        return {"version": self.version, "commit_id": self.commit_id, "windows": list(self.windows)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the windows of a run: its commits in their order, what they did, and why windows failed."""

    commits: list[Committed] = field(default_factory=list)
    results: list[Rewrite] = field(default_factory=list)
    failed: dict[Window, Failed] = field(default_factory=dict)

    def take(self, later: Outcome) -> None:
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

    operation: MergeOperation
    answer: Mapping[str, Any]

    @property
    def window(self) -> Window:
        """Its window."""
        return self.operation.window

    @property
    def result(self) -> Rewrite | None:
        """What it made, None when it failed."""
        return Rewrite.from_json(self.answer["result"]) if "result" in self.answer else None

    @property
    def failed(self) -> Failed | None:
        """Why it failed, None when it did not."""
        return Failed.from_object(self.answer["failed"]) if "failed" in self.answer else None


def grouped(operations: Sequence[MergeOperation], bounds: Bounds = BOUNDS) -> list[list[MergeOperation]]:
    """Return all operations in groups of whole windows, the windows with the most bytes first."""
    by_window: dict[Window, list[MergeOperation]] = {}
    for operation in operations:
        by_window.setdefault(operation.window, []).append(operation)
    sizes = {window: sum(bytes_of(each) for each in merges) for window, merges in by_window.items()}
    full = max(bounds.bytes, sum(sizes.values()) // bounds.parts)
    groups: list[list[MergeOperation]] = []
    windows = size = 0
    for window in sorted(by_window, key=sizes.__getitem__, reverse=True):
        if not windows:
            groups.append([])
        groups[-1] += sorted(by_window[window], key=bytes_of, reverse=True)
        windows, size = windows + 1, size + sizes[window]
        if windows == bounds.windows or size >= full:
            windows = size = 0
    return groups


def bundled(group: Sequence[MergeOperation], bounds: Bounds = BOUNDS) -> list[list[MergeOperation]]:
    """Return the merges of a group, in their order, by the task that executes them."""
    bundles: list[list[MergeOperation]] = []
    size = 0
    for operation in group:
        size += bytes_of(operation)
        if not bundles or size > bounds.task_bytes or len(bundles[-1]) == bounds.task_merges:
            bundles.append([])
            size = bytes_of(operation)
        bundles[-1].append(operation)
    return bundles


def bytes_of(operation: MergeOperation) -> int:
    """Return what a merge reads."""
    return sum(add.size for add in operation.inputs)


def compact_groups(job: JobRun, operations: Sequence[MergeOperation], bounds: Bounds = BOUNDS) -> Outcome:
    """Execute the merges on Spark and commit each group when its tasks have ended.

    What fails concerns its own window: a merge by its inputs, which are skipped for a day, and a window that another
    commit changed meanwhile. When Spark or the store fails a whole group, it concerns the windows of that group.
    Raises `Fenced` when another run took over; groups committed before stay.
    """
    outcome, groups = Outcome(), grouped(operations, bounds)
    items = [
        [{"operations": [each.to_json() for each in bundle]} for bundle in bundled(group, bounds)] for group in groups
    ]
    with closing(job.map_groups(tasks.compact_several, items)) as ended:
        for number, answers in ended:
            group = groups[number]
            if isinstance(answers, TidemarkError):
                outcome.fail([each.window for each in group], answers)
            else:
                single = [each for answer in answers for each in answer["answers"]]
                merges = [Executed(operation, answer) for operation, answer in zip(group, single, strict=True)]
                settle(job, merges, outcome)
    for window, failed in outcome.failed.items():
        LOG.warning("window %s was not compacted: %s: %s", window, failed.kind, failed.message)
    return outcome


def settle(job: JobRun, merges: Sequence[Executed], outcome: Outcome) -> None:
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


def _note_failures(merges: Sequence[Executed], outcome: Outcome) -> None:
    for each in merges:
        if each.failed is not None:
            outcome.failed.setdefault(each.window, each.failed)


def _windows_hit(error: TidemarkError, merges: Sequence[Executed]) -> set[Window]:
    """The windows whose input a conflict is about; all of them where it is about something else."""
    path = error.context.get("path") if isinstance(error, CommitConflict) else None
    hit = {each.window for each in merges if any(add.path == path for add in each.operation.inputs)}
    return hit or {each.window for each in merges}


def _commit(job: JobRun, merges: Sequence[Executed], outcome: Outcome) -> None:
    made = [(each.operation, result) for each in merges if (result := each.result) is not None]
    results = [result for _, result in made]
    actions = [action for result in results for action in result.actions]
    actions += [skip for each in merges for skip in _skips(job, each)]
    if not actions:
        return
    carry_over = CarryOver(job.table.store, made, ids=job.table.log.ids)
    report = job.commit(actions, operation=OPERATION, figures=Figures.of(results), rebase=carry_over)
    windows = sorted({each.window for each in merges} - outcome.failed.keys(), key=by_start)
    outcome.commits.append(Committed(report.version, report.commit_id, tuple(windows)))
    outcome.results.extend(results)


def _skips(job: JobRun, merge: Executed) -> Sequence[Action]:
    if merge.failed is None or not merge.failed.lasting:
        return []
    return skips_of(job.before, merge.operation, merge.failed.message, job.table.log.clock.now_ms())
