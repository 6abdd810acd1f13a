"""How a table is, in one look of bounded cost: the contract of `status` (`docs/spec.md`, decision 0164).

Every metric has its home elsewhere: debt in `compaction.debt` and `index.debt`, what waits in `region.oldest_waiting`,
freshness in `newest_rows`. What is owed is that of scheduled runs: what pays now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from storage_core.compaction.debt import Debt, NextRun, Task, debt, together
from storage_core.compaction.policy import Mode
from storage_core.formats.keys import QUARANTINE_PREFIX
from storage_core.gc.retained_bytes import RetainedBytes
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import PAGE_KEYS, ObjectStore
from storage_core.read.newest_rows import newest_row_ms, rows_came_ms

NEWEST_ROWS, UNMERGED = "newest_rows", "unmerged"
"""What may be behind the declared freshness: the commit of the newest rows, the oldest record that is not merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What one step has to do: `count` of `unit`, and about how many bytes that is where it is known."""

    count: int
    unit: str
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalDebt:
    """What others say than the snapshot: of landed files, of mirrors by versions that they lack, of the collector.

    `unknown` says of a step, or of `held`, why nobody knows. `held` is what holds the bytes of the table's folder, or
    None where nobody looked.
    """

    ingest: Owed | None = None
    collect: Owed | None = None
    mirrors: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    held: RetainedBytes | None = None


NOT_LOOKED = ExternalDebt()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLag:
    """How far an index is behind: versions since its watermark, and rows that no segment covers."""

    name: str
    versions: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How a table is at `version`. Times in ms since the epoch, ages in ms, sizes in bytes.

    `newest_row_at` is by the time column. `rows_came_at` is when the newest rows were committed, or before, where a
    `freshness` is declared; `behind` says what is older than that. `owed` has the steps with something to do, and
    `unknown` why of a step, or of `held`, nobody knows. `mirrors` are the versions that each published format lacks.
    `next_run` is what a scheduled compaction reads and writes, and how many splits become how many; `freed_bytes` is
    what the retention takes out. Of `quarantine_entries` 1,000 are counted, of `regions` the first 64 looked at.
    `held` is what holds the bytes of the table's folder, and until when, or None where nobody looked.
    """

    uri: str
    kind: str
    version: int
    splits: int
    rows: int
    bytes: int
    committed_at: int
    newest_row_at: int | None
    rows_came_at: int | None
    owed: Mapping[str, Owed]
    indexes: tuple[IndexLag, ...]
    regions: int
    oldest_unmerged_ms: int | None
    quarantine_entries: int
    next_run: NextRun
    freed_bytes: int
    freshness_ms: int | None
    behind: tuple[str, ...]
    mirrors: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    held: RetainedBytes | None = None


def status(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    now_ms: int,
    freshness_ms: int | None = None,
    external: ExternalDebt = NOT_LOOKED,
) -> Status:
    """Return how the table is at `now_ms`, judged by the freshness that is declared for it, with its `external` debt.

    Requests: the manifests of the state, one LIST, with a freshness one GET for each of the 32 newest versions at most,
    and those of `region.oldest_waiting` for a keyed table.
    """
    from storage_core.region.oldest_waiting import waiting  # and protobuf, which tables without regions do not need

    debts = debt(snapshot, now_ms=now_ms, mode=Mode.POLICY)
    lags = tuple(_lags(snapshot))
    unmerged = waiting(store, snapshot) if snapshot.config.kind == "keyed" else None
    oldest = unmerged.oldest_ms if unmerged else None
    came = None if freshness_ms is None else rows_came_ms(store, snapshot, since_ms=now_ms - freshness_ms)
    ages = {NEWEST_ROWS: None if came is None else now_ms - came, UNMERGED: oldest}
    is_late = [
        name for name, age in ages.items() if freshness_ms is not None and age is not None and age > freshness_ms
    ]
    upkeep = _owed(snapshot, debts, lags, unmerged.generations + unmerged.silent if unmerged else 0)
    return Status(
        uri=store.uri,
        kind=snapshot.config.kind,
        version=snapshot.version,
        splits=len(snapshot.splits),
        rows=snapshot.rows,
        bytes=snapshot.bytes,
        committed_at=snapshot.timestamp,
        newest_row_at=newest_row_ms(snapshot),
        rows_came_at=came,
        owed=dict(_in_order(upkeep, external)),
        indexes=lags,
        regions=unmerged.regions if unmerged else 0,
        oldest_unmerged_ms=oldest,
        quarantine_entries=sum(1 for _ in islice(store.list(QUARANTINE_PREFIX), PAGE_KEYS)),
        next_run=together(each.next_run for each in debts),
        freed_bytes=sum(each.bytes for each in debts if each.task is Task.EXPIRE),
        freshness_ms=freshness_ms,
        behind=tuple(is_late),
        mirrors=external.mirrors,
        unknown=external.unknown,
        held=external.held,
    )


def _lags(snapshot: Snapshot) -> Iterator[IndexLag]:
    if snapshot.config.indexes:
        from storage_core.index.debt import debt as index_debt  # which tables without indexes do not need

        for each in snapshot.config.indexes:
            found = index_debt(snapshot, each.name)
            yield IndexLag(name=each.name, versions=snapshot.version - found.watermark, rows=found.uncovered_rows)


def _in_order(upkeep: Iterator[tuple[str, Owed]], external: ExternalDebt) -> Iterator[tuple[str, Owed]]:
    if external.ingest is not None:
        yield "ingest", external.ingest
    yield from upkeep
    if lacking := max(external.mirrors.values(), default=0):
        yield "publish", Owed(count=lacking, unit="versions")
    if external.collect is not None:
        yield "collect", external.collect


def _owed(
    snapshot: Snapshot, debts: Sequence[Debt], lags: Sequence[IndexLag], generations: int
) -> Iterator[tuple[str, Owed]]:
    """The steps in the order in which they are run, each only where it has something to do."""
    if generations:
        yield "merge", Owed(count=generations, unit="generations")
    windows, size = Counter(each.task for each in debts), Counter[Task]()
    for each in debts:
        size[each.task] += each.bytes
    for task in (Task.EXPIRE, Task.COMPACT, Task.WAIT):
        if windows[task]:
            yield task.value, Owed(count=windows[task], unit="windows", bytes=size[task])
    if uncovered := sum(each.rows for each in lags):
        yield "catch_up", Owed(count=uncovered, unit="rows")
    newest = -1 if snapshot.checkpoint_version is None else snapshot.checkpoint_version
    # Fewer than the table lets be behind its state are not owed, though a scheduled run takes them along.
    if (behind := snapshot.version - newest) >= max(snapshot.config.checkpoint_interval, 1):
        yield "checkpoint", Owed(count=behind, unit="versions")
