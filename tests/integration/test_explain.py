"""`explain` predicts the splits, row groups, bytes and requests of the real read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, InvalidInput, SnapshotExpired
from storage_core.split import deletion_vectors, metadata
from storage_core.store.contract import Overwrite
from tests.support.deleted_rows import delete_where
from tests.support.keyed_table import KeyedTable
from tests.support.s3_server import S3Server
from tidemark import Table

ROWS = 6_000
SPLITS = 2


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small splits several row groups, and read them by ranges."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 1_000)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**13)


def wide(first: int = 0, rows: int = ROWS) -> pa.Table:
    random = np.random.default_rng(first)
    numbers = np.arange(first, first + rows)
    columns = {"n": numbers, "s": [f"text {number // 1000}" for number in numbers]}
    return pa.table({**columns, **{f"c{each}": random.integers(0, 2**62, rows) for each in range(6)}})


@pytest.fixture(params=["memory", "s3"])
def uri(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return f"memory://{uuid4()}"
    server: S3Server = request.getfixturevalue("s3_server")
    return server.uri(f"explained/{uuid4()}")


@pytest.fixture
def table(uri: str) -> Table:
    """Make a table of two splits with six row groups each, and a small split."""
    return filled(uri)


def filled(uri: str) -> Table:
    made = Table.create(uri, wide().schema)
    for first in range(0, SPLITS * ROWS, ROWS):
        made.append(wide(first))
    made.append(wide(SPLITS * ROWS, 10))
    return Table.open(uri)


# The number of remaining splits, the number of remaining row groups of splits read by ranges, and the columns.
QUERIES: dict[str, tuple[int, int, Sequence[str]]] = {
    "select sum(c3) from t": (3, 12, ["c3"]),
    "select sum(c3) from t where n between 1100 and 1200": (1, 1, ["n", "c3"]),
    "select n from t where n < 100 or n >= 11900": (3, 2, ["n"]),
    "select n from t where s like 'text 7%'": (1, 2, ["n", "s"]),
    "select n from t where s in ('text 3', 'text 8') and c0 is not null": (2, 2, ["n", "s", "c0"]),
    "select c0, c5 from t where c0 % 2 = 0": (3, 12, ["c0", "c5"]),
    "select n from t where n is null": (0, 0, ["n"]),
    "from t where c0 % 2 = 0": (3, 12, wide().schema.names),
    "select count(*) from t": (0, 0, []),
}


@pytest.mark.parametrize("text", QUERIES)
def test_a_query_makes_the_requests_and_fetches_the_bytes_that_are_foretold(table: Table, text: str) -> None:
    splits, groups, columns = QUERIES[text]
    plan = table.explain(text)
    found = plan["t"]
    assert (len(plan.splits), found.row_groups, list(found.columns)) == (splits, groups, list(columns))
    for _ in range(2):  # explain does not cache data for later reads
        assert table.explain(text) == plan
    before, read = table.store.requests["get"], table.store.bytes_read
    table.sql(text).to_arrow()
    assert (table.store.requests["get"] - before, table.store.bytes_read - read) == (plan.requests, plan.read_bytes)
    warm = table.explain(text, analyze=True)
    assert warm.requests == plan.requests - len([add for add in plan.splits if add.size > 2**13])
    assert warm.analysis is not None
    assert (warm.analysis.requests["get"], warm.analysis.bytes) == (warm.requests, warm.read_bytes)


def test_each_step_tells_what_it_leaves_out() -> None:
    plan = filled(f"memory://{uuid4()}").explain("select c0 from t where n between 1100 and 1200")
    steps = {step.name: step for step in plan.steps}
    assert list(steps) == ["window", "min/max", "regex", "row groups", "columns"]
    assert (steps["min/max"].splits, steps["row groups"].row_groups, steps["row groups"].splits) == (2, 5, 0)
    (left,) = plan.splits
    groups, columns = steps["row groups"].bytes, steps["columns"].bytes
    assert 0.6 * left.size < groups < left.size
    assert 0 < columns < left.size - groups


def test_a_scan_is_explained_like_a_query(table: Table) -> None:
    for scan, rows in ((table.scan(["c1"]), 2 * ROWS + 10), (table.scan(["c1"], filter="n >= 11000"), 1_010)):
        plan = scan.explain(analyze=True)
        assert plan.analysis is not None
        assert plan.analysis.rows == rows
        assert (plan.analysis.requests["get"], plan.analysis.bytes) == (plan.requests, plan.read_bytes)
        assert 0 < plan.analysis.round_trips <= plan.requests
        assert " round trip" in str(plan)
        assert plan.analysis.cache is None


def test_on_a_local_disk_the_engine_reads_the_files_without_a_request(tmp_path: Path) -> None:
    table = filled(str(tmp_path / "t"))
    plan = table.explain("select sum(c3) from t where n between 1100 and 1200", analyze=True)
    assert (plan["t"].row_groups, plan.requests, plan["t"].whole_splits) == (1, 0, 0)
    assert plan.analysis is not None
    assert (plan.analysis.rows, plan.analysis.round_trips, plan.analysis.bytes) == (1, 0, 0)
    assert 0 < plan.read_bytes < 0.1 * table.snapshot.bytes


def test_stored_deletion_vectors_are_requests_on_a_local_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion_vectors, "INLINE_BYTES", 0)
    for uri, requests in ((str(tmp_path / "t"), 1), (f"memory://{uuid4()}", 3)):
        made = filled(uri)
        delete_where(made.log, lambda row: row["n"] % 7 == 0)
        plan = Table.open(uri).explain("select sum(n) from t where n < 1000", analyze=True)
        assert plan.requests == requests
        assert plan.analysis is not None
        assert plan.analysis.requests["get"] == plan.requests


def test_a_table_that_stays_open_has_the_deletion_vectors_of_local_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion_vectors, "INLINE_BYTES", 0)
    table = filled(str(tmp_path / "t"))
    for rest in (0, 1):
        delete_where(table.log, partial(_has_rest, rest))
        table.refresh()
        for requests in (1, 0):
            plan = table.explain("select count(n) from t where n < 1000", analyze=True)
            assert plan.analysis is not None
            assert plan.analysis.requests["get"] == plan.requests == requests
        left = sum(n % 7 > rest for n in range(1000))
        assert table.sql("select count(n) as n from t where n < 1000").to_pylist() == [{"n": left}]


def _has_rest(rest: int, row: Mapping[str, Any]) -> bool:
    return bool(row["n"] % 7 == rest)


@pytest.mark.parametrize("consistency", ["snapshot", "latest"])
def test_a_stored_deletion_vector_is_one_request_at_every_level_of_consistency(
    monkeypatch: pytest.MonkeyPatch, consistency: str
) -> None:
    planned, made = list[int](), list[int]()
    for inline_bytes in (2**20, 0):
        monkeypatch.setattr(deletion_vectors, "INLINE_BYTES", inline_bytes)
        rows = wide().select(["n", "c0"])
        schema = pa.schema([pa.field("n", pa.int64(), nullable=False), rows.schema.field("c0")])
        table = Table.create(f"memory://{uuid4()}", schema, primary_key="n")
        with table.writer() as writer:
            writer.put(rows)
            writer.flush()
            assert KeyedTable(table.store).merge() is not None
            delete_where(table.log, lambda row: row["n"] % 7 == 0)
            writer.put([{"n": 9000, "c0": 2}])
            plan = Table.open(table.uri).explain("select sum(n) from t", consistency=consistency, analyze=True)
        assert plan.analysis is not None
        planned.append(plan.requests)
        made.append(plan.analysis.requests["get"])
    assert planned[1] - planned[0] == made[1] - made[0] == 1


def test_a_plan_is_a_section_for_each_table_and_a_line_for_the_run(table: Table) -> None:
    other = Table.create(f"memory://{uuid4()}", pa.schema([("n", pa.int64()), ("name", pa.string())]))
    other.append(pa.table({"n": [5, 6], "name": ["five", "six"]}))
    query = "select t.c0, name, extra from t join p using (n) join m using (n) where t.n < 100"
    tables = {"p": other, "m": pa.table({"n": [5], "extra": [1]})}
    plan = table.explain(query, tables=tables, analyze=True)
    assert [each.name for each in plan.tables] == ["t", "p"]
    assert (len(plan["p"].splits), plan["p"].whole_splits, plan["p"].requests) == (1, 1, 1)
    assert plan.analysis is not None
    assert (plan.analysis.rows, plan.analysis.requests["get"]) == (1, plan.requests)
    with pytest.raises(KeyError):
        plan["m"]
    lines = str(plan).splitlines()
    assert lines[0].startswith("t at version 3: 3 splits, ")
    assert lines[1:4:2] == ["  window leaves out nothing", "  regex leaves out nothing"]
    assert lines[4].startswith("  row groups leaves out 5 row groups, ")
    assert lines[6].startswith("  reads 1 split (0 whole), 1 row group, ")
    assert lines[6].endswith(" bytes, by 2 requests: n, c0")
    assert lines[7].startswith("p at version 1: 1 split, ")
    assert lines[-2].startswith("  reads 1 split (1 whole), 0 row groups, ")
    assert lines[-1].startswith("1 row in ")
    assert f": {plan.requests} GET in " in lines[-1]
    data = json.loads(json.dumps(plan.to_dict()))
    assert [each["name"] for each in data["tables"]] == ["t", "p"]
    assert data["analysis"]["rows"] == 1
    assert data["tables"][0]["steps"][3]["row_groups"] == 5
    assert table.explain(query, tables=tables).to_dict()["analysis"] is None


@pytest.mark.parametrize("consistency", ["snapshot", "committed", "latest"])
def test_every_level_of_consistency_is_explained(uri: str, consistency: str) -> None:
    rows = wide().select(["n", "c0"])
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), rows.schema.field("c0")])
    table = Table.create(uri, schema, primary_key="n")
    with table.writer() as writer:
        writer.put(rows)
        writer.flush()
        assert KeyedTable(table.store).merge() is not None
        writer.put([{"n": 5000, "c0": 1}])
        writer.flush()
        writer.put([{"n": 9000, "c0": 2}, {"n": 9001, "c0": 2}])
        newer = {"snapshot": 0, "committed": 1, "latest": 3}[consistency]
        table = Table.open(uri)
        plan = table.explain("select n from t where n >= 4500", consistency=consistency, analyze=True)
        found = table.scan(filter="n >= 4500", consistency=consistency).explain(analyze=True)
    assert (plan["t"].newer_records, plan["t"].row_groups, len(plan.splits)) == (newer, 2, 1)
    expected = 1500 + max(0, newer - 1)
    assert plan.analysis is not None
    assert found.analysis is not None
    assert (plan.analysis.rows, found.analysis.rows) == (expected, expected)
    assert found["t"].newer_records == newer
    assert plan.analysis.requests["get"] >= plan.requests
    if newer:
        assert f"applies {newer} unmerged record" in str(plan)


def test_an_older_version_is_explained_as_it_was(table: Table) -> None:
    assert len(table.explain("select n from t", at=1).splits) == 1
    assert Table.open(table.uri, at=2).explain("select n from t")["t"].version == 2


def test_a_query_that_is_none_and_a_split_that_is_damaged_or_gone_are_errors(table: Table) -> None:
    with pytest.raises(InvalidInput):
        table.explain("delete from t", analyze=True)
    with pytest.raises(InvalidInput, match="nobody"):
        table.explain("select nobody from t", analyze=True)
    add = max(table.snapshot.splits.values(), key=lambda each: each.size)
    data = bytearray(table.store.get(add.path).data)
    data[-100] ^= 1
    table.store.put(add.path, bytes(data), Overwrite())
    with pytest.raises(Corrupt, match=add.path):
        table.explain("select n from t")
    table.store.delete([add.path])
    with pytest.raises(SnapshotExpired, match=add.path):
        table.explain("select n from t")
