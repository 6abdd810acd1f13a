"""Deduplication of records by producer id. If several records have the same id, a table takes only one of them.

A table has a record id if the table has a chunk that contains the record id. The offsets of a table show which chunks
the table has. So one commit makes the rows, the offset and the ids valid. Tables do not store ids. Before an offset
passes a chunk, the ids of the chunk are stored next to the raw log, in every mandatory store. So the ids remain for the
required time (`unique_for`), even after the chunks are deleted.

Several records of one round can have the same id. All tasks order these records in the same way and select the first
record. A second attempt at the round uses the same order. If a region may already have a chunk, the records of this
chunk come first. All other records are ordered by their position in the history.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import Corrupt, NotFound, Unavailable
from storage_core.data.formats import raw_chunk
from storage_core.data.formats.keys import IDS_PREFIX, ChunkKey, IdsKey, parse_raw, raw_ids_key
from storage_core.data.formats.raw_chunk import ID_COLUMNS, RawColumns, RecordIds
from storage_core.store.contract import ObjectStore, create_derived
from storage_core.write.distribution.work import DivideWork, RoundIds, Target
from storage_core.write.raw_log.history import Damage, RawChunkRef, read_columns

# List and read the objects that contain the ids of distributed records. These objects are next to a raw log
# (docs/architecture/ingestion.md).


def keys_in_reach(work: DivideWork, raw: Sequence[ObjectStore]) -> Iterator[str]:
    """Yield the keys of objects with record ids that may equal ids of this work item. Lists every store."""
    since = min(ref.segment_ms for ref in work.chunks) - work.source.unique_for_ms
    reasons: list[str] = []
    mandatory = raw[: work.source.mandatory]
    for store in raw:
        try:
            for info in store.list(IDS_PREFIX):
                key = parse_raw(info.key)
                if isinstance(key, IdsKey) and key.last_ms >= since:
                    yield info.key
        except Unavailable as error:
            if store in mandatory:
                reasons.append(f"{store.uri}: {error}")
    if len(reasons) == len(mandatory):
        raise Unavailable(f"the ids in use are not known: {', '.join(reasons)}. Distribute again later")


def read_all(keys: Sequence[str], raw: Sequence[ObjectStore], *, must_exist: bool) -> Iterator[RecordIds]:
    """Yield the objects. The function skips objects that the collector deleted after the listing.

    If `must_exist` is set, a missing object is an error.
    """
    for key in keys:
        parsed = parse_raw(key)
        found = _read(parsed, raw) if isinstance(parsed, IdsKey) else None
        if found is not None:
            yield found
        elif must_exist:
            raise Unavailable(f"{key}: was written in this run and is not in any store. Distribute again", key=key)


def _read(key: IdsKey, raw: Sequence[ObjectStore]) -> RecordIds | None:
    """Return the object from the first store with a complete copy. Return None if no store has the object."""
    reasons: list[str] = []
    for store in raw:
        try:
            return raw_chunk.decode_ids(store.get(raw_ids_key(key)).data, key)
        except NotFound:
            continue
        except (Corrupt, Unavailable) as error:
            reasons.append(f"{store.uri}: {error.found}")
    if reasons:
        raise Unavailable(
            f"{raw_ids_key(key)}: no store has a complete copy: {', '.join(reasons)}. Repair the raw log, or try "
            "again later"
        )
    return None


_Ranks = npt.NDArray[np.int64]
_HELD, _IGNORED = np.int64(-1), np.int64(2**62)
_POSITIONS = 20
"""The number of bits for the position of a record in its chunk. A chunk has at most a million records."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    """The records to omit.

    `positions` maps the writer and number of a chunk to the positions of these records in the chunk. `counts` has the
    number of these records by table.
    """

    positions: Mapping[tuple[str, int], npt.NDArray[np.int64]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def without(self, ref: RawChunkRef, records: pa.Table) -> pa.Table:
        """Return the records of a complete chunk without the duplicates."""
        left_out = self.positions.get((ref.writer, ref.number))
        if left_out is None:
            return records
        keep = np.ones(records.num_rows, np.bool_)
        keep[left_out] = False
        return records.filter(pa.array(keep))


NONE = Duplicates()


def note_ids(work: DivideWork, raw: Sequence[ObjectStore]) -> str:
    """Write the record ids of the work's chunks to every mandatory store. Return the key of the object.

    The object is durable when the function returns. Raises `Unavailable` or `CommitUnknown` if a store does not accept
    the object. One GET per chunk, and one PUT per mandatory store.
    """
    damaged: set[str] = set()

    def sound() -> Iterator[tuple[RawChunkRef, RawColumns]]:
        for ref in work.chunks:
            chunk = read_columns(raw, ref) if ref.writer not in damaged else None
            if isinstance(chunk, Damage):
                damaged.add(ref.writer)
            elif chunk is not None:
                yield ref, chunk

    found = ids_of(sound())
    if found is None:
        raise Unavailable(
            f"chunks of {work.source.name} could be read a moment ago and cannot be read now. Distribute again later"
        )
    key, data = raw_chunk.encode_ids(found)
    for store in raw[: work.source.mandatory]:
        create_derived(store, key, data, advice="distribute again")
    return key


def find_duplicates(work: DivideWork, ids: RoundIds, raw: Sequence[ObjectStore]) -> Duplicates:
    """Return for each target of the work the records that the task must omit.

    Raises `Unavailable` if no mandatory store answers, or if no mandatory store has an object of the round.

    Cost:
        One LIST per store and 1,000 objects with ids, and one GET per object that may have an id from the last
        `unique_for`. Memory holds the ids of the work, and one object at a time.
    """

    def all_ids() -> Iterator[RecordIds]:
        return read_all([*dict.fromkeys((*ids.keys, *keys_in_reach(work, raw)))], raw, must_exist=False)

    return _compared(work, ids.offsets, lambda: read_all(ids.keys, raw, must_exist=True), all_ids)


def find_in(
    work: DivideWork, own: RecordIds, offsets: Mapping[str, Mapping[str, int]], raw: Sequence[ObjectStore]
) -> Duplicates:
    """Return the result of `find_duplicates`. `own` contains the ids of this work item and of earlier chunks in memory.

    Requests and errors: see `find_duplicates`.
    """

    def all_ids() -> Iterator[RecordIds]:
        yield own
        yield from read_all([*dict.fromkeys(keys_in_reach(work, raw))], raw, must_exist=False)

    return _compared(work, offsets, lambda: iter([own]), all_ids)


def ids_of(chunks: Iterable[tuple[RawChunkRef, RawColumns]]) -> RecordIds | None:
    """Return the ids of the records of these chunks. Return None if no record has an id. No request."""
    keys: list[ChunkKey] = []
    tables: dict[str, int] = {}
    parts = []
    for ref, chunk in chunks:
        if chunk.unique_ids is not None:
            parts.append(_entries(chunk.records, chunk.unique_ids, len(keys), tables))
            keys.append(ChunkKey(writer=ref.writer, number=ref.number, segment_ms=ref.segment_ms))
    return RecordIds(chunks=tuple(keys), tables=tuple(tables), entries=pa.concat_tables(parts)) if parts else None


def _compared(
    work: DivideWork,
    offsets: Mapping[str, Mapping[str, int]],
    own_ids: Callable[[], Iterator[RecordIds]],
    all_ids: Callable[[], Iterator[RecordIds]],
) -> Duplicates:
    own = [(ref.writer, ref.number) for ref in work.chunks]
    wanted = {each.name: _Wanted(each, offsets.get(each.name, {})) for each in work.targets}
    for found in own_ids():
        for name, each in wanted.items():
            each.take_own(found, name, own)
    for each in wanted.values():
        each.begin()
    for found in all_ids():
        for name, each in wanted.items():
            each.compare(found, name)
    positions: dict[tuple[str, int], list[_Ranks]] = {}
    counts: dict[str, int] = {}
    for name, each in wanted.items():
        for chunk, lost in each.left_out():
            positions.setdefault((chunk.writer, chunk.number), []).append(lost)
            counts[name] = counts.get(name, 0) + len(lost)
    return Duplicates({chunk: np.concatenate(several) for chunk, several in positions.items()}, counts)


@dataclass(slots=True)
class _Wanted:
    """The record ids of one work item for one table. For each id, the first record in the order is stored."""

    target: Target
    offsets: Mapping[str, int]
    _parts: list[tuple[ChunkKey, pa.ChunkedArray, _Ranks]] = field(default_factory=list)
    _order: list[tuple[int, int, str, int]] = field(default_factory=list)
    _ids: pa.Array | None = None
    _own: _Ranks = field(default_factory=lambda: np.zeros(0, np.int64))
    _places: _Ranks = field(default_factory=lambda: np.zeros(0, np.int64))
    _best: _Ranks = field(default_factory=lambda: np.zeros(0, np.int64))

    def take_own(self, found: RecordIds, table: str, own: Sequence[tuple[str, int]]) -> None:
        """Add the ids of the work's chunks that belong to the table."""
        entries = _of_table(found, table)
        codes = entries.column("chunk").to_numpy()
        mine = set(own)
        for code in np.unique(codes):
            chunk = found.chunks[code]
            if (chunk.writer, chunk.number) in mine and self._takes(chunk):
                part = entries.filter(pa.array(codes == code))
                self._parts.append((chunk, part.column("id"), part.column("position").to_numpy().astype(np.int64)))

    def begin(self) -> None:
        """Sort the added ids. After the sort, the ids of further records can be searched in the added ids."""
        self._parts.sort(key=lambda each: self._place(each[0]))
        self._order = [self._place(chunk) for chunk, _, _ in self._parts]
        if not self._parts:
            return
        encoded = pa.chunked_array([each for _, ids, _ in self._parts for each in ids.chunks], pa.string())
        whole = encoded.combine_chunks().dictionary_encode()
        self._ids = whole.dictionary
        self._places = whole.indices.to_numpy().astype(np.int64)
        ranks = [_ranked(2 * index + 1, positions) for index, (_, _, positions) in enumerate(self._parts)]
        self._own = np.concatenate(ranks)
        self._best = np.full(len(whole.dictionary), _IGNORED)
        np.minimum.at(self._best, self._places, self._own)

    def compare(self, found: RecordIds, table: str) -> None:
        """For each id, compare the work item's record with a record in `found`. Keep the record that comes first."""
        if self._ids is None:
            return
        entries = _of_table(found, table)
        places = pc.index_in(entries.column("id"), value_set=self._ids).combine_chunks()
        known = np.flatnonzero(~np.asarray(places.is_null()))
        if not len(known):
            return
        entries, places = entries.take(pa.array(known)), places.take(pa.array(known)).to_numpy().astype(np.int64)
        codes = entries.column("chunk").to_numpy()
        positions = entries.column("position").to_numpy().astype(np.int64)
        ranks = np.full(len(codes), _IGNORED)
        for code in np.unique(codes):
            here = codes == code
            ranks[here] = self._rank(found.chunks[code], positions[here])
        np.minimum.at(self._best, places, ranks)

    def left_out(self) -> Iterator[tuple[ChunkKey, _Ranks]]:
        """Yield each chunk with records to omit, and the positions of these records."""
        lost = self._own != self._best[self._places]
        start = 0
        for chunk, _, positions in self._parts:
            here = positions[lost[start : start + len(positions)]]
            start += len(positions)
            if len(here):
                yield chunk, here

    def _rank(self, chunk: ChunkKey, positions: _Ranks) -> _Ranks | np.int64:
        if chunk.number <= self.offsets.get(chunk.writer, 0):
            return _HELD
        if not self._takes(chunk):
            return _IGNORED
        place = self._place(chunk)
        index = bisect.bisect_left(self._order, place)
        is_own = index < len(self._order) and self._order[index] == place
        return _ranked(2 * index + is_own, positions)

    def _takes(self, chunk: ChunkKey) -> bool:
        return any(
            each.writer == chunk.writer and each.after < chunk.number <= each.last for each in self.target.chunk_ranges
        )

    def _place(self, chunk: ChunkKey) -> tuple[int, int, str, int]:
        reached = max((offsets.get(chunk.writer, 0) for offsets in self.target.further.values()), default=0)
        return (int(chunk.number > reached), chunk.segment_ms, chunk.writer, chunk.number)


def _ranked(chunk: int, positions: _Ranks) -> _Ranks:
    return np.int64(chunk << _POSITIONS) + positions


def _of_table(found: RecordIds, table: str) -> pa.Table:
    if table not in found.tables:
        return ID_COLUMNS.empty_table()
    return found.entries.filter(pc.equal(found.entries.column("table"), found.tables.index(table)))


def _entries(records: pa.Table, ids: pa.ChunkedArray, chunk: int, tables: dict[str, int]) -> pa.Table:
    """Return the ids of one chunk. Add new table names to `tables`."""
    given = np.flatnonzero(~np.asarray(ids.is_null()))
    named = records.column("table").take(pa.array(given)).combine_chunks().dictionary_encode()
    codes = np.array([tables.setdefault(name, len(tables)) for name in named.dictionary.to_pylist()], np.int32)
    columns = [
        pa.array(np.full(len(given), chunk, np.int32)),
        pa.array(codes[named.indices.to_numpy()]),
        pa.array(given.astype(np.int32)),
        ids.take(pa.array(given)).combine_chunks(),
    ]
    return pa.Table.from_arrays(columns, schema=ID_COLUMNS)
