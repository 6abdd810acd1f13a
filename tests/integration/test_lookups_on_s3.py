"""The requests of a lookup by key on S3 over HTTP, for a newly opened table and for a table that stays open."""

from __future__ import annotations

from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from storage_core.split import metadata
from tests.support.keyed_table import KeyedTable
from tests.support.region_copies import drop_copies
from tests.support.s3_server import S3Server
from tidemark import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
ROWS = 2_000
GENERATIONS = 10
HEAD = 7
"""The requests for the hint, two region manifests, two log entries, the next version and the boundary."""


@pytest.fixture
def uri(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a table with even numbers in the base, in a split that is read by ranges."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 1_000)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**12)
    place = s3_server.uri(f"tables/{uuid4()}")
    table = Table.create(place, SCHEMA, primary_key="id")
    flush(table, np.arange(0, 2 * ROWS, 2), np.random.default_rng(1).integers(0, 2**60, ROWS))
    assert KeyedTable(table.store).merge() is not None
    return place


def flush(table: Table, keys: np.ndarray, values: np.ndarray) -> None:
    with table.writer() as writer:
        writer.put(pa.table([keys, values], schema=SCHEMA))
        writer.flush()


def requests(table: Table, key: int) -> tuple[object, int]:
    """Return the value of the key and the number of requests."""
    before = sum(table.store.requests.values())
    row = table.get(key)
    return None if row is None else row["v"], sum(table.store.requests.values()) - before


@pytest.mark.parametrize("generations", [0, GENERATIONS])
def test_a_lookup_on_s3_takes_at_most_twelve_requests_however_many_generations_wait(uri: str, generations: int) -> None:
    table = Table.open(uri)
    for first in range(generations):
        keys = np.unique([0, *range(20 * first, 2 * ROWS, 20 * GENERATIONS), 2 * ROWS - 2])
        flush(table, keys, keys + first)
    value, cost = requests(Table.open(uri), 2)
    assert value is not None
    assert cost == HEAD + 3  # footer, keys of a row group, row
    assert requests(Table.open(uri), 3) == (None, HEAD + 2)
    if generations:
        assert requests(Table.open(uri), 20) == (21, HEAD + 1)  # the entry of the generation
        assert requests(Table.open(uri), 0) == (GENERATIONS - 1, HEAD + 1)
    warm = Table.open(uri)
    assert warm.get_many([2, 3, 20, 0])[1] is None
    assert requests(warm, 3) == (None, HEAD - 1)
    assert requests(warm, 2) == (value, HEAD - 1 + 1)  # the row
    assert requests(warm, 20)[1] == HEAD - 1 + (not generations)
    if generations:
        drop_copies(table)
        assert requests(Table.open(uri), 2) == (value, HEAD + 3 + 2 * GENERATIONS)  # requests without copies
