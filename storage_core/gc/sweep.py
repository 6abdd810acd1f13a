"""Pass two: delete what is still unreachable, long enough, and in the plan (docs/architecture/collection.md, "Mark and
sweep").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from storage_core.errors import CommitConflict
from storage_core.formats.gc_plan import Candidate, Plan
from storage_core.formats.generation_manifest import MANIFEST_FILE
from storage_core.formats.keys import KeyKind, gc_candidates_key, parse
from storage_core.gc.boundary import advance_boundary
from storage_core.gc.mark import Unreachable, mark
from storage_core.gc.retention import named_since
from storage_core.gc.undisturbed import undisturbed
from storage_core.log.log import TransactionLog
from storage_core.objectstore.contract import PAGE_KEYS, ObjectStore

# Names that a stalled writer could take again once they are free. A shorter horizon than the table's own never applies
# to them, whatever the caller overrides, nor to the manifest of a generation, which alone tells its WAL entries.
NUMBERED_KINDS = frozenset({KeyKind.VERSION, KeyKind.REGION_MANIFEST, KeyKind.WAL_ENTRY, KeyKind.DELTA_COMMIT})

_logger = logging.getLogger(__name__)

RequireHeld = Callable[[], None]
"""Raises when the caller has lost the lease under which it collects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """How long, in ms, an object must have been unneeded and known as such: as asked for, and as configured."""

    requested_ms: int
    configured_ms: int

    def of(self, candidate: Candidate) -> int:
        """Return the horizon of a candidate."""
        numbered = _kind(candidate) in NUMBERED_KINDS or _goes_last(candidate)
        return max(self.requested_ms, self.configured_ms) if numbered else self.requested_ms


@dataclass(slots=True)
class Swept:
    """What was deleted, and what refused with which error."""

    deleted: list[Candidate] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def long_noted(plan: Plan, horizon: Horizon, *, now_ms: int) -> Iterator[Candidate]:
    """Yield the candidates that have been in the plan long enough: with any of them a sweep is worth its requests."""
    return (each for each in plan.candidates.values() if _seen_long_enough(each, horizon, now_ms))


def no_lease() -> None:
    """Hold nothing: the plan alone keeps two collectors apart."""


def sweep(
    store: ObjectStore,
    log: TransactionLog,
    plan: Plan,
    *,
    horizon: Horizon,
    now_ms: int,
    require_held: RequireHeld = no_lease,
) -> Swept:
    """Delete the candidates of the plan that are due, and return what happened. Killed anywhere, run it again.

    All roots are read again first, and versions that appear meanwhile before each batch; any read error is raised and
    stops the sweep, and so does another collector. The manifests of generations go last: only they tell which WAL
    entries are left, and a killed sweep must find them again. A batch with a failure ends the sweep after it.
    """
    marked = undisturbed(store, lambda: mark(store, log, now_ms=now_ms))
    due = [
        plan.candidates[each.key]
        for each in marked.unreachable
        if each.key in plan.candidates and _is_due(each, plan.candidates[each.key], horizon, now_ms)
    ]
    if any(_kind(each) is KeyKind.VERSION for each in due):
        advance_boundary(store, marked.roots.first_version, nonce=log.ids.uuid())
    swept = Swept()
    for batch in _batches(due):
        require_held()
        _require_own_plan(store, plan)
        named = named_since(log, marked.roots.retained.head.version)
        _delete(store, [each for each in batch if each.key not in named], swept)
        if swept.failed:
            break
    return swept


def _require_own_plan(store: ObjectStore, plan: Plan) -> None:
    """Stop when another collector has replaced the plan: commands that set a tag read that one and not ours."""
    if store.head(gc_candidates_key()).etag != plan.etag:
        raise CommitConflict(
            f"{gc_candidates_key()}: replaced by another collector, which is at work on {store.uri}; run again later",
            key=gc_candidates_key(),
        )


def _delete(store: ObjectStore, batch: Sequence[Candidate], swept: Swept) -> None:
    results = store.delete([each.key for each in batch])
    for each in batch:
        error = results.get(each.key, "the store gave no result for it")
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
    """By folders, and in each the oldest first: where a batch ends in the middle, what is left has no gap."""
    parsed = parse(candidate.key)
    version = None if parsed is None else parsed.version
    return candidate.key.rpartition("/")[0], version or 0, candidate.key


def _goes_last(candidate: Candidate) -> bool:
    return _kind(candidate) is KeyKind.GENERATION_FILE and candidate.key.endswith("/" + MANIFEST_FILE)


def _is_due(each: Unreachable, candidate: Candidate, horizon: Horizon, now_ms: int) -> bool:
    needed_ms = horizon.of(candidate)
    # Zero means now, also where two clocks disagree by some milliseconds about what now is.
    old_enough = needed_ms == 0 or now_ms - each.since_ms >= needed_ms
    return old_enough and _seen_long_enough(candidate, horizon, now_ms)


def _seen_long_enough(candidate: Candidate, horizon: Horizon, now_ms: int) -> bool:
    if _kind(candidate) is None:
        return False
    needed_ms = horizon.of(candidate)
    return needed_ms == 0 or now_ms - candidate.first_seen_ms >= needed_ms


def _kind(candidate: Candidate) -> KeyKind | None:
    parsed = parse(candidate.key)
    return None if parsed is None else parsed.kind
