"""Raw logs from which a table takes rows: which of their chunks hold rows that are to be forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.distribution.offsets import WITH_IDS, log_offsets
from storage_core.forget.judge import Judge
from storage_core.forget.raw_table import RawTable
from storage_core.forget.search import HELD_BYTES, side_by_side
from storage_core.formats.raw_keys import LIVE_PREFIX, ChunkKey, parse
from storage_core.gc.forgotten import note_forgotten
from storage_core.ids import Ids
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.raw_log.chunks import Damage, RawChunkRef, read_columns
from storage_core.raw_log.history import History, union
from storage_core.raw_log.read import typed_records
from storage_core.settings.raw_logs import FeedingRawLog

CHUNKS_AT_ONCE: Final = 4

_Chunk = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RawFound:
    """Chunks that hold rows, or cannot be read, with why; `keys` are those of all chunks by store.

    `offsets` say up to which chunk of a writer the table has them. `writers` are those
    of all chunks, collected ones too. `unreachable` are stores that did not answer.
    """

    holding: frozenset[_Chunk]
    unread: Mapping[_Chunk, str]
    offsets: Mapping[str, int]
    stores: Sequence[ObjectStore]
    keys: Mapping[str, Mapping[str, _Chunk]]
    writers: frozenset[str]
    unreachable: tuple[str, ...] = ()


def with_named(
    given: Sequence[RawTable], named: Sequence[FeedingRawLog], open_raw: Callable[[str], ObjectStore]
) -> tuple[RawTable, ...]:
    """Return the raw logs that are given and those that the table names itself, less what others have. No request."""
    own = (RawTable(each.table, [*map(open_raw, (*each.stores, *each.optional))]) for each in named)
    found = [(each, {(each.table, store.uri) for store in each.opened()}) for each in (*given, *own)]
    kept: list[tuple[RawTable, set[tuple[str, str]]]] = []
    for each, places in sorted(found, key=lambda one: -len(one[1])):
        if not any(places <= others for _, others in kept):
            kept.append((each, places))
    return tuple(each for each, _ in kept)


def unknown_writers(snapshot: Snapshot, searched: Iterable[RawFound]) -> list[str]:
    """Return the writers of raw logs that rows of the table came from and no raw log of these has had. No request."""
    known = {WITH_IDS}.union(*(each.writers for each in searched))
    return sorted(log_offsets(snapshot).keys() - known)


@dataclass(slots=True, eq=False)
class RawSearch:
    """Looks for chunks of a raw log that hold rows of a table. What is known of one is not read again."""

    raw: RawTable
    judge: Judge
    history: History
    unread: dict[_Chunk, str] = field(default_factory=dict)

    @staticmethod
    def of(raw: RawTable, judge: Judge) -> RawSearch:
        """Return the search of what there is. One LIST per store and 1,000 chunks. Raises what `union` raises."""
        return RawSearch(raw, judge, union(raw.opened()))

    def look(self) -> None:
        """Look through all chunks that are not known: again through patches, where keys came that may be theirs.

        A GET of each, of the first copy, several at a time.
        """
        memory, stores = self.judge.memory, self.history.stores
        wanted = (ref for ref in self.history.chunks if memory.needs(self._name(ref)))
        for ref, chunk in side_by_side(partial(read_columns, stores), wanted, lambda _: HELD_BYTES // CHUNKS_AT_ONCE):
            if isinstance(chunk, Exception):
                raise chunk
            if isinstance(chunk, Damage):
                self.unread[ref.writer, ref.number] = "; ".join(chunk.reasons)
            else:
                own = chunk.records.filter(pc.equal(chunk.records.column("table"), self.raw.table))
                memory.say(self._name(ref), self._holds(own))

    def done(self) -> RawFound:
        """Return what holds rows, by what is known now. One LIST per store and 1,000 chunks."""
        history, memory = self.history, self.judge.memory
        return RawFound(
            holding=frozenset((ref.writer, ref.number) for ref in history.chunks if memory.holds(self._name(ref))),
            unread=self.unread,
            offsets=log_offsets(self.judge.snapshot),
            stores=history.stores,
            keys={store.uri: _chunks(store) for store in history.stores},
            writers=frozenset((*history.writers, *history.collected)),
            unreachable=history.unreachable,
        )

    def _name(self, ref: RawChunkRef) -> str:
        """What it is remembered by: writers are of one raw log, which has rows of tables of several names."""
        return f"{self.raw.table}\n{ref.writer}\n{ref.number}"

    def _holds(self, records: pa.Table) -> bool:
        if not records.num_rows:
            return False
        config, schema = self.judge.snapshot.config, self.judge.snapshot.schema
        typed = typed_records(
            records, schema, key=config.primary_key, merged_maps=config.merged_maps, nonzero=config.nonzero_vectors
        )
        rejected = any(self.judge.text(f"{each.key} {each.fields}") is not False for each in typed.rejected)
        return rejected or bool(typed.records.num_rows and self.judge.records(typed.records).any())


def note_chunks(found: RawFound, *, ids: Ids, now_ms: int) -> None:
    """Note in every store that answers that the chunks that hold rows may go, and of their writers those before them.

    They go together: what is collected of a raw log is, of each writer, all up to a chunk. See `note_forgotten`.
    """
    last: dict[str, int] = {}
    for writer, number in found.holding:
        last[writer] = max(number, last.get(writer, 0))
    for store in found.stores:
        keys = [key for key, (writer, number) in found.keys[store.uri].items() if number <= last.get(writer, 0)]
        note_forgotten(store, sorted(keys), ids=ids, now_ms=now_ms)


def _chunks(store: ObjectStore) -> dict[str, _Chunk]:
    found = ((info.key, parse(info.key)) for info in store.list(LIVE_PREFIX))
    return {key: (each.writer, each.number) for key, each in found if isinstance(each, ChunkKey)}
