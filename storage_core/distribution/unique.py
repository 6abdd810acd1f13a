"""Records with an id of their producer: of those with one id a table takes one (decision 0135).

A table has an id when it has a chunk with it, which its offsets say: rows, offset and ids are one commit, and no id is
kept in a table. What a chunk has for ids is noted beside the raw log, in every mandatory store, before an offset passes
it; so ids outlive their chunks, and stay as long as the raw log says (`unique_for`).

Of the records of one round with one id, one is chosen by an order that all tasks share, and that a second attempt at
the round shares with the first: a record of a chunk that a region may have already goes before all others; then the
earlier in the history.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.distribution.noted_ids import keys_in_reach, read_all
from storage_core.distribution.work import DivideWork, RoundIds, Target
from storage_core.errors import Unavailable
from storage_core.formats import raw_ids
from storage_core.formats.raw_columns import RawColumns
from storage_core.formats.raw_ids import ID_COLUMNS, RecordIds
from storage_core.formats.raw_keys import ChunkKey
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_derived
from storage_core.raw_log.chunks import Damage, RawChunkRef, read_columns

_Ranks = npt.NDArray[np.int64]
_HELD, _IGNORED = np.int64(-1), np.int64(2**62)
_POSITIONS = 20
"""Bits of a position: a chunk has at most a million records."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Which records are left out: by writer and number of their chunk their positions in it; counted by table."""

    positions: Mapping[tuple[str, int], npt.NDArray[np.int64]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def without(self, ref: RawChunkRef, records: pa.Table) -> pa.Table:
        """Return the records of a whole chunk that are not left out."""
        left_out = self.positions.get((ref.writer, ref.number))
        if left_out is None:
            return records
        keep = np.ones(records.num_rows, np.bool_)
        keep[left_out] = False
        return records.filter(pa.array(keep))


NONE = Duplicates()


def note_ids(work: DivideWork, raw: Sequence[ObjectStore]) -> str:
    """Note the ids of all records of the work's chunks, and return the key; durable in every mandatory store.

    A GET per chunk, and a PUT per mandatory store. Raises `Unavailable` or `CommitUnknown` where one does not take it.
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
            f"chunks of {work.source.name} could be read a moment ago and not now; distribute again later"
        )
    key, data = raw_ids.encode(found)
    for store in raw[: work.source.mandatory]:
        create_derived(store, key, data, advice="distribute again")
    return key


def find_duplicates(work: DivideWork, ids: RoundIds, raw: Sequence[ObjectStore]) -> Duplicates:
    """Return which records of the work are left out, for each of its targets.

    Requests: a LIST per 1,000 objects of ids and store, a GET per object that may have an id of the last `unique_for`.
    Memory: the ids of the work, and one object at a time. Raises `Unavailable` when no mandatory store answers, or has
    an object of the round.
    """

    def all_ids() -> Iterator[RecordIds]:
        return read_all([*dict.fromkeys((*ids.keys, *keys_in_reach(work, raw)))], raw, must_exist=False)

    return _compared(work, ids.offsets, lambda: read_all(ids.keys, raw, must_exist=True), all_ids)


def find_in(
    work: DivideWork, own: RecordIds, offsets: Mapping[str, Mapping[str, int]], raw: Sequence[ObjectStore]
) -> Duplicates:
    """Return what `find_duplicates` does, where `own` has the ids of the work and of what goes before it in memory.

    Requests: those of `find_duplicates`. Raises what it raises.
    """

    def all_ids() -> Iterator[RecordIds]:
        yield own
        yield from read_all([*dict.fromkeys(keys_in_reach(work, raw))], raw, must_exist=False)

    return _compared(work, offsets, lambda: iter([own]), all_ids)


def ids_of(chunks: Iterable[tuple[RawChunkRef, RawColumns]]) -> RecordIds | None:
    """Return the ids that the records of these chunks have, None where none has one. No request."""
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
    """The ids of one work for one table, and of each the best record that was seen so far."""

    target: Target
    offsets: Mapping[str, int]
    _parts: list[tuple[ChunkKey, pa.ChunkedArray, _Ranks]] = field(default_factory=list)
    _order: list[tuple[int, int, str, int]] = field(default_factory=list)
    _ids: pa.Array | None = None
    _own: _Ranks = field(default_factory=lambda: np.zeros(0, np.int64))
    _places: _Ranks = field(default_factory=lambda: np.zeros(0, np.int64))
    _best: _Ranks = field(default_factory=lambda: np.zeros(0, np.int64))

    def take_own(self, found: RecordIds, table: str, own: Sequence[tuple[str, int]]) -> None:
        """Take the ids of the chunks of the work that the table takes."""
        entries = _of_table(found, table)
        codes = entries.column("chunk").to_numpy()
        mine = set(own)
        for code in np.unique(codes):
            chunk = found.chunks[code]
            if (chunk.writer, chunk.number) in mine and self._takes(chunk):
                part = entries.filter(pa.array(codes == code))
                self._parts.append((chunk, part.column("id"), part.column("position").to_numpy().astype(np.int64)))

    def begin(self) -> None:
        """Order what was taken; from here on others are compared with it."""
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
        """Take note of the records of others that go before ours."""
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
        """Yield by chunk the positions of records that are not the one of their id, where there are some."""
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
            each.writer == chunk.writer and each.after < chunk.number <= each.last for each in self.target.stretches
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
    """The ids of one chunk; `tables` gets the names that it does not have yet."""
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
