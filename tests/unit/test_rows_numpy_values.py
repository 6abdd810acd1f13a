from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.incoming import table_of

Wrap = Callable[[Any], Any]

TYPES = [
    *(pa.bool_(), pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(38, 2)),
    *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
]
PLACES: dict[str, tuple[Wrap, Wrap, Wrap]] = {
    "column": (lambda kind: kind, lambda value: value, lambda kept: kept),
    "array without dimensions": (lambda kind: kind, np.array, lambda kept: kept),
    "list": (pa.list_, lambda value: [value], lambda kept: kept[0]),
    "array": (pa.list_, lambda value: np.array([value]), lambda kept: kept[0]),
    "array of objects": (pa.list_, lambda value: np.array([value], object), lambda kept: kept[0]),
    "vector": (lambda kind: pa.list_(kind, 1), lambda value: [value], lambda kept: kept[0]),
    "struct": (lambda kind: pa.struct([("a", kind)]), lambda value: {"a": value}, lambda kept: kept["a"]),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda value: {"a": value}, lambda kept: kept[0][1]),
    "key": (lambda kind: pa.map_(kind, pa.string()), lambda value: [(value, "a")], lambda kept: kept[0][0]),
    "list of structs of lists": (
        lambda kind: pa.list_(pa.struct([("a", pa.list_(kind))])),
        lambda value: [{"a": (value,)}],
        lambda kept: kept[0]["a"][0],
    ),
}
UNITS: list[Any] = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]


def scalars() -> list[Any]:
    whole = [np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 16, 32, 64)]
    found: list[Any] = [kind(each) for kind in whole for each in (0, 1, np.iinfo(kind).max, np.iinfo(kind).min)]
    found += [kind(each) for kind in (np.float16, np.float32, np.float64, np.longdouble) for each in (0, 1.5, 0.1)]
    found += [np.uint64(2**63), np.uint64(2**64 - 2**12), np.int64(2**53 + 1), np.float64(1e300)]
    found += [np.longdouble(2**63) + 1, np.longdouble("1e4000"), np.complex64(1), np.complex128(1j)]
    found += [np.bool_(True), np.bool_(False), np.str_("a"), np.str_("2026-01-01"), np.bytes_(b"ab"), np.void(b"ab")]
    found += [np.datetime64(each, unit) for unit in UNITS for each in (0, 1, 10**15, 2**62, -(2**62))]
    return [*found, *(np.timedelta64(each, unit) for unit in UNITS for each in (1, 2**62))]


def is_same(given: Any, kept: Any, kind: pa.DataType) -> bool:
    if isinstance(given, np.datetime64):
        time = dt.datetime.combine(kept, dt.time()) if type(kept) is dt.date else kept.replace(tzinfo=None)
        return bool(given == np.datetime64(time) and abs(int(np.datetime64(time, "Y").astype(int))) < 8100)
    if isinstance(given, np.str_):
        return str(kept).startswith(str(given)) or kept == str(given).encode()
    if isinstance(given, np.bytes_):
        return kept in (bytes(given), bytes(given).decode())
    if isinstance(given, np.bool_ | np.integer):
        return bool(kept == given.item()) and isinstance(kept, bool) == isinstance(given, np.bool_)
    if isinstance(given, np.timedelta64 | np.complexfloating | np.void):
        return False
    return (
        bool(np.float32(given) == np.float32(kept))
        if kind == pa.float32()
        else bool(Decimal(kept) == Decimal(float(given)))
    )


@pytest.mark.parametrize("place", PLACES)
def test_a_value_of_numpy_is_kept_as_it_is_or_refused(place: str) -> None:
    of_type, wrapped, inside = PLACES[place]
    for kind in TYPES:
        for given in scalars():
            schema = pa.schema([("x", of_type(kind))])
            try:
                table = table_of([{"x": wrapped(given)}], schema)
            except InvalidInput:
                continue
            table.validate(full=True)
            kept = inside(table.column(0)[0].as_py())
            assert is_same(given, kept, kind), (given, kept, kind)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        (pa.float64(), np.uint64(2**53), 2.0**53),
        (pa.float64(), np.longdouble(1.5), 1.5),
        (pa.bool_(), np.bool_(True), True),
        (pa.decimal128(9, 1), np.uint8(3), Decimal(3)),
        (pa.string(), np.str_("a"), "a"),
        (pa.binary(), np.bytes_(b"a"), b"a"),
        (pa.date32(), np.datetime64("2026-01", "M"), dt.date(2026, 1, 1)),
        (pa.timestamp("us", "UTC"), np.datetime64("2026-01-01", "s"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        (pa.timestamp("us", "UTC"), np.datetime64("-0001-01-01", "s"), None),
        (pa.float64(), np.uint64(2**63), None),
        (pa.float64(), np.uint64(2**64 - 1), None),
        (pa.int64(), np.timedelta64(1, "D"), None),
    ],
)
def test_a_value_of_numpy_is_the_equal_one_of_python(place: str, kind: pa.DataType, given: Any, kept: object) -> None:
    of_type, wrapped, inside = PLACES[place]
    schema = pa.schema([("x", of_type(kind))])
    if kept is not None:
        assert inside(table_of([{"x": wrapped(given)}], schema).column(0)[0].as_py()) == kept
        return
    with pytest.raises(InvalidInput, match="column 'x': a value does not fit") as caught:
        table_of([{"x": wrapped(given)}], schema)
    assert "-9223372036854775808" not in str(caught.value)


def test_masked_values_and_nat_are_null() -> None:
    schema = pa.schema([("x", pa.list_(pa.int64())), ("t", pa.list_(pa.timestamp("us")))])
    given = {"x": np.ma.array([1, 2], mask=[False, True]), "t": [np.datetime64("NaT")]}
    assert table_of([given], schema).to_pylist() == [{"x": [1, None], "t": [None]}]


def test_several_dimensions_are_lists_of_lists() -> None:
    schema = pa.schema([("x", pa.list_(pa.list_(pa.float64())))])
    masked = np.ma.array([[1.5, 2.5]], mask=[[True, False]])
    given = [{"x": np.array([[1.5, 2.5]])}, {"x": masked}, {"x": [np.array([1.5])]}]
    assert [each["x"] for each in table_of(given, schema).to_pylist()] == [[[1.5, 2.5]], [[None, 2.5]], [[1.5]]]
