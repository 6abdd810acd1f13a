"""Garbage collection of one table. Only this code deletes objects of a table (docs/architecture/collection.md).

The first pass marks the objects that no root references, and adds these objects to the collector's plan,
`_gc/candidates.json`. The second pass deletes only objects that have been in the plan for the whole horizon.

The plan is one list. A new plan replaces the list by compare-and-swap. For each object, the list contains the time at
which the object was first unreachable (lesson 43). The plan also contains a counter and a nonce, so two states of the
plan always differ (lesson 09).

The plan also contains objects that a person asked to erase: quarantine entries and chunks of a raw log. No other rule
removes these objects. The plan contains only keys of objects. The keys of objects contain no values of rows. A
candidate of this kind stays in the plan while the object exists. The collector deletes the object by its usual rules,
but ignores the retention (decision 0030).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Final, TypeVar, assert_never

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import CommitConflict, CommitUnknown, Corrupt, InvalidInput, NotFound, SnapshotExpired
from storage_core.data.formats.documents import Candidate, Plan, decode_gc_plan, encode_gc_plan
from storage_core.data.formats.keys import ChunkKey, ParsedKey, gc_boundary_key, gc_candidates_key, parse, version_key
from storage_core.data.formats.keys import parse_raw as parse_raw_key
from storage_core.data.formats.kinds import KINDS, REUSED, Keeper, KeyKind, Reason
from storage_core.data.formats.region_manifest import MANIFEST_FILE
from storage_core.log.conflicts import require_writable
from storage_core.log.listing import encode_boundary, read_boundary
from storage_core.log.log import TransactionLog, drop_expired
from storage_core.maintain.roots import Retained, Roots, named_since, roots
from storage_core.maintain.table_objects import Listing, list_table
from storage_core.store.contract import (
    PAGE_KEYS,
    Committed,
    Conflict,
    ObjectStore,
    OutcomeUnknown,
    exists,
    require_durable,
    unchanged,
)
from storage_core.write.region.manifest import beyond, prune_collected
from storage_core.write.region.router import OFFSETS

_STORE_TICK_MS: Final = 1000
"""The resolution of timestamps in ms. S3 stamps objects with whole seconds."""

_logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 5


def replace_state(store: ObjectStore, key: str, data: bytes, *, etag: str | None) -> str:
    """Replace the object that still has `etag`, and return its new ETag. `etag` is None if the object must not exist.

    Raises:
        CommitConflict: Another collector was first.
        CommitUnknown: The store did not report the outcome.

    Cost:
        One PUT.
    """
    result = store.put(key, data, unchanged(etag))
    match result:
        case Committed(new):
            return new
        case Conflict():
            raise CommitConflict(
                f"{key}: another collector is running on {store.uri}. Run garbage collection again later", key=key
            )
        case OutcomeUnknown(reason):
            raise CommitUnknown(
                f"{key}: the outcome of the write is unknown ({reason}). Run the collector again", key=key
            )
        case _:
            assert_never(result)


def read_plan(store: ObjectStore) -> Plan:
    """Return the stored plan. One GET.

    A plan that cannot be parsed counts as empty. With an empty plan, every unreachable object waits for the whole
    horizon again, so nothing is deleted too early. Raises `Unsupported` for the plan of a newer release.
    """
    try:
        blob = store.get(gc_candidates_key())
    except NotFound:
        return Plan(candidates={}, counter=0, etag=None)
    try:
        return replace(decode_gc_plan(blob.data), etag=blob.etag)
    except Corrupt as error:
        _logger.warning("%s. The plan starts again, and so do all horizons", error.found)
        return Plan(candidates={}, counter=0, etag=blob.etag)


def merged_candidates(plan: Plan, unreachable: Iterable[Unreachable], *, now_ms: int) -> dict[str, Candidate]:
    """Return one candidate for deletion for each unreachable object.

    A candidate that was already in `plan` keeps the time at which it was first unreachable. The result does not contain
    objects that are reachable or deleted.
    """
    found: dict[str, Candidate] = {}
    for each in unreachable:
        known = plan.candidates.get(each.key)
        found[each.key] = Candidate(
            key=each.key,
            reason=each.reason,
            size=each.size,
            first_seen_ms=known.first_seen_ms if known else now_ms,
            since_version=known.since_version if known else each.since_version,
        )
    return found


def note_candidates(
    store: ObjectStore, plan: Plan, candidates: Mapping[str, Candidate], *, ids: Ids, now_ms: int
) -> tuple[Plan, int]:
    """Replace `plan` with a plan that has these candidates. Return the new plan, and the time at which it was stored.

    The returned time is the earlier of `now_ms` and the store's timestamp of the new plan. If a candidate was first
    unreachable after this timestamp, the clock that measured the time was ahead. The function then replaces the time at
    which the candidate was first unreachable with the store's timestamp. Otherwise the candidate would not be deleted
    until the store's clock reaches the wrong time.

    Cost:
        A PUT and a HEAD, and a second PUT if a first time is reduced. Raises the errors of `write_plan`.
    """
    noted = write_plan(store, plan, candidates, nonce=ids.uuid())
    store_ms = store.head(gc_candidates_key()).last_modified_ms
    latest_ms = store_ms + _STORE_TICK_MS
    if any(each.first_seen_ms > latest_ms for each in candidates.values()):
        seen = {
            key: replace(each, first_seen_ms=min(each.first_seen_ms, latest_ms)) for key, each in candidates.items()
        }
        noted = write_plan(store, noted, seen, nonce=ids.uuid())
    return noted, min(now_ms, store_ms)


def write_plan(store: ObjectStore, plan: Plan, candidates: Mapping[str, Candidate], *, nonce: str) -> Plan:
    """Replace `plan` with a plan that has these candidates, and return it. One PUT.

    Raises:
        CommitConflict: Another collector replaced the plan first. Nothing was deleted.
        CommitUnknown: The store did not report the outcome. Nothing was deleted. The next run reads the current plan.
    """
    data = encode_gc_plan(candidates.values(), counter=plan.counter + 1, nonce=nonce)
    etag = replace_state(store, gc_candidates_key(), data, etag=plan.etag)
    return Plan(candidates=dict(candidates), counter=plan.counter + 1, etag=etag)


def require_own_plan(store: ObjectStore, plan: Plan) -> None:
    """Raise `CommitConflict` if another collector has replaced the plan. One HEAD.

    A process that sets a tag reads the stored plan. So the collector may execute only the stored plan.
    """
    if store.head(gc_candidates_key()).etag != plan.etag:
        raise CommitConflict(
            f"{gc_candidates_key()}: replaced by another collector, which is running on {store.uri}. Run "
            "garbage collection again later",
            key=gc_candidates_key(),
        )


def delete_objects(store: ObjectStore, keys: Sequence[str]) -> list[str | None]:
    """Delete objects. Return the error of each object, or None if it is deleted. One request per 1,000 objects."""
    results = store.delete(keys)
    return [results.get(key, "the store gave no result for this object") for key in keys]


def advance_boundary(store: ObjectStore, first: int, *, nonce: str) -> None:
    """Raise the boundary to `first` unless it is already at `first` or higher. One GET and at most one PUT.

    The boundary never moves back. The boundary moves before a version file below the new boundary is deleted. Only a
    writer that was stalled for a long time creates a version below the boundary. The table already had a version with
    the number of the late version, so readers ignore the late version.

    Raises:
        CommitConflict: Another collector moved the boundary. Nothing may be deleted.
        CommitUnknown: The store did not report the outcome. Nothing may be deleted.
    """
    current, etag = read_boundary(store)
    if current >= first:
        return
    replace_state(store, gc_boundary_key(), encode_boundary(first, nonce=nonce), etag=etag)


def planned_for_deletion(store: ObjectStore, keys: Collection[str]) -> frozenset[str]:
    """Return the keys that are in the collector's plan. One GET.

    A sweep deletes only objects in its plan. The sweep writes the plan, waits for the horizon, and then reads the
    roots: the entries that keep objects. Some operations need an object that may be in the plan, for example the
    creation of a tag. An operation that needs the object therefore first writes a root that references the object. Then
    the operation reads the plan. If the plan does not contain the object, there are two cases. Either the object is
    already deleted, or every sweep that plans it later reads the new root and keeps the object.
    """
    candidates = read_plan(store).candidates
    return frozenset(key for key in keys if key in candidates)


def forgotten_keys(plans: Iterable[Plan]) -> frozenset[str]:
    """Return the keys that these plans mark as forgotten. No request."""
    return frozenset(each.key for plan in plans for each in plan.candidates.values() if each.reason is Reason.FORGOTTEN)


def forgotten_chunks(plans: Iterable[Plan]) -> Mapping[str, int]:
    """Return, for each writer, the number of the last chunk that these plans mark as forgotten. No request."""
    found: dict[str, int] = {}
    for key in map(parse_raw_key, forgotten_keys(plans)):
        if isinstance(key, ChunkKey):
            found[key.writer] = max(key.number, found.get(key.writer, 0))
    return found


def note_forgotten(store: ObjectStore, keys: Sequence[str], *, ids: Ids, now_ms: int) -> None:
    """Add existing objects to the plan as forgotten. An object already marked as forgotten keeps its earlier time.

    A concurrent collector stops, because the plan has changed.

    Raises:
        CommitConflict: Other processes replaced the plan at every attempt.
        CommitUnknown: The store did not report the outcome. It is safe to call the function again.

    Cost:
        One GET. For new objects also one HEAD each and a PUT.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        plan = read_plan(store)
        new = [key for key in keys if key not in forgotten_keys([plan]) and exists(store, key)]
        if not new:
            return
        noted = {key: _candidate(store, key, now_ms) for key in new}
        try:
            write_plan(store, plan, {**plan.candidates, **noted}, nonce=ids.uuid())
        except CommitConflict:
            if attempt == _ATTEMPTS:
                raise
        else:
            return


def _candidate(store: ObjectStore, key: str, now_ms: int) -> Candidate:
    info = store.head(key)
    return Candidate(
        key=key,
        reason=Reason.FORGOTTEN,
        size=info.size,
        first_seen_ms=max(now_ms, info.last_modified_ms),
        since_version=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """An object that no root references.

    The fields are the reason, the size in bytes, and the version and time (ms) of the object's removal.

    The time comes from the commit that removed the object, never from the file's age (lesson 40). If no commit removed
    the object, the time is the last modification by the store's clock.
    """

    key: str
    kind: KeyKind
    reason: Reason
    size: int
    since_version: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """The roots, the unreachable objects, the unknown keys, and the newest modification time in the listing."""

    roots: Roots
    unreachable: tuple[Unreachable, ...]
    unknown_keys: tuple[str, ...]
    newest_modification_ms: int


def mark(store: ObjectStore, log: TransactionLog, *, now_ms: int) -> Marked:
    """Return the objects that are unreachable at `now_ms`, in key order. Writes nothing.

    The listing is read before the roots. The roots therefore contain objects that are committed between these two
    reads. Every read error is raised.

    Cost:
        One LIST per 1,000 objects, and the requests of `roots`. One GET of the plan if there is quarantine.
    """
    listing = list_table(store)
    found = roots(store, log, listing, now_ms=now_ms)
    forgotten = forgotten_keys([read_plan(store)]) if listing.of(KeyKind.QUARANTINE) else frozenset[str]()
    return Marked(
        roots=found,
        unreachable=tuple(_unreachable(found, listing, forgotten, now_ms=now_ms)),
        unknown_keys=tuple(listing.unknown),
        newest_modification_ms=max((info.last_modified_ms for info in listing.objects.values()), default=0),
    )


def _unreachable(found: Roots, listing: Listing, forgotten: frozenset[str], *, now_ms: int) -> Iterator[Unreachable]:
    region_cutoff_ms = now_ms - found.retained.head.config.version_retention_ms
    for key in sorted(listing.parsed):
        parsed, info = listing.parsed[key], listing.objects[key]
        reason = _reason(found, parsed, old=info.last_modified_ms < region_cutoff_ms)
        if parsed.kind is KeyKind.QUARANTINE and key in forgotten:
            reason = Reason.FORGOTTEN
        if reason is None:
            continue
        removal = found.retained.removals.get(key)
        yield Unreachable(
            key=key,
            kind=parsed.kind,
            reason=reason,
            size=info.size,
            since_version=removal.version if removal else found.retained.head.version,
            since_ms=removal.timestamp_ms if removal else info.last_modified_ms,
        )


def _reason(found: Roots, parsed: ParsedKey, *, old: bool) -> Reason | None:
    kind = KINDS[parsed.kind]
    if _is_kept(found, parsed, kind.keeper, old=old):
        return None
    region = found.regions.get(parsed.region or "")
    was_merged = region is not None and parsed.directory in region.merged_directories
    was_removed = was_merged or parsed.key in found.retained.removals
    return kind.removed if kind.removed is not None and was_removed else kind.unneeded


def _is_kept(found: Roots, parsed: ParsedKey, keeper: Keeper, *, old: bool) -> bool:
    match keeper:
        case Keeper.NOTHING:
            return False
        case Keeper.ALWAYS | Keeper.RAW_LOG:
            return True
        case Keeper.NUMBER:
            return _number(parsed.version) >= found.first[parsed.kind]
        case Keeper.REFERENCE:
            return parsed.key in found.keys
        case Keeper.REGION:
            return _is_kept_by_region(found, parsed, old=old)
        case _:
            assert_never(keeper)


def _is_kept_by_region(found: Roots, parsed: ParsedKey, *, old: bool) -> bool:
    region = found.regions.get(parsed.region or "")
    if region is None:
        return True
    if parsed.kind is KeyKind.REGION_MANIFEST:
        return not old or _number(parsed.version) >= region.manifest_version
    if parsed.kind is KeyKind.WAL_ENTRY:
        return parsed.entry not in region.merged_entries
    return parsed.directory in region.unmerged_directories


def _number(value: int | None) -> int:
    # A parsed key of a numbered kind has a number. An object without a number counts as the newest and is kept.
    return 2**64 if value is None else value


MISSING = (NotFound, Corrupt, SnapshotExpired)
"""The errors that `look` may raise when an object is missing."""

LOOKS = 5
"""The largest number of attempts to read a table that another collector is changing."""

_T = TypeVar("_T")


RequireHeld = Callable[[], None]
"""A function that raises an error if the caller has lost the lease of the collection."""


def retry_if_collected(store: ObjectStore, look: Callable[[], _T]) -> _T:
    """Return the result of `look`, and retry if a concurrent collector deleted objects.

    Two collectors may overlap, or a paused collector may have lost its lease. A collector can then read the name of a
    deleted object. The name of an object that another collector deleted is not damage. A second call of `look`
    distinguishes a deleted object from damage. If only an outdated view of the table needed the deleted object, the
    second call of `look` does not read the object. If the table really needs the object, the second call also fails,
    because the object is still missing. The caller deletes nothing in either case.

    `look` must be idempotent. The function calls `look` again only after an error.

    Raises:
        NotFound, Corrupt, SnapshotExpired: Two calls in a row raised the same error.
        CommitConflict: A later call succeeded, or all `LOOKS` calls raised different errors. Another collector is
            changing the objects.
    """
    try:
        return look()
    except MISSING as error:
        first = last = error
    for _ in range(1, LOOKS):
        try:
            look()
        except MISSING as error:
            if str(error) == str(last):
                raise
            last = error
        else:
            break
    raise CommitConflict(
        f"{first.found}. A later check found the object: another collection of {store.uri} removed it meanwhile. Run "
        "it again",
        **first.context,
    ) from first


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The requested horizon and the configured horizon.

    A horizon is the minimum time in ms that an unneeded object stays in the plan.
    """

    requested_ms: int
    configured_ms: int

    def of(self, candidate: Candidate) -> int:
        """Return the horizon of a candidate, in ms."""
        # A horizon that the caller requests never shortens the horizon of objects whose names can be used again. A
        # requested horizon also does not shorten the horizon of a generation's manifest. Only this manifest contains
        # the names of the generation's WAL entries.
        numbered = _kind(candidate) in REUSED or _goes_last(candidate)
        return max(self.requested_ms, self.configured_ms) if numbered else self.requested_ms


@dataclass(slots=True)
class Swept:
    """The deleted candidates, and the errors of objects that could not be deleted."""

    deleted: list[Candidate] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def long_noted(plan: Plan, horizon: Horizon, *, now_ms: int) -> Iterator[Candidate]:
    """Yield the candidates that have been in the plan long enough. If the function yields no candidate, no sweep is
    needed.
    """
    return (each for each in plan.candidates.values() if _seen_long_enough(each, horizon, now_ms))


def no_lease() -> None:
    """Do nothing. Without a lease, the plan alone prevents conflicts between two collectors."""


def sweep(
    store: ObjectStore,
    log: TransactionLog,
    plan: Plan,
    *,
    horizon: Horizon,
    now_ms: int,
    require_held: RequireHeld = no_lease,
) -> Swept:
    """Delete the candidates that have been in the plan long enough, and return the outcome.

    A killed sweep can be run again.

    First, all roots are read again. Before each batch, new versions are read. A read error or another collector stops
    the sweep. Manifests of generations are deleted last. Only a manifest contains the list of remaining WAL entries.
    After a killed sweep, the next run needs this list. If a deletion fails, the sweep ends after the current batch.
    """
    marked = retry_if_collected(store, lambda: mark(store, log, now_ms=now_ms))
    due = [
        plan.candidates[each.key]
        for each in marked.unreachable
        if each.key in plan.candidates and _is_due(each, plan.candidates[each.key], horizon, now_ms)
    ]
    if any(_kind(each) is KeyKind.VERSION for each in due):
        advance_boundary(store, marked.roots.first[KeyKind.VERSION], nonce=log.ids.uuid())
    swept = Swept()
    for batch in _batches(due):
        require_held()
        require_own_plan(store, plan)
        named = named_since(log, marked.roots.retained.head.version)
        _delete(store, [each for each in batch if each.key not in named], swept)
        if swept.failed:
            break
    return swept


def _delete(store: ObjectStore, batch: Sequence[Candidate], swept: Swept) -> None:
    for each, error in zip(batch, delete_objects(store, [each.key for each in batch]), strict=True):
        if error is None:
            swept.deleted.append(each)
        else:
            swept.failed[each.key] = error
            _logger.warning("%s could not be deleted and stays in the plan: %s", each.key, error)
    _logger.info("collected %d of %d objects of %s", len(batch) - len(swept.failed), len(batch), store.uri)


def _batches(due: Iterable[Candidate]) -> Iterator[list[Candidate]]:
    for _, stage in groupby(sorted(due, key=lambda each: (_goes_last(each), *_place(each))), key=_goes_last):
        members = list(stage)
        for start in range(0, len(members), PAGE_KEYS):
            yield members[start : start + PAGE_KEYS]


def _place(candidate: Candidate) -> tuple[str, int, str]:
    """Return the sort key: by folder, then oldest first, so that a stopped deletion leaves no gap in the versions."""
    parsed = parse(candidate.key)
    version = None if parsed is None else parsed.version
    return candidate.key.rpartition("/")[0], version or 0, candidate.key


def _goes_last(candidate: Candidate) -> bool:
    return _kind(candidate) is KeyKind.GENERATION_FILE and candidate.key.endswith("/" + MANIFEST_FILE)


def has_passed(since_ms: int, needed_ms: int, now_ms: int) -> bool:
    """Return whether this time has passed. A time of zero always counts as passed, even if two clocks differ."""
    return needed_ms == 0 or now_ms - since_ms >= needed_ms


def _is_due(each: Unreachable, candidate: Candidate, horizon: Horizon, now_ms: int) -> bool:
    old_enough = has_passed(each.since_ms, horizon.of(candidate), now_ms)
    return old_enough and _seen_long_enough(candidate, horizon, now_ms)


def _seen_long_enough(candidate: Candidate, horizon: Horizon, now_ms: int) -> bool:
    return _kind(candidate) is not None and has_passed(candidate.first_seen_ms, horizon.of(candidate), now_ms)


def _kind(candidate: Candidate) -> KeyKind | None:
    parsed = parse(candidate.key)
    return None if parsed is None else parsed.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionReport:
    """The outcome of one run.

    `candidates` contains all objects that were unreachable at the start, including deleted objects.

    - `unknown_keys`: objects in the table's folder that Tidemark did not write. The collector never deletes these
      objects. Inspect them.
    - `pruned`: by region, the last generation that the run removed from the manifest. The objects of the generations up
      to this number are deleted (docs/architecture/collection.md).
    - `noted`: candidates that have been in the plan long enough. The prediction of a run uses only these candidates.
    """

    candidates: tuple[Candidate, ...]
    deleted: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    unknown_keys: tuple[str, ...] = ()
    pruned: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    noted: tuple[Candidate, ...] = ()
    horizon_ms: int
    dry_run: bool

    @property
    def candidate_bytes(self) -> int:
        """Size of all candidates in bytes."""
        return sum(each.size for each in self.candidates)

    @property
    def by_reason(self) -> dict[Reason, int]:
        """Number of candidates per reason, in the order of the reasons."""
        counts = {reason: sum(each.reason is reason for each in self.candidates) for reason in Reason}
        return {reason: count for reason, count in counts.items() if count}


def collect(
    store: ObjectStore,
    log: TransactionLog,
    *,
    clock: Clock,
    horizon_ms: int | None = None,
    dry_run: bool = False,
    require_held: RequireHeld = no_lease,
) -> CollectionReport:
    """Run both passes. Add unreachable objects to the plan, then delete objects planned at least one horizon ago.

    The run is idempotent, and can be repeated after a kill at any point. Expired tags keep no object, and only this
    function removes expired tags. At the end, the run updates the manifests of regions. The run removes from the
    manifests all generations that were deleted before the run.

    This machine's clock and the store's clock may show different times. The run measures the age of an object with the
    clock that shows the earlier time. A clock that is ahead therefore deletes nothing too early (lesson 48).

    A read error is raised before anything is deleted.

    Args:
        store: Store of the table.
        log: Transaction log of the table.
        clock: Clock of this machine.
        horizon_ms: Horizon in ms. With 0, an object is deleted in the run that first sees it. This value does not
            shorten the retention of versions or the horizon of numbered objects. None means the table's `gc_horizon_ms`
            (24 h).
        dry_run: True writes and deletes nothing.
        require_held: Function that is called before each batch is deleted and before each manifest is written. The
            function raises if the caller has lost its lease.

    Raises:
        CommitConflict: Two collectors ran at the same time (see `retry_if_collected`).
    """
    now_ms = clock.now_ms()
    marked = retry_if_collected(store, lambda: mark(store, log, now_ms=now_ms))
    if not dry_run:
        require_writable(marked.roots.retained.head)
    horizon = _horizon(horizon_ms, marked.roots.retained.head.config.gc_horizon_ms)
    stored = read_plan(store)
    seen_ms = max(now_ms, marked.newest_modification_ms)
    candidates = merged_candidates(stored, marked.unreachable, now_ms=seen_ms)
    swept = Swept()
    if not dry_run and (candidates or stored.candidates or marked.roots.retained.expired):
        _require_durable(store, marked.roots.retained)
        swept = _plan_and_sweep(
            store, log, stored, candidates, horizon=horizon, now_ms=now_ms, require_held=require_held
        )
    pruned = {each.region: each.collected_generation for each in marked.roots.regions.values()}
    pruned = {region: generation for region, generation in pruned.items() if generation}
    reached = _reached(marked.roots, before_ms=now_ms - max(horizon.requested_ms, horizon.configured_ms))
    if not dry_run:
        regions = marked.roots.regions.values()
        passed = [each.region for each in regions if beyond(each.distributed, reached) != each.distributed]
        todo = dict.fromkeys(passed, 0) | pruned
        _prune(store, log, todo, reached=reached, clock=clock, require_held=require_held)
    return CollectionReport(
        candidates=tuple(candidates[key] for key in sorted(candidates)),
        deleted=tuple(each.key for each in swept.deleted),
        failed=swept.failed,
        unknown_keys=marked.unknown_keys,
        pruned=pruned,
        bytes=sum(each.size for each in swept.deleted),
        noted=tuple(long_noted(stored, horizon, now_ms=now_ms)),
        horizon_ms=horizon.requested_ms,
        dry_run=dry_run,
    )


def _require_durable(store: ObjectStore, retained: Retained) -> None:
    """Wait until the head and the retained checkpoints are durable. They replace the objects that will be deleted."""
    for key in (version_key(retained.head.version), *(each.key for each in retained.checkpoints)):
        require_durable(store, key, advice="run the collector again")


def _plan_and_sweep(
    store: ObjectStore,
    log: TransactionLog,
    stored: Plan,
    candidates: dict[str, Candidate],
    *,
    horizon: Horizon,
    now_ms: int,
    require_held: RequireHeld,
) -> Swept:
    plan, now_ms = note_candidates(store, stored, candidates, ids=log.ids, now_ms=now_ms)
    drop_expired(log, now_ms=now_ms)
    if not any(long_noted(plan, horizon, now_ms=now_ms)):
        return Swept()
    swept = sweep(store, log, plan, horizon=horizon, now_ms=now_ms, require_held=require_held)
    if swept.deleted:
        deleted = {each.key for each in swept.deleted}
        rest = {key: each for key, each in plan.candidates.items() if key not in deleted}
        write_plan(store, plan, rest, nonce=log.ids.uuid())
    return swept


def _reached(found: Roots, *, before_ms: int) -> dict[str, int]:
    """Return the raw log offsets of the table at that time, or no offsets if no region needs them."""
    if not any(each.distributed for each in found.regions.values()):
        return {}
    recorded = found.retained.head.txns.every(OFFSETS)
    return {
        app_id.removeprefix(f"{OFFSETS}:"): txn.version
        for app_id, txn in recorded.items()
        if txn.lastUpdated is not None and txn.lastUpdated <= before_ms
    }


def _prune(
    store: ObjectStore,
    log: TransactionLog,
    pruned: Mapping[str, int],
    *,
    reached: Mapping[str, int],
    clock: Clock,
    require_held: RequireHeld,
) -> None:
    for region, generation in pruned.items():
        require_held()
        writer_id = log.ids.uuid()
        prune = partial(prune_collected, store, region, generation, reached=reached, clock=clock, writer_id=writer_id)
        retry_if_collected(store, prune)


def _horizon(requested_ms: int | None, configured_ms: int) -> Horizon:
    if requested_ms is not None and requested_ms < 0:
        raise InvalidInput(f"a horizon is at least 0 ms, found {requested_ms}. Give 0 or more", horizon_ms=requested_ms)
    return Horizon(requested_ms=configured_ms if requested_ms is None else requested_ms, configured_ms=configured_ms)
