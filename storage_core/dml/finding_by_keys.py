"""Which live rows of which splits have one of some keys, read by the bounds of splits and row groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.dml.finding import Candidates
from storage_core.dml.parts import Part, used
from storage_core.formats.key_hash import Hashes, key_hashes, within
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.key_splits import bounds_of_keys
from storage_core.read.verified import Verified
from storage_core.rows.codes import Mask
from storage_core.rows.columns import stored_rows
from storage_core.rows.key_ranges import with_room
from storage_core.rows.keys import Positions, key_codes
from storage_core.rows.positions import bitmap_of
from storage_core.split.group_bounds import admitting
from storage_core.split.opened import OpenSplit


@dataclass(frozen=True, eq=False)
class ByKeys:
    """Rows that have one of these `keys`, of which each occurs once: columns of the table, without nulls."""

    store: ObjectStore
    keys: pa.Table
    verified: Verified = field(default_factory=Verified)

    def candidates(self, snapshot: Snapshot) -> Candidates:
        """See `Finder`: by the bounds of the key columns."""
        files = snapshot.splits.table()
        ranges = bounds_of_keys(files, self._fields(snapshot))
        places = np.flatnonzero(with_room(ranges, self.keys))
        return Candidates(snapshot.splits.records_at(files, places))

    def rows(self, snapshot: Snapshot, splits: Sequence[Add], hidden: Mapping[str, BitMap]) -> dict[str, BitMap]:
        """See `Finder`."""
        found: dict[str, BitMap] = {}
        footers = self.verified.footers.of_a_read()
        fields, stored = self._fields(snapshot), stored_rows(self.keys, snapshot.schema)

        def groups(split: OpenSplit) -> Sequence[int]:
            return admitting(split.bounds, split.row_groups, stored)

        def places(part: Part) -> tuple[str, Positions]:
            return part.split.path, part.first + self._places(part.rows, part.live(hidden[part.split.path]))

        read = used(places, self.store, splits, fields, whole=snapshot.schema, groups=groups, footers=footers)
        with closing(read) as each_part:
            for path, own in each_part:
                if len(own):
                    found[path] = found.get(path, BitMap()) | bitmap_of(own)
        return found

    def _fields(self, snapshot: Snapshot) -> pa.Schema:
        return pa.schema([snapshot.schema.field(name) for name in self.keys.column_names])

    def _places(self, held: pa.Table, mask: Mask) -> Positions:
        """Which of these rows of a split, of those of a mask, have one of the keys."""
        names = self.keys.column_names
        for name in names:
            mask &= held.column(name).is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(mask)
        rows = held.take(pa.array(places))
        hashes = key_hashes(rows, names)
        alike = within(np.unique(hashes), self._by_hash.hashes)
        if not len(alike):
            return alike
        keys = self.keys.take(pa.array(self._by_hash.order[alike]))
        wanted, own = key_codes([keys, rows], names)
        return places[np.isin(own, wanted)]

    @cached_property
    def _by_hash(self) -> _ByHash:
        hashes = key_hashes(self.keys, self.keys.column_names)
        order = np.argsort(hashes)
        return _ByHash(hashes[order], order)


@dataclass(frozen=True, slots=True)
class _ByHash:
    """Hashes of keys, ascending, and where each key is."""

    hashes: Hashes
    order: Positions
