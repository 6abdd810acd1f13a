"""Every public call with any arguments returns a correct result or raises a typed error, and the table stays valid.

The calls are the methods of the classes in `tidemark`, with drawn arguments. One or two valid arguments of a call are
replaced by values that no caller should pass.
"""

from __future__ import annotations

import datetime as dt
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from storage_core.base.clock import SystemClock
from storage_core.base.errors import TidemarkError
from storage_core.maintain.check import fsck
from tests.support.scale import scaled

CALLS = scaled(200)
CALLS_OF_A_TABLE = 50
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("text", pa.string()),
        ("more", pa.struct([("a", pa.int32())])),
    ]
)
INDEXES: list[dict[str, object]] = [
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
    {"name": "ids", "kind": "bitmap", "columns": ["id"]},
]
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 5, 2**63, -(2**70), 10**400, 0.5, math.nan, math.inf, 1 + 2j,
    "", " ", "id", "nope", "\x00", "\ud800", "a" * 10_000, "'; drop table t; --", "../..", "s3://",
    "memory://", "-v", "*",
    b"", b"\xff", bytearray(b"x"), memoryview(b"x"), [], [None], [5], ["id"], ["id", "id"], [[]], [b"\xff"],
    (), ("id", 1),
    {}, {"id": None}, {"id": 1}, {"id": "x"}, {"nope": 1}, {1: 2}, {None: None}, {"more": {"b": 1}}, {"text": b"\xff"},
    {"gc.retention": "foo"}, set(), {1}, frozenset({"id"}), range(3), iter([1]), object(), object, len, Ellipsis,
    dt.date(2026, 1, 1), dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31),  # noqa: DTZ001
    dt.timedelta(-1), dt.timedelta.max, Path(), Path("nowhere"),
    Random(1), pa.table({"id": [1]}), pa.table({"nope": ["x"]}), pa.schema([]), pa.int64(), pa.scalar(1), pa.array([1]),
    tm.col("id"), tm.col("nope") == 1, tm.col("id") == 1, tm.QueryLimits(), ValueError("x"), InterruptedError,
]  # fmt: skip
VALID: Mapping[str, Any] = {
    "rows": [{"id": 1, "text": "a"}],
    "filter": "id < 0",
    "assignments": {"text": "b"},
    "on": "id",
    "settings": {"gc.horizon": "2d"},
    "query": "select count(*) as n from t",
    "key": 1,
    "keys": [1, 2],
    "index": "words",
    "column": "id",
    "columns": ["id"],
    "name": "extra",
    "type": "int",
    "old": "text",
    "new": "words",
    "regions": [],
    "to": 0,
    "start": 0,
    "format": "delta",
    "version": 0,
    "schema": SCHEMA,
}
"""A valid value for each parameter name. Parameters that are not listed keep their default."""
LEFT_OUT = {"declare", "open", "create", "import_from", "clone", "recall"}
"""Calls that the test omits, because they use other locations or measure recall.

The first four calls have their own tests below.
"""
METHODS = sorted(
    name
    for name, method in inspect.getmembers(tm.Table, inspect.isfunction)
    if not name.startswith("_") and name not in LEFT_OUT
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in its own folder, so that a relative location (also with `..`) stays inside it."""
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)


def _table(uri: str, *, keyed: bool) -> tm.Table:
    table = tm.Table.create(
        uri, SCHEMA, time_column=None if keyed else "at", primary_key="id" if keyed else None, indexes=INDEXES
    )
    if keyed:
        with table.writer() as writer:
            writer.put([{"id": 1, "text": "a b"}, {"id": 2, "text": "b"}])
    else:
        table.append([{"id": 1, "text": "a b"}, {"id": 2, "text": "b"}])
    return table


def _hostile(function: Callable[..., object], random: Random) -> dict[str, Any]:
    """Return arguments of a call: valid values, and one or two hostile values."""
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    required = [
        name for name, each in inspect.signature(function).parameters.items()
        if each.default is inspect.Parameter.empty and name != "self"
    ]  # fmt: skip
    given = {name: VALID.get(name, HOSTILE[0]) for name in required}
    for name in random.sample(parameters, min(len(parameters), random.choice((1, 1, 2)))):
        given[name] = _wrapped(random)
    return given


def _wrapped(random: Random) -> Any:
    """Return a hostile value, alone or in a container that a call may expect."""
    value = random.choice(HOSTILE)
    return random.choice(
        (value, value, [value], {"text": value}, [{"id": 7, "text": value}], {"id": value}, {"more": value})
    )


def _consume(answer: object) -> None:
    """Read a lazy result to its end."""
    match answer:
        case tm.Scan() | tm.SqlResult():
            answer.to_arrow()
        case pa.RecordBatchReader():
            answer.read_all()
        case _ if inspect.isgenerator(answer):
            list(answer)
        case AbstractContextManager():
            with answer:
                pass


def _call(function: Callable[..., object], given: Mapping[str, Any]) -> str | None:
    """Return the fault, or None if the call returned a result or raised a typed error with a text."""
    try:
        _consume(function(**given))
    except TidemarkError as error:
        return None if str(error).strip() else f"{given}: {type(error).__name__} without a text"
    except BaseException as error:  # noqa: BLE001  # a panic of Rust is no Exception
        return f"{given}: {type(error).__module__}.{type(error).__name__}: {str(error)[:200]}"
    return None


@pytest.mark.parametrize("keyed", [False, True], ids=["append", "keyed"])
@pytest.mark.parametrize("method", METHODS)
def test_a_call_of_a_table_answers_or_raises_a_typed_error_and_the_table_stays_sound(method: str, keyed: bool) -> None:
    random = Random(f"{method} {keyed}")
    faults = []
    for first in range(0, CALLS, CALLS_OF_A_TABLE):
        table = _table(f"memory://hostile-{method}-{keyed}-{first}", keyed=keyed)
        function = getattr(table, method)
        for _ in range(CALLS_OF_A_TABLE):
            fault = _call(function, _hostile(function, random))
            faults += [] if fault is None else [fault]
        opened = tm.Table.open(table.uri)
        opened.scan(consistency="latest").to_arrow().validate(full=True)
        faults += [str(found) for found in fsck(opened.store, clock=SystemClock(), deep=True).findings]
    assert faults == []


def _elsewhere(place: str) -> Mapping[str, Callable[..., object]]:
    """Return calls that create, open or write something other than the existing table."""
    uri = f"memory://hostile-{place}"
    table = _table(f"{uri}/keyed", keyed=True)
    writer, raw = table.writer(), tm.RawLog([f"{uri}/raw"])
    return {
        "create": lambda **given: tm.Table.create(**{"uri": f"{uri}/new", **given}),
        "import_from": lambda **given: tm.Table.import_from(**{"uri": f"{uri}/imported", "name": "n", **given}),
        "open": lambda **given: tm.Table.open(**{"uri": table.uri, **given}),
        "clone": lambda **given: table.clone(**{"uri": f"{uri}/clone", **given}),
        "put": writer.put,
        "patch": writer.patch,
        "reset": writer.reset,
        "delete": writer.delete,
        "RawLog": lambda **given: closing(tm.RawLog(**given)),
        "append": lambda **given: raw.append(**{"table": "t", **given}),
        "append_many": raw.append_many,
        "col": lambda **given: tm.col(**given) == 1,
        "isin": tm.col("id").isin,
        "equals": lambda value: table.scan(filter=tm.col("id") == value).to_arrow(),
        "expr": tm.expr,
        "QueryLimits": tm.QueryLimits,
        "IndexDefinition": tm.IndexDefinition,
        "LateData": tm.LateData,
        "RawStore": lambda **given: tm.RawLog([tm.RawStore(**given)]).close(),
        "open_catalog": tm.open_catalog,
    }


PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "create": (*inspect.signature(tm.Table.create).parameters,),
    "import_from": ("source", "name", "version", "declaration", "time_column", "window", "sort_schema", "primary_key"),
    "open": ("uri", "at"),
    "clone": ("uri", "version", "deep"),
    **dict.fromkeys(("put", "patch", "reset"), ("rows", "durable")),
    "delete": ("keys", "durable"),
    "RawLog": ("stores", "limits"),
    "append": ("table", "rows", "operation", "key", "unique_by"),
    "append_many": ("records",),
    "col": ("name",),
    "isin": ("values",),
    "equals": ("value",),
    "expr": ("sql",),
    "QueryLimits": ("seconds", "memory_bytes"),
    "IndexDefinition": ("name", "kind", "columns", "options"),
    "LateData": ("policy", "acceptance_ms"),
    "RawStore": ("place", "mandatory"),
    "open_catalog": ("url", "must_exist"),
}
ROW = {"id": 3, "text": "c"}
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "create": {"schema": SCHEMA},
    "import_from": {"source": pa.table({"id": [1]})},
    "put": {"rows": ROW},
    "patch": {"rows": ROW},
    "reset": {"rows": ROW},
    "delete": {"keys": 3},
    "RawLog": {"stores": ["memory://hostile-raw"]},
    "append": {"rows": {"id": 3}},
    "append_many": {"records": []},
    "col": {"name": "id"},
    "expr": {"sql": "id + 1"},
    "IndexDefinition": {"name": "i", "kind": "bitmap", "columns": ("id",)},
    "LateData": {},
    "RawStore": {"place": "memory://hostile-raw"},
    "open_catalog": {"url": "sqlite://"},
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_call_that_makes_opens_or_writes_answers_or_raises_a_typed_error(name: str) -> None:
    random = Random(name)
    faults = []
    for first in range(0, CALLS, CALLS_OF_A_TABLE):
        place = f"{name}-{first}"
        calls = _elsewhere(place)
        for _ in range(CALLS_OF_A_TABLE):
            given = dict(NEEDED.get(name, {}))
            for parameter in random.sample(PARAMETERS[name], min(len(PARAMETERS[name]), random.choice((1, 1, 2)))):
                given[parameter] = _wrapped(random)
            fault = _call(calls[name], given)
            faults += [] if fault is None else [fault]
        tm.Table.open(f"memory://hostile-{place}/keyed").scan(consistency="latest").to_arrow().validate(full=True)
    assert faults == []
