"""Every read returns what DuckDB returns for the plain rows: at every level, for any location and cache state.

Reads during writes and maintenance are in `tests/chaos/test_reads_during_upkeep.py`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from storage_core.engine.session import session
from storage_core.read import fetching
from storage_core.split import metadata, read
from storage_core.write.region.router import TableWriter
from tests.integration.cache_reader import DAMAGES
from tests.support import upkeep
from tests.support.elsewhere import open_elsewhere
from tests.support.s3_server import S3Server
from tests.support.scale import scaled
from tidemark import Table

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("f", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("ts", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("d", pa.decimal128(9, 2)),
        pa.field("b", pa.bool_()),
        pa.field("pair", pa.struct([("n", pa.int64()), ("f", pa.float64())])),
        pa.field("l", pa.list_(pa.float32())),
    ]
)
REGIONS = [{"transform": "bucket", "source": "k", "n": 3}]
LEVELS = ("snapshot", "committed", "latest")
START = dt.datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC"))  # PyArrow returns times with this time zone class
FLOAT = st.sampled_from([math.nan, 20.5, -0.0, 0.0, 21.0, math.inf, -math.inf])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-1, 3),
    "f": FLOAT,
    "s": st.sampled_from(["", "a", "ab", "b", "a" * 40]),
    "ts": st.sampled_from([0, 1, 30, 60, -1]).map(lambda minutes: START + dt.timedelta(minutes=minutes)),
    "day": st.sampled_from([0, 1, -1]).map(lambda days: START.date() + dt.timedelta(days=days)),
    "d": st.sampled_from([Decimal("-1.10"), Decimal("0.00"), Decimal("1.05")]),
    "b": st.booleans(),
    "pair": st.fixed_dictionaries({"n": st.none() | st.integers(0, 2), "f": FLOAT}),
    "l": st.lists(FLOAT, max_size=2),
}
KEY = st.integers(0, 15)
FIELDS = st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in VALUES.items()})
ROWS = st.lists(st.tuples(KEY, FIELDS), min_size=1, max_size=6)
WRITES = ("put", "put", "put", "patch", "reset", "delete")
STEPS = st.lists(
    st.tuples(st.sampled_from([*WRITES, "flush", "flush", "merge", "compact", "sort", "checkpoint"]), ROWS),
    min_size=6,
    max_size=14,
)
ATOMS = st.sampled_from(
    [
        *("n = 1", "n in (1, 3)", "n between 0 and 2", "n is null", "n <> 2"),
        *("f > 20.5", "f = 'nan'", "isnan(f)", "f <= 0", "f is not null"),
        *("s like 'a%'", "s in ('', 'ab')", "starts_with(s, 'b')", "s is null", "s > 'a'"),
        *("ts >= timestamptz '2024-01-01 00:30:00+00'", "ts is null", "day = date '2024-01-01'", "d < 1.05"),
        *("b", "not b", "pair.n = 1", "pair is null", "pair.f > 20", "l[1] > 1"),
        *("k = 3", "k in (1, 5, 8)", "k >= 6", "k % 2 = 0"),
    ]
)
CONDITIONS = st.recursive(
    ATOMS,
    lambda parts: (
        st.tuples(parts, st.sampled_from(["and", "or"]), parts).map(lambda each: f"({each[0]}) {each[1]} ({each[2]})")
        | parts.map(lambda each: f"not ({each})")
    ),
    max_leaves=3,
)
_names = itertools.count()

Rows = dict[int, dict[str, Any]]
Spoil = Callable[[Path, random.Random], None]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small splits several row groups, and read them by ranges. Columns of the condition are read first."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 3)
    monkeypatch.setattr(read, "SMALL_SPLIT_BYTES", 1)
    monkeypatch.setattr(fetching, "OTHER_BYTES", 1)


@dataclass
class Model:
    """A table and its expected rows at every level, as dictionaries."""

    table: Table
    writer: TableWriter
    latest: Rows = field(default_factory=dict)
    committed: Rows = field(default_factory=dict)
    snapshot: Rows = field(default_factory=dict)

    def step(self, name: str, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        if name in WRITES:
            for key, fields in rows:
                self._write(name, key, fields)
            return
        if name in ("flush", "merge"):
            self.writer.flush()
            self.committed = dict(self.latest)
        if name == "merge":
            while upkeep.merge(self.table):
                pass
            self.snapshot = dict(self.committed)
        others: dict[str, Callable[[Table], object]] = {
            "compact": upkeep.compact,
            "sort": upkeep.sort,
            "checkpoint": upkeep.checkpoint,
        }
        if name in others:
            others[name](self.table)

    def _write(self, name: str, key: int, fields: Mapping[str, Any]) -> None:
        empty = dict.fromkeys(SCHEMA.names)
        if name == "delete":
            self.writer.delete([{"k": key}])
            self.latest.pop(key, None)
            return
        getattr(self.writer, name)([{"k": key, **fields}])
        before = self.latest.get(key, empty) if name == "patch" else empty
        [self.latest[key]] = pa.Table.from_pylist([{**before, "k": key, **fields}], schema=SCHEMA).to_pylist()

    def require_answers(self, opened: Table, conditions: Sequence[str]) -> None:
        """Read at every level, by `sql` and by `scan`, and compare with DuckDB."""
        for level in LEVELS:
            rows: Rows = getattr(self, level)
            connection = session()
            connection.from_arrow(pa.Table.from_pylist([*rows.values()], schema=SCHEMA)).create("t")
            for condition in conditions:
                for query in (
                    f"select * from t where {condition}",
                    f"select count(*), count(n), min(k), max(s), sum(d) from t where {condition}",
                    f"select s, count(*) from t where {condition} group by s",
                ):
                    expected = texts(connection.sql(query).to_arrow_table())
                    assert texts(opened.sql(query, consistency=level).to_arrow()) == expected, (level, query)
                for columns in (None, ["f", "k"]):
                    expected = texts(
                        connection.sql(f"select {columns_of(columns)} from t where {condition}").to_arrow_table()
                    )
                    scan = opened.scan(columns, filter=condition, consistency=level)
                    assert texts(scan.to_arrow()) == expected, (level, condition, columns)
            assert texts(opened.scan(consistency=level).to_arrow()) == texts(connection.table("t").to_arrow_table())
            found = opened.get_many([*range(16)], consistency=level)
            assert [*map(str, found)] == [str(rows.get(key)) for key in range(16)], level


def columns_of(columns: Sequence[str] | None) -> str:
    return "*" if columns is None else ", ".join(columns)


def texts(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


@pytest.mark.parametrize("place", ["disk", "elsewhere", "s3"])
@settings(
    max_examples=scaled(2),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS, later=STEPS, conditions=st.lists(CONDITIONS, min_size=2, max_size=2), seed=st.integers(0, 2**32))
def test_every_read_equals_the_query_over_plain_rows(
    place: str,
    tmp_path: Path,
    s3_server: S3Server,
    steps: list[tuple[str, Any]],
    later: list[tuple[str, Any]],
    conditions: list[str],
    seed: int,
) -> None:
    assume(seed)  # excludes the simplest example, whose table is almost empty
    folder = tmp_path / f"t{next(_names)}"
    uri = s3_server.uri(f"equal/{uuid4()}") if place == "s3" else str(folder)
    open_table: Callable[[], Table] = (
        partial(open_elsewhere, folder) if place == "elsewhere" else partial(Table.open, uri)
    )
    table = Table.create(uri, SCHEMA, primary_key="k", regions=REGIONS)
    with table.writer() as writer, pytest.MonkeyPatch.context() as patch:
        model = Model(table, writer)
        for name, rows in [*steps, ("merge", []), ("put", [(1, {}), (7, {})])]:
            model.step(name, rows)
        cache = tmp_path / f"cache{next(_names)}"
        patch.setenv("TIDEMARK_CACHE_DIR", str(cache))
        patch.setenv("TIDEMARK_CACHE_MIB", "1")
        chance = random.Random(seed)
        held = open_table()
        rounds: list[tuple[Spoil, bool]] = [(nothing, False), (nothing, True)]  # the first round fills the cache
        if place == "elsewhere":  # local tables have no cache, and S3 has the same cache
            rounds += [(poison, False), (poison, True), (fill, False)]
        for spoil, is_held in rounds:
            spoil(cache, chance)
            model.require_answers(held if is_held else open_table(), conditions)
        if place != "disk":
            assert sum(each.stat().st_size for each in cache.iterdir() if each.is_file()) > 0
        for name, rows in later:
            model.step(name, rows)
        held.refresh()
        model.require_answers(held, conditions)


def nothing(_cache: Path, _chance: random.Random) -> None:
    """Leave the cache as it is."""


def poison(cache: Path, chance: random.Random) -> None:
    """Damage, cut, swap or remove everything in the cache."""
    for file in sorted(cache.glob("*.split")):
        with suppress(FileNotFoundError, FileExistsError):
            chance.choice(DAMAGES)(file, chance)


def fill(cache: Path, _chance: random.Random) -> None:
    """Fill the cache to its limit with other objects."""
    cache.mkdir(exist_ok=True)
    for number in range(16):
        (cache / f"{number:032x}.split").write_bytes(bytes(2**16))
