"""New fields and wider values in landed files have the declared effect in every format, and no line is lost."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from jobs.spark.spark import Spark
from pipelines.alerts.receivers import AlertsDeclaration
from pipelines.alerts.sensors import Cursor, check_late_tables
from pipelines.status import State, StatusTarget, collect_status
from storage_core.base.clock import SystemClock
from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import load
from storage_core.data.steps import Ingest
from storage_core.log.job_run import run
from storage_core.maintain.quarantine import clear, pending_entries
from storage_core.maintain.rejections import DAY_MS
from storage_core.write.ingest.convert import OTHERS
from storage_core.write.ingest.drift import MOST_NAMED, OTHER_FIELDS, WHOLE_FILES, json_type, members_of, name_drift
from tests.support.drifting import COLUMNS, Project
from tests.support.receivers import Web, serving
from tidemark import Table


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


# JSON lines.


def test_a_new_field_sends_its_line_to_quarantine_by_default(project: Project) -> None:
    project.declare("format: ndjson").land("a", {"id": 1}, {"id": 2, "city": "Rome"})
    report = project.ingest()
    assert (report.metrics.rows_out, report.metrics.rows_rejected) == (1, 1)
    assert project.reasons() == ["the field city is not a column of the table"]


@pytest.mark.parametrize("rule", ["quarantine", "ignore", "add", "column:extra"])
def test_a_field_without_a_value_is_not_a_new_field(project: Project, rule: str) -> None:
    project.declare(f"format: ndjson, null_values: ['NA'], on_new_field: '{rule}'")
    project.land("a", {"id": 1, "city": None}, {"id": 2, "city": "NA"}, {"id": 3})
    report = project.ingest()
    assert (report.metrics.rows_out, report.metrics.rows_rejected, report.metrics.fields_ignored) == (3, 0, 0)
    assert "city" not in project.types()
    assert project.rows("extra") == [(1, None), (2, None), (3, None)]


def test_an_ignored_field_is_counted_and_its_row_lands(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: ignore")
    project.land(
        "a", {"id": 1, "city": "Rome", "zip": 1}, {"id": 2, "city": {"a": [1]}}, {"id": 3}, {"id": "x", "city": 1}
    )
    report = project.ingest()
    assert project.rows() == [(1,), (2,), (3,)]
    assert report.metrics.fields_ignored == 3
    assert report.details["fields_ignored"] == {"city": 2, "zip": 1}
    assert next(iter(Table.open(project.uri).history(1))).metrics["fields_ignored"] == 3
    assert project.reasons() == ["column id: not a valid int64"]


def test_new_fields_go_into_the_named_column_with_their_own_text(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: 'column:extra'")
    project.land(
        "a",
        '{"id":1,"city":"R\\u00f6m","k":1.50,"big":123456789012345678901234567890}',
        '{"id":2,"extra":"mine","deep":{"a": [1, 2]}}',
        '{"id":3}',
    )
    report = project.ingest()
    assert report.details["fields_kept"] == {"big": 1, "city": 1, "deep": 1, "extra": 1, "k": 1}
    assert (report.metrics.fields_kept, report.metrics.fields_ignored) == (5, 0)
    assert project.rows("extra") == [
        (1, '{"city":"R\\u00f6m","k":1.50,"big":123456789012345678901234567890}'),
        (2, '{"extra":"mine","deep":{"a": [1, 2]}}'),
        (3, None),
    ]


def test_new_fields_become_columns_in_the_commit_of_their_rows(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: add")
    project.land("a", {"id": 1})
    project.ingest()
    before = Table.open(project.uri).version
    project.land(
        "b",
        {"id": 2, "flag": True, "count": 7, "part": 1, "at": "2026-01-01T10:00:00Z", "tags": ["a"], "mix": 1},
        {"id": 3, "part": 1.5, "at": "2026-01-01T10:00:00+02:00", "city": "Rome", "mix": "b"},
    )
    report = project.ingest()
    assert Table.open(project.uri).version == before + 1
    at = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
    assert project.rows("flag", "count", "part", "at", "tags", "city", "mix") == [
        (1, None, None, None, None, None, None, None),
        (2, True, 7, 1.0, at, '["a"]', None, "1"),
        (3, None, None, 1.5, at.replace(hour=8), None, "Rome", "b"),
    ]
    assert report.metrics.columns_added == 7
    assert report.details["columns_added"] == {
        "part": "double",
        "at": "timestamp",
        "mix": "string",
        "city": "string",
        "count": "long",
        "flag": "boolean",
        "tags": "string",
    }
    assert next(iter(Table.open(project.uri).history(1))).metrics["columns_added"] == 7


def test_the_declaration_keeps_the_columns_that_files_added(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: add").land("a", {"id": 1, "city": "Rome"})
    project.ingest()
    Table.declare(load(project.file), project.uri)
    project.land("b", {"id": 2, "city": "Oslo", "zip": 5})
    project.ingest()
    assert project.rows("city", "zip") == [(1, "Rome", None), (2, "Oslo", 5)]
    project.declare("format: ndjson", COLUMNS.replace("}", ", city: string, zip: long}"))
    assert project.ingest().status == "nothing_to_do"
    project.declare("format: ndjson", COLUMNS)
    with pytest.raises(InvalidInput, match="column 'city': "):
        project.ingest()


def test_files_of_one_run_agree_on_one_type(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_core.write.ingest.batch.BATCH_BYTES", (1, 1))  # a task per file
    project.declare("format: ndjson, on_new_field: add")
    for number, value in enumerate([1, 2.5, "three", None, 9_007_199_254_740_993]):
        project.land(f"{number}", {"id": number, "v": value})
    project.land("5", {"id": 5, "w": 1})
    project.land("6", {"id": 6, "w": 0.5})
    project.ingest()
    assert (project.types()["v"], project.types()["w"]) == ("string", "double")
    assert project.rows("v")[:5] == [(0, "1"), (1, "2.5"), (2, "three"), (3, None), (4, "9007199254740993")]


def test_a_run_adds_a_limited_number_of_columns(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: add, max_new_fields: 2")
    project.land("a", {"id": 1, "a": 1, "b": 1}, {"id": 2, "b": 1}, {"id": 3, "c": 1}, {"id": 4, "c": 1})
    report = project.ingest()
    assert report.details["columns_added"] == {"b": "long", "c": "long"}
    assert project.reasons() == ["the field a is not a column, and the run could not add it. Add the column"]
    assert project.rows("b", "c") == [(2, 1, None), (3, None, 1), (4, None, 1)]
    retried = project.retry()
    assert (retried.details["added"], retried.details["columns_added"]) == (1, {"a": "long"})
    assert project.rows("a", "b")[0] == (1, 1, 1)


def test_names_that_cannot_be_columns_are_rejected_with_a_reason(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: add")
    project.land("a", {"id": 1, "ID": 2}, {"id": 2, " ": 2}, {"id": 3, "_change_type": 1}, {"id": 4, "Up": 1, "up": 2})
    project.land("b", {"id": 5, "up": 2}, {"id": 6, "up": 2})
    project.ingest()
    reasons = sorted(project.reasons())
    assert reasons[0] == "the field   cannot be a column, because its name is blank or not usable. Rename the field"
    assert reasons[1] == "the field ID differs from the column id only in case. Use the name of the column"
    assert reasons[2] == "the field Up differs from the column up only in case. Use the name of the column"
    assert reasons[3].startswith("the field _change_type cannot be a column")
    assert project.rows("up") == [(5, 2), (6, 2)]


def test_a_line_that_is_rejected_for_another_reason_adds_no_column(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: add, on_type_conflict: widen")
    project.land("a", {"id": "x", "city": 1, "n": 2**40}, {"id": 2})
    report = project.ingest()
    assert (report.metrics.columns_added, report.metrics.columns_widened, report.metrics.rows_rejected) == (0, 0, 1)
    assert "city" not in project.types()


def test_a_value_that_needs_a_wider_column_widens_it(project: Project) -> None:
    project.declare("format: ndjson, on_type_conflict: widen")
    project.land("a", {"id": 1, "n": 1, "f": 0.5, "x": "1.25"})
    project.ingest()
    project.land(
        "b", {"id": 2, "n": 2**40, "f": 1e300, "x": "12345678.25"}, {"id": 3, "n": 1.5}, {"id": 4, "x": "1.234"}
    )
    report = project.ingest()
    assert report.details["columns_widened"] == {"f": "double", "n": "long", "x": "decimal(10,2)"}
    assert report.metrics.columns_widened == 3
    assert [(id_, n, f, str(x)) for id_, n, f, x in project.rows("n", "f", "x")] == [
        (1, 1, 0.5, "1.25"),
        (2, 2**40, 1e300, "12345678.25"),
    ]
    assert sorted(project.reasons()) == ["column n: not a valid int64", "column x: not a valid decimal(10, 2)"]
    Table.declare(load(project.file), project.uri)
    project.declare("format: ndjson")
    with pytest.raises(InvalidInput, match=r"the column is long in the table\. Declare the column as long"):
        project.ingest()


def test_a_line_can_need_a_wider_column_and_a_new_one(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: add, on_type_conflict: widen")
    project.land("a", {"id": 1, "n": 2**40, "city": "Rome"})
    report = project.ingest()
    assert (report.metrics.columns_added, report.metrics.columns_widened, report.metrics.rows_rejected) == (1, 1, 0)
    assert project.rows("n", "city") == [(1, 2**40, "Rome")]


def test_two_runs_that_add_columns_at_once_both_land_their_rows_once(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: add").land("a", {"id": 1, "city": "Rome"})

    class RacingRun(Spark):
        rounds = 0

        def map(self, *arguments: Any, **options: Any) -> list[Any]:
            answers = super().map(*arguments, **options)
            RacingRun.rounds += 1
            if RacingRun.rounds == 2:  # the first run has already chosen its schema
                project.land("b", {"id": 2, "city": 5, "zip": 1})
                assert project.ingest().status == "committed"
            return answers

    Table.declare(load(project.file), project.uri)
    report = run(Ingest(table_uri=project.uri, declaration=str(project.file)), RacingRun())
    assert report.status == "nothing_to_do", "the other run landed both files"
    assert project.rows("city", "zip") == [(1, "Rome", None), (2, "5", 1)]


@pytest.mark.parametrize(("column", "type_"), [("city", "string"), ("zip", "long")])
def test_a_run_plans_again_if_another_process_adds_a_column(project: Project, column: str, type_: str) -> None:
    project.declare("format: ndjson, on_new_field: add").land("a", {"id": 1, "city": "Rome"})
    Table.declare(load(project.file), project.uri)

    class RacingRun(Spark):
        rounds = 0

        def map(self, *arguments: Any, **options: Any) -> list[Any]:
            answers = super().map(*arguments, **options)
            RacingRun.rounds += 1
            if RacingRun.rounds == 2:
                Table.open(project.uri).add_column(column, type_)
            return answers

    report = run(Ingest(table_uri=project.uri, declaration=str(project.file)), RacingRun())
    assert (report.status, report.metrics.rows_out) == ("committed", 1)
    assert report.metrics.columns_added == (0 if column == "city" else 1)
    assert project.rows("city") == [(1, "Rome")]
    assert project.ingest().status == "nothing_to_do"


@pytest.mark.parametrize(
    ("rule", "values"),
    [("ignore", [None, None]), ("add", ["Rome", None]), ("column:extra", ['{"city":"Rome"}', None])],
)
def test_a_retry_follows_the_present_rule(project: Project, rule: str, values: list[str | None]) -> None:
    project.declare("format: ndjson").land("a", {"id": 1, "city": "Rome"}, {"id": 2}, {"id": "x", "city": "Rome"})
    project.ingest()
    project.declare(f"format: ndjson, on_new_field: '{rule}'")
    report = project.retry()
    assert (report.details["added"], report.details["still_rejected"]) == (1, 1)
    column = {"ignore": "extra", "add": "city", "column:extra": "extra"}[rule]
    assert [value for _, value in project.rows(column)] == values
    if rule == "ignore":
        assert (report.metrics.fields_ignored, report.details["fields_ignored"]) == (1, {"city": 1})
    if rule == "add":
        assert (report.metrics.columns_added, report.details["columns_added"]) == (1, {"city": "string"})
    assert project.retry().status == "nothing_to_do"


def test_a_retry_widens_columns(project: Project) -> None:
    project.declare("format: ndjson").land("a", {"id": 1, "n": 2**40}, {"id": 2, "n": 1})
    project.ingest()
    project.declare("format: ndjson, on_type_conflict: widen")
    report = project.retry()
    assert report.details["columns_widened"] == {"n": "long"}
    assert project.rows("n") == [(1, 2**40), (2, 1)]


# Other formats.


ROWS = pa.table({"id": [1, 2, 3], "city": ["Rome", None, "Oslo"], "zip": pa.array([7, None, None], pa.int32())})


def write(folder: Path, form: str, rows: pa.Table, name: str = "a") -> None:
    if form == "csv":
        pa_csv.write_csv(rows, folder / name)
    elif form == "parquet":
        pq.write_table(rows, folder / name)
    elif form == "arrow":
        with pa.ipc.new_file(folder / name, rows.schema) as writer:
            writer.write_table(rows)
    else:
        kinds: dict[pa.DataType, object] = {pa.int64(): "long", pa.int32(): "int", pa.string(): "string"}
        kinds |= {
            pa.float64(): "double",
            pa.bool_(): "boolean",
            pa.list_(pa.int64()): {"type": "array", "items": "long"},
        }
        fields = [{"name": each.name, "type": ["null", kinds[each.type]]} for each in rows.schema]
        sink = io.BytesIO()
        fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, rows.to_pylist())
        (folder / name).write_bytes(sink.getvalue())


FORMATS = ("csv", "parquet", "arrow", "avro")


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_with_a_new_column_is_rejected_by_default(project: Project, form: str) -> None:
    write(project.declare(f"format: {form}").root / "landing", form, ROWS)
    report = project.ingest()
    assert (report.metrics.rows_out, len(project.reasons())) == (0, 1)
    assert "city" in project.reasons()[0]


@pytest.mark.parametrize("form", FORMATS)
def test_new_columns_of_a_file_are_ignored(project: Project, form: str) -> None:
    write(project.declare(f"format: {form}, on_new_field: ignore").root / "landing", form, ROWS)
    report = project.ingest()
    assert report.details["fields_ignored"] == {"city": 2, "zip": 1}
    assert project.rows() == [(1,), (2,), (3,)]


@pytest.mark.parametrize("form", FORMATS)
def test_new_columns_of_a_file_become_columns(project: Project, form: str) -> None:
    write(project.declare(f"format: {form}, on_new_field: add").root / "landing", form, ROWS)
    report = project.ingest()
    assert report.details["columns_added"] == {"city": "string", "zip": "long"}
    assert project.rows("city", "zip") == [(1, "Rome", 7), (2, None, None), (3, "Oslo", None)]


@pytest.mark.parametrize("form", FORMATS)
def test_new_columns_of_a_file_go_into_the_named_column(project: Project, form: str) -> None:
    write(project.declare(f"format: {form}, on_new_field: 'column:extra'").root / "landing", form, ROWS)
    project.ingest()
    zipped = "7" if form != "csv" else "'7'"
    texts = [None if text is None else json.loads(text) for _, text in project.rows("extra")]
    assert texts == [{"city": "Rome", "zip": int(zipped.strip("'")) if form != "csv" else "7"}, None, {"city": "Oslo"}]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_widens_columns(project: Project, form: str) -> None:
    rows = pa.table({"id": [1, 2], "n": [1, 2**40], "f": [0.5, 1e300]})
    write(project.declare(f"format: {form}, on_type_conflict: widen").root / "landing", form, rows)
    report = project.ingest()
    assert report.details["columns_widened"] == {"f": "double", "n": "long"}
    assert project.rows("n", "f") == [(1, 1, 0.5), (2, 2**40, 1e300)]


def test_a_narrow_value_of_a_wide_file_does_not_widen(project: Project) -> None:
    rows = pa.table({"id": [1], "n": [7]})
    write(project.declare("format: parquet, on_type_conflict: widen").root / "landing", "parquet", rows)
    assert project.ingest().metrics.columns_widened == 0
    assert project.rows("n") == [(1, 7)]


def test_nested_columns_of_a_typed_file_become_nested_columns(project: Project) -> None:
    rows = pa.table({"id": [1], "tags": [["a", "b"]], "at": pa.array([0], pa.timestamp("ms", "UTC"))})
    write(project.declare("format: parquet, on_new_field: add").root / "landing", "parquet", rows)
    project.ingest()
    assert project.rows("tags") == [(1, ["a", "b"])]
    assert project.types()["at"] == "timestamp[us, tz=UTC]"


def test_a_type_that_tables_do_not_hold_rejects_the_rows_that_have_a_value(project: Project) -> None:
    rows = pa.table({"id": [1, 2], "span": pa.array([None, 5], pa.time64("us"))})
    write(project.declare("format: parquet, on_new_field: add").root / "landing", "parquet", rows)
    project.ingest()
    assert project.rows() == [(1,)]
    assert project.reasons() == ["the field span has the type time64[us], which tables do not support. Leave it out"]


def test_a_rejected_row_of_a_typed_file_keeps_its_new_fields(project: Project) -> None:
    rows = pa.table({"id": [1, 2], "at": [0, 1 << 62], "city": ["Rome", "Oslo"]})
    columns = "{id: long, at: timestamp, extra: string}"
    project.declare("format: parquet, times: {at: s}, on_new_field: 'column:extra'", columns)
    write(project.root / "landing", "parquet", rows)
    project.ingest()
    assert project.rows("extra") == [(1, '{"city": "Rome"}')]
    table = Table.open(project.uri)
    (entry,) = [each.entry for each in pending_entries(table.store, table.snapshot)]
    assert json.loads(entry.rejected[0]["text"])["city"] == "Oslo"  # type: ignore[union-attr]


MIXED: Sequence[tuple[str, pa.Array, pa.Array, list[str | None]]] = (
    ("whole numbers and fractions", pa.array([5, None]), pa.array([1.5, 2.0]), ["5", None, "1.5", "2.0"]),
    ("text and booleans", pa.array(["a", '"b"']), pa.array([True, False]), ["a", '"b"', "true", "false"]),
    ("lists and numbers", pa.array([[1, 2], None]), pa.array([7, 8]), ["[1, 2]", None, "7", "8"]),
)


@pytest.mark.parametrize("form", ["parquet", "arrow", "avro"])
@pytest.mark.parametrize(("first", "second", "texts"), [each[1:] for each in MIXED], ids=[each[0] for each in MIXED])
def test_typed_files_whose_types_differ_fill_a_column_of_text(
    project: Project, monkeypatch: pytest.MonkeyPatch, form: str, first: pa.Array, second: pa.Array, texts: list[str]
) -> None:
    monkeypatch.setattr("storage_core.write.ingest.batch.BATCH_BYTES", (1, 1))  # a task per file
    project.declare(f"format: {form}, on_new_field: add")
    write(project.root / "landing", form, pa.table({"id": [1, 2], "v": first}), "a")
    write(project.root / "landing", form, pa.table({"id": [3, 4], "v": second}), "b")
    report = project.ingest()
    assert project.reasons() == []
    assert report.details["columns_added"] == {"v": "string"}
    assert [value for _, value in project.rows("v")] == texts
    write(project.root / "landing", form, pa.table({"id": [5, 6], "v": first}), "c")
    project.ingest()
    assert [value for _, value in project.rows("v")] == [*texts, *texts[:2]], "a later run adds the same texts"


def test_a_typed_file_fills_a_column_of_text_that_a_json_file_added(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: add, suffix: json")
    project.land("a.json", {"id": 1, "v": "x"}, {"id": 2, "v": 5})
    project.ingest()
    project.declare("format: parquet, on_new_field: add, suffix: parquet")
    at = pa.array([0, None], pa.timestamp("us", "UTC"))
    write(project.root / "landing", "parquet", pa.table({"id": [3, 4], "v": at}), "b.parquet")
    large = pa.array([2**64 - 1], pa.uint64())
    write(project.root / "landing", "parquet", pa.table({"id": [5], "v": large}), "c.parquet")
    project.ingest()
    assert project.reasons() == []
    assert [value for _, value in project.rows("v")] == ["x", "5", "1970-01-01 00:00:00+00:00", None, str(2**64 - 1)]


def test_a_typed_value_for_a_column_of_text_is_rejected_if_its_row_would_be(project: Project) -> None:
    project.declare("format: parquet, on_new_field: add", "{id: long, v: string}")
    far = pa.array([0, 253_402_300_800_000_000], pa.timestamp("us"))
    write(project.root / "landing", "parquet", pa.table({"id": [1, 2], "v": far}), "a")
    write(project.root / "landing", "parquet", pa.table({"id": [3, 4], "v": pa.array([None, 5], pa.time64("us"))}), "b")
    project.ingest()
    assert project.rows("v") == [(1, "1970-01-01 00:00:00"), (3, None)]
    assert sorted(project.reasons()) == [
        "column v: not between the years 1 and 9999",
        "the field v has the type time64[us], which tables do not support. Leave it out",
    ]


def test_a_field_that_the_table_refuses_is_rejected_with_the_reason(project: Project) -> None:
    project.declare("format: parquet, on_new_field: add")
    rows = pa.table({"id": [1, 2], "v": pa.array([{"A": 1, "a": 2}, None]), "w": [1, 2]})
    write(project.root / "landing", "parquet", rows)
    report = project.ingest()
    why = "the fields 'A' and 'a' of 'v' differ at most in case. Rename one"
    assert report.details["columns_refused"] == {"v": why}
    assert project.reasons() == [f"the field v is not a column, and the run could not add it: {why}"]
    assert project.rows("w") == [(2, 2)]


def test_only_the_rule_add_stores_typed_values_as_text(project: Project) -> None:
    project.declare("format: parquet, on_new_field: ignore", "{id: long, v: string}")
    write(project.root / "landing", "parquet", pa.table({"id": [1], "v": [5]}))
    project.ingest()
    assert "column 'v' has type int64, but the table has string" in project.reasons()[0]


def test_a_column_without_values_does_not_reject_the_file_whose_other_column_is_new(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.write.ingest.batch.BATCH_BYTES", (1, 1))  # a task per file
    project.declare("format: parquet, on_new_field: add", "{id: long!}")
    rows = pa.table({"id": [1, None, 2], "v": pa.array([None, 7, None], pa.int64()), "w": [1, 2, 3]})
    write(project.root / "landing", "parquet", rows, "a")
    write(project.root / "landing", "parquet", pa.table({"id": [3], "v": [True]}), "b")
    project.ingest()
    assert project.rows("v", "w") == [(1, None, 1), (2, None, 3), (3, True, None)]
    assert project.reasons() == ["column v: a value of type int64 does not fit bool"]


def test_csv_numbers_with_leading_zeros_stay_text(project: Project) -> None:
    project.declare("format: csv, on_new_field: add").land("a.csv", "id,zip,ok,at", "1,007,true,2026-01-01T00:00:00Z")
    project.ingest()
    assert {name: project.types()[name] for name in ("zip", "ok", "at")} == {
        "zip": "string",
        "ok": "bool",
        "at": "timestamp[us, tz=UTC]",
    }
    assert project.rows("zip") == [(1, "007")]


# Declarations.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("format: ndjson, on_new_field: drop", "on_new_field is 'drop'. Give quarantine, ignore, add or column:NAME"),
        ("format: ndjson, on_new_field: 'column:'", "on_new_field is 'column:'"),
        ("format: ndjson, on_new_field: 'column:nope'", "unknown column 'nope'. The table has id"),
        ("format: ndjson, on_new_field: 'column:n'", "column 'n' cannot get the new fields"),
        ("format: ndjson, on_type_conflict: narrow", "on_type_conflict"),
        ("format: ndjson, max_new_fields: 5", "max_new_fields limits the columns that a run adds"),
        ("format: ndjson, on_new_field: add, max_new_fields: 0", "max_new_fields is 0. Give a number from 1 to 1000"),
        ("format: pattern, pattern: '(?P<id>.*)', on_new_field: add", "lines of a pattern cannot have new fields"),
        (
            "format: csv, header: false, columns: [id], on_new_field: add",
            "CSV files without a header",
        ),
        ("format: delta, on_new_field: add", "do not apply to a Delta table"),
    ],
)
def test_settings_that_do_not_apply_are_refused(project: Project, settings: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        load(project.declare(settings).file)
    assert message in str(error.value)


def test_a_keyed_table_refuses_the_settings(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: add")
    project.file.write_text(project.file.read_text() + "primary_key: id\n")
    with pytest.raises(InvalidInput, match="a keyed table does not support on_new_field and on_type_conflict"):
        load(project.file)


def test_the_column_for_new_fields_cannot_be_dropped(project: Project) -> None:
    project.declare("format: ndjson, on_new_field: 'column:extra'").land("a", {"id": 1})
    project.ingest()
    with pytest.raises(InvalidInput, match="named in `on_new_field`"):
        Table.open(project.uri).drop_column("extra")


# Parts.


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("true", pa.bool_()),
        ("1", pa.int32()),
        ("-123456789012345", pa.int32()),
        ("9223372036854775807", pa.int64()),
        ("9223372036854775808", pa.string()),
        ("1.5", pa.float64()),
        ("1e400", pa.string()),
        ('"1"', pa.string()),
        ('"2026-01-01T10:00:00Z"', pa.timestamp("us", "UTC")),
        ('"2026-01-01T10:00:00"', pa.string()),
        ('"2026-02-30T10:00:00Z"', pa.string()),
        ('"2026-01-01"', pa.string()),
        ("[1]", pa.string()),
    ],
)
def test_a_value_has_the_narrowest_type_that_holds_it(text: str, type_: pa.DataType) -> None:
    assert json_type(text) == type_


@pytest.mark.parametrize(
    ("line", "members"),
    [
        ("{}", ()),
        (' { "a" : 1.50 , "b":{"c": [1, 2]} }', (("a", "1.50"), ("b", '{"c": [1, 2]}'))),
        ('{"\\u0061":"\\n","a":null,}', (("a", '"\\n"'), ("a", "null"))),
    ],
)
def test_the_fields_of_an_object_keep_their_text(line: str, members: Sequence[tuple[str, str]]) -> None:
    assert members_of(line) == members


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("column n: not a valid int32", "column n"),
        ("column n.m: a value is required", "column n.m"),
        ("column n.other: not a valid int32", "column n"),
        ("column n[3].x: not a valid int64", "column n"),
        ("column note: the field x is not a field of the struct", None),
        ("the field is not a column is not a column of the table", "field is not a column"),
        ("the field City differs from the column city only in case. Use the name of the column", "field City"),
        ("the field n is given twice", None),
        ("the line is not valid JSON", None),
        ("the file cannot be used: no footer. Land the whole file again under a new name", WHOLE_FILES),
        (OTHERS, None),
    ],
)
def test_a_reason_names_the_longest_column_or_the_field_or_no_drift(reason: str, name: str | None) -> None:
    found = name_drift({reason: 3}, {}, (), ["id", "n", "n.m"])
    assert found == ([] if name is None else [name])


def test_a_commit_names_the_most_frequent_drift() -> None:
    fields = {f"f{number:02}": number for number in range(1, MOST_NAMED + 20)} | {OTHER_FIELDS: 1_000}
    found = name_drift({"column n: not a valid int32": 40}, fields, ["x"], ["n", "x"])
    assert len(found) == MOST_NAMED
    assert found == sorted(found)
    assert {"column n", "field f69", "field f21"} <= {*found}
    assert {"field f20", "field other fields", "column x"}.isdisjoint(found)


# Status and alerts.


@dataclass
class Watch:
    """The status and the alerts of a project, at a time that the test sets."""

    project: Project
    web: Web = field(default_factory=Web)
    cursor: Cursor = field(default_factory=Cursor)
    now_ms: int = 1_800_000_000_000

    @property
    def place(self) -> StatusTarget:
        return StatusTarget(name="t", uri=self.project.uri)

    def kinds(self) -> list[str]:
        """Run the check of the sensor twice, and return the kinds of the alerts."""
        alerts = AlertsDeclaration.model_validate({"receivers": [{"webhook": self.web.url}]})
        first, second = (self._tick(alerts) for _ in range(2))
        assert second == [], "an alert is not repeated"
        return first

    def _tick(self, alerts: AlertsDeclaration) -> list[str]:
        ticked = check_late_tables([self.place], alerts, Cursor.of(self.cursor.to_text()))
        self.cursor = ticked.cursor
        return [each.kind for each in ticked.sent]

    def drifted(self) -> list[str]:
        return [*collect_status(self.place, SystemClock()).drifted]

    def last_text(self) -> str:
        return str(self.web.taken[-1]["text"])


@pytest.fixture
def watch(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    watched = Watch(project)
    monkeypatch.setattr("storage_core.base.clock.SystemClock.now_ms", lambda _: watched.now_ms)
    with serving(watched.web):
        yield watched


GOOD = [{"id": number} for number in range(300)]


def test_the_status_shows_drift_and_one_alert_reports_each_added_column(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson, on_new_field: add").land("a", {"id": 1})
    project.ingest()
    assert watch.kinds() == []
    for name in ("city", "zip"):
        project.land(name, {"id": 2, name: 1})
        project.ingest()
        assert watch.kinds() == ["drifted"]
        assert f"Fields and columns: field {name}." in watch.last_text()
    found = collect_status(watch.place, SystemClock())
    assert found.state is State.OK
    said = "Landed files of the last 24 hours added 2 columns. Fields and columns: field city, field zip. "
    assert found.drift_text == f"{said}Run: tidemark history t"


@pytest.mark.parametrize("rule", ["ignore", "column:extra"])
def test_a_second_new_field_is_reported_while_the_first_is_still_sent(
    project: Project, watch: Watch, rule: str
) -> None:
    project.declare(f"format: ndjson, on_new_field: '{rule}'").land("a", {"id": 1, "city": 1})
    project.ingest()
    assert watch.kinds() == ["drifted"]
    project.land("b", {"id": 2, "city": 1})
    project.ingest()
    assert watch.kinds() == []
    project.land("c", {"id": 3, "city": 1, "zip": 1})
    project.ingest()
    assert watch.kinds() == ["drifted"]
    assert "Fields and columns: field zip." in watch.last_text()
    assert watch.drifted() == ["field city", "field zip"]


def test_one_rejected_line_of_many_is_reported_by_its_field_or_column(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson").land("a", *GOOD, {"id": 1, "city": 1}, {"id": 2, "n": "x"}, "{")
    project.ingest()
    assert collect_status(watch.place, SystemClock()).state is State.OK
    assert watch.drifted() == ["column n", "field city"]
    assert next(iter(Table.open(project.uri).history(1))).metrics["drifted"] == ["column n", "field city"]
    assert watch.kinds() == ["drifted"]
    assert "had 3 rejected rows. Fields and columns: column n, field city." in watch.last_text()


def test_a_broken_line_below_the_limit_causes_no_alert(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson").land("a", *GOOD, "{")
    project.ingest()
    assert (watch.kinds(), watch.drifted()) == ([], [])
    assert "drifted" not in next(iter(Table.open(project.uri).history(1))).metrics


def test_a_widened_column_is_reported(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson, on_type_conflict: widen").land("a", {"id": 1, "n": 2**40})
    project.ingest()
    assert (watch.kinds(), watch.drifted()) == (["drifted"], ["column n"])


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_rejected_as_a_whole_is_reported(project: Project, watch: Watch, form: str) -> None:
    project.declare(f"format: {form}")
    write(project.root / "landing", form, pa.table({"id": [*range(300)]}), "many")
    write(project.root / "landing", form, ROWS)
    project.ingest()
    assert collect_status(watch.place, SystemClock()).state is State.OK
    assert (watch.kinds(), watch.drifted()) == (["drifted"], [WHOLE_FILES])


def test_the_alert_about_rejected_rows_also_reports_the_fields(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson").land("a", {"id": 1}, {"id": 2, "city": 1})
    project.ingest()
    assert watch.kinds() == ["rejecting"]
    assert "1 of 2 rows of the last 24 hours were rejected" in watch.last_text()
    assert "Fields and columns: field city." in watch.last_text()
    project.land("b", {"id": 3, "zip": 1})
    project.ingest()
    assert watch.kinds() == ["drifted"]


def test_a_fault_that_comes_every_day_causes_one_alert(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson, on_new_field: ignore")
    came = []
    for day in range(20):
        project.land(f"{day}", {"id": day, "city": 1}, *([{"id": "x"}] if day < 10 else []))
        project.ingest()
        came += watch.kinds()
        watch.now_ms += DAY_MS + 60_000
        came += watch.kinds()  # the last 24 hours have no run
    assert came == ["rejecting", "recovered"]
    assert "column id, field city" in watch.web.taken[0]["text"]


def test_a_name_is_reported_again_after_eight_days_without_it(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson, on_new_field: ignore").land("0", {"id": 0, "city": 1})
    project.ingest()
    assert watch.kinds() == ["drifted"]
    for number, (days, expected) in enumerate([(8, []), (9, ["drifted"])], 1):
        watch.now_ms += days * DAY_MS
        assert watch.kinds() == []
        project.land(f"{number}", {"id": number, "city": 1})
        project.ingest()
        assert watch.kinds() == expected


def test_a_table_reports_a_limited_number_of_names(
    project: Project, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.alerts.sensors.MOST_REPORTED", 3)
    project.declare("format: ndjson, on_new_field: ignore")
    came = []
    for number in range(4):
        project.land(f"{number}", {"id": number, f"a{number}": 1, f"b{number}": 1})
        project.ingest()
        came += watch.kinds()
    assert came == ["drifted", "drifted"]
    assert [*watch.cursor.drifted["t"]] == ["field a0", "field b0", "field a1"]


def test_a_name_that_no_receiver_took_is_reported_by_the_next_tick(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson, on_new_field: ignore").land("a", {"id": 1, "city": 1})
    project.ingest()
    watch.web.status = 503
    assert (watch.kinds(), watch.cursor.drifted) == ([], {})
    watch.web.status = 204
    assert watch.kinds() == ["drifted"]


def test_an_empty_quarantine_ends_the_state_of_a_table_that_accepts_new_fields(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson, on_new_field: ignore").land("a", {"id": 1}, "{")
    project.ingest()
    assert watch.kinds() == ["rejecting"]
    table = Table.open(project.uri)
    assert clear(table.log, table.snapshot, lambda *_: True)[0] == 1
    found = collect_status(watch.place, SystemClock())
    assert (found.state, found.rejection_text) == (State.OK, "")
    assert watch.kinds() == ["recovered"]


def test_a_keyed_table_names_the_drift_that_it_rejects(project: Project, watch: Watch) -> None:
    project.declare("format: ndjson")
    project.file.write_text(project.file.read_text() + "primary_key: id\n")
    project.land("a", *GOOD, {"id": 1, "city": 1}, {"id": 2, "n": "x"})
    project.ingest()
    assert (watch.kinds(), watch.drifted()) == (["drifted"], ["column n", "field city"])
