"""Point lookups: the records that `get` finds in generations and splits, and its request limits."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemIds
from storage_core.base.errors import InvalidInput
from storage_core.data.formats import region_manifest
from storage_core.data.formats.region_manifest import Copies
from storage_core.store.contract import Overwrite
from storage_core.write.region import manifest
from tests.support.keyed_table import KeyedTable
from tests.support.region_copies import change_copies, drop_copies
from tidemark import Table

SCHEMA = pa.schema([pa.field("tail", pa.string(), nullable=False), ("seats", pa.int64()), ("model", pa.string())])
GENERATIONS = 5
ROWS = 100
VIEW_GETS = 6
"""GETs of a `latest` read.

Two GETs read the hint and the manifest of the region. The other GETs look for the end of its log and for the next
version.
"""
SMALL_SPLIT_GETS = 1
"""The number of GETs of a split that is read whole, with its footer."""

_names = itertools.count()


def planes(first: int, count: int = ROWS, step: int = 1) -> list[dict[str, object]]:
    return [
        {"tail": f"N{number:05}", "seats": number, "model": "x" * 50} for number in range(first, first + count, step)
    ]


def flush(table: Table, rows: list[dict[str, object]]) -> None:
    with table.writer() as writer:
        writer.put(rows)
        writer.flush()


def merge(table: Table) -> Table:
    assert KeyedTable(table.store, ids=SystemIds()).merge() is not None
    return table.refresh()


@pytest.fixture
def table() -> Table:
    return Table.create(f"memory://point-lookups-{next(_names)}", SCHEMA, primary_key="tail")


def gets(table: Table, key: object, *, consistency: str = "latest") -> tuple[dict[str, object] | None, int]:
    opened = Table.open(table.uri)
    before = opened.store.requests["get"]
    return opened.get(key, consistency=consistency), opened.store.requests["get"] - before


def test_a_generation_is_opened_only_when_bounds_and_filter_admit_the_key(table: Table) -> None:
    for number in range(GENERATIONS):
        flush(table, planes(number * ROWS, step=2))  # the generations have disjoint key ranges with only even numbers
    row = {"tail": "N00204", "seats": 204, "model": "x" * 50}
    assert gets(table, "N00204") == (row, VIEW_GETS + 1)  # one more GET reads the WAL entry of the matching generation
    assert gets(table, "N00205") == (None, VIEW_GETS)  # the key is in a generation's bounds, but not in its filter
    assert gets(table, "N99999") == (None, VIEW_GETS)  # the bounds of all generations exclude the key
    drop_copies(table)
    manifests = GENERATIONS
    assert gets(table, "N00204") == (row, VIEW_GETS + manifests + 1 + 1)  # one more GET reads the filter
    assert gets(table, "N00205") == (None, VIEW_GETS + manifests + 1)
    assert gets(table, "N99999") == (None, VIEW_GETS + manifests)
    assert gets(table, "N00204", consistency="committed") == (row, VIEW_GETS - 2 + manifests + 1 + 1)


def damaged(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


@pytest.mark.parametrize(
    ("change", "manifests", "filters"),
    [
        (lambda copies: Copies(damaged(copies.manifest), copies.bloom_filter), 1, 1),
        (lambda copies: Copies(copies.manifest[:40], copies.bloom_filter), 1, 1),
        (lambda copies: Copies(b"", copies.bloom_filter), 1, 1),
        (lambda copies: Copies(copies.manifest, damaged(copies.bloom_filter)), 0, 1),
        (lambda copies: Copies(copies.manifest, copies.bloom_filter[:30]), 0, 1),
        (lambda copies: Copies(copies.manifest, b""), 0, 1),
    ],
    ids=["manifest", "torn manifest", "no manifest", "filter", "torn filter", "no filter"],
)
def test_a_copy_that_is_damaged_or_missing_costs_requests_and_no_row(
    table: Table, change: Callable[[Copies], Copies], manifests: int, filters: int, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(GENERATIONS):
        flush(table, planes(number, 99 - number, step=98 - number))
    change_copies(table, change)
    caplog.clear()
    row = {"tail": "N00000", "seats": 0, "model": "x" * 50}
    assert gets(table, "N00000") == (row, VIEW_GETS + GENERATIONS * manifests + filters + 1)
    assert gets(table, "N00050") == (None, VIEW_GETS + GENERATIONS * (manifests + filters))
    empty = change(Copies(bytes(100), bytes(100)))
    assert bool(caplog.text) == (b"" not in (empty.manifest, empty.bloom_filter)), "nothing is wrong where none is"


def test_a_copy_of_another_generation_is_not_used(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    flush(table, planes(0, 10))
    flush(table, planes(100, 10))
    copies = copied(table)
    change_copies(table, lambda _: copies.pop())  # each of the two generations has the copy of the other generation
    assert gets(table, "N00003") == ({"tail": "N00003", "seats": 3, "model": "x" * 50}, VIEW_GETS + GENERATIONS - 1)
    assert "expected generation 1" in caplog.text


def test_copies_are_bounded_by_generation_by_number_and_by_size(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "COPIED", 4)
    monkeypatch.setattr(region_manifest, "FILTER_COPY_RECORDS", 99)
    with table.writer() as writer:
        for number, rows in enumerate((100, 99, 1, 1, 1)):
            writer.put(planes(100 * number, rows))
            writer.flush()
            assert sum(bool(each.manifest) for each in copied(table)) == min(4, number + 1)
            assert [bool(each.bloom_filter) for each in copied(table)[:2]] == [False, True][: number + 1]
        sizes = [each.nbytes for each in copied(table)]
        monkeypatch.setattr(manifest, "COPIED_BYTES", sum(sizes[2:]))
        writer.put(planes(0, 1))
        writer.flush()
        two = [*[False] * 4, True, True]
        monkeypatch.setattr(manifest, "COPIED_BYTES", sum(sizes[2:]) - 1)
        assert [bool(each.manifest) for each in copied(table)] == [*[False] * 3, True, True, True]
    with table.writer():
        assert [bool(each.manifest) for each in copied(table)] == two, "a claim carries on those that there is room for"


def copied(table: Table) -> list[Copies]:
    found = manifest.read_latest(table.store, manifest.region_of(table.snapshot.table_id))
    return [] if found is None else [each.copies for each in found.flushed_generations]


def requests(opened: Table, key: object) -> dict[str, int]:
    before = opened.store.requests
    opened.get(key)
    return {name: count - before[name] for name, count in opened.store.requests.items() if count != before[name]}


WARM = {"get": VIEW_GETS - 1, "head": 1}
"""Requests of a `latest` read on an open table. This table has cached the region's manifest."""


def test_a_table_that_stays_open_asks_for_nothing_that_never_changes_again(table: Table) -> None:
    flush(table, planes(0, step=2))
    merge(table)
    for number in range(GENERATIONS):
        flush(table, planes(number, 99 - number, step=98 - number))  # all generations have the same key bounds
    with table.writer() as writer:
        writer.put(planes(1000, 1))
        opened = Table.open(table.uri)
        for name in ("N00050", "N00000", "N00001", "N01000"):  # in the base, in generations, in the log
            assert opened.get(name) == {"tail": name, "seats": int(name[1:]), "model": "x" * 50}
            assert requests(opened, name)["get"] <= WARM["get"] + SMALL_SPLIT_GETS
        assert requests(opened, "N00000") == requests(opened, "N01000") == WARM
        assert requests(opened, "N00006") == {**WARM, "get": WARM["get"] + SMALL_SPLIT_GETS}, "its row"
        assert requests(opened, "N00007") == WARM, "a key that is not there costs no request of the split"
        writer.put(planes(1001, 1))
        assert requests(opened, "N00007") == {**WARM, "head": WARM["head"] + 1}, "one of two GETs finds the new entry"
        assert requests(opened, "N01001") == WARM


def test_of_a_local_table_that_stays_open_splits_cost_no_request(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, primary_key="tail")
    flush(table, planes(0, step=2))
    merge(table)
    opened = Table.open(table.uri)
    assert opened.get("N00004") == {"tail": "N00004", "seats": 4, "model": "x" * 50}
    assert requests(opened, "N00004") == requests(opened, "N00006") == requests(opened, "N00007") == WARM


def test_a_hit_asks_no_generation_that_is_older(table: Table) -> None:
    for number in range(GENERATIONS):
        flush(table, [{"tail": "N1", "seats": number}, {"tail": "N2", "seats": number}])
    with table.writer() as writer:
        writer.patch({"tail": "N2", "model": "new"})
        writer.flush()
        writer.put({"tail": "N3"})
        assert gets(table, "N3") == ({"tail": "N3", "seats": None, "model": None}, VIEW_GETS), "none at all"
        of_put, cost = gets(table, "N1")
        assert (of_put, cost) == ({"tail": "N1", "seats": GENERATIONS - 1, "model": None}, VIEW_GETS + 1)
        patched, cost = gets(table, "N2")
        assert patched == {"tail": "N2", "seats": GENERATIONS - 1, "model": "new"}
        assert cost == VIEW_GETS + 2, "the patch, and what it is laid over"
        drop_copies(table)
        manifests = GENERATIONS + 1
        assert gets(table, "N1") == (of_put, VIEW_GETS + manifests + 2), "its bounds deny it in the newest"
        assert gets(table, "N2") == (patched, VIEW_GETS + manifests + 2 + 3), "after the patch two filters at once"


def test_a_get_reads_a_small_split_by_one_request_and_none_that_cannot_have_the_key(table: Table) -> None:
    flush(table, planes(0, step=2))
    merge(table)
    assert gets(table, "N00004", consistency="snapshot") == (
        {"tail": "N00004", "seats": 4, "model": "x" * 50},
        SMALL_SPLIT_GETS,
    )
    assert gets(table, "N00005", consistency="snapshot") == (None, 0), "its expression says so"
    assert gets(table, "Z", consistency="snapshot") == (None, 0)


def test_the_newest_record_wins_whichever_generations_are_skipped(table: Table) -> None:
    flush(table, [{"tail": "N1", "seats": 1, "model": "a"}, {"tail": "N3", "seats": 3}])
    merge(table)
    flush(table, [{"tail": "N0", "seats": 0}, {"tail": "N2", "seats": 2}])
    with table.writer() as writer:
        writer.patch({"tail": "N1", "seats": 9})
        writer.flush()
        writer.delete("N3")
        writer.flush()
        writer.put({"tail": "N2", "seats": 22})
    opened = Table.open(table.uri)
    assert opened.get("N1") == {"tail": "N1", "seats": 9, "model": "a"}
    assert opened.get("N3") is None
    assert opened.get("N2") == {"tail": "N2", "seats": 22, "model": None}
    assert opened.get("N2", consistency="committed") == {"tail": "N2", "seats": 2, "model": None}
    assert opened.get("N0") == {"tail": "N0", "seats": 0, "model": None}


def test_the_base_is_read_for_keys_that_no_newer_record_tells_whole(table: Table) -> None:
    flush(table, planes(0, 4))
    table = merge(table)
    with table.writer() as writer:
        writer.put({"tail": "N00000", "seats": 10})
        writer.delete("N00001")
        writer.patch({"tail": "N00002", "seats": 12})
        told, cost = gets(table, "N00000")
        assert told == {"tail": "N00000", "seats": 10, "model": None}
        assert gets(table, "N00001") == (None, cost)
        patched = {"tail": "N00002", "seats": 12, "model": "x" * 50}
        assert gets(table, "N00002") == (patched, cost + SMALL_SPLIT_GETS)
        whole = {"tail": "N00003", "seats": 3, "model": "x" * 50}
        assert table.get_many(["N00003", "N00000", "N00001", "N00002"]) == [whole, told, None, patched]


@pytest.mark.parametrize("damage", [b"", b"TMBLOOM\x01" + bytes(48), None])
def test_a_generation_whose_filter_is_damaged_is_read_without_it(
    table: Table, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    flush(table, planes(0))
    keys = [info.key for info in table.store.list("_mem_wal/")]
    (filter_,) = (key for key in keys if key.endswith("/bloom_filter.bin"))
    if damage is None:
        table.store.delete([filter_])
    else:
        table.store.put(filter_, damage, Overwrite())
    drop_copies(table)
    assert Table.open(table.uri).get("N00007") == {"tail": "N00007", "seats": 7, "model": "x" * 50}
    assert filter_ in caplog.text


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [-0.5, 0.0, 7.25, math.inf, math.nan]),
        (pa.timestamp("us", "UTC"), [dt.datetime(2015, 5, day, tzinfo=dt.UTC) for day in (1, 2, 17)]),
        (pa.date32(), [dt.date(1999, 12, 31), dt.date(2015, 5, 17)]),
        (pa.string(), ["a" * 40, "a" * 40 + "b", "\U0001f600" * 33, ""]),
        (pa.binary(), [b"", b"\xff" * 40]),
        (pa.bool_(), [True]),
        (pa.decimal128(9, 2), ["-1.50", "20.00"]),
    ],
)
def test_a_key_of_any_type_is_found_in_its_generation_and_in_the_base(kind: pa.DataType, values: list[object]) -> None:
    schema = pa.schema([pa.field("id", kind, nullable=False), ("at", pa.int64())])
    table = Table.create(f"memory://point-lookups-{next(_names)}", schema, primary_key="id")
    keys = (
        pa.array([str(value) for value in values]).cast(kind) if pa.types.is_decimal(kind) else pa.array(values, kind)
    )
    for position, key in enumerate(keys.to_pylist()):
        flush(table, [{"id": key, "at": position}])
    for _ in ("generations", "base"):
        found = [Table.open(table.uri).get(key) for key in keys.to_pylist()]
        assert [row["at"] for row in found if row is not None] == list(range(len(values)))
        if _ == "generations":
            merge(table)


def test_a_key_that_does_not_fit_is_refused_before_any_request(table: Table, tmp_path: Path) -> None:
    before = table.store.requests
    with pytest.raises(InvalidInput, match="does not have one value"):
        table.get(("N1", 2))
    assert table.store.requests == before
    numbered = Table.create(
        "memory://numbered-keys", pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_key="id"
    )
    flush(numbered, [{"id": 1}])
    for key in (1.5, 2**63, "1.5", True, dt.date(2024, 1, 1)):
        with pytest.raises(InvalidInput, match="does not fit the key columns"):
            numbered.get(key)
    with numbered.writer() as writer:
        for key in (1.2, 2**63):
            with pytest.raises(InvalidInput, match="column 'id'"):
                writer.delete(key)
        with pytest.raises(InvalidInput, match="column 'id'"):
            writer.put({"id": 1.9})
    assert numbered.get(1) == {"id": 1}
    unkeyed = Table.create(str(tmp_path / "unkeyed"), SCHEMA)
    with pytest.raises(InvalidInput, match="get needs a primary key"):
        unkeyed.get("N1")


def test_lookups_in_several_versions_of_one_open_table_are_each_of_their_own(table: Table) -> None:
    for first in (0, 200, 400):  # three splits, in an order that differs between a state and the log
        flush(table, planes(first))
        merge(table)
    opened = Table.open(table.uri)
    with table.writer() as writer:
        writer.delete([f"N{number:05}" for number in range(100)])
        writer.flush()
    merge(table)
    names = ["N00001", "N00201", "N00401"]
    for _ in range(2):
        for version in (3, 1, 2):
            held = [opened.get(name, at=version) is not None for name in names]
            assert held == [number < version for number in range(len(names))]
        assert [opened.get(name) is not None for name in names] == [False, True, True]
