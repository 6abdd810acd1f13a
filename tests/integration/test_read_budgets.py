"""Limits of requests and round trips for each kind of read from a remote store.

The reader is a new process or an open table.

Requests are counted at an in-memory store. For S3 over HTTP, the client and the server count the requests, and both
counts must be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.data.rows.vectors import Floats, column_of
from storage_core.index.vector import blocks, layout, reader, segment
from storage_core.log.log import TransactionLog
from storage_core.read.search import base, sources
from storage_core.split import metadata
from storage_core.store.meter import MeteredStore
from storage_core.store.resolve import open_store
from tests.support.keyed_table import KeyedTable
from tests.support.s3_server import Front, S3Server
from tests.support.upkeep import catch_up
from tests.support.waves import WavesStore
from tidemark import Table

COLUMNS = 60
ROWS = 6_000
SPLITS = 2
GENERATIONS = 10
LINES = 4_000


@dataclass(slots=True)
class Cost:
    """The cost of a read: requests by kind, and round trips."""

    requests: dict[str, int] = field(default_factory=dict)
    waves: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """The location of the table. If the table is on a server, `front` has the requests at the server."""

    uri: str
    front: Front | None

    def open(self) -> tuple[Table, WavesStore]:
        """Return the table as a new process sees it, and its store."""
        store = WavesStore(open_store(self.uri))
        metered = MeteredStore(store)
        log = TransactionLog(metered, clock=SystemClock(), ids=SystemIds())
        return Table(metered, log, log.snapshot()), store

    @contextmanager
    def costing(self, store: WavesStore) -> Iterator[Cost]:
        """Yield the requests and round trips of a `with` block. The cost is complete only after the block."""
        found = Cost()
        if self.front is not None:
            self.front.reset()
        with store.waves.followed():
            yield found
        found.requests = dict(Counter(kind for _, kind, _ in store.waves.requests))
        found.waves = store.waves.number
        if self.front is not None:
            assert self.front.requests == found.requests


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small splits several row groups, and read them by ranges."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 2_000)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**12)
    monkeypatch.setattr(base, "WHOLE_SPLIT_BYTES", 2**12)


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "memory":
        return Place(f"memory://{uuid4()}", None)
    server: S3Server = request.getfixturevalue("s3_server")
    return Place(server.uri(f"budgets/{uuid4()}"), server.front)


@pytest.fixture
def wide(place: Place) -> Place:
    """Make a table of two splits with sixty columns, each split in its own manifest."""
    random = np.random.default_rng(1)
    rows = pa.table({f"c{each}": random.integers(0, 2**62, ROWS) for each in range(COLUMNS)})
    table = Table.create(place.uri, rows.schema)
    for _ in range(SPLITS):
        table.append(rows)
        table.log.checkpoint(Table.open(place.uri).snapshot)
    return place


def test_opening_waits_for_the_hint_then_the_state_and_a_list_then_later_versions(wide: Place) -> None:
    table = Table.open(wide.uri)
    for _ in range(5):
        table.append(pa.table({f"c{each}": [1] for each in range(COLUMNS)}))
    store = WavesStore(open_store(wide.uri))
    log = TransactionLog(MeteredStore(store), clock=SystemClock(), ids=SystemIds())
    with wide.costing(store) as cold:
        snapshot = log.snapshot()
    assert snapshot.version == SPLITS + 5
    assert (cold.requests, cold.waves) == ({"get": 2 + 5 + 1, "list": 1}, 3)
    with wide.costing(store) as warm:
        assert log.refresh(snapshot) is snapshot
    assert warm.requests == {"get": 2}, "that no version is new, and that this is no version which was collected"


def test_a_number_of_rows_costs_the_manifests_once(wide: Place) -> None:
    table, store = wide.open()
    for requests in ({"get": SPLITS}, {}):
        with wide.costing(store) as cost:
            assert table.sql("select count(*) as n from t").to_pylist() == [{"n": SPLITS * ROWS}]
        assert cost.requests == requests


def test_one_column_of_many_waits_for_footers_and_then_for_its_chunks(wide: Place) -> None:
    table, store = wide.open()
    assert table.snapshot.rows == SPLITS * ROWS
    groups = SPLITS * ROWS // 2_000
    for waves, requests in ((2, SPLITS + groups), (1, groups)):
        with wide.costing(store) as cost:
            counted = table.sql("select count(c30) filter (c30 is not null) as n from t").to_pylist()
        assert counted == [{"n": SPLITS * ROWS}]
        assert (cost.waves, cost.requests) == (waves, {"get": requests})


def test_a_search_for_ten_rows_waits_for_segments_footers_and_rows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", LINES)
    index = {"name": "text", "kind": "fulltext", "columns": ["line"]}
    table = Table.create(place.uri, pa.schema([("n", pa.int64()), ("line", pa.string())]), indexes=[index])
    for first in range(0, SPLITS * LINES, LINES):
        numbers = range(first, first + LINES)
        texts = [f"{'rare ' if each % 800 == 7 else ''}line {each}" for each in numbers]
        table.append(pa.table({"n": [*numbers], "line": texts}))
        catch_up(table)
    table, store = place.open()
    assert len(table.files()) == SPLITS
    for waves, requests in ((3, {"get": 3 * SPLITS}), (1, {"get": SPLITS})):
        with place.costing(store) as cost:
            assert table.search("rare", index="text", limit=10).num_rows == 10
        assert (cost.waves, cost.requests) == (waves, requests)


NEIGHBOURS = 12_000
DIMENSIONS = 256


def around_points() -> Floats:
    random = np.random.default_rng(4)
    points = random.standard_normal((300, DIMENSIONS), np.float32)
    noise = random.standard_normal((NEIGHBOURS, DIMENSIONS), np.float32)
    found: Floats = points[random.integers(0, 300, NEIGHBOURS)] + np.float32(0.5) * noise
    return found


@pytest.fixture
def near(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Make a table of embeddings around 300 points. The segment has 110 clusters and is read by ranges."""
    for defaults in (segment.train.__kwdefaults__, segment.build.__kwdefaults__):
        assert defaults
        monkeypatch.setitem(defaults, "flat_bytes", 2**16)
    monkeypatch.setattr(layout, "FLAT_BYTES", 2**16)
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", NEIGHBOURS // 4)
    monkeypatch.setattr(sources, "WHOLE_SEGMENT_BYTES", 2**16)
    monkeypatch.setattr(blocks, "GAP_BYTES", 2**10)
    vectors = around_points()
    noise = np.random.default_rng(6).bytes(64 * NEIGHBOURS)
    others = pa.array([noise[at : at + 64] for at in range(0, len(noise), 64)])
    rows = pa.table({"n": np.arange(NEIGHBOURS), "other": others, "v": column_of(vectors)})
    table = Table.create(place.uri, rows.schema, indexes=[{"name": "near", "kind": "vector", "columns": ["v"]}])
    table.append(rows)
    catch_up(table)
    return place


def test_a_cold_search_by_vector_fetches_a_part_of_its_segment_and_pages_of_vectors(near: Place) -> None:
    """Check these round trips in order.

    1. The directory, the first bytes of the index segment, and the footer of the split.
    2. The codes.
    3. The embedding pages.
    4. The rows.
    """
    table, store = near.open()
    (path,) = table.snapshot.segments
    (split,) = table.snapshot.splits
    query = around_points()[7] + np.random.default_rng(5).standard_normal(DIMENSIONS)
    with near.costing(store) as cost:
        found = table.search(vector=query, columns=["n"])
    of_segment = [wave for wave, _, key in store.waves.requests if key == path]
    assert len({*of_segment}) == 2
    assert of_segment.count(min(of_segment)) == 1
    assert len(of_segment) <= reader.REQUESTS
    of_split = len(store.waves.requests) - len(of_segment)
    assert of_split <= 1 + 40 + len(found)
    assert cost.waves == 4
    fetched = store.waves.bytes
    assert fetched[path] < table.snapshot.segments[path].size / 5, "no second codes, and a part of the others"
    assert fetched[split] < table.snapshot.splits[split].size / 2
    away = np.square(around_points() - query).sum(axis=1)
    assert len({*found.column("n").to_pylist()} & {*np.argsort(away)[:10].tolist()}) >= 9
    with near.costing(store) as again:
        assert table.search(vector=query, columns=["n"]).equals(found)
    assert again.waves == 1, "the rows, of all row groups"
    assert again.requests["get"] <= 4
    assert store.waves.bytes[split] < 10 * NEIGHBOURS, "no column but those of the answer, for no two are equally far"


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_no_first_search_by_vector_sends_more_requests_to_its_segments_than_a_dozen(near: Place) -> None:
    random = np.random.default_rng(7)
    for number in range(15):
        table, store = near.open()
        (path,) = table.snapshot.segments
        query = around_points()[number] + random.standard_normal(DIMENSIONS)
        with near.costing(store):
            table.search(vector=query, columns=["n"])
        assert sum(key == path for _, _, key in store.waves.requests) <= reader.REQUESTS


def test_a_first_search_with_a_filter_reads_its_columns_at_once_and_codes_instead_of_vectors(near: Place) -> None:
    """Check these round trips in order.

    1. The footer.
    2. The filter column of all row groups.
    3. The directory.
    4. The codes.
    5. The embedding pages.
    6. The rows.
    """
    table, store = near.open()
    (path,), (split,) = table.snapshot.segments, table.snapshot.splits
    query = around_points()[7] + np.random.default_rng(5).standard_normal(DIMENSIONS)
    with near.costing(store) as cost:
        found = table.search(vector=query, columns=["n"], filter="n % 5 = 0")
    assert cost.waves <= 6
    of_segment = sum(key == path for _, _, key in store.waves.requests)
    assert of_segment <= reader.REQUESTS
    assert len(store.waves.requests) - of_segment <= 1 + 4 + 40 + 4
    assert store.waves.bytes[split] < table.snapshot.splits[split].size / 2
    away = np.square(around_points() - query).sum(axis=1)[::5]
    assert len({*found.column("n").to_pylist()} & {*(5 * np.argsort(away)[:10]).tolist()}) >= 9


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_what_a_search_by_vector_fetched_is_on_disk_for_the_next_process(
    near: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert near.front is not None
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "64")
    query = np.random.default_rng(5).standard_normal(DIMENSIONS)
    first = Table.open(near.uri).search(vector=query, columns=["n"])
    table = Table.open(near.uri)
    near.front.reset()
    assert table.search(vector=query, columns=["n"]).equals(first)
    assert sum(near.front.requests.values()) == 0


LOOKUPS = {
    "the newest generation": (GENERATIONS - 1, 9, 19),
    "the oldest generation": (ROWS // 2, 12, 28),
    "the base alone": (ROWS // 2 + GENERATIONS, 14, 30),
    "nothing": (ROWS, 7, 17),
}
"""For each kind of existing key, the limits of round trips and requests for a lookup by a new process."""


@pytest.mark.parametrize("where", LOOKUPS)
def test_a_lookup_over_ten_generations(place: Place, where: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    table = Table.create(place.uri, schema, primary_key="id")
    with table.writer() as writer:
        writer.put(pa.table([np.arange(ROWS)] * 2, schema=schema))
        writer.flush()
    assert KeyedTable(table.store, ids=SystemIds()).merge() is not None
    with table.writer() as writer:
        for first in range(GENERATIONS):
            newer = np.arange(first, ROWS, 2 * GENERATIONS)
            writer.put(pa.table([newer, newer], schema=schema))
            writer.flush()
    key, waves, requests = LOOKUPS[where]
    row = None if key == ROWS else {"id": key, "v": key}
    table, store = place.open()
    for most_waves, most in ((waves, requests), (6, 7)):
        with place.costing(store) as cost:
            assert table.get(key) == row
        assert cost.waves <= most_waves
        assert sum(cost.requests.values()) <= most
