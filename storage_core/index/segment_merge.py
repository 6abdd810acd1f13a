"""Merges of several segments into one, for every kind of index (decision 0019).

- Full text: tantivy merges its files, and no text is read again. Only the separate file of the field `_row` contains
  the row of a document. The file of the field `_row` is rewritten with the row numbers of the merged segment. All other
  files stay unchanged.
- Bitmaps: the merge changes the row numbers in the bitmaps, and does not read the rows of the splits.
- Embeddings: the embeddings are read from the splits and encoded again.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.clock import Ids
from storage_core.base.errors import InvalidInput
from storage_core.base.process import scratch_folder
from storage_core.data.rows.keys import Positions, bitmap_of, positions
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.rows.vectors import is_vector
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import bitmap, damage, segments, text_files, vector
from storage_core.index.damage import damaged
from storage_core.index.fulltext import tantivy_schema
from storage_core.index.row_positions import RowTranslations, load_map, once, read_covered_rows
from storage_core.index.segments import Coverage, CoveredRows, CoveredSplit, Part, Renumbered
from storage_core.index.text_files import META, ROW_FIELD, compose
from storage_core.log.actions import Add, IndexSegment, Translation, read_actions, write_actions
from storage_core.log.coverage import GONE, by_input, leads_to, members
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore

if TYPE_CHECKING:
    import tantivy


_HEAP_BYTES = 1_000_000_000  # an upper bound of the heap size. A writer with a full heap would write two segments.
_DOCUMENTS_AT_ONCE = 100_000


def merge_text(parts: Sequence[Renumbered], definition: IndexDefinition) -> dict[str, bytes]:
    """Merge parts into one segment and return its files. Each part contains the new number of each of its rows.

    The new numbers are row numbers of the merged segment. Each row number of the merged segment occurs exactly once.
    Tantivy merges its segments of similar size, and leaves the other segments separate.

    Raises:
        Corrupt: Two documents have the same row number, or a row number is not in the part of its document.

    Cost:
        Memory is twice the size of the files, and 40 bytes per row of one part. Scratch files take the same space on
        disk.
    """
    size = sum(len(data) for files, _ in parts for data in files.values())
    what = f"merged full-text segment of index {definition.name!r}"
    with damage.writing(what, room_bytes=2 * size), scratch_folder("fulltext") as root:
        directories = [_unpacked(root / f"part-{number}", files) for number, (files, _) in enumerate(parts)]
        target = root / "whole"
        compose(directories, target, definition)
        for directory, (_, rows) in zip(directories, parts, strict=True):
            _renumber(directory, target, rows, definition, scratch=root / "rows")
        _merge(target, definition)
        found = text_files.read_meta(target, definition)
        names = [name for each in found for name in text_files.names_of(each)]
        return {META: text_files.meta_of(found, definition).encode()} | {
            name: (target / name).read_bytes() for name in names
        }


def _unpacked(directory: Path, files: Mapping[str, bytes | memoryview]) -> Path:
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def _renumber(directory: Path, target: Path, rows: Positions, definition: IndexDefinition, *, scratch: Path) -> None:
    """Write the new row numbers for the documents of one part. The files of the part are linked into `target`."""
    import tantivy

    searcher = tantivy.Index.open(str(directory)).searcher()
    own = text_files.read_meta(directory, definition)
    named = [_rows_of(searcher, ordinal, count) for ordinal, count in enumerate(own.values())]
    every = np.concatenate([np.zeros(0, np.int64), *named])
    if not np.array_equal(np.sort(every), np.arange(len(rows))):
        raise text_files.corrupt(
            directory.name, f"the documents do not contain each of the {len(rows)} rows exactly once"
        )
    for segment, numbers in zip(own, named, strict=True):
        scratch.mkdir()
        _write_rows(scratch, rows[numbers], definition)
        (written,) = scratch.glob("*.fast")
        linked = target / next(name for name in text_files.names_of(segment) if name.endswith(".fast"))
        linked.unlink()  # The link and the part share one file, so writing to the link would change the part.
        shutil.move(written, linked)
        shutil.rmtree(scratch)


def _rows_of(searcher: tantivy.Searcher, ordinal: int, count: int) -> Positions:
    """Return the row number of each document of a tantivy segment, or -1 if a document has no row number."""
    import tantivy

    def values() -> Iterator[Positions]:
        for start in range(0, count, _DOCUMENTS_AT_ONCE):
            addresses = [
                tantivy.DocAddress(ordinal, each) for each in range(start, min(count, start + _DOCUMENTS_AT_ONCE))
            ]
            found = searcher.fast_field_values(ROW_FIELD, addresses)
            yield np.array([each if isinstance(each, int) and each < 2**62 else -1 for each in found], np.int64)

    return np.concatenate([np.zeros(0, np.int64), *values()])


def _write_rows(directory: Path, rows: Positions, definition: IndexDefinition) -> None:
    """Write an index of documents that contain only a row number."""
    import tantivy

    schema = tantivy_schema(definition)
    writer = tantivy.Index(schema, path=str(directory), reuse=False).writer(heap_size=_HEAP_BYTES, num_threads=1)
    # Tantivy accepts one document object at a time, also when a segment is built. These documents have no text.
    for row in rows.tolist():
        document = tantivy.Document()
        document.add_unsigned(ROW_FIELD, row)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()


def _merge(directory: Path, definition: IndexDefinition) -> None:
    """Merge the segments by tantivy's own policy, which merges at least eight segments of similar size."""
    import tantivy

    index = tantivy.Index.open(str(directory))
    text_files.register(index, definition)
    writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
    writer.commit()
    writer.wait_merging_threads()


def merge_bitmaps(
    parts: Sequence[Renumbered], count: int, definition: IndexDefinition, schema: pa.Schema
) -> dict[str, bytes]:
    """Merge several segments into one segment of `count` rows, and return its files.

    Each part lists, for each of its rows, the row number in the merged segment. A negative number omits the row. Each
    of the `count` rows of the merged segment comes from one of the parts. The files have the same bytes as the files of
    a segment that `build` would create from these rows.

    Raises:
        Corrupt: Bitmaps contain a row twice, or a row that the part does not have.

    Cost:
        One Python step per distinct value of a part. Memory is 12 bytes per row, and the values of one column in Arrow.
    """
    columns = {column: _column(parts, count, definition, schema.field(column)) for column in definition.columns}
    return bitmap.build(pa.table(columns), definition)


def _column(parts: Sequence[Renumbered], count: int, definition: IndexDefinition, field: pa.Field) -> pa.Array:
    """Return the values of a column, in the row order of the merged segment."""
    values, codes, first = list[pa.Array](), np.full(count, -1), 0
    for files, rows in parts:
        own, of_row = _decoded(files, len(rows), definition, field.name)
        kept = (rows >= 0) & (of_row >= 0)
        codes[rows[kept]] = of_row[kept] + first
        values.append(own.cast(field.type))
        first += len(own)
    every = pa.chunked_array(values).combine_chunks()
    return every.take(pa.array(codes, mask=codes < 0))


def _decoded(
    files: Mapping[str, bytes | memoryview], rows: int, definition: IndexDefinition, column: str
) -> tuple[pa.Array, Positions]:
    """Return the distinct values of a part.

    Also return, for each row, the position of its value among the distinct values. The position is -1 for null.
    """
    where = f"a bitmap segment of index {definition.name!r}"
    values_file, bitmaps_file = bitmap.column_files(definition, column)
    with bitmap.damage(where):
        values = bitmap.value_table(pa.BufferReader(files[values_file])).column("value").combine_chunks()
    known = bitmap.column_values(files[values_file], size=len(files[bitmaps_file]), where=where)
    held = bitmap.bitmaps_within(known, files[bitmaps_file], where=where)
    codes, named = np.full(rows, -1), 0
    for place, data in enumerate(held.read(np.arange(len(values) - values.null_count))):
        with bitmap.damage(where):
            found = positions(BitMap.deserialize(bytes(data)))
        if len(found) and int(found[-1]) >= rows:
            raise damaged(where, f"it contains row {found[-1]}, but has only {rows} rows")
        codes[found] = place
        named += len(found)
    if named != int((codes >= 0).sum()):
        raise damaged(where, "the segment has a row with two values")
    return values, codes


# Planning and executing merges (docs/architecture/indexes.md, decision 0019).
#
# Small segments of an index are merged into one, so that a search reads few segments. A merged segment covers the live
# splits that contain rows of the old segments. If the old segments alone cover all rows of a split, the merged segment
# covers the whole split. Otherwise the merged segment covers a part of the split. The rows get new numbers, so earlier
# translations are no longer needed. No text is tokenized again. The number of rows of a segment determines its tier.
# The tier is the logarithm of this number to the base `FACTOR`, rounded down. `FACTOR` segments of one tier become one
# segment of the next tier, so each row is written once per tier.


FACTOR = 8
"""If a tier has at least this number of segments, they become one segment of the next tier."""

MOST_BYTES = 256 * 2**20
"""The maximum size of the segments in one merge, in bytes. A task has these segments in memory.

A segment of more than half of this size is not merged.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMerge:
    """A work item: segments to merge into one segment over `splits`, with everything that a task needs.

    If the segments cover only a part of a split, `origins` contains the splits from which these rows came.
    `schema_string` is the schema of the table. `beside` contains the segments that cover rows of these splits and are
    not merged. `translations` map the rows of all these segments to rows of the splits. If `again` is True, the
    embeddings are trained again. The training starts from the codebook of the first segment.
    """

    definition: IndexDefinition
    segments: tuple[IndexSegment, ...]
    splits: tuple[Add, ...]
    origins: Mapping[str, tuple[str, ...]]
    schema_string: str
    beside: tuple[IndexSegment, ...] = ()
    translations: tuple[Translation, ...] = ()
    again: bool = False

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
            "again": self.again,
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> SegmentMerge:
        """Return the item that `to_json` wrote."""
        body, where = json.loads(text), "segment merge work item"
        return SegmentMerge(
            definition=IndexDefinition.from_text(*body["index"]),
            segments=read_actions(body["segments"], IndexSegment, where),
            splits=read_actions(body["splits"], Add, where),
            origins={split: tuple(found) for split, found in body["origins"].items()},
            schema_string=body["schema"],
            beside=read_actions(body["beside"], IndexSegment, where),
            translations=read_actions(body["translations"], Translation, where),
            again=body["again"],
        )


@dataclass(frozen=True, slots=True)
class MergedSegments:
    """An executed merge, and the segment that replaces the segments of the work item."""

    work: SegmentMerge
    segment: IndexSegment


def plan(snapshot: Snapshot, covered: Coverage) -> tuple[SegmentMerge, ...]:
    """Return the merges of all tiers with at least `FACTOR` segments, in the order from small to large tiers.

    Makes no request.

    After these merges, the next tier may also have enough segments. Segments of a primary-key index are not merged. A
    lookup reads only one segment, which belongs to the only split that may contain the key.
    """
    if covered.definition.kind == "primary_key":
        return ()
    tiers: dict[int, list[IndexSegment]] = defaultdict(list)
    sizes = {path: _bytes(segment, covered.definition, snapshot) for path, segment in covered.segments.items()}
    for path, segment in covered.segments.items():
        if segment.numRecords and 2 * sizes[path] <= MOST_BYTES:
            tiers[tier(segment.numRecords)].append(segment)
    full = [own for _, own in sorted(tiers.items()) if len(own) >= FACTOR]
    groups = [_separable(covered, group) for own in full for group in _groups(own, sizes)]
    return tuple(_work(snapshot, covered, group) for group in groups if len(group) > 1)


def plan_training(snapshot: Snapshot, covered: Coverage, *, every: bool = False) -> tuple[SegmentMerge, ...]:
    """Return one work item for each segment of embeddings that must be trained again. Makes no request.

    If `every` is True, all segments of embeddings are trained again. Otherwise, a segment is trained again only if its
    imbalance is above `retrain_imbalance_threshold`. A segment that was already trained again is excluded.
    """
    if covered.definition.kind != "vector":
        return ()
    most = vector.options_of(covered.definition).retrain_imbalance_threshold
    wanted = [each for each in covered.segments.values() if each.numRecords and (every or _is_unlike(each, most))]
    groups = [_separable(covered, [each]) for each in wanted]
    return tuple(replace(_work(snapshot, covered, group), again=True) for group in groups if group)


def tier(rows: int) -> int:
    """Return the logarithm of a number of rows to the base `FACTOR`, rounded down."""
    return (rows.bit_length() - 1) // (FACTOR.bit_length() - 1)


def _is_unlike(segment: IndexSegment, most: float | None) -> bool:
    trained = vector.Training.of(segment)
    return most is not None and trained is not None and not trained.again and trained.imbalance > most


def _bytes(segment: IndexSegment, definition: IndexDefinition, snapshot: Snapshot) -> int:
    """Return the memory that a segment takes during a merge, in bytes.

    Embeddings are read from the table and encoded again.
    """
    kinds = [snapshot.schema.field(column).type for column in definition.columns]
    numbers = sum(int(kind.list_size) for kind in kinds if is_vector(kind))
    return max(segment.size, 4 * numbers * segment.numRecords)


def _groups(own: Sequence[IndexSegment], sizes: Mapping[str, int]) -> Iterator[list[IndexSegment]]:
    """Yield the segments of a tier, smallest first, in groups that are not too large."""
    group, size = list[IndexSegment](), 0
    for each in sorted(own, key=lambda each: (each.numRecords, each.path)):
        if group and size + sizes[each.path] > MOST_BYTES:
            yield group
            group, size = [], 0
        group.append(each)
        size += sizes[each.path]
    yield group


def _separable(covered: Coverage, group: Sequence[IndexSegment]) -> list[IndexSegment]:
    """Return the segments whose rows can be identified by their origins (the splits from which the rows came).

    A segment can cover only a part of a split. The rows of this part came from other splits. The splits from which the
    rows of a part came are the origins of the part. A segment is excluded if its part shares origins with rows outside
    the part. A reader would mistake the rows outside the part for rows of the part.
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


def _work(snapshot: Snapshot, covered: Coverage, group: Sequence[IndexSegment]) -> SegmentMerge:
    paths = {each.path for each in group}
    splits = [split for split, found in sorted(covered.answers.items()) if paths & set(found)]
    whole = [split for split in splits if split not in covered.origins and paths.issuperset(covered.answers[split])]
    beside = {path for split in splits for path in covered.answers[split]} - paths
    both = [*group, *(covered.segments[path] for path in sorted(beside))]
    ways = leads_to([split for each in both for split in each.covers], (), by_input(covered.translations.values()))[1]
    return SegmentMerge(
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


def execute(store: ObjectStore, work: SegmentMerge, *, ids: Ids) -> IndexSegment:
    """Store the segment that replaces the segments of the work item, and return its action.

    Raises:
        Corrupt: A segment, a translation or a split is damaged.
        NotFound: A segment or a translation does not exist.

    Cost:
        One PUT. One GET per segment and one per needed translation. For embeddings, one GET per split, and segments are
        read only if they cover parts. Memory is several times the size of the files of all segments.
    """
    found = _Merging(store, work)
    covered, files = found.covered(), {}
    schema = from_schema_string(work.schema_string)
    match work.definition.kind:
        case "fulltext":
            gone, parts = found.with_gone(covered)
            files = merge_text(parts, work.definition)
            covered += [CoveredSplit(f"{work.segments[0].path}/{GONE}", gone)] if gone else []
        case "bitmap":
            rows = sum(each.count for each in covered)
            files = merge_bitmaps(found.numbered(covered), rows, work.definition, schema)
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
    """The rows of the segments of a work item, and their positions."""

    def __init__(self, store: ObjectStore, work: SegmentMerge) -> None:
        self._work = work
        self._files = cache(lambda place: segments.load(store, work.segments[place]))
        places_of = {segment.path: place for place, segment in enumerate(work.segments)}

        def part_of(held: CoveredRows) -> BitMap:
            place = places_of.get(held.segment.path)
            if place is None:
                return read_covered_rows(store, held)
            return segments.part_rows(self._files(place)[held.member.file], held.segment, held.member)

        ways = RowTranslations.of(
            {add.path for add in work.splits},
            (*work.segments, *work.beside),
            work.translations,
            map_of=cache(lambda each: load_map(store, each)),
            part_of=once(part_of),
        )
        self._places = [ways.row_positions(each) for each in work.segments]

    def covered(self) -> list[CoveredSplit]:
        """Return the splits that the merged segment covers, with the covered rows of each split. Raises `Corrupt`."""
        found = list[CoveredSplit]()
        for add in self._work.splits:
            rows, origins = self._rows_in(add.path), self._work.origins.get(add.path)
            part, count = None if origins is None else Part(rows, origins), add.numRecords or 0
            if origins is None and len(rows) != count:
                first = self._work.segments[0].path
                raise damaged(
                    add.path,
                    f"segments such as {first} cover all {count} rows of the split, but contain only "
                    f"{len(rows)} of these rows",
                )
            if rows:
                found.append(CoveredSplit(add.path, count, part))
        return found

    def numbered(self, covered: Sequence[CoveredSplit]) -> list[Renumbered]:
        """Return the files of each segment, and the new number of each row of the segment.

        The number is -1 for a row in no split.
        """
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

    def with_gone(self, covered: Sequence[CoveredSplit]) -> tuple[int, list[Renumbered]]:
        """Return the number of rows outside the covered splits, and the result of `numbered`.

        Rows outside the covered splits get the last numbers.
        """
        first = gone = sum(each.count for each in covered)
        found = self.numbered(covered)
        for _, numbers in found:
            nowhere = np.flatnonzero(numbers < 0)
            numbers[nowhere] = gone + np.arange(len(nowhere))
            gone += len(nowhere)
        return gone - first, found

    def start(self) -> vector.Codebook | None:
        """Return the codebook from which training continues, or None if there is none."""
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
