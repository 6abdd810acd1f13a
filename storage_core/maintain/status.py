"""The status of a table, measured with bounded cost. `docs/spec.md` contains the contract of `status`.

The status contains the pending work that scheduled runs would do now. `compact.pending_work` and `index.catch_up`
measure this work, and `region.idle` measures unmerged records. A rewrite after a change of the sort schema is included
as `resort`, although no scheduled run does this rewrite. A person must run `compact --resort`.

The reasons for retained bytes come from the log and the collector's last plan. No object is listed for this purpose, so
the cost is bounded. Objects outside all commits and outside the plan are not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from storage_core.compact.pending_work import NextRun, PendingWindow, Task, find_pending_windows, together
from storage_core.data.formats.documents import Candidate, Plan
from storage_core.data.formats.keys import QUARANTINE_PREFIX
from storage_core.data.rows.bound_text import decode_column
from storage_core.data.rows.columns import stored_name
from storage_core.data.settings.layout import Mode
from storage_core.log.actions import Action, Add, File, Remove, RemoveIndexSegment, RemoveTranslation
from storage_core.log.log import read_tags
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.versions import brings_rows, versions_down
from storage_core.maintain.rejections import Rejections, measure_rejections
from storage_core.store.contract import PAGE_KEYS, ObjectStore
from storage_core.write.ingest.drift import QUARANTINE
from storage_core.write.ingest.landing import landing_of

MOST_VERSIONS = 32
"""Maximum number of version files to read for the newest rows and the removed files."""


def newest_row_ms(snapshot: Snapshot) -> int | None:
    """Return the latest time of a row in ms since the epoch, or None if it is unknown.

    The time comes from the bounds of the splits.

    Makes requests for manifests only. Unmerged records are not in the splits.
    """
    import pyarrow.compute as pc

    name = snapshot.config.time_column
    if name is None or not len(snapshot.splits):
        return None
    field = snapshot.schema.field(name)
    greatest = []
    for files in snapshot.splits.tables():
        maps = [maps for maps in files.column("maxValues").chunks if len(maps)]
        texts = [pc.map_lookup(each, pa.scalar(stored_name(field)), "first") for each in maps]
        greatest += [pc.max(decode_column(each, field.type)) for each in texts]
    known = [each.cast(pa.timestamp("ms"), safe=False).value for each in greatest if each.is_valid]
    return max(known, default=None)


def _quarantine_objects(store: ObjectStore, snapshot: Snapshot) -> int:
    """Return the number of valid objects among the first 1,000 in quarantine.

    Objects without a commit and objects that are marked for the collector do not count. One LIST. If an object is in
    quarantine, the cost includes one GET.
    """
    from storage_core.maintain.collect import forgotten_keys, read_plan
    from storage_core.write.late_rows import commit_app, is_receipt

    listed = [each.key for each in islice(store.list(QUARANTINE_PREFIX), PAGE_KEYS)]
    keys = [key for key in listed if not is_receipt(key)]
    keys = [key for key in keys if (app := commit_app(key)) is None or app in snapshot.txns]
    return len(set(keys) - forgotten_keys([read_plan(store)])) if keys else 0


def rows_came_ms(store: ObjectStore, snapshot: Snapshot, *, since_ms: int) -> int:
    """Return the commit time of the newest rows in ms. For a table without rows, return the creation time of the table.

    The search ends at the first commit before `since_ms`, or after `MOST_VERSIONS` versions. If no searched commit
    added rows, the result is the time of the oldest searched commit. In this case, the newest rows have the age of the
    oldest searched commit, or are older.

    Cost:
        One GET per version that is read.
    """
    came = snapshot.timestamp
    for _, actions in versions_down(store, snapshot.version, max(0, snapshot.version - MOST_VERSIONS + 1)):
        came = commit_timestamp(actions, 0)
        if came < since_ms or any(map(brings_rows, actions)):
            break
    return came


NEWEST_ROWS, UNMERGED = "newest_rows", "unmerged"
"""Times to which the freshness limit applies: the commit of the newest rows, and the oldest unmerged record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedPart:
    """Bytes kept for one reason, and the first and last possible time of deletion in ms since the epoch."""

    bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedBytes:
    """The reasons why the bytes of a table are kept.

    - `live_bytes`: splits, segments and translations of the newest version.
    - `versions`: removed files that older versions still reference. The removed files stay until the retention of
      versions and the horizon have passed.
    - `horizon`: unneeded files in the plan of the last collection. The files stay until the horizon has passed.
    - `orphans`: files that no commit references. These files stay until the horizon has passed.
    - `tags`: live tags that keep files of older versions, with their time of expiry in ms (None means no expiry).
    - `is_partial`: True if older, unread versions may keep more files.
    """

    live_bytes: int
    versions: RetainedPart
    horizon: RetainedPart
    orphans: RetainedPart
    tags: Mapping[str, int | None]
    is_partial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWork:
    """The pending work of one step: `count` of `unit`, and its approximate size in bytes if known."""

    count: int
    unit: str
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalBacklog:
    """Pending work that the snapshot does not contain: landed files, mirrors (by missing versions) and the collector.

    `unknown` maps each step with an unknown value, or the name `held`, to the reason why the value is unknown.
    `held` contains the reasons why the bytes of the table's folder are kept. `held` is None if it was not
    measured.
    """

    ingest: PendingWork | None = None
    collect: PendingWork | None = None
    mirrors: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    held: RetainedBytes | None = None


NOT_MEASURED = ExternalBacklog()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLag:
    """The lag of an index: the versions since its watermark, and the rows without an index segment."""

    name: str
    versions: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a table at `version`. Times are in ms since the epoch, ages in ms, and sizes in bytes.

    - `newest_row_at`: the newest row by the time column.
    - `rows_came_at`: the commit time of the newest rows, or a later time. `rows_came_at` is set only if a `freshness`
      is declared.
    - `behind`: the times that are older than the freshness.
    - `pending`: the pending work by step.
    - `unknown`: for each step with an unknown value, or for `held`, the reason why the value is unknown.
    - `mirrors`: the number of missing versions of each published format.
    - `next_run`: the bytes that a scheduled compaction reads and writes, and the number of splits before and after.
    - `freed_bytes`: the bytes that the retention removes.
    - `quarantine_entries`: the number of valid objects in quarantine, among the first 1,000.
    - `regions`: the number of regions. The status reads the first 64 regions.
    - `held`: the reasons that keep the bytes of the table's folder. `held` is None if the reasons for keeping the bytes
      were not measured.
    - `rejections`: the rejected rows and changed columns of the last 24 hours. `rejections` is None if the quarantine
      has no entry and landed files cannot change columns.
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
    pending: Mapping[str, PendingWork]
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
    rejections: Rejections | None = None

    @property
    def is_rejecting(self) -> bool:
        """Whether the share of rejected rows is above the limit of the table, and the quarantine has an entry."""
        return self.rejections is not None and self.rejections.is_above and self.quarantine_entries > 0


def status(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    now_ms: int,
    freshness_ms: int | None = None,
    external: ExternalBacklog = NOT_MEASURED,
) -> Status:
    """Return the status of the table at `now_ms`.

    Args:
        store: Store of the table.
        snapshot: Newest version.
        now_ms: Current time in ms since the epoch.
        freshness_ms: Declared freshness in ms. None means that no freshness is declared.
        external: Pending work that the snapshot does not contain. By default, it is not measured.

    Cost:
        The manifests of the state and one LIST. If a freshness is declared, at most one GET for each of the 32 newest
        versions. For a keyed table, also the requests of `region.idle`. If the quarantine has entries, also one
        GET. If it has entries, or if `may_drift` is true, also the requests of `measure_rejections`.
    """
    from storage_core.write.region.idle import waiting  # also loads protobuf, which tables without regions do not need

    debts = find_pending_windows(snapshot, now_ms=now_ms, mode=Mode.POLICY)
    lags = tuple(_lags(snapshot))
    unmerged = waiting(store, snapshot) if snapshot.config.kind == "keyed" else None
    oldest = unmerged.oldest_ms if unmerged else None
    came = None if freshness_ms is None else rows_came_ms(store, snapshot, since_ms=now_ms - freshness_ms)
    ages = {NEWEST_ROWS: None if came is None else now_ms - came, UNMERGED: oldest}
    is_late = [
        name for name, age in ages.items() if freshness_ms is not None and age is not None and age > freshness_ms
    ]
    entries = _quarantine_objects(store, snapshot)
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
        pending=dict(_in_order(upkeep, external)),
        indexes=lags,
        regions=unmerged.regions if unmerged else 0,
        oldest_unmerged_ms=oldest,
        quarantine_entries=entries,
        next_run=together(each.next_run for each in debts),
        freed_bytes=sum(each.bytes for each in debts if each.task is Task.EXPIRE),
        freshness_ms=freshness_ms,
        behind=tuple(is_late),
        mirrors=external.mirrors,
        unknown=external.unknown,
        held=external.held,
        rejections=measure_rejections(store, snapshot, now_ms=now_ms) if entries or may_drift(snapshot) else None,
    )


def may_drift(snapshot: Snapshot) -> bool:
    """Return whether landed files with new fields or wider values are accepted."""
    spec = landing_of(snapshot.metadata.configuration)
    return spec is not None and spec.drift != QUARANTINE


def _lags(snapshot: Snapshot) -> Iterator[IndexLag]:
    if snapshot.config.indexes:
        from storage_core.index.catch_up import measure_backlog as index_debt  # only indexed tables need this module

        for each in snapshot.config.indexes:
            found = index_debt(snapshot, each.name)
            yield IndexLag(name=each.name, versions=snapshot.version - found.watermark, rows=found.uncovered_rows)


def _in_order(
    upkeep: Iterator[tuple[str, PendingWork]], external: ExternalBacklog
) -> Iterator[tuple[str, PendingWork]]:
    if external.ingest is not None:
        yield "ingest", external.ingest
    yield from upkeep
    if lacking := max(external.mirrors.values(), default=0):
        yield "publish", PendingWork(count=lacking, unit="versions")
    if external.collect is not None:
        yield "collect", external.collect


def _owed(
    snapshot: Snapshot, debts: Sequence[PendingWindow], lags: Sequence[IndexLag], generations: int
) -> Iterator[tuple[str, PendingWork]]:
    """Yield the pending work in the order in which the steps run. Steps without pending work are omitted."""
    if generations:
        yield "merge", PendingWork(count=generations, unit="generations")
    windows, size = Counter(each.task for each in debts), Counter[Task]()
    for each in debts:
        size[each.task] += each.bytes
    for task in (Task.EXPIRE, Task.COMPACT, Task.WAIT, Task.RESORT):
        if windows[task]:
            yield task.value, PendingWork(count=windows[task], unit="windows", bytes=size[task])
    if uncovered := sum(each.rows for each in lags):
        yield "catch_up", PendingWork(count=uncovered, unit="rows")
    newest = -1 if snapshot.checkpoint_version is None else snapshot.checkpoint_version
    # The versions after the last checkpoint are pending work only if their number reaches the checkpoint interval. A
    # scheduled run also includes a smaller number of versions.
    if (behind := snapshot.version - newest) >= max(snapshot.config.checkpoint_interval, 1):
        yield "checkpoint", PendingWork(count=behind, unit="versions")


def measure_retained(store: ObjectStore, snapshot: Snapshot, plan: Plan, *, now_ms: int) -> RetainedBytes:
    """Return the reasons why the bytes of the table are kept.

    Versions older than the retention are not read. For each group of bytes, the result contains the earliest possible
    time of deletion. The function assumes that the next collection deletes the object.

    Cost:
        One GET for the tags, and one GET for each of the 32 newest versions.
    """
    config = snapshot.config
    removed, is_partial = _removed(store, snapshot, since_ms=now_ms - config.version_retention_ms)
    waits_ms = config.version_retention_ms + config.gc_horizon_ms
    noted = defaultdict[bool, list[Candidate]](list)
    for each in plan.candidates.values():
        noted[_is_orphan(each)].append(each)
    tags = read_tags(store).live(now_ms)
    derived: list[File] = [*snapshot.segments.values(), *snapshot.translations.values()]
    return RetainedBytes(
        live_bytes=snapshot.bytes + sum(each.size for each in derived),
        versions=_kept(
            (size, at_ms + waits_ms) for key, (size, at_ms) in removed.items() if key not in plan.candidates
        ),
        horizon=_noted(noted[False], config.gc_horizon_ms),
        orphans=_noted(noted[True], config.gc_horizon_ms),
        tags={each.name: each.expires_at_ms for each in tags if each.version < snapshot.version},
        is_partial=is_partial,
    )


def _removed(store: ObjectStore, snapshot: Snapshot, *, since_ms: int) -> tuple[dict[str, tuple[int, int]], bool]:
    """Return the files that were removed since that time, with size and time.

    Also return whether some versions were not read.
    """
    found: dict[str, tuple[int, int]] = {}
    unsized: dict[str, int] = {}
    kept = {*snapshot.segments, *snapshot.translations}
    oldest = max(snapshot.version - MOST_VERSIONS + 1, 0)
    last = snapshot.version + 1
    for last, actions in versions_down(store, snapshot.version, oldest):  # noqa: B007  # the last one is used below
        at_ms = commit_timestamp(actions, 0)
        if at_ms <= since_ms:
            return found, False
        _note_sizes(actions, unsized, found)
        named = {each.path for each in actions if isinstance(each, Add)}
        removed = {each.path for each in actions if isinstance(each, Remove)} - named - found.keys()
        live = named | kept | {path for path in removed if path in snapshot.splits}
        for each in actions:
            match each:
                case Remove(path=path, size=size) if path not in found and path not in live:
                    if size is None:
                        unsized[path] = at_ms
                    else:
                        found[path] = (size, at_ms)
                case RemoveIndexSegment(path=path) | RemoveTranslation(path=path) if path not in kept:
                    unsized.setdefault(path, at_ms)
    return found, last == oldest > 0


def _note_sizes(actions: Iterable[Action], unsized: dict[str, int], found: dict[str, tuple[int, int]]) -> None:
    """Add the sizes of removed files from the commits that added the files."""
    for each in actions:
        if isinstance(each, File) and each.path in unsized:
            found[each.path] = (each.size, unsized.pop(each.path))


def _is_orphan(candidate: Candidate) -> bool:
    return candidate.reason.value.startswith("orphan_")


def _noted(candidates: Iterable[Candidate], horizon_ms: int) -> RetainedPart:
    return _kept((each.size, each.first_seen_ms + horizon_ms) for each in candidates)


def _kept(found: Iterable[tuple[int, int]]) -> RetainedPart:
    known = list(found)
    moments = [until_ms for _, until_ms in known]
    return RetainedPart(
        bytes=sum(size for size, _ in known), first_ms=min(moments, default=None), last_ms=max(moments, default=None)
    )
