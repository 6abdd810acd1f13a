"""Maintenance of raw logs: collection of distributed chunks, and healing of stores with missing chunks.

Collection deletes a chunk when every table has its records and the chunk is older than the retention
(docs/architecture/collection.md). Like the collection of tables, the collection of raw logs takes two passes per store.
Each store has its own plan. A copy is deleted after it has been in the plan of its store for the whole horizon. When a
copy of a chunk is deleted, every table must still have the records of the chunk. Before the deletion, the chunk is read
once more. A chunk without a valid copy stays, and records of unknown tables go to quarantine. Record ids are deleted
when no future record must be compared with these ids (docs/architecture/ingestion.md).

The retention does not apply to a chunk with forgotten rows, or to any earlier chunk of the same writer. The retention
also does not apply to a chunk that was already deleted on another store.

Healing copies missing chunks from the other stores (docs/operations.md, "A store of a raw log was not available"). All
copies of a chunk have the same bytes. Healing copies a chunk only after a check of the chunk's checksum, writer and
number. The chunk is copied only to an unused key. A damaged copy is replaced only if it has not changed since the read.
Healing does not restore a collected chunk.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import CommitConflict, Corrupt, NotFound, TidemarkError, Unavailable
from storage_core.data.formats import raw_chunk
from storage_core.data.formats.documents import Candidate, Collected, Plan, encode_collected
from storage_core.data.formats.keys import COLLECTED_KEY, IDS_PREFIX, LIVE_PREFIX, ChunkKey, IdsKey, parse_raw
from storage_core.data.formats.kinds import KINDS, KeyKind, Reason
from storage_core.data.formats.raw_chunk import read_head
from storage_core.maintain.collect import (
    Unreachable,
    delete_objects,
    forgotten_chunks,
    forgotten_keys,
    has_passed,
    merged_candidates,
    note_candidates,
    read_plan,
    replace_state,
    require_own_plan,
    write_plan,
)
from storage_core.store.contract import (
    PAGE_KEYS,
    Committed,
    IfMatch,
    ObjectInfo,
    ObjectStore,
    create_numbered,
    put_or_unknown,
)
from storage_core.store.meter import all_of
from storage_core.write.distribution import execute
from storage_core.write.distribution.work import Backlog, ByTable, Source, backlog, everywhere
from storage_core.write.raw_log.history import (
    CLOSED_AFTER_MS,
    Damage,
    History,
    RawChunkRef,
    StoredCollected,
    furthest,
    read_collected,
    read_columns,
    union,
)

KEPT_MS = 90 * 24 * 3_600_000
"""Time in ms that the entry of a writer stays after the writer's last chunk is deleted.

If the writer returns later, there is a gap before its next chunk.
"""


_logger = logging.getLogger(__name__)

HORIZON_MS = 24 * 3_600_000
"""Time in ms between the addition of a chunk to the plan and its deletion. Default of `RawLogCollector.horizon_ms`."""

_Number = tuple[str, int]


def note_collected(history: History, reached: Mapping[str, Collected], *, now_ms: int, ids: Ids) -> None:
    """Record the last collected chunk of these writers in every reachable store.

    If a store already records a higher chunk number for a writer, the function does not change the record in that
    store. The entry of a writer without a chunk is removed after `KEPT_MS`, if all stores answer.

    Raises:
        CommitConflict: Another collector was first. Nothing may be deleted.
        CommitUnknown: The store did not report the outcome. Nothing may be deleted.

    Cost:
        Two requests per store.
    """
    stored = {store.uri: read_collected(store) for store in history.stores}
    known = furthest(*(each.writers for each in stored.values()), reached)
    gone = set() if history.unreachable else known.keys() - set(history.writers)
    writers = {writer: each for writer, each in known.items() if writer not in gone or now_ms - each.at_ms < KEPT_MS}
    for store in history.stores:
        put_collected(store, stored[store.uri], writers, ids=ids)


def put_collected(store: ObjectStore, stored: StoredCollected, writers: Mapping[str, Collected], *, ids: Ids) -> None:
    """Replace the record of a store if it differs. One PUT. Raises `CommitConflict` or `CommitUnknown`."""
    if stored.writers != writers:
        replace_state(store, COLLECTED_KEY, encode_collected(writers, nonce=ids.uuid()), etag=stored.etag)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLogCollection:
    """The outcome of one run.

    - `candidates`: the objects that were ready for deletion at the start, by URI of the store.
    - `unknown`: the number of records for each unknown table name. These records are in quarantine.
    - `damaged`: keys of chunks without a valid copy. These chunks stay.
    - `unreachable`: stores that did not answer. A later run collects the copies in these stores.
    """

    backlog: Backlog
    candidates: Mapping[str, tuple[Candidate, ...]]
    deleted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bytes: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    horizon_ms: int
    dry_run: bool


@dataclass(slots=True, kw_only=True)
class RawLogCollector:
    """Collector of one raw log. `offsets` reads the current offsets of every table that may get rows of the raw log.

    An unreadable table has no offsets and thus protects every chunk. If the raw log has no tables, the collector also
    protects every chunk. Without a retention, no chunk is old enough to be deleted.
    """

    source: Source
    stores: Sequence[ObjectStore]
    offsets: Callable[[], ByTable]
    retention_ms: int | None
    clock: Clock
    ids: Ids
    horizon_ms: int = HORIZON_MS

    def collect(self, *, dry_run: bool = False) -> RawLogCollection:
        """Run both passes. Add deletable objects to the plan, and delete objects planned at least one horizon ago.

        The run is idempotent, and can be repeated after a kill at any point. A read error is raised before anything is
        deleted.

        Args:
            dry_run: True writes nothing.

        Raises:
            CommitConflict: Two collectors ran at the same time.

        Cost:
            Two LISTs per 1,000 chunks and store, and one LIST of the record ids. The requests of `offsets`, twice if an
            object is due. Two PUTs of the plan per store. One GET per deleted chunk. Per 1,000 chunks and store, one
            HEAD, one GET and one PUT of the collected positions, and one delete request.
        """
        now_ms = self.clock.now_ms()
        history = union(self.stores)
        plans = {store.uri: read_plan(store) for store in history.stores}
        marked = self._mark(history, plans, now_ms)
        found = {uri: _candidates(marked.due[uri], marked.listed[uri], plan, now_ms) for uri, plan in plans.items()}
        report = RawLogCollection(
            backlog=marked.backlog,
            candidates={uri: tuple(each[key] for key in sorted(each)) for uri, each in found.items()},
            unreachable=marked.history.unreachable,
            horizon_ms=self.horizon_ms,
            dry_run=dry_run,
        )
        if dry_run:
            return report
        noted: dict[str, Plan] = {}
        ready: dict[str, set[str]] = {}
        for store in marked.history.stores:
            if found[store.uri] or plans[store.uri].candidates:
                noted[store.uri], now_ms = note_candidates(
                    store, plans[store.uri], found[store.uri], ids=self.ids, now_ms=now_ms
                )
                ready[store.uri] = self._ready(noted[store.uri], now_ms)
        return self._swept(report, noted, ready, now_ms) if any(ready.values()) else report

    def _mark(self, history: History, plans: Mapping[str, Plan], now_ms: int) -> _DueObjects:
        listed = {store.uri: list(list_chunks(store)) for store in history.stores}
        written: dict[_Number, int] = {}
        for key, info in (each for several in listed.values() for each in several):
            number = key.writer, key.number
            # The age of a chunk is computed from the time of its oldest copy. A copy that healing or a restore writes
            # later does not change the age of the chunk.
            written[number] = min(info.last_modified_ms, written.get(number, info.last_modified_ms))
        offsets = self.offsets()
        forgotten = forgotten_chunks(plans.values())
        old = set(self._old(history, offsets, written, forgotten=forgotten, now_ms=now_ms))
        due = {
            uri: {info.key: info for key, info in several if (key.writer, key.number) in old}
            for uri, several in listed.items()
        }
        found = backlog(history, offsets)
        if offsets and not history.unreachable:
            # Record ids expire if they are `unique_for_ms` older than every waiting and future record. No record is
            # compared with expired ids.
            coming_ms = now_ms - CLOSED_AFTER_MS
            first_ms = coming_ms if found.oldest_waiting_ms is None else min(found.oldest_waiting_ms, coming_ms)
            for store in history.stores:
                before_ms = first_ms - self.source.unique_for_ms
                due[store.uri] |= {info.key: info for key, info in _list_ids(store) if key.last_ms < before_ms}
        there = {uri: frozenset(info.key for _, info in several) for uri, several in listed.items()}
        return _DueObjects(history, found, due, there)

    def _old(
        self,
        history: History,
        offsets: ByTable,
        written: Mapping[_Number, int],
        *,
        forgotten: Mapping[str, int],
        now_ms: int,
    ) -> Iterator[_Number]:
        """Yield the chunks that are old enough and whose records every table already has.

        These are the first chunks of each writer, without a gap.
        """
        for writer, reached in everywhere(history, offsets).items():
            for ref in history.chunks_of(writer):
                # The age is computed from the store's time of the chunk. The time in the segment comes from the clock
                # of the writer, which may have been ahead.
                began_ms = written.get((writer, ref.number), max(ref.segment_ms, now_ms))
                # A store that was unreachable can still have a copy of a collected chunk.
                known = max(forgotten.get(writer, 0), history.collected_up_to(writer))
                is_old = ref.number <= known or (
                    self.retention_ms is not None and has_passed(began_ms, self.retention_ms, now_ms)
                )
                if ref.number > reached or not is_old:
                    break
                yield writer, ref.number

    def _ready(self, plan: Plan, now_ms: int) -> set[str]:
        candidates = plan.candidates.values()
        return {each.key for each in candidates if has_passed(each.first_seen_ms, self.horizon_ms, now_ms)}

    def _swept(
        self, report: RawLogCollection, plans: Mapping[str, Plan], ready: Mapping[str, set[str]], now_ms: int
    ) -> RawLogCollection:
        marked = self._mark(union(self.stores), plans, now_ms)
        going = {
            uri: {key: info for key, info in due.items() if key in ready.get(uri, ())}
            for uri, due in marked.due.items()
        }
        done = _Sweep(self, marked.history, plans)
        keys = {key for each in going.values() for key in each}
        refs = [ref for ref in marked.history.chunks if not keys.isdisjoint(ref.keys)]
        refs.sort(key=lambda each: (each.writer, each.number))
        for start in range(0, len(refs), PAGE_KEYS):
            done.run(refs[start : start + PAGE_KEYS], going, now_ms)
            if done.failed:
                break
        else:
            done.drop_ids(going)
        for store in marked.history.stores:
            if gone := done.deleted.get(store.uri):
                rest = {key: each for key, each in plans[store.uri].candidates.items() if key not in gone}
                write_plan(store, plans[store.uri], rest, nonce=self.ids.uuid())
        return replace(
            report,
            deleted={uri: tuple(sorted(gone)) for uri, gone in done.deleted.items()},
            bytes=done.bytes,
            failed=done.failed,
            unknown=dict(done.unknown),
            damaged=tuple(done.damaged),
        )


@dataclass(frozen=True, slots=True)
class _DueObjects:
    """The history, the backlog of the tables, the due objects by store and key, and the keys of all chunks by store."""

    history: History
    backlog: Backlog
    due: Mapping[str, Mapping[str, ObjectInfo]]
    listed: Mapping[str, frozenset[str]]


@dataclass(slots=True)
class _Sweep:
    """Pass two, batch by batch: read the chunks, record the new positions, delete the copies."""

    collector: RawLogCollector
    history: History
    plans: Mapping[str, Plan]
    deleted: dict[str, set[str]] = field(default_factory=dict)
    bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)

    def run(self, refs: Sequence[RawChunkRef], going: Mapping[str, Mapping[str, ObjectInfo]], now_ms: int) -> None:
        """Read these chunks, and then delete the copies that are ready for deletion."""
        sound: list[RawChunkRef] = []
        reached: dict[str, Collected] = {}
        for ref in refs:
            chunk = read_columns(self.history.stores, ref)
            if isinstance(chunk, Damage):
                self.damaged.append(ref.keys[0])
                continue
            self.unknown += execute.keep_unknown(self.history.stores, self.collector.source, ref, chunk.records)
            reached[ref.writer] = Collected(number=ref.number, sequence=chunk.last, at_ms=now_ms)
            sound.append(ref)
        if not sound:
            return
        note_collected(self.history, reached, now_ms=now_ms, ids=self.collector.ids)
        for store in self.history.stores:
            own = going[store.uri]
            self._delete(store, {key: own[key] for ref in sound for key in ref.keys if key in own})

    def drop_ids(self, going: Mapping[str, Mapping[str, ObjectInfo]]) -> None:
        """Delete the record ids that are ready for deletion."""
        for store in self.history.stores:
            own = [(key, info) for key, info in going[store.uri].items() if key.startswith(IDS_PREFIX)]
            for start in range(0, len(own), PAGE_KEYS):
                self._delete(store, dict(own[start : start + PAGE_KEYS]))

    def _delete(self, store: ObjectStore, infos: Mapping[str, ObjectInfo]) -> None:
        if not infos:
            return
        require_own_plan(store, self.plans[store.uri])
        for key, error in zip(infos, delete_objects(store, [*infos]), strict=True):
            if error is None:
                self.deleted.setdefault(store.uri, set()).add(key)
                self.bytes += infos[key].size
            else:
                self.failed[f"{store.uri}/{key}"] = error
        _logger.info("collected %d objects of %s so far", len(self.deleted.get(store.uri, ())), store.uri)


def list_chunks(store: ObjectStore) -> Iterator[tuple[ChunkKey, ObjectInfo]]:
    """Yield the chunks of a raw log in one store. One LIST per 1,000 chunks."""
    for info in store.list(LIVE_PREFIX):
        key = parse_raw(info.key)
        if isinstance(key, ChunkKey):
            yield key, info


def _list_ids(store: ObjectStore) -> Iterator[tuple[IdsKey, ObjectInfo]]:
    for info in store.list(IDS_PREFIX):
        key = parse_raw(info.key)
        if isinstance(key, IdsKey):
            yield key, info


def _candidates(due: Mapping[str, ObjectInfo], listed: frozenset[str], plan: Plan, now_ms: int) -> dict[str, Candidate]:
    """Return the current candidates. Known candidates keep their first time.

    The function drops a known candidate if the object is protected again or no longer exists. A forgotten object stays
    a candidate while the object exists. A forgotten object stays a candidate even if a table does not have the records
    of the object.
    """
    newest_ms = max((each.last_modified_ms for each in due.values()), default=0)
    found = {key: plan.candidates[key] for key in forgotten_keys([plan]) & listed}
    unneeded = [_unneeded(due[key]) for key in due.keys() - found.keys()]
    return found | merged_candidates(plan, unneeded, now_ms=max(now_ms, newest_ms))


def _unneeded(info: ObjectInfo) -> Unreachable:
    kind = KeyKind.RAW_IDS if info.key.startswith(IDS_PREFIX) else KeyKind.RAW_CHUNK
    reason = KINDS[kind].unneeded or Reason.FORGOTTEN
    return Unreachable(
        key=info.key, kind=kind, reason=reason, size=info.size, since_version=0, since_ms=info.last_modified_ms
    )


OBJECTS_AT_ONCE = 4
"""Number of objects that are copied at a time. Each whole object is in memory."""

_Identity = tuple[str, int]
"""Writer and number of a chunk. For record ids, the key of the object and the number 0 identify the object."""

_Sizes = Mapping[_Identity, int]


@dataclass(frozen=True, slots=True)
class _Item:
    """An object that every store should have.

    An item is a chunk, which may have several keys, or an object with record ids.
    """

    identity: _Identity
    keys: tuple[str, ...]

    def is_valid(self, data: bytes, key: str) -> bool:
        """Return whether these bytes are valid for the key."""
        name = parse_raw(key)
        try:
            if isinstance(name, IdsKey):
                raw_chunk.decode_ids(data, name)
                return True
            head = read_head(data, key)
        except Corrupt:
            return False
        return (head.key.writer, head.key.number) == self.identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """The outcome of one run, by the URI of the store.

    - `objects`: the number of chunks and of record id objects.
    - `lacking`: the number of missing objects.
    - `copied`: the number of missing objects that were copied.
    - `replaced`: the number of damaged copies that were replaced by valid copies.
    - `bytes`: the number of bytes written.
    - `failed`: errors by store and key.
    - `damaged`: keys without a valid copy in any store.
    - `unreachable`: stores that did not answer. This run did not change these stores.
    """

    objects: int
    lacking: Mapping[str, int]
    copied: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every store has every object with a valid copy. The value covers only objects this run checked."""
        left = sum(self.lacking.values()) - sum(self.copied.values())
        return not (left or self.failed or self.damaged or self.unreachable)


def heal(
    stores: Sequence[ObjectStore], *, clock: Clock, ids: Ids, verify: bool = False, dry_run: bool = False
) -> Healing:
    """Copy missing chunks and record ids to each reachable store from the other stores.

    A killed run can be run again.

    Args:
        stores: All stores of the raw log.
        clock: Clock of this machine.
        ids: Source of new ids.
        verify: True compares every copy with its checksum and replaces damaged copies. False does this only for copies
            with different sizes.
        dry_run: True writes nothing and does not look for damage.

    Raises:
        Unavailable: No store answers.

    Cost:
        Two LISTs per 1,000 chunks and store, one LIST of the record ids, and a GET and a PUT per copy. Memory:
        `OBJECTS_AT_ONCE` objects.
    """
    history = union(stores)
    sizes = {store.uri: _sizes(store) for store in history.stores}
    wanted = [
        _Item((each.writer, each.number), each.keys)
        for each in history.chunks
        if each.number > history.collected_up_to(each.writer)
    ]
    noted = sorted({key for own in sizes.values() for key, number in own if not number})
    wanted += [_Item((key, 0), (key,)) for key in noted]
    lacking = {uri: sum(each.identity not in own for each in wanted) for uri, own in sizes.items()}
    found = Healing(objects=len(wanted), lacking=lacking, unreachable=history.unreachable)
    if dry_run:
        return found
    due = [each for each in wanted if verify or len({own.get(each.identity) for own in sizes.values()}) > 1]
    healed = all_of(partial(_heal, history, sizes, clock), due, OBJECTS_AT_ONCE)
    if history.collected:
        for store in history.stores:
            put_collected(store, read_collected(store), history.collected, ids=ids)
    return replace(
        found,
        copied=dict(Counter(uri for each in healed for uri in each.copied)),
        replaced=dict(Counter(uri for each in healed for uri in each.replaced)),
        bytes=sum(each.written for each in healed),
        failed={where: why for each in healed for where, why in each.failed.items()},
        damaged=tuple(each.item.keys[0] for each in healed if not each.is_valid),
    )


@dataclass(slots=True)
class _Healed:
    item: _Item
    is_valid: bool = False
    copied: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    written: int = 0

    def copy(self, store: ObjectStore, data: bytes, clock: Clock) -> None:
        """Put the object into a store that does not have it."""
        key = self.item.keys[0]
        with self._noting(store, key):
            if not create_numbered(store, key, data, clock=clock):
                raise CommitConflict(f"{key}: another object was written at this key meanwhile. Run it again", key=key)
            self.copied.append(store.uri)
            self.written += len(data)

    def replace(self, store: ObjectStore, key: str, etag: str, data: bytes) -> None:
        """Replace a damaged copy, if it has not changed since it was read."""
        with self._noting(store, key):
            result = put_or_unknown(store, key, data, IfMatch(etag))
            if not isinstance(result, Committed) and store.get(key).data != data:
                raise CommitConflict(
                    f"{key}: another process replaced the damaged copy meanwhile. Run it again", key=key
                )
            self.replaced.append(store.uri)
            self.written += len(data)
            _logger.warning("%s/%s was damaged, and is repaired", store.uri, key)

    @contextmanager
    def _noting(self, store: ObjectStore, key: str) -> Iterator[None]:
        """Store the error of the block under the copy's key, and continue with the other copies."""
        try:
            yield
        except TidemarkError as error:
            self.failed[f"{store.uri}/{key}"] = str(error)


def _heal(history: History, sizes: Mapping[str, _Sizes], clock: Clock, item: _Item) -> _Healed:
    """Copy one object to the stores without a copy, and replace its damaged copies."""
    done = _Healed(item)
    sound: bytes | None = None
    damaged: list[tuple[ObjectStore, str, str]] = []
    having = [store for store in history.stores if item.identity in sizes[store.uri]]
    for store in having:
        for key in item.keys:
            try:
                blob = store.get(key)
            except NotFound:
                continue
            except Unavailable as error:
                done.failed[f"{store.uri}/{key}"] = str(error)
                continue
            if item.is_valid(blob.data, key):
                sound = sound or blob.data
            else:
                damaged.append((store, key, blob.etag))
    if sound is None:
        return done
    done.is_valid = True
    for store in history.stores:
        if store not in having:
            done.copy(store, sound, clock)
    for store, key, etag in damaged:
        done.replace(store, key, etag, sound)
    return done


def _sizes(store: ObjectStore) -> dict[_Identity, int]:
    chunks: dict[_Identity, int] = {(key.writer, key.number): info.size for key, info in list_chunks(store)}
    return chunks | {(info.key, 0): info.size for _, info in _list_ids(store)}
