"""Maintenance steps of windows: `compact` and `expire`.

`compact` rewrites the splits of a window as one sorted run (decisions 0015 and 0014). `expire` removes old windows
(docs/architecture/compaction.md).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from storage_core.base.errors import CommitConflict, Fenced, TidemarkError, as_tidemark_error
from storage_core.base.text import counted, listed
from storage_core.compact import execute, planner
from storage_core.compact import execute as compaction
from storage_core.compact import rewindow as rewindowing
from storage_core.compact.carry_over import CarryOver
from storage_core.compact.execute import Sample, divide, is_too_large, require_whole
from storage_core.compact.pending_work import NextRun, Pieces, find_pieces, next_runs, together, window_starts
from storage_core.compact.planner import Expiry
from storage_core.compact.rewindow import RewindowTask
from storage_core.compact.work import LASTING, OPERATION, CompactionTask, skips_of
from storage_core.data.rows.window_range import EVERY_WINDOW, NULL_WINDOW, WindowRange, window_name
from storage_core.data.rows.windows import by_start
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import STEPS, Compact, Expire
from storage_core.log.actions import Action
from storage_core.log.job_run import (
    Answer,
    DueRun,
    Inputs,
    Item,
    JobReport,
    JobRun,
    Metrics,
    Prediction,
    TaskEnvironment,
    TaskFailure,
    as_task,
    as_text,
    of_text,
    with_report,
)
from storage_core.log.snapshot import Snapshot
from storage_core.split.writer import Rewrite

LOG = logging.getLogger(__name__)

LANES = 251
"""The number of leases that compactions of windows share. The number is a prime (see `resource_of`)."""

TASKS_PER_COMMIT = 64
"""Maximum number of rewrite tasks per commit.

If the run is killed or rows are deleted concurrently, at most the work of these tasks is lost.
"""

Window = int | None


def run_compact(job: JobRun[Compact]) -> JobReport:
    """Compact the requested windows, in one commit per group of windows.

    If there is nothing to do, Spark is not started.

    A merge that is too large for one task has its own commit. Before the merges, the run rewrites splits into windows
    of another duration. The mode `REWINDOW` rewrites all splits with windows of the wrong duration. The mode `POLICY`
    rewrites splits of cold windows. In the mode `POLICY`, one run rewrites at most as many splits as a run may replace
    (decision 0006). The mode `RESORT` rewrites all splits of another sort schema. The new splits have the table's sort
    order (decision 0006). With `most_bytes`, a run reads at most this number of bytes in total. The run takes the
    newest pieces first (decision 0037).

    Rows that are deleted concurrently are hidden in the output. If a window fails, all other windows are still
    committed. If another commit changed a window, the run plans this window again (`job.carry_out`). At the end, the
    function raises the error of the first failed window. The message contains all failed windows. The context of the
    error contains the report (`report_of`). Inputs that make a merge fail are skipped for a day. A request for specific
    windows tries these inputs again.

    Raises:
        Held: another run compacts these windows.
        Fenced: another run took over. Files that were not committed are orphans.
    """
    wanted, config = job.options.windows, job.before.config
    wanted.require_fits(config.window_seconds, config.other_windows)
    outcome = GroupsOutcome()
    return job.carry_out(
        partial(_plan, job, outcome),
        partial(_compacted, job, outcome),
        predict=partial(_predicted, job),
        leases=[resource_of(wanted, config.window_seconds)],
        planned=_planned,
        nothing=lambda _: _ended(job, outcome) if outcome else job.report("nothing_to_do"),
    )


def _predicted(job: JobRun[Compact], work: Pieces) -> Prediction:
    runs = next_runs(work)
    job.predict_windows({window: predicted_of(each) for window, each in runs.items()})
    return predicted_of(together(runs.values()))


def _compacted(job: JobRun[Compact], outcome: GroupsOutcome, work: Pieces) -> JobReport:
    """Execute the pieces in `work`, and add the results to `outcome`, which contains the results of earlier plans."""
    outcome.take(rewindow(job, work.rewindowed))
    for part in work.merges.parts():
        large = [task for task in part if is_too_large(task)]
        outcome.take(compact_groups(job, [task for task in part if not is_too_large(task)]))
        outcome.take(merge_in_parts(job, large))
    return _ended(job, outcome)


def _ended(job: JobRun[Compact], outcome: GroupsOutcome) -> JobReport:
    """Return the report of all plans. Raise the error of the first failed window, with the report in its context."""
    report = _report(job, outcome)
    if outcome.failed:
        raise with_report(_failure(outcome), report)
    return report


def _plan(job: JobRun[Compact], outcome: GroupsOutcome, snapshot: Snapshot) -> Pieces:
    """Return the work of the run. After a conflict, return only the work of the windows that other commits changed."""
    wanted, mode = job.options.windows, job.options.mode
    is_every = wanted == EVERY_WINDOW
    changed = outcome.take_changed()
    windows = None if is_every else wanted.select(window_starts(snapshot))
    found = find_pieces(
        snapshot,
        now_ms=job.log.clock.now_ms(),
        mode=mode,
        windows=changed or windows,
        retry_skipped=not is_every and mode is Mode.FINALIZE,
    )
    return found.first().within(job.options.most_bytes)


def _report(job: JobRun[Compact], outcome: GroupsOutcome) -> JobReport:
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
    """Return the error of the first failed window, with all failed windows and the committed versions."""
    failed = outcome.failed_by_start()
    skipped = ", and their inputs are skipped for a day" if any(each.lasting for _, each in failed) else ""
    # Commits that only record splits to skip (mergeskips) are omitted.
    versions = listed([each.version for each in outcome.commits if each.windows])
    others = f"All other work is committed in version {versions}" if versions else "No window was compacted"
    which = listed([window_name(window) for window, _ in failed])
    first = failed[0][1].error()
    return first.reworded(f"{first.found}. The windows {which} were not compacted{skipped}. {others}")


def resource_of(wanted: WindowRange, window_seconds: int | None) -> str:
    """Return the lease of a run on these windows. Runs with different first windows can run concurrently.

    The name of a lease depends on the first window of the run. Two runs on overlapping ranges with different starts
    have different leases. At its commit, the second run then finds that its inputs were replaced. Two runs share a
    lease if the starts of their first windows differ by a multiple of `LANES` windows. The number of leases of a table
    is limited, because many windows share a lease. If ranges consist of whole days, their starts differ by multiples of
    24 or 96 windows. `LANES` is therefore a prime.
    """
    if wanted.null_only:
        lane = NULL_WINDOW
    elif wanted.start is None or window_seconds is None:
        lane = "all"
    else:
        lane = str(wanted.start // window_seconds % LANES)
    return STEPS["compact"].lease.format(windows=lane)


def _planned(work: Pieces) -> dict[str, object]:
    inputs = [add for task in work.rewindowed for add in task.inputs]
    inputs += [add for task in work.merges.tasks() for add in task.inputs]
    metrics = Metrics(
        rows_in=sum(add.visible_rows for add in inputs),
        bytes_in=sum(add.size for add in inputs),
        splits_in=len(inputs),
    )
    windows = sorted({add.windowStart for add in inputs}, key=by_start)
    return {"metrics": metrics, "details": {"windows": windows}}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The limits of a group of merges, and the limits of a task. Each group has one commit.

    A group ends when it has `windows` windows. A group also ends when its input reaches a certain size. This size is
    the larger of `bytes` and the total input divided by `parts`. So a commit stays small, and a small run has one
    commit. A large run has few commits, and loses only a few groups if its driver fails.

    A task executes one large merge, or several small merges up to the limits `task_merges` and `task_bytes`. The start
    of a task costs more than a small merge.
    """

    windows: int = 256
    bytes: int = 256 * 2**20
    parts: int = 32
    task_merges: int = 8
    task_bytes: int = 8 * 2**20


GROUP_LIMITS = GroupLimits()


def grouped(tasks: Sequence[CompactionTask], limits: GroupLimits = GROUP_LIMITS) -> list[list[CompactionTask]]:
    """Return all tasks in groups of whole windows. Larger windows come first."""
    by_window: dict[int | None, list[CompactionTask]] = {}
    for task in tasks:
        by_window.setdefault(task.window, []).append(task)
    sizes = {window: sum(bytes_of(each) for each in merges) for window, merges in by_window.items()}
    full = max(limits.bytes, sum(sizes.values()) // limits.parts)
    groups: list[list[CompactionTask]] = []
    windows = size = 0
    for window in sorted(by_window, key=sizes.__getitem__, reverse=True):
        if not windows:
            groups.append([])
        groups[-1] += sorted(by_window[window], key=bytes_of, reverse=True)
        windows, size = windows + 1, size + sizes[window]
        if windows == limits.windows or size >= full:
            windows = size = 0
    return groups


def bundled(group: Sequence[CompactionTask], limits: GroupLimits = GROUP_LIMITS) -> list[list[CompactionTask]]:
    """Return the merges of a group as one list per task. The merges keep their order."""
    bundles: list[list[CompactionTask]] = []
    size = 0
    for task in group:
        size += bytes_of(task)
        if not bundles or size > limits.task_bytes or len(bundles[-1]) == limits.task_merges:
            bundles.append([])
            size = bytes_of(task)
        bundles[-1].append(task)
    return bundles


def bytes_of(task: CompactionTask) -> int:
    """Return the bytes that a merge reads."""
    return sum(add.size for add in task.inputs)


@dataclass(frozen=True, slots=True)
class CommittedGroup:
    """One commit of a run, and the windows that it finished."""

    version: int
    commit_id: str | None
    windows: tuple[Window, ...]

    def as_mapping(self) -> dict[str, object]:
        """Return the commit as it appears in job reports."""
        return {"version": self.version, "commit_id": self.commit_id, "windows": list(self.windows)}


@dataclass(slots=True)
class GroupsOutcome:
    """Outcome of a run so far: the commits in order, the results of the commits, and the errors by window."""

    commits: list[CommittedGroup] = field(default_factory=list)
    results: list[Rewrite] = field(default_factory=list)
    failed: dict[Window, TaskFailure] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether the run has committed something, or a window has failed."""
        return bool(self.commits or self.failed)

    def take_changed(self) -> set[Window]:
        """Remove the windows that failed because another commit changed them, and return these windows."""
        found = {window for window, failed in self.failed.items() if failed.kind == CommitConflict.kind}
        self.failed = {window: failed for window, failed in self.failed.items() if window not in found}
        return found

    def take(self, later: GroupsOutcome) -> None:
        """Add the outcome of further windows of the run."""
        self.commits.extend(later.commits)
        self.results.extend(later.results)
        self.failed.update({window: self.failed.get(window, failed) for window, failed in later.failed.items()})

    def failed_by_start(self) -> list[tuple[Window, TaskFailure]]:
        """Return the failed windows, ascending with the null window last, each with its first error."""
        return sorted(self.failed.items(), key=lambda each: by_start(each[0]))

    def fail(self, windows: Sequence[Window], error: TidemarkError) -> None:
        """Mark the windows as failed. The first error of a window is kept."""
        for window in windows:
            self.failed.setdefault(window, TaskFailure.of(error))


@dataclass(frozen=True, slots=True)
class Executed:
    """A merge and the answer of its task."""

    task: CompactionTask
    answer: Mapping[str, Any]

    @property
    def window(self) -> Window:
        """The window of the merge."""
        return self.task.window

    @property
    def result(self) -> Rewrite | None:
        """The output of the merge, or None if it failed."""
        return Rewrite.from_json(self.answer["result"]) if "result" in self.answer else None

    @property
    def failed(self) -> TaskFailure | None:
        """The error of the merge, or None if it succeeded."""
        return TaskFailure.from_object(self.answer["failed"]) if "failed" in self.answer else None


def compact_groups(
    job: JobRun[Compact], planned: Sequence[CompactionTask], limits: GroupLimits = GROUP_LIMITS
) -> GroupsOutcome:
    """Execute the merges, and commit each group when its tasks have ended.

    A failure affects only its own window. If inputs make a merge fail, these inputs are skipped for a day. A window
    also fails if another commit changed it. If Spark or the store fails for a whole group, all windows of this group
    fail. Raises `Fenced` if another run took over. Groups that the run already committed are not undone.
    """
    outcome, groups = GroupsOutcome(), grouped(planned, limits)
    items = [[{"tasks": [each.to_json() for each in bundle]} for bundle in bundled(group, limits)] for group in groups]
    read = sum(map(bytes_of, planned))
    with closing(job.map_groups(merge_several, items, input_bytes=read)) as ended:
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


def settle(job: JobRun[Compact], merges: Sequence[Executed], outcome: GroupsOutcome) -> None:
    """Commit the outputs of these merges, except for windows that another commit changed. Raise `Fenced`."""
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
    """Return the windows whose merges read the split in the error, or all windows if the error names none."""
    path = error.context.get("path") if isinstance(error, CommitConflict) else None
    hit = {each.window for each in merges if any(add.path == path for add in each.task.inputs)}
    return hit or {each.window for each in merges}


def _commit(job: JobRun[Compact], merges: Sequence[Executed], outcome: GroupsOutcome) -> None:
    made = [(each.task, result) for each in merges if (result := each.result) is not None]
    results = [result for _, result in made]
    by_window: dict[Window, list[Rewrite]] = {}
    for task, result in made:
        by_window.setdefault(task.window, []).append(result)
    actions = [action for result in results for action in result.actions]
    actions += [skip for each in merges for skip in _skips(job, each)]
    if not actions:
        return
    carry_over = CarryOver(job.store, made, ids=job.log.ids)
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


def _skips(job: JobRun[Compact], merge: Executed) -> Sequence[Action]:
    if merge.failed is None or not merge.failed.lasting:
        return []
    return skips_of(job.before, merge.task.inputs, merge.failed.message, job.log.clock.now_ms())


def merge_in_parts(job: JobRun[Compact], planned: Sequence[CompactionTask]) -> GroupsOutcome:
    """Execute these merges one after the other, and commit each merge when all of its parts have ended.

    If one part of a merge fails, the run reports a failure for the window of this merge. Nothing of the merge is
    committed, and the files of its parts are orphans. Raises `Fenced` if another run took over.
    """
    outcome = GroupsOutcome()
    for task in planned:
        try:
            merges = _executed_in_parts(job, task)
        except Fenced:
            raise
        except TidemarkError as error:
            outcome.fail([task.window], error)
        else:
            settle(job, merges, outcome)
    return outcome


def _executed_in_parts(job: JobRun[Compact], task: CompactionTask) -> list[Executed]:
    """Execute the parts of a merge.

    Return each part together with the answer of its task. If some parts failed, return only the failed parts.
    """
    located = partial(_located, job)
    several = divide(task, partial(_sampled, job, len(task.inputs)), located, operation_id=job.log.ids.uuid())
    answers = job.map(merge_splits, [{"task": each.to_json()} for each in several])
    merges = [Executed(each, answer) for each, answer in zip(several, answers, strict=True)]
    failed = [each for each in merges if each.failed is not None]
    if not failed:
        require_whole(task, [result for each in merges if (result := each.result) is not None])
    return failed or merges


def _sampled(job: JobRun[Compact], inputs: int, several: Sequence[CompactionTask]) -> list[Sample]:
    items = [{"task": each.to_json(), "inputs": inputs} for each in several]
    answers = job.map(sample_keys, items, writes=False)
    return [Sample(of_text(each["keys"]), of_text(each["columns"]).schema) for each in answers]


def _located(job: JobRun[Compact], several: Sequence[CompactionTask], keys: pa.Table) -> list[list[list[int]]]:
    text = as_text(keys)
    answers = job.map(locate_keys, [{"task": each.to_json(), "keys": text} for each in several], writes=False)
    return [each["places"] for each in answers]


def rewindow(job: JobRun[Compact], planned: Sequence[RewindowTask]) -> GroupsOutcome:
    """Execute the tasks and commit them in groups.

    If a task fails because of its inputs, the windows of the inputs fail. The inputs are then skipped for a day. All
    windows of a group fail if another commit rewrote a split of the group after the plan. All windows of a group also
    fail if another commit deleted rows of a split. Raises `Fenced` if another run took over.
    """
    outcome = GroupsOutcome()
    for start in range(0, len(planned), TASKS_PER_COMMIT):
        group = planned[start : start + TASKS_PER_COMMIT]
        try:
            items = [{"task": task.to_json()} for task in group]
            read = sum(add.size for task in group for add in task.inputs)
            answers = job.map(rewrite_splits, items, input_bytes=read)
            _commit_rewritten(job, group, answers, outcome)
        except Fenced:
            raise
        except TidemarkError as error:
            outcome.fail([window for task in group for window in _windows(task)], error)
    return outcome


def _commit_rewritten(
    job: JobRun[Compact], group: Sequence[RewindowTask], answers: Sequence[Mapping[str, Any]], outcome: GroupsOutcome
) -> None:
    now_ms = job.log.clock.now_ms()
    actions: list[Action] = []
    made: list[Rewrite] = []
    for task, answer in zip(group, answers, strict=True):
        if "result" in answer:
            made.append(Rewrite.from_json(answer["result"]))
            actions += made[-1].actions
            continue
        failed = TaskFailure.from_object(answer["failed"])
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


def due_compact(inputs: Inputs) -> DueRun | None:
    """Return the compaction run that is needed now, or None."""
    found = find_pieces(inputs.snapshot, now_ms=inputs.clock.now_ms(), mode=Mode.POLICY).first()
    if not found:
        return None
    splits, pieces = found.splits, found.bytes
    reason = f"{counted(splits, 'split')} to compact"
    return DueRun(reason=reason, items=splits, bytes=sum(pieces), pieces=pieces, newest=found.newest)


def predicted_of(run: NextRun) -> Prediction:
    """Return the prediction of a compaction, without its commits."""
    return Prediction(
        benefit=run.splits - run.outputs,
        unit="splits",
        bytes_in=run.read_bytes,
        bytes_out=run.written_bytes,
        gets=run.splits,
        puts=run.outputs,
    )


@as_task
def merge_splits(place: TaskEnvironment, item: Item) -> Answer:
    """Execute one compaction task. Return the answer of `_merged`."""
    return _merged(place, item["task"])


@as_task
def merge_several(place: TaskEnvironment, item: Item) -> Answer:
    """Execute several small merges one after the other. The answers are in the order of the merges."""
    return {"answers": [_merged(place, each) for each in item["tasks"]]}


def _merged(place: TaskEnvironment, text: str) -> Answer:
    """Execute one task. Return an error as the answer instead of raising it, because only one window is affected.

    `lasting` in the answer is True if the same inputs would fail again.
    """
    task = CompactionTask.from_json(text)
    try:
        result = compaction.execute(place.store, task, ids=place.ids, now_ms=place.clock.now_ms())
    # Programming errors are caught as well. Otherwise an error here would end the tasks of all other windows.
    except Exception as error:
        if not isinstance(error, TidemarkError):
            LOG.exception("compaction of window %s", task.window)
        failed = TaskFailure.of(as_tidemark_error(error), lasting=isinstance(error, LASTING))
    else:
        return {"result": result.to_json()}
    return {"failed": failed.to_object()}


@as_task
def sample_keys(place: TaskEnvironment, item: Item) -> Answer:
    """Sample the keys of some inputs of a merge that is too large for one task. Nothing is written."""
    found = execute.sample(place.store, CompactionTask.from_json(item["task"]), item["inputs"])
    columns = as_text(found.columns.empty_table())
    return {"keys": as_text(found.keys), "columns": columns}


@as_task
def locate_keys(place: TaskEnvironment, item: Item) -> Answer:
    """Return the positions of keys in some inputs of a merge that is too large for one task. Nothing is written."""
    places = execute.locate(place.store, CompactionTask.from_json(item["task"]), of_text(item["keys"]))
    return {"places": places}


@as_task
def rewrite_splits(place: TaskEnvironment, item: Item) -> Answer:
    """Rewrite splits in windows of another duration, or in another order. A failure is returned as an answer."""
    task = rewindowing.RewindowTask.from_json(item["task"])
    try:
        result = rewindowing.execute(place.store, task, ids=place.ids, now_ms=place.clock.now_ms())
    except TidemarkError as error:
        failed = TaskFailure.of(error, lasting=isinstance(error, LASTING))
        return {"failed": failed.to_object()}
    return {"result": result.to_json()}


def run_expire(job: JobRun[Expire]) -> JobReport:
    """Remove every window that is older than the retention, in one commit. If no window has expired, commit nothing.

    The files stay until the collector deletes them, because earlier versions still reference the files. The run starts
    no Spark task, because no file is read or written. The run takes no lease, because a plan is cheap and a second run
    finds no work. The run is idempotent. After an interruption, the next run does the remaining work.

    Raises:
        CommitConflict: during each plan, other commits changed the rows to drop or the retention.
    """
    now_ms = job.log.clock.now_ms()
    return job.carry_out(
        lambda snapshot: planner.plan_expiry(snapshot, retention_ms=snapshot.config.retention_ms, now_ms=now_ms),
        partial(_commit_expiry, job, now_ms),
        predict=_expiry_predicted,
        leases=(),
        planned=lambda found: {"metrics": _expiry_metrics(found), "details": _expiry_details(found)},
        nothing=lambda found: job.report("nothing_to_do", details=_expiry_details(found)),
    )


def _commit_expiry(job: JobRun[Expire], now_ms: int, found: Expiry) -> JobReport:
    return job.commit(
        found.removes(now_ms),
        operation="EXPIRE",
        metrics=_expiry_metrics(found),
        requirements=[found.requirement],
        details=_expiry_details(found),
        benefit=len(found.splits),
    )


def _expiry_predicted(found: Expiry) -> Prediction:
    gone = len(found.splits)
    size = sum(each.bytes for each in found.windows)
    return Prediction(benefit=gone, unit="splits", bytes_in=size, bytes_out=0, puts=1 if gone else 0)


def _expiry_metrics(found: Expiry) -> Metrics:
    return Metrics(
        rows_in=sum(each.rows for each in found.windows),
        bytes_in=sum(each.bytes for each in found.windows),
        splits_in=len(found.splits),
    )


def _expiry_details(found: Expiry) -> dict[str, object]:
    return {"retention_ms": found.retention_ms, "windows": [asdict(each) for each in found.windows]}


def due_expire(inputs: Inputs) -> DueRun | None:
    """Return the expiry run that is needed now, or None."""
    # The plan uses the declared retention, because a run first applies the declaration to the table.
    now_ms = inputs.clock.now_ms()
    found = planner.plan_expiry(inputs.snapshot, retention_ms=inputs.declared.retention_ms, now_ms=now_ms)
    if not found.splits:
        return None
    windows = found.windows
    reason = f"{len(windows)} windows are older than the retention, {sum(each.bytes for each in windows):,} bytes"
    return DueRun(reason=reason, items=len(windows))
