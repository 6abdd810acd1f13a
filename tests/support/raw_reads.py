"""Tables that a raw log feeds: reads at `latest` in every way, and the rows after a full distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.data.rows import fold
from storage_core.data.rows.conform import conform
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import FeedingRawLog, TableConfig
from storage_core.log.log import TransactionLog
from storage_core.split.read import conform_split, read_split
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.history import CLOSED_AFTER_MS
from storage_core.write.region.spec import first_specs
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.distribution import EVENTS, Board
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

Answer = Counter[str]
"""Rows as text, each with its count."""

TABLES = ("events", "users", "parts")
RAW = ("one", "two")
WORDS = IndexDefinition(name="words", kind="fulltext", columns=("text",))
_THREE = ({"transform": "bucket", "source": "n", "n": 3},)


def _feeding(table: str) -> tuple[FeedingRawLog, ...]:
    return (FeedingRawLog(name="raw", table=table, stores=tuple(f"memory://{each}" for each in RAW)),)


def configs() -> dict[str, TableConfig]:
    """Return three tables of one raw log: an append table, a keyed table, and a keyed table of three regions."""
    return {
        "events": TableConfig(raw_logs=_feeding("events"), indexes=(WORDS,)),
        "users": TableConfig(primary_key=("n",), raw_logs=_feeding("users"), indexes=(WORDS,)),
        "parts": TableConfig(
            primary_key=("n",), region_specs=first_specs(_THREE, EVENTS), raw_logs=_feeding("parts"), indexes=(WORDS,)
        ),
    }


@dataclass(slots=True)
class RawReads:
    """The stores of a raw log, the stores of its tables by name, and the common clock of readers and distributors."""

    stores: dict[str, ObjectStore]
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS + 10_000))
    seed: int = 1

    @classmethod
    def create(cls) -> RawReads:
        """Create the empty tables."""
        clock = ManualClock(START_MS + 10_000)
        made = cls({name: MemoryStore(name, clock=clock) for name in (*RAW, *TABLES)}, clock)
        made.board().create(**configs())
        return made

    def board(self, over: Mapping[str, ObjectStore] | None = None) -> Board:
        """Return the `Board` of a distributor. `over` replaces the stores with the same names."""
        self.seed += 1
        stores = {**self.stores, **(over or {})}
        tables = {name: stores[name] for name in TABLES}
        return Board([stores[name] for name in RAW], tables, seed=10_000 * self.seed, clock=self.clock)

    def table(self, name: str, over: Mapping[str, ObjectStore] | None = None) -> Table:
        """Open a table and its raw logs, like a reader. `over` replaces the stores with the same names."""
        self.seed += 1
        stores = {**self.stores, **(over or {})}
        store = MeteredStore(stores[name])
        log = TransactionLog(store, clock=self.clock, ids=SeededIds(10_000 * self.seed))
        table = Table(store, log, log.snapshot())
        table._view.open_raw = {f"memory://{each}": stores[each] for each in RAW}.__getitem__
        return table

    def copied(self) -> RawReads:
        """Return a copy in new stores."""
        clock = ManualClock(self.clock.now)
        return RawReads({name: copy_of(each, name, clock) for name, each in self.stores.items()}, clock, self.seed)

    def expected(self, name: str) -> Answer:
        """Return the rows that the table has after the distribution of all raw-log chunks."""
        return self.distributed().settled(name)

    def distributed(self) -> RawReads:
        """Return a copy with all raw-log chunks distributed. The chunks that are closed now are distributed first."""
        other = self.copied()
        for closed_after_ms in (CLOSED_AFTER_MS, 0):
            other.clock.now += 1
            assert other.board().distribute(Terms(closed_after_ms=closed_after_ms)).failures == {}
        return other

    def settled(self, name: str) -> Answer:
        """Return the rows of the table itself, without the raw log."""
        table = KeyedTable(self.stores[name])
        if name != "events":
            return rows_of(table.rows().values())
        snapshot = table.snapshot
        splits = (read_split(self.stores[name], each) for each in snapshot.splits.values())
        parts = [snapshot.schema.empty_table(), *(conform_split(each, snapshot.schema) for each in splits)]
        return rows_of(pa.concat_tables([each.cast(snapshot.schema) for each in parts]).to_pylist())


def rows_of(rows: object) -> Answer:
    """Return the number of rows for each row text."""
    assert hasattr(rows, "__iter__")
    return Counter(repr(sorted(row.items())) for row in rows)


def by_scan(table: Table) -> Answer:
    """Read every row by a scan."""
    return rows_of(table.scan(consistency="latest").to_arrow().to_pylist())


def by_sql(table: Table) -> Answer:
    """Read every row by a query, and count the rows by a second query."""
    found = rows_of(table.sql("SELECT * FROM t", consistency="latest").to_arrow().to_pylist())
    [count] = table.sql("SELECT count(*) AS n FROM t", consistency="latest").to_arrow().to_pylist()
    assert count == {"n": found.total()}
    return found


def by_keys(table: Table) -> Answer:
    """Look up every key that rows may have, or scan a table without a key."""
    if table.config.kind == "append":
        return by_scan(table)
    return rows_of(row for row in table.get_many(list(range(-1, 200))) if row is not None)


def by_search(table: Table) -> Answer:
    """Search for the word that every text has, and count the rows found."""
    found = table.search("row", index="words", limit=1_000, consistency="latest").to_arrow().drop_columns(["score"])
    assert table.search_count("row", index="words", consistency="latest") == found.num_rows
    return rows_of(found.to_pylist())


def by_history(table: Table, page_bytes: int = 2**30) -> Answer:
    """Read the history page by page, and fold its records into rows."""
    records: list[pa.Table] = []
    token: str | None = None
    while True:
        page = table.read_history(token=token, page_bytes=page_bytes)
        records = [page.records] if page.restarted else [*records, page.records]
        token = page.token
        if token is None:
            break
    found = pa.concat_tables(records)
    if table.config.kind == "append":
        return rows_of(found.drop_columns([fold.OPERATION, fold.FIELDS]).to_pylist())
    key, schema = table.config.primary_key, table.snapshot.schema
    found = conform(found, fold.record_schema(schema))  # the schema has the defaults of columns
    return rows_of(fold.apply(schema.empty_table(), fold.fold(found, key), key).to_pylist())


def records_of(table: Table) -> Answer:
    """Return all records of the history: each row, and each acknowledged record that is not merged yet."""
    return rows_of(table.read_history(page_bytes=2**30).records.to_pylist())


def by_small_pages(table: Table) -> Answer:
    """Read the history in pages of one or two records, and fold the records into rows."""
    return by_history(table, 100)


READS: Mapping[str, Callable[[Table], Answer]] = {
    each.__name__: each for each in (by_scan, by_sql, by_keys, by_search, by_history, by_small_pages)
}
