"""Keyed tables with and without an index of the primary key. The splits of these tables are read by ranges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from storage_core.base.clock import Ids, SystemClock, SystemIds
from storage_core.change import creation
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import catch_up
from storage_core.store.meter import RequestMeter
from storage_core.write.region.records import WriterOptions
from tests.support.keyed_table import KeyedTable
from tidemark import Table

KEYS = IndexDefinition("keys", "primary_key", ("id",))
ID = pa.field("id", pa.string(), nullable=False)
SCHEMA = pa.schema([ID, ("at", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("text", pa.string())])
SPLITS, ROWS, GROUPS = 6, 4_000, 4

_names = itertools.count()

Found = list[dict[str, object] | None]


@dataclass(slots=True)
class RealTime(KeyedTable):
    """A helper that maintains a table created with `Table` while its writers write."""

    ids: Ids = field(default_factory=SystemIds)
    clock: SystemClock = field(default_factory=SystemClock)  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Cost:
    """The result of a lookup, with its GETs and bytes."""

    found: Found
    gets: int
    bytes: int


def key(number: int) -> str:
    """Return the text key of the row with this number. Consecutive numbers have keys that are far apart."""
    return f"{number * 2_654_435_761 % 2**32:010}"


def rows(numbers: Iterable[int], seed: int = 1) -> pa.Table:
    """Return rows whose time order does not depend on their keys."""
    found = np.array([*numbers])
    at = np.random.default_rng(seed).permutation(len(found)) * 1_000_000
    columns = [pa.array([key(each) for each in found.tolist()]), pa.array(at, pa.timestamp("us", "UTC"))]
    return pa.table([*columns, pa.array(found), pa.array(["x" * 20] * len(found))], schema=SCHEMA)


def filled(uri: str | None = None, *, time_column: str | None = "at", indexes: Sequence[IndexDefinition] = ()) -> Table:
    """Return a table with a split per merge. Key n is in split n modulo `SPLITS`, so each split spans the key range."""
    table = Table.create(
        uri or f"memory://key-index-{next(_names)}",
        SCHEMA,
        primary_key="id",
        time_column=time_column,
        window=None,
        indexes=indexes,
    )
    for split in range(SPLITS):
        merge(table, rows(range(split, SPLITS * ROWS, SPLITS)))
    return table


def merge(table: Table, found: pa.Table) -> Table:
    """Put rows and merge them. Even a small generation gets segments."""
    with table.writer(options=WriterOptions(segment_rows=1)) as writer:
        writer.put(found)
        writer.flush()
    RealTime(table.store).merge_all()
    return table.refresh()


def with_index(table: Table, index: IndexDefinition = KEYS) -> Table:
    """Return the table with an index that is caught up: a segment for each split."""
    settings = replace(table.refresh().config, indexes=(index,)).to_configuration()
    creation.configure(table.log, table.snapshot, settings)
    caught_up(table)
    return table


def caught_up(table: Table) -> int:
    """Catch up the index, and return the number of indexed rows."""
    snapshot = table.refresh().snapshot
    plan = catch_up.plan(snapshot, KEYS.name)
    items = [catch_up.CatchUpWork.from_json(work.to_json()) for work in plan.work]
    built = [catch_up.execute(table.store, work, ids=table.log.ids) for work in items]
    if actions := plan.actions(built):
        table.log.commit(snapshot, actions, operation="CATCH UP")
    assert catch_up.watermark(table.refresh().snapshot, KEYS.name) == table.version
    return sum(each.numRecords for each in built)


def lookup(table: Table, *keys: object, opened: Table | None = None) -> Cost:
    """Look up keys in the base. The lookup is cold unless `opened` is given."""
    reader = opened or Table.open(table.uri)
    meter = RequestMeter()
    with reader.store.counted_by(meter):
        found = reader.get_many(list(keys), consistency="snapshot")
    return Cost(found, meter.requests["get"], meter.bytes_read)
