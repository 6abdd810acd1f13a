"""How many requests of a read wait for one another, off a local disk: latencies add up along these waves only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from storage_core.clock import SystemClock
from storage_core.formats.generation_manifest import BLOOM_FILE
from storage_core.ids import SystemIds
from storage_core.log.log import TransactionLog
from storage_core.objectstore.meter import MeteredStore
from storage_core.objectstore.resolve import open_store
from storage_core.read import search_base
from storage_core.split import row_groups
from tests.chaos.upkeep import catch_up
from tests.support.keyed_table import KeyedTable
from tests.support.waves import Waves, WavesStore
from tidemark import Table

ROWS = 2_000
GENERATIONS = 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of some kilobytes are read by ranges."""
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", 1_000)
    monkeypatch.setattr("storage_core.split.read.AHEAD_BYTES", 2**12)
    monkeypatch.setattr(search_base, "WHOLE_SPLIT_BYTES", 2**12)


def opened(uri: str) -> tuple[Table, Waves]:
    store = WavesStore(open_store(uri))
    metered = MeteredStore(store)
    log = TransactionLog(metered, clock=SystemClock(), ids=SystemIds())
    return Table(metered, log, log.snapshot()), store.waves


@pytest.fixture
def lines() -> tuple[Table, Waves]:
    """Four splits of two row groups; one word is in one line of them."""
    uri = f"memory://{uuid4()}"
    schema = pa.schema([("n", pa.int64()), ("line", pa.string()), ("v", pa.int64())])
    table = Table.create(uri, schema, indexes=[{"name": "text", "kind": "fulltext", "columns": ["line"]}])
    random = np.random.default_rng(1)
    for first in range(0, 4 * ROWS, ROWS):
        numbers = np.arange(first, first + ROWS)
        texts = [f"line {number}" for number in numbers]
        table.append(pa.table([numbers, texts, random.integers(0, 2**60, ROWS)], schema=schema))
    return opened(uri)


READS = {
    "sum": ("select count(v) as n from t", 4 * ROWS),
    "some row groups": ("select count(v) as n from t where n % 2 = 0 and n >= 3000", 4 * ROWS // 2 - 1_500),
}


@pytest.mark.parametrize("text", READS)
def test_a_query_waits_for_footers_and_then_for_column_chunks(lines: tuple[Table, Waves], text: str) -> None:
    table, waves = lines
    query, expected = READS[text]
    for number in (2, 1):  # the footers are held then
        with waves.followed():
            assert table.sql(query).to_pylist() == [{"n": expected}]
        assert waves.number == number


def test_a_scan_waits_for_footers_and_then_for_column_chunks(lines: tuple[Table, Waves]) -> None:
    table, waves = lines
    for number in (2, 1):
        with waves.followed():
            assert table.scan(["v"]).to_arrow().num_rows == 4 * ROWS
        assert waves.number == number


def test_a_number_of_rows_waits_for_nothing(lines: tuple[Table, Waves]) -> None:
    table, waves = lines
    with waves.followed():
        assert table.sql("select count(*) as n from t").to_pylist() == [{"n": 4 * ROWS}]
    assert waves.requests == []


@pytest.mark.parametrize("splits", [1, 4])
def test_a_search_waits_for_segments_footers_and_rows(splits: int) -> None:
    uri = f"memory://{uuid4()}"
    index = {"name": "text", "kind": "fulltext", "columns": ["line"]}
    table = Table.create(uri, pa.schema([("line", pa.string())]), indexes=[index])
    for split in range(splits):
        table.append(pa.table({"line": [f"line {number} of {'split ' * split}" for number in range(ROWS)]}))
        catch_up(table)
    table, waves = opened(uri)
    with waves.followed():
        found = table.search("1234", index="text").column("line").to_pylist()
    assert found == [f"line 1234 of {'split ' * split}" for split in range(splits)]
    assert waves.number == 3
    assert len(waves.requests) == 3 * splits


def test_a_search_by_a_bitmap_opens_more_and_more_segments_at_a_time() -> None:
    uri, splits = f"memory://{uuid4()}", 7
    index = {"name": "kinds", "kind": "bitmap", "columns": ["kind"]}
    table = Table.create(uri, pa.schema([("n", pa.int64()), ("kind", pa.string())]), indexes=[index])
    for split in range(splits):
        numbers = range(split * ROWS, (split + 1) * ROWS)
        rare = split in (0, splits - 1)
        kinds = ["rare" if rare and not number % ROWS else "common" for number in numbers]
        table.append(pa.table({"n": list(numbers), "kind": kinds}))
        catch_up(table)
    table, waves = opened(uri)
    assert len(table.files()) == splits
    with waves.followed():
        assert table.search("rare", index="kinds").column("n").to_pylist() == [0, (splits - 1) * ROWS]
    assert waves.number == 3 + 1 + 3
    table, waves = opened(uri)
    assert len(table.files()) == splits
    with waves.followed():
        assert table.search("common", index="kinds", limit=2).column("n").to_pylist() == [1, 2]
    assert len(waves.requests) == 1 + 1 + 2  # of one split: its segment, its footer, its row groups


def test_records_of_generations_are_read_side_by_side() -> None:
    uri = f"memory://{uuid4()}"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    table = Table.create(uri, schema, primary_key="id")
    with table.writer() as writer:
        for first in range(8):
            writer.put([{"id": first, "v": first}])
            writer.flush()
    table, waves = opened(uri)
    with waves.followed():
        assert table.scan(consistency="committed").to_arrow().num_rows == 8
    of_entries = {wave for wave, _, key in waves.requests if "/wal/" in key}
    assert len(of_entries) == 1, waves.requests


def test_a_lookup_waits_for_the_head_of_its_region_and_then_for_what_may_hold_the_key() -> None:
    """The newest manifest, the end of the log and the table's newest version come first, one after the other."""
    uri = f"memory://{uuid4()}"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    table = Table.create(uri, schema, primary_key="id")
    numbers = np.arange(ROWS)
    with table.writer() as writer:
        writer.put(pa.table([numbers, numbers], schema=schema))
        writer.flush()
    assert KeyedTable(table.store).merge() is not None
    with table.writer() as writer:
        for first in range(GENERATIONS):
            newer = numbers[first::GENERATIONS]
            writer.put(pa.table([newer, newer + 1], schema=schema))
            writer.flush()
    table, waves = opened(uri)
    with waves.followed():
        assert table.get(ROWS) is None
    head = waves.number
    assert head <= 9
    table, waves = opened(uri)
    with waves.followed():
        assert table.get(GENERATIONS - 1) == {"id": GENERATIONS - 1, "v": GENERATIONS}
    assert waves.number <= head + 2  # the Bloom filter of the newest generation, and its entry
    assert len([key for _, _, key in waves.requests if key.endswith(BLOOM_FILE)]) == 1
    table, waves = opened(uri)
    with waves.followed():
        assert table.get(ROWS // 2) == {"id": ROWS // 2, "v": ROWS // 2 + 1}
    assert waves.number <= head + 5  # the filters of one, two, four and three generations, and an entry of the oldest


def test_reads_side_by_side_are_one_wave_whichever_ends_first(lines: tuple[Table, Waves]) -> None:
    """Of the recorder: what a thread did for another work is not what this one waited for."""
    _, waves = lines

    def ask(key: str) -> int:
        with waves.request("get", key):
            pass
        return len(key)

    with waves.followed(), ThreadPoolExecutor(1) as pool:
        assert list(pool.map(ask, ["a", "b", "c"])) == [1, 1, 1]
        assert ask("d") == 1
        assert pool.submit(ask, "e").result() == 1
    assert [(wave, key) for wave, _, key in waves.requests] == [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (3, "e")]
