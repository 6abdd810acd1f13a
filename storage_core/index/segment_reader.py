"""The parts of segments that a read needs: bitmaps for some values, and positions for some keys.

`SegmentReader` reads columns of a bitmap segment. `SegmentReader` reads only the values that a read uses, and only the
bitmaps that the read needs. The values are stored before the directory, which is at the end of a segment. In most
segments, one request of `TAIL_BYTES` reads the values and the directory. In a small segment, this request also reads
the bitmaps. Each part and each bitmap is verified by its own checksum.

`KeyReading` uses the segments of the primary-key index. `KeyReading` finds the rows of a split that may have some keys.
If a segment was built over a whole split, `KeyReading` fetches only the blocks that may contain a key. The log
determines the positions of the blocks, so the first request already reads the needed blocks. Each further request for
the segment fetches twice as many neighbouring blocks as the previous request. After many lookups, a few requests have
fetched the whole segment. If a segment was built over a part of a split, `KeyReading` fetches the whole segment.

`RowTranslator` translates row numbers of segments to row numbers of a live split. A read needs the translation if the
segments were built over other splits or over parts of the split. A segment selects rows by its own row numbers. The
maps of translations contain the current positions of these rows (decision 0019).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

import numpy as np
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, NotFound, Unsupported
from storage_core.data.formats import bundle
from storage_core.data.formats.bundle import TranslationMap
from storage_core.data.formats.key_hashes import HashedRows, Hashes
from storage_core.data.rows.keys import Positions, bitmap_of, positions
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import primary_key, segments
from storage_core.index.bitmap import ColumnBitmaps, ColumnValues, column_files, column_values
from storage_core.index.damage import REBUILD
from storage_core.index.primary_key import Layout
from storage_core.index.row_positions import PartOf, RowPositions, RowTranslations, once, read_map
from storage_core.index.segments import AnsweringOf, CoveredRows, CoveringSegments, covering_segments
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.log.coverage import Member, members
from storage_core.log.snapshot import Snapshot
from storage_core.split.fetch import NOTHING_FETCHED, REQUEST_COST_BYTES, Fetched, Pieces, near
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of
from storage_core.store.pieces import NOT_CACHED, CachedPieces, Data, KeptValues, Piece

# Translation of a segment's row numbers to the matching rows of the live split. A segment can be built over an older
# split, or over a part of the live split.


_AT_ONCE: Final = 4
_FOLLOWING: Final = Lock()
"""A lock for the translation of row numbers. The translation takes about 30 bytes of memory per row of a segment."""


@dataclass(frozen=True, slots=True)
class SurvivingRows:
    """The `rows` of a split that may match. `is_told` is True if segments cover every row of the split."""

    rows: BitMap
    is_told: bool


@dataclass(slots=True)
class RowTranslator:
    """Translates row numbers of segments to row numbers in a live split.

    `requests` and `read_bytes` are the cost of fetching the maps if nothing is cached on disk.
    """

    store: ObjectStore
    add: Add
    answering: CoveringSegments
    kept: KeptValues
    cached: CachedPieces
    requests: int = 0
    read_bytes: int = 0

    def surviving_rows(self, matching: Mapping[str, BitMap | None], part_of: PartOf) -> SurvivingRows:
        """Return the rows of the split that may match.

        A row that no segment covers may match.

        Args:
            matching: For each segment, by path, its matching rows, or None if all of its rows match.
            part_of: A function that returns the covered rows of a segment over a part of a split.

        Raises:
            Corrupt: A translation is damaged.
            NotFound: A translation does not exist. The errors of `part_of` are also raised.

        Cost:
            One GET per translation that is not cached.
        """
        translations = self.answering.translations
        whole = [
            (segment, member)
            for segment in self.answering.segments
            for member in members(segment)
            if member.split == self.add.path and member.origins is None
        ]
        if whole:  # there is only one segment over the whole split
            [(segment, member)] = whole
            met = matching[segment.path]
            every = BitMap(range(member.start, member.start + member.rows))
            return SurvivingRows((every if met is None else met & every).shift(-member.start), is_told=True)
        maps = dict(zip(translations, all_of(self._map, translations, _AT_ONCE), strict=True))
        parts, leading = once(part_of), {self.add.path, *(split for each in translations for split in each.inputs)}
        for segment in self.answering.segments:  # the parts are read before the lock is taken
            for member in members(segment):
                if member.origins is not None and member.split in leading:
                    parts(CoveredRows(segment, member))
        ways = RowTranslations.of(
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
        return SurvivingRows(bitmap_of(np.flatnonzero(may)), told == rows)

    def _places(self, segment: IndexSegment, ways: RowTranslations) -> RowPositions:
        beside = [each.path for each in self.answering.segments] + [each.path for each in self.answering.translations]
        name = (segment.path, segment.xxh3, "places in", self.add.path, *beside)
        with _FOLLOWING:
            return self.kept.made(name, RowPositions, lambda: ways.row_positions(segment), lambda each: each.size_bytes)

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
    """Return the name under which the map of a translation is cached."""
    return translation.path, translation.xxh3, "map"


TAIL_BYTES: Final = 128 * 2**10
"""The number of bytes before the directory that are fetched together with the directory."""

GAP_BYTES: Final = 128 * 2**10
"""If the gap between two wanted bitmaps has at most this many bytes, the gap is fetched as well."""

KEPT_BYTES: Final = 64 * 2**20
"""The maximum size of the cached values and bitmaps of a table, in bytes.

The cache keeps the most recently used values and bitmaps.
"""


_Name = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """The cached state of a column: its values, and the position of its bitmaps in the object."""

    values: ColumnValues
    bitmaps: bundle.Part


@dataclass(slots=True)
class SegmentReader:
    """A reader of one segment for one operation.

    The reader fetches a column when the column is requested, and a bitmap when the bitmap is read.

    `requests` and `read_bytes` are the cost if nothing is cached on disk.
    """

    store: ObjectStore
    segment: IndexSegment
    definition: IndexDefinition
    _kept: KeptValues
    _cached: CachedPieces
    requests: int = 0
    read_bytes: int = 0
    _own: dict[_Name, object] = field(default_factory=dict)
    _tail: Fetched = NOTHING_FETCHED

    def columns(self, names: Collection[str], *, most_bytes: int | None = None) -> Mapping[str, ColumnBitmaps] | None:
        """Return these columns. Return None if the values outside the tail take more than `most_bytes`.

        Raises:
            Corrupt: The object differs from what was written.
            NotFound: The object does not exist.
            Unsupported: The format is newer than this release.

        Cost:
            One GET if a column is not cached, and one more GET for values that are not in the tail.
        """
        found = {name: each for name in names if isinstance(each := self._found(name), _Column)}
        missing = [name for name in names if name not in found]
        if missing:
            directory = self._directory()
            parts = {name: [directory.part(each) for each in column_files(self.definition, name)] for name in missing}
            files = self._parts([values for values, _ in parts.values()], most_bytes)
            if files is None:
                return None
            for name, (values, bitmaps) in parts.items():
                read = column_values(files[values.name], size=bitmaps.length, where=self.segment.path)
                found[name] = _Column(read, bitmaps)
                self._keep(found[name], read.size_bytes, name)
        return {name: self._bitmaps(name, each) for name, each in found.items()}

    def part_rows(self, member: Member) -> BitMap:
        """Return the rows of a split that a segment covers.

        The segment was built over a part of the split. Raises the errors of `columns`.
        """
        found = self._found(member.file)
        if not isinstance(found, bytes):
            part = self._directory().part(member.file)
            [found] = self._bytes([_piece(part)])
            self._keep(found, len(found), member.file)
        return segments.part_rows(found, self.segment, member)

    def _bitmaps(self, name: str, column: _Column) -> ColumnBitmaps:
        def read(places: Positions) -> Sequence[bytes]:
            kept = {place: self._found(name, place) for place in places.tolist()}
            missing = np.array([place for place, data in kept.items() if data is None], np.int64)
            for place, data in zip(missing.tolist(), self._encoded(column, missing), strict=True):
                kept[place] = data
                self._keep(data, len(data), name, place)
            return [data for data in kept.values() if isinstance(data, bytes)]

        return ColumnBitmaps(column.values, self.segment.path, read)

    def _encoded(self, column: _Column, places: Positions) -> Iterable[bytes]:
        """Return these bitmaps of a column.

        Each bitmap is verified by its own checksum, or by the checksum of the part with all bitmaps.
        """
        values, part = column.values, column.bitmaps
        if not len(places):
            return []
        starts, lengths = values.offsets[places] + part.offset, values.lengths[places]
        if values.checksums is None:
            files = self._parts([part], None) or {}
            spans = zip(values.offsets[places].tolist(), lengths.tolist(), strict=True)
            return [files[part.name][offset : offset + length] for offset, length in spans]
        checksums = [f"{each:016x}" for each in values.checksums[places].tolist()]
        places_in_object = zip(starts.tolist(), (starts + lengths).tolist(), checksums, strict=True)
        return self._bytes([Piece(start, end, checksum) for start, end, checksum in places_in_object])

    def _directory(self) -> bundle.Directory:
        segment = self.segment
        if not self._tail.data:
            start = max(0, segment.footerOffset - TAIL_BYTES)
            self._tail = Fetched(start, self._range(start, segment.size) if start else self._whole())
        found = self._tail.data[segment.footerOffset - self._tail.start :]
        return bundle.read_directory(found, segments.expected_of(segment))

    def _parts(self, parts: Sequence[bundle.Part], most_bytes: int | None) -> dict[str, bytes] | None:
        pieces = [_piece(part) for part in parts]
        lengths = (part.length for part, piece in zip(parts, pieces, strict=True) if not self._tail.has(piece))
        if most_bytes is not None and sum(lengths) > most_bytes:
            return None
        return {part.name: data for part, data in zip(parts, self._bytes(pieces), strict=True)}

    def _bytes(self, wanted: Sequence[Piece]) -> list[bytes]:
        """Return the bytes of these pieces. The pieces are ascending, and each is verified by its checksum."""
        uri, segment = self.store.uri, self.segment
        pieces = Pieces(uri, segment.path, segment.xxh3, self._cached, self._range, advice=REBUILD)
        return pieces.read(wanted, gap_bytes=GAP_BYTES, at_once=_AT_ONCE, ahead=self._tail)

    def _range(self, start: int, end: int) -> bytes:
        self.requests += 1
        self.read_bytes += end - start
        return self.store.get_range(self.segment.path, start, end)

    def _whole(self) -> bytes:
        data = self.store.get(self.segment.path).data
        self.requests += 1
        self.read_bytes += len(data)
        return data

    def _found(self, *name: object) -> object | None:
        found = self._own.get(name)
        return self._kept.get(_name(self.segment, *name)) if found is None else found

    def _keep(self, value: object, size: int, *name: object) -> None:
        self._own[name] = value
        self._kept.keep(_name(self.segment, *name), value, size)


class BitmapParts:
    """A cache of the values and bitmaps of one store's segments.

    The cache keeps the most recently used values and bitmaps. Safe for threads.
    """

    def __init__(self, cached: CachedPieces) -> None:
        self._cached = cached
        self._kept = KeptValues(KEPT_BYTES)
        self._answering: dict[str, tuple[Snapshot, IndexDefinition, AnsweringOf]] = {}

    def for_planning(self) -> BitmapParts:
        """Return a copy with the cached parts. The copy counts the cost of a planned read, and adds nothing to the
        original cache.
        """
        found = BitmapParts(NOT_CACHED)
        found._kept, found._answering = self._kept.copy(), self._answering
        return found

    def answering(self, snapshot: Snapshot, definition: IndexDefinition) -> AnsweringOf:
        """Return the result of `segments.covering_segments`, which is computed once per snapshot and definition.

        Makes no request.
        """
        found = self._answering.get(definition.name)
        if found is None or found[0] is not snapshot or found[1] != definition:
            found = self._answering[definition.name] = snapshot, definition, covering_segments(snapshot, definition)
        return found[2]

    def holds(self, found: CoveringSegments, columns: Collection[str]) -> bool:
        """Return True if the values of these columns and the translation maps are cached, so no request is needed."""
        names = [_name(segment, column) for segment in found.segments for column in columns]
        return all(self._kept.get(name) is not None for name in (*names, *map(map_name, found.translations)))

    def reading(self, store: ObjectStore, segment: IndexSegment, definition: IndexDefinition) -> SegmentReader:
        """Return a reader of a segment of the index `definition`. The results of the reader are cached."""
        return SegmentReader(store, segment, definition, self._kept, self._cached)

    def moves(self, store: ObjectStore, add: Add, found: CoveringSegments) -> RowTranslator:
        """Return the object that translates row numbers of segments to row numbers of a split. The maps are cached."""
        return RowTranslator(store, add, found, self._kept, self._cached)


def _piece(part: bundle.Part) -> Piece:
    return Piece(part.offset, part.offset + part.length, part.xxh3)


def _name(segment: IndexSegment, *what: object) -> _Name:
    return segment.path, segment.xxh3, *what


_logger = logging.getLogger(__name__)

UNCOVERED: Final = "no segment covers these splits"
DEAR: Final = "a read of the keys of these splits costs less"
UNUSABLE: Final = "the segments of these splits are damaged or missing"
_HEADER_BYTES: Final = len(bundle.MAGIC + bundle.VERSION)
_ASK_BYTES: Final = 64
_SOUND: Final = "as stored"


@dataclass(slots=True)
class KeyReading:
    """A reader of the segments that cover a split, for one operation. The results are cached in `kept`.

    `requests` and `read_bytes` are the cost if nothing is cached on disk.
    """

    store: ObjectStore
    add: Add
    answering: CoveringSegments
    kept: KeptValues
    requests: int = 0
    read_bytes: int = 0

    def places(self, hashes: Hashes) -> Positions | None:
        """Return the rows with a key that has one of these hashes, as ascending positions in the split.

        The result may rarely include other rows, and it includes deleted rows. Returns None if the segments do not
        cover every row. `hashes` must be distinct and ascending. Raises `Corrupt`, `NotFound` and `Unsupported`.

        Cost:
            See the docstring of the module. In addition one GET per translation.
        """
        found = {each.path: self._rows(each, hashes) for each in self.answering.segments}
        only = self.answering.segments[0]
        if not self.answering.translations and only.origins is None:
            return found[only.path]
        moves = RowTranslator(self.store, self.add, self.answering, self.kept, self.kept.cached)
        matching = {path: bitmap_of(rows) for path, rows in found.items()}
        left = moves.surviving_rows(matching, self._part_rows)
        self.requests += moves.requests
        self.read_bytes += moves.read_bytes
        return positions(left.rows) if left.is_told else None

    def cost(self, hashes: Hashes) -> tuple[int, int]:
        """Return the approximate number of requests and bytes of `places`. Makes no request. Raises `Corrupt`."""
        requests = bytes_ = 0
        for translation in self.answering.translations:
            if self.kept.get(map_name(translation)) is None:
                requests, bytes_ = requests + 1, bytes_ + translation.size
        for segment in self.answering.segments:
            own = self._whole_cost(segment) if segment.origins is not None else self._block_cost(segment, hashes)
            requests, bytes_ = requests + own[0], bytes_ + own[1]
        return requests, bytes_

    def _whole_cost(self, segment: IndexSegment) -> tuple[int, int]:
        return (0, 0) if self.kept.get(_key_file(segment, "keys")) is not None else (1, segment.size)

    def _block_cost(self, segment: IndexSegment, hashes: Hashes) -> tuple[int, int]:
        layout = layout_of(segment)
        wanted = np.unique(layout.blocks_of(hashes)).tolist()
        size = layout.block_bytes
        missing = [_HEADER_BYTES + each * size for each in wanted if self.kept.get(_key_file(segment, each)) is None]
        ranges = near([(start, start + size) for start in missing], REQUEST_COST_BYTES)
        return len(ranges), sum(end - start for start, end in ranges)

    def _rows(self, segment: IndexSegment, hashes: Hashes) -> Positions:
        keys = self._whole(segment) if segment.origins is not None else self._blocks(segment, hashes)
        return np.sort(keys.rows_of(hashes))

    def _whole(self, segment: IndexSegment) -> HashedRows:
        """Return all keys of a segment over a part of a split. Makes one GET if the keys are not cached."""

        def read() -> HashedRows:
            files = self._files(segment)
            identity = segments.segment_id(segment)
            return primary_key.every_key(files, identity, where=segment.path)

        return self.kept.made(_key_file(segment, "keys"), HashedRows, read, lambda each: each.size_bytes)

    def _part_rows(self, held: CoveredRows) -> BitMap:
        segment, member = held.segment, held.member

        def read() -> BitMap:
            return segments.part_rows(self._files(segment)[member.file], segment, member)

        return self.kept.made(_key_file(segment, member.file), BitMap, read, lambda each: 2 * len(each))

    def _files(self, segment: IndexSegment) -> Mapping[str, bytes | memoryview]:
        def fetched() -> bytes:
            return self._range(segment, 0, segment.size)

        piece = Piece(0, segment.size, segment.xxh3)
        data = self.kept.cached.made(self.store.uri, segment.path, segment.xxh3, piece, fetch=fetched)
        return bundle.unpack_bundle(data, segments.expected_of(segment))

    def _blocks(self, segment: IndexSegment, hashes: Hashes) -> HashedRows:
        """Return the keys in the blocks that may have one of these hashes. The segment is over a whole split.

        The hashes are ascending.
        """
        layout = layout_of(segment)
        wanted = np.unique(layout.blocks_of(hashes)).tolist()
        found = {each: self.kept.get(_key_file(segment, each)) for each in wanted}
        missing = {each for each, keys in found.items() if not isinstance(keys, HashedRows)}
        if missing:
            for number, data in self._fetched(segment, layout, self._with_neighbours(segment, layout, missing)):
                keys = primary_key.block(data, layout, segments.segment_id(segment), where=segment.path)
                self.kept.keep(_key_file(segment, number), keys, keys.size_bytes)
                found[number] = keys
        return HashedRows.joined([keys for _, keys in sorted(found.items()) if isinstance(keys, HashedRows)])

    def _with_neighbours(self, segment: IndexSegment, layout: Layout, missing: Collection[int]) -> list[int]:
        """Return the blocks to fetch: the missing blocks and their neighbours.

        Each time that a segment is used, the number of neighbouring blocks doubles.
        """
        asked = self.kept.get(_key_file(segment, "asked"))
        times = asked if isinstance(asked, int) else 0
        self.kept.keep(_key_file(segment, "asked"), times + 1, _ASK_BYTES)
        run = min(2**times, layout.blocks)
        starts = sorted({each // run * run for each in missing})
        beside = (number for start in starts for number in range(start, min(start + run, layout.blocks)))
        # Another thread may have cached a missing block by now. In this case the block is fetched again.
        return [each for each in beside if each in missing or self.kept.get(_key_file(segment, each)) is None]

    def _fetched(self, segment: IndexSegment, layout: Layout, blocks: Sequence[int]) -> Iterable[tuple[int, bytes]]:
        """Yield these blocks, ascending, from the cache on disk or the store."""
        identity, size = segments.segment_id(segment), layout.block_bytes

        def mark(data: Data) -> str:
            return _SOUND if primary_key.is_valid_block(data, layout, identity) else "another"

        fetch, cached = functools.partial(self._range, segment), self.kept.cached
        pieces = Pieces(self.store.uri, segment.path, segment.xxh3, cached, fetch, advice=REBUILD)
        wanted = [
            Piece(start, start + size, _SOUND, mark) for start in (_HEADER_BYTES + each * size for each in blocks)
        ]
        return zip(blocks, pieces.read(wanted, gap_bytes=REQUEST_COST_BYTES, at_once=_AT_ONCE), strict=True)

    def _range(self, segment: IndexSegment, start: int, end: int) -> bytes:
        self.requests += 1
        self.read_bytes += end - start
        return self.store.get_range(segment.path, start, end)


def candidate_rows(
    reading: KeyReading, hashes: Hashes, is_dear: Callable[[KeyReading], bool]
) -> tuple[Positions | None, str]:
    """Return the ascending positions of all rows that may have one of the keys, or None and the reason.

    Makes the requests of `KeyReading.places`, unless they cost too much. Logs a warning if a segment is damaged or does
    not exist.
    """
    try:
        if is_dear(reading):
            return None, DEAR
        places = reading.places(hashes)
    except (Corrupt, NotFound, Unsupported) as error:
        paths = ", ".join(each.path for each in reading.answering.segments)
        _logger.warning("segment %s is not usable, reading the keys of %s: %s", paths, reading.add.path, error)
        return None, UNUSABLE
    return places, UNCOVERED if places is None else ""


def index_of(snapshot: Snapshot) -> tuple[IndexDefinition, AnsweringOf] | None:
    """Return the table's primary-key index, and a function that finds its segments for a split, or None.

    Makes no request.
    """
    key = snapshot.config.primary_key
    defined = (each for each in snapshot.config.indexes if each.kind == "primary_key" and each.columns == key)
    found = next(defined, None)
    return None if found is None or not snapshot.segments else (found, covering_segments(snapshot, found))


def layout_of(segment: IndexSegment) -> Layout:
    """Return the layout of the keys in a segment over a whole split.

    The layout is computed from the log. Raises `Corrupt`.
    """
    return Layout.of(
        segment.numRecords, segment.footerOffset - _HEADER_BYTES - primary_key.HEAD_BYTES, where=segment.path
    )


def _key_file(segment: IndexSegment, what: object) -> tuple[object, ...]:
    return segment.path, segment.xxh3, "key index", what
