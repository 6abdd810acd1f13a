"""The conversion by columns returns the same types and values as the conversion of single records.

The producer may send any content.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.data.formats.raw_chunk import RECORD_COLUMNS
from storage_core.data.formats.raw_fields import encode_fields
from storage_core.write.raw_log.read import FEW, one_by_one, plain_records, typed_records
from tests.support.scale import scaled

EXAMPLES = scaled(60)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tiny", pa.int8()),
        pa.field("short", pa.int16()),
        pa.field("int", pa.int32()),
        pa.field("required", pa.float64(), nullable=False),
        pa.field("single", pa.float32()),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(6, 2)),
        pa.field("whole", pa.decimal128(3, 0)),
        pa.field("share", pa.decimal128(2, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("day", pa.date32()),
        pa.field("ok", pa.bool_()),
        pa.field("blob", pa.binary()),
        pa.field("tags", pa.map_(pa.string(), pa.int32())),
        pa.field("singles", pa.list_(pa.field("element", pa.float32()))),
        pa.field("names", pa.list_(pa.field("element", pa.string()))),
        pa.field("days", pa.list_(pa.field("element", pa.date32()))),
        pa.field("point", pa.struct([pa.field("id", pa.int64())])),
        pa.field("a-b", pa.int64()),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("turned", pa.list_(pa.float32(), 2)),
    ]
)
NONZERO = ("turned",)

TEXTS = [
    *("", "x", "é\U0001f600", 'say "id": 1', "a\\", "\n\t\x00\x1f\x7f", '{"$date":"2024-01-01"}', "a{", "},", ":null"),
    *(
        "2024-02-29",
        "2023-02-29",
        "1900-02-29",
        "2000-02-29",
        "2024-04-31",
        "0999-01-01",
        "2024-13-01",
        "２０２４-01-01",
    ),
    *("2024-01-01T00:00:00", "2024-01-01 23:59:59.1", "2024-01-01T00:00:00.123456Z", "2024-01-01T00:00:00.1234567Z"),
    *("2024-01-01T00:00:00+00:00", "2024-01-01T00:00:00-00:00", "2024-01-01T02:00:00+02:00", "2024-01-01T24:00:00Z"),
    *("20240101T000000", "2024-W01-1T00:00:00", "2024-01-01T00:00:00.123456789", "2024-01-01T00:00:00.123456789+00:00"),
    *("2024-01-01T00:00:00.000001", "2024-01-01T00:00:00.000000", "2024-01-01T00:00:00.000000+00:00"),
    *("2024-01-01T00:00:00.1+00:00", "2024-01-01T00:00:00.120000+00:00", "2024-01-01 00:00:00+00:00"),
    *("2024-01-01T00:00", "2024-01-01T00:00:60Z", "9999-12-31T23:59:59.999999Z", "2024-01-01T00:00:00z"),
    *(
        "２０２４-01-01",
        "1",
        "+1.5",
        "-0",
        "-0.00",
        "007",
        "1234.56",
        "12345.6",
        "1.234",
        "1e2",
        ".5",
        "1.",
        "0.25",
        "999",
        "NaN",
    ),
    *("999", "NaN", "\ud800"),
]
_NUMBERS = """
    0 -0 -0.0 0.0 1 -1 1.0 127 128 -128 -129 99 32767 32768 29999 30000 2147483647 2147483648 1999999999 -2147483648
    9223372036854775807 9223372036854775808 -9223372036854775808 8999999999999999999 123456789012 184467440737095516160
    9007199254740993 16777217 9999999 999999999999999 1e5 1e-320 1E400 1.7976931348623157e308 9e299 0.1 1e39 1e19 5e-324
    12345678901234567.5e289 12345678901234567.5e19 3.4028236e38 0.30000000000000004 7.038531e-26 2.5e+10 2.5E-10 9999
    1.00000017881393432617187499 1.000000178813934215 12.5 -12.50 1234.56 -0.25 12345.6 1.234
    01 +1 1. .5 NaN -Infinity 0x1 1_0 1e
"""
NUMBERS = _NUMBERS.split()
TAGS = ["$date", "$timestamp", "$local", "$decimal", "$float", "$bytes", "$map", "$unknown", "$$date"]

WORDS = ["null", "true", "false", "nul", "True", "[]", "{}", "[null]", "", " 1", "1 "]
QUOTED = [text for each in TEXTS for text in (json.dumps(each), json.dumps(each, ensure_ascii=False), f'"{each}"')]
TAGGED = [f'{{"{tag}":{text}}}' for tag in TAGS for text in QUOTED]
SCALARS = [*WORDS, *NUMBERS, *QUOTED, *TAGGED]
VALUES = [*SCALARS, *(f"[{each}]" for each in SCALARS), *(f"[{each},null,1]" for each in NUMBERS), '["a",null]', "[1"]
VALUES += [f'{{"id":{each}}}' for each in SCALARS]
VALUES += [f"[1.5,{each}]" for each in SCALARS] + ["[0,0]", "[0.0,-0.0]", "[0,0,0]", "[1,2,3]"]

scalars = st.one_of(
    st.sampled_from([*WORDS, *NUMBERS, *QUOTED]),
    st.sampled_from(TAGGED),
    st.integers(-(2**64), 2**64).map(str),
    st.floats().map(json.dumps),
    st.floats(width=32).map(json.dumps),
    st.text(max_size=5).map(json.dumps),
)
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=3).map(lambda each: f"[{','.join(each)}]"),
    st.builds(lambda name, value: f'{{"{name}":{value}}}', st.sampled_from(["id", "a", "$date"]), scalars),
)
names = st.sampled_from([*SCHEMA.names, *SCHEMA.names, "unknown", "$id", "ID", ""])


def _object(pairs: list[tuple[str, str]], end: str, space: str) -> str:
    return "{" + ",".join(f'"{name}":{space}{value}' for name, value in pairs) + end


wild = st.builds(
    _object,
    st.lists(st.tuples(names, values), max_size=4).map(lambda each: [("id", "1"), ("required", "2.5"), *each]),
    st.sampled_from(["}", "}", "}", "}", "}", "},", ",}", "}}", "", "}\n", "} "]),
    st.sampled_from(["", "", "", " "]),
)
fitting = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1), "required": st.floats() | st.integers(-(2**53), 2**53)},
    optional={
        "tiny": st.none() | st.integers(-128, 127),
        "short": st.integers(-(2**15), 2**15 - 1),
        "int": st.integers(-(2**31), 2**31 - 1),
        "single": st.floats(width=32) | st.integers(-(2**24), 2**24),
        "name": st.none() | st.text(st.characters(codec="utf-8")),
        "price": st.decimals(-9999, 9999, places=2) | st.integers(-9999, 9999),
        "whole": st.decimals(-999, 999, places=0),
        "share": st.decimals("-0.99", "0.99", places=2),
        "at": st.datetimes(timezones=st.just(dt.UTC)) | st.datetimes(),
        "local": st.none() | st.datetimes(),
        "day": st.dates(),
        "ok": st.booleans(),
        "blob": st.none() | st.binary(max_size=3),
        "tags": st.none() | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.integers(0, 9)),
        "singles": st.lists(st.floats(width=32) | st.none(), max_size=3),
        "names": st.lists(st.text(st.characters(codec="utf-8"), max_size=3) | st.none(), max_size=3),
        "days": st.none() | st.lists(st.dates(), max_size=2),
        "point": st.none() | st.fixed_dictionaries({"id": st.integers(0, 5)}),
        "a-b": st.integers(0, 5),
        "vector": st.none() | st.lists(st.floats(width=32), min_size=1, max_size=3),
        "turned": st.none() | st.lists(st.sampled_from([0.0, -0.0, 1.5]), min_size=2, max_size=2),
    },
)
made = st.one_of(wild, fitting.map(encode_fields))
operations = st.sampled_from(["put", "put", "patch", "delete", "reset"])


def _is_text(fields: str) -> bool:
    try:
        return fields.encode() is not None
    except UnicodeEncodeError:
        return False


given_fields = st.tuples(operations, made.filter(_is_text))


def _records(pairs: list[tuple[str, str]]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "record_id": [f"w:{number}" for number in range(len(pairs))],
        "timestamp_ms": [7 * number for number in range(len(pairs))],
        "table": ["t"] * len(pairs),
        "key": [None] * len(pairs),
        "operation": [operation for operation, _ in pairs],
        "fields": [fields for _, fields in pairs],
    }
    return pa.table(columns, RECORD_COLUMNS)


def _seen(found: pa.Table) -> str:
    """Return the content as text, because NaN is not equal to itself and -0.0 equals 0.0."""
    return repr([found.schema, found.to_pylist()])


def _same_as_one_by_one(records: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the plain records.

    Assert that the conversion of single records rejects no record and gives the same values.
    """
    plain = plain_records(records, SCHEMA, key, NONZERO)
    given = records.take(pa.array(plain.positions))
    same = one_by_one(given, SCHEMA, key=key, merged_maps=("tags",), nonzero=NONZERO)
    assert same.all.rejected == ()
    plain.records.validate(full=True)
    assert _seen(plain.records) == _seen(same.all.records)
    return plain.records


def test_every_odd_value_in_every_column_is_typed_as_one_by_one() -> None:
    made = [f'{{"id":1,"required":1.5,"{name}":{value}}}' for name in SCHEMA.names[1:] for value in VALUES]
    found = _same_as_one_by_one(_records([("patch", fields) for fields in made if _is_text(fields)]), ("id",))
    with_values = {name for name in SCHEMA.names if found.column(name).null_count < found.num_rows}
    assert with_values == {*SCHEMA.names} - {"share", "blob", "tags", "days", "point", "a-b"}


@pytest.mark.parametrize("mixed", [False, True], ids=["all in tags", "one without"])
def test_values_in_their_tags_are_typed_as_one_by_one(mixed: bool) -> None:
    tags = {"price": "$decimal", "whole": "$decimal", "at": "$timestamp", "local": "$local", "day": "$date"}
    values = {name: ["null", *(f'{{"{tag}":{text}}}' for text in QUOTED)] for name, tag in tags.items()}
    made = [f'{{"id":1,"required":1.5,"{name}":{value}}}' for name, several in values.items() for value in several]
    given = [*made, '{"id":1,"required":1.5}', *(['{"id":1,"required":1.5,"day":"2024-01-01"}'] if mixed else [])]
    found = _same_as_one_by_one(_records([("patch", fields) for fields in given if _is_text(fields)]), ("id",))
    assert {name for name in tags if found.column(name).null_count < found.num_rows} == {*tags}
    assert found.column("day").to_pylist()[-1] == (dt.date(2024, 1, 1) if mixed else None)


@given(st.lists(given_fields, max_size=8), st.sampled_from([(), ("id",), ("name",), ("a-b",)]))
@settings(max_examples=EXAMPLES)
@example([("put", '{"id":1,"required":1.5,"id":2}'), ("patch", '{"id":1,"required":1.5}')], ("id",))
@example([("delete", '{"id":1,"required":null}'), ("delete", '{"id":1}'), ("delete", "{}")], ("id",))
@example([("put", '{"id":1,"required":1,"price":' + text + "}") for text in ("5", '"5"', "-0", "5.0")], ("id",))
def test_what_is_typed_by_column_is_typed_as_one_by_one(pairs: list[tuple[str, str]], key: tuple[str, ...]) -> None:
    _same_as_one_by_one(_records(pairs), key)


@given(st.lists(given_fields, min_size=3, max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=scaled(10))
def test_plain_and_other_records_come_back_in_the_order_they_were_given(
    few: list[tuple[str, str]], random: Any
) -> None:
    records = _records([random.choice(few) for _ in range(FEW)])
    found = typed_records(records, SCHEMA, key=("id",), merged_maps=("tags",), nonzero=NONZERO)
    expected = one_by_one(records, SCHEMA, key=("id",), merged_maps=("tags",), nonzero=NONZERO).all
    assert _seen(found.records) == _seen(expected.records)
    assert (found.ids, found.written_ms, found.rejected) == (expected.ids, expected.written_ms, expected.rejected)


def test_a_fraction_of_the_scale_of_its_decimal_column_is_plain_and_exact() -> None:
    texts = ["1234.56", "-0.25", "0.1", "7"]
    found = _same_as_one_by_one(
        _records([("put", f'{{"id":1,"required":1,"price":{text}}}') for text in texts]), ("id",)
    )
    assert found.column("price").to_pylist() == [Decimal(text) for text in texts]


def test_what_a_writer_makes_of_ordinary_rows_is_plain() -> None:
    row = {
        "id": -(2**62),
        "tiny": -99,
        "int": 1_700_000_000,
        "required": 2.5e-7,
        "single": float(np.float32(0.1)),
        "name": 'Zoë said "hi"\n',
        "price": Decimal("-1234.50"),
        "at": dt.datetime(2024, 2, 29, 1, 2, 3, 40, tzinfo=dt.UTC),
        "local": dt.datetime(2024, 2, 29),  # noqa: DTZ001  # a column without a zone
        "day": dt.date(2024, 12, 31),
        "ok": True,
        "tags": None,
        "singles": [1.5, None, 3.0],
        "names": [],
        "vector": [1.5, -0.25],
        "turned": None,
    }
    records = _records([("put", encode_fields(row))])
    found = plain_records(records, SCHEMA, ("id",)).records
    assert found.num_rows == 1
    kept = {name: value for name, value in found.to_pylist()[0].items() if name in row}
    assert kept == {**row, "single": np.float32(0.1)}
