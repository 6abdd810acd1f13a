"""The records of a table page by page, from the base, generations, WAL tails and raw logs (docs/architecture/reads.md).

`read_pages` captures the state of the table when a history begins. First, it captures the list of chunks in the raw
logs. Then `read_pages` captures the WAL tails and manifests of the regions. `read_pages` captures the head of the log
last. All pages show the captured state. The pages contain the records in this order (docs/architecture/ingestion.md,
"Paged reading"):

1. The rows of the base, as records with the operation put. The splits are in the order of their paths.
2. The generations that the base has not merged, one region after the other. Within a region, the generations are in the
   order of their numbers. Sorted generations are older than unsorted generations.
3. The durable WAL tail of each region.
4. The undistributed records of raw logs (decision 0027). A token identifies the chunks of raw logs, but not the records
   in these chunks. If a page starts with raw log records, the reader reads all uncached chunks that the token
   identifies.

The records of one key are in the order in which they must be applied. A fold of all pages (`rows.fold`) therefore
produces the captured state of the table. The size of the pages does not change the sequence of records. A token marks a
position between two records. The objects on both sides of this position never change. Therefore a reader in any process
can continue from the token.

A token does not prevent the collector from removing objects. Most objects are kept as long as the version is retained
(`version_retention_ms`, or a tag). Objects that a sort replaced are kept only for the collector's horizon
(`gc_horizon_ms`). A tag does not extend the time for which replaced objects are kept. If an object of the captured
state was removed, the history restarts once from the newest base, and reports the restart
(docs/architecture/ingestion.md).

The size of a page is the memory of its rows. The size of a row is the sum of these bytes over all columns:

| Value | Bytes |
|---|---|
| any value, including null and nested values | 1, for its validity |
| a value of a fixed width | its width in bytes, at least 1 |
| text, binary | 8, plus its length |
| list, map | 8, plus the bytes of the list's or map's elements |
| embedding | the bytes of the embedding's numbers |
| struct | the bytes of the fields |

A table that copies the rows never takes more memory than this sum (`pa.Table.nbytes`). The memory of a whole column is
one bit or one offset larger than the sum over its rows. The rounding up of each row's size covers this additional
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, SnapshotExpired
from storage_core.base.text import quoted
from storage_core.data.formats.history_token import (
    HistoryToken,
    InBase,
    InGenerations,
    InRaw,
    InTail,
    Place,
    RawPosition,
    RawRun,
    RegionPosition,
    decode,
    encode,
)
from storage_core.data.rows.columns import without_metadata
from storage_core.data.rows.fold import conformed, puts, record_schema
from storage_core.data.rows.vectors import is_vector
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import adds_of
from storage_core.read.unmerged_records import Capture, undistributed_over
from storage_core.read.view import PAGE_BYTES, Consistency, View
from storage_core.split.read import WHOLE_SPLIT_BYTES, conform_split, open_split
from storage_core.store.contract import ObjectStore
from storage_core.write.distribution.undistributed_rows import PendingChunks, RawLogListing, RegionOffsets
from storage_core.write.distribution.work import log_offsets
from storage_core.write.raw_log.history import RawChunkRef
from storage_core.write.region import generation, wal
from storage_core.write.region.captured_regions import region_positions, was_collected
from storage_core.write.region.manifest import read_version

Bytes = npt.NDArray[np.int64]

_PRESENCE = 1
_OFFSET = 8


def row_bytes(rows: pa.Table) -> Bytes:
    """Return the bytes of each row.

    The function makes one pass over the offsets of each column, and does not read the values.
    """
    total = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if column.num_chunks:
            total += np.concatenate([_sizes(chunk) for chunk in column.chunks])
    return total


def _sizes(array: pa.Array) -> Bytes:
    type_ = array.type
    if not len(array):
        return np.zeros(0, np.int64)
    if kinds.is_string(type_) or kinds.is_binary(type_):
        return np.diff(_text_offsets(array)) + (_PRESENCE + _OFFSET)
    if kinds.is_list(type_) or kinds.is_map(type_):
        return _of_elements(array) + (_PRESENCE + _OFFSET)
    if is_vector(type_):
        return _each(array, _PRESENCE + type_.list_size * (_PRESENCE + type_.value_type.bit_width // 8))
    if kinds.is_struct(type_):
        return sum((_sizes(array.field(index)) for index in range(type_.num_fields)), _each(array, _PRESENCE))
    return _each(array, _PRESENCE + max(1, type_.bit_width // 8))


def _each(array: pa.Array, size: int) -> Bytes:
    return np.full(len(array), size, np.int64)


def _text_offsets(array: pa.Array) -> Bytes:
    offsets = np.frombuffer(array.buffers()[1], np.int32, count=len(array) + 1, offset=4 * array.offset)
    return offsets.astype(np.int64)


def _of_elements(array: pa.Array) -> Bytes:
    offsets = array.offsets.to_numpy().astype(np.int64)
    elements = _sizes(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    ends = np.append(0, np.cumsum(elements))
    sizes: Bytes = np.diff(ends[offsets - offsets[0]])
    return sizes


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive records from the same source. `before(n)` is the position before record number `n` of the piece."""

    records: pa.Table
    before: Callable[[int], Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """A snapshot of the base, and the state of the regions captured before or with it."""

    store: ObjectStore
    snapshot: Snapshot
    regions: tuple[RegionPosition, ...]
    raw: Sequence[Callable[[], Iterable[pa.Table]]] = ()
    """One function per raw log. Each function returns the table's records in order."""
    whole_split_bytes: int = WHOLE_SPLIT_BYTES

    def pieces(self, place: Place) -> Iterator[Piece]:
        """Yield the records, starting at the position `place`.

        A piece is at most a part of a row group, a WAL entry or a data file.

        Raises:
            SnapshotExpired: An object of the base was collected.
            NotFound: An object of the base, or a manifest of a region, no longer exists.
            Corrupt: An object is damaged, or records of a region no longer exist.
                `write.region.captured_regions.was_collected` distinguishes the two cases.

        Cost:
            Requests are made when the data is needed. The sources before `place` take no request. Each manifest of the
            captured state that was not read yet takes one GET. One GET per split, or ranged GETs per row group of a
            large split, and one GET per stored deletion vector. One GET per region with generations. One GET per
            generation, and the requests of `generation.read_parts`. One GET per WAL entry. The requests of `raw`.
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
            # The epochs of earlier entries are not needed. The entry at this position is valid. Therefore the epoch of
            # this entry is the highest of all epochs up to this position.
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
    """Yield the live splits in the order of their paths, starting with the path `first`.

    The function creates one `Add` record at a time, which limits the memory.
    """
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


def positions_with(view: View) -> tuple[Snapshot, list[RegionPosition], tuple[RawPosition, ...]] | None:
    """Return the head, the read positions of the regions, and the undistributed chunks of raw logs.

    The function returns None if another process changed any of this state during the read. `undistributed_over` also
    returns None after a concurrent change.

    Cost:
        The requests of `undistributed_over` and of `region_positions`. If chunks wait for distribution, one GET per
        region.
    """

    def capture(before: Snapshot) -> Capture[list[RegionPosition]]:
        positions = region_positions(view.store, before, include_wal=True)
        return Capture(positions, lambda: [_offsets(view, each) for each in positions])

    found = undistributed_over(view, capture)
    if found is None:
        return None
    snapshot, positions, waiting = found
    return snapshot, positions, tuple(map(_position, waiting))


def raw_records(view: View, snapshot: Snapshot, position: RawPosition) -> Iterator[pa.Table]:
    """Yield the records of a raw-log position for the table, one table per chunk.

    The records are in the order in which they apply.

    Raises:
        InvalidInput: The table at the snapshot does not read this raw log.
        SnapshotExpired: Chunks were collected after the position was taken, because the table contains them now. Also
            raises the errors of `RawLogListing.load` and `PendingChunks.records`.

    Cost:
        The requests of `RawLogListing.load` and `PendingChunks.records`.
    """
    raw_log = next((each for each in snapshot.config.raw_logs if each.name == position.name), None)
    if raw_log is None:
        raise InvalidInput(
            f"the history token is for the raw log {quoted(position.name)}, which does not feed version "
            f"{snapshot.version} of {view.store.uri}. Begin without a token"
        )
    listed = RawLogListing.load(raw_log, view.raw_store)
    try:
        rounds = tuple(listed.of(runs) for runs in position.rounds)
        yield from PendingChunks(listed=listed, rounds=rounds, further=position.further).records(
            view.store, snapshot, view.kept
        )
    except Corrupt as error:
        writer, number = str(error.context.get("writer")), error.context.get("number")
        if isinstance(number, int) and log_offsets(view.refresh()).get(writer, 0) >= number:
            raise SnapshotExpired(f"{view.store.uri}: {error.found}", version=snapshot.version) from error
        raise


def _offsets(view: View, position: RegionPosition) -> RegionOffsets:
    manifest = read_version(view.store, position.region, position.manifest)
    return RegionOffsets(region=position.region, generation=position.flushed, distributed=manifest.distributed)


def _position(waiting: PendingChunks) -> RawPosition:
    rounds = tuple(tuple(_runs(chunks)) for chunks in waiting.rounds)
    return RawPosition(name=waiting.listed.raw_log.name, rounds=rounds, further=waiting.further)


def _runs(chunks: Sequence[RawChunkRef]) -> Iterator[RawRun]:
    """Yield the chunks in order. Consecutive chunks of one writer are in one group."""
    numbered: Iterable[tuple[int, RawChunkRef]] = enumerate(chunks)
    for (writer, _), group in groupby(numbered, lambda each: (each[1].writer, each[1].number - each[0])):
        own = [ref.number for _, ref in group]
        yield RawRun(writer=writer, first=own[0], last=own[-1])


_RESTARTS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Some records of the history, and the token of the next page. The last page has no token.

    `records` has the columns of `rows.fold.record_schema`. `version` is the version of the base. If `restarted` is
    True, the history restarts with this page. The caller must discard all earlier pages, because they show another
    state of the table.
    """

    records: pa.Table
    token: str | None
    version: int
    restarted: bool = False


def read_pages(
    view: View, *, token: str | None = None, page_bytes: int = PAGE_BYTES, consistency: str | None = None
) -> Iterator[HistoryPage]:
    """Return the pages of the history, starting at the token or at the beginning.

    There is at least one page, and the number of pages is finite. A token can be used in any process and any number of
    times.

    Args:
        view: The view of the table.
        token: The token of the first page, or None for the beginning.
        page_bytes: Maximum size of a page in bytes. The module docstring describes the measure. A page has at least one
            record, and may exceed this size only if it has a single record.
        consistency: The consistency of the history. The default is the consistency of the token, or `latest` without a
            token.

    Raises:
        InvalidInput: The token is damaged or belongs to another table.
        Unsupported: The token comes from a newer release.
        SnapshotExpired: The captured state was collected, and the history had already restarted once.
        Corrupt: An object is damaged.

    Cost:
        The requests of `ReadPosition.pieces`. Each source is read once, and only as far as the page needs. Memory is
        one page and one piece of a source.
    """
    if type(page_bytes) is not int or page_bytes < 1:
        raise InvalidInput(
            f"page_bytes is {quoted(page_bytes)}. Give a number of bytes, 1 or more", page_bytes=page_bytes
        )
    level = view.level(consistency, usual=Consistency.LATEST)
    if token is not None:
        requested = level if view.pinned else consistency
        return _read(view, _resumed(view, token, requested), page_bytes)
    return _read(view, _begin(view, level), page_bytes)


def _read(view: View, reading: HistoryToken, page_bytes: int) -> Iterator[HistoryPage]:
    restarted = False
    while True:
        try:
            for page in _pages(view, reading, page_bytes):
                yield replace(page, restarted=restarted)
                restarted = False
        except (NotFound, SnapshotExpired, Corrupt) as error:
            _require_restart(view, reading, error)
        else:
            return
        reading, restarted = _begin(view, reading.consistency, restarts=reading.restarts + 1), True


def _pages(view: View, reading: HistoryToken, page_bytes: int) -> Iterator[HistoryPage]:
    snapshot = view.at_version(reading.version)
    raw: list[Callable[[], Iterable[pa.Table]]] = []
    if reading.raw:
        raw = [partial(raw_records, view, snapshot, each) for each in reading.raw]
    position = ReadPosition(store=view.store, snapshot=snapshot, regions=reading.regions, raw=raw)
    empty = without_metadata(record_schema(snapshot.schema)).empty_table()
    for parts, place in _cut(position.pieces(reading.place), page_bytes):
        following = None if place is None else encode(replace(reading, place=place))
        # Copy the records. Slices would keep the whole source tables in memory.
        records = pa.concat_tables([empty, *parts]).combine_chunks()
        yield HistoryPage(records=records, token=following, version=snapshot.version)


def _cut(pieces: Iterator[Piece], page_bytes: int) -> Iterator[tuple[list[pa.Table], Place | None]]:
    """Yield the records of each page, and the position after the page. After the last page, the position is None."""
    parts: list[pa.Table] = []
    used = 0
    for piece in pieces:
        ends = np.cumsum(row_bytes(piece.records))
        start, before = 0, 0
        while start < len(ends):
            stop = max(start, int(np.searchsorted(ends, before + page_bytes - used, side="right")))
            if stop == start and parts:
                yield parts, piece.before(start)
                parts, used = [], 0
                continue
            stop = max(stop, start + 1)  # a record that is larger than a page becomes a page with this one record
            parts.append(piece.records.slice(start, stop - start))
            used += int(ends[stop - 1]) - before
            start, before = stop, int(ends[stop - 1])
    yield parts, None


def _begin(view: View, consistency: str, *, restarts: int = 0) -> HistoryToken:
    """Capture the current state.

    The head is captured last. If a merge moves a row during the capture, the row is read once, from the base.
    """
    snapshot = view.refresh() if restarts else view.snapshot
    positions: list[RegionPosition] = []
    raw: tuple[RawPosition, ...] = ()
    if consistency == Consistency.COMMITTED:
        snapshot, positions = view.after(lambda before: region_positions(view.store, before, include_wal=False))
    elif consistency == Consistency.LATEST:
        snapshot, positions, raw = _latest(view)
    merged = snapshot.merged_generations
    return HistoryToken(
        table_id=snapshot.table_id,
        version=snapshot.version,
        consistency=consistency,
        regions=tuple(
            each for each in positions if each.flushed > merged.get(each.region, 0) or each.last >= each.first
        ),
        raw=raw,
        restarts=restarts,
    )


def _latest(view: View) -> tuple[Snapshot, list[RegionPosition], tuple[RawPosition, ...]]:
    while True:
        if view.snapshot.config.raw_logs:
            found = positions_with(view)
            if found is not None:
                return found
        else:
            snapshot, positions = view.after(lambda before: region_positions(view.store, before, include_wal=True))
            if not snapshot.config.raw_logs:
                return snapshot, positions, ()


def _resumed(view: View, text: str, consistency: str | None) -> HistoryToken:
    token, table = decode(text), view.snapshot.table_id
    if token.table_id != table:
        raise InvalidInput(
            f"the history token is of table {token.table_id}, but this is table {table}. Begin without a token",
            table=token.table_id,
        )
    if consistency not in (None, token.consistency):
        raise InvalidInput(
            f"the history began with consistency {token.consistency!r}, so it cannot continue with "
            f"{str(consistency)!r}. Leave consistency out, or begin without a token"
        )
    return token


def _require_restart(view: View, reading: HistoryToken, error: NotFound | SnapshotExpired | Corrupt) -> None:
    """Return without an error if the read may restart because the captured state was collected.

    Otherwise raise the error that describes the failure.
    """
    if isinstance(error, Corrupt) and not was_collected(view.store, view.refresh(), error):
        raise error
    if reading.restarts >= _RESTARTS:
        raise SnapshotExpired(
            f"{view.store.uri}: version {reading.version} or records of its regions were collected during the read: "
            f"{error.found}. The read was already restarted once. Increase `version_retention_ms` and `gc_horizon_ms`, "
            "or read faster. Then begin without a token",
            version=reading.version,
        ) from error
