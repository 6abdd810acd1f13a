"""A `delete` runs concurrently with each Spark job that changes splits. No deleted row returns, and no row is doubled.

In each test, the tasks of a job finish first. Then two concurrent deletes commit. Each of the two deletes matches rows
that the other delete also matches. The job commits last.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import tidemark as tm
from jobs.spark.spark import Spark
from storage_core.change.declaration import load
from storage_core.data.steps import RunOptions, options_for
from storage_core.log.job_run import Answer, Item, run
from storage_core.maintain.audit import audit

pytestmark = pytest.mark.spark

MASTER = "local[2]"
ROWS = 300
DECLARATION = """
name: events
uri: {root}/events
columns: {{at: timestamp!, n: long!, kind: string}}
time_column: at
window: 15m
indexes: [{{name: by_kind, kind: bitmap, columns: [kind]}}]
{more}
"""


class Meanwhile(Spark):
    """A launcher that uses the running Spark session, and runs an operation once before a job commits."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(MASTER)
        self._acts = [act]

    def map(
        self, execute: Callable[[Item], Answer], items: Sequence[Item], *, input_bytes: float = math.inf
    ) -> list[Answer]:
        answers = super().map(execute, items, input_bytes=input_bytes)
        while self._acts:
            self._acts.pop()()
        return answers


def _row(n: int) -> dict[str, object]:
    return {"at": f"2024-02-29T{10 + n // 60 % 2:02}:{n % 60:02}:00Z", "n": n, "kind": f"k{n % 5}"}


def _declared(root: Path, more: str) -> tuple[tm.Table, Callable[[str], RunOptions]]:
    path = root / "events.yaml"
    path.write_text(DECLARATION.format(root=root, more=more.format(root=root)), encoding="utf-8")
    (root / "landing").mkdir()
    table = tm.Table.declare(load(path))
    return table, partial(options_for, table_uri=table.uri, declaration=str(path), master=MASTER)


def _land(root: Path, numbers: Sequence[int]) -> None:
    lines = "".join(f"{json.dumps(_row(n))}\n" for n in numbers)
    (root / "landing" / f"{numbers[0]}.ndjson").write_text(lines, encoding="utf-8")


def _deleted(uri: str, *, gone: int) -> None:
    """Run two concurrent deletes and check that exactly one of them deletes each row."""

    def delete(condition: str) -> int:
        return tm.Table.open(uri).delete(condition).rows

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(delete, ["n % 7 = 3", "n % 7 = 3 or n < 20"])) == gone


def _left() -> list[int]:
    return [n for n in range(ROWS) if n % 7 != 3 and n >= 20]


def _require(table: tm.Table, numbers: Sequence[int]) -> None:
    found = tm.Table.open(table.uri)
    assert sorted(found.scan(["n"]).to_arrow().column("n").to_pylist()) == sorted(numbers)
    assert found.sql("select count(*) as n from t where kind = 'k1'").to_pylist() == [
        {"n": sum(n % 5 == 1 for n in numbers)}
    ]
    assert found.snapshot.rows == len(numbers)
    assert audit(found.store, found.snapshot).violations == ()


@pytest.mark.parametrize("job", ["compact", "catch_up", "ingest"])
def test_two_deletes_beside_a_job_are_neither_undone_nor_done_twice(tmp_path: Path, spark: Spark, job: str) -> None:
    table, of = _declared(tmp_path, "landing: {{uri: {root}/landing, format: ndjson}}")
    for first in range(0, ROWS, 100):
        _land(tmp_path, range(first, first + 100))
        assert run(of("ingest"), spark).status == "committed"
    left = _left()
    if job == "ingest":
        _land(tmp_path, range(ROWS, ROWS + 100))
        left += [*range(ROWS, ROWS + 100)]
    assert run(of(job), Meanwhile(partial(_deleted, table.uri, gone=ROWS - len(_left())))).status == "committed"
    _require(table, left)
    for after in ("catch_up", "compact"):
        run(of(after), spark)
        _require(table, left)


def test_two_deletes_beside_a_merge_are_neither_undone_nor_done_twice(tmp_path: Path, spark: Spark) -> None:
    table, of = _declared(tmp_path, "primary_key: [n, at]")
    for first in range(0, ROWS, 150):
        with table.refresh().writer() as writer:
            writer.put([_typed(n) for n in range(first, first + 150)])
            writer.flush()
        if first == 0:
            assert run(of("merge"), spark).status == "committed"
    assert run(of("merge"), Meanwhile(partial(_deleted, table.uri, gone=ROWS - len(_left())))).status == "committed"
    while run(of("merge"), spark).status == "committed":
        pass
    _require(table, _left())


def _typed(n: int) -> dict[str, object]:
    return {**_row(n), "at": dt.datetime.fromisoformat(str(_row(n)["at"]))}
