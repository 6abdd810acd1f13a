"""The roots: everything that may still be read, gathered before anything is called garbage (design page 06).

Roots come from the log and from region manifests, never from a listing: a listing that misses a page can hide garbage,
not make any (lesson 49). The only listed roots are checkpoint states, which are derived; the two that matter, of the
base and of the head, are named by the log itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_core.formats.keys import KeyKind, ParsedKey, state_key
from storage_core.gc.regions import RegionRoots, region_roots
from storage_core.gc.retention import Retained, retained
from storage_core.log.checkpoint import manifest_keys, read_state
from storage_core.log.log import TransactionLog
from storage_core.objectstore.contract import ObjectStore

STATES_KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """What must stay. `keys` are splits, segments, retained states and the manifests of all states that exist.

    Version files are kept from `retained.base` on, objects of a region by its `RegionRoots`, by id.
    """

    retained: Retained
    keys: frozenset[str]
    regions: Mapping[str, RegionRoots]


def roots(store: ObjectStore, log: TransactionLog, listed: Iterable[ParsedKey], *, now_ms: int) -> Roots:
    """Return the roots at `now_ms`; `listed` tells which states and regions exist.

    Requests: see `retained` and `region_roots`, and one GET per state. Any read error is raised: no roots, no sweep.
    """
    kept = retained(log, now_ms=now_ms)
    states: set[int] = set()
    region_ids = set(kept.head.merged_generations)
    for parsed in listed:
        if parsed.kind is KeyKind.STATE and parsed.version is not None:
            states.add(parsed.version)
        elif parsed.region is not None:
            region_ids.add(parsed.region)
    states |= {each.checkpoint_version for each in (kept.base, kept.head) if each.checkpoint_version is not None}
    regions = {region: region_roots(store, region, kept) for region in sorted(region_ids)}
    return Roots(
        retained=kept,
        keys=kept.keys | _retained_states(states, kept) | _manifests(store, states),
        regions={region: found for region, found in regions.items() if found is not None},
    )


def _retained_states(states: set[int], kept: Retained) -> frozenset[str]:
    newest = sorted(states)[-STATES_KEPT:]
    return frozenset(state_key(version) for version in states if version >= kept.base.version or version in newest)


def _manifests(store: ObjectStore, states: set[int]) -> frozenset[str]:
    # Also of states that are about to go: as long as a state exists, it can be opened whole.
    return frozenset(key for version in sorted(states) for key in manifest_keys(read_state(store, version)))
