"""What the collector is about to delete, for those who want to keep an old version (docs/architecture/collection.md).

A sweep deletes what its plan names and nothing else, it writes the plan before it reads the roots, and it waits for the
horizon in between. So what keeps an object (a tag, a restore) reads the plan afterwards: an object that is not in
it is either gone already, or seen to be kept by every sweep that could delete it.
"""

from __future__ import annotations

from collections.abc import Collection

from storage_core.gc.plan import read_plan
from storage_core.objectstore.contract import ObjectStore


def planned_for_deletion(store: ObjectStore, keys: Collection[str]) -> frozenset[str]:
    """Return which of the keys are in the collector's plan. One GET."""
    candidates = read_plan(store).candidates
    return frozenset(key for key in keys if key in candidates)
