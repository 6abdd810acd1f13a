"""Which rows of the base a merge may supersede, by the primary-key index: asked where that costs less (decision 0123).

A merge reads the key columns of every split that may have one of its keys. Of few records over many splits most of
that is in vain, and the index says of which; of many records most of it is needed, and the index is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from storage_core.formats.key_hash import Hashes, key_hashes
from storage_core.index.primary_key_reading import KeyReading, candidates, index_of
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region.merge_work import MergeWork
from storage_core.rows.keys import Positions
from storage_core.split import row_groups
from storage_core.split.kept_values import NOTHING
from storage_core.split.pieces import REQUEST_COST_BYTES
from storage_core.split.read import is_small


def with_index(snapshot: Snapshot, works: Sequence[MergeWork]) -> list[MergeWork]:
    """Return the works with what answers for the splits of their base that are not small. No request."""
    index = index_of(snapshot) if works else None
    if index is None:
        return list(works)
    answering_of = index[1]

    def indexed(work: MergeWork) -> MergeWork:
        found = {add.path: answering_of(add) for add in work.base if add.numRecords and not is_small(add)}
        return replace(work, answering={path: each for path, each in found.items() if each is not None})

    return [indexed(work) for work in works]


@dataclass(frozen=True, slots=True)
class IndexedBase:
    """The base of a merge, whose folded records have these hashes, distinct and ascending."""

    store: ObjectStore
    work: MergeWork
    hashes: Hashes

    @staticmethod
    def of(store: ObjectStore, work: MergeWork, folded: pa.Table) -> IndexedBase:
        """Return it. No request."""
        hashes = np.unique(key_hashes(folded, work.primary_key)) if work.answering else np.zeros(0, np.uint64)
        return IndexedBase(store, work, hashes)

    def rows(self, split: Add) -> Positions | None:
        """Return the places of the only rows that may have a key of a record, ascending; None where that is not known.

        Requests: those of `candidates`, where that costs less than reading the keys.
        """
        found = self.work.answering.get(split.path)
        if found is None:
            return None
        return candidates(KeyReading(self.store, split, found, NOTHING), self.hashes, self._is_dear)[0]

    def _is_dear(self, reading: KeyReading) -> bool:
        """Whether asking, and reading the keys of the row groups that then are left, costs more than reading all."""
        split, columns = reading.add, len(self.work.context.schema.names)
        groups = row_groups.groups_about(split.numRecords or 1, split.size)
        keys = groups * REQUEST_COST_BYTES + split.size * len(self.work.primary_key) / columns
        asked, size = reading.cost(self.hashes)
        hits = len(self.hashes) / len(self.work.base)  # each key has one row at most
        left = min(1.0, hits) * REQUEST_COST_BYTES + (1 - math.exp(-hits / groups)) * keys
        return asked * REQUEST_COST_BYTES + size + left >= REQUEST_COST_BYTES + keys
