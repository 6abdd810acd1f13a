"""The collector's plan, `_gc/candidates.json`: what pass one found, so that pass two deletes nothing it never saw.

One frozen list with the moment each object was first seen unreachable (lesson 43). It is replaced by compare-and-swap
and carries a counter and a nonce, so that two states of it never look alike (lesson 09).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from storage_core.errors import Corrupt, NotFound, Unsupported
from storage_core.formats.keys import gc_candidates_key
from storage_core.gc.mark import Reason, Unreachable
from storage_core.gc.replace import replace_state
from storage_core.objectstore.contract import ObjectStore

FORMAT_VERSION = 1

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An object that may go: why, its size in bytes, when it was first seen unreachable (ms), since which version."""

    key: str
    reason: Reason
    size: int
    first_seen_ms: int
    since_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan as stored. `etag` is None for the empty plan of a table that was never collected."""

    candidates: Mapping[str, Candidate]
    counter: int
    etag: str | None


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
        return replace(parse_plan(blob.data), etag=blob.etag)
    except Corrupt as error:
        _logger.warning("%s; it starts anew, and so do all horizons", error.found)
        return Plan(candidates={}, counter=0, etag=blob.etag)


def parse_plan(data: bytes) -> Plan:
    """Return the plan in `data`, without an ETag. Raises `Corrupt`, and `Unsupported` for that of a newer release."""
    try:
        body = json.loads(data)
        version, counter = int(body["format"]), int(body["counter"])
        if version > FORMAT_VERSION:
            raise Unsupported(
                f"{gc_candidates_key()}: plan of format {version}, this release reads {FORMAT_VERSION}; upgrade"
            )
        candidates = [_candidate(each) for each in body["candidates"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{gc_candidates_key()}: a damaged plan: {error!r}", key=gc_candidates_key()) from error
    return Plan(candidates={each.key: each for each in candidates}, counter=counter, etag=None)


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


def write_plan(store: ObjectStore, plan: Plan, candidates: Mapping[str, Candidate], *, nonce: str) -> Plan:
    """Replace `plan` by one with these candidates and return it. One PUT.

    Raises `CommitConflict` when another collector replaced it first, `CommitUnknown` when the store did not say; in
    both cases nothing was deleted, and the next run finds what there is.
    """
    body = {
        "format": FORMAT_VERSION,
        "counter": plan.counter + 1,
        "nonce": nonce,
        "candidates": [_to_json(candidates[key]) for key in sorted(candidates)],
    }
    data = json.dumps(body, separators=(",", ":")).encode()
    etag = replace_state(store, gc_candidates_key(), data, etag=plan.etag)
    return Plan(candidates=dict(candidates), counter=plan.counter + 1, etag=etag)


def _to_json(candidate: Candidate) -> dict[str, object]:
    return {
        "key": candidate.key,
        "reason": candidate.reason.value,
        "size": candidate.size,
        "firstSeenMs": candidate.first_seen_ms,
        "sinceVersion": candidate.since_version,
    }


def _candidate(body: Mapping[str, Any]) -> Candidate:
    return Candidate(
        key=str(body["key"]),
        reason=Reason(body["reason"]),
        size=int(body["size"]),
        first_seen_ms=int(body["firstSeenMs"]),
        since_version=int(body["sinceVersion"]),
    )
