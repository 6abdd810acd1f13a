"""The records of a moment in the order of a history, from any place in it on (docs/architecture/ingestion.md, "Paged
reading").

First the base, split by split in the order of their paths, then the generations that it has not merged, region by
region and in each by number (sorted ones are older than unsorted ones), then the durable log tail of each region, and
then what raw logs have and the table has not.
Nothing is captured here: what a place comes before is read from objects that never change, so reading from a place
gives what reading through it would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.history_token import InBase, InGenerations, InRaw, InTail, Place, RegionPosition
from storage_core.log.actions import Add
from storage_core.log.files.columns import adds_of
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation, wal
from storage_core.region.manifest import read_version
from storage_core.rows.earlier_records import conformed
from storage_core.rows.fold import puts, record_schema
from storage_core.split.conform import conform_split
from storage_core.split.read import WHOLE_SPLIT_BYTES, open_split


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive records of one source; `before(n)` is the place before record `n` of them."""

    records: pa.Table
    before: Callable[[int], Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """A snapshot of the base, and what was in the regions when it was taken or earlier."""

    store: ObjectStore
    snapshot: Snapshot
    regions: tuple[RegionPosition, ...]
    raw: Sequence[Callable[[], Iterable[pa.Table]]] = ()
    """Of each raw log, what reads its records for the table, in order."""
    whole_split_bytes: int = WHOLE_SPLIT_BYTES

    def pieces(self, place: Place) -> Iterator[Piece]:
        """Yield the records from `place` on. A piece is at most a part of a row group, a WAL entry or a data file.

        Requests, as they are needed: the manifests of the state that are not read yet; per split one GET, of a large
        one ranged GETs per row group, and one more for a stored deletion vector; per region with generations one, per
        generation one and those of `generation.read_parts`; one per entry of a tail; those of `raw`. The sources before
        the place are not asked for.

        Raises `SnapshotExpired` or `NotFound` for what is gone of the base or is no manifest of a region any more,
        `Corrupt` for what is damaged, and for records of a region that are gone (`region.read_position.was_collected`
        tells why).
        """
        match place:
            case InBase():
                yield from self._base(place)
                yield from self._generations(InGenerations(0, 0, 0, 0))
                yield from self._tails(InTail(0, 0, 0))
                yield from self._raw(InRaw(0, 0))
            case InGenerations():
                yield from self._generations(place)
                yield from self._tails(InTail(0, 0, 0))
                yield from self._raw(InRaw(0, 0))
            case InTail():
                yield from self._tails(place)
                yield from self._raw(InRaw(0, 0))
            case InRaw():
                yield from self._raw(place)
            case _:
                assert_never(place)

    def _base(self, place: InBase) -> Iterator[Piece]:
        schema = self.snapshot.schema
        for add in _in_order(self.snapshot, place.path):
            split = open_split(self.store, add, whole=add.size <= self.whole_split_bytes)
            for places, rows in split.since(place.row if add.path == place.path else 0):
                yield Piece(puts(conform_split(rows, schema)), _before_row(add.path, places))

    def _generations(self, place: InGenerations) -> Iterator[Piece]:
        schema = record_schema(self.snapshot.schema)
        for region in range(place.region, len(self.regions)):
            position = self.regions[region]
            start = place.generation if region == place.region else 0
            merged = self._merged(region)
            if position.flushed <= merged:
                continue
            manifest = read_version(self.store, position.region, position.manifest)
            for flushed in generation.unmerged(self.store, manifest, merged):
                if flushed.generation < start:
                    continue
                found = generation.read(self.store, position.region, flushed)
                here = place if (region, flushed.generation) == (place.region, place.generation) else None
                first, skipped = (here.part, here.record) if here is not None else (0, 0)
                for part, records in generation.read_parts(self.store, found, first=first):
                    yield _piece(conformed(records, schema), skipped, _before_flushed(region, flushed.generation, part))
                    skipped = 0

    def _tails(self, place: InTail) -> Iterator[Piece]:
        schema = record_schema(self.snapshot.schema)
        for region in range(place.region, len(self.regions)):
            position, merged = self.regions[region], self._merged(region)
            here = place if region == place.region and place.entry else InTail(region, position.first, 0)
            # No epoch of an entry before is needed to tell which ones count: the entry of a place does, so it has the
            # highest one so far.
            for logged in wal.replay(self.store, position.region, after=here.entry - 1, before=position.last + 1):
                skipped = here.record if logged.id == here.entry else 0
                if wal.belonging(logged, position.flushed + 1).entry.generation > merged:
                    yield _piece(conformed(logged.entry.records, schema), skipped, _before_logged(region, logged.id))

    def _raw(self, place: InRaw) -> Iterator[Piece]:
        for log in range(place.log, len(self.raw)):
            skipped = place.record if log == place.log else 0
            begin = 0
            for records in self.raw[log]():
                here = min(max(0, skipped - begin), records.num_rows)
                if here < records.num_rows:
                    yield _piece(records, here, _before_raw(log, begin))
                begin += records.num_rows

    def _merged(self, region: int) -> int:
        return self.snapshot.merged_generations.get(self.regions[region].region, 0)


def _in_order(snapshot: Snapshot, first: str) -> Iterator[Add]:
    """The live splits from the path `first` on, by path; only one of them is made a record at a time."""
    files = snapshot.splits.table()
    files = files.filter(pc.greater_equal(files.column("path"), pa.scalar(first, pa.string())))
    for at in pc.sort_indices(files, sort_keys=[("path", "ascending")]).to_numpy():
        yield from adds_of(files.slice(int(at), 1))


def _piece(records: pa.Table, skipped: int, before: Callable[[int], Place]) -> Piece:
    return Piece(records.slice(skipped), lambda count: before(skipped + count))


def _before_row(path: str, places: npt.NDArray[np.int64]) -> Callable[[int], Place]:
    return lambda count: InBase(path, int(places[count]))


def _before_flushed(region: int, number: int, part: int) -> Callable[[int], Place]:
    return lambda record: InGenerations(region, number, part, record)


def _before_raw(log: int, begin: int) -> Callable[[int], Place]:
    return lambda record: InRaw(log, begin + record)


def _before_logged(region: int, entry: int) -> Callable[[int], Place]:
    return lambda record: InTail(region, entry, record)
