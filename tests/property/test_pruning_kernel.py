"""Column-based pruning prunes the same splits as a plain Python loop over splits and values."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import Corrupt
from storage_core.data.rows.bound_text import bound_of_text
from storage_core.data.rows.statistics import column_regex, compute
from storage_core.log.actions import Add
from storage_core.log.split_columns import table_of
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Opaque, Or, Predicate
from storage_core.read.pruning import prune_table
from tests.support.scale import scaled

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "i": pa.int32(),
        "f": pa.float64(),
        "g": pa.float32(),
        "s": pa.string(),
        "d": pa.decimal128(9, 2),
        "w": pa.decimal128(38, 10),
        "z": pa.decimal128(38, 0),
        "day": pa.date32(),
        "moment": pa.timestamp("us", "UTC"),
        "naive": pa.timestamp("us"),
        "b": pa.bool_(),
        "raw": pa.binary(),
    }
)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INTEGERS = st.sampled_from([-(2**63), -(2**53) - 1, -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]) | st.integers(-4, 4)
FLOATS = st.sampled_from([-math.inf, -1e300, -0.0, 0.0, 0.1, 16777217.0, 5e-324, 2.0**63, math.inf, math.nan])
FLOATS |= st.integers(-8, 8).map(lambda each: each / 2)
TEXTS = st.text("ab\ue000\U00010000", max_size=3) | st.sampled_from(["a" * 33, "a" * 32, "\uffff", "\U0010ffff" * 33])
DECIMALS = st.sampled_from([Decimal("0.1"), Decimal("-1.005"), Decimal(10) ** 37, Decimal("123456789012345678.90123")])
DECIMALS |= st.integers(-40, 40).map(lambda each: Decimal(each) / 10)
DATES = st.dates(dt.date(1969, 12, 30), dt.date(1970, 1, 3)) | st.sampled_from([dt.date.min, dt.date.max])
FIRST, LAST = dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
EDGES = st.builds(lambda quarter, away: quarter * 900 * 10**6 + away, st.integers(-12, 12), st.integers(-1, 1))
INSTANTS = EDGES.map(lambda each: EPOCH + dt.timedelta(microseconds=each))
ZONED = INSTANTS.map(lambda each: each.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30))))
MOMENTS = INSTANTS | st.sampled_from([FIRST, LAST])
NAIVE = MOMENTS.map(lambda each: each.replace(tzinfo=None))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": INTEGERS,
    "i": st.integers(-4, 4),
    "f": FLOATS,
    "g": FLOATS.map(lambda each: float(np.float32(min(max(each, -1e30), 1e30)))),
    "s": TEXTS,
    "d": st.integers(-40, 40).map(lambda each: Decimal(each) / 10),
    "w": st.integers(-(10**12), 10**12).map(lambda each: Decimal(each).scaleb(-10)),
    "z": st.sampled_from([Decimal(10) ** 37, Decimal(2) ** 70 + 1]) | st.integers(-20, 20).map(Decimal),
    "day": DATES,
    "moment": MOMENTS,
    "naive": NAIVE,
    "b": st.booleans(),
    "raw": st.binary(max_size=2),
}
LITERALS = st.one_of(
    *(INTEGERS, FLOATS, TEXTS, DECIMALS, DATES, MOMENTS, ZONED, NAIVE),
    *(st.booleans(), st.just(b"a"), st.just(10**400)),
    st.sampled_from(
        ["1970-01-01", "1970-01-01T00:00:01Z", "1970-01-01 02:00:00+02:00", "1970-01-01T00:00:00.0000001", "tomorrow"]
    ),
    st.sampled_from([Decimal("Infinity"), Decimal("NaN"), Decimal("1e-999999"), Decimal("1e999999"), "\ud800"]),
)
DAMAGED = st.sampled_from(["", "x", "1.2.3", "99999999999999999999", "1" * 60, "1e-50", "2015-13-01", "Truth", "NaN"])


EXPRESSIONS = st.sampled_from(["(", "^a$"]) | st.lists(TEXTS, min_size=1, max_size=3).map(
    lambda values: column_regex(values) or ""
)


@st.composite
def texts(draw: st.DrawFn, column: str) -> tuple[str | None, str | None]:
    """Generate the minimum and maximum of a column as the texts that writers store.

    Some bounds are missing, have more digits than the type, or are not a value of the column.
    """
    spoilt = draw(st.sampled_from(["", "", "", "", "low", "high", "finer", "text"]))
    if spoilt == "text":
        return draw(DAMAGED), draw(DAMAGED)
    kind = SCHEMA.field(column).type
    if spoilt == "finer" and pa.types.is_decimal(kind):  # the column had another scale earlier
        kind = pa.decimal256(76, 30)
    values = draw(st.lists(DECIMALS if kind == pa.decimal256(76, 30) else VALUES[column], max_size=2))
    metrics = compute(pa.table({column: pa.array(values, kind)}))
    low, high = metrics.min_values.get(column), metrics.max_values.get(column)
    return (None if spoilt == "low" else low), (None if spoilt == "high" else high)


@st.composite
def splits(draw: st.DrawFn, about: list[str]) -> Add:
    bounds = {name: draw(texts(name)) for name in draw(st.permutations(about))}
    rows = draw(st.sampled_from([None, 0, 1, 2]))
    counts = st.dictionaries(st.sampled_from(about), st.integers(0, 2), max_size=2)
    partitioned = draw(st.lists(st.sampled_from(about), unique=True, max_size=2))
    seconds = draw(st.sampled_from([None, 3600, 3600, 900]))
    return Add(
        path="x",
        size=draw(st.integers(0, 3)),
        modificationTime=0,
        numRecords=rows,
        minValues=draw(st.just({name: low for name, (low, _) in bounds.items() if low is not None}) | st.none()),
        maxValues=draw(st.just({name: high for name, (_, high) in bounds.items() if high is not None}) | st.none()),
        nullCounts=draw(st.none() | counts),
        windowStart=draw(st.none() | st.integers(-2, 2).map(lambda each: each * 3600)),
        windowSeconds=seconds,
        partitionValues={name: draw(texts(name))[0] or "" for name in partitioned},
        columnRegexes=draw(st.none() | st.dictionaries(st.sampled_from(about), EXPRESSIONS, max_size=2)),
    )


@st.composite
def comparisons(draw: st.DrawFn, about: list[str]) -> Compare:
    column = draw(st.sampled_from(about))
    literal = draw(st.one_of(VALUES[column], VALUES[column], _alike(column), _alike(column), LITERALS))
    return Compare(column, draw(st.sampled_from(Comparison)), literal)


def _alike(column: str) -> st.SearchStrategy[Any]:
    """Generate literals of all types that can be compared with the column."""
    if column in ("n", "i", "f", "g", "d", "w", "z"):
        return INTEGERS | FLOATS | DECIMALS
    return DATES | MOMENTS | ZONED | NAIVE if column in ("day", "moment", "naive") else VALUES[column]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Add], Predicate]:
    """Generate splits with statistics of one or two columns, and a condition on these columns."""
    about = draw(st.lists(st.sampled_from(SCHEMA.names), unique=True, min_size=1, max_size=2))
    leaf: st.SearchStrategy[Predicate] = st.one_of(
        *[comparisons(about)] * 4,
        st.builds(IsNull, st.sampled_from([*about, "gone"]), st.booleans()),
        st.sampled_from([Opaque("opaque"), Compare("gone", Comparison.EQ, 1)]),
    )
    inner = st.lists(leaf, max_size=3).map(tuple)
    wanted = draw(st.one_of(leaf, leaf, inner.map(And), inner.map(Or), inner.map(lambda each: And((Or(each), *each)))))
    return draw(st.lists(splits(about), max_size=6)), wanted


@settings(max_examples=scaled(250), deadline=None)
@given(cases(), st.integers(1, 6), st.integers(0, 2))
def test_pruning_on_columns_equals_a_loop_over_splits(case: tuple[list[Add], Predicate], chunk: int, skip: int) -> None:
    adds, wanted = case
    files = pa.Table.from_batches(table_of(adds).to_batches(chunk), table_of([]).schema).slice(skip)
    pruned = prune_table(files, wanted, schema=SCHEMA, time_column="moment")
    names = [step.name for step in pruned.steps]
    removed = [remover(add, wanted, names) for add in adds[skip:]]
    assert pruned.keep.to_pylist() == [each is None for each in removed]
    for step in pruned.steps:
        assert step.splits == removed.count(step.name)
        assert step.bytes == sum(add.size for add, each in zip(adds[skip:], removed, strict=True) if each == step.name)


# The loop. Each value becomes a key, which is a tuple of a rank and a value. The value is a number or a text. Ranks are
# needed because Python does not order NaN.
Key = tuple[int, Any]
Bounds = tuple[pa.DataType, Key | None, Key | None, int | None, int | None]


def remover(add: Add, wanted: Predicate, steps: list[str]) -> str | None:
    """Return the first step that prunes the split."""
    sources = {"partition": partition_bounds, "window": window_bounds, "min/max": column_bounds}
    leaves: dict[str, Callable[[Compare | IsNull], bool]] = {
        name: lambda each, of=bounds_of: leaf_may_match(each, of(add, each.column))  # type: ignore[misc]
        for name, bounds_of in sources.items()
    }
    leaves["regex"] = lambda each: expression_may_match(add, each)
    return next((name for name in steps if not may_match(wanted, leaves[name])), None)


def expression_may_match(add: Add, wanted: Compare | IsNull) -> bool:
    expression = (add.columnRegexes or {}).get(wanted.column)
    if expression is None or isinstance(wanted, IsNull) or wanted.comparison is not Comparison.EQ:
        return True
    if wanted.column not in SCHEMA.names or not pa.types.is_string(SCHEMA.field(wanted.column).type):
        return True
    if not isinstance(wanted.value, str) or expression == "(" or wanted.value == "\ud800":
        return True
    return re.fullmatch(expression[1:-1], wanted.value) is not None


def partition_bounds(add: Add, column: str) -> Bounds | None:
    if column not in SCHEMA.names or not add.partitionValues.get(column):
        return None
    key = decoded(add.partitionValues[column], SCHEMA.field(column).type)
    return SCHEMA.field(column).type, key, key, 0, add.numRecords


def window_bounds(add: Add, column: str) -> Bounds | None:
    if column != "moment" or add.windowStart is None or add.windowSeconds is None:
        return None
    start = EPOCH + dt.timedelta(seconds=add.windowStart)
    end = start + dt.timedelta(seconds=add.windowSeconds) - dt.timedelta(microseconds=1)
    return SCHEMA.field(column).type, (0, micros(start)), (0, micros(end)), None, None


def column_bounds(add: Add, column: str) -> Bounds | None:
    if column not in SCHEMA.names:
        return None
    kind = SCHEMA.field(column).type
    low, high = (decoded((values or {}).get(column), kind) for values in (add.minValues, add.maxValues))
    return kind, low, high, (add.nullCounts or {}).get(column), add.numRecords


def may_match(wanted: Predicate, leaf: Callable[[Compare | IsNull], bool]) -> bool:
    match wanted:
        case And(children):
            return all(may_match(child, leaf) for child in children)
        case Or(children):
            return any(may_match(child, leaf) for child in children)
        case IsNull() | Compare():
            return leaf(wanted)
        case Opaque(_):
            return True
        case _:
            assert_never(wanted)


def leaf_may_match(wanted: Compare | IsNull, bounds: Bounds | None) -> bool:
    if isinstance(wanted, Compare):
        return bounds is None or compare_may_match(bounds, wanted.comparison, wanted.value)
    if bounds is None or bounds[3] is None:
        return True
    return bounds[4] is None or bounds[3] != bounds[4] if wanted.negated else bounds[3] > 0


def compare_may_match(bounds: Bounds, comparison: Comparison, value: object) -> bool:
    kind, low, high, nulls, rows = bounds
    if nulls is not None and nulls == rows:
        return False
    wanted = keys(value, kind)
    if wanted is None:
        return True
    least, greatest = wanted
    match comparison:
        case Comparison.EQ:
            return (low is None or low <= greatest) and (high is None or high >= least)
        case Comparison.LT:
            return low is None or low < greatest
        case Comparison.LE:
            return low is None or low <= greatest
        case Comparison.GT:
            return high is None or high > least
        case Comparison.GE:
            return high is None or high >= least
        case Comparison.NE:
            return not (low is not None and low == high == least == greatest)
        case _:
            assert_never(comparison)


def decoded(text: str | None, kind: pa.DataType) -> Key | None:
    """Return the key for the text of a bound.

    Return None if the bound is missing, is not a value of the type, or is out of the type's range.
    """
    if text is None or pa.types.is_binary(kind):
        return None
    try:
        value = bound_of_text(text, kind)
    except Corrupt:
        return None
    if isinstance(value, Decimal):
        held = value.is_finite() and abs(Fraction(value)) < 10**38 and (Fraction(value) * 10**38).denominator == 1
        return (0, Fraction(value)) if held else None
    if isinstance(value, bool | str):
        return 0, value
    if isinstance(value, int):
        return (0, Fraction(value)) if -(2**63) <= value < 2**63 else None
    if isinstance(value, float):
        return number(value)
    return 0, micros(value)


def keys(value: object, kind: pa.DataType) -> tuple[Key, Key] | None:
    """Return the smallest and the largest key that a literal can mean, or None if the type does not fit."""
    types = pa.types
    if types.is_boolean(kind):
        return ((0, value), (0, value)) if isinstance(value, bool) else None
    if types.is_string(kind):
        return ((0, value), (0, value)) if isinstance(value, str) and value != "\ud800" else None
    if types.is_temporal(kind):
        return instant(value, whole_days=types.is_date(kind))
    if types.is_binary(kind) or isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, Decimal) and not value.is_finite():
        return None if not types.is_floating(kind) else number_range(value, kind)
    if types.is_floating(kind):
        return number_range(value, kind)
    if not isinstance(value, float):
        return (0, Fraction(value)), (0, Fraction(value))
    if math.isnan(value):
        return number(math.nan), number(math.nan)
    around = [float(moved(np.float64(value), toward)) for toward in (-math.inf, math.inf)]
    return number(around[0]), number(around[1])


def number_range(value: float | Decimal, kind: pa.DataType) -> tuple[Key, Key] | None:
    try:
        double = np.float64(float(value))
    except OverflowError:
        return None
    found: list[np.floating[Any]] = [double]
    if kind == pa.float32():
        with np.errstate(over="ignore"):
            found.append(np.float32(double))
    if not isinstance(value, float):
        found = [moved(each, toward) for each in found for toward in (-math.inf, math.inf)]
    ordered = sorted(number(float(each)) for each in found)
    return ordered[0], ordered[-1]


def moved(value: np.floating[Any], toward: float) -> np.floating[Any]:
    target = value.dtype.type(toward)
    with np.errstate(over="ignore"):
        further: np.floating[Any] = np.nextafter(np.nextafter(value, target), target)
    return further


def number(value: float) -> Key:
    if math.isfinite(value):
        return 0, Fraction(value)
    return (2, 0) if math.isnan(value) else (1, 0) if value > 0 else (-1, 0)


def instant(value: object, *, whole_days: bool) -> tuple[Key, Key] | None:
    if isinstance(value, str):
        if value == "1970-01-01T00:00:00.0000001" or (whole_days and len(value) != 10):
            return None
        try:
            read = dt.datetime.fromisoformat(value)
        except ValueError:
            return None
        local = sorted([micros(read), micros(read.replace(tzinfo=None))])
        return (0, local[0]), (0, local[1])
    if not isinstance(value, dt.date):
        return None
    return (0, micros(value)), (0, micros(value))


def micros(value: dt.date) -> int:
    if not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return (aware - EPOCH) // dt.timedelta(microseconds=1)
