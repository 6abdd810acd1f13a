"""Forgetting: erase rows from a table and, over time, from all stores, with a report at every stage.

The steps run in this order. A step that was already done does nothing, so an interrupted run can be repeated.

1. Delete the rows as `delete` does. For a keyed table, also flush and merge the regions with records of these rows.
2. In one commit, rewrite every split with the rows, remove every index segment with the rows, and record this work.
3. Write new states until every state that the table retains was written after the commit of step 2. Then no retained
   state contains the removed objects.
4. Write new quarantine entries without the rows. Mark the old entries and the chunks of raw logs for the collector.

This module deletes no object, and the new objects that it writes contain no values of the forgotten rows (decision
0030). If a raw log was not searched, the report assumes that it contains the rows. Tidemark never changes a landed
file, so a person must remove the file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.clock import Ids
from storage_core.base.errors import CommitConflict, Corrupt, NotFound, TidemarkError
from storage_core.base.process import remove_abandoned
from storage_core.change.statements import Matching, Target, delete, delete_by_key, required_filter
from storage_core.compact.invariants import scope_of
from storage_core.compact.planner import contexts_of
from storage_core.compact.rewindow import RewindowTask, execute
from storage_core.data.formats.arrow_files import Entry, RejectedLines
from storage_core.data.formats.documents import CheckpointKind
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.table import FeedingRawLog
from storage_core.log.actions import (
    Action,
    Add,
    IndexSegment,
    MergedGenerations,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
)
from storage_core.log.checkpoint import key_of_manifest, read_state
from storage_core.log.log import TransactionLog, compact_state, retry_on_conflict
from storage_core.log.sharing import SOURCE, open_table_store
from storage_core.log.snapshot import Snapshot
from storage_core.log.versions import read_version
from storage_core.maintain.collect import forgotten_chunks, mark, note_forgotten, read_plan
from storage_core.maintain.forget_blockers import (
    OPERATION,
    BlockerSearch,
    MetadataSearch,
    Since,
    holding_segments,
    is_forgetting,
    names_rows,
)
from storage_core.maintain.forget_report import ForgetReport, Forgotten, Held, KeptBy, RawTable
from storage_core.maintain.forget_search import (
    AT_ONCE,
    HELD_BYTES,
    HoldingObjects,
    RowCondition,
    Search,
    holding_splits,
    read_concurrently,
)
from storage_core.maintain.raw_logs import HORIZON_MS, list_chunks
from storage_core.maintain.table_objects import list_table
from storage_core.read.predicate import Filter
from storage_core.read.verified_files import VerifiedFiles
from storage_core.split.context import SplitContext, context_of
from storage_core.split.writer import Rewrite
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of, prefetch
from storage_core.write.distribution.work import WITH_IDS, log_offsets
from storage_core.write.ingest.batch import parse_blocks
from storage_core.write.ingest.changes import ChangeFormat
from storage_core.write.ingest.convert import BLOCK_BYTES, read_lines
from storage_core.write.ingest.json_elements import read_elements
from storage_core.write.ingest.landing import LandedFile, LandingSpec, discover, open_text
from storage_core.write.late_rows import commit_app, read_object, rewrite_object
from storage_core.write.raw_log.history import Damage, History, RawChunkRef, read_columns, union
from storage_core.write.raw_log.read import typed_records
from storage_core.write.region import steps, wal
from storage_core.write.region.idle import IdleRegion, flush_idle
from storage_core.write.region.spec import known_manifests

CHUNKS_AT_ONCE: Final = 4

_Chunk = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RawFound:
    """The result of searching one raw log.

    - `holding`: chunks that contain rows.
    - `unread`: chunks that cannot be read, with the reason.
    - `offsets`: the last chunk of each writer that is in the table.
    - `keys`: the keys of all chunks, by store.
    - `writers`: the writers of all chunks, including deleted chunks.
    - `unreachable`: stores that did not answer.
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
    """Return the given raw logs and the raw logs in the table's settings, without duplicates. No request.

    A raw log is a duplicate if another raw log in the list has all of its stores.
    """
    own = (RawTable(each.table, [*map(open_raw, (*each.stores, *each.optional))]) for each in named)
    found = [(each, {(each.table, store.uri) for store in each.opened()}) for each in (*given, *own)]
    kept: list[tuple[RawTable, set[tuple[str, str]]]] = []
    for each, places in sorted(found, key=lambda one: -len(one[1])):
        if not any(places <= others for _, others in kept):
            kept.append((each, places))
    return tuple(each for each, _ in kept)


def unknown_writers(snapshot: Snapshot, searched: Iterable[RawFound]) -> list[str]:
    """Return the raw log writers that wrote rows of the table but are not in a searched raw log. No request."""
    known = {WITH_IDS}.union(*(each.writers for each in searched))
    return sorted(log_offsets(snapshot).keys() - known)


@dataclass(slots=True, eq=False)
class RawSearch:
    """Search of a raw log for chunks with the rows to forget. A chunk is not read again if its answer is known."""

    raw: RawTable
    judge: RowCondition
    history: History
    unread: dict[_Chunk, str] = field(default_factory=dict)

    @staticmethod
    def of(raw: RawTable, judge: RowCondition) -> RawSearch:
        """Return the search over all existing chunks. Raises the errors of `union`.

        Cost:
            One LIST per store and 1,000 chunks.
        """
        return RawSearch(raw, judge, union(raw.opened()))

    def search_chunks(self) -> None:
        """Search all chunks for which no search result is known.

        A chunk with patches is searched again if new keys were found, because the patches may contain these keys.

        Cost:
            One GET per chunk, of its first copy, several at a time.
        """
        memory, stores = self.judge.memory, self.history.stores
        wanted = (ref for ref in self.history.chunks if memory.needs(self._name(ref)))
        for ref, chunk in read_concurrently(
            partial(read_columns, stores), wanted, lambda _: HELD_BYTES // CHUNKS_AT_ONCE
        ):
            if isinstance(chunk, Exception):
                raise chunk
            if isinstance(chunk, Damage):
                self.unread[ref.writer, ref.number] = "; ".join(chunk.reasons)
            else:
                own = chunk.records.filter(pc.equal(chunk.records.column("table"), self.raw.table))
                memory.say(self._name(ref), self._holds(own))

    def holding_chunks(self) -> RawFound:
        """Return the chunks with rows, according to the answers so far. One LIST per store and 1,000 chunks."""
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
        """Return the name of the stored answer for a chunk.

        A writer belongs to one raw log. A raw log can contain rows of one table under several names.
        """
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
    """Mark the chunks with the rows as forgotten in every reachable store.

    For each writer with a marked chunk, also mark all earlier chunks of the writer.

    The collector always deletes all chunks of a writer up to a number, so these chunks are deleted together. See
    `note_forgotten`.
    """
    last: dict[str, int] = {}
    for writer, number in found.holding:
        last[writer] = max(number, last.get(writer, 0))
    for store in found.stores:
        keys = [key for key, (writer, number) in found.keys[store.uri].items() if number <= last.get(writer, 0)]
        note_forgotten(store, sorted(keys), ids=ids, now_ms=now_ms)


def _chunks(store: ObjectStore) -> dict[str, _Chunk]:
    return {info.key: (key.writer, key.number) for key, info in list_chunks(store)}


Looked = Sequence[tuple[RawTable, RawFound]]
"""Raw logs, each with its search result."""


def held_in_raw_logs(looked: Looked) -> Iterator[Held]:
    """Yield the reasons that keep chunks of raw logs, and the stores that do not answer.

    The cost is the requests of one `read_plan` per store.
    """
    for raw, found in looked:
        for uri in found.unreachable:
            why = "the store does not answer. Run forget again later"
            yield Held(store=uri, key="", kind="raw_log", by=KeptBy.NOT_READ, why=why)
        for store in found.stores:
            yield from _of_store(raw, found, store)


def held_in_others(uri: str, snapshot: Snapshot, searched: Sequence[RawFound]) -> Iterator[Held]:
    """Yield the writers of the table at `uri` whose raw logs were not searched."""
    for writer in unknown_writers(snapshot, searched):
        why = f"rows of the table came from a raw log that was not searched (writer {writer}). Name this raw log"
        yield Held(store=uri, key="", kind="raw_log", by=KeptBy.RAW_LOG, why=why)


def _of_store(raw: RawTable, found: RawFound, store: ObjectStore) -> Iterator[Held]:
    plan = read_plan(store)
    noted = forgotten_chunks([plan])
    for key, (writer, number) in sorted(found.keys[store.uri].items()):
        by, until_ms = KeptBy.RAW_LOG, None
        if (writer, number) in found.unread:
            by, why = KeptBy.NOT_READ, found.unread[writer, number]
        elif (writer, number) not in found.holding:
            continue
        elif found.offsets.get(writer, 0) < number:
            why = f"the rows are not distributed into {raw.table} yet. Distribute, then forget again"
        elif number <= noted.get(writer, 0):
            known = plan.candidates.get(key)
            until_ms = None if known is None else known.first_seen_ms + HORIZON_MS
            by, why = KeptBy.COLLECTOR, "the collector deletes the chunk when every table has it and the earlier chunks"
        else:
            why = "the chunk stays for its retention. Run forget again after the retention"
        yield Held(store=store.uri, key=key, kind="raw_chunk", by=by, why=why, until_ms=until_ms)


_WHY = "the file is not part of the table. Remove the file, or write the file under another name without the rows"
_DELTA = "the files of this landed Delta table were not read. Delete the rows in the Delta table, then vacuum it"


def with_landed_files(
    found: ForgetReport, store: ObjectStore, snapshot: Snapshot, *, where: str, spec: LandingSpec
) -> ForgetReport:
    """Add the landed files with matching rows to the report. Cost: see `held_by_landed_files`."""
    judge = RowCondition(store, snapshot, required_filter(where, "forget", snapshot.schema))
    return replace(found, held=(*found.held, *held_by_landed_files(judge, spec)))


def held_by_landed_files(judge: RowCondition, spec: LandingSpec) -> Iterator[Held]:
    """Yield the landed files that contain matching rows or cannot be read.

    Cost:
        One LIST per 1,000 files. Each file is read once, up to the first row that meets the condition. A few blocks of
        a file are in memory.
    """
    if spec.is_delta:
        yield Held(store=spec.uri, key="", kind="landed_file", by=KeptBy.NOT_READ, why=_DELTA)
        return
    for file in discover(spec):
        try:
            has_rows = _holds(judge, file, spec)
        except NotFound:
            continue
        except TidemarkError as error:
            why = f"the landed file cannot be read: {error.found}"
            yield Held(store=spec.uri, key=file.path, kind="landed_file", by=KeptBy.NOT_READ, why=why)
            continue
        if has_rows:
            yield Held(store=spec.uri, key=file.path, kind="landed_file", by=KeptBy.LANDING, why=_WHY)


def _holds(judge: RowCondition, file: LandedFile, spec: LandingSpec) -> bool:
    """Return whether a row or a rejected line of the file may match the condition.

    The function stops at the first row or line that may match the condition.
    """
    snapshot = judge.snapshot
    changes = ChangeFormat.of(spec, snapshot.schema, snapshot.config)
    for block in parse_blocks(file, spec, snapshot.schema, snapshot.config.time_column, changes=changes):
        if block.unreadable:
            raise Corrupt(block.rejected[0].reason, file=file.path)
        if block.rows.num_rows and judge.mask_quarantined(block.rows).any():
            return True
        if any(judge.text(line.text) is not False for line in block.rejected):
            return True
    if spec.envelope is None:
        return False
    read = read_lines if spec.format == "ndjson" else read_elements
    with open_text(file, encoding=spec.encoding) as stream:  # an envelope also has the row before the change
        texts = (text for block in read(stream, BLOCK_BYTES) for text in block.text.to_pylist())
        return any(judge.text(text) is not False for text in texts)


_logger = logging.getLogger(__name__)

ENTRIES_AT_ONCE: Final = 4

MOST_STATES = 10
"""The largest number of states that one run writes. If a table retains more than this number of states, another run is
needed.
"""


@dataclass(frozen=True, slots=True)
class Ending:
    """The splits, index segments and translations of a version that contain values of the forgotten rows."""

    splits: Sequence[Add]
    segments: Sequence[IndexSegment]
    translations: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a commit: the version after the commit, the id of the commit, and the number of rewritten splits.

    `commit_id` is empty if nothing was committed.
    """

    head: Snapshot
    commit_id: str = ""
    splits: int = 0


@dataclass(slots=True, eq=False)
class Rewriting:
    """Commits rewrites and removals until no object of the newest version contains the rows.

    `look` returns the parts that contain the rows.
    """

    log: TransactionLog
    find_ending: Callable[[Snapshot], Ending]
    _written: dict[str, tuple[Add, Rewrite]] = field(default_factory=dict)

    def run(self, head: Snapshot, found: HoldingObjects) -> Ended:
        """Rewrite the parts of `head` or a later version that contain the rows, and record this work, in one commit.

        A commit without rewrites is still made, to record the run. No commit is made if an earlier run is recorded and
        no object with rows has left the table since then. A missing object counts as an object with rows, because its
        rows are unknown.

        Raises:
            CommitConflict: Other processes changed these splits in each of 10 attempts.

        Cost:
            The requests of `look`, one GET and at least one PUT per split, and a commit. Memory: the rows of one split.
        """

        def attempt(head: Snapshot) -> Ended:
            ending, since = self.find_ending(head), Since.of(head)
            is_new = self._left_after(since, head, found)
            if not is_new and not ending.splits and not ending.segments and not ending.translations:
                return Ended(head)
            regions = sorted({*found.regions, *since.generations})
            return self._committed(head, ending, since.recorded(head, self.log.clock.now_ms(), regions))

        return retry_on_conflict(self.log, head, attempt)

    def _left_after(self, since: Since, head: Snapshot, found: HoldingObjects) -> bool:
        """Return whether a version after the last recorded run references objects that may contain forgotten rows.

        The check is needed because the last recorded run may have had another condition. Two kinds of objects count:
        splits with rows or missing splits, and merged generations of a region that holds rows or is recorded. A missing
        version file may have named any object. One GET per version.
        """
        if since.version is None:
            return True
        for version in range(since.version + 1, head.version + 1):
            actions = read_version(self.log.store, version)
            if actions is None or (
                not is_forgetting(actions) and any(_may_be_of(each, since, found) for each in actions)
            ):
                return True
        return False

    def _committed(self, head: Snapshot, ending: Ending, records: Sequence[Action]) -> Ended:
        rewrites = self._rewritten(head, ending.splits)
        actions = [
            *(action for each in rewrites for action in each.actions),
            *(RemoveIndexSegment(index=each.index, path=each.path) for each in ending.segments),
            *(RemoveTranslation(path=path) for path in ending.translations),
            *records,
        ]
        rows = sum(each.rows_in for each in rewrites)
        metrics = {
            "rows_in": rows,
            "rows_out": rows,
            "splits_in": len(ending.splits),
            "splits_out": sum(len(each.adds) for each in rewrites),
        }
        done = self.log.commit(head, actions, operation=OPERATION, metrics=metrics)
        if done.already_committed:
            raise CommitConflict(
                f"{self.log.store.uri}: another run erased rows on version {head.version}. Plan it again"
            )
        _logger.info("%s of %s: %d splits rewritten", OPERATION, self.log.store.uri, len(ending.splits))
        return Ended(done.snapshot, done.commit_id, len(ending.splits))

    def _rewritten(self, head: Snapshot, splits: Sequence[Add]) -> list[Rewrite]:
        """Return the rewritten splits. A split that did not change since the last attempt is not written again."""
        found: list[Rewrite] = []
        for add, context in zip(splits, _contexts(head, splits), strict=True):
            known = self._written.get(add.path)
            if known is None or known[0] != add:
                task = RewindowTask((add,), context)
                done = execute(self.log.store, task, ids=self.log.ids, now_ms=self.log.clock.now_ms())
                known = self._written[add.path] = add, done
            found.append(known[1])
        return found


def _may_be_of(action: Action, since: Since, found: HoldingObjects) -> bool:
    match action:
        case Add(path=path) | Remove(path=path):
            return path in found.splits or not found.has_split(path)
        case MergedGenerations(region=region):
            return region in found.regions or region in since.generations
        case _:
            return False


def _contexts(head: Snapshot, splits: Sequence[Add]) -> list[SplitContext]:
    """Return the context for the rewrite of each split.

    The context has the order and windows of the split. If the split's order and windows do not fit the table, the
    context has the order and windows of the table.
    """
    own = context_of(head)
    scopes = [scope_of(head.table_id, add) for add in splits]
    known = [each for each in dict.fromkeys(scopes) if each is not None]
    contexts = dict(zip(known, contexts_of(head, known), strict=True))
    return [own if each is None else contexts[each] or own for each in scopes]


def without_rows(store: ObjectStore, keys: Sequence[str], judge: RowCondition) -> None:
    """Write a copy of each object without the rows to forget. The new objects are durable after the call.

    The old objects stay until the collector's next run. A repeated call writes nothing new.

    Cost:
        One GET and at most one PUT per entry.
    """

    def read(key: str) -> tuple[str, tuple[Entry, ...]]:
        try:
            return key, read_object(store, key)
        except NotFound:  # the collector deleted the object in the meantime
            return key, ()

    txns = judge.snapshot.txns
    valid = [key for key in keys if (app := commit_app(key)) is None or app in txns]
    for key, entries in prefetch(read, valid, ENTRIES_AT_ONCE):
        rest = [each for entry in entries if (each := _rest(entry, judge)) is not None]
        rewrite_object(store, key, rest)


def _rest(entry: Entry, judge: RowCondition) -> Entry | None:
    if isinstance(entry, RejectedLines):
        left = tuple(each for each in entry.rejected if judge.text(str(each.get("text"))) is not True)
        return replace(entry, rejected=left) if left else None
    left_rows = ~judge.mask_quarantined(entry.rows)
    lines = None if entry.lines is None else tuple(np.asarray(entry.lines)[left_rows].tolist())
    rows = entry.rows.filter(pa.array(left_rows))
    return replace(entry, rows=rows, lines=lines) if rows.num_rows else None


def merge_regions(log: TransactionLog, head: Snapshot, found: HoldingObjects) -> Snapshot:
    """Flush and merge these regions until all records are merged. Return the resulting version.

    A live writer claims its region again and continues.

    Raises:
        Corrupt: A log cannot be read.
        CommitConflict: Other processes changed the same splits in every attempt.

    Cost:
        The requests of a flush and of merges.
    """
    regions = found.regions
    waiting: list[IdleRegion] = []
    for manifest in known_manifests(log.store, head):
        if manifest.region_id in regions and not manifest.closed_by:
            after = manifest.replay_after_wal_id
            last = wal.find_tail(log.store, manifest.region_id, after=after, seed=manifest.wal_id_last_seen)
            if any(wal.read_tail(log.store, manifest.region_id, after=after)):
                waiting.append(IdleRegion(manifest=manifest, last_entry=last))
    for error in flush_idle(log.store, head, waiting, clock=log.clock, ids=log.ids):
        raise error
    return retry_on_conflict(log, head, lambda newest: steps.merge_regions(log, newest, regions))


def are_clean_states(store: ObjectStore, head: Snapshot, found: HoldingObjects, wanted: int) -> bool:
    """Return whether the newest `wanted` states exist and are clean.

    A clean state belongs to the version of the last `FORGET` or a later version. A clean state contains no tombstone,
    and none of the splits that may have contained forgotten rows. A split that was live in an older state may be
    deleted now, and a deleted split cannot be searched.

    Cost:
        One LIST per 1,000 objects. One GET per version file down to the `FORGET` commit, one GET per state, and one GET
        per manifest of the states.
    """
    since = Since.of(head)
    # The version file of the commit itself contains the paths of the removed splits. If the table has partitions, the
    # folder name of a split can contain values of its rows. With partitions, the first clean state therefore belongs to
    # the version after the `FORGET` commit.
    first = _forgetting_version(store, head, since) + bool(head.config.partition_by)
    forms = {each.version: each for each in list_table(store).checkpoints()}
    newest = [forms[version] for version in sorted(forms)[-wanted:]]
    if len(newest) < wanted or any(each.version < first for each in newest):
        return False
    states = [read_state(store, each.version) for each in newest if each.kind is CheckpointKind.AVRO_STATE]
    if any(each.tombstones for each in states):
        return False
    manifests = {key_of_manifest(info.path, each.state_version) for each in states for info in each.manifests}
    return not any(all_of(lambda key: names_rows(store, key, found, since), sorted(manifests), AT_ONCE))


def _forgetting_version(store: ObjectStore, head: Snapshot, since: Since) -> int:
    """Return the version of the last `FORGET` commit, or a later version if its file is missing."""
    version = first = (since.version or 0) + 1
    while version <= head.version:
        if is_forgetting(read_version(store, version) or ()):
            return version
        version += 1
    return first


@dataclass(slots=True, eq=False)
class Forgetting:
    """The rows of one table that match a condition. `raw_logs` are the raw logs that supply rows to the table."""

    target: Target
    wanted: Filter
    raw_logs: Sequence[RawTable] = ()
    _judge: RowCondition | None = None

    def forget(self, matching: Matching | None) -> Forgotten:
        """Forget the rows that match now. Return the outcome, and the report of objects that still contain the rows.

        An interrupted call can be repeated. The call also removes temporary files of killed processes of this user.

        Args:
            matching: For a keyed table, the function that reads the rows. It is None for an append table.

        Raises:
            CommitConflict: Other processes were faster in every attempt. Completed steps stay completed.

        Cost:
            The requests of `delete`, of the steps above, and of `report`. No step reads an object that an earlier step
            has searched.
        """
        log = self.target.log
        rows = self._deleted(matching)
        head = log.refresh(self.target.head)
        if matching is not None:
            head = self._merged(head)
        judge, found, raw = self._searched(head)
        ended = Rewriting(log, lambda version: self._ending(version, found)).run(head, found)
        head = self._with_states(ended.head, found)
        self._note(found, judge, raw)
        remove_abandoned()  # these files may contain text of the rows
        return Forgotten(
            version=head.version,
            commit_id=ended.commit_id,
            rows=rows,
            splits_rewritten=ended.splits,
            report=self.report(log.refresh(head)),
        )

    def report(self, head: Snapshot) -> ForgetReport:
        """Return the objects that contain the rows. `head` must be the newest version. Writes nothing.

        A read error is raised, because the report would be incomplete.

        Cost:
            The requests of `Search`, `MetadataSearch.holding` and `mark`, the requests of opening the snapshot of each
            tag, and the requests of `RawSearch` per raw log.
        """
        log, store = self.target.log, self.target.log.store
        now_ms = log.clock.now_ms()
        judge, found, raw = self._searched(head)
        marked, since = mark(store, log, now_ms=now_ms), Since.of(head)
        metadata = MetadataSearch(store, head, marked.roots.retained, judge, found, since)
        keys = {*found.splits, *found.entries, *found.quarantine, *found.unread, *metadata.holding()}
        keys |= {
            each.key
            for each in found.listing.of(KeyKind.GENERATION_FILE)
            if (each.region, each.directory) in found.directories
        }
        holders = BlockerSearch(log, marked, found, metadata.versions, now_ms)
        held = [
            one for key in sorted(keys & found.listing.parsed.keys()) for one in holders.of(found.listing.parsed[key])
        ]
        in_raw = [*held_in_raw_logs(raw), *held_in_others(store.uri, head, [each for _, each in raw])]
        return ForgetReport(
            version=head.version,
            since=since.version,
            at_ms=now_ms,
            objects=len(found.listing.objects) + sum(len(keys) for _, each in raw for keys in each.keys.values()),
            held=(*held, *in_raw, *self._of_source(head)),
        )

    def _of_source(self, head: Snapshot) -> list[Held]:
        """For a shallow clone, return the objects of the source table that contain the rows.

        The tag of the clone keeps these objects.
        """
        named = head.metadata.configuration.get(SOURCE)
        if named is None:
            return []
        uri, tag = (str(json.loads(named)[each]) for each in ("uri", "tag"))
        own = self.target.log
        try:
            log = TransactionLog(open_table_store(uri), clock=own.clock, ids=own.ids)
            source = replace(self.target, log=log, head=log.snapshot(), verified=VerifiedFiles())
            held = Forgetting(source, self.wanted).report(source.head).held
        except TidemarkError as error:
            why = f"this source of the shallow clone could not be searched: {error.found}"
            return [Held(store=uri, key="", kind="source", by=KeptBy.NOT_READ, why=why)]
        why = (
            f"the tag {tag!r} keeps it for this clone. Forget the rows in the source. Make a deep clone or "
            "drop this clone. Then remove the tag"
        )
        own_tag = [replace(each, why=why) for each in held if each.tag == tag]
        return [*own_tag, *(each for each in held if each.store != uri)]

    def _deleted(self, matching: Matching | None) -> int:
        if matching is None:
            return delete(self.target, self.wanted)[0].rows
        return delete_by_key(self.target.log, self.target.head, matching).rows

    def _searched(self, head: Snapshot) -> tuple[RowCondition, HoldingObjects, Looked]:
        """Search the table and the raw logs. The keys that one of the two searches finds are also used by the other
        search.
        """
        judge = self._judging(head)
        in_table = Search.of(self.target.log.store, judge)
        in_raw = [RawSearch.of(each, judge) for each in self.raw_logs]
        is_left = True
        while is_left:
            in_table.search_objects()
            for each in in_raw:
                each.search_chunks()
            is_left = judge.memory.has_new_keys()
        return judge, in_table.holding_objects(), [(each.raw, each.holding_chunks()) for each in in_raw]

    def _judging(self, head: Snapshot) -> RowCondition:
        """Return the `RowCondition` of the version `head`. The `RowCondition` stores the search results of the objects
        that were already searched.
        """
        if self._judge is None:
            target = self.target
            self._judge = RowCondition(target.log.store, head, self.wanted, target.limits, target.verified)
        elif self._judge.snapshot is not head:
            self._judge = self._judge.at(head)
        return self._judge

    def _merged(self, head: Snapshot) -> Snapshot:
        _, found, _ = self._searched(head)
        return merge_regions(self.target.log, head, found)

    def _ending(self, head: Snapshot, found: HoldingObjects) -> Ending:
        """Return the parts of a version that contain the rows. Reads the splits that were added after the search."""
        splits = holding_splits(self.target.log.store, self._judging(head))
        found.splits |= {add.path for add in splits}
        segments = [*holding_segments(head, found, strict=True).values()]
        # The folder of a partition contains values of its rows.
        moves = head.translations if head.config.partition_by else {}
        named = [path for path, each in moves.items() if not found.splits.isdisjoint((*each.inputs, *each.outputs))]
        return Ending(splits, segments, named)

    def _with_states(self, head: Snapshot, found: HoldingObjects) -> Snapshot:
        """Write states until no retained state contains a forgotten row. Return the resulting version."""
        wanted = head.config.retained_states
        for _ in range(min(wanted + 1, MOST_STATES)):
            if are_clean_states(self.target.log.store, head, found, wanted):
                break
            head = compact_state(self.target.log, head, another=True).snapshot
        return head

    def _note(self, found: HoldingObjects, judge: RowCondition, raw: Looked) -> None:
        log = self.target.log
        now_ms = log.clock.now_ms()
        without_rows(log.store, sorted(found.quarantine), judge)
        note_forgotten(log.store, sorted(found.quarantine), ids=log.ids, now_ms=now_ms)
        for _, each in raw:
            note_chunks(each, ids=log.ids, now_ms=now_ms)


def of(target: Target, condition: object, raw_logs: Sequence[RawTable]) -> Forgetting:
    """Return the `Forgetting` of the rows that match a condition. Raises `InvalidInput` for an empty condition."""
    return Forgetting(target, required_filter(condition, "forget", target.head.schema), tuple(raw_logs))
