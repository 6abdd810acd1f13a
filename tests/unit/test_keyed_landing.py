"""Landed records put, patch or delete rows of a keyed table. Covers order, envelopes, quarantine, repetition."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.ingest import run_ingest
from jobs.keyed_ingest import ROUND_PUTS
from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.data.rows.fold import OPERATION, Operation
from storage_core.data.rows.window_range import window_range
from storage_core.data.settings.table import LateData, TableConfig
from storage_core.data.steps import Ingest
from storage_core.log.job_run import InProcessExecutor, JobRun
from storage_core.maintain.check import fsck
from storage_core.maintain.rejections import measure_rejections
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.ingest.changes import ChangeFormat
from storage_core.write.ingest.envelopes import UNAVAILABLE
from storage_core.write.ingest.landed_regions import ROWS_OF_A_GENERATION, require_unlanded
from storage_core.write.ingest.landing import LandingSpec
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.record_order import sort_by_order, without_older
from storage_core.write.region.spec import known_regions
from tests.support.keyed_landing import KEYED, SCHEMA, THREE_REGIONS, KeyedLanding, change, make_landing
from tests.support.quarantined import Opened

MAPS = pa.schema([*SCHEMA, pa.field("tags", pa.map_(pa.string(), pa.string()))])


@pytest.fixture
def landing(tmp_path: Path) -> KeyedLanding:
    return make_landing(tmp_path, op="_op")


@pytest.fixture
def ordered(tmp_path: Path) -> KeyedLanding:
    return make_landing(tmp_path, op="_op", order_by="lsn")


# Operations.


def test_a_line_without_an_operation_is_a_put_of_a_whole_row(landing: KeyedLanding) -> None:
    landing.land("a", {"id": 1, "name": "one", "price": 1.5}, {"id": 1, "name": "two"})
    report = landing.ingest()
    assert (report.metrics.rows_in, report.metrics.rows_out) == (2, 2)
    assert landing.rows() == {1: {"id": 1, "name": "two", "price": None, "lsn": None}}


@pytest.mark.parametrize("word", ["insert", "UPSERT", "Put", "update", "c", "R", "u", "I", None])
def test_every_word_for_a_put_puts(landing: KeyedLanding, word: str | None) -> None:
    landing.land("a", {"id": 1, "name": "one", "_op": word})
    landing.ingest()
    assert landing.names() == {1: "one"}


def test_a_patch_sets_the_fields_that_its_line_names(landing: KeyedLanding) -> None:
    landing.land("a", {"id": 1, "name": "one", "price": 1.5, "lsn": 7}, {"id": 2, "name": "two", "price": 2.5})
    landing.land("b", {"id": 1, "price": None, "_op": "patch"}, {"id": 2, "name": "2", "_op": "PATCH"})
    landing.ingest()
    assert landing.rows() == {
        1: {"id": 1, "name": "one", "price": None, "lsn": 7},
        2: {"id": 2, "name": "2", "price": 2.5, "lsn": None},
    }


@pytest.mark.parametrize("word", ["delete", "D"])
def test_a_delete_needs_only_the_key(landing: KeyedLanding, word: str) -> None:
    landing.land("a", {"id": 1, "name": "one"}, {"id": 2, "name": "two"}, {"id": 1, "_op": word})
    landing.ingest()
    assert landing.names() == {2: "two"}


def test_a_patch_merges_the_entries_of_a_merged_map(tmp_path: Path) -> None:
    landing = make_landing(tmp_path, replace(KEYED, map_columns={"tags": "merge"}), MAPS, op="_op")
    landing.land("a", {"id": 1, "tags": {"a": "1"}}, {"id": 1, "tags": {"b": "2"}, "_op": "patch"})
    landing.ingest()
    assert landing.rows()[1]["tags"] == [("a", "1"), ("b", "2")]


def test_unknown_operations_and_incomplete_rows_go_to_quarantine(tmp_path: Path) -> None:
    schema = SCHEMA.set(1, pa.field("name", pa.string(), nullable=False))
    landing = make_landing(tmp_path, schema=schema, op="_op")
    lines: list[dict[str, object]]
    lines = [{"id": 1, "name": "one", "_op": "merge"}, {"id": 2}, {"id": 3, "price": 1, "_op": "patch"}, {"name": "x"}]
    landing.land("a", *lines, {"id": 4, "name": "four"}, {"id": 4, "_op": "d"}, {"id": 5, "name": "five"})
    report = landing.ingest()
    assert landing.names() == {5: "five"}
    assert landing.reasons() == [
        ("a", 1, "'merge' is not an operation. Use insert, upsert, put, update, patch or delete"),
        ("a", 2, "column name: a value is required"),
        ("a", 3, "column name: a value is required"),
        ("a", 4, "column id: a value is required"),
    ]
    assert (report.metrics.rows_in, report.metrics.rows_out, report.metrics.rows_rejected) == (7, 3, 4)


def test_a_key_that_is_too_long_goes_to_quarantine_and_can_be_deleted(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.int64())])
    landing = make_landing(tmp_path, TableConfig(primary_key=("k",)), schema, op="_op")
    landing.land("a", {"k": "x" * 70_000, "v": 1}, {"k": "x" * 70_000, "_op": "d"}, {"k": "y", "v": 2})
    landing.ingest()
    assert list(landing.rows()) == ["y"]
    [(_, line, reason)] = landing.reasons()
    assert (line, "too long for a key" in reason) == (1, True)


@pytest.mark.parametrize("form", ["csv", "parquet", "arrow", "json", "pattern"])
def test_every_format_has_operations(tmp_path: Path, form: str) -> None:
    pattern = r"^(?P<id>\d+) (?P<name>\w*) (?P<_op>\w*)$" if form == "pattern" else None
    landing = make_landing(tmp_path, op="_op", format=form, pattern=pattern)
    rows: list[dict[str, Any]] = [
        {"id": 1, "name": "one", "_op": None},
        {"id": 2, "name": "two", "_op": "c"},
        {"id": 1, "name": None, "_op": "delete"},
        {"id": 2, "name": None, "_op": "patch"},
        {"id": 3, "name": "three", "_op": "what"},
    ]
    landing.land_text("a", encoded(form, rows))
    report = landing.ingest()
    expected = {2: ""} if form == "pattern" else {2: None} if form == "json" else {2: "two"}
    assert landing.names() == expected, "only JSON names a field without a value"
    assert report.metrics.rows_rejected == 1
    assert [line for _, line, _ in landing.reasons()] == [6 if form == "csv" else 5]


def encoded(form: str, rows: list[dict[str, Any]]) -> str | bytes:
    table = pa.Table.from_pylist(rows)
    if form == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()
    if form == "pattern":
        return "".join(f"{row['id']} {row['name'] or ''} {row['_op'] or ''}\n" for row in rows)
    if form == "json":
        import json

        return json.dumps(rows)
    sink = io.BytesIO()
    if form == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as writer_:
            writer_.write_table(table)
    return sink.getvalue()


# Order.


def test_without_an_order_files_apply_by_time_and_name_and_then_by_line(landing: KeyedLanding) -> None:
    landing.land("b", {"id": 1, "name": "first"}, {"id": 2, "name": "first"})
    landing.land("a", {"id": 1, "name": "second"}, {"id": 1, "name": "third"})
    landing.ingest()
    assert landing.names() == {1: "third", 2: "first"}


def test_the_order_decides_inside_a_file_and_between_the_files_of_a_run(ordered: KeyedLanding) -> None:
    ordered.land(
        "a", {"id": 1, "name": "new", "lsn": 5}, {"id": 1, "name": "old", "lsn": 4}, {"id": 2, "lsn": 9, "_op": "d"}
    )
    ordered.land("b", {"id": 1, "name": "older", "lsn": 3}, {"id": 2, "name": "gone", "lsn": 8})
    ordered.ingest()
    assert ordered.names() == {1: "new"}


@pytest.mark.parametrize("state", ["unmerged", "sorted", "merged"])
def test_a_late_older_record_never_overwrites_a_newer_row(ordered: KeyedLanding, state: str) -> None:
    ordered.land("a", {"id": 1, "name": "new", "lsn": 5}, {"id": 2, "name": "new", "lsn": 5})
    ordered.ingest()
    settle(ordered, state)
    ordered.land(
        "b", {"id": 1, "name": "old", "lsn": 4}, {"id": 1, "_op": "d", "lsn": 3}, {"id": 2, "name": "same", "lsn": 5}
    )
    report = ordered.ingest()
    assert ordered.names() == {1: "new", 2: "same"}
    assert (report.details["rows_older"], report.metrics.rows_out) == (2, 1)
    ordered.land("c", {"id": 1, "price": 2, "lsn": 6, "_op": "patch"})
    ordered.ingest()
    settle(ordered, state)
    ordered.land("d", {"id": 1, "name": "old", "lsn": 5})
    ordered.ingest()
    assert ordered.rows()[1] == {"id": 1, "name": "new", "price": 2.0, "lsn": 6}


@pytest.mark.parametrize(("state", "stays"), [("unmerged", True), ("sorted", True), ("merged", False)])
def test_the_order_of_a_delete_is_known_until_it_is_merged(ordered: KeyedLanding, state: str, *, stays: bool) -> None:
    ordered.land("a", {"id": 1, "name": "one", "lsn": 1}, {"id": 1, "lsn": 5, "_op": "d"})
    ordered.ingest()
    settle(ordered, state)
    ordered.land("b", {"id": 1, "name": "old", "lsn": 4})
    ordered.ingest()
    assert (ordered.names() == {}) is stays


def test_the_order_is_known_after_columns_change(ordered: KeyedLanding) -> None:
    ordered.land("a", {"id": 1, "name": "new", "lsn": 5}, {"id": 2, "name": "new", "lsn": 5})
    ordered.ingest()
    ordered.table.merge_all()
    ordered.land("b", {"id": 2, "name": "newer", "lsn": 6})
    ordered.ingest()
    table = Table(MeteredStore(ordered.store), ordered.log, ordered.log.snapshot())
    table.add_column("city", "string")
    table.rename_column("name", "title")
    table.drop_column("price")
    ordered.land("c", {"id": 1, "title": "old", "lsn": 4}, {"id": 2, "title": "old", "lsn": 5}, {"id": 3, "lsn": 1})
    assert ordered.ingest().details["rows_older"] == 2
    assert {key: row["title"] for key, row in ordered.rows().items()} == {1: "new", 2: "newer", 3: None}


def test_rows_of_a_writer_without_an_order_lose_against_every_landed_record(ordered: KeyedLanding) -> None:
    with ordered.table.writer() as writer:
        writer.put([{"id": 1, "name": "no order"}, {"id": 2, "name": "newer", "lsn": 9}])
    ordered.land("a", {"id": 1, "name": "landed", "lsn": -5}, {"id": 2, "name": "landed", "lsn": 8})
    ordered.ingest()
    assert ordered.names() == {1: "landed", 2: "newer"}


def test_a_record_without_an_order_goes_to_quarantine(ordered: KeyedLanding) -> None:
    ordered.land("a", {"id": 1, "name": "one"}, {"id": 1, "_op": "d"})
    ordered.ingest()
    assert [reason for _, _, reason in ordered.reasons()] == ["column lsn: a value is required"] * 2


def test_older_records_and_tombstones_are_in_the_history(tmp_path: Path) -> None:
    landing = make_landing(tmp_path, envelope="debezium", order_by="source.lsn")
    landing.land("a", change("c", 5, 1, name="new"))
    landing.ingest()
    assert not {"rows_older", "tombstones"} & {*landing.metrics()}, "a count of 0 is absent"
    landing.land("b", change("u", 4, 1, name="old"), None, change("c", 6, 2, name="two"))
    landing.ingest()
    assert {name: landing.metrics()[name] for name in ("rows_in", "rows_out", "rows_older", "tombstones")} == {
        "rows_in": 2,
        "rows_out": 1,
        "rows_older": 1,
        "tombstones": 1,
    }
    found = measure_rejections(landing.store, landing.log.snapshot(), now_ms=landing.clock.now_ms())
    assert (found.rows_in, found.rows_out, found.rows_older) == (3, 2, 1)


def settle(landing: KeyedLanding, state: str) -> None:
    if state == "sorted":
        landing.table.sort()
    if state == "merged":
        landing.table.merge_all()


# Debezium.


def test_envelopes_put_and_delete_with_and_without_their_wrapper(tmp_path: Path) -> None:
    landing = make_landing(tmp_path, envelope="debezium", order_by="source.lsn")
    landing.land(
        "a",
        change("r", 1, 1, name="one", price=1.10),
        {"schema": {"type": "struct"}, "payload": change("c", 2, 2, name="two")},
        change("u", 3, 1, name="uno"),
        change("d", 4, 2),
        None,
        {"schema": None, "payload": None},
        change("c", 5, 3, name='a "quoted", {text}'),
    )
    report = landing.ingest()
    assert landing.rows() == {
        1: {"id": 1, "name": "uno", "price": None, "lsn": 3},
        3: {"id": 3, "name": 'a "quoted", {text}', "price": None, "lsn": 5},
    }
    assert report.details["tombstones"] == 2
    assert (report.metrics.rows_in, report.metrics.rows_rejected) == (5, 0)


def test_an_envelope_can_be_ordered_by_its_time_or_by_a_column_of_the_row(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, pa.field("ts_ms", pa.int64())])
    for order, column in (("ts_ms", "ts_ms"), ("lsn", "lsn")):
        landing = make_landing(tmp_path / order, schema=schema, envelope="debezium", order_by=order)
        landing.land("a", change("c", 8, 1, name="new", lsn=8))
        landing.ingest()
        landing.land("b", change("u", 4, 1, name="old", lsn=4), change("d", 2, 1, lsn=2))
        landing.ingest()
        assert (landing.names(), landing.rows()[1][column]) == ({1: "new"}, 4 if order == "ts_ms" else 8)


def test_numbers_in_envelopes_keep_their_digits(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, pa.field("exact", pa.decimal128(38, 20))])
    landing = make_landing(tmp_path, schema=schema, envelope="debezium", order_by="source.lsn")
    row = '{"id":1,"exact":123456789012345678.12345678901234567890}'
    landing.land_text("a", f'{{"op":"c","after":{row},"source":{{"lsn":9007199254740993}}}}\n')
    landing.ingest()
    assert (str(landing.rows()[1]["exact"]), landing.rows()[1]["lsn"]) == (
        "123456789012345678.12345678901234567890",
        9007199254740993,
    )


def test_a_value_that_the_database_did_not_send_stays(tmp_path: Path) -> None:
    landing = make_landing(tmp_path, envelope="debezium", order_by="source.lsn")
    landing.land("a", change("c", 1, 1, name="long text", price=1.0))
    landing.land("b", change("u", 2, 1, name=UNAVAILABLE, price=2.25))
    landing.ingest()
    assert landing.rows()[1] == {"id": 1, "name": "long text", "price": 2.25, "lsn": 2}


@pytest.mark.parametrize(
    ("value", "is_unsent"),
    [
        ([UNAVAILABLE], True),
        ([[UNAVAILABLE]], True),
        ([f"see {UNAVAILABLE}"], False),
        ([], False),
    ],
)
def test_a_list_whose_only_value_is_the_placeholder_stays(tmp_path: Path, value: object, *, is_unsent: bool) -> None:
    tags = pa.list_(pa.list_(pa.string())) if value == [[UNAVAILABLE]] else pa.list_(pa.string())
    landing = make_landing(tmp_path, schema=pa.schema([*SCHEMA, pa.field("tags", tags)]), envelope="debezium")
    stored = [["a"], ["b"]] if tags.value_type != pa.string() else ["a", "b"]
    landing.land("a", change("c", 1, 1, name="one", price=1.0, tags=stored))
    landing.land("b", change("u", 2, 1, name="two", tags=value))
    landing.ingest()
    row = landing.rows()[1]
    assert (row["name"], row["price"], row["tags"]) == ("two", *((1.0, stored) if is_unsent else (None, value)))


def test_a_map_or_object_whose_only_value_is_the_placeholder_stays(tmp_path: Path) -> None:
    schema = pa.schema([*MAPS, pa.field("place", pa.struct([("city", pa.string())]))])
    landing = make_landing(tmp_path, schema=schema, envelope="debezium")
    landing.land("a", change("c", 1, 1, tags={"a": "1"}, place={"city": "Bonn"}))
    landing.land("b", change("u", 2, 1, name="two", tags={UNAVAILABLE: UNAVAILABLE}, place={"city": UNAVAILABLE}))
    landing.ingest()
    row = landing.rows()[1]
    assert (row["name"], row["tags"], row["place"]) == ("two", [("a", "1")], {"city": "Bonn"})


def test_a_text_that_contains_the_placeholder_is_part_of_a_whole_row(tmp_path: Path) -> None:
    landing = make_landing(tmp_path, envelope="debezium")
    landing.land("a", change("c", 1, 1, name="one", price=1.0))
    landing.land("b", change("u", 2, 1, name=f"see {UNAVAILABLE} docs"))
    landing.ingest()
    assert landing.rows()[1] == {"id": 1, "name": f"see {UNAVAILABLE} docs", "price": None, "lsn": None}


def test_a_placeholder_between_other_values_goes_to_quarantine(tmp_path: Path) -> None:
    landing = make_landing(tmp_path, schema=MAPS, envelope="debezium")
    landing.land("a", change("c", 1, 1, tags={"a": "1"}))
    landing.land("b", change("u", 2, 1, name="x", tags={"a": "2", "b": UNAVAILABLE}))
    report = landing.ingest()
    assert (landing.rows()[1]["tags"], report.metrics.rows_rejected) == ([("a", "1")], 1)
    fault = f"the field 'tags' contains {UNAVAILABLE} in place of a value, so the value is unknown"
    assert landing.reasons() == [("b", 1, f"{fault}. Send the whole row again")]


def test_records_that_are_no_envelopes_keep_their_text_in_quarantine(tmp_path: Path) -> None:
    landing = make_landing(tmp_path, envelope="debezium")
    wrong = ({"id": 1}, change("t", 1, 1), {"op": "u", "after": None}, change("c", 1, 1, city="x"))
    landing.land("a", *wrong, change("c", 1, 2, name="two"))
    landing.land_text("b", "[1]\nno json\n")
    landing.ingest()
    assert landing.names() == {2: "two"}
    assert [(file, line, reason) for file, line, reason in landing.reasons()] == [
        ("a", 1, "the record is not an envelope of Debezium: it has no op"),
        ("a", 2, "the operation 't' of the envelope is not supported. Use c, r, u or d"),
        ("a", 3, "the envelope with the operation 'u' has no object in after"),
        ("a", 4, "the field city is not a column of the table"),
        ("b", 1, "the line is not a JSON object"),
        ("b", 2, "the line is not valid JSON"),
    ]
    landing.land_text("c", "[" + ",".join(["null"] * 2) + "]")
    landing.declare(format="json")
    assert landing.ingest().details["tombstones"] == 2


# Exactly once.


def test_a_second_run_has_nothing_to_do_and_a_new_file_is_added(landing: KeyedLanding) -> None:
    landing.land("a", {"id": 1, "name": "one"})
    landing.ingest()
    with landing.table.writer() as writer:
        writer.put({"id": 1, "name": "written later"})
    assert landing.ingest().status == "nothing_to_do"
    landing.land("b", {"id": 2, "name": "two"})
    assert landing.ingest().status == "committed"
    assert landing.names() == {1: "written later", 2: "two"}


def test_a_file_whose_lines_are_all_rejected_is_read_once(landing: KeyedLanding) -> None:
    landing.land_text("a", "bad\n")
    assert landing.ingest().metrics.rows_rejected == 1
    assert landing.ingest().status == "nothing_to_do"


def test_regions_name_only_the_files_of_the_last_round(tmp_path: Path) -> None:
    landing = make_landing(tmp_path, replace(KEYED, region_specs=THREE_REGIONS))
    for number in range(4):
        landing.land(f"{number}", *({"id": key, "name": f"{number}"} for key in range(9)))
        landing.ingest()
    manifests = [read_latest(landing.store, each.id) for each in known_regions(landing.store, landing.log.snapshot())]
    assert [[*each.distributed] for each in manifests if each] == [["landed:3"]] * 3
    assert landing.names() == dict.fromkeys(range(9), "3")
    assert fsck(landing.store, clock=landing.clock, deep=True).clean


def test_many_files_take_several_rounds(landing: KeyedLanding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.keyed_ingest.ROUND_FILES", 2)
    for number in range(5):
        landing.land(f"{number}", {"id": 1, "name": f"{number}"}, {"id": 10 + number, "name": "own"})
    report = landing.ingest()
    assert (report.details["files"], report.metrics.rows_in, report.version) == (5, 10, 3)
    assert landing.names() == {1: "4", **{10 + number: "own" for number in range(5)}}


def test_a_run_never_replays_files_that_another_run_ingested_after_its_plan(
    landing: KeyedLanding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.keyed_ingest.ROUND_FILES", 2)
    for number in range(6):
        landing.land(f"{number}", {"id": 1, "name": f"{number}"}, {"id": 10 + number, "name": "landed"})
    log = landing.log
    planned = JobRun(Ingest(table_uri=landing.store.uri), InProcessExecutor(log), Opened(log), takes_leases=False)  # type: ignore[arg-type]
    assert landing.ingest().details["files"] == 6
    with landing.table.writer() as writer:
        writer.put({"id": 1, "name": "written later"})
    version = landing.log.snapshot().version
    assert run_ingest(planned).status == "nothing_to_do"
    assert landing.log.snapshot().version == version
    assert landing.names() == {1: "written later", **{10 + number: "landed" for number in range(6)}}


def test_the_report_has_the_bytes_of_the_parts_and_predicts_the_puts_of_each_round(
    landing: KeyedLanding, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.store = MeteredStore(landing.store)
    landing.land("0", {"id": 1, "name": "0"})
    landing.ingest()
    before = landing.store.requests["put"]
    monkeypatch.setattr("jobs.keyed_ingest.ROUND_FILES", 2)
    for number in range(1, 4):
        landing.land(f"{number}", {"id": 1, "name": f"{number}"})
    report = landing.ingest()
    assert report.predicted is not None
    assert report.predicted.puts == landing.store.requests["put"] - before == 2 * ROUND_PUTS
    assert report.metrics.bytes_out > report.metrics.bytes_in > 0


def test_records_above_the_size_of_a_generation_become_several(
    ordered: KeyedLanding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.write.ingest.landed_regions.ROWS_OF_A_GENERATION", 3)
    assert ROWS_OF_A_GENERATION > 3
    for number in range(4):
        ordered.land(f"{number}", *({"id": key, "name": f"{number}", "lsn": 10 - number} for key in range(2)))
    ordered.ingest()
    assert ordered.names() == {0: "0", 1: "0"}
    [region] = known_regions(ordered.store, ordered.log.snapshot())
    manifest = read_latest(ordered.store, region.id)
    assert manifest is not None
    assert len(manifest.flushed_generations) == 1, "every later generation had older records only"


def test_two_runs_at_once_apply_each_file_once(landing: KeyedLanding) -> None:
    landing.land("a", {"id": 1, "name": "one"})
    log = landing.log
    planned = log.snapshot()
    landing.ingest()
    job = JobRun(Ingest(table_uri=landing.store.uri), InProcessExecutor(log), takes_leases=False)
    job.use(log, planned)
    with pytest.raises(CommitConflict, match="another run ingested the file of 'landed:a'"):
        require_unlanded(job, ["landed:a"])


def test_late_records_of_a_keyed_table_go_to_quarantine_and_come_back(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False), *SCHEMA])
    late = LateData(policy="quarantine", acceptance_ms=0)
    config = TableConfig(primary_key=("at", "id"), time_column="at", window_seconds=3600, late_data=late)
    landing = make_landing(tmp_path, config, schema, op="_op")
    landing.land(
        "a",
        {"at": "1970-01-01T00:30:00Z", "id": 1, "name": "in time"},
        {"at": "1969-12-31T00:00:00Z", "id": 2, "name": "late"},
    )
    report = landing.ingest()
    assert report.metrics.rows_late_quarantined == 1
    assert [row["name"] for row in landing.rows().values()] == ["in time"]
    assert landing.retry().details["added"] == 0
    assert landing.retry(accept_late=True).details["added"] == 1
    assert sorted(row["name"] for row in landing.rows().values()) == ["in time", "late"]  # type: ignore[type-var]


# Retry.


def test_a_retry_refuses_rows_without_the_order_that_was_declared_later(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False), *SCHEMA])
    late = LateData(policy="quarantine", acceptance_ms=0)
    config = TableConfig(primary_key=("id",), time_column="at", window_seconds=3600, late_data=late)
    landing = make_landing(tmp_path, config, schema, op="_op")
    old = {"at": "1969-12-31T00:00:00Z"}
    landing.land("a", {**old, "id": 1, "name": "no order"}, {**old, "id": 2, "name": "ordered", "lsn": 3})
    landing.land("b", {"at": "1970-01-01T00:30:00Z", "id": 1, "name": "newer", "lsn": 9})
    landing.ingest()
    landing.declare(order_by="lsn")
    report = landing.retry(accept_late=True)
    assert (report.details["added"], report.details["rejected_reasons"]) == (1, {"column lsn: a value is required": 1})
    assert landing.names() == {1: "newer", 2: "ordered"}
    assert landing.retry(accept_late=True).details["added"] == 0


def test_a_null_order_is_older_than_every_value(ordered: KeyedLanding) -> None:
    ordered.land("a", {"id": 1, "name": "one", "lsn": -9})
    ordered.ingest()
    operations = pa.array([int(Operation.PUT)] * 4, pa.int8())
    orders = pa.array([5, None, -7, None], pa.int64())
    records = pa.table({OPERATION: operations, "id": [1, 1, 2, 2], "lsn": orders})
    assert sort_by_order(records, "lsn").column("lsn").to_pylist() == [None, None, -7, 5]
    [region] = known_regions(ordered.store, ordered.log.snapshot())
    newer = without_older(ordered.store, records, region.id, key=["id"], order="lsn")
    assert newer.select(["id", "lsn"]).to_pydict() == {"id": [1, 2, 2], "lsn": [5, -7, None]}


def test_a_retry_applies_each_line_once_and_respects_the_order(ordered: KeyedLanding) -> None:
    ordered.land("a", {"id": 1, "name": "one", "lsn": 1, "op": "c"}, {"id": 2, "name": "two", "lsn": 5, "op": "c"})
    ordered.land("b", {"id": 2, "name": "newer", "lsn": 7}, {"id": 3, "name": "three", "lsn": 3, "op": "zap"})
    ordered.ingest()
    assert len(ordered.reasons()) == 3
    ordered.declare(op="op")
    report = ordered.retry()
    assert (report.details["read"], report.details["added"], report.details["still_rejected"]) == (3, 2, 1)
    assert (report.metrics.rows_out, ordered.metrics()["rows_older"]) == (1, 1)
    assert ordered.names() == {1: "one", 2: "newer"}
    assert ordered.retry().status == "nothing_to_do"


def test_a_retry_reads_envelopes_and_typed_rows(tmp_path: Path) -> None:
    landing = make_landing(tmp_path / "json", envelope="debezium", order_by="source.lsn")
    landing.land("a", change("c", 1, 1, name="one", price="much"), change("c", 2, 2, name="two"))
    landing.ingest()
    log = landing.log
    from storage_core.data.rows.schema import to_schema_string

    head = log.snapshot()
    text = SCHEMA.set(2, pa.field("price", pa.string()))
    log.commit(head, [replace(head.metadata, schemaString=to_schema_string(text))], operation="SET SCHEMA")
    assert landing.retry().details["added"] == 1
    typed = make_landing(tmp_path / "typed", format="parquet", op="kind")
    typed.land_text("a", encoded("parquet", [{"id": 1, "name": "one", "price": 2.5, "kind": "?"}]))
    typed.ingest()
    typed.land_text("b", encoded("parquet", [{"id": 1, "name": "two", "kind": "patch"}]))
    typed.ingest()
    assert typed.names() == {1: "two"}
    assert typed.retry().details["still_rejected"] == 1


# Settings.


@pytest.mark.parametrize(
    ("spec", "config", "message"),
    [
        ({"op": "_op"}, TableConfig(), "op is for tables with a primary key"),
        ({"order_by": "lsn"}, TableConfig(), "order_by is for tables with a primary key"),
        ({"op": "name"}, KEYED, "op: 'name' is a column of the table"),
        ({"order_by": "lns"}, KEYED, "order_by: "),
        ({"order_by": "price"}, KEYED, "cannot order records"),
        ({"on_new_field": "add"}, KEYED, "does not support on_new_field"),
        ({"envelope": "debezium", "order_by": "source.scn"}, KEYED, "Add the column scn"),
    ],
)
def test_settings_that_do_not_fit_the_table_are_refused(
    spec: dict[str, Any], config: TableConfig, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        ChangeFormat.of(LandingSpec(uri="landing", format="ndjson", **spec), SCHEMA, config)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"format": "csv", "envelope": "debezium"}, "cannot contain envelopes, which are JSON objects"),
        ({"format": "ndjson", "envelope": "debezium", "op": "_op"}, "Leave out op"),
        ({"format": "ndjson", "envelope": "maxwell"}, "envelope"),
        ({"format": "delta", "order_by": "lsn"}, "op and order_by do not apply"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        LandingSpec(uri="landing", **spec)


def test_the_column_of_the_order_cannot_be_dropped_or_renamed(tmp_path: Path) -> None:
    landing = make_landing(tmp_path, envelope="debezium", order_by="source.lsn")
    table = Table(MeteredStore(landing.store), landing.log, landing.log.snapshot())
    with pytest.raises(InvalidInput, match="named in `order_by` of the landing location"):
        table.drop_column("lsn")
    with pytest.raises(InvalidInput, match="named in `order_by` of the landing location"):
        table.rename_column("lsn", "scn")


def test_files_land_in_a_keyed_table_as_a_whole(landing: KeyedLanding) -> None:
    with pytest.raises(InvalidInput, match="Leave the windows out"):
        landing.ingest(windows=window_range("0", None, None))
    landing.land("a", {"id": 1, "name": "one"})
    planned = landing.ingest(dry_run=True)
    assert (planned.status, planned.details["files"], landing.names()) == ("planned", 1, {})
