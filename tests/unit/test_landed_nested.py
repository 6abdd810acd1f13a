"""Nested JSON values of landed files as lists, structs and maps of a table."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from storage_core.write.ingest.batch import parse_file
from storage_core.write.ingest.convert import Parsed
from storage_core.write.ingest.landing import LandedFile, LandingSpec

POINT = pa.struct([("x", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("d", pa.decimal128(10, 2))])
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("l", pa.list_(pa.int64())),
        ("o", POINT),
        ("points", pa.list_(POINT)),
        ("tags", pa.map_(pa.string(), pa.list_(pa.string()))),
        ("deep", pa.struct([("m", pa.map_(pa.string(), pa.struct([("flag", pa.bool_())])))])),
        ("texts", pa.list_(pa.string())),
    ]
)


def parsed(folder: Path, text: str, form: str = "ndjson", schema: pa.Schema = SCHEMA, **settings: Any) -> Parsed:
    (folder / "a").write_text(text, encoding="utf-8")
    file = LandedFile("a", (folder / "a").stat().st_size, folder.resolve().as_uri())
    spec = LandingSpec(uri=file.uri, format=form, **settings)  # type: ignore[arg-type]
    return parse_file(file, spec, schema, None)


def lines(*objects: dict[str, Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


@pytest.mark.parametrize("number", ["nan", "Inf", "-NaN", "iNfinity"])
def test_a_number_that_is_not_json_rejects_its_list_with_this_reason(tmp_path: Path, number: str) -> None:
    schema = pa.schema([("l", pa.list_(pa.float64())), ("o", pa.struct([("x", pa.float64())]))])
    found = parsed(tmp_path, f'{{"l": [1, {number}]}}\n{{"o": {{"x": {number}}}}}\n{{"l": [2]}}\n', schema=schema)
    assert found.rows.to_pylist() == [{"l": [2.0], "o": None}]
    why = "a nested value is not valid JSON, or the value nests too deeply"
    assert [(each.line, each.reason) for each in found.rejected] == [(1, f"column l: {why}"), (2, f"column o: {why}")]


@pytest.mark.parametrize("form", ["ndjson", "json"])
def test_arrays_and_objects_become_lists_structs_and_maps(tmp_path: Path, form: str) -> None:
    line = (
        '{"n": 1, "l": [1, null, -9223372036854775808, "7"], '
        '"o": {"d": 1.5e1, "x": 3, "at": "2026-01-01T10:00:00+02:00"}, '
        '"points": [{"x": 1}, null, {}], "tags": {"a": ["x", "", null], "b": null, "c": []}, '
        '"deep": {"m": {"k": {"flag": true}, "": null}}, "texts": ["1.10", 1.10, true, "[1]", "é"]}\n'
        '{"n": 2, "l": null, "o": "", "points": []}\n{"n": 3}\n'
    )
    found = parsed(tmp_path, line, form)
    assert found.rejected == ()
    assert found.rows.schema == SCHEMA
    empty = {"x": None, "at": None, "d": None}
    assert found.rows.to_pylist() == [
        {
            "n": 1,
            "l": [1, None, -(2**63), 7],
            "o": {"x": 3, "at": datetime(2026, 1, 1, 8, tzinfo=UTC), "d": Decimal("15.00")},
            "points": [{**empty, "x": 1}, None, empty],
            "tags": [("a", ["x", "", None]), ("b", None), ("c", [])],
            "deep": {"m": [("k", {"flag": True}), ("", None)]},
            "texts": ["1.10", "1.10", "true", "[1]", "é"],
        },
        {**dict.fromkeys(SCHEMA.names), "n": 2, "points": []},
        {**dict.fromkeys(SCHEMA.names), "n": 3},
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"l": [1, 2.5]}, "column l[1]: not a valid int64"),
        ({"l": [[1]]}, "column l[0]: not a valid int64"),
        ({"l": 1}, "column l: not a JSON array"),
        ({"l": {"a": 1}}, "column l: not a JSON array"),
        ({"o": [1]}, "column o: not a JSON object"),
        ({"o": {"x": 2**31}}, "column o.x: not a valid int32"),
        ({"o": {"z": 1}}, "column o: the field z is not a field of the struct"),
        ({"o": {"x": {"y": 1}}}, "column o.x: not a valid int32"),
        ({"points": [{"x": 1}, {"at": "soon"}]}, "column points[1].at: not a valid timestamp"),
        ({"points": [{"d": 1.505}]}, "column points[0].d: not a valid decimal(10, 2)"),
        ({"tags": {"a": ["x", ["y"]]}}, 'column tags["a"][1]: not a valid string'),
        ({"tags": ["a"]}, "column tags: not a JSON object"),
        ({"deep": {"m": {"k": {"flag": 7}}}}, 'column deep.m["k"].flag: not a valid bool'),
    ],
)
def test_a_wrong_value_rejects_its_line_with_the_path(tmp_path: Path, value: dict[str, Any], reason: str) -> None:
    found = parsed(tmp_path, lines({"n": 1, "l": [1]}, value, {"n": 3, "o": {"x": 1}}))
    [(line, why)] = [(each.line, each.reason) for each in found.rejected]
    assert (line, why) == (2, reason)
    assert json.loads(found.rejected[0].text) == value
    assert [each["n"] for each in found.rows.to_pylist()] == [1, 3]


def test_a_name_that_is_given_twice_rejects_its_line(tmp_path: Path) -> None:
    found = parsed(
        tmp_path, '{"o": {"x": 1, "x": 2}}\n{"points": [{}, {"x": 1, "x": 1}]}\n{"tags": {"a": [], "a": []}}\n'
    )
    assert [each.reason for each in found.rejected] == [
        "column o: a name is given twice",
        "column points[1]: a name is given twice",
        "column tags: a name is given twice",
    ]


def test_declared_nulls_and_nanoseconds_apply_inside_of_a_column(tmp_path: Path) -> None:
    text = '{"l": ["-", 1], "points": [{"at": "2026-01-01T10:00:00.123456789Z"}]}\n'
    found = parsed(tmp_path, text, null_values=("-",), nanoseconds="truncate")
    assert found.rejected == ()
    [row] = found.rows.to_pylist()
    assert row["l"] == [None, 1]
    assert row["points"][0]["at"] == datetime(2026, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)


def test_random_values_are_those_that_a_parser_reads(tmp_path: Path) -> None:
    chance = random.Random(5)

    def point() -> dict[str, Any] | None:
        return chance.choice([None, {"x": chance.randrange(-9, 9), "at": None, "d": None}])

    def drawn() -> dict[str, Any]:
        return {
            "n": chance.randrange(9),
            "l": chance.choice([None, [chance.choice([None, chance.randrange(-(2**63), 2**63)]) for _ in range(3)]]),
            "o": point(),
            "points": [point() for _ in range(chance.randrange(3))],
            "tags": {f"k{each}": [str(each)] * each for each in range(chance.randrange(3))},
            "deep": {"m": {"a": {"flag": chance.choice([True, False, None])}}},
            "texts": [chance.choice(["", "a,]", '"', "\\", "\n", "1e5"]) for _ in range(chance.randrange(4))],
        }

    rows = [drawn() for _ in range(300)]
    found = parsed(tmp_path, lines(*rows))
    assert found.rejected == ()
    wanted = [{**each, "tags": [*each["tags"].items()], "deep": {"m": [*each["deep"]["m"].items()]}} for each in rows]
    assert found.rows.to_pylist() == wanted


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "gzip", "zstd", "lz4_raw", "brotli"])
def test_parquet_files_of_duckdb_give_nested_values(tmp_path: Path, version: str, codec: str) -> None:
    query = (
        "select i::bigint as n, case when i % 3 > 0 then [i, null] end::bigint[] as l, "
        "case when i % 4 > 0 then {'x': i::int, 'at': timestamptz '2026-01-01 00:00:00Z' + interval (i) hour, "
        "'d': (i / 4)::decimal(10,2)} end as o, map {'a': ['x' || (i % 5), null]} as tags from range(3000) r(i)"
    )
    file = tmp_path / "made.parquet"
    duckdb.sql(f"copy ({query}) to '{file}' (format parquet, parquet_version {version}, codec {codec})")
    given = duckdb.connect().sql(query).to_arrow_table()
    landed = LandedFile("made.parquet", file.stat().st_size, tmp_path.resolve().as_uri())
    found = parse_file(landed, LandingSpec(uri=landed.uri, format="parquet"), SCHEMA, None)
    assert found.rejected == ()
    assert found.rows.select(["n", "l", "tags"]).to_pylist() == given.select(["n", "l", "tags"]).to_pylist()
    assert [each and each["x"] for each in found.rows["o"].to_pylist()] == [
        each and each["x"] for each in given["o"].to_pylist()
    ]
    assert [each and each["d"] for each in found.rows["o"].to_pylist()] == [
        each and each["d"] for each in given["o"].to_pylist()
    ]
