"""A Python row, an Arrow batch, a slice of the batch and a promoted type result in the same region value."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.settings.layout import RegionField, RegionSpec
from storage_core.write.region.spec import canonical, declared_fields, field_values, route
from tests.support.region_rows import field_value, region_of_row
from tests.support.scale import scaled

TABLE = "00000000-0000-4000-8000-000000000001"

instants = st.datetimes(dt.datetime.fromisoformat("0001-01-01"), dt.datetime.fromisoformat("9999-12-31"))
VALUES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(),
    pa.binary(): st.binary(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): instants,
    pa.timestamp("us", tz="UTC"): instants.map(lambda each: each.replace(tzinfo=dt.UTC)),
    pa.decimal128(10, 2): st.decimals(-(10**7), 10**7, places=2),
    pa.decimal128(38, 3): st.decimals(-(10**30), 10**30, places=3),
}
PROMOTED = {
    pa.int8(): pa.int64(),
    pa.int32(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.decimal128(10, 2): pa.decimal128(30, 2),
}
TRANSFORMS: dict[str, list[pa.DataType]] = {
    "identity": list(VALUES),
    "bucket": list(VALUES),
    "truncate": [pa.int8(), pa.int32(), pa.int64(), pa.string()],
    "year": [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")],
    "month": [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")],
    "day": [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")],
    "hour": [pa.timestamp("us"), pa.timestamp("us", tz="UTC")],
}
CASES = [(name, type_) for name, types in TRANSFORMS.items() for type_ in types]


def field_of(name: str, type_: pa.DataType) -> RegionField:
    parameter = {"bucket": {"n": 7}, "truncate": {"width": 3}}.get(name, {})
    schema = pa.schema([("v", type_)])
    return declared_fields([{"transform": name, "source": "v", **parameter}], schema)[0]


@pytest.mark.parametrize(("name", "type_"), CASES, ids=str)
@settings(max_examples=scaled(25))
@given(data=st.data())
def test_row_and_batch_and_promotion_agree(name: str, type_: pa.DataType, data: st.DataObject) -> None:
    schema = pa.schema([("v", type_)])
    values = data.draw(st.lists(st.none() | VALUES[type_], min_size=1, max_size=6))
    field = field_of(name, type_)
    batch = pa.table([pa.array(values, type_)], schema=schema)
    found = field_values(field, batch)
    assert [canonical(found.slice(at, 1))[0] for at in range(len(values))] == canonical(found)
    singles = [field_value(field, {"v": value}, schema) for value in values]
    assert all(same(one, many) for one, many in zip(singles, found.to_pylist(), strict=True))
    if type_ in PROMOTED:
        promoted = field_values(field, pa.table([batch["v"].cast(PROMOTED[type_])], names=["v"]))
        assert canonical(promoted) == canonical(found)


def same(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return left == right


@settings(max_examples=scaled(60))
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1)), width=st.integers(1, 2**31 - 1))
def test_truncation_is_the_floor(values: list[int], width: int) -> None:
    schema = pa.schema([("v", pa.int64())])
    field = declared_fields([{"transform": "truncate", "source": "v", "width": width}], schema)[0]
    found = field_values(field, pa.table([pa.array(values, pa.int64())], schema=schema)).to_pylist()
    assert found == [max(value // width * width, -(2**63)) for value in values]


@settings(max_examples=scaled(60))
@given(instant=instants)
def test_parts_of_a_moment_are_those_of_its_calendar(instant: dt.datetime) -> None:
    schema = pa.schema([("v", pa.timestamp("us", tz="UTC"))])
    row = {"v": instant.replace(tzinfo=dt.UTC)}
    kind = schema.field("v").type
    found = [field_value(field_of(name, kind), row, schema) for name in ("year", "month", "day", "hour")]
    assert found == [instant.year, instant.month, instant.day, instant.hour]


# Each evaluation of an expression opens a DuckDB, so there are few rows and few examples.
@settings(max_examples=scaled(8))
@given(
    rows=st.lists(st.tuples(st.none() | st.integers(-5, 5), st.none() | st.text(max_size=2)), min_size=1, max_size=4)
)
def test_every_row_of_a_batch_goes_where_it_goes_alone(rows: list[tuple[int | None, str | None]]) -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string())])
    declared: list[dict[str, object]] = [
        {"transform": "multi_bucket", "sources": ["a", "b"], "n": 3},
        {"expression": "coalesce(col1, '') || '-' || coalesce(col0 % 2, 0)", "sources": ["a", "b"]},
    ]
    spec = RegionSpec(id=2, fields=declared_fields(declared, schema))
    table = pa.Table.from_pylist([{"a": a, "b": b} for a, b in rows], schema=schema)
    routed = route(TABLE, spec, table)
    found = [routed.regions[position] for position in routed.positions]
    assert found == [region_of_row(TABLE, spec, {"a": a, "b": b}, schema) for a, b in rows]
    wider = table.set_column(0, "a", table["a"].cast(pa.int64()))
    assert route(TABLE, spec, wider).regions == routed.regions


def test_one_value_has_one_canonical_form_whatever_its_scale() -> None:
    narrow = pa.array([Decimal("1.50"), Decimal("-0.00"), Decimal("100.00")], pa.decimal128(10, 2))
    assert canonical(narrow) == canonical(narrow.cast(pa.decimal128(20, 4))) == ["1.5", "0", "100"]
