"""Which rows of a live split may match, by segments of bitmaps over other splits, or over parts of it.

A segment tells which of its own rows may; maps of translations say where those are now (decision 0115).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np
from pyroaring import BitMap

from storage_core.cache.pieces import CachedPieces, Piece
from storage_core.formats.translation_map import TranslationMap
from storage_core.index.coverage import Answering, Held
from storage_core.index.places import PartOf, Places, Ways, once, read_map
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.log.covered import members
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.rows.positions import bitmap_of, positions
from storage_core.split.kept_values import KeptValues

_AT_ONCE: Final = 4
_FOLLOWING: Final = Lock()
"""Following takes some 30 bytes per row of a segment."""


@dataclass(frozen=True, slots=True)
class Left:
    """The `rows` of a split that may match; `is_told` where a segment answers for every row of it."""

    rows: BitMap
    is_told: bool


@dataclass(slots=True)
class Moves:
    """The ways to a live split; `requests` and `read_bytes` are what their maps took, if nothing was on disk."""

    store: ObjectStore
    add: Add
    answering: Answering
    kept: KeptValues
    cached: CachedPieces
    requests: int = 0
    read_bytes: int = 0

    def left(self, matching: Mapping[str, BitMap | None], part_of: PartOf) -> Left:
        """Return the rows of the split that may match, given those of each segment by its path; None for all of them.

        `part_of` returns the rows that a segment over a part was built over. A row that no segment answers for may
        match. One GET per translation that is not kept. Raises `Corrupt` and `NotFound` for one that is damaged or
        gone, and what `part_of` raises.
        """
        translations = self.answering.translations
        whole = [
            (segment, member)
            for segment in self.answering.segments
            for member in members(segment)
            if member.split == self.add.path and member.origins is None
        ]
        if whole:  # then it is the only one
            [(segment, member)] = whole
            met = matching[segment.path]
            every = BitMap(range(member.start, member.start + member.rows))
            return Left((every if met is None else met & every).shift(-member.start), is_told=True)
        maps = dict(zip(translations, all_of(self._map, translations, _AT_ONCE), strict=True))
        parts, leading = once(part_of), {self.add.path, *(split for each in translations for split in each.inputs)}
        for segment in self.answering.segments:  # before the lock is taken
            for member in members(segment):
                if member.origins is not None and member.split in leading:
                    parts(Held(segment, member))
        ways = Ways.of(
            {self.add.path},
            self.answering.segments,
            translations,
            map_of=maps.__getitem__,
            part_of=parts,
        )
        rows = self.add.numRecords or 0
        may, told = np.ones(rows, np.bool_), 0
        for segment in self.answering.segments:
            places = self._places(segment, ways)
            if self.add.path not in places.splits:
                continue
            own, there = places.within(self.add.path)
            told += len(own)
            met = matching[segment.path]
            if met is not None:
                of_segment = np.zeros(segment.numRecords, np.bool_)
                of_segment[positions(met)] = True
                may[there] = of_segment[own]
        return Left(bitmap_of(np.flatnonzero(may)), told == rows)

    def _places(self, segment: IndexSegment, ways: Ways) -> Places:
        beside = [each.path for each in self.answering.segments] + [each.path for each in self.answering.translations]
        name = (segment.path, segment.xxh3, "places in", self.add.path, *beside)
        with _FOLLOWING:
            return self.kept.made(name, Places, lambda: ways.places(segment), lambda each: each.size_bytes)

    def _map(self, translation: Translation) -> TranslationMap:
        def fetched() -> bytes:
            self.requests += 1
            self.read_bytes += translation.size
            return self.store.get(translation.path).data

        def read() -> TranslationMap:
            where = (self.store.uri, translation.path, translation.xxh3)
            return read_map(
                self.cached.made(*where, Piece(0, translation.size, translation.xxh3), fetch=fetched), translation
            )

        name = map_name(translation)
        return self.kept.made(name, TranslationMap, read, lambda each: each.size_bytes)


def map_name(translation: Translation) -> tuple[object, ...]:
    """Return the name under which the map of a translation is kept."""
    return translation.path, translation.xxh3, "map"
