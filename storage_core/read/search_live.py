"""Which hits of a search are rows to be found: those that are neither deleted nor left out by the filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.index.fulltext import Hit
from storage_core.objectstore.prefetch import prefetch
from storage_core.read.bitmap_pruning import Answer
from storage_core.read.search_filter import RowFilter
from storage_core.read.search_source import Source
from storage_core.rows.codes import Mask

_AT_ONCE = 4
_FILTERED_ROWS = 2**18


class Live:
    """Takes hits, and returns those that are rows to be found, in their order.

    Deleted rows are looked up of sources with hits only. What bitmap indexes do not tell of the rows of hits is read of
    them: the columns of the filter. So what it costs is that of the hits until enough meet it, and not of the table.
    """

    def __init__(self, found: Sequence[Source], wanted: RowFilter | None) -> None:
        self.sources = found
        self._filter = wanted
        self._deleted: dict[int, BitMap] = {}
        self._answers: dict[str, Answer] = {}
        self._rows: dict[int, BitMap] = {}

    def __call__(self, hits: list[Hit]) -> list[Hit]:
        """Return the hits that are rows to be found. Raises what `Source.take` and `RowFilter.mask` raise."""
        sources = {hit.source for hit in hits}
        admitted = {source for source in sources if not self.excludes(source)}
        unknown = sorted(admitted - self._deleted.keys())
        found = prefetch(lambda source: self.sources[source].deleted(), unknown, _AT_ONCE)
        self._deleted.update(zip(unknown, found, strict=True))
        live = [hit for hit in hits if hit.source in admitted and hit.row not in self._deleted[hit.source]]
        return live if self._filter is None or not live else self._filtered(live, self._filter)

    @property
    def is_filtered(self) -> bool:
        """Whether rows have to meet a filter."""
        return self._filter is not None

    def rows(self, source: int) -> BitMap:
        """Return the rows of a source that are to be found. With a filter its columns of all live rows are read."""
        if source not in self._rows:
            self._rows[source] = self._found(source)
        return self._rows[source]

    def excludes(self, source: int) -> bool:
        """Whether the filter leaves out every row of a source, by what the log says of it."""
        paths = self.sources[source].splits
        return self._filter is not None and bool(paths) and self._filter.splits.isdisjoint(paths)

    def require_sound(self) -> None:
        """Raise `InvalidInput` for a filter that cannot be evaluated, also where it met no hit."""
        if self._filter is not None:
            self._filter.require_sound()

    def _found(self, source: int) -> BitMap:
        if self.excludes(source):
            return BitMap()
        own, wanted = self.sources[source], self._filter
        live = BitMap(range(own.count())) - own.deleted()
        if wanted is None:
            return live
        places, met = np.array(live.to_array(), np.int64), BitMap()
        for at in range(0, len(places), _FILTERED_ROWS):
            block = places[at : at + _FILTERED_ROWS]
            mask = wanted.mask(own.take(block.tolist(), wanted.columns), len(block))
            met |= BitMap(block[mask].astype(np.uint32))
        return met

    def _filtered(self, hits: list[Hit], wanted: RowFilter) -> list[Hit]:
        """Those that meet the filter: of hits in splits that bitmap indexes tell of, by their rows there."""
        places: dict[int, list[int]] = {}
        for place, hit in enumerate(hits):
            places.setdefault(hit.source, []).append(place)
        in_split = [
            (split, np.array(own, np.int64)[which], there)
            for source, own in places.items()
            for split, which, there in self.sources[source].in_splits([hits[place].row for place in own])
        ]
        unknown = sorted({split for split, _, _ in in_split} - self._answers.keys())
        found = prefetch(wanted.by_bitmaps, unknown, _AT_ONCE)
        self._answers.update(zip(unknown, found, strict=True))
        met, is_told = np.ones(len(hits), np.bool_), np.zeros(len(hits), np.bool_)
        for split, own_places, there in in_split:
            answer = self._answers[split]
            if answer.rows is not None:
                met[own_places] = [row in answer.rows for row in there.tolist()]
            is_told[own_places] = answer.is_exact
        left = {source: [place for place in own if met[place] and not is_told[place]] for source, own in places.items()}
        self._read(hits, {source: own for source, own in left.items() if own}, wanted, met)
        return [hit for hit, is_met in zip(hits, met.tolist(), strict=True) if is_met]

    def _read(self, hits: Sequence[Hit], places: Mapping[int, Sequence[int]], wanted: RowFilter, met: Mask) -> None:
        """Note which hits at these places, by source, have rows that meet the filter."""

        def taken(source: int) -> pa.Table:
            return self.sources[source].take([hits[place].row for place in places[source]], wanted.columns)

        if places:
            read = np.array([place for own in places.values() for place in own], np.int64)
            met[read] = wanted.mask(pa.concat_tables(prefetch(taken, places, _AT_ONCE)), len(read))
