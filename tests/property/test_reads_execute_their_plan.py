"""A read executes the plan that `explain` prints: the same splits, requests and bytes, for random conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.log.log import TransactionLog
from storage_core.read import bitmap, fetching
from storage_core.split import metadata
from storage_core.store.contract import Blob
from storage_core.store.meter import MeteredStore
from tests.support.deleted_rows import delete_where
from tests.support.elsewhere import Elsewhere
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled
from tests.support.upkeep import catch_up
from tidemark import Table

ROWS, SPLITS = 3_000, 4
INDEXES = [
    {"name": "hosts", "kind": "bitmap", "columns": ["host"]},
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
]


class Recording(Elsewhere):
    """A store that records all reads, with the bytes and the object of each read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.read: list[tuple[str, int]] = []

    def get(self, key: str) -> Blob:
        """Return the object."""
        found = super().get(key)
        self.read.append((key, len(found.data)))
        return found

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of the object."""
        self.read.append((key, end - start))
        return super().get_range(key, start, end)


def opened(folder: Path) -> tuple[Table, Recording]:
    """Return the table in a folder, and a store that records later reads. This function reads only the log."""
    store = Recording(folder)
    metered = MeteredStore(store)
    log = TransactionLog(metered, clock=SystemClock(), ids=SystemIds())
    table = Table(metered, log, log.snapshot())
    store.read.clear()
    return table, store


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small splits several row groups, read them by ranges, and use indexes for them."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 500)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**13)
    monkeypatch.setattr(bitmap, "REQUEST_COST_BYTES", 2**9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table with large splits and one small split. One large split has no deleted rows and no segments."""
    found = tmp_path_factory.mktemp("planned") / "t"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "ROWS_PER_GROUP", 500)
        table = Table.create(str(found), rows_of(0, 1).schema, indexes=INDEXES)
        for split in range(SPLITS):
            if split == SPLITS - 1:
                delete_where(table.log, lambda row: row["n"] % 11 == 3)
                table.refresh()
                catch_up(table)
                table.refresh()
            table.append(rows_of(split * ROWS, ROWS))
        table.append(rows_of(SPLITS * ROWS, 20))
    return found


def rows_of(first: int, count: int) -> pa.Table:
    """Return rows with `n` ascending over all splits. Most hosts are in every row group, a rare host is in one only."""
    chance, numbers = np.random.default_rng(first), np.arange(first, first + count)
    hosts = np.array([f"host {each}" for each in range(9)], object)[chance.integers(0, 9, count)]
    hosts[numbers % 2_700 == 1_100] = "rare"
    return pa.table(
        {
            "n": numbers,
            "host": pa.array(hosts, pa.string()),
            "code": pa.array(chance.integers(0, 5, count), pa.int32(), mask=numbers % 7 == 0),
            "text": [f"line {each}" for each in numbers],
            **{f"c{each}": chance.integers(0, 2**62, count) for each in range(4)},
        }
    )


NUMBER = st.integers(-10, SPLITS * ROWS + 30)
HOST = st.sampled_from(["host 3", "rare", "nobody"])
LEAF = st.one_of(
    st.tuples(st.sampled_from(["<", "<=", "=", "<>", ">", ">="]), NUMBER).map(lambda each: f"n {each[0]} {each[1]}"),
    st.tuples(NUMBER, st.integers(0, 900)).map(lambda each: f"n between {each[0]} and {each[0] + each[1]}"),
    HOST.map(lambda host: f"host = '{host}'"),
    st.lists(HOST, min_size=1).map(lambda hosts: "host in ({})".format(", ".join(f"'{each}'" for each in hosts))),
    st.sampled_from(["code is null", "code in (1, 9)", "host like 'ra%'", "c1 % 3 = 1", "length(text) > 9"]),
)
CONDITION = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
        inner.map(lambda each: f"not ({each})"),
    ),
    max_leaves=4,
)
COLUMNS = st.lists(st.sampled_from(["n", "host", "code", "text", "c0", "c3"]), min_size=1, max_size=3, unique=True)
QUERY = st.one_of(
    st.tuples(COLUMNS, CONDITION).map(lambda each: f"select {', '.join(each[0])} from t where {each[1]}"),
    CONDITION.map(lambda condition: f"select count(*) from t where {condition}"),
    CONDITION.map(lambda condition: f"select * from t where {condition}"),
    st.tuples(COLUMNS, st.integers(1, 4_000)).map(lambda each: f"select {', '.join(each[0])} from t limit {each[1]}"),
    st.integers(1, 4_000).map(lambda rows: f"select n, c0 from t order by n desc limit {rows}"),
    st.sampled_from(["select count(*) from t", "select max(n), min(code) from t", "select max(text) from t"]),
)
EXAMPLES = settings(max_examples=scaled(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EXAMPLES
@given(query=QUERY)
def test_a_query_reads_the_splits_and_makes_the_requests_of_its_plan(folder: Path, query: str) -> None:
    table, store = opened(folder)
    plan = table.explain(query)
    assert table.explain(query) == plan
    table, store = opened(folder)
    rows = table.sql(query).to_arrow()
    read = {key for key, _ in store.read if key in table.snapshot.splits}
    if not read and not any(any(each.values()) for each in rows.to_pylist()):
        return  # DuckDB found that the condition contradicts itself
    assert read == {add.path for add in plan.splits}
    assert (len(store.read), sum(size for _, size in store.read)) == (plan.requests, plan.read_bytes)


@EXAMPLES
@given(condition=CONDITION, columns=COLUMNS)
def test_a_scan_that_fetches_columns_late_reads_no_more_than_its_plan(
    folder: Path, condition: str, columns: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "OTHER_BYTES", 1)
        table, _ = opened(folder)
        plan = table.scan(columns, filter=condition).explain()
        table, store = opened(folder)
        rows = table.scan(columns, filter=condition).to_arrow()
    read = {key for key, _ in store.read if key in table.snapshot.splits}
    if not read and not rows.num_rows:
        return
    assert read == {add.path for add in plan.splits}
    assert len(store.read) <= plan.requests
    assert sum(size for _, size in store.read) <= plan.read_bytes


@settings(parent=EXAMPLES, max_examples=scaled(20))
@given(condition=CONDITION, text=st.sampled_from(["line", "line 1104", "nothing"]))
def test_a_search_looks_at_the_sources_of_its_plan(folder: Path, condition: str, text: str) -> None:
    asked: dict[str, Any] = {"query": text, "index": "words", "filter": condition}
    (plan,), (done,) = (opened(folder)[0].explain_search(**asked, analyze=each).indexes for each in (False, True))
    assert [(each.name, each.segment, each.rows, each.how) for each in plan.sources] == [
        (each.name, each.segment, each.rows, each.how) for each in done.sources
    ]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of even keys in the base, with every tenth row in a generation and some records in the log."""
    found = tmp_path_factory.mktemp("keyed") / "t"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "ROWS_PER_GROUP", 500)
        table, numbers = Table.create(str(found), schema, primary_key="id"), np.arange(0, 2 * ROWS, 2)
        values = np.random.default_rng(1).integers(0, 2**60, ROWS)
        with table.writer() as writer:
            writer.put(pa.table([numbers, values], schema=schema))
            writer.flush()
            assert KeyedTable(table.store).merge() is not None
            writer.put(pa.table([numbers[::10], values[::10]], schema=schema))
            writer.flush()
            writer.patch([{"id": 6, "v": 1}])
            writer.delete([{"id": 8}])
    return found


@settings(parent=EXAMPLES)
@given(key=st.integers(-5, 2 * ROWS + 5) | st.sampled_from([0, 6, 8, 20]))
def test_a_lookup_makes_the_requests_of_its_plan(keyed: Path, key: int) -> None:
    table, _ = opened(keyed)
    plan = table.explain_get(key)
    table, store = opened(keyed)
    before = sum(table.store.requests.values())
    row = table.get(key)
    made = sum(table.store.requests.values()) - before
    assert {each for each, _ in store.read if each in table.snapshot.splits} == {add.path for add in plan.base.splits}
    assert made == plan.requests - (row is None and plan.base.row_groups)  # an absent row is not fetched
