"""Where the rows of a segment are now: by row, through every translation between its split and the live ones.

A segment numbers the rows of the split that it was built over. Translations say where these went, one after the other,
so that a segment is never written again because rows moved. A row that was dropped on the way, that a nearer segment
answers for, or whose split left the table, is nowhere (decision 0115).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from storage_core.errors import Corrupt
from storage_core.formats import keys
from storage_core.formats.bundle import Expected
from storage_core.formats.translation_map import TranslationMap, unpack
from storage_core.index import segments
from storage_core.index.coverage import Held, Nearest
from storage_core.log.actions import IndexSegment, Translation
from storage_core.log.covered import members
from storage_core.log.moves import by_input, outputs_with
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.keys import Positions
from storage_core.rows.positions import bitmap_of, positions

NOWHERE = -1

MapOf = Callable[[Translation], TranslationMap]
"""Returns the map of a translation, verified. Raises what `load_map` raises."""

PartOf = Callable[[Held], BitMap]
"""Returns the rows of its split that a segment over a part of it was built over. Raises as `segments.load` does."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where each row of a segment is: in the split `splits[split[i]]` as row `row[i]` of its file, or `NOWHERE`."""

    splits: tuple[str, ...]
    split: npt.NDArray[np.int32]
    row: npt.NDArray[np.uint32]

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return self.split.nbytes + self.row.nbytes

    @property
    def nowhere(self) -> BitMap:
        """The rows of the segment that are in no split."""
        return bitmap_of(np.flatnonzero(self.split == NOWHERE))

    def within(self, split: str) -> tuple[Positions, Positions]:
        """Return the rows of the segment that are in this split, and the row of its file that each is."""
        own = np.flatnonzero(self.split == (self.splits.index(split) if split in self.splits else len(self.splits)))
        return own, self.row[own].astype(np.int64)


def part_in(store: ObjectStore, held: Held) -> BitMap:
    """Return the rows of a split that a segment is over, which is over a part of it. One GET. Raises as `load`."""
    segment, member = held.segment, held.member
    return segments.part_rows(segments.load(store, segment)[member.file], segment, member)


def once(part_of: PartOf) -> PartOf:
    """Return a function that asks `part_of` once per part."""
    found: dict[tuple[str, str], BitMap] = {}

    def remembered(held: Held) -> BitMap:
        key = held.segment.path, held.member.split
        if key not in found:
            found[key] = part_of(held)
        return found[key]

    return remembered


def load_map(store: ObjectStore, translation: Translation) -> TranslationMap:
    """Return the map of a translation, verified against the log. One GET. Raises `Corrupt`, `NotFound`."""
    return read_map(store.get(translation.path).data, translation)


def read_map(data: bytes, translation: Translation) -> TranslationMap:
    """Return the map in the bytes of its object, verified against the log. Raises `Corrupt`."""
    where = translation.path
    parsed = keys.parse(where)
    if parsed is None or parsed.kind is not keys.KeyKind.TRANSLATION or parsed.id is None:
        raise Corrupt(f"the log names {where!r} as a translation: not the key of one", key=where)
    expected = Expected(
        where=where,
        identity=parsed.id,
        size=translation.size,
        footer_offset=translation.footerOffset,
        xxh3=translation.xxh3,
    )
    return unpack(
        data,
        expected,
        inputs=translation.inputRows,
        outputs=translation.outputRows,
        moved=translation.movedRows,
    )


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways of rows from the segments that answer for some live splits to these splits."""

    live: Collection[str]
    nearest: Nearest
    moved: Mapping[str, Sequence[Translation]]
    map_of: MapOf
    part_of: PartOf

    @staticmethod
    def of(
        live: Collection[str],
        segments: Collection[IndexSegment],
        translations: Collection[Translation],
        *,
        map_of: MapOf,
        part_of: PartOf,
    ) -> Ways:
        """Return the ways to `live`, for which no segment answers but these, by no translation but these."""
        return Ways(live, Nearest.of(segments), by_input(translations), map_of, part_of)

    def translations(self, segment: IndexSegment) -> list[Translation]:
        """Return the translations that rows of the segment may have gone through."""
        waiting, found = list(segment.covers), dict[str, Translation]()
        while waiting:
            split = waiting.pop()
            for each in () if split in self.live else self.moved.get(split, ()):
                if each.path not in found:
                    found[each.path] = each
                    waiting.extend(each.outputs)
        return list(found.values())

    def places(self, segment: IndexSegment) -> Places:
        """Return where the rows of a segment are.

        Memory is that of the maps on the way and some 30 bytes per row. Raises what `map_of` and `part_of` raise.
        """
        splits: list[str] = []
        split = np.full(segment.numRecords, NOWHERE, np.int32)
        row = np.zeros(segment.numRecords, np.uint32)
        for member in members(segment):
            if member.split not in self.live and member.split not in self.moved:
                continue
            held, rows = Held(segment, member), np.arange(member.rows)
            built = rows if member.origins is None else positions(self.part_of(held))
            for name, own, there in self._followed(member.split, member.start + rows, built, segment):
                if name not in splits:
                    splits.append(name)
                split[own], row[own] = splits.index(name), there
        return Places(tuple(splits), split, row)

    def unanswered(self, split: str, rows: int, segments: Collection[IndexSegment]) -> BitMap:
        """Return the rows of a live split of so many rows that none of the segments, which answer for it, is over."""
        covered = reduce(BitMap.__or__, (self._in(split, each) for each in segments), BitMap())
        return BitMap(range(rows)) - covered

    def _in(self, split: str, segment: IndexSegment) -> BitMap:
        return bitmap_of(self.places(segment).within(split)[1])

    def _followed(
        self, split: str, own: Positions, rows: Positions, segment: IndexSegment
    ) -> Iterator[tuple[str, Positions, Positions]]:
        """Yield live splits, rows of the segment in each, and where; `rows` of `split` are the segment's rows `own`."""
        waiting = [(split, own, rows)]
        while waiting:
            name, own, rows = waiting.pop()
            left = self._left(name, rows, segment)
            own, rows = own[left], rows[left]
            if name in self.live:
                yield name, own, rows
                continue
            for translation in self.moved.get(name, ()) if len(rows) else ():
                waiting.extend(self._moved(translation, name, own, rows))

    def _left(self, split: str, rows: Positions, segment: IndexSegment) -> Positions:
        """The places of those of the rows that no segment nearer to the live splits answers for."""
        whole = self.nearest.whole.get(split)
        if whole is not None:
            return np.arange(len(rows) if whole.segment.path == segment.path else 0)
        taken = BitMap()
        for part in self.nearest.parts.get(split, ()):
            if part.segment.path == segment.path:
                break
            taken |= self.part_of(part)
        return np.flatnonzero(~np.isin(rows, positions(taken))) if taken else np.arange(len(rows))

    def _moved(
        self, translation: Translation, split: str, own: Positions, rows: Positions
    ) -> Iterator[tuple[str, Positions, Positions]]:
        if not outputs_with(translation, split):
            return
        moved, positions = self.map_of(translation).places(translation.inputs.index(split), rows)
        ends = np.cumsum(translation.outputRows, dtype=np.int64)
        output = np.searchsorted(ends, positions, side="right")
        for number in np.unique(output).tolist():
            there = output == number
            first = int(ends[number]) - translation.outputRows[number]
            yield translation.outputs[number], own[moved[there]], positions[there] - first
