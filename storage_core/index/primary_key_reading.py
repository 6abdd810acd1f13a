"""Which rows of a split may have some keys, by the segments of the primary key that answer for it.

Of a segment over a whole split the blocks are fetched that may have a key: where they lie follows from the log, so the
first request has what is wanted. Each further request for a segment fetches twice as many blocks beside those, so many
lookups fetch all of it in a few requests. A segment over a part of a split is fetched whole.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyroaring import BitMap

from storage_core.cache.pieces import Data, Piece
from storage_core.errors import Corrupt, NotFound, Unsupported
from storage_core.formats import bundle
from storage_core.formats.key_hash import HashedRows, Hashes
from storage_core.index import primary_key, segments
from storage_core.index.bitmap_moves import Moves, map_name
from storage_core.index.coverage import Answering, AnsweringOf, Held, answering
from storage_core.index.damage import REBUILD
from storage_core.index.primary_key import Layout
from storage_core.log.actions import Add, IndexSegment
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.keys import Positions
from storage_core.rows.positions import bitmap_of, positions
from storage_core.settings.index import IndexDefinition
from storage_core.split.kept_values import KeptValues
from storage_core.split.pieces import REQUEST_COST_BYTES, Pieces, near

_logger = logging.getLogger(__name__)

UNCOVERED: Final = "no segment covers them"
DEAR: Final = "reading their keys costs less"
UNUSABLE: Final = "their segments are damaged or gone"

_AT_ONCE: Final = 4
_HEADER_BYTES: Final = len(bundle.MAGIC + bundle.VERSION)
_ASK_BYTES: Final = 64
_SOUND: Final = "as stored"


@dataclass(slots=True)
class KeyReading:
    """One reading of what answers for a split. What it reads stays in `kept`.

    `requests` and `read_bytes` count it as if nothing were on disk.
    """

    store: ObjectStore
    add: Add
    answering: Answering
    kept: KeptValues
    requests: int = 0
    read_bytes: int = 0

    def places(self, hashes: Hashes) -> Positions | None:
        """Return the places in the split of rows whose key has one of these hashes, ascending; rarely of others too.

        Whether the rows are gone or not; None where the segments do not answer for every row. `hashes` are distinct and
        ascending. Requests: see above, and one per translation. Raises `Corrupt`, `NotFound`, `Unsupported`.
        """
        found = {each.path: self._rows(each, hashes) for each in self.answering.segments}
        only = self.answering.segments[0]
        if not self.answering.translations and only.origins is None:
            return found[only.path]
        moves = Moves(self.store, self.add, self.answering, self.kept, self.kept.cached)
        matching = {path: bitmap_of(rows) for path, rows in found.items()}
        left = moves.left(matching, self._part_rows)
        self.requests += moves.requests
        self.read_bytes += moves.read_bytes
        return positions(left.rows) if left.is_told else None

    def cost(self, hashes: Hashes) -> tuple[int, int]:
        """Return the requests and bytes that `places` takes, about. No request. Raises `Corrupt`."""
        requests = bytes_ = 0
        for translation in self.answering.translations:
            if self.kept.get(map_name(translation)) is None:
                requests, bytes_ = requests + 1, bytes_ + translation.size
        for segment in self.answering.segments:
            own = self._whole_cost(segment) if segment.origins is not None else self._block_cost(segment, hashes)
            requests, bytes_ = requests + own[0], bytes_ + own[1]
        return requests, bytes_

    def _whole_cost(self, segment: IndexSegment) -> tuple[int, int]:
        return (0, 0) if self.kept.get(_name(segment, "keys")) is not None else (1, segment.size)

    def _block_cost(self, segment: IndexSegment, hashes: Hashes) -> tuple[int, int]:
        layout = layout_of(segment)
        wanted = np.unique(layout.blocks_of(hashes)).tolist()
        size = layout.block_bytes
        missing = [_HEADER_BYTES + each * size for each in wanted if self.kept.get(_name(segment, each)) is None]
        ranges = near([(start, start + size) for start in missing], REQUEST_COST_BYTES)
        return len(ranges), sum(end - start for start, end in ranges)

    def _rows(self, segment: IndexSegment, hashes: Hashes) -> Positions:
        keys = self._whole(segment) if segment.origins is not None else self._blocks(segment, hashes)
        return np.sort(keys.rows_of(hashes))

    def _whole(self, segment: IndexSegment) -> HashedRows:
        """All keys of a segment over a part of a split. One GET where they are not kept."""

        def read() -> HashedRows:
            files = self._files(segment)
            identity = segments.segment_id(segment)
            return primary_key.every_key(files, identity, where=segment.path)

        return self.kept.made(_name(segment, "keys"), HashedRows, read, lambda each: each.size_bytes)

    def _part_rows(self, held: Held) -> BitMap:
        segment, member = held.segment, held.member

        def read() -> BitMap:
            return segments.part_rows(self._files(segment)[member.file], segment, member)

        return self.kept.made(_name(segment, member.file), BitMap, read, lambda each: 2 * len(each))

    def _files(self, segment: IndexSegment) -> Mapping[str, bytes | memoryview]:
        def fetched() -> bytes:
            return self._range(segment, 0, segment.size)

        piece = Piece(0, segment.size, segment.xxh3)
        data = self.kept.cached.made(self.store.uri, segment.path, segment.xxh3, piece, fetch=fetched)
        return bundle.unpack(data, segments.expected_of(segment))

    def _blocks(self, segment: IndexSegment, hashes: Hashes) -> HashedRows:
        """The keys of the blocks that may have one of these hashes, ascending, of a segment over a whole split."""
        layout = layout_of(segment)
        wanted = np.unique(layout.blocks_of(hashes)).tolist()
        found = {each: self.kept.get(_name(segment, each)) for each in wanted}
        missing = {each for each, keys in found.items() if not isinstance(keys, HashedRows)}
        if missing:
            for number, data in self._fetched(segment, layout, self._with_neighbours(segment, layout, missing)):
                keys = primary_key.block(data, layout, segments.segment_id(segment), where=segment.path)
                self.kept.keep(_name(segment, number), keys, keys.size_bytes)
                found[number] = keys
        return HashedRows.joined([keys for _, keys in sorted(found.items()) if isinstance(keys, HashedRows)])

    def _with_neighbours(self, segment: IndexSegment, layout: Layout, missing: Collection[int]) -> list[int]:
        """The blocks to fetch: each time that a segment is asked, twice as many beside each that is wanted."""
        asked = self.kept.get(_name(segment, "asked"))
        times = asked if isinstance(asked, int) else 0
        self.kept.keep(_name(segment, "asked"), times + 1, _ASK_BYTES)
        run = min(2**times, layout.blocks)
        starts = sorted({each // run * run for each in missing})
        beside = (number for start in starts for number in range(start, min(start + run, layout.blocks)))
        # One that is missing may be in `kept` by now, thanks to another thread; it is wanted here all the same.
        return [each for each in beside if each in missing or self.kept.get(_name(segment, each)) is None]

    def _fetched(self, segment: IndexSegment, layout: Layout, blocks: Sequence[int]) -> Iterable[tuple[int, bytes]]:
        """These blocks, ascending, from the cache on disk or the store."""
        identity, size = segments.segment_id(segment), layout.block_bytes

        def mark(data: Data) -> str:
            return _SOUND if primary_key.is_sound(data, layout, identity) else "another"

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


def candidates(
    reading: KeyReading, hashes: Hashes, is_dear: Callable[[KeyReading], bool]
) -> tuple[Positions | None, str]:
    """Return the places of the only rows that may have one of the keys, ascending; else None, and why.

    Requests: those of `KeyReading.places`, unless that is dear. A segment that is damaged or gone is a warning.
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
    """Return the index of the table's primary key, and what answers for each split; None without one. No request."""
    key = snapshot.config.primary_key
    defined = (each for each in snapshot.config.indexes if each.kind == "primary_key" and each.columns == key)
    found = next(defined, None)
    return None if found is None or not snapshot.segments else (found, answering(snapshot, found))


def layout_of(segment: IndexSegment) -> Layout:
    """Return how the keys lie in a segment over a whole split, by what the log says of it. Raises `Corrupt`."""
    return Layout.of(
        segment.numRecords, segment.footerOffset - _HEADER_BYTES - primary_key.HEAD_BYTES, where=segment.path
    )


def _name(segment: IndexSegment, what: object) -> tuple[object, ...]:
    return segment.path, segment.xxh3, "key index", what
