"""Where the rows of a search come from, each as files of the index.

Splits of the base with a segment are answered from it, the others are indexed on the fly by the same builder and take
part as if they had one; generations likewise. A segment that is damaged or gone is one that is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import Corrupt, NotFound
from storage_core.formats import generation_manifest
from storage_core.formats.bundle import checksum
from storage_core.index.bitmap import unpacked_bitmaps
from storage_core.index.cache import SegmentCache
from storage_core.index.native_errors import REBUILD
from storage_core.index.segments import Coverage, build_rows, fingerprint_of
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.bitmap_rows import rows_that_meet
from storage_core.read.overlay import Overlay, WholeRows
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import conditions
from storage_core.read.search_kept import Kept
from storage_core.read.search_order import least, order_of
from storage_core.region import generation_segments
from storage_core.settings.index import IndexDefinition
from storage_core.split import pages
from storage_core.split.conform import conform_split
from storage_core.split.read import WHOLE_SPLIT_BYTES, open_split

_logger = logging.getLogger(__name__)

_LOW_BYTES = 500  # of a bound and its name


class Source(Protocol):
    """Rows that an index counts from 0."""

    @property
    def name(self) -> str:
        """Text that fixes what is in the files of the index."""
        ...

    @property
    def split(self) -> str | None:
        """The path of the split of the base that the rows are of; None where they are of none."""
        ...

    @property
    def fetched_bytes(self) -> int | None:
        """How large the segment is that `directory` fetches; None where it has the rows indexed."""
        ...

    def directory(self) -> Path:
        """Return the directory with the files of the index over all the rows."""
        ...

    def matching(self, condition: Predicate) -> BitMap:
        """Return the rows that meet a condition on columns of the index, which has bitmaps."""
        ...

    def low(self) -> Any:
        """Return what no row orders below, as `search_order.least`; None where that is unknown. No request."""
        ...

    def deleted(self) -> BitMap:
        """Return the rows that are no answer, whatever an index says of them."""
        ...

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        """Return these columns of these rows under the schema of the table, in its and in this order."""
        ...


def sources(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    covered: Coverage,
    overlay: Overlay,
    cache: SegmentCache,
    kept: Kept,
) -> list[Source]:
    """Return the sources of a search: splits by path, generations by region and number, what is in neither."""
    order = order_of(snapshot)
    base = [_Split(store, snapshot, covered, overlay, cache, kept, order, path) for path in sorted(snapshot.splits)]
    ordered = sorted(overlay.generations, key=lambda each: (each.generation.region, each.generation.generation))
    generations = [_Generation(store, covered, cache, each) for each in ordered]
    rest = [_Rest(covered, cache, overlay.rest)] if overlay.rest.num_rows else []
    return [*base, *generations, *rest]


@dataclass(frozen=True, slots=True)
class _Split:
    store: ObjectStore
    snapshot: Snapshot
    covered: Coverage
    overlay: Overlay
    cache: SegmentCache
    kept: Kept
    order: tuple[str, str]
    path: str

    @property
    def name(self) -> str:
        segment = self.covered.segments.get(self.path)
        if segment is not None:
            return f"{segment.path} {segment.xxh3}"
        return f"{self.path} {self.snapshot.splits[self.path].xxh3}"

    @property
    def split(self) -> str:
        return self.path

    @property
    def fetched_bytes(self) -> int | None:
        segment = self.covered.segments.get(self.path)
        return None if segment is None else segment.size

    def directory(self) -> Path:
        segment = self.covered.segments.get(self.path)
        if segment is not None:
            try:
                return self.cache.segment(self.store, segment)
            except (Corrupt, NotFound) as error:
                _logger.warning("segment %s is not usable, reading %s instead: %s", segment.path, self.path, error)
        return self._gap()

    def matching(self, condition: Predicate) -> BitMap:
        segment, definition = self.covered.segments.get(self.path), self.covered.definition
        if segment is not None:
            try:
                wanted = {each.column for each in conditions(condition)}
                reading = self.kept.verified.bitmaps.reading(self.store, segment, definition)
                return rows_that_meet(condition, reading.columns(wanted) or {}, self._count)
            except (Corrupt, NotFound) as error:
                _logger.warning("segment %s is not usable, reading %s instead: %s", segment.path, self.path, error)
        return _unpacked(self._gap(), definition, condition, self._count)

    def _gap(self) -> Path:
        add = self.snapshot.splits[self.path]
        return self.cache.gap(self.store, add, self.covered.definition, self.snapshot.schema)

    def _count(self) -> int:
        add = self.snapshot.splits[self.path].as_written
        return open_split(self.store, add, whole=False).rows if add.numRecords is None else add.numRecords

    def low(self) -> Any:
        kept, add = self.kept.values, self.snapshot.splits[self.path]
        name = (self.path, add.xxh3, "low", *self.order)
        found = kept.get(name)
        if found is None:
            found = (least(add, self.snapshot),)
            kept.keep(name, found, _LOW_BYTES)
        return cast("tuple[Any]", found)[0]

    def deleted(self) -> BitMap:
        return self.overlay.deleted(self.store, self.snapshot, self.snapshot.splits[self.path])

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        add = self.snapshot.splits[self.path].as_written  # an index counts the file's rows
        path = self.kept.verified.path(self.store, add)
        places, order = np.unique(np.array(rows, np.int64), return_inverse=True)
        # Whoever wrote a split without a checksum wrote its pages as he liked.
        if path is not None and add.xxh3 is not None and add.numRecords is not None:
            _require_within(rows, add.numRecords, self.path)
            found = pages.take(self.store, add, path, places, columns=columns, kept=self.kept.values)
        else:
            whole = path is not None or add.size <= WHOLE_SPLIT_BYTES
            split = open_split(self.store, add, whole=whole, file_path=path, footers=self.kept.verified.footers)
            _require_within(rows, split.rows, self.path)
            found = split.take(places, columns)
        if not found.num_columns:  # of a split that is older than all of these columns
            found = pa.table({"": pa.nulls(len(places))})
        wanted = _chosen(self.snapshot.schema, columns)
        taken = conform_split(found, wanted).take(pa.array(order))
        self.kept.verified.recheck(self.store, [(add, path)] if path is not None else [])
        # Splits do not say which columns may be null; with the table's own schema all of them concatenate.
        return cast("pa.Table", taken.cast(wanted))


@dataclass(frozen=True, slots=True)
class _Generation:
    store: ObjectStore
    covered: Coverage
    cache: SegmentCache
    whole: WholeRows

    @property
    def name(self) -> str:
        return f"generation-{self.whole.generation.path} {checksum(self._source.encode())}"

    @property
    def _source(self) -> str:
        manifest = generation_manifest.encode(self.whole.generation).decode()
        return f"{fingerprint_of(self.covered.definition)}\n{manifest}"

    @property
    def split(self) -> None:
        return None

    @property
    def fetched_bytes(self) -> int | None:
        rows = self.whole.rows.num_rows
        segment = generation_segments.usable(self.whole.generation, self.covered.definition, rows)
        return None if segment is None else segment.size

    def directory(self) -> Path:
        generation, definition = self.whole.generation, self.covered.definition
        return self.cache.built(
            f"generation-{generation.path}",
            self._source,
            lambda: generation_segments.files(self.store, generation, definition, self.whole.rows),
        )

    def matching(self, condition: Predicate) -> BitMap:
        return _unpacked(self.directory(), self.covered.definition, condition, lambda: self.whole.rows.num_rows)

    def low(self) -> None:
        return None

    def deleted(self) -> BitMap:
        return self.whole.deleted

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        _require_within(rows, self.whole.rows.num_rows, f"generation {self.whole.generation.path}")
        return _taken(self.whole.rows, rows, columns)


@dataclass(frozen=True, slots=True)
class _Rest:
    covered: Coverage
    cache: SegmentCache
    rows: pa.Table

    @property
    def name(self) -> str:
        sink = pa.BufferOutputStream()
        texts = self.rows.select(list(self.covered.definition.columns)).combine_chunks()
        with pa.ipc.new_stream(sink, texts.schema) as writer:
            writer.write_table(texts)
        return f"rest {checksum(sink.getvalue())}"

    @property
    def split(self) -> None:
        return None

    @property
    def fetched_bytes(self) -> None:
        return None

    def directory(self) -> Path:
        return self.cache.passing(build_rows(self.rows, self.covered.definition))

    def matching(self, condition: Predicate) -> BitMap:
        return _unpacked(self.directory(), self.covered.definition, condition, lambda: self.rows.num_rows)

    def low(self) -> None:
        return None

    def deleted(self) -> BitMap:
        return BitMap()

    def take(self, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
        return _taken(self.rows, rows, columns)


def _unpacked(directory: Path, definition: IndexDefinition, condition: Predicate, count: Callable[[], int]) -> BitMap:
    wanted = {each.column for each in conditions(condition)}
    columns = {name: unpacked_bitmaps(directory, definition, name) for name in wanted}
    return rows_that_meet(condition, columns, count)


def _chosen(schema: pa.Schema, columns: Collection[str]) -> pa.Schema:
    return pa.schema([each for each in schema if each.name in columns])


def _taken(whole: pa.Table, rows: Sequence[int], columns: Collection[str]) -> pa.Table:
    return whole.select(_chosen(whole.schema, columns).names).take(pa.array(rows, pa.int64()))


def _require_within(rows: Sequence[int], count: int, where: str) -> None:
    if max(rows) >= count:
        found = f"the index names row {max(rows)} of {where}, which has {count} rows"
        raise Corrupt(found, advice=REBUILD, key=where)
