"""Landed JSON values are stored as each row of the specification's table of JSON values states."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.data.rows.vectors import vector_type
from storage_core.write.ingest.batch import parse_file
from storage_core.write.ingest.landing import LandedFile, LandingSpec

SPEC = Path(__file__).parents[2] / "docs" / "spec.md"
REJECTED = "rejected"
TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "vector(3)": vector_type(3),
    "map<string,long>": pa.map_(pa.string(), pa.int64()),
    "array<long>": pa.list_(pa.int64()),
    "struct<x:long>": pa.struct([("x", pa.int64())]),
}


def written() -> Iterator[tuple[str, str, str]]:
    """Yield the column type, the JSON value and the stored value of every example in the table."""
    section = SPEC.read_text(encoding="utf-8").split("### 14.1 JSON values\n")[1].partition("\n## ")[0]
    for line in section.splitlines():
        if not line.startswith("| `"):
            continue
        cells = [each.strip() for each in line.split("|")[1:-1]]
        if len(cells) != 3:
            continue  # the table of new fields
        columns, taken, rejected = cells
        for column in re.findall(r"`([^`]+)`", columns):
            yield from ((column, *pair) for pair in re.findall(r"`([^`]+)` ▸ `([^`]+)`", taken))
            yield from ((column, value, REJECTED) for value in re.findall(r"`([^`]+)`", rejected))


EXAMPLES = list(written())


def landed(folder: Path, lines: Sequence[str], type_: pa.DataType) -> list[str]:
    """Return the result of each line, in the table's notation."""
    data = "\n".join(lines)
    (folder / "a.ndjson").write_text(data, encoding="utf-8")
    spec = LandingSpec(uri=str(folder), format="ndjson")
    found = parse_file(LandedFile("a.ndjson", len(data.encode()), spec.uri), spec, pa.schema([("c", type_)]), None)
    rejected = {each.line for each in found.rejected}
    values = iter(found.rows.column("c").to_pylist())
    return [REJECTED if number in rejected else shown(next(values)) for number in range(1, len(lines) + 1)]


def shown(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case [float() | int(), *_]:
            return str(value)
        case list():
            return str(dict(value))
        case _:
            return str(value)


def test_the_table_has_examples_of_every_type_that_text_can_hold() -> None:
    assert {column for column, _, _ in EXAMPLES} == set(TYPES)
    assert len(EXAMPLES) > 60


@pytest.mark.parametrize("column", TYPES)
def test_a_json_value_becomes_what_the_specification_says(tmp_path: Path, column: str) -> None:
    examples = [(value, stored) for of, value, stored in EXAMPLES if of == column]
    found = landed(tmp_path, [f'{{"c": {value}}}' for value, _ in examples], TYPES[column])
    assert list(zip([value for value, _ in examples], found, strict=True)) == examples


@pytest.mark.parametrize("column", TYPES)
def test_a_missing_field_and_null_are_null_and_empty_text_is_text_of_a_string_only(tmp_path: Path, column: str) -> None:
    lines = ["{}", '{"c": null}', '{"c": ""}']
    empty = "" if column == "string" else "null"
    assert landed(tmp_path, lines, TYPES[column]) == ["null", "null", empty]
