"""Garbage collection of one table: the only code that deletes objects (docs/architecture/collection.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from storage_core.clock import Clock
from storage_core.errors import InvalidInput
from storage_core.formats.gc_plan import Candidate, Plan, Reason
from storage_core.formats.keys import version_key
from storage_core.gc.mark import mark
from storage_core.gc.plan import merged_candidates, note_candidates, read_plan, write_plan
from storage_core.gc.retention import Retained
from storage_core.gc.roots import Roots
from storage_core.gc.sweep import Horizon, RequireHeld, Swept, long_noted, no_lease, sweep
from storage_core.gc.undisturbed import undisturbed
from storage_core.log.conflicts.settle import require_writable
from storage_core.log.log import TransactionLog
from storage_core.log.tags import drop_expired
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import require_durable
from storage_core.region.collected import beyond, prune_collected
from storage_core.region.distributor import OFFSETS


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionReport:
    """What one run found and did. `candidates` is everything unreachable at its start, the deleted included.

    `unknown_keys` are objects in the table's folder that are not ours: never deleted, and worth a look.
    `pruned` says up to which generation a region's manifest lists none any more, where that is new: their objects
    are gone (decision 0055). `noted` are those that a former run saw, and long enough ago: it goes by them alone.
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
        """Bytes of all candidates."""
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
    """Run both passes: note what is unreachable now, then delete what has been so for the whole horizon.

    The horizon is the table's (`gc_horizon_ms`, 24 h) unless `horizon_ms` overrides it; with 0 an object goes in the
    run that first sees it. An override shortens neither the retention of versions nor the horizon of numbered objects.
    With `dry_run` nothing is written or deleted. Idempotent, and restartable wherever it was killed. Expired tags keep
    nothing, and only this removes them. Last, the manifests of regions prune generations that were gone before it.
    `require_held` raises when the caller has lost its lease: it is asked before each batch is deleted, and each
    manifest is written.

    Age is judged by the earlier of our clock and the store's own, so a clock that runs ahead deletes nothing early
    (lesson 48). Raises whatever a read raises, before anything is deleted; `CommitConflict` when two collectors meet,
    also where one finds gone what the other removed (`gc.undisturbed`).
    """
    now_ms = clock.now_ms()
    marked = undisturbed(store, lambda: mark(store, log, now_ms=now_ms))
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
    """Return once what stands for the objects that go is durable: the head, and the checkpoints that are opened."""
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
    """The offsets of the raw log that the table's log had reached by then; those of no region, where it has none."""
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
        undisturbed(store, prune)


def _horizon(requested_ms: int | None, configured_ms: int) -> Horizon:
    if requested_ms is not None and requested_ms < 0:
        raise InvalidInput(f"a horizon is at least 0 ms, found {requested_ms}", horizon_ms=requested_ms)
    return Horizon(requested_ms=configured_ms if requested_ms is None else requested_ms, configured_ms=configured_ms)
