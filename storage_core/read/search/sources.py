"""The sources of a search: the rows of the base, and the unmerged rows.

A segment is used for its rows of the base, even if these rows have moved since the build. For rows of the base without
a segment, the search builds an index with the builder that also builds segments. The search then treats the rows
without a segment like rows with a segment. The search also indexes the rows of generations that have no segment. A
search treats a damaged segment or translation as missing.

There are three kinds of unmerged sources. An unmerged source contains complete rows of a generation, complete rows of a
log, or rows merged from other records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, NotFound
from storage_core.data.formats import region_manifest
from storage_core.data.formats.bundle import checksum
from storage_core.data.rows.keys import Positions, bitmap_of, positions
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import segments, vector
from storage_core.index.bitmap import unpacked_bitmaps
from storage_core.index.row_positions import SegmentCache
from storage_core.index.segments import Coverage, build_rows, fingerprint_of
from storage_core.index.vector.blocks import Ranged
from storage_core.log.actions import IndexSegment
from storage_core.log.coverage import is_over_one_split
from storage_core.log.snapshot import Snapshot
from storage_core.read.bitmap import rows_that_meet
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import conditions
from storage_core.read.search.base import Hidden, SearchBase
from storage_core.read.search.search_cache import SearchCache
from storage_core.read.search.source_protocol import Between, InSplit, Origin, Source, chosen, require_within, usable
from storage_core.read.unmerged_records import LoggedRows, Overlay, WholeRows
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of, both
from storage_core.write.region import generation_write


def unmerged_sources(
    store: ObjectStore, covered: Coverage, cache: SegmentCache, overlay: Overlay, *, kept: SearchCache
) -> list[Source]:
    """Return the sources of unmerged rows.

    The order is generations by region and number, logs by region, then other rows.

    The index files of logs are cached in `kept`.
    """
    generations = sorted(overlay.generations, key=lambda each: (each.generation.region, each.generation.generation))
    logs = sorted(overlay.logs, key=lambda each: (each.region, each.entries[0]))
    return [
        *(_generation(store, covered, cache, each) for each in generations),
        *(_run(covered, cache, each, kept) for each in logs),
        *([_rest(covered, cache, overlay.rest)] if overlay.rest.num_rows else []),
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Unmerged:
    """Rows in memory.

    `made` returns the directory with the index files of the rows. `named` returns a text that identifies the rows.
    """

    definition: IndexDefinition
    origin: Origin
    rows: pa.Table
    hidden: BitMap
    named: Callable[[], str]
    made: Callable[[], Path]
    segment_bytes: int | None = None

    @property
    def name(self) -> str:
        return self.named()

    @property
    def splits(self) -> tuple[str, ...]:
        return ()

    @property
    def is_near(self) -> bool:
        return True

    def count(self) -> int:
        return int(self.rows.num_rows)

    def directory(self) -> Path:
        return self.made()

    def ranged_files(self) -> None:
        return None

    def matching_rows(self, condition: Predicate) -> BitMap:
        return unpacked(self.directory(), self.definition, condition, self.count)

    def low(self) -> None:
        return None

    def bounds(self, _: Positions) -> None:
        return None

    def between(self, _: Positions) -> None:
        return None

    def in_splits(self, _: Positions) -> Iterable[InSplit]:
        return ()

    def deleted_rows(self) -> BitMap:
        return self.hidden

    def take(self, rows: Positions, columns: Collection[str]) -> pa.Table:
        require_within(rows, self.count(), self.name)
        return self.rows.select(chosen(self.rows.schema, columns).names).take(pa.array(rows))


def _generation(store: ObjectStore, covered: Coverage, cache: SegmentCache, whole: WholeRows) -> _Unmerged:
    """Return the source for the complete rows of a generation. If the generation has a segment, the source uses it."""
    definition, generation = covered.definition, whole.generation
    segment = generation_write.segment_for(generation, definition, whole.rows.num_rows, whole.order)
    source = f"{fingerprint_of(definition)}\n{whole.order}\n{region_manifest.encode_generation(generation).decode()}"

    def made() -> Path:
        files = partial(generation_write.files, store, segment, definition, whole.rows)
        return cache.built(f"generation-{generation.path}", source, files)

    name, size = f"generation-{generation.path} {checksum(source.encode())}", None if segment is None else segment.size
    origin = Origin("generation", generation.path, None if segment is None else segment.path)
    return _Unmerged(definition, origin, whole.rows, whole.deleted, lambda: name, made, size)


def _run(covered: Coverage, cache: SegmentCache, run: LoggedRows, kept: SearchCache) -> _Unmerged:
    """Return the source for complete rows in consecutive WAL entries. The index files of these rows are built once."""
    definition, name = covered.definition, run.name

    def made() -> Path:
        known = (name, fingerprint_of(definition), "files")
        files = kept.values.made(
            known, dict, lambda: build_rows(run.rows, definition), lambda each: sum(map(len, each.values()))
        )
        return cache.write_temporary(files)

    return _Unmerged(definition, Origin("log", run.region), run.rows, run.deleted, lambda: name, made)


def _rest(covered: Coverage, cache: SegmentCache, rows: pa.Table) -> _Unmerged:
    """Return the source for rows that are merged from several records, or from records and the base."""

    def named() -> str:
        sink = pa.BufferOutputStream()
        texts = rows.select(list(covered.definition.columns)).combine_chunks()
        with pa.ipc.new_stream(sink, texts.schema) as writer:
            writer.write_table(texts)
        return f"rest {checksum(sink.getvalue())}"

    definition, origin = covered.definition, Origin("records", "records over the base")
    return _Unmerged(
        definition, origin, rows, BitMap(), named, lambda: cache.write_temporary(build_rows(rows, definition))
    )


def _repeat_bounds(bounds: Between | None, count: int) -> Between | None:
    """Return `count` copies of the bounds of a split, or None if there are no bounds."""
    return None if bounds is None else (np.repeat(bounds[0], count), np.repeat(bounds[1], count))


def unpacked(directory: Path, definition: IndexDefinition, condition: Predicate, count: Callable[[], int]) -> BitMap:
    """Return the rows that meet a condition. The result comes from an unpacked bitmap segment. Raises `Corrupt`."""
    wanted = {each.column for each in conditions(condition)}
    columns = {name: unpacked_bitmaps(directory, definition, name) for name in wanted}
    return rows_that_meet(condition, columns, count)


_logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")


def sources(
    store: ObjectStore,
    snapshot: Snapshot,
    covered: Sequence[Coverage],
    *,
    overlay: Overlay,
    cache: SegmentCache,
    kept: SearchCache,
) -> list[list[Source]]:
    """Return the sources of a search for each index.

    The order is the base, generations by region and number, logs, then other sources.

    Splits of the base without a segment come first, sorted by path. Sources with segments come next, sorted by the
    path of the segment. The hidden rows are read only once for all indexes.
    """
    found, hidden = list[list[Source]](), Hidden()
    for each in covered:
        base = SearchBase(store, snapshot, each, overlay, cache=cache, kept=kept, hidden=hidden)
        found.append([*_gaps(base), *_indexed(base), *unmerged_sources(store, each, cache, overlay, kept=kept)])
    return found


def _gaps(base: SearchBase) -> Iterator[Source]:
    for add in base.covered.missing:
        yield _PartOfSplit(base, add.path) if add.path in base.covered.answers else _Split(base, add.path)


def _indexed(base: SearchBase) -> Iterator[Source]:
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
    """All rows of a live split. The row number in the index is the position in the file."""

    base: SearchBase
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

    def ranged_files(self) -> Ranged | None:
        return None if self.segment is None else parts_of(self.base, self.segment, self.splits)

    def matching_rows(self, condition: Predicate) -> BitMap:
        return self._or_gap(
            lambda segment: self.base.matching_rows(segment, condition, self.count),
            lambda: unpacked(self._gap(), self.base.covered.definition, condition, self.count),
        )

    def low(self) -> Any:
        return self.base.low(self.path)

    def bounds(self, rows: Positions) -> Between | None:
        return _repeat_bounds(self.base.split_bounds(self.path), len(rows))

    def between(self, rows: Positions) -> Between | None:
        return self.base.between(self.path, rows)

    def in_splits(self, rows: Positions) -> Iterable[InSplit]:
        return [(self.path, np.arange(len(rows)), rows)]

    def deleted_rows(self) -> BitMap:
        return self.base.hidden_rows(self.path)

    def take(self, rows: Positions, columns: Collection[str]) -> pa.Table:
        return self.base.take(self.path, rows, columns)

    def _gap(self) -> Path:
        return self.base.gap(self.path)

    def _or_gap(self, read: Callable[[IndexSegment], _Found], otherwise: Callable[[], _Found]) -> _Found:
        """Return the value that `read` reads from the segment, or `otherwise()` if no segment is usable."""
        if self.segment is not None:
            try:
                return read(self.segment)
            except (Corrupt, NotFound) as error:
                found = (self.segment.path, self.path, error)
                _logger.warning("segment %s is not usable, reading %s instead: %s", *found)
        return otherwise()


@dataclass(frozen=True, slots=True)
class _Moved:
    """The rows of a segment that covers more or less than one whole split, or whose rows have moved.

    For example, the segment covers several splits or a part of a split.

    The rows are now in `splits`.
    """

    base: SearchBase
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

    def ranged_files(self) -> Ranged | None:
        return parts_of(self.base, self.segment, self.splits)

    def matching_rows(self, condition: Predicate) -> BitMap:
        with usable(self.segment.path):
            return self.base.matching_rows(self.segment, condition, lambda: self.segment.numRecords)

    def low(self) -> Any:
        return self.base.segment_low(self.segment, self.splits)

    def bounds(self, rows: Positions) -> Between | None:
        require_within(rows, self.segment.numRecords, self.segment.path)
        places = self.base.row_positions(self.segment)
        found = self.base.segment_bounds(self.segment, places.splits)
        split = places.split[rows]
        return None if found is None else (found[0][split], found[1][split])

    def between(self, rows: Positions) -> Between | None:
        least, most = np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.uint64)
        for split, own, there in self.in_splits(rows):
            found = self.base.between(split, there)
            if found is None:
                return None
            least[own], most[own] = found
        return least, most

    def in_splits(self, rows: Positions) -> Iterator[InSplit]:
        require_within(rows, self.segment.numRecords, self.segment.path)
        places = self.base.row_positions(self.segment)
        split = places.split[rows]
        for number in np.unique(split).tolist():
            own = np.flatnonzero(split == number)
            yield places.splits[number], own, places.row[rows[own]].astype(np.int64)

    def deleted_rows(self) -> BitMap:
        return self.base.deleted_rows(self.segment)

    def take(self, rows: Positions, columns: Collection[str]) -> pa.Table:
        parts, order = [], []
        for split, own, there in self.in_splits(rows):
            parts.append(self.base.take(split, there, columns))
            order.append(own)
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(order), kind="stable")))


@dataclass(frozen=True, slots=True)
class _PartOfSplit:
    """The rows of a live split that no segment covers, in the order of the file."""

    base: SearchBase
    path: str

    @property
    def origin(self) -> Origin:
        return Origin("base", self.path)

    @property
    def name(self) -> str:
        rows = checksum(self.base.uncovered_rows(self.path).serialize())
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
        return len(self.base.uncovered_rows(self.path))

    def directory(self) -> Path:
        return self.base.gap(self.path, self.base.uncovered_rows(self.path))

    def ranged_files(self) -> None:
        return None

    def matching_rows(self, condition: Predicate) -> BitMap:
        return unpacked(self.directory(), self.base.covered.definition, condition, lambda: len(self._rows()))

    def low(self) -> Any:
        return self.base.low(self.path)

    def bounds(self, rows: Positions) -> Between | None:
        return _repeat_bounds(self.base.split_bounds(self.path), len(rows))

    def between(self, rows: Positions) -> Between | None:
        return self.base.between(self.path, self._rows()[rows])

    def in_splits(self, rows: Positions) -> Iterable[InSplit]:
        own = self._rows()
        require_within(rows, len(own), self.path)
        return [(self.path, np.arange(len(rows)), own[rows])]

    def deleted_rows(self) -> BitMap:
        hidden = positions(self.base.hidden_rows(self.path))
        return bitmap_of(np.flatnonzero(np.isin(self._rows(), hidden)))

    def take(self, rows: Positions, columns: Collection[str]) -> pa.Table:
        own = self._rows()
        require_within(rows, len(own), self.path)
        return self.base.take(self.path, own[rows], columns)

    def _rows(self) -> Positions:
        return positions(self.base.uncovered_rows(self.path))


WHOLE_SEGMENT_BYTES: Final = 8 * 2**20
"""The maximum size in bytes of a segment that is fetched as a whole.

The fetch of a whole segment takes one request and one round trip.
"""

_FORESEEN: Final = 4


def parts_of(base: SearchBase, segment: IndexSegment, splits: Sequence[str]) -> vector.Ranged | None:
    """Return the files of a vector segment for reading by ranges.

    Returns None if the segment is small, on a local disk, or not a vector segment.

    Raises:
        Unusable: The segment is damaged or no longer exists.

    Cost:
        Concurrent ranged GETs. One GET reads the directory of the segment with the data that opening needs. One GET
        reads the footer of each of the first `splits`, because the embeddings of these splits are read next. Cached
        data takes no GET.
    """
    store, definition = base.store, base.covered.definition
    if definition.kind != "vector" or segment.size <= WHOLE_SEGMENT_BYTES or store.local_path(segment.path) is not None:
        return None
    dimensions = base.snapshot.schema.field(definition.columns[0]).type.list_size
    quantization = vector.options_of(definition).quantization
    trained = vector.Training.of(segment)
    clusters = None if trained is None else trained.clusters
    ahead = min(vector.opening_bytes(quantization, dimensions, segment.numRecords, clusters), segment.size // 2)
    expected = segments.expected_of(segment)
    with usable(segment.path):
        found, _ = both(
            lambda: vector.Ranged(store, expected, ahead=ahead, cached=base.pieces),
            lambda: all_of(base.prefetch_footer, splits[:_FORESEEN], _FORESEEN),
        )
    return found
