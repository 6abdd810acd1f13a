"""What a person asked to be forgotten, noted in the collector's plan: quarantine entries and chunks of a raw log.

Neither has anything that removes it: an entry is a person's, and a chunk stays for the retention of its raw log. So the
plan is where the request survives, by key alone, which tells nothing of the rows. A collector keeps such a candidate as
long as the object is there, and deletes it by its usual rules, but for the retention (decision 0143).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from storage_core.errors import CommitConflict
from storage_core.formats.gc_plan import Candidate, Plan, Reason
from storage_core.formats.raw_keys import ChunkKey, parse
from storage_core.gc.plan import read_plan, write_plan
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import exists

_ATTEMPTS: Final = 5


def forgotten_keys(plans: Iterable[Plan]) -> frozenset[str]:
    """Return the keys that these plans note as forgotten. No request."""
    return frozenset(each.key for plan in plans for each in plan.candidates.values() if each.reason is Reason.FORGOTTEN)


def forgotten_chunks(plans: Iterable[Plan]) -> Mapping[str, int]:
    """Return by writer the number of the last chunk that these plans note as forgotten. No request."""
    found: dict[str, int] = {}
    for key in map(parse, forgotten_keys(plans)):
        if isinstance(key, ChunkKey):
            found[key.writer] = max(key.number, found.get(key.writer, 0))
    return found


def note_forgotten(store: ObjectStore, keys: Sequence[str], *, ids: Ids, now_ms: int) -> None:
    """Return once the plan notes these objects, those that are there. What is noted keeps the time when it was.

    One GET, and where something is new a HEAD of each and a PUT. A collector that is at work meanwhile stops. Raises
    `CommitConflict` when others replaced the plan each time, `CommitUnknown`; noting again is right.
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
