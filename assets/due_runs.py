"""What storage asks for: the run that a step of a table needs now, derived from its log and its landing place alone.

The upkeep sensor asks here and requests what comes back. So a missed tick, a late file or a killed run is caught up by
the next look, and a table that needs nothing gets no run (docs/architecture/orchestration.md). No landed file is read:
a run takes all that wait, each once, whatever windows their rows belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from assets.launcher import JobName
from storage_core.clock import Clock, SystemClock
from storage_core.compaction import expiry
from storage_core.compaction.next_run import owed
from storage_core.compaction.policy import Mode
from storage_core.declaration import TableDeclaration
from storage_core.index import catch_up as indexing
from storage_core.ingest.delta_versions import waiting_versions
from storage_core.ingest.landing import LandedFile, discover
from storage_core.ingest.progress import pending
from storage_core.publishing.shown import shown_versions
from storage_core.region import sorting
from storage_core.region.idle import merge_due
from storage_core.table import Table, exists
from storage_core.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    """The run that a step needs, and why. It is about `items` (files, generations, splits, …) of `bytes` in all.

    `bytes` are about those that it reads, of a merge its records; 0 where storage does not say before. `pieces` are the
    bytes of those that it can be cut into, the newest first. `indexes` are those to catch up, `newest` is the last of
    the windows to compact.
    """

    reason: str
    items: int = 1
    bytes: int = 0
    pieces: tuple[int, ...] = ()
    indexes: tuple[str, ...] = ()
    newest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a table asks of one job: the run that is `due`, and in how many ms time alone may ask for one.

    `in_ms` is None where time changes nothing, or where nobody knows when.
    """

    due: DueRun | None
    in_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInputs:
    """What there is to look at: the declaration of one table, the table where it exists, what landed, and the time.

    `landed` are the files of its landing place, none where it lands from a Delta table.
    """

    declaration: TableDeclaration
    table: Table | None
    landed: Sequence[LandedFile]
    clock: Clock

    @classmethod
    def of(cls, declaration: TableDeclaration, clock: Clock | None = None) -> TableInputs:
        """Look at a table: one LIST, where it exists the requests of `Table.open`, and those of `discover`."""
        spec = declaration.landing_spec()
        return cls(
            declaration=declaration,
            table=Table.open(declaration.uri) if exists(declaration.uri) else None,
            landed=discover(spec) if spec is not None and not spec.is_delta else (),
            clock=clock or SystemClock(),
        )


def due_run(job: JobName, inputs: TableInputs) -> DueRun | None:
    """Return the run that a table asks of one job now, None for nothing: `outlook`, without what time will change."""
    return outlook(job, inputs).due


def outlook(job: JobName, inputs: TableInputs) -> Outlook:
    """Return what a table asks of one job.

    A table that does not exist yet asks for what has landed only. Reads storage and writes nothing. Raises what reading
    raises: a look that failed does not say what there is to do.
    """
    if job == "ingest":
        return Outlook(due=_ingest(inputs))
    if inputs.table is None:
        return Outlook(due=None)
    return _merge(inputs.table) if job == "merge" else Outlook(due=_CHECKS[job](inputs, inputs.table))


def _ingest(inputs: TableInputs) -> DueRun | None:
    spec = inputs.declaration.landing_spec()
    snapshot = inputs.table.snapshot if inputs.table else None
    if spec is None:
        return None
    if spec.is_delta:
        versions = waiting_versions(spec.uri, snapshot)
        reason = f"{counted(len(versions), 'version')} of the Delta table"
        return DueRun(reason=reason, items=len(versions)) if versions else None
    sizes = [file.size for file in (pending(snapshot, inputs.landed) if snapshot else inputs.landed)]
    if not sizes:
        return None
    reason = f"{counted(len(sizes), 'landed file')}, {counted(sum(sizes), 'byte')}"
    return DueRun(reason=reason, items=len(sizes), bytes=sum(sizes))


def _merge(table: Table) -> Outlook:
    due = merge_due(table.store, table.snapshot)
    waiting = sum(len(each.generations) for each in due.works)
    reasons = [f"generations that wait: {waiting}"] if waiting else []
    if due.idle:
        reasons.append(f"{counted(len(due.idle), 'region')} with rows of a silent writer")
    known = sum(each.size_bytes for each in due.works)
    run = DueRun(reason=", ".join(reasons), items=waiting + len(due.idle), bytes=known) if reasons else None
    return Outlook(due=run, in_ms=due.silent_in_ms)


def _sort(_: TableInputs, table: Table) -> DueRun | None:
    works = sorting.plan(table.store, table.snapshot)
    if not works:
        return None
    waiting = sum(len(each.generations) for each in works)
    known = sum(each.size_bytes for each in works)
    return DueRun(reason=f"generations that wait unsorted: {waiting}", items=waiting, bytes=known)


def _expire(inputs: TableInputs, table: Table) -> DueRun | None:
    # By the retention that is declared: the run declares it first.
    now_ms = inputs.clock.now_ms()
    found = expiry.plan(table.snapshot, retention_ms=inputs.declaration.retention, now_ms=now_ms)
    if not found.splits:
        return None
    windows = found.windows
    reason = f"{len(windows)} windows have left, {sum(each.bytes for each in windows):,} bytes"
    return DueRun(reason=reason, items=len(windows))


def _compact(inputs: TableInputs, table: Table) -> DueRun | None:
    found = owed(table.snapshot, now_ms=inputs.clock.now_ms(), mode=Mode.POLICY).first()
    if not found:
        return None
    splits, pieces = found.splits, found.bytes
    reason = f"{counted(splits, 'split')} to compact"
    return DueRun(reason=reason, items=splits, bytes=sum(pieces), pieces=pieces, newest=found.newest)


def _checkpoint(_: TableInputs, table: Table) -> DueRun | None:
    newest = table.snapshot.checkpoint_version
    if newest == table.version:
        return None
    behind = "no state yet" if newest is None else f"the newest state is of version {newest}"
    return DueRun(reason=f"version {table.version}, {behind}", items=table.version - (newest or 0) or 1)


def _catch_up(inputs: TableInputs, table: Table) -> DueRun | None:
    declared = inputs.declaration.config().indexes
    defined = [index.name for index in declared if index in table.snapshot.config.indexes]
    new = [index.name for index in declared if index.name not in defined]  # or changed: the run declares it first
    plans = [indexing.plan(table.snapshot, name) for name in defined]
    missing = {each.index: len(each.work) for each in plans if not each.empty}
    if not missing and not new:
        return None
    merged = {each.index for each in plans if each.merges}
    lacking = [
        f"{name} lacks {counted(count, 'split')}" for name, count in missing.items() if count or name not in merged
    ]
    for again, waits in ((False, "to merge"), (True, "to train again")):
        counts = {each.index: sum(len(one.segments) for one in each.merges if one.again is again) for each in plans}
        lacking += [f"{name} has {counted(count, 'segment')} {waits}" for name, count in counts.items() if count]
    reason = ", ".join([*lacking, *(f"{name} is new" for name in new)])
    read = [work.add.size for each in plans for work in each.work]
    read += [one.size for each in plans for merge in each.merges for one in merge.segments]
    return DueRun(reason=reason, items=sum(missing.values()) + len(new), bytes=sum(read), indexes=(*missing, *new))


def _publish(_: TableInputs, table: Table) -> DueRun | None:
    shown = shown_versions(table.store, table.config.publish)
    if all(version == table.version for version in shown.values()):
        return None
    known = [f"{name.title()} shows version {version}" for name, version in shown.items() if version is not None]
    return DueRun(reason=f"version {table.version}, {', '.join(known) or 'nothing is published'}")


_CHECKS: Mapping[JobName, Callable[[TableInputs, Table], DueRun | None]] = {
    "sort": _sort,
    "expire": _expire,
    "compact": _compact,
    "checkpoint": _checkpoint,
    "catch_up": _catch_up,
    "publish": _publish,
}

OBSERVABLE_JOBS: frozenset[JobName] = frozenset({"ingest", "merge", *_CHECKS})
"""The jobs whose work storage shows. Collections and checks have schedules."""
