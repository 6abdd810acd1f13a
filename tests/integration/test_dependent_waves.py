"""The number of sequential round trips of a read from a remote store. Only sequential round trips add up latency."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.data.formats.region_manifest import BLOOM_FILE
from storage_core.log.log import TransactionLog
from storage_core.read.search import base
from storage_core.split import metadata
from storage_core.store.meter import MeteredStore
from storage_core.store.resolve import open_store
from tests.support.keyed_table import KeyedTable
from tests.support.region_copies import drop_copies
from tests.support.upkeep import catch_up
from tests.support.waves import Waves, WavesStore
from tidemark import Table

ROWS = 2_000
GENERATIONS = 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers read small splits by ranges."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 1_000)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**12)
    monkeypatch.setattr(base, "WHOLE_SPLIT_BYTES", 2**12)


def opened(uri: str) -> tuple[Table, Waves]:
    store = WavesStore(open_store(uri))
    metered = MeteredStore(store)
    log = TransactionLog(metered, clock=SystemClock(), ids=SystemIds())
    return Table(metered, log, log.snapshot()), store.waves


@pytest.fixture
def lines() -> tuple[Table, Waves]:
    """Make a table with four splits of two row groups each. One word occurs in only one row."""
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
    "sum": ("select count(v) filter (v is not null) as n from t", 4 * ROWS),
    "some row groups": ("select count(v) as n from t where n % 2 = 0 and n >= 3000", 4 * ROWS // 2 - 1_500),
}


@pytest.mark.parametrize("text", READS)
def test_a_query_waits_for_footers_and_then_for_column_chunks(lines: tuple[Table, Waves], text: str) -> None:
    table, waves = lines
    query, expected = READS[text]
    for number in (2, 1):  # the second time, the footers are cached
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
    assert len(waves.requests) == 1 + 1 + 1  # per split: segment, footer, first row group


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


WAVES = 5
HINT, MANIFEST, NEXT_VERSION, BOUNDARY = 1, 2, 3, 4
"""The first four round trips of a lookup: (1) hint, (2) manifest and its log, (3) next version, (4) boundary."""


@pytest.fixture
def keyed() -> str:
    """Make a keyed table with even numbers in one split. Readers read the split by ranges, and it has two row groups.

    Later, `flush_newer` writes one tenth of the rows again, as generations.
    """
    uri = f"memory://{uuid4()}"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    table = Table.create(uri, schema, primary_key="id")
    numbers = np.arange(0, 2 * ROWS, 2)
    random = np.random.default_rng(1).integers(0, 2**60, ROWS)
    with table.writer() as writer:
        writer.put(pa.table([numbers, random], schema=schema))
        writer.flush()
    assert KeyedTable(table.store).merge() is not None
    return uri


def flush_newer(uri: str, *, entries: int = 2) -> None:
    """Write a tenth of the rows again.

    The rows are in several generations. All these generations cover one key range and have several entries.
    """
    table = Table.open(uri)
    newer = np.append(np.arange(0, 2 * ROWS, 20), 2 * ROWS - 2)
    with table.writer() as writer:
        for first in range(GENERATIONS):
            chosen = np.unique(np.append(newer[[0, -1]], newer[first::GENERATIONS]))
            for part in np.array_split(chosen, entries):
                writer.put(pa.table([part, part + first], schema=table.schema))
            writer.flush()


def looked_up(table: Table, waves: Waves, key: int) -> tuple[object, list[tuple[int, str]]]:
    """Return the value of the key and all requests.

    A request has the number of its round trip and the last part of the object's key.
    """
    with waves.followed():
        row = table.get(key)
    return None if row is None else row["v"], sorted((wave, key.split("/")[-1]) for wave, _, key in waves.requests)


@pytest.mark.parametrize("generations", [0, GENERATIONS])
def test_a_lookup_waits_five_times_for_a_row_of_the_base_and_less_for_a_newer_one(keyed: str, generations: int) -> None:
    if generations:
        flush_newer(keyed)
    head = 7  # requests for the hint, two manifests (one missing), two log entries, the next version and the boundary
    table, waves = opened(keyed)
    value, requests = looked_up(table, waves, 2)
    assert value is not None
    assert (len(requests), waves.number) == (head + 3, WAVES)  # the footer, the keys of a row group, the row
    table, waves = opened(keyed)
    value, requests = looked_up(table, waves, 3)
    assert value is None
    assert (len(requests), waves.number) == (head + 2, WAVES - 1)
    if generations:
        table, waves = opened(keyed)
        value, requests = looked_up(table, waves, 180)  # the second-to-last row of a generation
        assert value == 180 + 9
        assert (len(requests), waves.number) == (head + 2, WAVES - 1)  # two more reads: the key index and the WAL entry
        table, waves = opened(keyed)
        assert looked_up(table, waves, 0)[0] == GENERATIONS - 1
        assert (len(waves.requests), waves.number) == (head + 2, WAVES - 1)


def test_volatile_sources_are_asked_before_the_head_whatever_is_asked_beside_them(keyed: str) -> None:
    """A read sends the requests for the log and the manifest before the request for the version.

    A flush or merge between these requests therefore never causes a gap.
    """
    flush_newer(keyed)
    for table, waves in (opened(keyed), opened(keyed)):
        for first in (MANIFEST, HINT):  # cached data is checked together with the hint
            with waves.followed():
                table.get(2)
            kinds = [(wave, key) for wave, _, key in waves.requests]
            of_region = {wave for wave, key in kinds if key.startswith("_mem_wal/") and "_gen_" not in key}
            of_log = {wave for wave, key in kinds if key.startswith("_transaction_log/")}
            assert max(of_region) == first
            assert min(of_log) == first + 1
            order = [key for _, key in kinds]
            last_of_region = max(
                order.index(key) for key in order if key.startswith("_mem_wal/") and "_gen_" not in key
            )
            assert last_of_region < min(order.index(key) for key in order if key.startswith("_transaction_log/"))


@pytest.mark.parametrize("generations", [0, GENERATIONS])
def test_a_lookup_of_a_table_that_stays_open_asks_only_what_may_change_and_for_the_row(
    keyed: str, generations: int
) -> None:
    if generations:
        flush_newer(keyed)
    table, waves = opened(keyed)
    for key in (2, 3, 180):
        table.get(key)
    head, waits = 6, 3  # these requests take three round trips
    assert looked_up(table, waves, 3)[0] is None
    assert (len(waves.requests), waves.number) == (head, waits)
    assert looked_up(table, waves, 2)[0] is not None
    assert (len(waves.requests), waves.number) == (head + 1, waits)
    assert (looked_up(table, waves, 180)[0] == 189) == bool(generations)
    assert (len(waves.requests), waves.number) == (head + (not generations), waits)
    with Table.open(keyed).writer() as writer:
        writer.put([{"id": 2, "v": -2}])
    assert looked_up(table, waves, 2)[0] == -2
    with Table.open(keyed).writer() as writer:
        writer.flush()
    assert looked_up(table, waves, 2)[0] == -2


def test_a_split_that_is_gone_from_the_version_at_hand_is_no_matter_where_a_newer_one_is_found(keyed: str) -> None:
    table, waves = opened(keyed)
    (split,) = [str(each["path"]) for each in table.files()]
    writing = Table.open(keyed)
    with writing.writer() as writer:
        writer.delete(list(range(0, 2 * ROWS, 2)))
        writer.flush()
    assert KeyedTable(writing.store, ids=SystemIds()).merge() is not None
    assert writing.refresh().files() == []
    writing.store.delete([split])
    value, requests = looked_up(table, waves, 3)
    assert value is None
    assert split.split("/")[-1] in [key for _, key in requests], "it was asked meanwhile"


def test_a_lookup_of_a_table_that_older_releases_wrote_waits_for_manifests_and_filters(keyed: str) -> None:
    flush_newer(keyed)
    drop_copies(Table.open(keyed))
    table, waves = opened(keyed)
    assert looked_up(table, waves, 0)[0] == GENERATIONS - 1
    assert len([key for _, _, key in waves.requests if key.endswith(BLOOM_FILE)]) == 1
    table, waves = opened(keyed)
    assert looked_up(table, waves, 0 + 20)[0] == 21
    assert waves.number <= 9  # five round trips for manifests and filters, then the index and the WAL entry


def test_reads_side_by_side_are_one_wave_whichever_ends_first(lines: tuple[Table, Waves]) -> None:
    """Test the recorder of requests.

    A thread may also make requests that do not belong to the recorded operation. These requests do not count as round
    trips of the operation.
    """
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
