"""Small segments of an index become one, so that a search asks few (docs/architecture/indexes.md, decision 0122).

A merged segment is over the live splits in which rows of the old ones are: over all of a split that they answer for
alone, else over the part. So rows are numbered anew, translations behind them are needed no more, and nothing is
tokenised. Segments are alike when the logarithms of their rows to the base `FACTOR` are; so many of one tier become one
of the next, and each row is written once per tier.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import Corrupt
from storage_core.ids import Ids
from storage_core.index import bitmap_merged, segments, text_merged
from storage_core.index.coverage import Coverage, Held
from storage_core.index.native_errors import REBUILD
from storage_core.index.places import Ways, load_map, once, part_in
from storage_core.index.segments import Covered, Part
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.log.covered import GONE, members
from storage_core.log.encoding.action_json import read_actions, write_actions
from storage_core.log.moves import by_input, leads_to
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.schema import from_schema_string
from storage_core.rows.vectors import is_vector
from storage_core.settings.index import IndexDefinition

FACTOR = 8
"""So many segments of a tier at least become one, of the next tier."""

MOST_BYTES = 256 * 2**20
"""A segment that is larger is not merged any more, nor are more than these at once: a task has them in memory."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWork:
    """Segments that become one over `splits`, with all that a task needs; `schema_string` is the table's schema.

    `origins` are, for each split of which they answer for a part, the splits that its rows came from. `beside` are the
    other segments that answer for rows of these splits, and `translations` lead to them.
    """

    definition: IndexDefinition
    segments: tuple[IndexSegment, ...]
    splits: tuple[Add, ...]
    origins: Mapping[str, tuple[str, ...]]
    schema_string: str
    beside: tuple[IndexSegment, ...] = ()
    translations: tuple[Translation, ...] = ()

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal item."""
        body = {
            "index": [self.definition.key, self.definition.to_text()],
            "segments": write_actions(self.segments),
            "splits": write_actions(self.splits),
            "origins": {split: list(found) for split, found in self.origins.items()},
            "schema": self.schema_string,
            "beside": write_actions(self.beside),
            "translations": write_actions(self.translations),
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> MergeWork:
        """Return the item that `to_json` wrote."""
        body, where = json.loads(text), "segment merge work item"
        return MergeWork(
            definition=IndexDefinition.from_text(*body["index"]),
            segments=read_actions(body["segments"], IndexSegment, where),
            splits=read_actions(body["splits"], Add, where),
            origins={split: tuple(found) for split, found in body["origins"].items()},
            schema_string=body["schema"],
            beside=read_actions(body["beside"], IndexSegment, where),
            translations=read_actions(body["translations"], Translation, where),
        )


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge that was executed: the segment in place of those of the item."""

    work: MergeWork
    segment: IndexSegment


def plan(snapshot: Snapshot, covered: Coverage, *, most_bytes: int = MOST_BYTES) -> tuple[MergeWork, ...]:
    """Return the merges after which no tier has `FACTOR` segments that may be merged, small ones first. No request."""
    tiers: dict[int, list[IndexSegment]] = defaultdict(list)
    sizes = {path: _bytes(segment, covered.definition, snapshot) for path, segment in covered.segments.items()}
    for path, segment in covered.segments.items():
        if segment.numRecords and 2 * sizes[path] <= most_bytes:
            tiers[tier(segment.numRecords)].append(segment)
    full = [own for _, own in sorted(tiers.items()) if len(own) >= FACTOR]
    groups = [_separable(covered, group) for own in full for group in _groups(own, sizes, most_bytes)]
    return tuple(_work(snapshot, covered, group) for group in groups if len(group) > 1)


def tier(rows: int) -> int:
    """Return the whole part of the logarithm of a number of rows to the base `FACTOR`."""
    return (rows.bit_length() - 1) // (FACTOR.bit_length() - 1)


def execute(store: ObjectStore, work: MergeWork, *, ids: Ids) -> IndexSegment:
    """Store the segment that takes the place of those of the item, and return its action. One PUT.

    One GET per segment and per translation on the way to the splits; of vectors one per split, and no segment but those
    over parts. Memory: the files of all segments some times. Raises `Corrupt` and `NotFound` for what is damaged or
    gone.
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
            files = segments.build_rows(pa.concat_tables(tables), work.definition)
        case _:
            assert_never(work.definition.kind)
    return segments.write_merged(store, files, definition=work.definition, covered=covered, ids=ids)


class _Merging:
    """The rows of the segments of an item, and where they are."""

    def __init__(self, store: ObjectStore, work: MergeWork) -> None:
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
                what = f"segments over all {count} rows of {add.path} lead to {len(rows)} of them"
                raise Corrupt(f"{what}, {self._work.segments[0].path} among them", advice=REBUILD, key=add.path)
            if rows:
                found.append(Covered(add.path, count, part))
        return found

    def numbered(self, covered: Sequence[Covered]) -> list[tuple[dict[str, memoryview], Numbers]]:
        """Return the files of each segment, and the new number of each of its rows, -1 for those in no split."""
        starts = np.cumsum([0, *(each.count for each in covered)])
        found = []
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

    def with_gone(self, covered: Sequence[Covered]) -> tuple[int, list[tuple[dict[str, memoryview], Numbers]]]:
        """Return `numbered` with numbers behind all others for rows in no split, and how many these are."""
        first = gone = sum(each.count for each in covered)
        found = self.numbered(covered)
        for _, numbers in found:
            nowhere = np.flatnonzero(numbers < 0)
            numbers[nowhere] = gone + np.arange(len(nowhere))
            gone += len(nowhere)
        return gone - first, found

    def _rows_in(self, split: str) -> BitMap:
        rows = (places.within(split)[1] for places in self._places if split in places.splits)
        return reduce(BitMap.__or__, (BitMap(each.astype(np.uint32)) for each in rows), BitMap())


def _ranks(rows: BitMap, wanted: Numbers) -> Numbers:
    found: Numbers = np.searchsorted(np.array(rows.to_array(), np.int64), wanted)
    return found


def _bytes(segment: IndexSegment, definition: IndexDefinition, snapshot: Snapshot) -> int:
    """What a segment takes while it is merged: vectors are encoded anew from those of the table."""
    kinds = [snapshot.schema.field(column).type for column in definition.columns]
    numbers = sum(int(kind.list_size) for kind in kinds if is_vector(kind))
    return max(segment.size, 4 * numbers * segment.numRecords)


def _groups(own: Sequence[IndexSegment], sizes: Mapping[str, int], most_bytes: int) -> Iterator[list[IndexSegment]]:
    """The segments of a tier, divided where they are too large together; the smallest first."""
    group, size = list[IndexSegment](), 0
    for each in sorted(own, key=lambda each: (each.numRecords, each.path)):
        if group and size + sizes[each.path] > most_bytes:
            yield group
            group, size = [], 0
        group.append(each)
        size += sizes[each.path]
    yield group


def _separable(covered: Coverage, group: Sequence[IndexSegment]) -> list[IndexSegment]:
    """Those of the segments whose rows can be told from all others by where they came from.

    A part of a split is known by the splits that its rows came from. Where rows of one of these are answered for by
    another segment as well, or by none, they would be taken for rows of the part.
    """
    kept = {each.path: each for each in group}
    while True:
        mixed = set[str]()
        for split, paths in covered.answers.items():
            own = kept.keys() & set(paths)
            others = set(covered.origins.get(split, ())).union(
                *(covered.atoms[split, path] for path in paths if path not in kept)
            )
            mixed |= {path for path in own if covered.atoms[split, path] & others}
        if not mixed:
            return list(kept.values())
        for path in mixed:
            del kept[path]


def _work(snapshot: Snapshot, covered: Coverage, group: Sequence[IndexSegment]) -> MergeWork:
    paths = {each.path for each in group}
    splits = [split for split, found in sorted(covered.answers.items()) if paths & set(found)]
    whole = [split for split in splits if split not in covered.origins and paths.issuperset(covered.answers[split])]
    beside = {path for split in splits for path in covered.answers[split]} - paths
    both = [*group, *(covered.segments[path] for path in sorted(beside))]
    ways = leads_to([split for each in both for split in each.covers], (), by_input(covered.translations.values()))[1]
    return MergeWork(
        definition=covered.definition,
        segments=tuple(group),
        splits=tuple(snapshot.splits[split] for split in splits),
        origins={split: _atoms(covered, split, paths) for split in splits if split not in whole},
        schema_string=snapshot.metadata.schemaString,
        beside=tuple(both[len(group) :]),
        translations=tuple(covered.translations[path] for path in sorted(ways)),
    )


def _atoms(covered: Coverage, split: str, paths: Collection[str]) -> tuple[str, ...]:
    own = (covered.atoms[split, path] for path in covered.answers[split] if path in paths)
    return tuple(sorted(frozenset[str]().union(*own)))
