"""What storage asks for: the runs that a table needs now, derived from its log and its landing place and nothing else.

Schedules and sensors ask here and request what comes back. So a missed tick, a late file or a killed run is caught up
by the next look, and a table that needs nothing gets no run (docs/architecture/orchestration.md). More than 300 lines:
a look per job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from assets.launcher import JobName
from assets.partitions import Span, contiguous, partition_key, span_of
from jobs.requests.window_range import EVERY_WINDOW, WindowRange
from storage_core.clock import Clock, SystemClock
from storage_core.compaction import expiry
from storage_core.compaction.debt import Task
from storage_core.compaction.policy import Mode
from storage_core.declaration import TableDeclaration
from storage_core.gc.collect import collect as collection
from storage_core.gc.plan import read_plan
from storage_core.gc.sweep import Horizon, may_be_due
from storage_core.index import catch_up as indexing
from storage_core.ingest.delta_versions import waiting_versions
from storage_core.ingest.landing import LandedFile
from storage_core.ingest.waiting import (
    Candidate,
    Waiting,
    WindowedRows,
    fingerprint,
    from_anywhere,
    from_path,
    look,
    waiting_files,
)
from storage_core.publishing.shown import shown_versions
from storage_core.region import sorting
from storage_core.region.idle import merge_due
from storage_core.table import Table, exists
from storage_core.wording import counted

MOST_PER_CHECK = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    """One run that storage asks for. `windows` is bounded for partitioned steps, open for the others.

    `work_key` stays the same as long as the same is asked for, and changes as soon as there is more to do.
    """

    work_key: str
    reason: str
    windows: WindowRange = EVERY_WINDOW
    indexes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DueRuns:
    """What to request now, at most ten runs, and what no run of this kind can do.

    `cursor` is where the next look should go on (its `after`) when this one could not read everything in one go.
    """

    wanted: tuple[DueRun, ...] = ()
    warnings: tuple[str, ...] = ()
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class TableInputs:
    """What there is to look at: the declaration of one table, the table where it exists, and the time."""

    declaration: TableDeclaration
    table: Table | None
    clock: Clock


def due_runs(
    job: JobName, declaration: TableDeclaration, clock: Clock | None = None, *, after: str | None = ""
) -> DueRuns:
    """Return what a table asks of one job; a table that does not exist yet asks for its landed files only.

    One look reads a bounded number of landed files, so each goes on `after` the last one's cursor; with None it begins
    at a place that changes with time. Either way no file waits for ever behind others that never get in. Reads storage
    and writes nothing. Raises what reading raises: a look that failed does not say what there is to do.
    """
    table = Table.open(declaration.uri) if exists(declaration.uri) else None
    state = TableInputs(declaration, table, clock or SystemClock())
    found = _ingest(state, after) if job == "ingest" else _CHECKS[job](state)
    return replace(found, wanted=found.wanted[:MOST_PER_CHECK])


def _ingest(state: TableInputs, after: str | None) -> DueRuns:
    declaration = state.declaration
    spec, span = declaration.landing_spec(), span_of(declaration, state.clock)
    snapshot = state.table.snapshot if state.table else None
    if spec is None:
        return DueRuns()
    if spec.is_delta:
        versions = waiting_versions(spec.uri, snapshot)
        reason = f"{counted(len(versions), 'version')} of the Delta table"
        return DueRuns(tuple(DueRun(work_key=f"Delta version {last}", reason=reason) for last in versions[-1:]))
    candidates = waiting_files(snapshot, spec, window_seconds=declaration.window)
    if span is None or declaration.time_column is None:
        files = [file for file, _ in candidates]
        return DueRuns(tuple(DueRun(work_key=fingerprint(files), reason=_files(files)) for _ in files[:1]))
    reading = WindowedRows(
        spec=spec,
        schema=declaration.schema(),
        time_column=declaration.time_column,
        window_seconds=span.window_seconds,
    )
    waiting = list(look(_rotated(candidates, after, state.clock), reading))
    by_window: dict[int, list[LandedFile]] = {}
    for each in waiting:
        for window in _requested(each, span):
            by_window.setdefault(window, []).append(each.file)
    wanted = []
    for first, last in contiguous(by_window, span.window_seconds):
        windows = span.range_of(first, last)
        files = [file for window in windows.select(by_window) if window is not None for file in by_window[window]]
        wanted.append(DueRun(windows=windows, work_key=fingerprint(set(files)), reason=_files(set(files))))
    cursor = waiting[-1].file.path if waiting else None
    return DueRuns(tuple(wanted), tuple(_outside(declaration, waiting, span)), cursor)


def _rotated(candidates: list[Candidate], after: str | None, clock: Clock) -> list[Candidate]:
    if after is None:
        return from_anywhere(candidates, seed=str(clock.now_ms() // 60_000))
    return from_path(candidates, after)


def _requested(waiting: Waiting, span: Span) -> list[int]:
    """The partitions to ask for: those of the windows left, or one that settles a file with nothing left."""
    if waiting.left:
        return [window for window in waiting.left if window is not None and span.holds(window)]
    candidates = range(span.newest, span.first - 1, -span.window_seconds)
    return [window for window in candidates if window not in waiting.done][:1]


def _outside(declaration: TableDeclaration, waiting: Iterable[Waiting], span: Span) -> Iterable[str]:
    for each in waiting:
        outside = [window for window in each.left if not span.holds(window)]
        if outside:
            yield (
                f"{each.file.path} has rows in {len(outside)} windows outside the partitions of {declaration.name} "
                f"({partition_key(span.first)} to {partition_key(span.newest)}); widen `partitions` in its "
                f"declaration, or run `tidemark ingest {declaration.name}`"
            )


def _merge(state: TableInputs) -> DueRuns:
    table = state.table
    if table is None:
        return DueRuns()
    due = merge_due(table.store, table.snapshot)
    generations = _for_generations("wait", [(each.region, each.after, len(each.generations)) for each in due.works])
    if not due.idle:
        return generations
    logs = DueRun(
        work_key=" ".join(f"{each.manifest.region_id}:log{each.last_entry}" for each in due.idle),
        reason=f"{counted(len(due.idle), 'region')} with rows of a silent writer",
    )
    runs = [*generations.wanted, logs]
    both = DueRun(work_key=" ".join(run.work_key for run in runs), reason=", ".join(run.reason for run in runs))
    return DueRuns((both,))


def _sort(state: TableInputs) -> DueRuns:
    table = state.table
    work = sorting.plan(table.store, table.snapshot) if table else []
    found = [(each.region, each.generations[0].generation, len(each.generations)) for each in work]
    return _for_generations("wait unsorted", found)


def _for_generations(what: str, found: Sequence[tuple[str, int, int]]) -> DueRuns:
    """One run for all generations found: by region, where they begin, and how many they are."""
    if not found:
        return DueRuns()
    work_key = " ".join(f"{region}:{first}+{count}" for region, first, count in found)
    reason = f"generations that {what}: {sum(count for _, _, count in found)}"
    return DueRuns((DueRun(work_key=work_key, reason=reason),))


def _expire(state: TableInputs) -> DueRuns:
    table = state.table
    if table is None:
        return DueRuns()
    # By the retention that is declared: the run declares it first.
    found = expiry.plan(table.snapshot, retention_ms=state.declaration.retention, now_ms=state.clock.now_ms())
    if not found.splits:
        return DueRuns()
    windows = found.windows
    # Late rows may join a window that has left: then there is more to do.
    newest = max(table.snapshot.splits.added_at(add.path)[0] for add in found.splits)
    reason = f"{len(windows)} windows have left, {sum(each.bytes for each in windows):,} bytes"
    return DueRuns((DueRun(work_key=f"{windows[-1].window_start} v{newest}", reason=reason),))


def _compact(state: TableInputs) -> DueRuns:
    declaration, table = state.declaration, state.table
    debts = [each for each in table.debt(Mode.POLICY) if each.task is Task.COMPACT] if table else []
    span = span_of(declaration, state.clock)
    if table is None or not debts:
        return DueRuns()
    if span is None:
        splits = sum(debt.splits for debt in debts)
        return DueRuns(
            (DueRun(work_key=_newest_split(table, EVERY_WINDOW), reason=f"{counted(splits, 'split')} to compact"),)
        )
    starts = [span.partition_of(debt.window_start) for debt in debts]
    windows = [start for start in starts if start is not None]
    wanted = []
    for first, last in contiguous(windows, span.window_seconds):
        chosen = span.range_of(first, last)
        splits = sum(debt.splits for debt in debts if chosen.holds(debt.window_start))
        wanted.append(
            DueRun(
                windows=chosen, work_key=_newest_split(table, chosen), reason=f"{counted(splits, 'split')} to compact"
            )
        )
    left_out = len(debts) - len(windows)
    warnings = [f"{left_out} windows with debt lie outside the partitions; run `tidemark compact {declaration.name}`"]
    return DueRuns(tuple(wanted), tuple(warnings if left_out else ()))


def _checkpoint(state: TableInputs) -> DueRuns:
    table = state.table
    if table is None or table.snapshot.checkpoint_version == table.version:
        return DueRuns()
    newest = table.snapshot.checkpoint_version
    behind = "no state yet" if newest is None else f"the newest state is of version {newest}"
    return DueRuns((DueRun(work_key=f"v{table.version}", reason=f"version {table.version}, {behind}"),))


def _catch_up(state: TableInputs) -> DueRuns:
    table = state.table
    if table is None:
        return DueRuns()
    declared = state.declaration.config().indexes
    defined = [index.name for index in declared if index in table.snapshot.config.indexes]
    new = [index.name for index in declared if index.name not in defined]  # or changed: the run declares it first
    plans = [indexing.plan(table.snapshot, name) for name in defined]
    missing = {each.index: len(each.work) for each in plans if not each.empty}
    if not missing and not new:
        return DueRuns()
    merged = {each.index for each in plans if each.merges}
    lacking = [
        f"{name} lacks {counted(count, 'split')}" for name, count in missing.items() if count or name not in merged
    ]
    for again, waits in ((False, "to merge"), (True, "to train again")):
        counts = {each.index: sum(len(one.segments) for one in each.merges if one.again is again) for each in plans}
        lacking += [f"{name} has {counted(count, 'segment')} {waits}" for name, count in counts.items() if count]
    merges = [f"merge {each.segments[0].path}" for found in plans for each in found.merges]
    work_key = " ".join([" new ".join([_newest_split(table, EVERY_WINDOW), *new]), *merges])
    reason = ", ".join([*lacking, *(f"{name} is new" for name in new)])
    return DueRuns((DueRun(work_key=work_key, reason=reason, indexes=(*missing, *new)),))


def _collect(state: TableInputs) -> DueRuns:
    table = state.table
    if table is None:
        return DueRuns()
    found = collection(table.store, table.log, clock=state.clock, dry_run=True)
    plan = read_plan(table.store)
    new = [each for each in found.candidates if each.key not in plan.candidates]
    horizon = Horizon(requested_ms=found.horizon_ms, configured_ms=found.horizon_ms)
    if not new and not found.pruned and not may_be_due(plan, horizon, now_ms=state.clock.now_ms()):
        return DueRuns()
    reason = f"{len(found.candidates)} objects are unreachable, {len(new)} of them newly so"
    return DueRuns((DueRun(work_key=f"v{table.version} plan {plan.counter} new {len(new)}", reason=reason),))


def _publish(state: TableInputs) -> DueRuns:
    table = state.table
    if table is None:
        return DueRuns()
    shown = shown_versions(table.store, table.config.publish)
    if all(version == table.version for version in shown.values()):
        return DueRuns()
    known = [f"{name.title()} shows version {version}" for name, version in shown.items() if version is not None]
    reason = f"version {table.version}, {', '.join(known) or 'nothing is published'}"
    return DueRuns((DueRun(work_key=f"v{table.version}", reason=reason),))


_CHECKS: Mapping[JobName, Callable[[TableInputs], DueRuns]] = {
    "merge": _merge,
    "sort": _sort,
    "expire": _expire,
    "compact": _compact,
    "checkpoint": _checkpoint,
    "catch_up": _catch_up,
    "collect": _collect,
    "publish": _publish,
}


def _newest_split(table: Table, windows: WindowRange) -> str:
    """The version that added the newest split of these windows: a later commit elsewhere asks for nothing new here."""
    splits = table.snapshot.splits
    added = [splits.added_at(add.path)[0] for add in splits.values() if windows.holds(add.windowStart)]
    return f"v{max(added, default=table.version)}"


def _files(files: Iterable[LandedFile]) -> str:
    sizes = [file.size for file in files]
    return f"{counted(len(sizes), 'landed file')}, {counted(sum(sizes), 'byte')}"
