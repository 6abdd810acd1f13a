"""The rows that a follower of a table reads between two positions do not depend on its step size."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import tidemark as tm
from storage_core.base.errors import InvalidInput, SnapshotExpired
from storage_core.data.formats.keys import version_key
from storage_core.data.rows.schema import CHANGE_TYPE
from storage_core.maintain.collect import advance_boundary
from storage_core.read.follow import BEGINNING, Change, Follower, Limit, Position, Wanted, changed_rows, rows_of

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
HOUR = 3_600_000_000


def table_at(folder: Path, commits: int) -> tm.Table:
    """Make a table of this many appends with four splits each."""
    table = tm.Table.create(str(folder / "t"), SCHEMA, time_column="ts", window="1h")
    for commit in range(commits):
        table.append(part(commit))
    return table


def part(commit: int) -> pa.Table:
    """Return one row for each of four windows."""
    return pa.table(
        {"ts": [window * HOUR for window in range(4)], "n": [10 * commit + each for each in range(4)]}
    ).cast(SCHEMA)


def follower(table: tm.Table, *, as_changes: bool = False) -> Follower:
    return Follower(table.log, table.snapshot.schema, first=table.version, as_changes=as_changes)


def rows_between(following: Follower, start: Position, end: Position) -> list[int]:
    """Return column `n` of the rows that the follower's tasks read between two positions of the table."""
    found: list[int] = []
    for each in following.work(start, end):
        batches = (
            changed_rows(each, with_labels=False) if isinstance(each, Change) else rows_of(each, Wanted(), batch_rows=3)
        )
        found += [n for batch in batches for n in batch.column("n").to_pylist()]
    return found


def numbers(table: tm.Table) -> list[int]:
    return sorted(table.refresh().scan(["n"]).to_arrow().column("n").to_pylist())


@pytest.mark.parametrize("limit", [None, Limit("files", 3), Limit("rows", 10**9)])
def test_every_row_lies_between_two_positions_once(tmp_path: Path, limit: Limit | None) -> None:
    table, random = table_at(tmp_path, 3), Random(7)
    at = BEGINNING
    found: list[int] = []
    steps = 0
    while True:
        end = follower(table).advance(at, limit)  # a new follower each time, as after a restart
        if end == at:
            break
        read = rows_between(follower(table), at, end)
        assert read == rows_between(follower(table), at, end)
        found, at, steps = found + read, end, steps + 1
        if steps < 4:
            table.append(part(10 + steps))
            if random.random() < 0.5:
                table.checkpoint()
    assert sorted(found) == numbers(table)
    assert limit is None or limit.most > 10**6 or steps > 5


def test_what_a_first_batch_reads_is_told_by_its_end(tmp_path: Path) -> None:
    table = table_at(tmp_path, 1)
    began = [(each.advance(BEGINNING), each) for each in (follower(table), follower(table, as_changes=True))]
    assert [end for end, _ in began] == [Position(1, 4, is_base=True), Position(2)]
    table.append(part(1))
    later = [(each.advance(BEGINNING), each) for each in (follower(table), follower(table, as_changes=True))]
    assert [end for end, _ in later] == [Position(2, 8, is_base=True), Position(3)]
    for end, _ in began:
        assert sorted(rows_between(later[0][1], BEGINNING, end)) == ([0, 1, 2, 3] if end.is_base else [])
    empty = tm.Table.create(str(tmp_path / "empty"), SCHEMA)
    assert follower(empty).advance(BEGINNING) == Position(0, is_base=True)
    assert follower(empty).advance(Position(0, is_base=True)) == Position(1)


def test_a_limit_is_kept_and_one_split_is_read_whatever_it_weighs(tmp_path: Path) -> None:
    table = table_at(tmp_path, 2)
    start = Position(table.version, is_base=True)
    assert follower(table).advance(start, Limit("files", 3)) == Position(table.version, 3, is_base=True)
    assert follower(table).advance(start, Limit("bytes", 1)) == Position(table.version, 1, is_base=True)
    assert follower(table).advance(start, Limit("files", 8)) == Position(table.version + 1)
    assert follower(table).advance(start) == Position(table.version + 1)
    assert follower(table).advance(Position(1), Limit("files", 6)) == Position(2, 2)
    assert follower(table).advance(Position(1), last=1) == Position(2)


def test_versions_that_change_no_row_are_passed_over(tmp_path: Path) -> None:
    table = table_at(tmp_path, 2)
    table.alter({"gc.retention": "90d"})
    end = follower(table).advance(Position(2))
    assert end == Position(4)
    assert len(follower(table).work(Position(2), end)) == 1
    assert follower(table).work(Position(3), end) == []


def test_a_version_that_takes_rows_away_is_followed_as_changes_only(tmp_path: Path) -> None:
    table = table_at(tmp_path, 1)
    table.update({"n": 77}, "n = 2")
    table.delete("n = 3")
    start, end = Position(1), Position(4)
    with pytest.raises(InvalidInput, match=r"version 2 changed or removed rows.*option"):
        rows_between(follower(table), start, end)
    counted: Counter[tuple[str, int]] = Counter()
    for each in follower(table, as_changes=True).work(start, end):
        assert isinstance(each, Change)
        for batch in changed_rows(each, with_labels=True):
            counted.update(zip(batch.column(CHANGE_TYPE).to_pylist(), batch.column("n").to_pylist(), strict=True))
    inserted, deleted = (
        Counter({n: many for (kind, n), many in counted.items() if kind == wanted}) for wanted in ("insert", "delete")
    )
    assert sorted((inserted - deleted).elements()) == numbers(table) == [0, 1, 77]


def test_a_table_whose_columns_change_is_followed_by_the_next_query(tmp_path: Path) -> None:
    table = table_at(tmp_path, 1)
    running = follower(table)
    assert running.advance(Position(1)) == Position(2)
    table.add_column("more", pa.string())
    table.append({"n": 99})
    with pytest.raises(InvalidInput, match=r"the columns of the table changed. Start the query again"):
        running.advance(Position(2))
    assert follower(table).advance(Position(1)) == Position(4)
    assert sorted(rows_between(follower(table), Position(1), Position(4))) == [0, 1, 2, 3, 99]


def test_a_version_that_is_collected_before_it_was_read_is_a_named_gap(tmp_path: Path) -> None:
    table = table_at(tmp_path, 3)
    table.checkpoint()
    advance_boundary(table.store, 2, nonce="n")
    table.store.delete([version_key(1)])
    assert follower(table).advance(Position(2)) == Position(4)
    with pytest.raises(SnapshotExpired, match="version 1 is no longer retained and was not read yet"):
        follower(table).advance(Position(1))
