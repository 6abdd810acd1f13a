"""`explain_get` predicts the regions, generations, row groups and requests of the real lookup."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from pipelines.cli import main
from storage_core.base.errors import InvalidInput
from storage_core.split import metadata
from storage_core.write.region.manifest import region_of
from tests.support.keyed_table import KeyedTable
from tests.support.region_copies import drop_copies
from tests.support.s3_server import S3Server
from tidemark import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
ROWS = 2_000
GENERATIONS = 4
HEAD = 7
"""The number of requests for the region, its log and the newest version, if the table was just opened."""


@pytest.fixture(params=["memory", "s3"])
def uri(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a keyed table with even numbers in a split that is read by ranges.

    The split has two row groups. Every fourth number is also in a generation.
    """
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 1_000)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**12)
    if request.param == "memory":
        return filled(f"memory://{uuid4()}")
    server: S3Server = request.getfixturevalue("s3_server")
    return filled(server.uri(f"explained/{uuid4()}"))


def filled(uri: str) -> str:
    table = Table.create(uri, SCHEMA, primary_key="id")
    numbers = np.arange(0, 2 * ROWS, 2)
    flush(table, numbers, np.random.default_rng(1).integers(0, 2**60, ROWS))
    assert KeyedTable(table.store).merge() is not None
    for first in range(GENERATIONS):
        flush(table, numbers[4 * first :: 4 * GENERATIONS], numbers[4 * first :: 4 * GENERATIONS] + 1)
    return uri


def flush(table: Table, keys: np.ndarray, values: np.ndarray) -> None:
    with table.writer() as writer:
        writer.put(pa.table([keys, values], schema=SCHEMA))
        writer.flush()


def made(table: Table, key: int) -> int:
    before = sum(table.store.requests.values())
    table.get(key)
    return sum(table.store.requests.values()) - before


@pytest.mark.parametrize(
    ("key", "filters", "newer", "groups", "requests"),
    [(2, 0, 0, 1, HEAD + 3), (8, 1, 1, 0, HEAD + 1), (3, 0, 0, 1, HEAD + 2), (10**6, 0, 0, 0, HEAD)],
    ids=["of the base", "of a generation", "absent", "out of bounds"],
)
def test_it_tells_what_each_step_leaves_and_the_requests_that_follow(
    uri: str, key: int, filters: int, newer: int, groups: int, requests: int
) -> None:
    table = Table.open(uri)
    for _ in range(2):  # explain caches nothing
        plan = table.explain_get(key)
        (region,) = plan.regions
        assert region.region_id == region_of(table.snapshot.table_id)
        assert (region.generations, region.copied_filters, region.log_entries) == (GENERATIONS, GENERATIONS, 0)
        assert (region.admitted_by_bounds == 0) == (key == 10**6)
        assert region.admitted_by_filters == filters
        assert (plan.base.newer_records, plan.base.row_groups) == (newer, groups)
        assert len(plan.base.splits) == bool(groups)
        assert plan.requests - requests == (key == 3), "a row that is not there is not fetched"
    assert made(table, key) == requests
    again = table.explain_get(key)
    assert again.requests == made(table, key) + (key == 3)
    done = table.explain_get(key, analyze=True).analysis
    assert done is not None
    assert sum(done.requests.values()) == made(table, key)
    assert done.rows == (key in (2, 8))
    assert table.explain_get(key, consistency="snapshot").regions == ()


def test_without_copies_the_filters_are_fetched_and_it_says_so(uri: str) -> None:
    drop_copies(Table.open(uri))
    table = Table.open(uri)
    plan = table.explain_get(2000)
    assert plan.regions[0].copied_filters == 0
    assert (plan.regions[0].admitted_by_bounds, plan.regions[0].admitted_by_filters) == (GENERATIONS, 1)
    assert plan.requests == made(table, 2000)


def test_a_row_of_the_log_leaves_the_base_out(uri: str) -> None:
    with Table.open(uri).writer() as writer:
        writer.put([{"id": 2, "v": -2}])
        plan = Table.open(uri).explain_get(2)
        assert (plan.regions[0].log_entries, plan.base.newer_records) == (1, 1)
        assert [step.name for step in plan.base.steps] == ["newer records"]
        assert plan.requests == made(Table.open(uri), 2) == HEAD + 2  # one more request reads the entry


def test_the_command_prints_it_and_its_json_has_the_fields_of_the_specification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = filled(str(tmp_path / "t"))
    assert main(["get", uri, "8", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "4 generations not merged, 4 with a copied filter" in shown
    assert "newer records leaves out 1 split" in shown
    assert main(["get", uri, "8", "--analyze", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {*found} == {"consistency", "requests", "unmerged_requests", "regions", "raw_logs", "base", "analysis"}
    assert found["analysis"]["rows"] == 1
    assert found["regions"][0]["admitted_by_filters"] == 1


def test_what_get_refuses_it_refuses(uri: str) -> None:
    table = Table.open(uri)
    with pytest.raises(InvalidInput, match="does not fit"):
        table.explain_get("x")
    with pytest.raises(InvalidInput, match="older version"):
        table.explain_get(2, at=0, consistency="latest")
