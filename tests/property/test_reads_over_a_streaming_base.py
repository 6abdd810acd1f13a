"""Reads with unmerged records return the same rows as a model that is a plain dictionary.

These reads keep only the changed rows of the base in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidemark as tm
from storage_core.base.clock import SystemIds
from storage_core.read.table_read import TableView, plan, source_of
from storage_core.read.verified_files import VerifiedFiles
from storage_core.write.region.router import TableWriter
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("v", pa.int64()),
        ("file_row_number", pa.string()),
    ]
)
PLAIN = SCHEMA.set(2, pa.field("name", pa.string()))
_numbers = itertools.count()

KEY = st.integers(0, 9)
VALUE = st.none() | st.integers(0, 3)
ROW = st.fixed_dictionaries({"k": KEY, "v": VALUE, "text": st.sampled_from([None, "a", "b"])})
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "patch", "reset", "delete"]), st.lists(ROW, min_size=1, max_size=4)),
    max_size=5,
)
Step = tuple[str, list[dict[str, Any]]]
CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "v = 1": lambda row: row["v"] == 1,
    "k >= 5": lambda row: row["k"] >= 5,
    "v is null": lambda row: row["v"] is None,
    "k in (1, 2) or v > 1": lambda row: row["k"] in (1, 2) or (row["v"] or 0) > 1,
}


def _apply(model: dict[int, dict[str, Any]], step: Step, text: str) -> None:
    operation, rows = step
    for row in rows:
        given = {"k": row["k"], "v": row["v"], text: row["text"]}
        if operation == "delete":
            model.pop(row["k"], None)
        elif operation == "patch":
            model[row["k"]] = {**model.get(row["k"], {"k": row["k"], text: None}), "v": row["v"]}
        else:
            model[row["k"]] = given


def _write(writer: TableWriter, step: Step, text: str) -> None:
    operation, rows = step
    if operation == "delete":
        writer.delete([{"k": row["k"]} for row in rows])
    elif operation == "patch":
        writer.patch([{"k": row["k"], "v": row["v"]} for row in rows])
    else:
        getattr(writer, operation)([{"k": row["k"], "v": row["v"], text: row["text"]} for row in rows])


@pytest.mark.parametrize("place", ["disk", "memory"])
@pytest.mark.parametrize("schema", [PLAIN, SCHEMA], ids=["plain", "with a column called as one of the engine's"])
@settings(max_examples=scaled(6), deadline=None)
@given(before=STEPS, flushed=STEPS, tail=STEPS, condition=st.sampled_from(list(CONDITIONS)))
def test_a_read_above_the_base_gives_the_rows_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    place: str,
    schema: pa.Schema,
    before: list[Step],
    flushed: list[Step],
    tail: list[Step],
    condition: str,
) -> None:
    uri = f"memory://streaming-{next(_numbers)}"
    if place == "disk":
        uri = str(tmp_path_factory.mktemp("streaming") / "table")
    table, text = tm.Table.create(uri, schema, primary_key="k"), schema.names[2]
    model: dict[int, dict[str, Any]] = {}
    with table.writer() as writer:
        for number, step in enumerate(before):
            _apply(model, step, text)
            _write(writer, step, text)
            if number % 2:
                _merge(table, writer)
        _merge(table, writer)
        based = dict(model)
        for step in flushed:
            _apply(model, step, text)
            _write(writer, step, text)
        writer.flush()
        committed = dict(model)
        for step in tail:
            _apply(model, step, text)
            _write(writer, step, text)
        opened = tm.Table.open(uri)
        for level, rows in (("snapshot", based), ("committed", committed), ("latest", model)):
            _agrees(opened, level, list(rows.values()), condition, text)


def _merge(table: tm.Table, writer: TableWriter) -> None:
    writer.flush()
    KeyedTable(table.store, ids=SystemIds()).merge_all()
    table.refresh()


def _agrees(table: tm.Table, level: str, rows: list[dict[str, Any]], condition: str, text: str) -> None:
    ordered = sorted(rows, key=lambda row: row["k"])
    met = [row for row in ordered if CONDITIONS[condition](row)]
    found = table.scan(consistency=level).to_arrow().sort_by("k")
    assert found.schema == table.schema
    assert found.to_pylist() == [{"k": row["k"], "v": row["v"], text: row[text]} for row in ordered]
    some = table.scan(["k", text], filter=condition, consistency=level).to_arrow().sort_by("k").to_pylist()
    assert some == [{"k": row["k"], text: row[text]} for row in met]
    query = f"select count(*) as n, sum(v) as v from t where {condition}"
    [answer] = table.sql(query, consistency=level).to_pylist()
    numbers = [row["v"] for row in met if row["v"] is not None]
    assert answer == {"n": len(met), "v": sum(numbers) if numbers else None}
    [count] = table.sql("select count(*) as n from t", consistency=level).to_pylist()
    assert count == {"n": len(rows)}


def test_of_the_base_only_the_keys_of_records_are_held(tmp_path: Path) -> None:
    table = tm.Table.create(str(tmp_path / "table"), PLAIN, primary_key="k")
    with table.writer() as writer:
        writer.put([{"k": k, "v": k, "name": "base"} for k in range(1000)])
        _merge(table, writer)
        writer.patch([{"k": 7, "v": -1}])
        writer.delete([{"k": 8}])
        writer.put([{"k": 2000, "v": -2}])
    opened = tm.Table.open(table.uri)
    snapshot, records, _ = opened._view.records(None, "latest")
    read = plan(TableView(opened.store, snapshot, VerifiedFiles(), records), None, columns=None)
    source = source_of(read, query="a test")
    assert len(source.splits) == len(read.splits) == len(snapshot.splits) > 0
    assert source.rows.sort_by("k").to_pylist() == [
        {"k": 7, "v": -1, "name": "base"},
        {"k": 2000, "v": -2, "name": None},
    ]
    assert source.deleted is not None
    assert source.deleted.rows.column("row").to_pylist() == [7, 8]
    assert opened.sql("select count(*) as n, min(v) as v from t", consistency="latest").to_pylist() == [
        {"n": 1000, "v": -2}
    ]


def test_splits_that_a_condition_rules_out_are_not_read_above_the_base_either() -> None:
    table = tm.Table.create(f"memory://streaming-{next(_numbers)}", PLAIN, primary_key="k")
    with table.writer() as writer:
        for first in range(0, 80, 10):
            writer.put([{"k": k, "v": k} for k in range(first, first + 10)])
            _merge(table, writer)
        writer.put([{"k": 200, "v": 5}])
    assert len(table.snapshot.splits) == 8

    def gets(condition: str, rows: int) -> int:
        opened = tm.Table.open(table.uri)
        before = opened.store.requests["get"]
        assert opened.scan(filter=condition, consistency="latest").to_arrow().num_rows == rows
        return opened.store.requests["get"] - before

    assert gets("v >= 0", 81) - gets("v = 5", 2) == 7
