"""Forgetting rows: out of the table now, out of all stores as the collector goes, with a report at every stage.

In this order, each step of which does nothing where it is done already, so that what was cut off is run again:

1. The rows are deleted as `delete` does it. Of a keyed table regions that hold records of them are flushed and merged.
2. One commit ends every split and every index segment that holds them, and records that it did.
3. As many states as the table retains are written behind it, of which none lists what left.
4. Quarantine entries that hold them are written anew without them, and noted for the collector with the old ones, as
   are chunks of raw logs.

Nothing is deleted here, and nothing that is written says what the rows were (decision 0143).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from storage_core.dml.keyed import Matching
from storage_core.dml.statements import Target, delete, delete_by_key, required_filter
from storage_core.errors import TidemarkError
from storage_core.forget.holding import Holders
from storage_core.forget.judge import Judge
from storage_core.forget.metadata import MetadataSearch, Since
from storage_core.forget.quarantine import without_rows
from storage_core.forget.raw import RawSearch, note_chunks
from storage_core.forget.raw_holding import Looked, held_in_others, held_in_raw_logs
from storage_core.forget.raw_table import RawTable
from storage_core.forget.regions import merge_regions
from storage_core.forget.report import ForgetReport, Forgotten, Held, KeptBy
from storage_core.forget.rewriting import Ending, Rewriting
from storage_core.forget.search import Found, Search, holding_splits
from storage_core.forget.segments import holding_segments
from storage_core.forget.states import are_clean_states
from storage_core.formats.keys import KeyKind
from storage_core.gc.forgotten import note_forgotten
from storage_core.gc.mark import mark
from storage_core.log.checkpoints.compact import compact_state
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import SOURCE, open_table_store
from storage_core.log.snapshot import Snapshot
from storage_core.read.predicate import Filter
from storage_core.read.verified import Verified
from storage_core.scratch import remove_abandoned

_logger = logging.getLogger(__name__)

MOST_STATES = 10
"""So many states are written behind the commit at a time, where a table retains more of them."""


@dataclass(slots=True, eq=False)
class Forgetting:
    """The rows of one table that meet a condition; `raw_logs` are those that it takes rows from."""

    target: Target
    wanted: Filter
    raw_logs: Sequence[RawTable] = ()
    _judge: Judge | None = None

    def forget(self, matching: Matching | None) -> Forgotten:
        """Forget the rows that match now, and return what was done and what still holds them. Run it again anywhere.

        Of a keyed table `matching` reads them. Requests: those of `delete`, of the steps above, and of `report`; what a
        step looked through no later one reads again. Raises `CommitConflict` when others were faster each time; what
        was done by then stays done. What killed processes of this user left among the temporary files is removed.
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
        remove_abandoned()  # which may have texts of these rows
        return Forgotten(
            version=head.version,
            commit_id=ended.commit_id,
            rows=rows,
            splits_rewritten=ended.splits,
            report=self.report(log.refresh(head)),
        )

    def report(self, head: Snapshot) -> ForgetReport:
        """Return what holds the rows at this version, the newest. Writes nothing.

        Requests: those of `Search`, of `MetadataSearch.holding` and of `gc.mark`, those of each tag's snapshot, and of
        each raw log those of `RawSearch`. Raises what a read raises, for then nothing can be said.
        """
        log, store = self.target.log, self.target.log.store
        now_ms = log.clock.now_ms()
        judge, found, raw = self._searched(head)
        marked, since = mark(store, log, now_ms=now_ms), Since.of(head)
        metadata = MetadataSearch(store, head, marked.roots.retained, judge, found, since)
        keys = {*found.splits, *found.entries, *found.quarantine, *found.unread, *metadata.holding()}
        keys |= {
            each.key
            for each in found.of_kind(KeyKind.GENERATION_FILE)
            if (each.region, each.directory) in found.directories
        }
        holders = Holders(log, marked, found, metadata.versions, now_ms)
        held = [one for key in sorted(keys & found.parsed.keys()) for one in holders.of(found.parsed[key])]
        in_raw = [*held_in_raw_logs(raw), *held_in_others(store.uri, head, [each for _, each in raw])]
        return ForgetReport(
            version=head.version,
            since=since.version,
            at_ms=now_ms,
            objects=len(found.objects) + sum(len(keys) for _, each in raw for keys in each.keys.values()),
            held=(*held, *in_raw, *self._of_source(head)),
        )

    def _of_source(self, head: Snapshot) -> list[Held]:
        """What a shallow clone has of the rows in its source, where its tag keeps them."""
        named = head.metadata.configuration.get(SOURCE)
        if named is None:
            return []
        uri, tag = (str(json.loads(named)[each]) for each in ("uri", "tag"))
        own = self.target.log
        try:
            log = TransactionLog(open_table_store(uri), clock=own.clock, ids=own.ids)
            source = replace(self.target, log=log, head=log.snapshot(), verified=Verified())
            held = Forgetting(source, self.wanted).report(source.head).held
        except TidemarkError as error:
            why = f"it has files of this shallow clone, and could not be looked through: {error.found}"
            return [Held(store=uri, key="", kind="source", by=KeptBy.NOT_READ, why=why)]
        why = f"the tag {tag!r} keeps it for this clone: forget there, clone this deep or drop it, then remove the tag"
        own_tag = [replace(each, why=why) for each in held if each.tag == tag]
        return [*own_tag, *(each for each in held if each.store != uri)]

    def _deleted(self, matching: Matching | None) -> int:
        if matching is None:
            return delete(self.target, self.wanted)[0].rows
        return delete_by_key(self.target.log, self.target.head, matching).rows

    def _searched(self, head: Snapshot) -> tuple[Judge, Found, Looked]:
        """What holds rows, in the table and in raw logs: keys of rows that either shows count in both."""
        judge = self._judging(head)
        in_table = Search.of(self.target.log.store, judge)
        in_raw = [RawSearch.of(each, judge) for each in self.raw_logs]
        is_left = True
        while is_left:
            in_table.look()
            for each in in_raw:
                each.look()
            is_left = judge.memory.has_new_keys()
        return judge, in_table.done(), [(each.raw, each.done()) for each in in_raw]

    def _judging(self, head: Snapshot) -> Judge:
        """What judges by this version, and remembers what was looked through."""
        if self._judge is None:
            target = self.target
            self._judge = Judge(target.log.store, head, self.wanted, target.limits, target.verified)
        elif self._judge.snapshot is not head:
            self._judge = self._judge.at(head)
        return self._judge

    def _merged(self, head: Snapshot) -> Snapshot:
        _, found, _ = self._searched(head)
        return merge_regions(self.target.log, head, found)

    def _ending(self, head: Snapshot, found: Found) -> Ending:
        """What a version has that holds rows; of splits that came since the search their files are looked at."""
        splits = holding_splits(self.target.log.store, self._judging(head))
        found.splits |= {add.path for add in splits}
        segments = [*holding_segments(head, found, strict=True).values()]
        # The folder of a partition says what its rows were.
        moves = head.translations if head.config.partition_by else {}
        named = [path for path, each in moves.items() if not found.splits.isdisjoint((*each.inputs, *each.outputs))]
        return Ending(splits, segments, named)

    def _with_states(self, head: Snapshot, found: Found) -> Snapshot:
        """Return the version after which the states that the table retains list nothing of what was forgotten."""
        wanted = head.config.retained_states
        for _ in range(min(wanted + 1, MOST_STATES)):
            if are_clean_states(self.target.log.store, head, found, wanted):
                break
            head = compact_state(self.target.log, head, another=True).snapshot
        return head

    def _note(self, found: Found, judge: Judge, raw: Looked) -> None:
        log = self.target.log
        now_ms = log.clock.now_ms()
        without_rows(log.store, sorted(found.quarantine), judge)
        note_forgotten(log.store, sorted(found.quarantine), ids=log.ids, now_ms=now_ms)
        for _, each in raw:
            note_chunks(each, ids=log.ids, now_ms=now_ms)


def of(target: Target, condition: object, raw_logs: Sequence[RawTable]) -> Forgetting:
    """Return what forgets the rows that meet a condition. Raises `InvalidInput` for none."""
    return Forgetting(target, required_filter(condition, "forget", target.head.schema.names), tuple(raw_logs))
