"""The collector's plan, `_gc/candidates.json`: what pass one found, so that pass two deletes nothing it never saw.

One frozen list with the moment each object was first seen unreachable (lesson 43). It is replaced by compare-and-swap
and carries a counter and a nonce, so that two states of it never look alike (lesson 09).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.gc_plan import Candidate, Plan, decode, encode
from storage_core.formats.keys import gc_candidates_key
from storage_core.gc.replace import replace_state
from storage_core.objectstore.contract import ObjectStore

if TYPE_CHECKING:
    from storage_core.gc.mark import Unreachable
    from storage_core.ids import Ids

_STORE_TICK_MS: Final = 1000
"""S3 stamps objects with whole seconds."""

_logger = logging.getLogger(__name__)


def read_plan(store: ObjectStore) -> Plan:
    """Return the stored plan. One GET.

    A plan that cannot be parsed is empty: every object then starts its horizon again, which deletes nothing too
    early. Raises `Unsupported` for the plan of a newer release.
    """
    try:
        blob = store.get(gc_candidates_key())
    except NotFound:
        return Plan(candidates={}, counter=0, etag=None)
    try:
        return replace(decode(blob.data), etag=blob.etag)
    except Corrupt as error:
        _logger.warning("%s; it starts anew, and so do all horizons", error.found)
        return Plan(candidates={}, counter=0, etag=blob.etag)


def merged_candidates(plan: Plan, unreachable: Iterable[Unreachable], *, now_ms: int) -> dict[str, Candidate]:
    """Return the candidates of now: known ones keep their first sight, what is reachable or gone is dropped."""
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
    """Replace `plan` by one with these candidates; return it, and what time it is by the slower of two clocks.

    The store stamps the plan, and that is its clock. A first sight after this stamp comes from a clock that was ahead,
    of this process or of another: it is set to the stamp, else nothing would be deleted for as long as the clock ran
    ahead. A PUT and a HEAD, and another PUT for such a first sight. Raises what `write_plan` raises.
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
    """Replace `plan` by one with these candidates and return it. One PUT.

    Raises `CommitConflict` when another collector replaced it first, `CommitUnknown` when the store did not say; in
    both cases nothing was deleted, and the next run finds what there is.
    """
    data = encode(candidates.values(), counter=plan.counter + 1, nonce=nonce)
    etag = replace_state(store, gc_candidates_key(), data, etag=plan.etag)
    return Plan(candidates=dict(candidates), counter=plan.counter + 1, etag=etag)
