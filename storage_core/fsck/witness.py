"""Versions that left no file, told by splits: one says on which version it was planned, so that version was there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.formats.keys import KeyKind
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.report import DAMAGE
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import ObjectFile
from storage_core.split.lineage import read_origin
from storage_core.split.metadata import require_sealed


@dataclass(frozen=True, slots=True)
class Witness:
    """The newest version that any split was planned on, and that split."""

    version: int
    path: str


def newest_witness(store: ObjectStore, inventory: Inventory, named: Collection[str]) -> Witness | None:
    """Return what the splits that nothing in the log names say of the log; None where they say nothing.

    A few ranged GETs of each one's footer. One that cannot be read says nothing.
    """
    found: Witness | None = None
    for parsed in inventory.of(KeyKind.SPLIT):
        if parsed.key in named:
            continue
        planned = _planned_version(store, parsed.key, inventory.objects[parsed.key].size)
        if planned is not None and (found is None or planned > found.version):
            found = Witness(planned, parsed.key)
    return found


def lost_versions(newest: int, witness: Witness | None) -> range:
    """Return the versions behind the newest known one that a split was planned on or after."""
    return range(newest + 1, newest + 1 if witness is None else max(newest, witness.version) + 1)


def _planned_version(store: ObjectStore, path: str, size: int) -> int | None:
    try:
        raw = pq.read_metadata(ObjectFile(store, path, size)).metadata or {}
        metadata = {key.decode(): value.decode() for key, value in raw.items()}
        require_sealed(metadata, path)
        origin = read_origin(metadata, path)
    except (*DAMAGE, pa.ArrowException, OSError, UnicodeDecodeError):
        return None
    # More than the log can count to is no version, whatever the file says.
    return None if origin is None or not 0 <= origin.planned_version < 2**63 else origin.planned_version
