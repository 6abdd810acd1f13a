"""Versions that left no file, told by splits: one says on which version it was planned, so that version was there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.formats.keys import KeyKind
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.report import DAMAGE
from storage_core.history.renumbered import renumbered_up_to
from storage_core.log.actions import Metadata
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import ObjectFile
from storage_core.split.lineage import Origin, read_origin
from storage_core.split.metadata import require_checksum
from storage_core.split.packed_metadata import entries_of
from storage_core.system_errors import raise_refused


@dataclass(frozen=True, slots=True)
class VersionEvidence:
    """The newest version that any split was planned on, and that split."""

    version: int
    path: str


def newest_evidence(
    store: ObjectStore, inventory: Inventory, named: Collection[str], metadata: Metadata | None
) -> VersionEvidence | None:
    """Return what the splits that nothing in the log names say of the log; None where they say nothing.

    One of another table than `metadata` says nothing, nor does one that was planned before a repair numbered the
    versions anew, or that cannot be read. A few ranged GETs of each one's footer.
    """
    table_id, after = (None, -1) if metadata is None else (metadata.id, renumbered_up_to(metadata.configuration))
    unnamed = [parsed.key for parsed in inventory.of(KeyKind.SPLIT) if parsed.key not in named]
    found = newest_planned(store, inventory, unnamed, table_id)
    return None if found is None or found.version <= after else found


def newest_planned(
    store: ObjectStore, inventory: Inventory, paths: Iterable[str], table_id: str | None
) -> VersionEvidence | None:
    """Return which of the splits of a table, or of any, was planned on the newest version; None where none says.

    A few ranged GETs of each one's footer.
    """
    found: VersionEvidence | None = None
    for path in paths:
        origin = _origin(store, path, inventory.objects[path].size)
        # More than the log can count to is no version, whatever the file says.
        if origin is None or table_id not in (None, origin.table_id) or not 0 <= origin.planned_version < 2**63:
            continue
        if found is None or origin.planned_version > found.version:
            found = VersionEvidence(origin.planned_version, path)
    return found


def lost_versions(newest: int, evidence: VersionEvidence | None) -> range:
    """Return the versions behind the newest known one that a split was planned on or after."""
    return range(newest + 1, newest + 1 if evidence is None else max(newest, evidence.version) + 1)


def _origin(store: ObjectStore, path: str, size: int) -> Origin | None:
    try:
        metadata = entries_of(pq.read_metadata(ObjectFile(store, path, size)), path)
        require_checksum(metadata, path)
        return read_origin(metadata, path)
    except (*DAMAGE, pa.ArrowException, MemoryError, OSError, UnicodeDecodeError) as error:
        raise_refused(path, error)
        return None
