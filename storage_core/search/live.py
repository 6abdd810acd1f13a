"""Which hits of a search are rows to be found: those that are neither deleted nor left out by the filter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.index.fulltext import Hit
from storage_core.objectstore.prefetch import prefetch
from storage_core.read.row_filter import NOTHING_KNOWN, RowFilter
from storage_core.rows.codes import Mask
from storage_core.rows.keys import Positions
from storage_core.rows.positions import bitmap_of, positions
from storage_core.search.source import Source
from storage_core.search.text_filter import TextFilter, among

_AT_ONCE = 4
_FILTERED_ROWS = 2**18


@dataclass(frozen=True, slots=True)
class Looked:
    """What a search by vector did with a source, of which `matching` live rows meet the filter.

    `ranked` were scored by vectors of the table: all if `is_exact`, else those that codes named, in all windows and
    queries together. `clusters` were looked into for the last window, None of a flat segment.
    """

    matching: int
    ranked: int
    is_exact: bool = True
    clusters: int | None = None


class Live:
    """Takes hits, and returns those that are rows to be found, in their order.

    Deleted rows are looked up of sources with hits only. What neither bitmap indexes nor earlier questions tell of the
    rows of hits is read of them: the columns of the filter. So what it costs is that of the hits until enough meet it,
    and not of the table.
    """

    def __init__(self, found: Sequence[Source], wanted: RowFilter | None, matched: Sequence[TextFilter] = ()) -> None:
        """Rows have to meet the filter, and to be among each of the matched ones."""
        self.sources = found
        self._filter = wanted
        self._matched = matched
        self._deleted: dict[int, BitMap] = {}
        self._rows: dict[int, BitMap] = {}
        self.looked: dict[int, Looked] = {}
        """By source, what searches by vector did."""
        self.judged = self.met = 0
        """Of so many rows was asked whether they meet the filter, and so many do."""

    def __call__(self, hits: list[Hit]) -> list[Hit]:
        """Return the hits that are rows to be found. Raises what `Source.take` and `RowFilter.mask` raise."""
        deleted = self._deleted_of({hit.source for hit in hits})
        live = [hit for hit in hits if hit.source in deleted and hit.row not in deleted[hit.source]]
        return self._wanted(live) if live and self.is_filtered else live

    def left(self, found: Mapping[int, BitMap]) -> Mapping[int, BitMap]:
        """Return which of these rows of sources are to be found. Raises as a call does."""
        deleted = self._deleted_of(found)
        live = {source: rows - deleted[source] for source, rows in found.items() if source in deleted}
        if not self.is_filtered:
            return live
        asked = {source: positions(rows) for source, rows in live.items() if rows}
        met = self._meeting(asked)
        return {source: bitmap_of(rows[met[source]]) for source, rows in asked.items()}

    @property
    def is_filtered(self) -> bool:
        """Whether rows have to meet a filter."""
        return self._filter is not None or bool(self._matched)

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

    def _deleted_of(self, sources: Collection[int]) -> Mapping[int, BitMap]:
        """The deleted rows of those of these sources that the filter does not exclude."""
        admitted = [source for source in sorted(sources) if not self.excludes(source)]
        unknown = [source for source in admitted if source not in self._deleted]
        found = prefetch(lambda source: self.sources[source].deleted(), unknown, _AT_ONCE)
        self._deleted.update(zip(unknown, found, strict=True))
        return {source: self._deleted[source] for source in admitted}

    def _found(self, source: int) -> BitMap:
        if self.excludes(source):
            return BitMap()
        own = self.sources[source]
        live = BitMap(range(own.count())) - own.deleted()
        if not self.is_filtered:
            return live
        lasting = self._lasting(own)
        known = NOTHING_KNOWN if lasting is None else lasting.known(own.name)
        rows, met = positions(live - known.judged), live & known.met
        self.judged += len(live) - len(rows)
        self.met += len(met)
        for at in range(0, len(rows), _FILTERED_ROWS):
            block = rows[at : at + _FILTERED_ROWS]
            mask = self._meeting({source: block})[source]
            met |= bitmap_of(block[mask])
            if lasting is not None:
                lasting.note(own.name, block, mask)
        return met

    def _lasting(self, source: Source) -> RowFilter | None:
        """What keeps which rows of a source meet the filter: of splits, and where nothing else is asked of them."""
        return self._filter if source.splits and not self._matched else None

    def _wanted(self, hits: list[Hit]) -> list[Hit]:
        places: dict[int, list[int]] = {}
        for place, hit in enumerate(hits):
            places.setdefault(hit.source, []).append(place)
        rows = {source: np.array([hits[place].row for place in own], np.int64) for source, own in places.items()}
        met = np.zeros(len(hits), np.bool_)
        for source, mask in self._meeting(rows).items():
            met[places[source]] = mask
        return [hit for hit, is_met in zip(hits, met.tolist(), strict=True) if is_met]

    def _meeting(self, rows: Mapping[int, Positions]) -> dict[int, Mask]:
        """Return which of these rows of each source meet the filter and are among the matched ones."""
        met = {source: np.ones(len(own), np.bool_) for source, own in rows.items()}
        for source, own in rows.items():
            for matched in self._matched:
                met[source] &= matched.mask(self.sources[source], own)
        if self._filter is not None:
            self._judge(rows, met, self._filter)
        self.judged += sum(map(len, rows.values()))
        self.met += sum(int(own.sum()) for own in met.values())
        return met

    def _judge(self, rows: Mapping[int, Positions], met: Mapping[int, Mask], wanted: RowFilter) -> None:
        """Leave of these rows those that meet the filter: by what is known of their places in splits, or by DuckDB."""
        in_split = [
            (source, *each) for source, own in rows.items() for each in self.sources[source].in_splits(own.tolist())
        ]
        splits = sorted({split for _, split, _, _ in in_split})
        answers = dict(zip(splits, prefetch(wanted.by_bitmaps, splits, _AT_ONCE), strict=True))
        left = {source: own.copy() for source, own in met.items()}
        for source, split, which, there in in_split:
            answer, known = answers[split], wanted.known(split)
            if answer.rows is not None:
                met[source][which] &= among(there, answer.rows)
            is_judged = among(there, known.judged)
            met[source][which] &= ~is_judged | among(there, known.met)
            left[source][which] &= met[source][which] & ~is_judged & (not answer.is_exact)
        unknown = {source: np.flatnonzero(own) for source, own in left.items() if own.any()}
        if not unknown:
            return

        def taken(source: int) -> pa.Table:
            return self.sources[source].take(rows[source][unknown[source]].tolist(), wanted.columns)

        ends = np.cumsum([*map(len, unknown.values())])
        mask = wanted.mask(pa.concat_tables(prefetch(taken, unknown, _AT_ONCE)), int(ends[-1]))
        for (source, own), part in zip(unknown.items(), np.split(mask, ends[:-1]), strict=True):
            met[source][own] = part
        for source, split, which, there in in_split:
            is_new = left[source][which]
            if is_new.any():
                wanted.note(split, there[is_new], met[source][which][is_new])
