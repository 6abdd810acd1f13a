"""Segments of generations become those of the base: a merge says which row of a generation each of its rows was.

A row that a generation gives whole, and of whose key no later one says anything, is in the base as it was in the
generation. So the generation's segments answer for it, by a translation, and the merge only names them. They count
rows in the order in which a merge writes them, which keeps the translation small (decision 0126). Of all other rows of
the merge, the rest, no segment answers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.generation_manifest import Generation
from storage_core.formats.translation_map import MOST_INPUTS, TranslationMap
from storage_core.ids import Ids
from storage_core.index import segments
from storage_core.index.coverage import REBUILD_SHARE
from storage_core.index.translations import store_translation
from storage_core.log.actions import IndexSegment
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation_segments
from storage_core.region.refused import Records
from storage_core.rows import fold
from storage_core.rows.keys import Positions, key_codes
from storage_core.rows.positions import bitmap_of
from storage_core.settings.index import IndexDefinition
from storage_core.settings.table import TableConfig
from storage_core.split.arrangement import places_in_order
from storage_core.split.context import SplitContext
from storage_core.split.rewrite import Rewrite

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MovingSegments:
    """The generations of a merge and their records, those of them that are merged."""

    generations: Sequence[Generation]
    records: Records
    context: SplitContext

    @property
    def any(self) -> bool:
        """Whether a generation has a segment of an index of the table."""
        return bool(self._indexes) and any(each.segments for each in self.generations)

    def followed(
        self, store: ObjectStore, rewrite: Rewrite, rows: pa.Table, placed: Sequence[Positions], *, ids: Ids
    ) -> Rewrite:
        """Return the rewrite with the segments of generations that answer for its rows, and what leads there.

        `rows` are those that were written, `placed` their places in the order of the splits. One GET per segment, which
        has to be sound, and one PUT; no segment is written. Nothing is done for generations of which more than a fifth
        of the rows were superseded, or whose records went into quarantine.
        """
        if len(self.generations) >= MOST_INPUTS:
            return rewrite
        origins = self._origins(rows.select(self.records.key).take(pa.array(np.concatenate(placed))))
        worth = ((number, self._segments(store, number, origins.whole[number])) for number in self._worth_it(origins))
        moved = {number: own for number, own in worth if own}
        if not moved:
            return rewrite
        found = _map(origins, [*moved], [add.numRecords or 0 for add in rewrite.adds])
        if not _is_of(found, origins, [*moved]):
            _logger.warning("no segment of %s is followed: its rows are not in the order of its segments", [*moved])
            return rewrite
        names = [generation_segments.covered_name(each) for each in self.generations]
        inputs = [*(names[number] for number in moved), f"{names[-1]}/rest"]
        translation = store_translation(store, found, inputs, rewrite.adds, ids=ids)
        joining = tuple(each for own in moved.values() for each in own)
        return replace(rewrite, translations=(translation,), segments=joining)

    @property
    def _indexes(self) -> tuple[IndexDefinition, ...]:
        return TableConfig.from_configuration(self.context.configuration).indexes

    def _origins(self, rows: pa.Table) -> _Origins:
        ends = np.cumsum(self.records.lengths)
        parts = [
            self.records.rows.slice(int(end) - length, length)
            for end, length in zip(ends, self.records.lengths, strict=True)
        ]
        key = self.records.key
        folded = [fold.fold(part, key) for part in parts]
        *codes, final = key_codes([each.select(key) for each in (*folded, rows)], key)
        most = max((int(each.max()) for each in (*codes, final) if len(each)), default=0) + 1
        source, row, counts = np.full(most, -1), np.zeros(most, np.int64), []
        for number, (own, part) in enumerate(zip(codes, folded, strict=True)):
            whole = generation_segments.gives_whole_rows(part)
            source[own] = np.where(whole, number, -1)  # of a key the last word counts
            places = places_in_order(part.filter(pa.array(whole)), self.context)
            row[own[whole][places]] = np.arange(len(places))
            counts.append(len(places))
        return _Origins(source[final], row[final], counts)

    def _worth_it(self, origins: _Origins) -> list[int]:
        """The generations that keep enough of their rows, and lost none to the quarantine."""
        found = []
        for number, (each, rows) in enumerate(zip(self.generations, origins.whole, strict=True)):
            superseded = rows - int((origins.source == number).sum())
            complete = self.records.lengths[number] == each.records
            if rows and complete and superseded <= REBUILD_SHARE * rows:
                found.append(number)
        return found

    def _segments(self, store: ObjectStore, number: int, rows: int) -> list[IndexSegment]:
        """The sound segments of a generation."""
        found, sound = self.generations[number], []
        for definition in self._indexes:
            segment = generation_segments.segment_for(found, definition, rows, self.context.arrangement)
            if segment is None:
                continue
            try:
                segments.load(store, segment)
            except (Corrupt, NotFound) as error:
                _logger.warning("a segment of generation %s is not usable and not moved: %s", found.path, error)
                continue
            sound.append(segment)
        return sound


@dataclass(frozen=True, slots=True, eq=False)
class _Origins:
    """Of each row of a merge the generation that gave it whole, by its place, or -1, and which row it is there.

    `whole` is how many rows each generation gives whole. Rows are counted in the order in which a merge writes them.
    """

    source: Positions
    row: Positions
    whole: Sequence[int]


def _map(origins: _Origins, taken: Sequence[int], outputs: Sequence[int]) -> TranslationMap:
    numbers = np.full(len(origins.whole) + 1, len(taken))
    numbers[list(taken)] = np.arange(len(taken))
    order = numbers[origins.source]  # the last one is that of -1
    gone = [BitMap(range(origins.whole[each])) - _rows_of(origins, each) for each in taken]
    return TranslationMap(
        input_rows=(*(origins.whole[each] for each in taken), int((order == len(taken)).sum())),
        output_rows=tuple(outputs),
        order=order.astype(np.uint8 if len(taken) < 2**8 else np.uint16),
        dropped=(*gone, BitMap()),
    )


def _is_of(found: TranslationMap, origins: _Origins, taken: Sequence[int]) -> bool:
    """Whether the translation leads where the rows went: to each row of the merge from the row that it was."""
    for number, source in enumerate(taken):
        rows, there = found.places(number, np.arange(origins.whole[source]))
        own = np.flatnonzero(origins.source == source)
        if not (np.array_equal(there, own) and np.array_equal(rows, origins.row[own])):
            return False
    return True


def _rows_of(origins: _Origins, source: int) -> BitMap:
    return bitmap_of(origins.row[origins.source == source])
