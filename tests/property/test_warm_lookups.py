"""An open table caches the data of its lookups, and gives the same answers as a newly opened table and a dictionary.

Keys are looked up between writes, flushes and merges, and some cached values are evicted for lack of space. The splits
are local or remote, and have several row groups each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.base.clock import SystemIds
from storage_core.split import metadata, read
from storage_core.store.pieces import KeptValues
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled
from tidemark import Table

SCHEMA = (
    pa.schema([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.int64(), nullable=False)])
    .append(pa.field("n", pa.int64()))
    .append(pa.field("text", pa.string()))
)
Key = tuple[int, str]
ALL = [(number, name) for number in (-(2**63), -1, 0, 7, 2**63 - 1) for name in ("", "x", "é", "x" * 40)]
KEYS = st.sampled_from(ALL)
FIELDS = st.fixed_dictionaries({}, optional={"n": st.none() | st.integers(0, 3), "text": st.sampled_from("pqr")})
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "patch", "patch", "delete", "reset"]), KEYS, FIELDS),
        st.tuples(st.sampled_from(["put many", "flush", "flush", "merge", "look"]), KEYS, FIELDS),
    ),
    min_size=4,
    max_size=16,
)

_names = itertools.count()


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 3)


@pytest.mark.parametrize("place", ["local", "memory", "memory, by ranges"])
@pytest.mark.parametrize("kept_bytes", [2**20, 20_000, 0], ids=lambda size: f"{size} bytes kept")
@settings(max_examples=scaled(8), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(STEPS)
def test_lookups_of_an_open_table_are_those_of_a_new_one_and_of_a_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, kept_bytes: int, steps: list[tuple[str, Key, Any]]
) -> None:
    if place == "memory, by ranges":
        monkeypatch.setattr(read, "SMALL_SPLIT_BYTES", 1)
    uri = str(tmp_path / f"t{next(_names)}") if place == "local" else f"memory://warm-lookups-{next(_names)}"
    table = Table.create(uri, SCHEMA, primary_key=["b", "a"])
    opened = Table.open(uri)
    opened._view.kept = KeptValues(kept_bytes)
    model: dict[Key, dict[str, Any]] = {}
    with table.writer() as writer:
        for name, key, fields in steps:
            _act(table, writer, model, (name, key, fields))
            if name == "look":
                _require_model(opened, model, key)
        _require_model(opened, model, (7, "x"))
        _require_model(Table.open(uri), model, (7, "x"))
        _require_model(opened, model, (7, "x"))


def _act(table: Table, writer: Any, model: dict[Key, dict[str, Any]], step: tuple[str, Key, Any]) -> None:
    name, key, fields = step
    row = {"b": key[0], "a": key[1], **fields}
    whole = {"n": None, "text": None, **row}
    actions: dict[str, Callable[[], object]] = {
        "put": lambda: (writer.put([row]), model.update({key: whole})),
        "reset": lambda: (writer.reset([row]), model.update({key: whole})),
        "patch": lambda: (writer.patch([row]), model.update({key: {**whole, **model.get(key, {}), **row}})),
        "delete": lambda: (writer.delete([key]), model.pop(key, None)),
        "put many": lambda: (
            writer.put([{"b": each[0], "a": each[1], **fields} for each in ALL]),
            model.update({each: {"n": None, "text": None, "b": each[0], "a": each[1], **fields} for each in ALL}),
        ),
        "flush": writer.flush,
        "merge": lambda: KeyedTable(table.store, ids=SystemIds()).merge(),
    }
    actions.get(name, lambda: None)()


def _require_model(opened: Table, model: dict[Key, dict[str, Any]], key: Key) -> None:
    assert opened.get(key) == model.get(key)
    assert opened.get_many([*ALL, (3, "none")]) == [*map(model.get, ALL), None]
    assert opened.get((3, "none")) is None
