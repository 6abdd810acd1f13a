"""What the primary-key index tells a lookup of the splits that may hold a key: asked where that costs less (0123).

What it tells is by hashes, so the rows that it names are compared with the key. What it does not cover, and what a
damaged segment would tell, is looked for in the key columns of the split, as without an index.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.formats.key_hash import Hashes, key_hashes
from storage_core.index.coverage import AnsweringOf
from storage_core.index.primary_key_reading import UNCOVERED, KeyReading, candidates, index_of
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.pruning import PruneStep
from storage_core.read.verified import Verified
from storage_core.rows import sort_order
from storage_core.rows.keys import Positions
from storage_core.settings.index import IndexDefinition
from storage_core.split import row_groups
from storage_core.split.kept_values import KeptValues
from storage_core.split.pieces import REQUEST_COST_BYTES
from storage_core.wording import counted

_NAME: Final = ("key index",)


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """The `places` of the rows that may have one of the keys, ascending; None where it was not asked, and `why`."""

    places: Positions | None = None
    why: str = ""
    requests: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Tally:
    """What the index told of the splits of a lookup: those that it left out, and why it was not asked of others."""

    name: str
    splits: int = 0
    left_out_bytes: int = 0
    requests: int = 0
    bytes: int = 0
    not_asked: Counter[str] = field(default_factory=Counter)

    def add(self, add: Add, answer: KeyAnswer) -> bool:
        """Note what was told of a split, and return whether it is left out."""
        self.requests += answer.requests
        self.bytes += answer.bytes
        self.not_asked.update([answer.why] if answer.why else [])
        if answer.places is None or len(answer.places):
            return False
        self.splits += 1
        self.left_out_bytes += add.size
        return True

    @property
    def step(self) -> PruneStep:
        """It as a step of a plan."""
        notes = [f"not asked about {counted(number, 'split')}: {why}" for why, number in self.not_asked.items()]
        return PruneStep(f"primary-key index {self.name}", self.splits, self.left_out_bytes, note="; ".join(notes))


@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """The index of a snapshot, and whether row groups are bounded by a column of the key."""

    snapshot: Snapshot
    definition: IndexDefinition
    answering_of: AnsweringOf
    is_sorted: bool


@dataclass(frozen=True, slots=True)
class IndexedKeys:
    """The primary-key index of a snapshot, for a lookup of the `wanted` keys in about so many `splits`."""

    store: ObjectStore
    index: _Index
    wanted: pa.Table
    hashes: Hashes
    splits: int
    verified: Verified
    kept: KeptValues

    @staticmethod
    def of(
        store: ObjectStore, snapshot: Snapshot, wanted: pa.Table, *, splits: int, verified: Verified, kept: KeptValues
    ) -> IndexedKeys | None:
        """Return it; None where the table has none with a segment, or nothing is looked for. No request."""
        index = _index(snapshot, kept) if snapshot.segments and splits else None
        if index is None:
            return None
        hashes = np.unique(key_hashes(wanted, wanted.column_names))
        return IndexedKeys(store, index, wanted, hashes, splits, verified, kept)

    def tally(self) -> Tally:
        """Return the tally of a lookup, which nothing was told yet."""
        return Tally(self.index.definition.name)

    def of_split(self, add: Add) -> KeyAnswer:
        """Return what the index tells of a split. Requests: those of `KeyReading.places`, where it is asked."""
        found = self.index.answering_of(add) if add.numRecords else None
        if found is None:
            return KeyAnswer(why=UNCOVERED)
        reading = KeyReading(self.store, add, found, self.kept)
        places, why = candidates(reading, self.hashes, self._is_dear)
        return KeyAnswer(places, why, reading.requests, reading.read_bytes)

    def _is_dear(self, reading: KeyReading) -> bool:
        requests, size = self._without(reading.add)
        if not requests and not size:
            return True
        asked, bytes_ = reading.cost(self.hashes)
        # A split that has the key is read after all: its footer first.
        has_footer = self.verified.footers.held(reading.add) is not None
        footers = 0 if has_footer else min(1.0, self.wanted.num_rows / self.splits)
        if self.store.local_path(reading.add.path) is not None:  # nobody waits for a request
            return bytes_ + footers * size >= size
        return (asked + footers) * REQUEST_COST_BYTES + bytes_ >= requests * REQUEST_COST_BYTES + size

    def _without(self, add: Add) -> tuple[int, float]:
        """The requests and bytes of finding the keys in the split itself, before a row is read."""
        from storage_core.split import key_places  # and Parquet
        from storage_core.split.read import is_small

        groups = row_groups.groups_about(add.numRecords or 1, add.size)
        missing = key_places.missing(add, self.wanted, self.kept)
        if missing is None:
            missing = min(groups, self.wanted.num_rows) if self.index.is_sorted else groups
        if not missing:
            return 0, 0
        if self.store.local_path(add.path) is not None and not self.verified.is_known(add):
            return 1, add.size
        if is_small(add):
            return 1, add.size
        share = len(self.wanted.column_names) / len(self.index.snapshot.schema.names)
        has_footer = self.verified.footers.held(add) is not None
        return missing + (not has_footer), add.size * share * missing / groups


def _index(snapshot: Snapshot, kept: KeptValues) -> _Index | None:
    found = kept.get(_NAME)
    if isinstance(found, _Index) and found.snapshot is snapshot:
        return found
    index = index_of(snapshot)
    if index is None:
        return None
    order = sort_order.bind(snapshot.config, snapshot.schema).columns
    made = _Index(snapshot, *index, is_sorted=bool(order) and order[0].name in snapshot.config.primary_key)
    kept.keep(_NAME, made, 64 * len(snapshot.segments))
    return made
