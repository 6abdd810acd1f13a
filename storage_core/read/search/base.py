"""Access of a search to the live splits of a snapshot: hidden rows, moved rows and values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.errors import TidemarkError
from storage_core.data.formats.bundle import TranslationMap
from storage_core.data.rows.bound_text import decode_column
from storage_core.data.rows.codes import Unsigned, has_leading_keys, leading_keys
from storage_core.data.rows.columns import stored_name, stored_names, stored_schema
from storage_core.data.rows.keys import Positions, bitmap_of, positions
from storage_core.data.rows.vectors import is_vector
from storage_core.index.row_positions import RowPositions, RowTranslations, SegmentCache
from storage_core.index.segments import Coverage, CoveredRows, Nearest, part_rows
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.log.coverage import by_input
from storage_core.log.snapshot import Snapshot
from storage_core.read.bitmap import rows_that_meet
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import conditions, leading_bounds
from storage_core.read.search.order import BOUNDED, first_column, least
from storage_core.read.search.search_cache import SearchCache
from storage_core.read.search.source_protocol import Between, chosen, require_within, usable
from storage_core.read.unmerged_records import Overlay
from storage_core.split import pages
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.split.pages import RangedVectors
from storage_core.split.read import WHOLE_SPLIT_BYTES, OpenSplit, conform_split, open_split
from storage_core.split.verification import corrupt_on_failure
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import prefetch
from storage_core.store.pieces import CachedPieces, is_near

_Value = TypeVar("_Value")


class Locks:
    """Locks by name. Each name has one lock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._locks: dict[str, Lock] = {}

    def __call__(self, name: str) -> Lock:
        """Return the lock of this name."""
        with self._lock:
            return self._locks.setdefault(name, Lock())


class SingleFlight(Generic[_Value]):
    """Values by name. Each value is created only once, even if several threads request it concurrently."""

    def __init__(self) -> None:
        self._making = Locks()
        self._values: dict[str, _Value] = {}

    def __call__(self, name: str, make: Callable[[], _Value]) -> _Value:
        """Return the value of this name. If the value does not exist, `make` creates it."""
        with self._making(name):
            if name not in self._values:
                self._values[name] = make()
            return self._values[name]


_LOW_BYTES = 500  # the approximate size of a bound and its name
_FETCHED_AT_ONCE = 8


class SearchBase:
    """The live splits of a snapshot, for the sources of one search. Threads may share an instance."""

    def __init__(
        self,
        store: ObjectStore,
        snapshot: Snapshot,
        covered: Coverage,
        overlay: Overlay,
        *,
        cache: SegmentCache,
        kept: SearchCache,
        hidden: Hidden | None = None,
    ) -> None:
        """Prepare without reading. All indexes of one search use the same cache `hidden`."""
        self.store, self.snapshot, self.covered, self.cache = store, snapshot, covered, cache
        self._kept, self._first = kept, first_column(snapshot)
        self._reading = Locks()
        self._hidden = hidden or Hidden()
        self._unanswered, self._parts, self._directories = (
            SingleFlight[BitMap](),
            SingleFlight[BitMap](),
            SingleFlight[Path](),
        )
        self._overlay = overlay

    @property
    def pieces(self) -> CachedPieces:
        """The cache through which segments are fetched."""
        return self._kept.verified.footers.cached

    @property
    def is_near(self) -> bool:
        """Whether splits and segments are files of this machine."""
        return is_near(self.store, next(iter(self.snapshot.splits), ""), self._kept.values)

    def hidden_rows(self, split: str) -> BitMap:
        """Return the deleted or replaced rows of a split, which no result contains. `Overlay.hidden_rows` is called
        once per split.
        """
        return self._hidden(
            split, lambda: self._overlay.hidden_rows(self.store, self.snapshot, self.snapshot.splits[split])
        )

    def uncovered_rows(self, split: str) -> BitMap:
        """Return the rows of a split that no segment covers.

        Requests: those of the translations that map rows to this split.
        """
        answering = [self.covered.segments[path] for path in self.covered.answers.get(split, ())]
        rows = self.snapshot.splits[split].numRecords or 0

        def found() -> BitMap:
            self._fetch_maps(answering)
            return self._ways.uncovered_rows(split, rows, answering)

        return self._unanswered(split, found)

    def row_positions(self, segment: IndexSegment) -> RowPositions:
        """Return the current positions of the rows of a segment.

        Raises:
            Unusable: A translation, or a segment over a part of a split, is damaged or no longer exists.

        Cost:
            One GET per needed translation that is not cached.
        """

        def found() -> RowPositions:
            self._fetch_maps([segment])
            return self._ways.row_positions(segment)

        return self._kept.values.made(
            self._in_version(segment, "places"), RowPositions, found, lambda each: each.size_bytes
        )

    def deleted_rows(self, segment: IndexSegment) -> BitMap:
        """Return the rows of a segment that are in no live split, or that are hidden in a live split.

        The caller must not change the result. Later searches of the same version reuse the rows that the log hides.
        Requests: those of `row_positions` and `hidden_rows`.
        """
        places, splits = self.row_positions(segment), self.snapshot.splits

        def lasting() -> BitMap:
            cached, found = self._kept.verified.footers.cached, places.nowhere
            for split in places.splits:
                if splits[split].deleted_rows is not None:
                    found |= _in_segment(places, split, deleted_rows(self.store, splits[split], cached))
            return found

        name = self._in_version(segment, "deleted")
        found = self._kept.values.made(name, BitMap, lasting, lambda each: len(each.serialize()))
        for split in self._overlay.touched.intersection(places.splits):
            found = found | _in_segment(places, split, self.hidden_rows(split))
        return found

    def _in_version(self, segment: IndexSegment, what: str) -> tuple[object, ...]:
        """Return the name of a cached value of a segment, which depends on the version of the table."""
        at = (self.snapshot.table_id, self.snapshot.version, self.covered.without)
        return (segment.path, segment.xxh3, what, *at, stored_name(self._first), str(self._first.type))

    def matching_rows(self, segment: IndexSegment, condition: Predicate, count: Callable[[], int]) -> BitMap:
        """Return the rows of a bitmap segment that meet a condition on its columns.

        `count` returns the number of rows of the segment. Requests: those of `segment_reader.SegmentReader`. Raises
        `Corrupt`, `NotFound` and `Unsupported` as `segment_reader.SegmentReader` does.
        """
        wanted = {each.column for each in conditions(condition)}
        reading = self._kept.verified.bitmaps.reading(self.store, segment, self.covered.definition)
        return rows_that_meet(condition, reading.columns(wanted) or {}, count)

    def directory(self, segment: IndexSegment) -> Path:
        """Return the directory with the files of a segment.

        Makes at most one GET. Raises the errors of `SegmentCache.segment`.
        """
        return self._directories(segment.path, lambda: self.cache.segment(self.store, segment))

    def count(self, split: str) -> int:
        """Return the number of rows in a split's file.

        Makes no request, unless the log does not contain the number. In that case it reads the footer.
        """
        add = self.snapshot.splits[split].as_written
        if add.numRecords is not None:
            return add.numRecords
        return open_split(self.store, add, whole=False, footers=self._kept.verified.footers).rows

    def gap(self, split: str, rows: BitMap | None = None) -> Path:
        """Build an index over a split, or over some rows of the split, and return the directory with its files."""
        add = self.snapshot.splits[split]
        return self.cache.gap(self.store, add, self.covered.definition, self.snapshot.schema, rows=rows)

    def low(self, split: str) -> Any:
        """Return the first position in the result order that a row of the split can have (see `order.least`).

        Makes no request.
        """
        kept, add = self._kept.values, self.snapshot.splits[split]
        name = (split, add.xxh3, "low", stored_name(self._first), str(self._first.type))
        found = kept.get(name)
        if found is None:
            found = (least(add, self.snapshot),)
            kept.keep(name, found, _LOW_BYTES)
        return cast("tuple[Any]", found)[0]

    def segment_low(self, segment: IndexSegment, splits: Sequence[str]) -> Any:
        """Return the lowest value that `low` returns for one of these splits of a segment. Makes no request."""

        def found() -> tuple[Any]:
            lows = [self.low(each) for each in splits]
            return (None if None in lows else min(lows),)

        name = self._in_version(segment, "low")
        return self._kept.values.made(name, tuple, found, lambda _: _LOW_BYTES)[0]

    def split_bounds(self, split: str) -> Between | None:
        """Return the bounds of a split in the order of results, or None if the log has no such bounds.

        Makes no request. Later searches reuse the bounds.
        """
        xxh3 = self.snapshot.splits[split].xxh3
        return self._kept_bounds((split, xxh3, "bounds", stored_name(self._first), str(self._first.type)), [split])

    def segment_bounds(self, segment: IndexSegment, splits: Sequence[str]) -> Between | None:
        """Return the bounds of each of these splits of a segment, as in `split_bounds`.

        Makes no request. Later searches of the same version reuse the bounds.
        """
        return self._kept_bounds(self._in_version(segment, "bounds"), splits)

    def _kept_bounds(self, name: tuple[object, ...], splits: Sequence[str]) -> Between | None:
        def found() -> tuple[Unsigned, ...]:
            return self._log_bounds(splits) or ()

        known = self._kept.values.made(name, tuple, found, lambda each: _LOW_BYTES + sum(keys.nbytes for keys in each))
        return (known[0], known[1]) if known else None

    def _log_bounds(self, splits: Sequence[str]) -> Between | None:
        name, kind = stored_name(self._first), self._first.type
        if not any(is_kind(kind) for is_kind in BOUNDED) or not has_leading_keys(kind):
            return None
        adds = [self.snapshot.splits[each] for each in splits]

        def decoded(stated: Iterable[Mapping[str, str] | None]) -> pa.Array:
            return decode_column(pa.array([(each or {}).get(name) for each in stated], pa.string()), kind)

        first, last = decoded(each.minValues for each in adds), decoded(each.maxValues for each in adds)
        low, high = leading_keys(first), leading_keys(last)
        low[first.is_null().to_numpy(zero_copy_only=False)] = 0
        has_nulls = np.array([(each.nullCounts or {}).get(name, 1) > 0 for each in adds], np.bool_)
        high[has_nulls] = leading_keys(pa.nulls(1, kind))[0]
        return low, high

    def between(self, split: str, rows: Positions) -> Between | None:
        """Return bounds for the positions of the given rows in the result order. Return None if there are no bounds.

        A call of this function costs less than a call of `take`.

        The bounds of a local file are the cached keys of its pages. The bounds of a split that is read by ranges are
        the bounds of its row groups.
        """
        add = self.snapshot.splits[split].as_written
        if not has_leading_keys(self._first.type):
            return None
        path = self._kept.verified.path(self.store, add)
        if path is not None:
            return self._keys(add, path, rows) if _is_ours(add) else None
        if add.footerXxh3 is None or add.size <= WHOLE_SPLIT_BYTES:
            return None
        with corrupt_on_failure(add):
            footer = self._kept.verified.footers.of(self.store, add).file
        require_within(rows, footer.num_rows, split)
        bounds = leading_bounds(footer, self._first)
        ends = np.cumsum([footer.row_group(group).num_rows for group in range(footer.num_row_groups)])
        groups = np.searchsorted(ends, rows, side="right")
        return None if bounds is None else (bounds[0][groups], bounds[1][groups])

    def _keys(self, add: Add, path: Path, rows: Positions) -> Between:
        require_within(rows, add.numRecords or 0, add.path)
        places, order = np.unique(rows, return_inverse=True)
        (field,) = stored_schema(pa.schema([self._first]))
        keys = pages.leading_keys(self.store, add, path, places, field=field, kept=self._kept.values)[order]
        self._kept.verified.recheck(self.store, [(add, path)])
        return keys, keys

    def take(self, split: str, rows: Positions, columns: Collection[str]) -> pa.Table:
        """Return some columns of some rows of a split's file.

        The result has the table's columns in schema order, and the rows in the order of `rows`.
        """
        add = self.snapshot.splits[split].as_written  # row numbers of an index are row numbers in the file
        path = self._kept.verified.path(self.store, add)
        is_ascending = bool(np.all(rows[1:] > rows[:-1]))
        places, order = (rows, None) if is_ascending else np.unique(rows, return_inverse=True)
        stored = stored_names(self.snapshot.schema, columns)
        if path is not None and _is_ours(add):
            require_within(rows, add.numRecords or 0, split)
            found = pages.take(self.store, add, path, places, columns=stored, kept=self._kept.values)
        else:
            whole = path is not None or add.size <= WHOLE_SPLIT_BYTES
            opened = open_split(self.store, add, whole=whole, file_path=path, footers=self._kept.verified.footers)
            require_within(rows, opened.rows, split)
            found = self._taken(add, opened, places, stored)
        if not found.num_columns:  # all of these columns were added after the split was written
            found = pa.table({"": pa.nulls(len(places))})
        taken = conform_split(found, chosen(self.snapshot.schema, columns))
        if order is not None:
            taken = taken.take(pa.array(order))
        self._kept.verified.recheck(self.store, [(add, path)] if path is not None else [])
        return taken

    def prefetch_footer(self, split: str) -> None:
        """Cache the footer of a split that `take` will read by ranges. Makes at most one GET, and ignores errors."""
        add = self.snapshot.splits[split].as_written
        if add.footerXxh3 is not None and add.size > WHOLE_SPLIT_BYTES and self.store.local_path(add.path) is None:
            with suppress(TidemarkError, pa.ArrowException, OSError):
                self._kept.verified.footers.of(self.store, add)

    def _taken(self, add: Add, opened: OpenSplit, places: Positions, columns: Collection[str]) -> pa.Table:
        """Return rows of a split.

        If the split is read by ranges, the function reads only the pages with the embeddings of these rows.
        """
        listed = [each.name for each in opened.schema if each.name in columns and is_vector(each.type)]
        if not opened.is_ranged or not listed:
            return opened.take(places, columns)
        footers = self._kept.verified.footers
        with corrupt_on_failure(add):
            footer = footers.of(self.store, add)
            pages = RangedVectors(self.store, add, footer, kept=self._kept.values, cached=footers.cached)
            taken = {name: pages.take(name, opened.schema, places) for name in listed}
        found = {name: vectors for name, vectors in taken.items() if vectors is not None}
        others = [name for name in columns if name not in found and name in opened.schema.names]
        rest = opened.take(places, others) if others else None
        names = [name for name in opened.schema.names if name in columns]
        return pa.table({name: found[name] if rest is None or name in found else rest.column(name) for name in names})

    @cached_property
    def _nearest(self) -> Nearest:
        return Nearest.of(self.covered.segments.values())

    @cached_property
    def _moved(self) -> Mapping[str, Sequence[Translation]]:
        return by_input(self.covered.translations.values())

    @property
    def _ways(self) -> RowTranslations:
        # Do not store this object in an attribute, because it refers to `self`. Only Python's garbage collector frees a
        # reference cycle. Until then, the files of the searchers would stay open.
        return RowTranslations(self.snapshot.splits, self._nearest, self._moved, self._map, self._part)

    def _fetch_maps(self, segments: Iterable[IndexSegment]) -> None:
        """Fetch the translations of these segments concurrently into the cache."""
        needed = {each.path: each for segment in segments for each in self._ways.translations(segment)}
        for _ in prefetch(self._map, needed.values(), _FETCHED_AT_ONCE):
            pass

    def _map(self, translation: Translation) -> TranslationMap:
        def read() -> TranslationMap:
            with usable(translation.path):
                return self.cache.translation(self.store, translation)

        name = (translation.path, translation.xxh3)
        with self._reading(translation.path):
            return self._kept.values.made(name, TranslationMap, read, lambda each: each.size_bytes)

    def _part(self, held: CoveredRows) -> BitMap:
        segment, member = held.segment, held.member

        def found() -> BitMap:
            with usable(segment.path):
                return part_rows((self.directory(segment) / member.file).read_bytes(), segment, member)

        return self._parts(f"{segment.path} {member.split}", found)


def _in_segment(places: RowPositions, split: str, rows: BitMap) -> BitMap:
    """Return the row numbers in a segment for these rows of a split."""
    own, there = places.within(split)
    return bitmap_of(own[np.isin(there, positions(rows))])


Hidden = SingleFlight[BitMap]
"""Rows that cannot be in a result, by the path of their split."""


def _is_ours(add: Add) -> bool:
    """Return whether Tidemark wrote the split. Splits of other writers have any page layout and no checksum."""
    return add.xxh3 is not None and add.numRecords is not None
