"""What a Spark task does with rows of a Delta table: splits of an append table, or parts for regions of a keyed one.

Nothing is committed here. A task that is tried again writes other files; the first ones are orphans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from jobs.spark.delta_frames import COUNT
from jobs.spark.tasks import as_text
from storage_core.clock import SystemClock
from storage_core.distribution.parts import Part, write_part
from storage_core.distribution.work import Divided
from storage_core.dml.homes import held_in
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.ids import SystemIds
from storage_core.importing.union import fitted
from storage_core.late_row_filter import LateRowFilter, Origin
from storage_core.log.actions import Add
from storage_core.log.sharing import open_table_store
from storage_core.objectstore.meter import MeteredStore
from storage_core.region.records import RecordBuilder
from storage_core.region.router import groups_of
from storage_core.region.spec import route
from storage_core.rows.calendar import within_calendar
from storage_core.rows.incoming import PIECE_BYTES
from storage_core.rows.keys import key_order
from storage_core.rows.late import LateRule
from storage_core.rows.vectors import require_sound
from storage_core.settings.region_fields import Region
from storage_core.settings.table import TableConfig
from storage_core.split.context import SplitContext
from storage_core.split.write import sort_and_write

if TYPE_CHECKING:
    from jobs.spark.spark import Answer, Item


def append_rows(batches: Iterator[pa.RecordBatch], item: Item) -> Answer:
    """Write the rows that came as sorted splits; those that went are the answer's `deleted`.

    Memory: about 64 MiB of rows, and the rows that went. One PUT per split, and per piece with late rows to quarantine.
    """
    target = _Target(item)
    adds: list[Add] = []
    deleted: list[pa.Table] = [target.context.schema.empty_table()]
    count = 0
    for piece in _pieces(batches):
        rows, counts = target.sound(piece)
        came = rows if counts is None else _repeated(rows, counts)
        count += came.num_rows
        adds += sort_and_write(
            target.store,
            target.late_filter.admit(came, item["arrived_ms"]),
            context=target.context,
            ids=SystemIds(),
            now_ms=SystemClock().now_ms(),
        )
        if counts is not None:
            deleted.append(_repeated(rows, -counts))
    found = Divided(rows=count, adds=tuple(adds), late=target.late_filter.metrics)
    return {"result": found.to_json(), "deleted": as_text(pa.concat_tables(deleted)), "requests": target.store.requests}


def put_rows(batches: Iterator[pa.RecordBatch], item: Item) -> Answer:
    """Write a put for each row that came, and a delete for each key of which none did: as a part for each region.

    The batches have all rows of their keys. Memory: all of them. One PUT per region, and with late rows to quarantine.
    Raises `InvalidInput` for two rows of a key.
    """
    target = _Target(item)
    pieces = list(_pieces(batches))
    if not pieces:
        return {"result": Divided().to_json(), "deletes": 0, "requests": target.store.requests}
    rows, counts = target.sound(pa.concat_tables(pieces))
    came, went = rows, rows.slice(0, 0)
    if counts is not None:
        came, went = _repeated(rows, counts), rows.filter(pa.array(counts < 0))
    key = target.config.primary_key
    _require_distinct(came, key, str(item["source"]))
    builder = RecordBuilder(target.context.schema, key, nonzero=target.config.nonzero_vectors)
    deletes = builder.deletes(went.filter(pa.array(~held_in([came], went, key))).select(key))
    records = pa.concat_tables([deletes, builder.puts(came)])
    admitted = target.late_filter.admit_records(records, item["arrived_ms"])
    found = Divided(rows=came.num_rows, parts=tuple(target.parts(admitted)), late=target.late_filter.metrics)
    return {"result": found.to_json(), "deletes": deletes.num_rows, "requests": target.store.requests}


@dataclass(slots=True)
class _Target:
    """The table as a task knows it."""

    item: Item
    store: MeteredStore = field(init=False)
    context: SplitContext = field(init=False)
    config: TableConfig = field(init=False)
    late_filter: LateRowFilter = field(init=False)

    def __post_init__(self) -> None:
        self.store = MeteredStore(open_table_store(self.item["table_uri"]))
        self.context = SplitContext.from_json(self.item["context"])
        self.config = TableConfig.from_configuration(self.context.configuration)
        origin = Origin(source=self.item["source"], by="ingest")
        seconds = self.context.window_seconds
        self.late_filter = LateRowFilter(self.store, LateRule.of(self.config), origin, window_seconds=seconds)

    def sound(self, piece: pa.Table) -> tuple[pa.Table, np.ndarray[tuple[int], np.dtype[np.int64]] | None]:
        """Rows of the table, and how many of each came. Raises `InvalidInput` for one that does not fit."""
        counts = None
        if COUNT in piece.column_names:
            counts = piece.column(COUNT).to_numpy()
            piece = piece.drop_columns([COUNT])
        try:
            rows = require_sound(within_calendar(fitted(piece, self.context.schema)), self.config.nonzero_vectors)
        except InvalidInput as error:
            raise error.reworded(f"{self.item['source']}: {error.found}") from error
        return rows, counts

    def parts(self, records: pa.Table) -> Iterator[tuple[Region, Part]]:
        """Write the records of each region, and yield where."""
        if records.num_rows:
            routed = route(self.context.table_id, self.config.region_spec, records)
            for region, places in groups_of(routed):
                own = records if len(places) == records.num_rows else records.take(places)
                yield region, write_part(self.store, own, region=region.id, clock=SystemClock(), ids=SystemIds())


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches in tables of about 64 MiB; none without a row."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= PIECE_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _repeated(rows: pa.Table, counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    """Each row as often as it is counted, none where that is not at all."""
    return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), np.maximum(counts, 0))))


def _require_distinct(rows: pa.Table, key: tuple[str, ...], source: str) -> None:
    order, begins = key_order(rows, key)
    again = order[~begins]
    if len(again):
        value = rows.select(key).slice(int(again[0]), 1).to_pylist()[0]
        raise InvalidInput(
            f"{source}: two rows of the Delta table have the key {quoted(value)}; a keyed table has one: delete the "
            "others where they are, or declare a primary_key that tells them apart"
        )
