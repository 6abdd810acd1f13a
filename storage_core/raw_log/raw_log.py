"""The raw log: durable appends from many producers for many tables, kept in several stores.

    with RawLog(["s3://here/raw", RawStore("s3://elsewhere/raw", mandatory=False)]) as log:
        log.append("users", {"id": 1, "name": "Ada"})

Producers know nothing of each other and nothing of the tables: whether a record fits is decided when it is distributed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from storage_core.arguments import checked
from storage_core.clock import Clock, SystemClock
from storage_core.errors import InvalidInput
from storage_core.formats.keys import probe_key
from storage_core.formats.raw_chunk import Operation
from storage_core.ids import Ids, SystemIds
from storage_core.objectstore.probe import require_capable
from storage_core.raw_log.limits import RawLimits
from storage_core.raw_log.optional_store import OptionalStore, StoreReport
from storage_core.raw_log.records import Named, RawRecord, all_prepared, prepared_columns, record_of, rows_of
from storage_core.raw_log.stores import Place, RawStore, opened
from storage_core.raw_log.writer import Appended, RawWriter
from storage_core.rows.incoming import Rows, read_whole, require_each_once, validated_rows
from storage_core.rows.times import in_microseconds

_logger = logging.getLogger(__name__)


class RawLog:
    """One writer of a raw log, under an id of its own that is never used again. Safe for any number of threads.

    An append is acknowledged when every mandatory store has it. Optional stores get everything too, in the background;
    `report` says how far they are.
    """

    @checked
    def __init__(
        self,
        stores: Sequence[Place | RawStore],
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        limits: RawLimits | None = None,
    ) -> None:
        """Open a writer on stores that are mandatory unless a `RawStore` says otherwise.

        No request but a probe of each mandatory S3 store, once per process. Raises `InvalidInput` without a mandatory
        store and for a store given twice; `Unsupported` or `Unavailable` as the probe does.
        """
        clock, ids, limits = clock or SystemClock(), ids or SystemIds(), limits or RawLimits()
        places = opened(stores)
        new_key = partial(_probe_key, ids)
        self._mandatory = [store for store, mandatory in places if mandatory]
        if not self._mandatory:
            raise InvalidInput("a raw log needs a mandatory store: without one nothing would be durable")
        for each in self._mandatory:
            require_capable(each, new_key)
        self._optional = [
            OptionalStore(store, clock=clock, backlog_bytes=limits.backlog_bytes, probe_key=new_key)
            for store, mandatory in places
            if not mandatory
        ]
        self._limits = limits
        self._clock = clock
        self._writer = RawWriter(self._mandatory, self._optional, writer_id=ids.uuid(), clock=clock, limits=limits)
        _logger.info("raw log: writer %s on %s", self.writer_id, ", ".join(store.uri for store, _ in places))

    @property
    def writer_id(self) -> str:
        """The id of this writer; record ids begin with it."""
        return self._writer.id

    @checked
    def append(
        self,
        table: str,
        rows: Rows,
        *,
        operation: Operation = "put",
        key: str | None = None,
        unique_by: str | None = None,
    ) -> Appended:
        """Append one operation per row for one table; durable in every mandatory store when this returns.

        `rows` are as of `Table.append`, and a stream is read whole; of a delete the key columns suffice. `key` and
        `unique_by` name the fields that hold the records' key, and their id: of the records with one id the table takes
        one, so that appending again after `CommitUnknown` doubles nothing. One PUT per store, shared with concurrent
        calls; none for no rows. Raises `InvalidInput` naming the row when one has no form in the log, for a stream that
        breaks off, and naming a column that Arrow data have twice (nothing is written then), and what `append_many`
        raises.
        """
        held, named = read_whole(rows), Named(key=key, id=unique_by)
        if isinstance(held, pa.Table | pa.RecordBatch):
            given = RawRecord(table=table, fields={}, operation=operation)
            require_each_once(held.schema.names)
            held = in_microseconds(validated_rows(held))
            records = prepared_columns(held, given, named=named, now_ms=self._clock.now_ms())
            if records is not None:
                return self._writer.append(records)
        return self.append_many(record_of(table, row, operation=operation, named=named) for row in rows_of(held))

    def append_many(self, records: Iterable[RawRecord]) -> Appended:
        """Append records for any tables in order; durable in every mandatory store when this returns.

        One PUT per store, more for more than `RawLimits.chunk_bytes`. Raises `InvalidInput` for a table name, operation
        or value that no table could have (nothing is written then). Raises `CommitUnknown` when a mandatory store did
        not say what it did: some of the records may be in the log, and this writer is done. Raises `Unavailable` when
        it was done before: nothing was written. Then open another.
        """
        return self._writer.append([*all_prepared(records, now_ms=self._clock.now_ms())])

    def report(self) -> list[StoreReport]:
        """Return the metrics of every store, mandatory ones first. No request."""
        self._writer.require_home()
        chunks = self._writer.chunks
        kept = [StoreReport(uri=each.uri, mandatory=True, acknowledged=chunks) for each in self._mandatory]
        return [*kept, *(each.report() for each in self._optional)]

    @checked
    def drain(self, wait_ms: int) -> bool:
        """Wait for the optional stores, each at most `wait_ms`; return whether none has anything on its way."""
        self._writer.require_home()
        drained = [each.drain(wait_ms) for each in self._optional]
        return all(drained)

    def close(self) -> None:
        """End the writer: what is on its way to optional stores gets `close_wait_ms`. Closing again does nothing."""
        self._writer.close()
        for each in self._optional:
            each.close(self._limits.close_wait_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _probe_key(ids: Ids) -> str:
    return probe_key(ids.uuid())
