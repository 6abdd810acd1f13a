"""One segment in place of several: their rows numbered anew, by where these are now (decision 0122)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from typing import assert_never

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import InvalidInput
from storage_core.ids import Ids
from storage_core.index import bitmap_merged, segments, text_merged, vector
from storage_core.index.coverage import Held
from storage_core.index.covering import Covered, Part, Renumbered
from storage_core.index.damage import damaged
from storage_core.index.places import Ways, load_map, once, part_in
from storage_core.index.segment_merge_work import SegmentMerge
from storage_core.log.actions import IndexSegment
from storage_core.log.covered import GONE, members
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.keys import Positions
from storage_core.rows.positions import bitmap_of, positions
from storage_core.rows.schema import from_schema_string


def execute(store: ObjectStore, work: SegmentMerge, *, ids: Ids) -> IndexSegment:
    """Store the segment that takes the place of those of the item, and return its action. One PUT.

    Requests: one GET per segment and translation on the way; of vectors one per split, and of segments only those over
    parts. Memory: several times the files of all segments. Raises `Corrupt` and `NotFound` for what is damaged or gone.
    """
    found = _Merging(store, work)
    covered, files = found.covered(), {}
    schema = from_schema_string(work.schema_string)
    match work.definition.kind:
        case "fulltext":
            gone, parts = found.with_gone(covered)
            files = text_merged.merge(parts, work.definition)
            covered += [Covered(f"{work.segments[0].path}/{GONE}", gone)] if gone else []
        case "bitmap":
            rows = sum(each.count for each in covered)
            files = bitmap_merged.merge(found.numbered(covered), rows, work.definition, schema)
        case "vector":
            adds = {add.path: add for add in work.splits}
            tables = [
                segments.indexed_rows(store, adds[each.split], work.definition, schema, rows=each.rows_in_split)
                for each in covered
            ]
            files = segments.build_rows(pa.concat_tables(tables), work.definition, start=found.start())
        case "primary_key":
            raise InvalidInput(f"segments of {work.definition.name!r} stay one per split", index=work.definition.name)
        case _:
            assert_never(work.definition.kind)
    merged = segments.write_merged(store, files, definition=work.definition, covered=covered, ids=ids)
    return vector.trained_again(merged) if work.again else merged


class _Merging:
    """The rows of the segments of an item, and where they are."""

    def __init__(self, store: ObjectStore, work: SegmentMerge) -> None:
        self._work = work
        self._files = cache(lambda place: segments.load(store, work.segments[place]))
        places_of = {segment.path: place for place, segment in enumerate(work.segments)}

        def part_of(held: Held) -> BitMap:
            place = places_of.get(held.segment.path)
            if place is None:
                return part_in(store, held)
            return segments.part_rows(self._files(place)[held.member.file], held.segment, held.member)

        ways = Ways.of(
            {add.path for add in work.splits},
            (*work.segments, *work.beside),
            work.translations,
            map_of=cache(lambda each: load_map(store, each)),
            part_of=once(part_of),
        )
        self._places = [ways.places(each) for each in work.segments]

    def covered(self) -> list[Covered]:
        """Return the splits that the merged segment is over, with rows in each. Raises `Corrupt`."""
        found = list[Covered]()
        for add in self._work.splits:
            rows, origins = self._rows_in(add.path), self._work.origins.get(add.path)
            part, count = None if origins is None else Part(rows, origins), add.numRecords or 0
            if origins is None and len(rows) != count:
                first = self._work.segments[0].path
                raise damaged(add.path, f"segments over all its {count} rows, as {first}, lead to {len(rows)} of them")
            if rows:
                found.append(Covered(add.path, count, part))
        return found

    def numbered(self, covered: Sequence[Covered]) -> list[Renumbered]:
        """Return the files of each segment, and the new number of each of its rows, -1 for those in no split."""
        starts = np.cumsum([0, *(each.count for each in covered)])
        found = list[Renumbered]()
        for place, (segment, places) in enumerate(zip(self._work.segments, self._places, strict=True)):
            numbers = np.full(segment.numRecords, -1)
            for start, each in zip(starts.tolist(), covered, strict=False):
                if each.split in places.splits:
                    own, there = places.within(each.split)
                    numbers[own] = start + (there if each.part is None else _ranks(each.part.rows, there))
            names = {each.file for each in members(segment)}
            files = {name: data for name, data in self._files(place).items() if name not in names}
            found.append((files, numbers))
        return found

    def with_gone(self, covered: Sequence[Covered]) -> tuple[int, list[Renumbered]]:
        """Return `numbered` with numbers behind all others for rows in no split, and how many these are."""
        first = gone = sum(each.count for each in covered)
        found = self.numbered(covered)
        for _, numbers in found:
            nowhere = np.flatnonzero(numbers < 0)
            numbers[nowhere] = gone + np.arange(len(nowhere))
            gone += len(nowhere)
        return gone - first, found

    def start(self) -> vector.Codebook | None:
        """Return the codebook from which training goes on, if it does."""
        if not self._work.again:
            return None
        where = self._work.segments[0].path
        return vector.Codebook.from_bytes(self._files(0)[vector.CODEBOOK], where=where)

    def _rows_in(self, split: str) -> BitMap:
        rows = (places.within(split)[1] for places in self._places if split in places.splits)
        return reduce(BitMap.__or__, (bitmap_of(each) for each in rows), BitMap())


def _ranks(rows: BitMap, wanted: Positions) -> Positions:
    found: Positions = np.searchsorted(positions(rows), wanted)
    return found
