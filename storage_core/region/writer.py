"""The writer of a region: rows are durable when a call returns, and theirs is the only epoch.

with RegionWriter.open(store, snapshot, clock=clock, ids=ids) as writer:
    writer.put({"tailnum": "N1", "seats": 4})
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from storage_core.arguments import checked
from storage_core.clock import Clock
from storage_core.errors import InvalidInput, TidemarkError
from storage_core.formats.arrow_stream import require_readable
from storage_core.ids import Ids
from storage_core.late_row_filter import LateRowFilter, Origin
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region.claim import Claim, claim, require_unmerged
from storage_core.region.following import Following, Known
from storage_core.region.group_commit import GroupCommit
from storage_core.region.memtable import Memtable, matching
from storage_core.region.options import WriterOptions
from storage_core.region.records import Keys, RecordBuilder
from storage_core.region.region_log import RegionLog
from storage_core.region.spec import only_region
from storage_core.rows import fold
from storage_core.rows.earlier_records import conformed
from storage_core.rows.fold import record_schema
from storage_core.rows.incoming import Rows
from storage_core.rows.late import LateMetrics, LateRule
from storage_core.settings.region_fields import Region

T = TypeVar("T")


class RegionWriter:
    """The one writer of a keyed table's region. Use it from any threads of one process: their calls share WAL entries.

    The rows of one `put`, `patch`, `reset` or `delete` are in one WAL entry: all of them become durable together,
    before the call returns, or none was acknowledged. With `durable=False` a call returns before that, `sync` waits for
    it, and until then the rows are visible to `scan` and `get` of this writer only, and searched by nobody. Late rows
    that the table does not accept are in its quarantine by then, one PUT more, or dropped (decision 0051); deletes are
    never late. Another writer's claim of the region fences this one: its next call raises `WriterFenced`, and none of
    its later rows is ever visible. After a merge, which claims what was silent for the table's `idle_after`, the next
    call claims the region again instead, for about nine requests, and goes on. After `CommitUnknown` the writer refuses
    every call; open a new one, which finds out by replaying what is there. Either error says which rows given with
    `durable=False` were lost by it (`lost_rows`, `lost_calls` of its context). Calls wait, or raise `Overloaded`, while
    too much is given (`WriterOptions`).
    """

    def __init__(
        self,
        claimed: Claim,
        *,
        following: Following,
        ids: Ids,
        options: WriterOptions,
        late: LateRule | None,
    ) -> None:
        """Take over what a claim found; `open` makes the claim."""
        self._following = following
        self._clock = claimed.appender.clock
        self._late_filter = LateRowFilter(
            claimed.appender.store, late, Origin(source="writer", by=claimed.appender.writer_id)
        )
        self._filtering = threading.Lock()
        self._durable = options.durable
        memtable = Memtable(following.known.schema, self._builder.key)
        self._log = RegionLog(claimed, memtable, options=options, ids=ids, following=following)
        self._group = GroupCommit(self._log, options=options, clock=self._clock)
        self._group.warn_when_dropped(self)

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        snapshot: Snapshot,
        *,
        clock: Clock,
        ids: Ids,
        options: WriterOptions | None = None,
        region: Region | None = None,
        following: Following | None = None,
    ) -> Self:
        """Claim a region of the table, by default its only one, fence its earlier writer, and replay its tail.

        Key and columns are those of the snapshot, or what writers of other regions have found since (`following`); from
        each flush on the columns are those that the table has by then. Raises `InvalidInput` on a table without a
        primary key, `Corrupt` that names a damaged WAL entry, and what `region.claim.claim` raises.
        """
        key = snapshot.config.primary_key
        if not key:
            raise InvalidInput(
                f"{store.uri}: a region writer needs a table with a primary key; append to this one instead",
                table=snapshot.table_id,
            )
        target = region or only_region(snapshot.table_id, snapshot.config.region_spec)
        claimed = claim(store, target, record_schema=record_schema(snapshot.schema), clock=clock, ids=ids)
        require_unmerged(claimed.manifest, snapshot)
        late = LateRule.of(snapshot.config)
        known = following or Following(store, clock, Known.of(snapshot))
        return cls(claimed, following=known, ids=ids, options=options or WriterOptions(), late=late)

    @property
    def _builder(self) -> RecordBuilder:
        return self._following.known.builder

    @property
    def region_id(self) -> str:
        """The UUID of the region."""
        return self._log.region

    @property
    def epoch(self) -> int:
        """The fencing token that this writer's last claim took."""
        return self._log.epoch

    @property
    def last_entry(self) -> int:
        """The number of the last WAL entry that this writer put: at first the sentinel of its claim."""
        return self._log.last_entry

    @property
    def metrics(self) -> LateMetrics:
        """The late rows that this writer met so far, by what became of them."""
        return self._late_filter.metrics

    @checked
    def put(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Write whole rows, newest wins per key; durable when this returns. One PUT, shared by calls at the same time.

        `rows` is a mapping, a sequence of mappings, or an Arrow table; no rows cost nothing. With `durable=False` this
        returns at once, and the rows are written within 100 ms or 10 MB (`WriterOptions`). Raises `InvalidInput` when a
        row does not fit the table and `Overloaded` when too much is given (nothing is written then), `WriterFenced`,
        or `CommitUnknown`.
        """
        self.write(self._builder.puts(rows), durable)

    @checked
    def patch(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Write some fields of rows, the others keep their value; durable when this returns. One PUT like `put`.

        Fields that a row does not name are left alone, those named with null become null, and the entries of a merged
        map are laid over those that are there. Where there is no such row the patch makes it. Raises what `put` raises.
        """
        self.write(self._builder.patches(rows), durable)

    @checked
    def reset(self, rows: Rows, *, durable: bool | None = None) -> None:
        """Delete rows and write them whole; durable when this returns. One PUT like `put`. Raises what `put` raises."""
        self.write(self._builder.resets(rows), durable)

    @checked
    def delete(self, keys: Keys, *, durable: bool | None = None) -> None:
        """Delete rows by key; durable when this returns. One PUT like `put`. Deleting what does not exist succeeds.

        `keys` is a key or a list of keys; a key is a value, a tuple in key order, or a mapping. An Arrow table holds
        one key per row. Raises what `put` raises.
        """
        self.write(self._builder.deletes(keys), durable)

    def sync(self) -> None:
        """Return when everything that was given is durable. Raises what keeps it from that; see the class."""
        self._group.sync()

    def flush(self) -> int | None:
        """Make a generation of everything written so far and return its number; None when nothing is in none yet.

        Four PUTs and the hint, before them what `sync` does, and behind them one GET that looks for changed columns;
        with `segment_rows` records one PUT more per maintained index, by the columns of before. A flush makes rows
        mergeable. One that fails loses nothing and is tried again by the next one: generations have no gaps (lesson
        20). Calls of other threads wait meanwhile. Raises `WriterFenced`, `Unavailable`, or `CommitUnknown`.
        """
        return self._group.flush()

    def unflushed(self) -> pa.Table:
        """Return the records that are durable and in no generation yet, in order. No request."""
        return self._group.look(lambda _: self._log.memtable).records()

    def scan(self) -> pa.Table:
        """Return one record per key of all that this writer has in memory, durable or not, ascending by key.

        No request. A record is what it does to the row (`rows.fold`): folded over a view of the table that was captured
        *after* this call it gives the row as the writer's process sees it, unless another thread writes in between:
        then see `over`.
        """
        return self._in_memory()[1]

    def over(self, view: Callable[[], T]) -> tuple[T, pa.Table]:
        """Return a view of the table, and the records to fold over it for what the writer's process sees at one moment.

        The records, one per key as in `scan`, hold at least what the view holds of this region and no generation does,
        so folding never lays an older value over a newer one, whichever threads write meanwhile. `view` captures all
        that is durable, as `Table.scan(consistency="latest")` does; after a flush beside it, it is called again.
        """
        while True:
            before = self._log.memtable
            seen = view()
            memtable, records = self._in_memory()
            if memtable is before:
                return seen, records
            # What was flushed in between may be in neither of them.

    def get(self, key: Keys) -> pa.Table:
        """Return the record of a key, or of each key of a list, as `scan` would; no row where it has none. No request.

        Costs a binary search in the memtable and one pass over what is not durable yet.
        """
        wanted = self._builder.deletes(key).select(self._builder.key)

        def find(waiting: Sequence[pa.Table]) -> list[pa.Table]:
            held = self._log.memtable
            return [held.find(wanted), *(conformed(each, held.schema) for each in waiting)]

        durable, *waiting = self._group.look(find)
        found = [durable, *(matching(each, wanted, self._builder.key) for each in waiting)]
        return fold.fold(pa.concat_tables(found), self._builder.key)

    def close(self) -> None:
        """Make everything durable that was given, and stop writing. Flushes nothing: durable rows are in the log.

        Raises what `sync` raises; also, and only once, when rows given with `durable=False` were lost before.
        """
        self._group.close(InvalidInput(f"the writer of region {self.region_id} is closed; open a new one"))

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the writer. An error that is on its way stays the one that is raised; what closing adds is its note."""
        close_after(error, self.close)

    def _in_memory(self) -> tuple[Memtable, pa.Table]:
        """The memtable of now, and what is in it and in no entry yet, folded."""

        def take(waiting: Sequence[pa.Table]) -> tuple[Memtable, list[pa.Table]]:
            memtable = self._log.memtable  # looked at once: a flush replaces it
            return memtable, [*memtable.parts(), *(conformed(each, memtable.schema) for each in waiting)]

        memtable, parts = self._group.look(take)
        return memtable, fold.fold(pa.concat_tables([memtable.schema.empty_table(), *parts]), self._builder.key)

    def write(self, records: pa.Table, durable: bool | None) -> None:  # noqa: FBT001 -- as its callers were given it
        """Write records that a builder of this table made. Raises what `put` raises, but `InvalidInput`."""
        self._group.require_usable()
        require_readable(records)  # what cannot be read back would take the rows of other calls in its entry with it
        with self._filtering:
            records = self._late_filter.admit_records(records, self._clock.now_ms())
        self._group.submit(records, durable=self._durable if durable is None else durable)


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Close at the end of a block that `error` ended, if one did: it stays the error, with a note of a second one."""
    try:
        close()
    except TidemarkError as closing:
        if error is None:
            raise
        error.add_note(f"closing the writer: {closing.found}")
