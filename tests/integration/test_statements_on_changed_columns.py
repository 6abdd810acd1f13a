"""Statements, changed windows, packed metadata and named settings on tables with changed columns."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from pipelines.cli import main
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import InvalidInput
from storage_core.compact import rewindow
from storage_core.maintain.audit import audit
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Kind
from storage_core.maintain.repair import repair
from storage_core.split.verification import PACKED, entries_of
from storage_core.store.resolve import open_store
from tests.support import upkeep
from tidemark import Table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("n", pa.int16()),
        ("day", pa.date32()),
        ("text", pa.string()),
    ]
)
START = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
Row = dict[str, Any]


def midnight(day: int) -> dt.datetime:
    return dt.datetime(2026, 1, day, tzinfo=dt.UTC)


def at(minutes: int) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def changed(uri: str, **creating: Any) -> Table:
    """Make a table with splits of four schemas.

    The earlier name of `number` was `n`. An earlier column `text` was dropped, and the present column `text` was added
    later.
    """
    table = Table.create(uri, SCHEMA, **creating)
    days = [dt.date(2026, 1, 1), dt.date(2026, 1, 2), None]
    filled(table, [{"id": k, "at": at(20 * k), "n": k, "day": days[k - 1], "text": "old"} for k in (1, 2, 3)])
    table.rename_column("n", "number").widen_column("number", "int").widen_column("day", "timestamp")
    filled(table, [{"id": 4, "at": at(80), "number": 40_000, "day": midnight(4), "text": "old"}])
    table.drop_column("text").add_column("extra", "bigint", default=7)
    filled(table, [{"id": 5, "at": at(100), "number": None, "day": midnight(2), "extra": 8}])
    table.add_column("text", "string").add_column("flag", "boolean", default=True).widen_column("id", "long")
    filled(table, [{"id": 2**40, "at": at(120), "number": 3, "day": None, "text": "new", "flag": False}])
    return table


def filled(table: Table, rows: Sequence[Row]) -> None:
    if table.config.kind == "append":
        table.append(rows)
        return
    with table.writer() as writer:
        writer.put(rows)
        writer.flush()


def expected() -> dict[int, Row]:
    """Return the rows of `changed` by their id."""
    days = {1: midnight(1), 2: midnight(2), 4: midnight(4), 5: midnight(2)}
    numbers = {1: 1, 2: 2, 3: 3, 4: 40_000, 2**40: 3}
    return {
        k: {
            "id": k,
            "at": at(20 * k if k < 6 else 120),
            "number": numbers.get(k),
            "day": days.get(k),
            "extra": {5: 8, 2**40: None}.get(k, 7),
            "text": "new" if k == 2**40 else None,
            "flag": k != 2**40,
        }
        for k in (1, 2, 3, 4, 5, 2**40)
    }


def rows(table: Table, **reading: Any) -> list[Row]:
    if table.config.kind == "keyed":
        reading["consistency"] = "latest"
    return sorted(table.scan(**reading).to_arrow().to_pylist(), key=lambda row: row["id"])


def by_id(found: Mapping[int, Row]) -> list[Row]:
    return [found[k] for k in sorted(found)]


def require_sound(table: Table) -> None:
    found = fsck(table.store, clock=table.log.clock, deep=True).findings
    assert [each for each in found if each.kind not in (Kind.UNREFERENCED, Kind.SEGMENT_STALE)] == []
    assert [fault.message for fault in audit(table.store, table.log.snapshot()).violations] == []


def rewindowed(table: Table) -> None:
    """Change the window length of the table, and rewrite every split."""
    table.alter({"window": "1h"})
    snapshot = table.log.snapshot()
    works = [
        rewindow.RewindowTask.from_json(each.to_json()) for each in rewindow.plan(snapshot, windows=None, now_ms=0)
    ]
    done = [rewindow.execute(table.store, work, ids=SystemIds(), now_ms=1) for work in works]
    table.log.commit(snapshot, [each for one in done for each in one.actions], operation=rewindow.OPERATION)
    table.refresh()
    assert {add.windowSeconds for add in table.snapshot.splits.values()} == {3600}


def compacted(table: Table) -> None:
    assert upkeep.compact(table)
    table.refresh()


UPKEEP: Mapping[str, Callable[[Table], object]] = {
    "as written": lambda _: None,
    "packed": lambda _: None,
    "compacted": compacted,
    "rewindowed": rewindowed,
}


@pytest.fixture(params=UPKEEP)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """Return the table that `changed` makes, after one of several combinations of maintenance steps."""
    name: str = request.param
    creating: dict[str, Any] = {"time_column": "at", "window": "15m", "sort_schema": "timestamp/V2"}
    if name == "compacted":
        creating |= {"window": None, "settings": {"compaction.factor": 2}}
    if name == "packed":
        creating["settings"] = {"splits.metadata": "packed"}
    uri = str(tmp_path / "t") if name == "packed" else f"memory://{uuid4()}"
    found = changed(uri, **creating)
    UPKEEP[name](found)
    assert rows(found) == by_id(expected())
    return found


@pytest.mark.parametrize(
    ("condition", "gone"),
    [
        ("number = 3", [3, 2**40]),
        ("number >= 3", [3, 4, 2**40]),
        ("number is null", [5]),
        ("extra = 7 and id < 3", [1, 2]),
        ("extra is null", [2**40]),
        ("text is null and number < 40000", [1, 2, 3]),
        ("text = 'old'", []),
        ("text = 'new'", [2**40]),
        ("flag", [1, 2, 3, 4, 5]),
        (tm.col("day") == midnight(2), [2, 5]),
        ("day > timestamptz '2026-01-01 00:00:00+00'", [2, 4, 5]),
        ("id > 3000000000", [2**40]),
        ("true", [1, 2, 3, 4, 5, 2**40]),
    ],
)
def test_a_delete_is_of_the_rows_that_a_scan_finds(table: Table, condition: Any, gone: list[int]) -> None:
    left = expected()
    for each in gone:
        del left[each]

    done = table.delete(condition)

    assert done.rows == len(gone)
    assert rows(table) == by_id(left)
    require_sound(table)


def test_an_update_sets_columns_by_their_names_of_now_and_keeps_the_values_of_the_others(table: Table) -> None:
    wanted = expected()
    for k in (1, 2, 3, 4):
        wanted[k] |= {"number": wanted[k]["number"] + 100_000, "text": f"it's {wanted[k]['extra']}"}
    wanted[5] |= {"extra": None, "day": None}

    table.update(
        {"number": tm.expr("number + 100000"), "text": tm.expr("'it''s ' || extra")}, "extra = 7 and number is not null"
    )
    table.update({"extra": None, "day": None}, tm.col("extra") == 8)

    assert rows(table) == by_id(wanted)
    require_sound(table)
    with pytest.raises(InvalidInput, match="unknown column"):
        table.update({"n": 1}, "true")
    with pytest.raises(InvalidInput, match="unknown column 'n'"):
        table.delete("n = 1")


@pytest.mark.parametrize(
    ("on", "keys", "replaced"),
    [
        ("number", {"number": 3}, [3, 2**40]),
        ("number", {"number": 40_000}, [4]),
        ("day", {"day": midnight(2)}, [2, 5]),
        ("extra", {"extra": 7}, [1, 2, 3, 4]),
        ("text", {"text": "old"}, []),
        ("text", {"text": "new"}, [2**40]),
        (["flag", "number"], {"flag": True, "number": 3}, [3]),
        ("id", {"id": 2}, [2]),
    ],
)
def test_an_upsert_tells_rows_apart_by_columns_that_were_renamed_widened_defaulted_or_added_again(
    table: Table, on: str | list[str], keys: Row, replaced: list[int]
) -> None:
    wanted = {k: row for k, row in expected().items() if k not in replaced}
    given = {"id": 99, "at": at(130), "number": 9, "day": None, "extra": None, "text": "put", "flag": None} | keys
    wanted[99 if on != "id" else 2] = given

    done = table.upsert([given], on=on)

    assert done.rows == len(replaced)
    assert rows(table) == by_id(wanted)
    require_sound(table)


def test_columns_that_swapped_names_are_not_taken_for_each_other() -> None:
    table = Table.create(f"memory://{uuid4()}", pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())]))
    table.append([{"id": 1, "a": 1, "b": 101}, {"id": 2, "a": 2, "b": 102}])
    table.rename_column("a", "c").rename_column("b", "a").rename_column("c", "b")

    assert table.upsert([{"id": 3, "a": 102, "b": 5}], on="a").rows == 1
    assert table.delete("a = 101").rows == 1
    assert table.update({"a": tm.expr("b"), "b": tm.expr("a")}, "b < 10").rows == 1
    assert rows(table) == [{"id": 3, "b": 102, "a": 5}]


def test_an_overwrite_replaces_rows_of_every_schema(table: Table) -> None:
    wanted = {k: row for k, row in expected().items() if k in (1, 2, 5)}
    given = {"id": 99, "at": at(130), "number": 3, "day": midnight(9), "extra": 1, "text": "put", "flag": None}
    wanted[99] = given

    table.overwrite([given], "number >= 3")

    assert rows(table) == by_id(wanted)
    with pytest.raises(InvalidInput, match="does not meet the condition"):
        table.overwrite([given], "extra = 7")
    require_sound(table)


def test_columns_change_on_after_statements(table: Table) -> None:
    table.delete("number = 2")
    table.update({"text": "set"}, "number = 1")
    table.rename_column("text", "words").rename_column("extra", "text").drop_column("flag")
    wanted = {k: row for k, row in expected().items() if k != 2}
    wanted[1]["text"] = "set"
    for row in wanted.values():
        row["words"], row["text"] = row["text"], row["extra"]
        del row["extra"], row["flag"]
    assert rows(table) == by_id(wanted)

    table.delete("text = 8 or words = 'set'")

    assert rows(table) == by_id({k: row for k, row in wanted.items() if k not in (1, 5)})
    require_sound(table)


def test_a_repair_without_a_log_brings_back_what_statements_left(table: Table) -> None:
    table.update({"text": tm.expr("'n' || number")}, "number < 3")
    wanted = rows(table)
    table.store.delete([info.key for info in table.store.list("_transaction_log/")])
    to = f"memory://{uuid4()}"
    repair(table.store, open_store(to), clock=SystemClock(), ids=SystemIds())
    found = Table.open(to)

    assert len(rows(found)) >= len(wanted), "what was deleted is told by the log only"
    assert [row for row in wanted if row not in rows(found)] == []
    assert found.schema.names == table.schema.names
    require_sound(found)


@pytest.mark.parametrize("state", ["unmerged", "merged", "sorted", "live"])
def test_statements_of_keyed_tables_follow_the_columns(state: str) -> None:
    table = changed(f"memory://{uuid4()}", primary_key="id")
    if state == "merged":
        assert upkeep.merge(table)
    elif state == "sorted":
        assert upkeep.sort(table)
    wanted = expected()
    live = table.writer() if state == "live" else None
    if live is not None:
        live.put({**wanted[5], "number": 55})
        wanted[5]["number"] = 55
    table.add_column("later", "int", default=4).rename_column("text", "words")
    for row in wanted.values():
        row["words"] = row.pop("text")
        row["later"] = 4
    assert rows(table) == [{name: row[name] for name in table.schema.names} for row in by_id(wanted)]

    assert table.delete("number = 3").rows == 2
    assert table.update({"words": tm.expr("'w' || number"), "later": tm.expr("later + 1")}, "number < 40000").rows >= 2
    put = {**wanted[4], "number": 44, "words": "put"}
    if live is None:
        table.upsert([put], on="id")
    else:  # this writer is not fenced, and keeps its original columns until it flushes
        live.put({"text" if name == "words" else name: value for name, value in put.items() if name != "later"})

    del wanted[3], wanted[2**40]
    for k in (1, 2) if live is None else (1, 2, 5):
        wanted[k] |= {"words": f"w{wanted[k]['number']}", "later": 5}
    wanted[4] = put
    shown = [{name: row[name] for name in table.schema.names} for row in by_id(wanted)]
    assert rows(table) == shown
    if live is not None:
        live.patch({"id": 1, "number": 11})
        live.close()
        shown[0]["number"] = 11
        assert rows(table) == shown
    upkeep.merge(table)
    assert rows(table.refresh()) == shown
    require_sound(table)


def test_packed_splits_have_the_ids_of_columns(tmp_path: Path) -> None:
    table = changed(str(tmp_path / "t"), settings={"splits.metadata": "packed"})
    newest = max(table.snapshot.splits.values(), key=lambda add: add.modificationTime)
    footer = pq.read_metadata(pa.BufferReader(table.store.get(newest.path).data))
    assert PACKED.encode() in footer.metadata
    fields = {field["name"]: field for field in json.loads(entries_of(footer, "t")["tidemark.table_schema"])["fields"]}
    ids = {name: field["metadata"]["tidemark.id"] for name, field in fields.items()}
    assert ids == {"id": 1, "at": 2, "number": 3, "day": 4, "extra": 6, "text": 7, "flag": 8}
    stored = {each.name: int(each.metadata[b"PARQUET:field_id"]) for each in footer.schema.to_arrow_schema()}
    assert stored == {"id": 1, "at": 2, "n": 3, "day": 4, "extra": 6, "text~7": 7, "flag": 8}


def test_settings_name_columns_as_the_table_calls_them_now(tmp_path: Path) -> None:
    table = changed(f"memory://{uuid4()}", time_column="at", window=None)
    with pytest.raises(
        InvalidInput, match="sort schema cannot use the column 'number', because its name in splits is 'n'"
    ):
        table.alter({"sort_schema": "number__i|timestamp/V2"})
    with pytest.raises(InvalidInput, match="'text', because an earlier column had this name"):
        table.alter({"indexes": [{"name": "t", "kind": "fulltext", "columns": ["text"]}]})
    for name in ("n", "nothing"):
        with pytest.raises(InvalidInput, match=f"bloom_filters: unknown column '{name}'"):
            table.alter({"bloom_filters": [name]})
    with pytest.raises(InvalidInput, match=r"methods such as `Table.add_column`"):
        table.alter({"columns": {"a": "int"}})
    table.alter({"bloom_filters": ["number", "text"], "sort_schema": "id__i|timestamp/V2"})
    table.append([{"id": 7, "at": at(1), "number": 12, "text": "a"}])

    newest = max(table.snapshot.splits.values(), key=lambda add: add.modificationTime)
    (tmp_path / "newest").write_bytes(table.store.get(newest.path).data)
    probe = "SELECT path_in_schema FROM parquet_metadata(?) WHERE bloom_filter_offset IS NOT NULL ORDER BY 1"
    with duckdb.connect() as connection:
        filtered = connection.execute(probe, [str(tmp_path / "newest")]).fetchall()
    assert filtered == [("n",), ("text~7",)]
    for name in ("number", "text", "id"):
        with pytest.raises(InvalidInput, match=f"column '{name}' cannot be renamed"):
            table.rename_column(name, "other")
    table.alter({"bloom_filters": None})
    table.rename_column("number", "n").alter({"bloom_filters": ["n"], "sort_schema": "n__i|timestamp/V2"})
    require_sound(table)


def test_a_search_says_how_it_is_answered_after_changes_of_columns() -> None:
    index = {"name": "days", "kind": "bitmap", "columns": ["day"]}
    texts = {"name": "words", "kind": "fulltext", "columns": ["note"]}
    table = Table.create(f"memory://{uuid4()}", SCHEMA.append(pa.field("note", pa.string())), indexes=[index, texts])
    table.append([{"id": k, "n": k, "day": dt.date(2026, 1, k), "note": "some words"} for k in (1, 2)])
    upkeep.catch_up(table)
    table.refresh().rename_column("n", "number").widen_column("day", "timestamp").add_column("c", "int", default=1)
    table.append([{"id": 3, "number": 3, "day": midnight(3), "note": "more words"}])
    condition = "number >= 2 and c is not null"

    plan = table.explain_search("words", index="words", filter=condition)
    found = table.search("words", index="words", filter=condition)

    assert [source.how for source in plan.indexes[0].sources].count("segment") == 1
    assert plan.filter is not None
    assert sorted(plan.filter.columns) == ["c", "number"]
    assert found.to_arrow().column("id").to_pylist() == [2]
    assert table.search("words", index="words", filter=tm.col("day") == midnight(2)).to_arrow().column(
        "number"
    ).to_pylist() == [2]
    table.delete("number = 2")
    assert table.search("words", index="words", filter="number >= 1").to_arrow().num_rows == 2


@pytest.mark.parametrize("kind", ["append", "keyed"])
def test_indexes_over_columns_that_were_renamed_before_find_what_splits_have_under_other_names(kind: str) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("a", pa.string()), ("b", pa.list_(pa.float32(), 3))]
    )
    table = Table.create(f"memory://{uuid4()}", schema, primary_key="id" if kind == "keyed" else None)
    filled(table, [{"id": k, "a": f"word w{k}", "b": [k, 0, 0]} for k in range(1, 4)])
    if kind == "keyed":
        upkeep.merge(table)
    table.refresh().rename_column("a", "text").rename_column("b", "near")
    table.alter(
        {
            "indexes": [
                {"name": "words", "kind": "fulltext", "columns": ["text"]},
                {"name": "same", "kind": "bitmap", "columns": ["text"]},
                {"name": "nearest", "kind": "vector", "columns": ["near"]},
            ]
        }
    )
    upkeep.catch_up(table)
    filled(table.refresh(), [{"id": k, "text": f"word w{k}", "near": [k, 0, 0]} for k in range(4, 7)])
    table.refresh()

    if kind == "keyed":
        upkeep.merge(table)
        table.refresh()
    for _ in range(2):
        found = table.search("w2 OR w5", index="words").to_arrow().to_pylist()
        assert sorted((row["id"], row["text"]) for row in found) == [(2, "word w2"), (5, "word w5")]
        found = (
            table.search(vector=[5.1, 0, 0], index="nearest", limit=3, columns=["id", "near"]).to_arrow().to_pylist()
        )
        assert [(row["id"], row["near"][0]) for row in found] == [(5, 5), (6, 6), (4, 4)]
        assert [row["id"] for row in rows(table, filter="text = 'word w3'")] == [3]
        assert table.search_count("word", index="words") == 6
        table.delete("text = 'word w1'")
        filled(table, [{"id": 1, "text": "word w1", "near": [1, 0, 0]}])
        if kind == "keyed":
            upkeep.merge(table)
        upkeep.catch_up(table.refresh())
        upkeep.compact(table)
        table.refresh()


def test_the_work_of_an_application_is_done_once_over_changes_of_columns() -> None:
    table = changed(f"memory://{uuid4()}")
    table.update({"extra": 1}, "id = 1", application=("nightly", 1))
    table.rename_column("extra", "more")
    version = table.version
    again = table.update({"more": 2}, "id = 1", application=("nightly", 1))
    assert (again.rows, table.version) == (0, version)
    assert rows(table, filter="id = 1")[0]["more"] == 1
    require_sound(table)


def test_statements_are_given_from_the_command_line_by_the_names_of_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = str(tmp_path / "t")
    changed(uri)
    assert main(["update", uri, "--set", "number = number * 2", "--where", "extra = 7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 4
    assert main(["delete", uri, "--where", "number = 6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 1
    assert [row["number"] for row in rows(Table.open(uri))] == [2, 4, 80_000, None, 3]
