"""Bitmap indexes save requests and bytes in a filtered read, and `explain` predicts this read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from storage_core.index import segment_merge
from storage_core.read import bitmap
from storage_core.split import metadata
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.resolve import open_store
from tests.support.copies import copy_into, copy_of
from tests.support.deleted_rows import delete_where
from tests.support.s3_server import S3Server
from tests.support.upkeep import catch_up, compact
from tidemark import Table

ROWS, SPLITS = 6_000, 4
RARE = "host 1 that is rare"
INDEXES = [
    {"name": "hosts", "kind": "bitmap", "columns": ["host"]},
    {"name": "codes", "kind": "bitmap", "columns": ["code", "n"]},
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
]
STEP = "bitmap index hosts"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give small splits several row groups, read them by ranges, and assume that requests are cheap."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 1_000)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**13)
    monkeypatch.setattr(bitmap, "REQUEST_COST_BYTES", 2**11)


@pytest.fixture(params=["memory", "s3"])
def uri(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return f"memory://{uuid4()}"
    server: S3Server = request.getfixturevalue("s3_server")
    return server.uri(f"bitmaps/{uuid4()}")


def batch(split: int) -> pa.Table:
    """Return the rows of one split.

    In the third split, two rows have the rare host. The rows with the rare host are in the second and in the fifth row
    group. In the fourth split one row has no host.
    """
    random = np.random.default_rng(split)
    hosts = np.array([f"host {each}" for each in range(50)], object)[random.integers(0, 50, ROWS)]
    if split == 2:
        hosts[[1_500, 4_200]] = RARE
    if split == 3:
        hosts[2_500] = None
    columns = {
        "n": np.arange(split * ROWS, (split + 1) * ROWS),
        "host": pa.array(hosts, pa.string()),
        "code": pa.array(random.integers(0, 5, ROWS), pa.int32()),
        "text": [f"line {each}" for each in range(ROWS)],
    }
    return pa.table({**columns, **{f"c{each}": random.integers(0, 2**62, ROWS) for each in range(12)}})


def filled(uri: str, *, splits: int = SPLITS, indexed: bool = True) -> Table:
    copy_into(open_store(uri), _built(splits, indexed=indexed, factor=segment_merge.FACTOR))
    return Table.open(uri)


@cache
def _built(splits: int, *, indexed: bool, factor: int) -> MemoryStore:
    """Return the objects of a table with this many splits, built once per set of arguments.

    `factor` is the merge factor of segments. A test changes this factor, so the factor is part of the cache key.
    """
    assert factor == segment_merge.FACTOR
    made = Table.create(f"memory://{uuid4()}", batch(0).schema, indexes=INDEXES)
    for split in range(splits):
        made.append(batch(split))
    if indexed:
        catch_up(made)
    return copy_of(made.store)


def steps_of(table: Table, condition: str, columns: Sequence[str] | None = None) -> dict[str, tuple[int, int, str]]:
    plan = table.scan(columns, filter=condition).explain()
    return {each.name: (each.splits, each.row_groups, each.note) for each in plan.steps}


# Each filter has four numbers. The first two numbers count the remaining splits and row groups. The last two numbers
# count the splits and row groups that the index prunes.
FILTERS = {
    f"host = '{RARE}'": (1, 2, 3, 4),
    f"host in ('{RARE}', 'nowhere')": (1, 2, 3, 4),
    "host = 'host 3 that is nowhere'": (0, 0, 4, 0),
    "host is null": (1, 1, 0, 5),  # for each split without a null, the log contains the null count 0
    f"host between '{RARE}' and '{RARE} too'": (1, 2, 3, 4),
    f"host = '{RARE}' and c0 % 2 = 0": (1, 2, 3, 4),
    f"host = '{RARE}' or host is null": (2, 3, 2, 9),
    "host <> 'host 1'": (4, 24, 0, 0),
    f"host = '{RARE}' or c0 % 2 = 0": (4, 24, 0, 0),
}


@pytest.mark.parametrize("condition", FILTERS)
def test_splits_and_row_groups_without_a_matching_row_are_left_out_as_foretold(uri: str, condition: str) -> None:
    table = filled(uri)
    splits, groups, splits_out, groups_out = FILTERS[condition]
    plan = table.scan(filter=condition).explain()
    assert table.scan(filter=condition).explain() == plan  # explain caches nothing
    assert (len(plan.splits), plan["t"].row_groups) == (splits, groups)
    own = [each for each in plan.steps if each.name == STEP]
    assert [(each.splits, each.row_groups) for each in own] in ([(splits_out, groups_out)], [])
    assert bool(own) == ("or c0" not in condition)
    before, read = table.store.requests["get"], table.store.bytes_read
    found = table.sql(f"select n from t where {condition}").num_rows
    everything = table.scan(filter=condition).to_arrow()
    assert everything.num_rows == found
    table = Table.open(uri)
    before, read = table.store.requests["get"], table.store.bytes_read
    assert table.scan(filter=condition).to_arrow().num_rows == found
    assert (table.store.requests["get"] - before, table.store.bytes_read - read) == (plan.requests, plan.read_bytes)


def test_a_rare_value_takes_a_fraction_of_the_requests_and_bytes_that_it_takes_without(uri: str) -> None:
    indexed = filled(uri)
    plain = filled(f"memory://{uuid4()}", indexed=False)
    taken = []
    for table in (indexed, plain):
        requests, read = table.store.requests["get"], table.store.bytes_read
        assert table.scan(filter=f"host = '{RARE}'").to_arrow().num_rows == 2
        taken.append((table.store.requests["get"] - requests, table.store.bytes_read - read))
    assert taken[0][0] < taken[1][0] / 2
    assert taken[0][1] < taken[1][1] / 2
    requests = indexed.store.requests["get"]
    assert indexed.sql("select n from t where host = 'host 3 that is nowhere'").num_rows == 0
    assert indexed.store.requests["get"] == requests  # the values are cached


def test_deleted_rows_leave_no_match(uri: str) -> None:
    table = filled(uri)
    delete_where(table.log, lambda row: row["host"] == RARE)
    plan = table.refresh().scan(filter=f"host = '{RARE}'").explain()
    assert plan.splits == ()
    assert table.scan(filter=f"host = '{RARE}'").to_arrow().num_rows == 0


def test_what_no_segment_covers_is_read_and_the_plan_says_so(uri: str) -> None:
    table = filled(uri, splits=2)
    table.append(batch(2))
    assert steps_of(table, f"host = '{RARE}'")[STEP] == (2, 0, "not used for 1 split: no segment covers these splits")
    assert table.scan(["n"], filter=f"host = '{RARE}'").to_arrow().num_rows == 2
    compact(table)
    assert table.refresh().scan(["n"], filter=f"host = '{RARE}'").to_arrow().num_rows == 2


def test_segments_of_what_was_compacted_leave_out_as_much_as_foretold(uri: str) -> None:
    table = filled(uri, splits=3)
    compact(table)
    table.append(batch(3))  # no segment covers this split
    for splits, groups, left_out in ((2, 8, 16), (1, 8, 16)):
        table = Table.open(uri)
        plan = table.scan(filter=f"host = '{RARE}'").explain()
        assert (len(plan.splits), plan["t"].row_groups) == (splits, groups)
        assert [(each.splits, each.row_groups) for each in plan.steps if each.name == STEP] == [(0, left_out)]
        requests, read = table.store.requests["get"], table.store.bytes_read
        assert table.scan(filter=f"host = '{RARE}'").to_arrow().num_rows == 2
        taken = (table.store.requests["get"] - requests, table.store.bytes_read - read)
        assert taken == (plan.requests, plan.read_bytes)
        compact(table)  # the new split also contains rows without a segment
    catch_up(table)
    assert any(each.origins for each in table.refresh().snapshot.segments.values())
    table = Table.open(uri)
    assert table.scan(filter=f"host = '{RARE}'").explain()["t"].row_groups == 2
    assert table.scan(filter=f"host = '{RARE}'").to_arrow().num_rows == 2
    hits = table.search("line", index="words", columns=["n"], limit=3, filter=f"host = '{RARE}'")
    assert sorted(hits.column("n").to_pylist()) == [2 * ROWS + 1_500, 2 * ROWS + 4_200]


def test_merged_segments_leave_out_as_much_as_foretold(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_merge, "FACTOR", 2)
    monkeypatch.setattr(bitmap, "PAYS", 0.5)
    table = filled(f"{uri}-merged")
    [segment] = [each for each in table.snapshot.segments.values() if each.index == "hosts"]
    assert segment.coveredRows == (ROWS,) * SPLITS
    for round_ in range(3):
        plan = table.scan(filter=f"host = '{RARE}'").explain()
        assert plan["t"].row_groups == 2, round_
        requests, read = table.store.requests["get"], table.store.bytes_read
        assert table.scan(filter=f"host = '{RARE}'").to_arrow().num_rows == 2
        taken = (table.store.requests["get"] - requests, table.store.bytes_read - read)
        assert taken == (plan.requests, plan.read_bytes)
        assert table.sql(f"select n from t where host = '{RARE}' or host is null").num_rows == 3
        table.append(batch(7 + round_))  # some compacted rows have no segment
        compact(table)
        catch_up(table)
        table = Table.open(table.uri)


def test_a_translation_that_is_damaged_is_a_warning_and_its_split_is_read(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = filled(uri, splits=3)
    compact(table)
    [path] = table.refresh().snapshot.translations
    data = bytearray(table.store.get(path).data)
    data[len(data) // 2] ^= 1
    table.store.put(path, bytes(data), Overwrite())
    assert table.scan(filter=f"host = '{RARE}'").to_arrow().num_rows == 2
    assert path in caplog.text


def test_an_index_is_not_asked_where_that_costs_much_of_what_it_may_spare(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bitmap, "PAYS", 100)
    table = filled(uri)
    before = dict(table.store.requests)
    dear = "not used for 4 splits: the index would cost more than it saves"
    assert steps_of(table, f"host = '{RARE}'", ["n"])[STEP] == (0, 0, dear)
    assert f"  {STEP} leaves out nothing; {dear}" in str(table.scan(["n"], filter=f"host = '{RARE}'").explain())
    table.scan(["n"], filter=f"host = '{RARE}'").to_arrow()
    assert table.store.requests["get"] - before["get"] < 40


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_segment_that_is_damaged_or_gone_is_a_warning_and_its_split_is_read(
    uri: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = filled(uri)
    paths = [path for path, each in table.snapshot.segments.items() if each.index == "hosts"]
    for path in paths:
        data = bytearray(table.store.get(path).data)
        data[-100] ^= 1
        if damage == "gone":
            table.store.delete([path])
        else:
            table.store.put(path, bytes(data), Overwrite())
    with caplog.at_level(logging.WARNING):
        assert table.scan(filter=f"host = '{RARE}'").to_arrow().num_rows == 2
        plan = steps_of(table, f"host = '{RARE}'")
    assert all(path in caplog.text for path in paths)
    assert plan[STEP] == (0, 0, "not used for 4 splits: the segments of these splits are damaged or missing")


def test_a_bitmap_that_is_damaged_is_found_where_it_is_asked_for(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    table = filled(uri)
    expected = sum(batch(each).column("host").to_pylist().count("host 3") for each in range(SPLITS))
    for path, segment in table.snapshot.segments.items():
        if segment.index == "hosts":
            data = bytearray(table.store.get(path).data)
            data[8:2_000] = bytes(each ^ 1 for each in data[8:2_000])
            table.store.put(path, bytes(data), Overwrite())
    assert table.scan(filter="host = 'host 3'").to_arrow().num_rows == expected
    assert "expected xxh3-64" in caplog.text


def test_indexes_are_asked_one_after_the_other_and_each_step_has_its_own(uri: str) -> None:
    table = filled(uri)
    code = batch(2).column("code").to_pylist()
    absent = ({*range(5)} - {code[1_500], code[4_200]}).pop()
    for wanted, left_out in ((code[1_500], 0), (absent, 1)):
        found = steps_of(table, f"host = '{RARE}' and code = {wanted}")
        assert found[STEP][0] == 3
        assert found["bitmap index codes"] == (left_out, 0, "")


def test_a_cache_on_disk_that_is_damaged_changes_no_answer(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(tmp_path / "cache"))
    uri = s3_server.uri(f"bitmaps/{uuid4()}")
    filled(uri).scan(filter=f"host = '{RARE}'").to_arrow()
    for path in (tmp_path / "cache").rglob("*.split"):
        data = bytearray(path.read_bytes())
        path.write_bytes(bytes(each ^ 1 for each in data))
    assert Table.open(uri).scan(filter=f"host = '{RARE}'").to_arrow().num_rows == 2


def test_the_rows_of_hits_are_not_read_for_a_filter_that_bitmaps_answer(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bitmap, "PAYS", 1)
    table = filled(uri)
    search = partial(table.search, "line", index="words", columns=["n"], limit=3)
    search()
    before = table.store.requests["get"]
    found = search(filter="host = 'host 3 that is nowhere'")
    assert (found.num_rows, table.store.requests["get"] - before) == (0, SPLITS)  # the values of the segments
    before = table.store.requests["get"]
    found = search(filter=f"host = '{RARE}'")
    assert sorted(found.column("n").to_pylist()) == [2 * ROWS + 1_500, 2 * ROWS + 4_200]
    assert table.store.requests["get"] - before <= 4  # one split: its footer, and the row groups with the rows


def test_on_a_local_disk_whole_splits_are_left_out_where_enough_is_read_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(str(tmp_path / "t"))
    assert steps_of(table, f"host = '{RARE}'")[STEP][0] == 0
    monkeypatch.setattr(bitmap, "LOCAL_BYTES", 2**18)
    assert steps_of(table, f"host = '{RARE}'")[STEP] == (3, 0, "")
    assert steps_of(table, f"host = '{RARE}'", ["n"])[STEP][0] == 0
    assert table.scan(["n"], filter=f"host = '{RARE}'").to_arrow().num_rows == 2
    assert table.scan(filter=f"host = '{RARE}'").to_arrow().num_rows == 2
