"""Where the rows of a search come from, each as files of the index.

Rows of the base with a segment are answered from it, wherever they moved since it was built; the others are indexed on
the fly by the same builder and take part as if they had one; generations likewise. A segment or translation that is
damaged or gone is one that is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.bundle import checksum
from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage
from storage_core.index.vector.parts import Ranged
from storage_core.log.actions import IndexSegment
from storage_core.log.covered import is_over_one_split
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.overlay import Overlay
from storage_core.read.predicate import Predicate
from storage_core.rows.keys import Positions
from storage_core.rows.positions import bitmap_of, positions
from storage_core.search.base import Base, Hidden
from storage_core.search.kept import Kept
from storage_core.search.order import Between
from storage_core.search.ranged import parts_of
from storage_core.search.source import InSplit, Origin, Source, require_within, usable
from storage_core.search.unmerged import unmerged_sources, unpacked

_logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")


def sources(
    store: ObjectStore,
    snapshot: Snapshot,
    covered: Sequence[Coverage],
    *,
    overlay: Overlay,
    cache: SegmentCache,
    kept: Kept,
) -> list[list[Source]]:
    """Return the sources of a search for each index: of the base, generations by region and number, logs, the rest.

    Of the base first what has no segment, by split, then the segments by path. What is hidden is looked up once.
    """
    found, hidden = list[list[Source]](), Hidden()
    for each in covered:
        base = Base(store, snapshot, each, overlay, cache=cache, kept=kept, hidden=hidden)
        found.append([*_gaps(base), *_indexed(base), *unmerged_sources(store, each, cache, overlay, kept=kept)])
    return found


def _gaps(base: Base) -> Iterator[Source]:
    for add in base.covered.missing:
        yield _PartOfSplit(base, add.path) if add.path in base.covered.answers else _Split(base, add.path)


def _indexed(base: Base) -> Iterator[Source]:
    splits: dict[str, list[str]] = {}
    for split, paths in sorted(base.covered.answers.items()):
        for path in paths:
            splits.setdefault(path, []).append(split)
    for path, segment in base.covered.segments.items():
        if is_over_one_split(segment) and segment.covers[0] in base.snapshot.splits:
            yield _Split(base, segment.covers[0], segment)
        else:
            yield _Moved(base, segment, tuple(splits[path]))


@dataclass(frozen=True, slots=True)
class _Split:
    """All rows of a live split, each at its place in the file."""

    base: Base
    path: str
    segment: IndexSegment | None = None

    @property
    def origin(self) -> Origin:
        return Origin("base", self.path, None if self.segment is None else self.segment.path)

    @property
    def name(self) -> str:
        if self.segment is not None:
            return f"{self.segment.path} {self.segment.xxh3}"
        return f"{self.path} {self.base.snapshot.splits[self.path].xxh3}"

    @property
    def splits(self) -> tuple[str, ...]:
        return (self.path,)

    @property
    def is_near(self) -> bool:
        return self.base.is_near

    @property
    def segment_bytes(self) -> int | None:
        return None if self.segment is None else self.segment.size

    def count(self) -> int:
        return self.base.count(self.path)

    def directory(self) -> Path:
        return self._or_gap(self.base.directory, self._gap)

    def ranged(self) -> Ranged | None:
        return None if self.segment is None else parts_of(self.base, self.segment, self.splits)

    def matching(self, condition: Predicate) -> BitMap:
        return self._or_gap(
            lambda segment: self.base.matching(segment, condition, self.count),
            lambda: unpacked(self._gap(), self.base.covered.definition, condition, self.count),
        )

    def low(self) -> Any:
        return self.base.low(self.path)

    def between(self, rows: Sequence[int]) -> Between | None:
        return self.base.between(self.path, rows)

    def in_splits(self, rows: Sequence[int]) -> Iterable[InSplit]:
        return [(self.path, np.arange(len(rows)), np.array(rows, np.int64))]

    def deleted(self) -> BitMap:
        return self.base.hidden(self.path)

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        return self.base.take(self.path, rows, columns)

    def _gap(self) -> Path:
        return self.base.gap(self.path)

    def _or_gap(self, read: Callable[[IndexSegment], _Found], otherwise: Callable[[], _Found]) -> _Found:
        """What is read of the segment, or `otherwise` where there is none, or it is damaged or gone."""
        if self.segment is not None:
            try:
                return read(self.segment)
            except (Corrupt, NotFound) as error:
                found = (self.segment.path, self.path, error)
                _logger.warning("segment %s is not usable, reading %s instead: %s", *found)
        return otherwise()


@dataclass(frozen=True, slots=True)
class _Moved:
    """The rows of a segment over several splits, a part of one, or one whose rows moved; they are in `splits`."""

    base: Base
    segment: IndexSegment
    splits: tuple[str, ...]

    @property
    def origin(self) -> Origin:
        return Origin("base", self.segment.path, self.segment.path)

    @property
    def name(self) -> str:
        return f"{self.segment.path} {self.segment.xxh3}"

    @property
    def is_near(self) -> bool:
        return self.base.is_near

    @property
    def segment_bytes(self) -> int:
        return self.segment.size

    def count(self) -> int:
        return self.segment.numRecords

    def directory(self) -> Path:
        with usable(self.segment.path):
            return self.base.directory(self.segment)

    def ranged(self) -> Ranged | None:
        return parts_of(self.base, self.segment, self.splits)

    def matching(self, condition: Predicate) -> BitMap:
        with usable(self.segment.path):
            return self.base.matching(self.segment, condition, lambda: self.segment.numRecords)

    def low(self) -> Any:
        lows = [self.base.low(split) for split in self.splits]
        return None if None in lows else min(lows)

    def between(self, rows: Sequence[int]) -> Between | None:
        least, most = np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.uint64)
        for split, own, there in self.in_splits(rows):
            found = self.base.between(split, there.tolist())
            if found is None:
                return None
            least[own], most[own] = found
        return least, most

    def in_splits(self, rows: Sequence[int]) -> Iterator[InSplit]:
        require_within(rows, self.segment.numRecords, self.segment.path)
        places, wanted = self.base.places(self.segment), np.array(rows, np.int64)
        split = places.split[wanted]
        for number in np.unique(split).tolist():
            own = np.flatnonzero(split == number)
            yield places.splits[number], own, places.row[wanted[own]].astype(np.int64)

    def deleted(self) -> BitMap:
        return self.base.deleted(self.base.places(self.segment))

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        parts, order = [], []
        for split, own, there in self.in_splits(rows):
            parts.append(self.base.take(split, there.tolist(), columns))
            order.append(own)
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(order), kind="stable")))


@dataclass(frozen=True, slots=True)
class _PartOfSplit:
    """The rows of a live split that no segment answers for, in the order of the file."""

    base: Base
    path: str

    @property
    def origin(self) -> Origin:
        return Origin("base", self.path)

    @property
    def name(self) -> str:
        rows = checksum(self.base.unanswered(self.path).serialize())
        return f"{self.path} {self.base.snapshot.splits[self.path].xxh3} {rows}"

    @property
    def splits(self) -> tuple[str, ...]:
        return (self.path,)

    @property
    def is_near(self) -> bool:
        return self.base.is_near

    @property
    def segment_bytes(self) -> None:
        return None

    def count(self) -> int:
        return len(self.base.unanswered(self.path))

    def directory(self) -> Path:
        return self.base.gap(self.path, self.base.unanswered(self.path))

    def ranged(self) -> None:
        return None

    def matching(self, condition: Predicate) -> BitMap:
        return unpacked(self.directory(), self.base.covered.definition, condition, lambda: len(self._rows()))

    def low(self) -> Any:
        return self.base.low(self.path)

    def between(self, rows: Sequence[int]) -> Between | None:
        return self.base.between(self.path, self._rows()[np.array(rows, np.int64)].tolist())

    def in_splits(self, rows: Sequence[int]) -> Iterable[InSplit]:
        own = self._rows()
        require_within(rows, len(own), self.path)
        return [(self.path, np.arange(len(rows)), own[np.array(rows, np.int64)])]

    def deleted(self) -> BitMap:
        hidden = positions(self.base.hidden(self.path))
        return bitmap_of(np.flatnonzero(np.isin(self._rows(), hidden)))

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        own = self._rows()
        require_within(rows, len(own), self.path)
        return self.base.take(self.path, own[np.array(rows, np.int64)].tolist(), columns)

    def _rows(self) -> Positions:
        return positions(self.base.unanswered(self.path))
