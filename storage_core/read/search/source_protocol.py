"""The sources of a search, and the filter that removes hits in deleted or filtered rows.

A `Source` is a set of rows that an index numbers from 0, for example a split or a generation. `LiveFilter` keeps the
hits that are not deleted and meet the filter. `TextFilter` is a filter that consists of the hits of another index. Each
segment has its own row numbers. Therefore this filter identifies rows by split and position, or by key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, NotFound
from storage_core.data.rows.codes import Mask, Unsigned
from storage_core.data.rows.keys import Positions, bitmap_of, key_codes, positions
from storage_core.index.damage import damaged
from storage_core.index.fulltext import Hits
from storage_core.index.vector.blocks import Ranged
from storage_core.read.predicate import Predicate
from storage_core.read.row_filter import NOTHING_KNOWN, RowFilter
from storage_core.store.meter import prefetch

Between = tuple[Unsigned, Unsigned]
"""Two arrays of `leading_keys`.

For each row, the arrays contain the lower and the upper bound of the first column of `tie_columns`.
"""

InSplit = tuple[str, Positions, Positions]
"""The path of a split, the list positions of some rows, and their row numbers in the split."""


Place = Literal["base", "generation", "log", "records"]
"""The kind of a source.

- `base`: splits of the base.
- `generation`: one generation.
- `log`: entries of a log.
- `records`: rows that are merged from several records, or from records and the base.
"""


@dataclass(frozen=True, slots=True)
class Origin:
    """The location of the rows of a source.

    `name` is the path of a split of the base, or of a segment over several splits. `segment` is the path of the segment
    that covers the rows, or None if no segment covers them.
    """

    place: Place
    name: str
    segment: str | None = None


class Source(Protocol):
    """A set of rows that an index numbers from 0."""

    @property
    def origin(self) -> Origin:
        """The location of the rows, in the form that `explain_search` shows."""
        ...

    @property
    def name(self) -> str:
        """A text that identifies the content of the index files."""
        ...

    @property
    def splits(self) -> tuple[str, ...]:
        """The paths of the splits that contain the rows. The tuple is empty if the rows are not in the base."""
        ...

    @property
    def segment_bytes(self) -> int | None:
        """The size in bytes of the segment that covers the rows. The size is None if no segment covers the rows."""
        ...

    @property
    def is_near(self) -> bool:
        """True if reading the source is so fast that a second thread costs more time than it saves."""
        ...

    def count(self) -> int:
        """Return the number of rows."""
        ...

    def directory(self) -> Path:
        """Return the directory with the files of the index over all rows of this source."""
        ...

    def ranged_files(self) -> Ranged | None:
        """Return the files of a vector segment if they are read by ranges. None if `directory` must be read."""
        ...

    def matching_rows(self, condition: Predicate) -> BitMap:
        """Return the rows that meet a condition on columns of the index. The index must have bitmaps."""
        ...

    def low(self) -> Any:
        """Return a lower bound of the first column of `tie_columns`, or None if unknown. Makes no request."""
        ...

    def bounds(self, rows: Positions) -> Between | None:
        """Return the bounds of these rows according to the log, or None if there are no bounds. Makes no request."""
        ...

    def between(self, rows: Positions) -> Between | None:
        """Return the lower and upper bounds of these rows in the order of results. Return None if there are no bounds.

        These bounds cost less than `take`.
        """
        ...

    def in_splits(self, rows: Positions) -> Iterable[InSplit]:
        """Return each split of the base that contains some of these rows."""
        ...

    def deleted_rows(self) -> BitMap:
        """Return the rows that no result may contain, even if the index finds them."""
        ...

    def take(self, rows: Positions, columns: Collection[str]) -> pa.Table:
        """Return some columns of some rows.

        The result has the table's columns in schema order, and the rows in the order of `rows`.
        """
        ...


class Unusable(Exception):  # noqa: N818  # never leaves a search
    """A segment or translation is damaged or no longer exists.

    The search must read the rows of the segment from splits instead.
    """

    def __init__(self, path: str, why: object) -> None:
        """Create the error. `path` is the path of the object, and `why` is the error that occurred when it was read."""
        super().__init__(str(why))
        self.path = path


@contextmanager
def usable(path: str) -> Iterator[None]:
    """Raise `Unusable` if the block finds that the object is damaged or missing."""
    try:
        yield
    except (Corrupt, NotFound) as error:
        raise Unusable(path, error) from error


def chosen(schema: pa.Schema, columns: Collection[str]) -> pa.Schema:
    """Return the schema with only these columns."""
    return pa.schema([each for each in schema if each.name in columns])


def require_within(rows: Positions, count: int, where: str) -> None:
    """Raise `Corrupt` if an index returns the number of a row that does not exist."""
    if (last := int(rows.max())) >= count:
        raise damaged(where, f"the index contains row {last}, but there are only {count} rows")


class TextFilter:
    """A filter that accepts only the rows of some hits.

    The filter identifies rows of the base by position, and other rows by key.
    """

    def __init__(self, found: Sequence[Source], hits: Hits, key: Sequence[str]) -> None:
        """Build the filter from hits in these sources. The table has the key `key`.

        Requests: those of `Source.in_splits`.
        """
        rows = {source: own.rows for source, own in hits.by_source().items()}
        self._key = key
        self._splits: dict[str, BitMap] = {}
        self._unmerged = [found[each].take(own, key) for each, own in rows.items() if not found[each].splits]
        for source, own in rows.items():
            for split, _, there in found[source].in_splits(own):
                self._splits[split] = self._splits.get(split, BitMap()) | bitmap_of(there)

    def mask(self, source: Source, rows: Positions) -> Mask:
        """Return a mask of the rows that this filter contains.

        The source may belong to any index of the same search.
        """
        mask = np.zeros(len(rows), np.bool_)
        if source.splits:
            for split, own, there in source.in_splits(rows):
                mask[own] = among(there, self._splits.get(split, BitMap()))
        elif self._unmerged:
            *matched, own = key_codes([*self._unmerged, source.take(rows, self._key)], self._key)
            mask = np.isin(own, np.concatenate(matched))
        return mask


def among(rows: Positions, bitmap: BitMap) -> Mask:
    """Return which of the rows are in the bitmap."""
    common = bitmap_of(rows) & bitmap if bitmap else bitmap
    found: Mask = np.isin(rows, positions(common)) if common else np.zeros(len(rows), np.bool_)
    return found


_AT_ONCE = 4
_FILTERED_ROWS = 2**18


@dataclass(frozen=True, slots=True)
class SearchCounts:
    """The counts of a vector search on one source. `matching` is the number of live rows that meet the filter.

    `ranked` is the number of rows that were scored by embeddings of the table. `ranked` adds up the scored rows of all
    windows and queries. If `is_exact` is True, all matching rows were scored. Otherwise the search selected candidates
    by their codes, and scored only these candidates. `clusters` is the number of clusters that the last window
    searched, or None for a segment without clusters.
    """

    matching: int
    ranked: int
    is_exact: bool = True
    clusters: int | None = None


class LiveFilter:
    """A filter of hits. `LiveFilter` returns the hits on visible rows that meet the filter, in the same order.

    Deleted rows are read only for sources with hits. Bitmap indexes or earlier searches may already have the result of
    the filter for a hit. Otherwise the columns of the filter are read for the row of the hit. The cost therefore
    depends on the number of checked hits, and not on the size of the table. Hits are checked until enough hits meet the
    filter.
    """

    def __init__(self, found: Sequence[Source], wanted: RowFilter | None, matched: Sequence[TextFilter] = ()) -> None:
        """Create the filter. A row passes the filter if it meets `wanted` and all filters in `matched`."""
        self.sources = found
        self.filter = wanted
        """The filter that rows must meet, or None."""
        self._matched = matched
        self._deleted: dict[int, BitMap] = {}
        self._rows: dict[int, BitMap] = {}
        self.looked: dict[int, SearchCounts] = {}
        """The counts of the vector searches, by the number of the source."""
        self.judged = self.met = 0
        """Two numbers: the evaluated rows, and those evaluated rows that meet the filter."""

    def among(self, matched: Sequence[TextFilter]) -> LiveFilter:
        """Return this filter with the additional condition that a row is in each of `matched`."""
        return LiveFilter(self.sources, self.filter, matched)

    def __call__(self, hits: Hits) -> Hits:
        """Return the hits that are visible rows and meet the filter.

        Raises the errors of `Source.take` and `RowFilter.mask`.
        """
        places = hits.positions_by_source()
        deleted = self._deleted_of(places)
        is_live = np.zeros(len(hits), np.bool_)
        for source, own in places.items():
            if source in deleted:
                is_live[own] = ~among(hits.rows[own], deleted[source])
        live = hits if is_live.all() else hits.take(is_live)
        return self._wanted(live) if len(live) and self.is_filtered else live

    def drop_hidden(self, found: Mapping[int, BitMap]) -> Mapping[int, BitMap]:
        """Return the rows of `found` that are visible and meet the filter. Raises the errors of `__call__`."""
        deleted = self._deleted_of(found)
        live = {source: rows - deleted[source] for source, rows in found.items() if source in deleted}
        if not self.is_filtered:
            return live
        asked = {source: positions(rows) for source, rows in live.items() if rows}
        met = self._meeting(asked)
        return {source: bitmap_of(rows[met[source]]) for source, rows in asked.items()}

    @property
    def is_filtered(self) -> bool:
        """Whether rows must meet a filter."""
        return self.filter is not None or bool(self._matched)

    def rows(self, source: int) -> BitMap:
        """Return the rows of a source that are visible and meet the filter.

        The columns of the filter are read for all live rows of the source.
        """
        if source not in self._rows:
            self._rows[source] = self._found(source)
        return self._rows[source]

    def excludes(self, source: int) -> bool:
        """Return whether the log shows that no row of a source meets the filter."""
        paths = self.sources[source].splits
        return self.filter is not None and bool(paths) and self.filter.splits.isdisjoint(paths)

    def require_valid(self) -> None:
        """Raise `InvalidInput` if the filter cannot be evaluated, even if no hit was checked."""
        if self.filter is not None:
            self.filter.require_valid()

    def _deleted_of(self, sources: Collection[int]) -> Mapping[int, BitMap]:
        """Return the deleted rows of each source. Omit sources that the filter excludes."""
        admitted = [source for source in sorted(sources) if not self.excludes(source)]
        unknown = [source for source in admitted if source not in self._deleted]
        found = prefetch(lambda source: self.sources[source].deleted_rows(), unknown, _AT_ONCE)
        self._deleted.update(zip(unknown, found, strict=True))
        return {source: self._deleted[source] for source in admitted}

    def _found(self, source: int) -> BitMap:
        if self.excludes(source):
            return BitMap()
        own = self.sources[source]
        live = BitMap(range(own.count())) - own.deleted_rows()
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
        """Return the filter if its results for the source may be cached, else None.

        Results may be cached if the source is in splits and no other filter applies.
        """
        return self.filter if source.splits and not self._matched else None

    def _wanted(self, hits: Hits) -> Hits:
        places = hits.positions_by_source()
        met = np.zeros(len(hits), np.bool_)
        for source, mask in self._meeting({source: hits.rows[own] for source, own in places.items()}).items():
            met[places[source]] = mask
        return hits.take(met)

    def _meeting(self, rows: Mapping[int, Positions]) -> dict[int, Mask]:
        """Return, for each source, a mask of the given rows.

        The mask is True for rows that meet the filter and are in all matched sets.
        """
        met = {source: np.ones(len(own), np.bool_) for source, own in rows.items()}
        for source, own in rows.items():
            for matched in self._matched:
                met[source] &= matched.mask(self.sources[source], own)
        if self.filter is not None:
            self._judge(rows, met, self.filter)
        self.judged += sum(map(len, rows.values()))
        self.met += sum(int(own.sum()) for own in met.values())
        return met

    def _judge(self, rows: Mapping[int, Positions], met: Mapping[int, Mask], wanted: RowFilter) -> None:
        """Remove the rows that do not meet the filter from the masks.

        Cached results decide, or DuckDB evaluates the filter.
        """
        in_split = [(source, *each) for source, own in rows.items() for each in self.sources[source].in_splits(own)]
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
            return self.sources[source].take(rows[source][unknown[source]], wanted.columns)

        ends = np.cumsum([*map(len, unknown.values())])
        mask = wanted.mask(pa.concat_tables(prefetch(taken, unknown, _AT_ONCE)), int(ends[-1]))
        for (source, own), part in zip(unknown.items(), np.split(mask, ends[:-1]), strict=True):
            met[source][own] = part
        for source, split, which, there in in_split:
            is_new = left[source][which]
            if is_new.any():
                wanted.note(split, there[is_new], met[source][which][is_new])
