"""A read of a split without a local file fetches only the parts that the answer needs, and verifies each part."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import uuid4

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, SnapshotExpired
from storage_core.read import fetching
from storage_core.split import metadata
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.keyed_table import KeyedTable
from tests.support.s3_server import S3Server
from tests.support.split_places import column_places
from tidemark import Table

COLUMNS = 60
ROWS = 12_000
NAMES = [f"c{number}" for number in range(COLUMNS)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat splits of a few megabytes as large, and give them many row groups."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 2_000)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**14)


@pytest.fixture(params=["memory", "s3"])
def uri(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return f"memory://{uuid4()}"
    server: S3Server = request.getfixturevalue("s3_server")
    return server.uri(f"ranged/{uuid4()}")


def wide_rows(splits: int = 1) -> pa.Table:
    """Return numbers that do not compress, ascending in the first column."""
    random = np.random.default_rng(1)
    rows = ROWS * splits
    values = [np.arange(rows), *(random.integers(0, 2**62, rows) for _ in NAMES[1:])]
    return pa.table([pa.array(each) for each in values], names=NAMES)


def column_bytes(table: Table, column: str) -> tuple[int, int]:
    """Return the bytes of a column's chunks in all splits, and the bytes of the footers."""
    taken = footers = 0
    for add in table.snapshot.splits.values():
        places = column_places(table, add)[:, NAMES.index(column)]
        taken += int((places[:, 1] - places[:, 0]).sum())
        footers += (add.footerEndOffset or 0) - (add.footerStartOffset or 0)
    return taken, footers


@pytest.mark.parametrize("small_split_bytes", [2**14, 2**24], ids=["large splits", "small splits"])
def test_of_a_wide_table_one_column_and_the_footers_are_fetched(
    uri: str, small_split_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", small_split_bytes)
    table = Table.create(uri, wide_rows().schema)
    rows = wide_rows()
    table.append(rows)
    table.append(rows)
    table = Table.open(uri)
    assert table.snapshot.rows == 2 * ROWS
    wanted, footers = column_bytes(table, "c30")
    expected = 2 * sum(rows.column("c30").to_pylist())
    for question, most in (("cold", footers + 1.1 * wanted), ("warm", 1.1 * wanted)):
        read, requests = table.store.bytes_read, table.store.requests["get"]
        assert table.sql("select sum(c30) as n from t").to_pylist() == [{"n": expected}]
        assert table.store.bytes_read - read <= most, question
        assert table.store.requests["get"] - requests <= 2 * ROWS / 2_000 + (2 if question == "cold" else 0)
    read = table.store.bytes_read
    assert table.scan(["c30"]).to_arrow().column(0).to_pylist() == 2 * rows.column("c30").to_pylist()
    assert table.store.bytes_read - read <= 1.1 * wanted


CONDITIONS = {
    "c0 between 4100 and 4200": 1,
    "c0 < 100 or c0 = 11999": 2,
    "c0 in (1, 2, 3)": 1,
    "c0 > 20000": 0,
    "c0 is null": 0,
    "c0 is not null and c1 is not null": 6,
    "c1 % 2 = 0 and c0 >= 6000": 3,
    "c1 > 0": 6,
}


@pytest.mark.parametrize("is_keyed", [True, False])
def test_row_groups_that_a_condition_leaves_are_fetched(uri: str, *, is_keyed: bool) -> None:
    """In the keyed table, the key column orders the rows. The table without a key declares no order of its rows."""
    rows = wide_rows().select(NAMES[:5])
    if is_keyed:
        schema = pa.schema([pa.field("c0", pa.int64(), nullable=False), *list(rows.schema)[1:]])
        table = Table.create(uri, schema, primary_key="c0")
        with table.writer() as writer:
            writer.put(rows)
            writer.flush()
        assert KeyedTable(table.store).merge() is not None
        table = table.refresh()
    else:
        table = Table.create(uri, rows.schema)
        table.append(rows)
    (add,) = table.snapshot.splits.values()
    places = column_places(table, add)
    assert len(places) == 6
    table.sql("select c4 from t where c0 = 0")  # the footer
    for condition, groups in CONDITIONS.items():
        read = table.store.bytes_read
        found = table.sql(f"select c0, c1 from t where {condition} order by c0")
        assert table.store.bytes_read - read <= 1.1 * groups * int(places[0, 1, 1] - places[0, 0, 0]), condition
        expected = duckdb.from_arrow(rows).filter(condition).project("c0, c1").order("c0")
        assert found.equals(expected.to_arrow_table()), condition


@pytest.fixture
def two() -> Table:
    """Make a table in memory with two splits of six row groups each."""
    table = Table.create(f"memory://{uuid4()}", FEW.schema)
    table.append(FEW)
    table.append(FEW.slice(0, ROWS - 1))
    return table


FEW = wide_rows().select(NAMES[:4])
SUM = "select sum(c2) as n from t"
EXPECTED = [{"n": 2 * sum(FEW.column("c2").to_pylist()) - FEW.column("c2")[-1].as_py()}]
QUESTIONS: dict[str, Callable[[Table], object]] = {
    "sql": lambda table: table.sql(SUM).to_pylist(),
    "filter": lambda table: [{"n": sum(table.scan(["c2"], filter="c1 >= 0").to_arrow().column(0).to_pylist())}],
    "scan": lambda table: [
        {"n": sum(row.as_py() for rows in table.scan(["c2"]).to_reader() for row in rows.column(0))}
    ],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_flipped_bit_is_found_wherever_it_is_read_and_nowhere_else(two: Table, question: str) -> None:
    add = next(iter(two.snapshot.splits.values()))
    data = two.store.get(add.path).data
    read = np.zeros(len(data), np.bool_)
    read[add.footerStartOffset :] = True
    for column in (1, 2) if question == "filter" else (2,):
        for start, end in column_places(two, add)[:, column].tolist():
            read[start:end] = True
    for place in [*range(0, len(data), len(data) // 60), len(data) - 1, int(read.argmax())]:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        two.store.put(add.path, bytes(changed), Overwrite())
        if read[place]:
            with pytest.raises(Corrupt, match=f"{add.path}: expected xxh3-64"):
                QUESTIONS[question](Table.open(two.uri))
        else:
            assert QUESTIONS[question](Table.open(two.uri)) == EXPECTED
    two.store.put(add.path, data, Overwrite())
    assert QUESTIONS[question](Table.open(two.uri)) == EXPECTED


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_split_that_is_cut_exchanged_mixed_or_gone_is_an_error(two: Table, question: str, is_warm: bool) -> None:
    first, second = two.snapshot.splits.values()
    data, other = (two.store.get(each.path).data for each in (first, second))
    start, end = column_places(two, first)[3, 2].tolist()
    damages = {
        "cut behind what is read": (data[:end], Corrupt) if not is_warm else (data[:start], Corrupt),
        "cut within a chunk": (data[: end - 1], Corrupt),
        "exchanged": (other, Corrupt),
        "a chunk of another row group": (data[:start] + data[4 : 4 + end - start] + data[end:], Corrupt),
        "empty": (b"", Corrupt),
        "gone": (None, SnapshotExpired),
    }
    for name, (damaged, error) in damages.items():
        table = Table.open(two.uri)
        if is_warm:
            assert QUESTIONS[question](table) == EXPECTED
        if damaged is None:
            two.store.delete([first.path])
        else:
            two.store.put(first.path, damaged, Overwrite())
        with pytest.raises(error, match=first.path):
            pytest.fail(f"{name}: {QUESTIONS[question](table)}")
        two.store.put(first.path, data, Overwrite())


def test_row_groups_of_one_split_are_fetched_side_by_side(two: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.open(two.uri)
    table.sql(SUM)
    all_under_way, get_range = threading.Barrier(fetching.PIECES_AT_ONCE), MemoryStore.get_range
    waited = list[None]()

    def waiting(store: MemoryStore, key: str, start: int, end: int) -> bytes:
        if len(waited) < fetching.PIECES_AT_ONCE:
            waited.append(None)
            all_under_way.wait(60)
        return get_range(store, key, start, end)

    monkeypatch.setattr(MemoryStore, "get_range", waiting)
    assert table.sql(SUM).to_pylist() == EXPECTED


def test_a_stream_holds_what_may_be_held_and_reads_no_further(two: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "HELD_BYTES", 1)
    places = column_places(two, next(iter(two.snapshot.splits.values())))
    footers = sum((add.footerEndOffset or 0) - (add.footerStartOffset or 0) for add in two.snapshot.splits.values())
    table = Table.open(two.uri)
    reader = table.scan(["c2"]).to_reader(500)
    before = table.store.bytes_read
    batch = reader.read_next_batch()
    assert (batch.num_rows, batch.schema) == (500, pa.schema([FEW.schema.field("c2")]))
    assert table.store.bytes_read - before <= footers + 2 * int((places[:, 2, 1] - places[:, 2, 0]).max())
    assert 500 + sum(each.num_rows for each in reader) == 2 * ROWS - 1


def test_a_small_split_is_one_request_where_nearly_all_of_it_is_wanted(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**24)
    Table.create(uri, wide_rows().schema).append(wide_rows())
    table = Table.open(uri)
    (add,) = table.snapshot.splits.values()
    for columns, requests in ((None, 1), (NAMES[:-1], 1 + ROWS // 2_000), (NAMES, 1)):
        before = table.store.requests["get"]
        assert table.scan(columns).to_arrow().num_rows == ROWS
        assert table.store.requests["get"] - before == requests
    assert add.size / COLUMNS > 2**16, "of which more is spared than a request is worth"
