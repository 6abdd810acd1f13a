"""Collection of a raw log: chunks whose records every table has, older than the retention (decision 0134).

Two passes per store, as for tables: each store has a plan of its own, and a copy goes when it has been in it for the
horizon and every table's offset, read again, is still beyond it. Before a chunk goes it is read once more: one without
a sound copy stays, and records of tables that are none go to quarantine, so that nothing ends unseen. What is missing
is never given up here, and what some table lacks is never touched. Chunks that hold forgotten rows are old at once, and
so are those before them (`gc.forgotten`). Notes of record ids go when no record can come any
more that is compared with them (decision 0135).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from storage_core.clock import Clock
from storage_core.distribution import rejects
from storage_core.distribution.backlog import Backlog, ByTable, backlog, everywhere
from storage_core.distribution.work import Source
from storage_core.errors import CommitConflict
from storage_core.formats.gc_plan import Candidate, Plan, Reason
from storage_core.formats.keys import gc_candidates_key
from storage_core.formats.raw_collected import Collected
from storage_core.formats.raw_keys import IDS_PREFIX, LIVE_PREFIX, ChunkKey, IdsKey, parse
from storage_core.gc.forgotten import forgotten_chunks, forgotten_keys
from storage_core.gc.plan import note_candidates, read_plan, write_plan
from storage_core.gc.raw_collected import note_collected
from storage_core.ids import Ids
from storage_core.objectstore.contract import PAGE_KEYS, ObjectInfo, ObjectStore
from storage_core.raw_log.chunks import Damage, RawChunkRef, read_columns
from storage_core.raw_log.history import CLOSED_AFTER_MS, History, union

_logger = logging.getLogger(__name__)

HORIZON_MS = 24 * 3_600_000
"""How long a chunk is in the plan before it goes, unless said otherwise."""

_Number = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLogCollection:
    """What one run found and did. `candidates` are, by the URI of the store, what was due there at its start.

    `unknown` counts records by tables that are none; they are in quarantine. `damaged` are keys of chunks without a
    sound copy, which stay. `unreachable` are stores that did not answer: their copies wait.
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
    """Collects one raw log. `offsets` reads those of every table that may get rows of it, each time anew.

    A table that cannot be read has no offset and so protects every chunk; so does a raw log without tables. Without a
    retention nothing is old.
    """

    source: Source
    stores: Sequence[ObjectStore]
    offsets: Callable[[], ByTable]
    retention_ms: int | None
    clock: Clock
    ids: Ids
    horizon_ms: int = HORIZON_MS

    def collect(self, *, dry_run: bool = False) -> RawLogCollection:
        """Run both passes: note what may go now, then delete what has been noted for the whole horizon.

        With `dry_run` nothing is written. Idempotent, and restartable wherever it was killed. Requests: two LISTs per
        1,000 chunks and store, one of ids, and those of `offsets`, twice where something is due; per store two PUTs of
        its plan; per chunk that goes a GET; per 1,000 chunks and store a HEAD, a GET and PUT of what was collected, and
        a delete. Raises what a read raises, before anything is deleted; `CommitConflict` when two collectors meet.
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

    def _mark(self, history: History, plans: Mapping[str, Plan], now_ms: int) -> _Marked:
        listed = {store.uri: list(_chunks(store)) for store in history.stores}
        written: dict[_Number, int] = {}
        for key, info in (each for several in listed.values() for each in several):
            number = key.writer, key.number
            # The oldest copy: one that was healed or restored makes no chunk younger.
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
            # No record is compared with older ids any more: neither one that waits, nor one that may come.
            coming_ms = now_ms - CLOSED_AFTER_MS
            first_ms = coming_ms if found.oldest_waiting_ms is None else min(found.oldest_waiting_ms, coming_ms)
            for store in history.stores:
                due[store.uri].update(_old_ids(store, first_ms - self.source.unique_for_ms))
        there = {uri: frozenset(info.key for _, info in several) for uri, several in listed.items()}
        return _Marked(history, found, due, there)

    def _old(
        self,
        history: History,
        offsets: ByTable,
        written: Mapping[_Number, int],
        *,
        forgotten: Mapping[str, int],
        now_ms: int,
    ) -> Iterator[_Number]:
        """The chunks that every table has and that are old enough: of each writer the first ones, without a break."""
        for writer, reached in everywhere(history, offsets).items():
            for ref in history.chunks_of(writer):
                # The store's time of the chunk: its segment has the writer's, whose clock may have been ahead.
                began_ms = written.get((writer, ref.number), max(ref.segment_ms, now_ms))
                # Of what was collected a copy is left where a store was away.
                known = max(forgotten.get(writer, 0), history.collected_up_to(writer))
                is_old = ref.number <= known or self._is_past(now_ms - began_ms)
                if ref.number > reached or not is_old:
                    break
                yield writer, ref.number

    def _is_past(self, age_ms: int) -> bool:
        """Whether a chunk of this age is past the retention."""
        # Zero means now, also where two clocks disagree by some milliseconds about what now is.
        return self.retention_ms is not None and (not self.retention_ms or age_ms >= self.retention_ms)

    def _ready(self, plan: Plan, now_ms: int) -> set[str]:
        return {
            each.key
            for each in plan.candidates.values()
            if self.horizon_ms == 0 or now_ms - each.first_seen_ms >= self.horizon_ms
        }

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
class _Marked:
    """The history, what tables lack of it, and by store what may go, by key, and the keys of all chunks."""

    history: History
    backlog: Backlog
    due: Mapping[str, Mapping[str, ObjectInfo]]
    listed: Mapping[str, frozenset[str]]


@dataclass(slots=True)
class _Sweep:
    """Pass two, batch by batch: read, note how far it goes, delete."""

    collector: RawLogCollector
    history: History
    plans: Mapping[str, Plan]
    deleted: dict[str, set[str]] = field(default_factory=dict)
    bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)

    def run(self, refs: Sequence[RawChunkRef], going: Mapping[str, Mapping[str, ObjectInfo]], now_ms: int) -> None:
        """Delete the copies of these chunks that are going, once all of them were read."""
        sound: list[RawChunkRef] = []
        reached: dict[str, Collected] = {}
        for ref in refs:
            chunk = read_columns(self.history.stores, ref)
            if isinstance(chunk, Damage):
                self.damaged.append(ref.keys[0])
                continue
            self.unknown += rejects.keep_unknown(self.history.stores, self.collector.source, ref, chunk.records)
            reached[ref.writer] = Collected(number=ref.number, sequence=chunk.last, at_ms=now_ms)
            sound.append(ref)
        if not sound:
            return
        note_collected(self.history, reached, now_ms=now_ms, ids=self.collector.ids)
        for store in self.history.stores:
            own = going[store.uri]
            self._delete(store, {key: own[key] for ref in sound for key in ref.keys if key in own})

    def drop_ids(self, going: Mapping[str, Mapping[str, ObjectInfo]]) -> None:
        """Delete the notes of ids that are going."""
        for store in self.history.stores:
            own = [(key, info) for key, info in going[store.uri].items() if key.startswith(IDS_PREFIX)]
            for start in range(0, len(own), PAGE_KEYS):
                self._delete(store, dict(own[start : start + PAGE_KEYS]))

    def _delete(self, store: ObjectStore, infos: Mapping[str, ObjectInfo]) -> None:
        if not infos:
            return
        if store.head(gc_candidates_key()).etag != self.plans[store.uri].etag:
            raise CommitConflict(
                f"{gc_candidates_key()}: replaced by another collector, which is at work on {store.uri}; run again "
                "later",
                key=gc_candidates_key(),
            )
        results = store.delete([*infos])
        for key, info in infos.items():
            error = results.get(key, "the store gave no result for it")
            if error is None:
                self.deleted.setdefault(store.uri, set()).add(key)
                self.bytes += info.size
            else:
                self.failed[f"{store.uri}/{key}"] = error
        _logger.info("collected %d objects of %s so far", len(self.deleted.get(store.uri, ())), store.uri)


def _chunks(store: ObjectStore) -> Iterator[tuple[ChunkKey, ObjectInfo]]:
    for info in store.list(LIVE_PREFIX):
        key = parse(info.key)
        if isinstance(key, ChunkKey):
            yield key, info


def _old_ids(store: ObjectStore, before_ms: int) -> Iterator[tuple[str, ObjectInfo]]:
    for info in store.list(IDS_PREFIX):
        key = parse(info.key)
        if isinstance(key, IdsKey) and key.last_ms < before_ms:
            yield info.key, info


def _candidates(due: Mapping[str, ObjectInfo], listed: frozenset[str], plan: Plan, now_ms: int) -> dict[str, Candidate]:
    """The plan of now: what was known keeps its first sight, what is protected again or gone is dropped.

    What is forgotten stays in it as long as it is there, also while a table lacks it.
    """
    newest_ms = max((each.last_modified_ms for each in due.values()), default=0)
    found = {key: plan.candidates[key] for key in forgotten_keys([plan]) & listed}
    for key in due.keys() - found.keys():
        info, known = due[key], plan.candidates.get(key)
        found[key] = Candidate(
            key=key,
            reason=Reason.OLD_RECORD_IDS if key.startswith(IDS_PREFIX) else Reason.DISTRIBUTED_CHUNK,
            size=info.size,
            first_seen_ms=known.first_seen_ms if known else max(now_ms, newest_ms),
            since_version=0,
        )
    return found
