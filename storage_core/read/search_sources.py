"""Where the rows of a search come from, each as files of the index.

Splits of the base with a segment are answered from it, the others are indexed on the fly by the same builder and take
part as if they had one; generations likewise. A segment that is damaged or gone is one that is not there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import Corrupt, NotFound
from storage_core.formats import generation_manifest
from storage_core.index.cache import SegmentCache
from storage_core.index.native_errors import REBUILD
from storage_core.index.segments import Coverage, build_rows, fingerprint_of
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.overlay import Overlay, WholeRows
from storage_core.read.search_order import least
from storage_core.read.verified import Verified
from storage_core.region import generation_segments
from storage_core.split.conform import conform_split
from storage_core.split.read import WHOLE_SPLIT_BYTES, open_split

_logger = logging.getLogger(__name__)


class Source(Protocol):
    """Rows that an index counts from 0."""

    def directory(self) -> Path:
        """Return the directory with the files of the index over all the rows."""
        ...

    def low(self) -> Any:
        """Return what no row orders below, as `search_order.least`; None where that is unknown. No request."""
        ...

    def deleted(self) -> BitMap:
        """Return the rows that are no answer, whatever an index says of them."""
        ...

    def take(self, rows: Sequence[int]) -> pa.Table:
        """Return these rows under the schema of the table, in this order."""
        ...


@contextmanager
def sources(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    covered: Coverage,
    overlay: Overlay,
    cache: SegmentCache,
    verified: Verified,
) -> Iterator[list[Source]]:
    """The sources of a search: splits of the base by path, generations by region and number, what is in neither."""
    base = [_Split(store, snapshot, covered, overlay, cache, verified, path) for path in sorted(snapshot.splits)]
    ordered = sorted(overlay.generations, key=lambda each: (each.generation.region, each.generation.generation))
    generations = [_Generation(store, covered, cache, each) for each in ordered]
    if not overlay.rest.num_rows:
        yield [*base, *generations]
        return
    with cache.passing(build_rows(overlay.rest, covered.definition)) as directory:
        yield [*base, *generations, _Rest(directory, overlay.rest)]


@dataclass(frozen=True, slots=True)
class _Split:
    store: ObjectStore
    snapshot: Snapshot
    covered: Coverage
    overlay: Overlay
    cache: SegmentCache
    verified: Verified
    path: str

    def directory(self) -> Path:
        segment = self.covered.segments.get(self.path)
        if segment is not None:
            try:
                return self.cache.segment(self.store, segment)
            except (Corrupt, NotFound) as error:
                _logger.warning("segment %s is not usable, reading %s instead: %s", segment.path, self.path, error)
        add = self.snapshot.splits[self.path]
        return self.cache.gap(self.store, add, self.covered.definition, self.snapshot.schema)

    def low(self) -> Any:
        return least(self.snapshot.splits[self.path], self.snapshot)

    def deleted(self) -> BitMap:
        return self.overlay.deleted(self.store, self.snapshot, self.snapshot.splits[self.path])

    def take(self, rows: Sequence[int]) -> pa.Table:
        add = self.snapshot.splits[self.path].as_written  # an index counts the file's rows
        path = self.verified.path(self.store, add)
        whole = path is not None or add.size <= WHOLE_SPLIT_BYTES
        split = open_split(self.store, add, whole=whole, file_path=path, footers=self.verified.footers)
        _require_within(rows, split.rows, self.path)
        places, order = np.unique(np.array(rows, np.int64), return_inverse=True)
        taken = conform_split(split.take(places), self.snapshot.schema).take(pa.array(order))
        self.verified.recheck(self.store, [(add, path)] if path is not None else [])
        # Splits do not say which columns may be null; with the table's own schema all of them concatenate.
        return cast("pa.Table", taken.cast(self.snapshot.schema))


@dataclass(frozen=True, slots=True)
class _Generation:
    store: ObjectStore
    covered: Coverage
    cache: SegmentCache
    whole: WholeRows

    def directory(self) -> Path:
        generation, definition = self.whole.generation, self.covered.definition
        source = f"{fingerprint_of(definition)}\n{generation_manifest.encode(generation).decode()}"
        return self.cache.built(
            f"generation-{generation.path}",
            source,
            lambda: generation_segments.files(self.store, generation, definition, self.whole.rows),
        )

    def low(self) -> None:
        return None

    def deleted(self) -> BitMap:
        return self.whole.deleted

    def take(self, rows: Sequence[int]) -> pa.Table:
        _require_within(rows, self.whole.rows.num_rows, f"generation {self.whole.generation.path}")
        return self.whole.rows.take(pa.array(rows, pa.int64()))


@dataclass(frozen=True, slots=True)
class _Rest:
    made: Path
    rows: pa.Table

    def directory(self) -> Path:
        return self.made

    def low(self) -> None:
        return None

    def deleted(self) -> BitMap:
        return BitMap()

    def take(self, rows: Sequence[int]) -> pa.Table:
        return self.rows.take(pa.array(rows, pa.int64()))


def _require_within(rows: Sequence[int], count: int, where: str) -> None:
    if max(rows) >= count:
        found = f"the index names row {max(rows)} of {where}, which has {count} rows"
        raise Corrupt(found, advice=REBUILD, key=where)
