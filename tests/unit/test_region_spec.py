from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput, Unavailable
from storage_core.base.limits import QueryLimits
from storage_core.change.definition import check_definition
from storage_core.data.settings.layout import RegionField, RegionSpec, specs_from_text, specs_to_text
from storage_core.data.settings.table import TableConfig
from storage_core.write.region import expressions
from storage_core.write.region.expressions import Transform, TransformKind, parse_transform
from storage_core.write.region.manifest import region_of
from storage_core.write.region.spec import check_spec, declared_fields, first_specs, route
from tests.support.region_rows import field_value, region_of_row

ROOT = Path(__file__).resolve().parents[2]
TABLE = "00000000-0000-4000-8000-000000000001"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        ("score", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)
KEY = ("id", "name", "at")
BUCKETS = {"transform": "bucket", "source": "id", "n": 4}


def spec_of(*declared: dict[str, object]) -> RegionSpec:
    return RegionSpec(id=2, fields=declared_fields(list(declared), SCHEMA))


def value(declared: dict[str, object], **row: object) -> object:
    return field_value(declared_fields([declared], SCHEMA)[0], row, SCHEMA)


def test_a_declared_field_says_what_it_computes_and_of_which_type() -> None:
    assert declared_fields([BUCKETS], SCHEMA) == (
        RegionField(field_id="bucket_id", source_ids=("id",), result_type="integer", transform="bucket(4)"),
    )
    field = declared_fields([{"field": "first", "expression": "left(col0, 1)", "source": "name"}], SCHEMA)[0]
    assert (field.field_id, field.expression, field.result_type) == ("first", "left(col0, 1)", "string")


@pytest.mark.parametrize(
    ("declared", "row", "expected"),
    [
        (BUCKETS, {"id": 123}, 2),
        (BUCKETS, {"id": None}, 0),
        ({"transform": "multi_bucket", "sources": ["id", "name"], "n": 8}, {"id": None, "name": "hello!"}, 7),
        ({"transform": "multi_bucket", "sources": ["id", "name"], "n": 8}, {"id": None, "name": None}, 0),
        ({"transform": "truncate", "source": "id", "width": 10}, {"id": -1}, -10),
        ({"transform": "truncate", "source": "name", "width": 2}, {"name": "éàb"}, "éà"),
        ({"transform": "identity", "source": "name"}, {"name": None}, None),
        ({"transform": "year", "source": "at"}, {"at": dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC)}, 1969),
        ({"transform": "hour", "source": "at"}, {"at": dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC)}, 23),
        ({"transform": "day", "source": "at"}, {"at": None}, None),
        ({"expression": "col0 // 100", "source": "id"}, {"id": 250}, 2),
        (
            {"expression": "date_part('year', col0)", "source": "at"},
            {"at": dt.datetime(2024, 2, 29, tzinfo=dt.UTC)},
            2024,
        ),
    ],
)
def test_a_field_has_one_value_per_row(declared: dict[str, object], row: dict[str, object], expected: object) -> None:
    assert value(declared, **row) == expected


def test_the_spec_without_fields_keeps_the_region_that_tables_always_had() -> None:
    only = first_specs((), SCHEMA)[0]
    routed = route(TABLE, only, pa.table({"id": [1, 2]}))
    assert [each.id for each in routed.regions] == [region_of(TABLE)]
    assert routed.positions.tolist() == [0, 0]


def test_another_spec_without_fields_is_another_region() -> None:
    assert route(TABLE, RegionSpec(id=3), pa.table({"id": [1]})).regions[0].id != region_of(TABLE)


def test_regions_of_two_specs_never_meet() -> None:
    row = {"id": 1}
    second = RegionSpec(id=3, fields=spec_of(BUCKETS).fields)
    assert region_of_row(TABLE, spec_of(BUCKETS), row, SCHEMA).id != region_of_row(TABLE, second, row, SCHEMA).id


def test_the_ids_of_regions_never_change() -> None:
    declared = [BUCKETS, {"transform": "truncate", "source": "name", "width": 1}]
    found = region_of_row(TABLE, spec_of(*declared), {"id": 123, "name": "Zoë"}, SCHEMA)
    assert (found.values, found.id) == ((2, "Z"), "9439ae66-df57-5119-ac09-ac18eac419c8")


def test_no_rows_have_no_regions() -> None:
    assert route(TABLE, spec_of(BUCKETS), SCHEMA.empty_table()).regions == ()


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"transform": "bucket", "source": "score", "n": 2}, "primary key"),
        ({"transform": "bucket", "source": "nothing", "n": 2}, "nothing"),
        ({"transform": "bucket", "source": "id"}, "not a region transform"),
        ({"transform": "bucket", "source": "id", "n": 0}, "not a region transform"),
        ({"transform": "bucket", "source": "id", "width": 2}, "Give `n` only with bucket"),
        ({"transform": "year", "source": "at", "n": 2}, "not a region transform"),
        ({"transform": "year", "source": "id"}, "cannot use columns of type int64"),
        ({"transform": "bucket", "sources": ["id", "name"], "n": 2}, "one source column"),
        ({"transform": "round", "source": "id"}, "identity, year"),
        ({"transform": "year"}, "needs a `source`"),
        ({"transform": "year", "source": "at", "colour": "red"}, "some of"),
        ({"source": "id"}, "either a transform or an expression"),
        ({"transform": "year", "expression": "col0", "source": "at"}, "either a transform or an expression"),
        ({"transform": "bucket", "source": "tags", "n": 2}, "cannot use columns"),
    ],
)
def test_a_field_that_cannot_divide_the_table_is_refused(declared: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        check_spec(spec_of(declared), SCHEMA, KEY)


@pytest.mark.parametrize(
    "text",
    [
        "random()",
        "now()",
        "current_date",
        "(SELECT 1)",
        "read_text('/etc/hosts')",
        "current_setting('threads')",
        "getvariable('x')",
        "version()",
        "row_number() OVER ()",
        "sum(col0)",
        "unnest([col0])",
        "col1",
        "id",
        "$1",
        "*",
        "col0, col0",
        "col0) FROM source_rows WHERE (true",
        "CAST(col0 AS TIMESTAMPTZ)",
        "col0 +",
        "col0::UBIGINT",
        "[col0]",
        "1 // coalesce(col0, 'x'::BIGINT)",
    ],
)
def test_an_expression_that_is_no_function_of_its_row_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="region expression"):
        check_spec(spec_of({"expression": text, "source": "id"}), SCHEMA, KEY)


GROWING = (
    "lpad(col0, 2000000000, 'x')",
    "col0.repeat(200000000)",
    "rpad(col0, 2000000000, 'x')",
    "repeat(col0, 2000000000)",
    "repeat(col0, length(col0) * 1000000000)",
    "repeat(repeat(col0, 1000), 1000)",
    "replace(col0, 'a', repeat('x', 4000))",
    "replace(replace(col0, 'a', 'bbbbbbbbbbbbbbbbbbbb' || 'b'), 'b', 'c')",
    f"replace(replace(col0, 'a', '{'b' * 100}'), 'b', '{'c' * 100}')",
    "regexp_replace(col0, '', repeat('x', 1000), 'g')",
    "format('{:2000000000}', col0)",
    "format('{:{}}', col0, 2000000000)",
    "printf('%2000000000s', col0)",
    "len(range(2000000000))",
    f"length(replace(concat({', '.join(['col0'] * 300)}), 'a', '{'b' * 1800}'))",
    f"repeat({' || '.join(['col0'] * 10)}, 1000)",
    f"repeat('{'x' * 3000}', 1000)",
    f"concat_ws('{'x' * 1000}', {', '.join(['col0'] * 400)})",
    "array_to_string(range(100000000), 'x')",
    "string_agg(col0, 'x')",
    f"{'hex(' * 20}col0{')' * 20}",
    f"{'url_encode(' * 20}col0{')' * 20}",
    f"{'to_json(' * 20}col0{')' * 20}",
    f"{'[' * 20}col0{']' * 20}::VARCHAR",
    "bitstring('1', 2000000000)::VARCHAR",
    "col0 || '" + "x" * 5_000 + "'",
    "not " * 900 + "col0 = 'a'",
    "(" * 900 + "col0" + ")" * 900,
)


@pytest.mark.parametrize("text", GROWING)
def test_an_expression_that_makes_much_of_little_is_refused_where_it_is_declared_and_where_it_is_used(
    text: str,
) -> None:
    with pytest.raises(InvalidInput, match="region expression"):
        check_spec(spec_of({"expression": text, "source": "name"}), SCHEMA, KEY)


@pytest.mark.parametrize("text", GROWING[:4])
def test_a_growing_expression_of_an_earlier_release_makes_nothing_of_a_row(text: str) -> None:
    with pytest.raises(InvalidInput, match="region expression"):
        region_of_row(TABLE, spec_of({"expression": text, "source": "name"}), {"name": "abc"}, SCHEMA)


def test_a_value_of_an_expression_is_no_longer_than_a_name_may_be() -> None:
    spec = spec_of({"expression": "repeat(col0, 10)", "source": "name"})
    check_spec(spec, SCHEMA, KEY)
    assert region_of_row(TABLE, spec, {"name": "ab"}, SCHEMA).values == ("ab" * 10,)
    with pytest.raises(InvalidInput, match=r"70000 bytes\. The limit is 65536 bytes"):
        region_of_row(TABLE, spec, {"name": "a" * 7_000}, SCHEMA)


def test_an_expression_that_fails_on_a_row_refuses_that_row() -> None:
    spec = spec_of({"expression": "CAST(split_part(col0, '-', 2) AS BIGINT)", "source": "name"})
    check_spec(spec, SCHEMA, KEY)
    assert region_of_row(TABLE, spec, {"name": "a-7"}, SCHEMA).values == (7,)
    with pytest.raises(InvalidInput, match="fails"):
        region_of_row(TABLE, spec, {"name": "a-b"}, SCHEMA)


def test_an_expression_that_passes_its_limits_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "LIMITS", QueryLimits(seconds=0.001))
    with pytest.raises(Unavailable, match=r"the region expression .* more than 0.001 seconds or .* bytes"):
        expressions.evaluate("repeat(col0, 100)", [pa.array(["abc" * 30] * 100_000)])


def test_there_are_values_of_every_key_type_to_try_an_expression_on() -> None:
    kinds = [pa.int8(), pa.float32(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"),
             pa.timestamp("us", tz="UTC"), pa.decimal128(1, 1), pa.decimal128(38, 2)]  # fmt: skip
    assert {len(expressions.sample(each)) for each in kinds} == {7}
    assert all(expressions.sample(each).null_count == 1 for each in kinds)


def test_transforms_have_one_text_form() -> None:
    assert parse_transform("bucket(4)") == Transform(TransformKind.BUCKET, 4)
    assert [parse_transform(text).text for text in ("identity", "truncate(3)")] == ["identity", "truncate(3)"]
    for text in ("bucket", "bucket()", "bucket(04)", "bucket(2147483648)", "year(2)", "Bucket(2)", ""):
        with pytest.raises(InvalidInput, match="Use one of"):
            parse_transform(text)


def test_specs_travel_in_the_configuration_of_the_table() -> None:
    first, second = spec_of(BUCKETS), RegionSpec(id=3)
    config = TableConfig(primary_key=KEY, region_specs=(first, second))
    assert TableConfig.from_configuration(config.to_configuration()) == config
    assert config.region_spec == second
    assert specs_from_text(specs_to_text((first, second))) == (first, second)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "[1]",
        '[{"id": 0, "fields": []}]',
        '[{"id": 2, "fields": []}, {"id": 2, "fields": []}]',
        '[{"id": 2, "fields": [{"field_id": "a", "source_ids": [], "transform": "year", "result_type": "integer"}]}]',
        '[{"id": 2, "fields": [{"field_id": "a", "source_ids": ["x"], "result_type": "integer"}]}]',
    ],
)
def test_specs_that_cannot_be_read_are_refused_by_the_name_of_the_setting(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"tidemark\.regions"):
        TableConfig.from_configuration({"tidemark.regions": text})


def test_a_table_without_a_key_has_no_regions_to_divide() -> None:
    with pytest.raises(InvalidInput, match="primary key"):
        check_definition(SCHEMA, TableConfig(region_specs=first_specs([BUCKETS], SCHEMA)))


def test_an_expression_takes_long_keys_in_pieces_and_makes_no_gigabytes() -> None:
    code = (
        "import pyarrow as pa\n"
        "from storage_core.write.region.expressions import evaluate\n"
        "from tests.support.memory import grown_bytes\n"
        "keys = pa.array(['%03d' % number + 'x' * 60_000 for number in range(8)])\n"
        "def work():\n"
        "    assert evaluate('length(repeat(col0, 4000))', [keys]).to_pylist() == [240_012_000] * 8\n"
        "print(grown_bytes(work))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 2**30, "the value of one key is 240 MB"


def test_an_expression_over_many_pieces_keeps_the_rows_in_their_order() -> None:
    keys = pa.array([None if number % 7 == 0 else f"{number:06}" * 9 for number in range(20_000)])
    upper = expressions.evaluate("coalesce(upper(col0), 'none')", [keys])
    assert upper.to_pylist() == [each or "none" for each in keys.to_pylist()]
    assert expressions.evaluate("lower(col0)", [pa.array([], pa.string())]).to_pylist() == []
