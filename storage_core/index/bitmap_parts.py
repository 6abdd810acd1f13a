"""Columns of bitmap segments: of a segment the values that a read asks about, and of the bitmaps those that it wants.

The values lie before the directory at the end of a segment, so one request of `TAIL_BYTES` finds both in most, and in a
small segment the bitmaps as well. Each part and each bitmap is verified by a checksum of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pyroaring import BitMap

from storage_core.cache.pieces import NOT_CACHED, CachedPieces, Piece
from storage_core.formats import bundle
from storage_core.index import segments
from storage_core.index.bitmap import ColumnBitmaps, ColumnValues, column_files, column_values
from storage_core.index.bitmap_moves import Moves, map_name
from storage_core.index.coverage import Answering, AnsweringOf, answering
from storage_core.index.damage import REBUILD
from storage_core.log.actions import Add, IndexSegment
from storage_core.log.covered import Member
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.keys import Positions
from storage_core.settings.index import IndexDefinition
from storage_core.split.kept_values import KeptValues
from storage_core.split.pieces import NOTHING_FETCHED, Fetched, Pieces

TAIL_BYTES: Final = 128 * 2**10
"""So much before the directory is fetched with it."""

GAP_BYTES: Final = 128 * 2**10
"""Gaps up to this size between wanted bitmaps are fetched with them."""

KEPT_BYTES: Final = 64 * 2**20
"""Of values and bitmaps that were asked for last, per table."""

_AT_ONCE: Final = 4

_Name = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """What is kept of a column: its values, and where the part with its bitmaps is in the object."""

    values: ColumnValues
    bitmaps: bundle.Part


@dataclass(slots=True)
class Reading:
    """One reading of a segment; `requests` and `read_bytes` are what it took, or would have with no cache on disk.

    A column is fetched when it is asked for, a bitmap when it is read.
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
        """Return these columns; None where values that are not in the tail take more than `most_bytes`.

        One GET where one is not kept, and one more for values that are not in the tail. Raises `Corrupt` for what is
        not what was written, `NotFound` for what is gone, `Unsupported` for a newer format.
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
        """Return the rows of a split of which the segment is over a part. Raises as `columns`."""
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
        """These bitmaps of a column, verified: each by itself, or in the part that has all of them."""
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
        """The bytes of these pieces, ascending, each with its checksum."""
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
    """Values and bitmaps of segments of one store; those that were asked for last are kept. Safe for threads."""

    def __init__(self, cached: CachedPieces, kept_bytes: int = KEPT_BYTES) -> None:
        self._cached = cached
        self._kept = KeptValues(kept_bytes)
        self._answering: dict[str, tuple[Snapshot, IndexDefinition, AnsweringOf]] = {}

    def for_planning(self) -> BitmapParts:
        """Return parts that know what these keep and keep nothing for them, to count what a read would fetch."""
        found = BitmapParts(NOT_CACHED)
        found._kept, found._answering = self._kept.copy(), self._answering
        return found

    def answering(self, snapshot: Snapshot, definition: IndexDefinition) -> AnsweringOf:
        """Return `coverage.answering`, made once as long as neither is another. No request."""
        found = self._answering.get(definition.name)
        if found is None or found[0] is not snapshot or found[1] != definition:
            found = self._answering[definition.name] = snapshot, definition, answering(snapshot, definition)
        return found[2]

    def holds(self, found: Answering, columns: Collection[str]) -> bool:
        """Return whether the values of these columns, and the maps, take no request."""
        names = [_name(segment, column) for segment in found.segments for column in columns]
        return all(self._kept.get(name) is not None for name in (*names, *map(map_name, found.translations)))

    def reading(self, store: ObjectStore, segment: IndexSegment, definition: IndexDefinition) -> Reading:
        """Return a reading of a segment that was built under `definition`. What it reads is kept."""
        return Reading(store, segment, definition, self._kept, self._cached)

    def moves(self, store: ObjectStore, add: Add, found: Answering) -> Moves:
        """Return the ways to a split from the segments that answer for it. What they take is kept."""
        return Moves(store, add, found, self._kept, self._cached)


def _piece(part: bundle.Part) -> Piece:
    return Piece(part.offset, part.offset + part.length, part.xxh3)


def _name(segment: IndexSegment, *what: object) -> _Name:
    return segment.path, segment.xxh3, *what
