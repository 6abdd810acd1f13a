"""Delete, update, overwrite and upsert: guarantees, reads and refusals."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from pipelines.cli import main
from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.data.formats.keys import parse, version_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.rows.vectors import vector_type
from storage_core.log.commit import MAX_ATTEMPTS
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from tests.support.changed_rows import SCHEMA, START, created, index, kept, opened, require_sound, row, rows_of
from tests.support.fault_store import FaultStore

HOURS = 4
PLANES = pa.schema([pa.field("tailnum", pa.string(), nullable=False), ("seats", pa.int64())])


def _filled(store: MemoryStore, *, rows: int = 100) -> Table:
    """Make a table with one split per hour and ascending `n`."""
    table = created(store)
    for hour in range(HOURS):
        table.append([row(hour * rows + n, f"h{n % 5}", hour=hour) for n in range(rows)])
    return table


def _reads(store: FaultStore) -> list[str]:
    """Return the splits that were read in part or completely."""
    keys = [each.request.key for each in store.trace if each.request.kind == "get"]
    return [key for key in keys if (found := parse(key)) is not None and found.kind is KeyKind.SPLIT]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("statements")


# Reads and writes.


def test_no_split_is_read_that_statistics_exclude_and_none_of_which_all_rows_go(store: MemoryStore) -> None:
    _filled(store)
    watched = FaultStore(store)
    done = opened(watched, 3).delete("n < 250 and n >= 0")
    assert (done.rows, done.splits) == (250, 3)
    assert len({*_reads(watched)}) == 1, "two hours go as a whole and one has no such row"
    assert len(opened(store, 4).snapshot.splits) == 2


@pytest.mark.parametrize("condition", ["n >= 0 or visitr = 'ann'", "n >= 0 or at < 'no time'"])
def test_what_is_no_condition_is_refused_though_statistics_say_that_all_rows_meet_it(
    store: MemoryStore, condition: str
) -> None:
    _filled(store)
    table = opened(store, 3)
    for statement in (table.delete, lambda given: table.update({"n": 0}, given), table.forget):
        with pytest.raises(InvalidInput):
            statement(condition)
    assert opened(store, 3).version == table.version


def test_a_delete_of_whole_windows_costs_the_requests_of_a_commit(store: MemoryStore) -> None:
    _filled(store)
    watched = FaultStore(store)
    table = opened(watched, 3)
    before = len(watched.trace)
    done = table.delete(tm.col("at") < START + dt.timedelta(hours=2))
    assert (done.rows, done.splits) == (200, 2)
    assert _reads(watched) == []
    kinds = [each.request.kind for each in watched.trace[before:]]
    assert kinds.count("put") == 1
    assert kinds.count("head") == 1


def test_a_delete_of_every_row_reads_nothing_and_leaves_no_split(store: MemoryStore) -> None:
    _filled(store)
    watched = FaultStore(store)
    assert opened(watched, 3).delete("true").rows == 400
    assert _reads(watched) == []
    assert not opened(store, 4).snapshot.splits


def test_a_delete_writes_vectors_and_no_split_and_its_splits_keep_their_files(store: MemoryStore) -> None:
    table = _filled(store)
    files = {*table.snapshot.splits}
    watched = FaultStore(store)
    done = opened(watched, 3).delete("n % 10 = 3")
    assert (done.rows, done.splits, done.rows_added, done.splits_added) == (40, 4, 0, 0)
    assert [each.request.key for each in watched.trace if each.request.kind == "put"] == [version_key(5)]
    after = opened(store, 4).snapshot
    assert {*after.splits} == files
    assert "deletionVectors" in (after.protocol.readerFeatures or ())


def test_an_index_that_tells_all_that_a_condition_asks_is_believed(store: MemoryStore) -> None:
    table = created(store)
    numbers = np.arange(200_000)
    noise = np.random.default_rng(1).random(len(numbers))
    hosts = pa.array([f"h{each}" for each in range(50)]).take(pa.array(numbers % 50))
    times = pa.array(np.full(len(numbers), int(START.timestamp()) * 1_000_000)).cast(SCHEMA.field("at").type)
    table.append(pa.table([times, hosts, numbers, noise], schema=SCHEMA))
    index(table)
    table.delete("n = 3")
    watched = FaultStore(store)
    assert opened(watched, 3).delete(tm.col("host") == "h3").rows == 3_999
    assert _reads(watched) == []
    assert opened(store, 4).scan(["n"], filter=tm.col("host") == "h3").to_arrow().num_rows == 0


def test_what_matches_nothing_commits_nothing(store: MemoryStore) -> None:
    table = _filled(store)
    for done in (
        table.delete("n = 4000"),
        table.delete("n % 1000 = 999"),
        table.delete("false"),
        table.update({"n": 1}, "n = 4000"),
        table.overwrite([], "n = 4000"),
        table.upsert([], on="n"),
    ):
        assert (done.version, done.commit_id, done.rows) == (4, "", 0)
    assert opened(store, 3).version == 4


def test_rows_go_from_splits_that_were_appended_after_the_table_was_opened(store: MemoryStore) -> None:
    table = _filled(store)
    opened(store, 3).append([row(7, "late")])
    assert table.delete("n = 7").rows == 2


def test_a_compaction_and_an_index_follow_what_statements_did(store: MemoryStore) -> None:
    table = _filled(store)
    index(table)
    table.update({"host": "moved"}, "n < 50")
    table.delete("host = 'h1'")
    found = table.scan(filter=tm.col("host") == "moved").to_arrow().num_rows
    assert found == 50
    index(table.refresh())
    assert table.refresh().scan(filter=tm.col("host") == "moved").to_arrow().num_rows == found
    require_sound(store)


def test_updated_rows_lie_in_the_windows_of_their_new_times(store: MemoryStore) -> None:
    table = _filled(store, rows=10)
    done = table.update({"at": tm.expr('"at" + INTERVAL 1 HOUR')}, "n % 10 = 0")
    assert (done.rows, done.rows_added, done.splits_added) == (4, 4, 4)
    window = int((START + dt.timedelta(hours=HOURS)).timestamp())
    assert [add.numRecords for add in table.snapshot.splits.values() if add.windowStart == window] == [1]
    require_sound(store)


def test_an_update_sees_the_row_as_it_was_whatever_else_is_set(store: MemoryStore) -> None:
    table = _filled(store, rows=10)
    table.update({"n": tm.expr("n + 1"), "host": tm.expr("'n was ' || n"), "x": 2}, "n = 5")
    (found,) = table.scan(filter="host = 'n was 5'").to_arrow().to_pylist()
    assert (found["n"], found["x"]) == (6, 2.0)


def test_an_update_sets_lists_maps_and_vectors(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("many", pa.list_(pa.int64())),
            ("by", pa.map_(pa.string(), pa.int64())),
            ("v", vector_type(2)),
        ]
    )
    table = Table.create(str(tmp_path), schema)
    table.append([{"n": 1}, {"n": 2}])
    given = {"many": [1, 2], "by": {"a": 1}, "v": [0.5, 1.5]}
    assert table.update(given, "n = 3").rows == 0
    assert table.update(given, "n = 2").rows == 1
    found = table.scan(filter="n = 2").to_arrow().to_pylist()
    assert found == [{"n": 2, **given, "by": [("a", 1)]}]


def test_history_says_what_a_statement_did_and_changes_which_rows(store: MemoryStore) -> None:
    table = _filled(store, rows=10)
    version = table.version
    table.update({"host": "x"}, "n = 1")
    table.delete("n = 2")
    assert [(each.operation, each.metrics) for each in table.history(2)] == [
        ("DELETE", {"rows_in": 1, "rows_out": 0, "splits_in": 1, "splits_out": 0}),
        ("UPDATE", {"rows_in": 1, "rows_out": 1, "splits_in": 1, "splits_out": 1}),
    ]
    found = table.changes(version).read_all().select(["_change_type", "_commit_version", "n", "host"]).to_pylist()
    assert [tuple(each.values()) for each in found] == [
        ("delete", version + 1, 1, "h1"),
        ("insert", version + 1, 1, "x"),
        ("delete", version + 2, 2, "h2"),
    ]


def test_a_restore_brings_back_what_was_deleted_and_takes_what_was_updated(store: MemoryStore) -> None:
    table = _filled(store, rows=10)
    before, version = rows_of(store), table.version
    table.update({"host": "x"}, "n % 2 = 1")
    table.delete("true")
    table.restore(version)
    assert rows_of(store) == before


def test_an_application_does_the_work_of_a_number_once(store: MemoryStore) -> None:
    table = _filled(store, rows=10)
    for _ in range(2):
        table.update({"n": tm.expr("n + 1000")}, "n < 2000", application=("nightly", 1))
        table.overwrite([row(1_005, "o")], "n = 1005", application=("hourly", 1))
    assert sorted(each["n"] for each in table.scan(["n"]).to_arrow().to_pylist())[:2] == [1_000, 1_001]
    assert [each.operation for each in table.history(3)] == ["OVERWRITE", "UPDATE", "APPEND"]
    assert table.update({"n": tm.expr("n + 1000")}, "n < 2000", application=("nightly", 2)).rows == 40


def test_rows_that_an_application_appends_again_are_not_taken(store: MemoryStore) -> None:
    table = _filled(store, rows=10)
    stale = opened(store, 9)
    assert table.append([row(77, "new")], application=("load", 3)).rows == 1
    for each in (table, stale):
        done = each.append([row(77, "new")], application=("load", 3))
        assert (done.rows, done.commit_id, done.version) == (0, "", table.version)
    assert table.append([row(78, "old")], application=("load", 2)).rows == 0
    assert table.append([row(79, "newer")], application=("load", 4)).rows == 1
    assert [each.operation for each in table.history(2)] == ["APPEND", "APPEND"]
    assert {77, 79} == {each["n"] for each in table.scan(["n"], "n in (77, 78, 79)").to_arrow().to_pylist()}


def test_an_upsert_leaves_one_row_of_each_key_however_many_there_were(store: MemoryStore) -> None:
    table = _filled(store, rows=10)
    table.append([row(3, "again"), row(3, "and again"), row(4, None)])
    done = table.upsert([row(3, "one"), row(77, "new")], on="n")
    assert (done.rows, done.rows_added) == (3, 2)
    assert table.scan(["host"], filter="n = 3").to_arrow().to_pylist() == [{"host": "one"}]


def test_a_column_of_an_upsert_may_have_no_value_in_rows_of_the_table(store: MemoryStore) -> None:
    table = created(store)
    table.append([row(1, None, x=float("nan")), row(2, "a", x=-0.0), row(3, "a")])
    done = table.upsert([row(10, "a", x=0.0), row(11, "b", x=float("nan"))], on=["x"])
    assert done.rows == 2, "one zero, one NaN"
    assert sorted(each["n"] for each in table.scan(["n"]).to_arrow().to_pylist()) == [3, 10, 11]


def test_an_empty_overwrite_deletes(store: MemoryStore) -> None:
    table = _filled(store, rows=10)
    done = table.overwrite(SCHEMA.empty_table(), "n < 5")
    assert (done.rows, done.rows_added) == (5, 0)


def test_a_vector_that_is_long_is_stored_and_the_next_one_takes_its_rows_over(store: MemoryStore) -> None:
    table = _filled(store, rows=3_000)
    assert table.delete("(n * n) % 1009 < 300").rows > 0
    assert table.delete("(n * n) % 1009 < 600").rows > 0
    assert all(int(str(each[2])) ** 2 % 1009 >= 600 for each in rows_of(store))
    assert {parse(info.key).kind for info in store.list("splits/")} == {KeyKind.SPLIT, KeyKind.VECTOR}  # type: ignore[union-attr]
    require_sound(store)


# Concurrent operations.


def test_appends_before_every_attempt_but_the_last_are_all_looked_at(store: MemoryStore) -> None:
    _filled(store, rows=10)
    watched = FaultStore(store)
    version = opened(store, 3).version
    for number in range(MAX_ATTEMPTS - 1):

        def append(number: int = number) -> None:
            opened(store, 10 + number).append([row(3, f"late {number}")])

        watched.on_put(version_key(version + 1 + number), append)
    done = opened(watched, 4).delete("n = 3")
    assert done.rows == MAX_ATTEMPTS
    assert not [each for each in rows_of(store) if each[2] == "3"]


def test_attempts_are_bounded_and_then_nothing_is_committed(store: MemoryStore) -> None:
    _filled(store, rows=10)
    watched = FaultStore(store)
    version = opened(store, 3).version
    for number in range(MAX_ATTEMPTS):

        def append(number: int = number) -> None:
            opened(store, 10 + number).append([row(3, f"late {number}")])

        watched.on_put(version_key(version + 1 + number), append)
    with pytest.raises(CommitConflict, match=r"[Nn]othing was written"):
        opened(watched, 4).delete("n = 3")
    assert sum(each[2] == "3" for each in rows_of(store).elements()) == MAX_ATTEMPTS + 1


def test_what_another_statement_did_first_is_not_done_again(store: MemoryStore) -> None:
    _filled(store, rows=10)
    watched = FaultStore(store)
    version = opened(store, 3).version

    def delete() -> None:
        opened(store, 5).delete("n = 3")

    watched.on_put(version_key(version + 1), delete)
    done = opened(watched, 4).delete("n = 3")
    assert (done.rows, done.commit_id, done.version) == (0, "", version + 1)


def test_of_a_newer_version_only_splits_that_are_new_are_read(store: MemoryStore) -> None:
    _filled(store, rows=10)
    watched = FaultStore(store)
    version = opened(store, 3).version

    def append() -> None:
        opened(store, 5).append([row(5, "late")])

    watched.on_put(version_key(version + 1), append)
    opened(watched, 4).delete("n % 10 = 5")
    assert len(_reads(watched)) == HOURS + 1


# Refusals that are not in `test_refusals.py`.


def test_a_table_opened_at_a_version_is_not_changed(tmp_path: Path) -> None:
    Table.create(str(tmp_path), SCHEMA).append([row(1)])
    with pytest.raises(InvalidInput, match="Open the table without `at` to write"):
        Table.open(str(tmp_path), at=1).delete("true")


def test_rows_that_were_written_for_another_schema_are_not_committed(store: MemoryStore) -> None:
    _filled(store, rows=10)
    watched = FaultStore(store)

    def change() -> None:
        log = opened(store, 5).log
        head = log.snapshot()
        config = replace(head.config, sort_schema="n__i|timestamp/V2")
        log.commit(head, [replace(head.metadata, configuration=config.to_configuration())], operation="CONFIGURE")

    watched.on_put(version_key(HOURS + 1), change)
    with pytest.raises(CommitConflict, match="sort schema"):
        opened(watched, 4).upsert([row(1, "new")], on="n")
    assert sum(each[1] == "'new'" for each in rows_of(store)) == 0


# The command.


@pytest.fixture
def place(tmp_path: Path) -> str:
    uri = str(tmp_path / "t")
    Table.create(uri, SCHEMA, time_column="at", window="1h").append([row(n, f"h{n % 3}") for n in range(10)])
    return uri


def _said(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_commands_change_rows_and_say_how_many(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = _said(capsys, "delete", place, "--where", "n < 3")
    assert done == {
        "status": "committed",
        "version": 2,
        "commit_id": done["commit_id"],
        "rows": 3,
        "splits": 1,
        "rows_added": 0,
        "splits_added": 0,
    }
    assert _said(capsys, "delete", place, "--where", "n < 3")["status"] == "nothing_to_do"
    done = _said(capsys, "update", place, "--set", "host = host || '!'", "--set", '"n"=n+100', "--where", "n = 5")
    assert (done["rows"], done["rows_added"]) == (1, 1)
    new = tmp_path / "new.ndjson"
    new.write_text('{"at": "2024-02-29T10:00:00Z", "host": "new", "n": 7}\n')
    for status in ("committed", "nothing_to_do"):
        done = _said(capsys, "overwrite", place, str(new), "--where", "n >= 7 and n < 100", "--application", "load:1")
        assert done["status"] == status
    assert _said(capsys, "upsert", place, str(new), "--on", "n")["rows"] == 1
    found = Table.open(place).scan(["n", "host"]).to_arrow().to_pylist()
    assert sorted((each["n"], each["host"]) for each in found) == [
        (3, "h0"),
        (4, "h1"),
        (6, "h0"),
        (7, "new"),
        (105, "h2!"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("update", "--set", "n", "--where", "true"),
        ("update", "--set", "n == 1", "--where", "true"),
        ("update", "--set", "n = 1", "--set", "n = 2", "--where", "true"),
        ("update", "--set", "n = 1", "--where", "true", "--application", "nightly"),
        ("delete",),
        ("delete", "--where", "n <"),
    ],
)
def test_a_command_that_cannot_be_meant_ends_with_2(place: str, arguments: tuple[str, ...]) -> None:
    assert main([arguments[0], place, *arguments[1:]]) == 2
    assert Table.open(place).version == 1


# Keyed tables.


def test_rows_of_a_keyed_table_are_upserted_by_its_key(tmp_path: Path) -> None:
    planes = Table.create(str(tmp_path), PLANES, primary_key="tailnum")
    assert planes.upsert([{"tailnum": "a", "seats": 1}], on="tailnum").rows_added == 1
    assert planes.get("a") == {"tailnum": "a", "seats": 1}


def test_kept_rows_are_those_of_the_list(store: MemoryStore) -> None:
    table = _filled(store, rows=10)
    table.delete("n % 2 = 0")
    expected = [row(hour * 10 + n, f"h{n % 5}", hour=hour) for hour in range(HOURS) for n in range(1, 10, 2)]
    assert rows_of(store) == kept(expected)
