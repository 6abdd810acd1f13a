"""For files of other projects, landing and a second reader return the same rows and rejections.

The test explains every allowed difference. `python -m tests.support.landed_suites` prints the counts and the
differences.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from jobs.spark.spark import Spark
from storage_core.data.steps import Ingest
from storage_core.log.job_run import run
from tests.support.drifting import Project
from tests.support.landed_suites import (
    JSON_TEST_SUITE,
    JSON_WAYS,
    Landed,
    Outcome,
    SuiteFile,
    difference,
    json_texts,
    outcomes,
    report,
    suite_files,
)
from tests.support.rejected_lines import rejected_lines
from tests.support.second_readers import REST, VALUE, json_lines, read_json
from tidemark import Table

PAGE = Path(__file__).parents[2] / "docs" / "architecture" / "reference-values.md"

_EXTRA_COMMAS = (
    "data/jsonchecker/fail04.json",
    "data/jsonchecker/fail07.json",
    "data/jsonchecker/fail09.json",
    "data/parsing/n_array_comma_after_close.json",
    "data/parsing/n_array_extra_comma.json",
    "data/parsing/n_array_number_and_comma.json",
    "data/parsing/n_object_trailing_comma.json",
)

EXPLAINED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "A comma after the last value is ignored (specification, section 14.1).": {
        "document": ("data/jsonchecker/fail09.json", "data/parsing/n_object_trailing_comma.json"),
        "lines": ("data/jsonchecker/fail09.json", "data/parsing/n_object_trailing_comma.json"),
        "value": _EXTRA_COMMAS,
        "element": _EXTRA_COMMAS,
        "scalar": (
            "data/jsonchecker/fail04.json",
            "data/parsing/n_array_extra_comma.json",
            "data/parsing/n_array_number_and_comma.json",
        ),
    },
    "A JSON file may have several values, one after the other. The object is a row, and the rest is rejected.": {
        "document": (
            "data/parsing/n_object_trailing_comment.json",
            "data/parsing/n_object_trailing_comment_open.json",
            "data/parsing/n_object_trailing_comment_slash_open.json",
            "data/parsing/n_object_trailing_comment_slash_open_incomplete.json",
            "data/parsing/n_object_with_trailing_garbage.json",
            "data/parsing/n_structure_object_with_trailing_garbage.json",
            "data/parsing/n_structure_trailing_#.json",
        ),
    },
    "A file without a record has no row, and nothing in it is rejected.": {
        "document": ("data/parsing/n_single_space.json", "data/parsing/n_structure_UTF8_BOM_no_data.json"),
        "lines": ("data/parsing/n_structure_UTF8_BOM_no_data.json",),
    },
    "A JSON file may have several values, one after the other. A file with two empty arrays contains no record.": {
        "document": ("data/parsing/n_structure_double_array.json",),
    },
    "An empty file does not land. The writer of the file may still be writing.": {
        "document": ("data/parsing/n_structure_no_data.json",),
        "lines": ("data/parsing/n_structure_no_data.json",),
    },
    "A record that gives a name twice is rejected, because one of the two values would be lost.": {
        "document": (
            "data/parsing/y_object_duplicated_key.json",
            "data/parsing/y_object_duplicated_key_and_value.json",
        ),
    },
    "Values without brackets have no end, so adjacent texts and numbers are rejected as one record.": {
        "document": ("tests/samples/test-two-arrays.json",),
    },
    "The first bytes are those of UTF-16. The whole file is refused, and the reason names the setting `encoding`.": {
        "lines": ("data/parsing/i_string_UTF-16LE_with_BOM.json",),
    },
    "`NaN` and infinities without quotes are read as text (specification, section 14.1).": {
        "value": (
            "data/parsing/n_number_-NaN.json",
            "data/parsing/n_number_Inf.json",
            "data/parsing/n_number_NaN.json",
            "data/parsing/n_number_infinity.json",
            "data/parsing/n_number_minus_infinity.json",
        ),
        "element": (
            "data/parsing/n_number_-NaN.json",
            "data/parsing/n_number_Inf.json",
            "data/parsing/n_number_NaN.json",
            "data/parsing/n_number_infinity.json",
            "data/parsing/n_number_minus_infinity.json",
        ),
        "scalar": (
            "data/parsing/n_number_-NaN.json",
            "data/parsing/n_number_Inf.json",
            "data/parsing/n_number_NaN.json",
            "data/parsing/n_number_infinity.json",
            "data/parsing/n_number_minus_infinity.json",
        ),
    },
    "The values of the Avro file are not records. A table row can only come from a record with fields.": {
        "avro": (
            "tests/avro-files/bool.avro",
            "tests/avro-files/class org.apache.avro.tool.TestDataFileTools.seperators.avro",
            "tests/avro-files/class org.apache.avro.tool.TestDataFileTools.testWrite.deflate.avro",
            "tests/avro-files/class org.apache.avro.tool.TestDataFileTools.testWrite.plain.avro",
            "tests/avro-files/class org.apache.avro.tool.TestDataFileTools.zerojsonvalues.avro",
            "tests/avro-files/deflate.avro",
            "tests/avro-files/null.avro",
            "tests/avro-files/org.apache.avro.tool.TestDataFileTools.avro",
            "tests/avro-files/response.avro",
            "tests/avro-files/snappy.avro",
            "tests/avro-files/testDataFileMeta.avro",
            "tests/samples/array_enum_test_data.avro",
            "tests/samples/array_string_test_data.avro",
            "tests/samples/array_test_data.avro",
            "tests/samples/bool_test_data.avro",
            "tests/samples/bytes_test_data.avro",
            "tests/samples/double_test_data.avro",
            "tests/samples/enum_null_test_data.avro",
            "tests/samples/enum_test_data.avro",
            "tests/samples/fixed_test_data.avro",
            "tests/samples/float_test_data.avro",
            "tests/samples/int_null_test_data.avro",
            "tests/samples/int_string_null_test_data.avro",
            "tests/samples/int_test_data.avro",
            "tests/samples/long_test_data.avro",
            "tests/samples/null_test_data.avro",
            "tests/samples/string_null_test_data.avro",
            "tests/samples/string_test_data.avro",
        ),
    },
    "The records of the Avro file have no fields, so a table gets no column.": {
        "avro": ("tests/avro-files/no-fields.avro",),
    },
    "The Avro type is recursive, but the columns of a table have a fixed depth.": {
        "avro": ("tests/avro-files/recursive.avro",),
    },
}
"""For each reason to differ from a second reader, the landing formats and the files with the difference."""

REASONS: Sequence[str] = (
    "the line is not valid JSON",
    "the line is not a JSON object",
    "the line is not UTF-8",
    "the field a is given twice",
    "the record has [0-9]+ fields, (the header|`columns`) has [0-9]+",
    *(
        f"the file cannot be used: {fault}. Land the whole file again under a new name"
        for fault in (
            "its JSON array is never closed, so the file is not complete",
            "a closing bracket at or after record [0-9]+ has no opening bracket, so the file is not valid JSON",
            "the file is UTF-16 text. Declare `encoding: utf-16` in `landing`, or write it as UTF-8",
            "the file is a zip archive. Land the files of the archive one by one",
            "the file is an ORC file",
            "its header is not UTF-8. Declare its `encoding` in `landing`, or write it as UTF-8",
            "the columns of the file are not the columns of the table .+",
            "the Avro schema is not a record",
            "the Avro schema cannot be used. The schema is invalid, too deep, or has a type inside itself",
            "the Avro record has no fields. Write records with fields",
            "the record is a union of [0-9]+ types, which tables do not support. Write one type",
        )
    ),
)
"""The forms of all reasons for which lines and files are rejected."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    return [*outcomes(tmp_path_factory.mktemp("suites"))]


def test_each_difference_from_a_second_reader_is_explained(found: list[Outcome]) -> None:
    different = {(each.way, each.file): each.difference for each in found if each.difference is not None}
    explained = {(way, file) for ways in EXPLAINED.values() for way, files in ways.items() for file in files}
    unexplained = {place: different[place] for place in different.keys() - explained}
    assert unexplained == {}
    assert explained - different.keys() == set(), "the files have no difference any more"


def test_the_counts_of_the_suites_are_those_of_the_page(found: list[Outcome]) -> None:
    print(report(found))  # noqa: T201 -- the counts, for `pytest -rP`
    assert report(found) in PAGE.read_text()


def test_the_reasons_of_the_differences_are_those_of_the_page() -> None:
    rows = [
        f"| {reason} | {', '.join(ways)} | {sum(map(len, ways.values()))} |\n" for reason, ways in EXPLAINED.items()
    ]
    assert "".join(rows) in PAGE.read_text()


@pytest.mark.parametrize(
    ("landed", "wanted", "why"),
    [
        (Landed([{"v": "1", "rest": None}]), b'{"v":1}', None),
        (Landed([{"v": "1", "rest": '{"a":[1.50]}'}]), b'{"v":1,"a":[1.50],"b":null}', None),
        (Landed([{"v": "1", "rest": '{"a":[1.5]}'}]), b'{"v":1,"a":[1.50]}', "1 of 1 rows have other values"),
        (Landed([{"v": "null", "rest": None}]), b'{"v":null}', "1 of 1 rows have other values"),
        (Landed([{"v": "2", "rest": None}]), b'{"v":1}', "1 of 1 rows have other values"),
        (Landed(), b'{"v":1}', "0 rows and 0 rejections, and the second reader has 1 rows and 0 rejections"),
        (Landed([], ["why"]), b"1 2", None),
        (Landed(), b"[1,]", "0 rows and 0 rejections, and the second reader has 0 rows and 1 rejections"),
        (Landed([], [], "why"), b'{"v":1}', "refused, and the second reader has 1 rows and 0 rejections"),
    ],
)
def test_a_lost_row_or_another_value_is_a_difference(landed: Landed, wanted: bytes, why: str | None) -> None:
    assert difference(landed, json_lines(wanted), lambda row, expected: expected.is_landed_as(row)) == why


def test_each_reason_of_a_rejection_is_a_text_of_ours(found: list[Outcome]) -> None:
    reasons = {reason for each in found for reason in (*each.landed.rejected, each.landed.refused) if reason}
    unknown = sorted(each for each in reasons if not any(re.fullmatch(form, each) for form in REASONS))
    assert unknown == []
    assert [form for form in REASONS if not any(re.fullmatch(form, each) for each in reasons)] == []


def test_the_second_reader_of_json_agrees_with_the_names_of_the_suite() -> None:
    names = {"y": 0, "n": 0, "i": 0}
    for file in _json_files(JSON_TEST_SUITE):
        kind = file.short_name[0]
        names[kind] += 1
        if kind != "i":
            assert _is_json(file.plain) == (kind == "y"), file.name
    assert names == {"y": 95, "n": 188, "i": 35}


def _is_json(data: bytes) -> bool:
    try:
        read_json(data)
    except ValueError:
        return False
    return True


def _json_files(suite: str | None = None) -> Iterator[SuiteFile]:
    return (each for each in suite_files() if each.form == "json" and suite in (None, each.suite))


@pytest.mark.parametrize("form", ["ndjson", "json"])
def test_the_files_of_one_run_have_the_rows_and_rejections_of_each_file(
    tmp_path: Path, found: list[Outcome], form: str
) -> None:
    assert _landed_together(tmp_path, form, Spark()) == _landed_alone(form, found)


@pytest.mark.spark
@pytest.mark.parametrize("form", ["ndjson", "json"])
def test_tasks_of_spark_land_the_rows_and_rejections_of_each_file(
    tmp_path: Path, found: list[Outcome], spark: Spark, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr("storage_core.write.ingest.batch.BATCH_BYTES", (2**16, 2**16))  # some tasks
    monkeypatch.setattr(spark, "is_needed_for", lambda *_: True)
    assert _landed_together(tmp_path, form, spark) == _landed_alone(form, found)


Contents = tuple[Counter[tuple[str | None, str | None]], Counter[str]]
"""The rows and the reasons of rejections, each with its number."""


def _landed_alone(form: str, found: Sequence[Outcome]) -> Contents:
    landed = [each.landed for each in found if JSON_WAYS.get(each.way) == form]
    rows = Counter((row[VALUE], row[REST]) for each in landed for row in each.rows)
    return rows, Counter(reason for each in landed for reason in (*each.rejected, each.refused) if reason)


def _landed_together(root: Path, form: str, executor: Spark) -> Contents:
    project = Project(root).declare(
        f"format: {form}, on_new_field: 'column:{REST}'", f"{{{VALUE}: string, {REST}: string}}"
    )
    files = [*_json_files()]
    for text in (text for way, each in JSON_WAYS.items() if each == form for text in json_texts(way, files)):
        (root / "landing" / text.name).write_bytes(text.data)
    run(Ingest(table_uri=project.uri, declaration=str(project.file)), executor)
    table = Table.open(project.uri)
    rows = Counter((row[VALUE], row[REST]) for row in table.scan([VALUE, REST]).to_arrow().to_pylist())
    return rows, Counter(str(each["reason"]) for each in rejected_lines(table.store))
