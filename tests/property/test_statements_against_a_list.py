"""Any course of statements, appends, compactions, catch-ups and restores: the table is what a plain list of rows is.

A statement's condition means to it what DuckDB says of the rows of the list, however it is pruned, told by an index or
known from statistics. Every version stays what it was, and changes lead from each to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import isnan

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.dml.assignments import expr
from storage_core.history.restore import restore
from storage_core.objectstore.memory import MemoryStore
from storage_core.read.changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, INSERT
from storage_core.settings.index import IndexDefinition
from tests.support import upkeep
from tests.support.changed_rows import (
    CONFIG,
    SCHEMA,
    Kept,
    created,
    index,
    kept,
    opened,
    require_sound,
    row,
    rows_of,
)
from tests.support.keyed_table import Row
from tests.support.scale import scaled

INDEXES = (
    IndexDefinition(name="hosts", kind="bitmap", columns=("host", "n")),
    IndexDefinition(name="words", kind="fulltext", columns=("host",)),
)
SETTINGS = {
    "small splits": replace(CONFIG, target_split_bytes=1, indexes=INDEXES),
    "no order": replace(CONFIG, sort_schema=None, window_seconds=None, time_column=None),
}

numbers = st.integers(0, 12)
rows = st.builds(
    row,
    numbers,
    st.sampled_from([None, "a", "b", "c"]),
    hour=st.integers(0, 2),
    x=st.sampled_from([None, 0.0, -0.0, 1.5, float("nan"), float("inf")]),
)
leaves = st.one_of(
    st.builds("n {} {}".format, st.sampled_from(["=", "<", ">=", "<>"]), numbers),
    st.builds("n between {} and {}".format, numbers, numbers),
    st.builds("host {} '{}'".format, st.sampled_from(["=", "<", ">", "<>"]), st.sampled_from("abd")),
    st.builds("x {} {}".format, st.sampled_from(["=", "<", ">="]), st.sampled_from(["0.0", "1.5", "'nan'::double"])),
    st.builds("\"at\" < timestamptz '2024-02-29 1{}:00:00+00'".format, st.integers(0, 3)),
    st.sampled_from(
        [
            "host is null",
            "x is not null",
            "true",
            "false",
            "n % 3 = 1",
            "host in ('a', 'c')",
            "n in (1, 2, 3, 4)",
            "length(host) > 0",
        ]
    ),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=4,
)
sets = st.sampled_from(
    [
        {"host": "set"},
        {"n": expr("n + 1")},
        {"n": expr("case when host = 'a' then 0 else n * 2 end"), "host": expr("host || host")},
        {"x": None, "host": expr("null")},
        {"at": expr('"at" + interval 1 hour')},
    ]
)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(rows, min_size=1, max_size=8)),
    st.tuples(st.just("append"), st.lists(rows, min_size=1, max_size=8)),
    st.tuples(st.just("delete"), conditions),
    st.tuples(st.just("update"), sets, conditions),
    st.tuples(st.just("overwrite"), st.lists(rows, max_size=4), conditions),
    st.tuples(st.just("upsert"), st.lists(rows, max_size=4), st.sampled_from([("n",), ("host", "n"), ("x",)])),
    st.tuples(st.just("compact")),
    st.tuples(st.just("index")),
    st.tuples(st.just("restore"), st.integers(0, 6)),
)


class Course:
    """A table and a list of rows that go through the same steps."""

    def __init__(self, name: str) -> None:
        self.store = MemoryStore("statements")
        self.table = created(self.store, SETTINGS[name])
        self.rows: list[Row] = []
        self.versions: dict[int, list[Row]] = {0: []}

    def take(self, step: tuple[object, ...]) -> None:
        before = self.table.log.snapshot()
        done = getattr(self, f"_{step[0]}")(*step[1:])
        after = self.table.log.snapshot()
        if done is not None:
            changed, added = done
            assert (changed.rows, changed.rows_added) == (self.touched, added)
            assert (changed.commit_id == "") == (after.version == before.version)
            assert after.version == changed.version
            assert after.version <= before.version + 1
        self.versions |= dict.fromkeys(range(before.version + 1, after.version + 1), self.rows)
        assert rows_of(self.store) == kept(self.rows)
        assert after.rows == len(self.rows)
        assert all(add.visible_rows for add in after.splits.values()), "a split without a row leaves"

    def _append(self, added: list[Row]) -> None:
        self.table.append(added)
        self.rows = [*self.rows, *added]

    def _delete(self, condition: str) -> object:
        hit = self._hit(self.rows, condition)
        self.rows = _without(self.rows, hit)
        return self.table.delete(condition), 0

    def _update(self, given: dict[str, object], condition: str) -> object:
        hit = self._hit(self.rows, condition)
        new = [_set(self.rows[place], given) for place in hit]
        self.rows = [*_without(self.rows, hit), *new]
        return self.table.update(given, condition), len(new)

    def _overwrite(self, added: list[Row], condition: str) -> object:
        fitting = [added[place] for place in self._hit(added, condition)]
        hit = self._hit(self.rows, condition)
        self.rows = [*_without(self.rows, hit), *fitting]
        return self.table.overwrite(fitting, condition), len(fitting)

    def _upsert(self, added: list[Row], on: tuple[str, ...]) -> object:
        new = {tuple(_key(each[name]) for name in on): each for each in added if None not in map(each.get, on)}
        hit = [place for place, each in enumerate(self.rows) if tuple(_key(each[name]) for name in on) in new]
        self.touched = len(hit)
        self.rows = [*_without(self.rows, hit), *new.values()]
        return self.table.upsert([*new.values()], on=on), len(new)

    def _compact(self) -> None:
        upkeep.compact(self.table)

    def _index(self) -> None:
        index(self.table)

    def _restore(self, back: int) -> None:
        versions = sorted(self.versions)
        version = versions[max(0, len(versions) - 1 - back)]
        restore(self.table.log, self.table.log.snapshot(version=version))
        self.rows = self.versions[version]

    def _hit(self, rows: Sequence[Row], condition: str) -> list[int]:
        self.touched = 0
        t = pa.Table.from_pylist([*rows], schema=SCHEMA).append_column("place", pa.array(range(len(rows)), pa.int64()))
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", t)
        found = [
            place for (place,) in connection.execute(f"SELECT place FROM t WHERE {condition}").fetchall()
        ]  # a test's own
        self.touched = len(found)
        return found


def _key(value: object) -> object:
    return "nan" if isinstance(value, float) and isnan(value) else value


def _without(rows: Sequence[Row], hit: Sequence[int]) -> list[Row]:
    gone = {*hit}
    return [each for place, each in enumerate(rows) if place not in gone]


def _set(each: Row, given: dict[str, object]) -> Row:
    t = pa.Table.from_pylist([each], schema=SCHEMA)
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("t", t)
    found: dict[str, object] = {}
    for name, value in given.items():
        sql = getattr(value, "sql", None)
        found[name] = value if sql is None else connection.execute(f"SELECT {sql} FROM t").fetchall()[0][0]
    return {**each, **found}


@settings(max_examples=scaled(40), deadline=None)
@given(st.sampled_from([*SETTINGS]), st.lists(steps, min_size=1, max_size=10))
def test_a_table_is_what_its_statements_make_of_a_list_of_rows(name: str, taken: list[tuple[object, ...]]) -> None:
    course = Course(name)
    for step in taken:
        course.take(step)
    for version, rows in course.versions.items():
        assert rows_of(course.store, version) == kept(rows), "an older version shows what it held"
    _require_changes(course)
    index(course.table)
    assert rows_of(course.store) == kept(course.rows)
    require_sound(course.store)


def _require_changes(course: Course) -> None:
    table = opened(course.store, 70)
    versions = sorted(course.versions)
    for before, after in pairwise(versions):
        rows: Counter[Kept] = kept(course.versions[before])
        for each in table.changes(before, after).read_all().to_pylist():
            sign = 1 if each.pop(CHANGE_TYPE) == INSERT else -1
            del each[COMMIT_VERSION], each[COMMIT_TIMESTAMP]
            (key,) = kept([each])
            rows[key] += sign
        assert +rows == kept(course.versions[after])
        assert not -rows
