"""Segments of generations become those of the base: a merge says which row of a generation each of its rows was.

A row that a generation gives whole, and of whose key no later one says anything, is in the base as it was in the
generation. So the generation's segments answer for it, by a translation that gathers, as rows of a merge are sorted
anew (decision 0116). Of all other rows of the merge, the rest, no segment answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import Corrupt, NotFound
from storage_core.formats import keys
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
from storage_core.settings.index import IndexDefinition
from storage_core.settings.table import TableConfig
from storage_core.split.context import SplitContext
from storage_core.split.rewrite import Rewrite

_logger = logging.getLogger(__name__)

Numbers = npt.NDArray[np.int64]


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

        `rows` are those that were written, `placed` their places in the order of the splits. One GET and one PUT per
        segment, and one PUT. Nothing is done for generations of which more than a fifth of the rows were superseded, or
        whose records went into quarantine.
        """
        origins = self._origins(rows.select(self.records.key).take(pa.array(np.concatenate(placed))))
        taken = self._taken(origins)
        moved = [each for number in taken for each in self._copied(store, number, origins.whole[number], ids=ids)]
        if not moved or len(self.generations) >= MOST_INPUTS:
            return rewrite
        found = _map(origins, taken, [add.numRecords or 0 for add in rewrite.adds])
        inputs = [*(_name(self.generations[each]) for each in taken), f"{_name(self.generations[-1])}/rest"]
        translation = store_translation(store, found, inputs, rewrite.adds, ids=ids)
        return replace(rewrite, translations=(translation,), segments=tuple(moved))

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
            row[own] = np.cumsum(whole) - 1
            counts.append(int(whole.sum()))
        return _Origins(source[final], row[final], counts)

    def _taken(self, origins: _Origins) -> list[int]:
        """The generations whose segments are worth it."""
        found = []
        for number, (each, rows) in enumerate(zip(self.generations, origins.whole, strict=True)):
            superseded = rows - int((origins.source == number).sum())
            complete = self.records.lengths[number] == each.records
            if rows and complete and each.segments and superseded <= REBUILD_SHARE * rows:
                found.append(number)
        return found

    def _copied(self, store: ObjectStore, number: int, rows: int, *, ids: Ids) -> Iterator[IndexSegment]:
        found = self.generations[number]
        for definition in self._indexes:
            segment = generation_segments.usable(found, definition, rows)
            if segment is None:
                continue
            try:
                files = generation_segments.load(store, found, segment)
            except (Corrupt, NotFound) as error:
                _logger.warning("a segment of generation %s is not usable and not moved: %s", found.path, error)
                continue
            yield segments.write(store, files, definition=definition, covers=_name(found), rows=rows, ids=ids)


@dataclass(frozen=True, slots=True, eq=False)
class _Origins:
    """Of each row of a merge the generation that gave it whole, by its place, or -1, and which row it is there.

    `whole` is how many rows each generation gives whole.
    """

    source: Numbers
    row: Numbers
    whole: Sequence[int]


def _map(origins: _Origins, taken: Sequence[int], outputs: Sequence[int]) -> TranslationMap:
    numbers = np.full(len(origins.whole) + 1, len(taken))
    numbers[list(taken)] = np.arange(len(taken))
    order = numbers[origins.source]  # the last one is that of -1
    rest = order == len(taken)
    return TranslationMap(
        input_rows=(*(origins.whole[each] for each in taken), int(rest.sum())),
        output_rows=tuple(outputs),
        order=order,
        rows=np.where(rest, np.cumsum(rest) - 1, origins.row),
    )


def _name(generation: Generation) -> str:
    return f"{keys.REGIONS_PREFIX}{generation.region}/{generation.path}"
