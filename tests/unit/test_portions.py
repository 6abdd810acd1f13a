"""The read tasks of a scan together return each row once, and each task reads independently."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import tidemark as tm
from storage_core.log.actions import Add
from storage_core.read import follow as divided
from storage_core.read.follow import Wanted, groups, plan_read_tasks, rows_of
from storage_core.read.scan import Scan, wanted_filter
from storage_core.store.resolve import open_store
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("ts", pa.timestamp("us", "UTC")), ("s", pa.string())])
HOUR = 3_600_000_000
CONDITIONS = (None, "id < 40", "s = 'b'", "ts >= '1970-01-01T02:00:00Z'", "id % 3 = 1", "id > 10 and s <> 'a'", "false")


def read(scan: Scan, condition: str | None) -> tuple[list[dict[str, object]], int]:
    """Return the rows of all read tasks and the number of tasks.

    The tasks are read from copies, in random order.
    """
    found = pickle.loads(pickle.dumps(plan_read_tasks(scan)))  # noqa: S301  # as to another process
    Random(1).shuffle(found)
    wanted = Wanted(columns=scan.columns, filter=wanted_filter(condition))
    rows = [row for each in found for batch in rows_of(each, wanted, batch_rows=7) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: tuple(map(str, row.values()))), len(found)


def part(random: Random, count: int) -> pa.Table:
    """Return rows with these ids, over four windows."""
    ids = random.sample(range(100), count)
    texts = [random.choice(["a", "b", None]) for _ in ids]
    return pa.table({"id": ids, "ts": [each % 4 * HOUR for each in ids], "s": texts}).cast(SCHEMA)


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divided, "LEAST_BYTES", 8_000)
    monkeypatch.setattr(divided, "MOST_BYTES", 8_000)


@pytest.mark.parametrize("seed", range(scaled(1)))
def test_the_portions_of_an_append_table_have_the_rows_of_each_version(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    table = tm.Table.create(str(tmp_path / "t"), SCHEMA, time_column="ts", window="1h")
    for _ in range(3):
        table.append(part(random, 30))
        table.delete(f"id % 7 = {random.randrange(7)}")
    for condition in (None, *random.sample(CONDITIONS, 3)):
        at = random.randrange(table.version + 1)
        scan = table.scan(random.choice([None, ["id"], ["s", "id"]]), condition, at=at)
        expected = sorted(scan.to_arrow().to_pylist(), key=lambda row: tuple(map(str, row.values())))
        assert read(scan, condition)[0] == expected


@pytest.mark.parametrize("seed", range(scaled(1)))
def test_the_portions_of_a_keyed_table_have_each_row_once_at_every_level(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    table = tm.Table.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() as writer:
        for step in range(4):
            writer.put(part(random, 30))
            writer.patch([{"id": each, "s": "patched"} for each in random.sample(range(100), 10)])
            writer.delete(random.sample(range(100), 5))
            if step < 3:
                writer.flush()
            if step == 1:
                KeyedTable(open_store(table.uri)).merge_all()
    table.refresh()
    for condition in (None, random.choice(CONDITIONS)):
        for level in ("snapshot", "committed", "latest"):
            scan = table.scan(None, condition, consistency=level)
            rows, _ = read(scan, condition)
            assert rows == sorted(scan.to_arrow().to_pylist(), key=lambda row: tuple(map(str, row.values())))


def test_rows_that_are_not_merged_come_in_portions_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divided, "_NEWER_BYTES", 1_000)
    table = tm.Table.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put(pa.table({"id": range(500), "ts": [0] * 500, "s": ["x"] * 500}).cast(SCHEMA))
    rows, count = read(table.scan(consistency="latest"), None)
    assert (len(rows), count > 5) == (500, True)


def test_splits_are_grouped_by_window_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divided, "LEAST_BYTES", 100)
    monkeypatch.setattr(divided, "MOST_BYTES", 250)
    sizes = [(3, 90), (1, 90), (None, 300), (2, 20), (1, 10), (4, 90)]
    splits = [
        Add(path=f"{n}", size=size, modificationTime=0, windowStart=start) for n, (start, size) in enumerate(sizes)
    ]
    found = [[(each.windowStart, each.size) for each in group] for group in groups(splits)]
    assert found == [[(None, 300)], [(1, 90), (1, 10)], [(2, 20)], [(3, 90)], [(4, 90)]]
    assert len(groups(splits, share=0.1)) == 1
    assert groups([]) == []
