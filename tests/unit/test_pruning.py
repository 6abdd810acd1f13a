"""Pruning, case by case: the splits that each step removes or keeps, and manifests that are not read."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from storage_core.engine.statement import parse
from storage_core.log.actions import Add
from storage_core.log.checkpoint_writing import bounds_of
from storage_core.log.split_columns import ManifestBounds, table_of
from storage_core.read.predicate import Compare, Comparison, Filter, Predicate, col
from storage_core.read.pruning import PruneStep, manifest_filter, prune_table
from storage_core.read.sql import where_of
from storage_core.read.sql_predicate import from_sql

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "f": pa.float64(),
        "g": pa.float32(),
        "s": pa.string(),
        "d": pa.decimal128(9, 2),
        "z": pa.decimal128(38, 0),
        "day": pa.date32(),
        "time": pa.timestamp("us", "UTC"),
        "pair": pa.struct({"n": pa.int64()}),
        "raw": pa.binary(),
    }
)
HOUR = 3600
NAN = math.nan


def split(name: str, **fields: object) -> Add:
    return Add(**({"path": name, "size": 10, "modificationTime": 0} | fields))  # type: ignore[arg-type]


def bounded(column: str, low: str | None, high: str | None, *, nulls: int | None = 0, rows: int | None = 9) -> Add:
    return split(
        f"{low}..{high}",
        minValues={} if low is None else {column: low},
        maxValues={} if high is None else {column: high},
        nullCounts={} if nulls is None else {column: nulls},
        numRecords=rows,
    )


def left(splits: Sequence[Add], wanted: Predicate | None, time_column: str | None = "time") -> list[str]:
    """Return the paths of the splits that pruning keeps, in order."""
    files = table_of(splits)
    pruned = prune_table(files, wanted, schema=SCHEMA, time_column=time_column)
    paths: list[str] = files.filter(pruned.keep)["path"].to_pylist()
    return paths


def keeps(add: Add, wanted: Filter) -> bool:
    return left([add], wanted.predicate) == [add.path]


def test_every_step_reports_what_it_removed_and_the_order_is_kept() -> None:
    splits = [
        split("other partition", partitionValues={"s": "b"}, size=1),
        split("late", partitionValues={"s": "a"}, windowStart=HOUR, windowSeconds=HOUR, minValues={"n": "9"}, size=2),
        split("left", partitionValues={"s": "a"}, windowStart=0, windowSeconds=HOUR, size=4),
        split("great", partitionValues={"s": "a"}, windowStart=0, windowSeconds=HOUR, minValues={"n": "5"}, size=8),
        split("also left", windowSeconds=HOUR, size=16),
    ]
    wanted = (col("s") == "a") & (col("time") < dt.datetime(1970, 1, 1, 1, tzinfo=dt.UTC)) & (col("n") < 5)
    pruned = prune_table(table_of(splits), wanted.predicate, schema=SCHEMA, time_column="time")
    assert left(splits, wanted.predicate) == ["left", "also left"]
    assert pruned.steps == (
        PruneStep("partition", 1, 1),
        PruneStep("window", 1, 2),
        PruneStep("min/max", 1, 8),
        PruneStep("regex", 0, 0),
    )


def test_a_text_that_an_expression_does_not_match_is_in_no_row_of_its_split() -> None:
    splits = [
        bounded("s", "api", "web"),
        replace(bounded("s", "b", "web"), columnRegexes={"s": "^(b|web)$"}),
        replace(bounded("s", "c", "web"), columnRegexes={"s": "^(c|prod|web)$", "n": "^1$"}),
        replace(bounded("s", "d", "web"), columnRegexes={"s": "("}),
    ]
    assert left(splits, (col("s") == "prod").predicate) == ["api..web", "c..web", "d..web"]
    assert left(splits, ((col("s") == "prod") & (col("s") == "web")).predicate) == ["api..web", "c..web", "d..web"]
    assert left(splits, ((col("s") == "staging") | (col("s") == "b")).predicate) == ["api..web", "b..web", "d..web"]
    every = ["api..web", "b..web", "c..web", "d..web"]
    assert left(splits, (col("s") != "prod").predicate) == left(splits, (col("s") >= "prod").predicate) == every
    assert left(splits, (col("n") == 2).predicate) == every
    pruned = prune_table(table_of(splits), (col("s") == "prod").predicate, schema=SCHEMA, time_column=None)
    assert pruned.steps[-1] == PruneStep("regex", 1, 10)


@pytest.mark.parametrize("literal", ["date '2020-01-01'", "timestamp '2020-01-01'", "timestamptz '2020-01-01'"])
def test_texts_are_not_pruned_by_a_date_for_duckdb_casts_the_texts(literal: str) -> None:
    add = replace(bounded("s", "2020-1-1", "2020/01/01"), columnRegexes={"s": r"^2020(-1-1|/01/01)$"})
    for condition in (f"s = {literal}", f"s in ({literal})", f"not s <> {literal}"):
        assert keeps(add, from_sql(condition))
    assert not keeps(bounded("day", "2020-01-02", "2020-01-03"), from_sql("day = date '2020-01-01'"))


def test_without_partition_values_there_is_no_partition_step() -> None:
    pruned = prune_table(table_of([split("a")]), (col("n") == 1).predicate, schema=SCHEMA, time_column=None)
    assert [step.name for step in pruned.steps] == ["window", "min/max", "regex"]


@pytest.mark.parametrize("predicate", [None, (col("n") == 1).predicate], ids=["no filter", "a filter"])
def test_a_table_of_no_splits_prunes_to_none(predicate: Predicate | None) -> None:
    pruned = prune_table(table_of([]), predicate, schema=SCHEMA, time_column="time")
    assert len(pruned.keep) == 0
    assert sum(step.splits for step in pruned.steps) == 0


def test_without_a_filter_nothing_is_pruned_and_no_step_runs() -> None:
    pruned = prune_table(table_of([split("a"), split("b")]), None, schema=SCHEMA, time_column="time")
    assert (pruned.keep.to_pylist(), pruned.steps) == ([True, True], ())


def test_splits_are_counted_across_batches_of_any_size() -> None:
    two = table_of([bounded("n", "1", "1"), bounded("n", "2", "2")])
    files = two.take(pa.array([0] * 70_000 + [1, 0, 1]))
    pruned = prune_table(files, (col("n") >= 2).predicate, schema=SCHEMA, time_column=None)
    assert pruned.keep.to_pylist() == [False] * 70_000 + [True, False, True]
    assert pruned.steps[1] == PruneStep("min/max", 70_001, 700_010)


@pytest.mark.parametrize(
    ("add", "wanted", "kept"),
    [
        (add, wanted.predicate, kept)
        for add, wanted, kept in [
            (bounded("n", "3", "5"), col("n") == 5, True),
            (bounded("n", "3", "5"), col("n") > 5, False),
            (bounded("n", "3", "5"), col("n") < Decimal("3.5"), True),
            (bounded("n", "3", "3"), col("n") >= Decimal("3.5"), False),
            (bounded("n", "3", "3"), col("n") <= Decimal("2.5"), False),
            (bounded("n", "3", "5"), col("n") > Decimal("5.0"), False),
            (bounded("n", str(2**53 + 1), str(2**53 + 1)), col("n") == 2**53, False),
            (bounded("n", str(2**53 + 1), str(2**53 + 1)), col("n") == float(2**53), True),
            (bounded("n", "3", "5"), col("n") < math.inf, True),
            (bounded("n", "3", "5"), col("n") == NAN, False),
            (bounded("n", "9", "10"), col("n") == 10, True),
            (bounded("s", "10", "9"), col("s") == "5", True),
            (bounded("s", "10", "9"), col("s") == "90", False),
            (bounded("s", "\uffff", "\U00010000"), col("s") > "\uffff", True),
            (bounded("s", "\U00010000", "\U00010001"), col("s") <= "\uffff", False),
            (bounded("s", "a", "a" * 31 + "b"), col("s") == "a" * 40, True),
            (bounded("f", "0.0", "0.0"), col("f") == -0.0, True),
            (bounded("f", "0.0", "0.0"), col("f") != -0.0, False),
            (bounded("f", "1.0", "NaN"), col("f") > math.inf, True),
            (bounded("f", "1.0", "Infinity"), col("f") > math.inf, False),
            (bounded("f", "NaN", "NaN"), col("f") != NAN, False),
            (bounded("f", "NaN", "NaN"), col("f") <= math.inf, False),
            (bounded("g", "0.10000000149011612", "0.10000000149011612"), col("g") == 0.1, True),
            (bounded("g", "0.10000000149011612", "0.10000000149011612"), col("g") == 0.2, False),
            (bounded("d", "1.005", "1.005"), col("d") > Decimal("1.00"), True),
            (bounded("d", "1.005", "1.005"), col("d") > Decimal("1.0050"), False),
            (bounded("d", "1.00", "1.05"), col("d") < 1.0, True),
            (bounded("day", "1970-01-01", "1970-01-02"), col("day") == dt.date(1970, 1, 3), False),
            (bounded("day", "1970-01-01", "1970-01-02"), from_sql("day > '1970-01-01 12:00:00'"), True),
            (
                bounded("time", "1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:01.000000Z"),
                col("time") < dt.date(1970, 1, 1),
                False,
            ),
        ]
    ],
    ids=lambda each: each.path if isinstance(each, Add) else str(each),
)
def test_bounds_and_literals_compare_as_the_values_do(add: Add, wanted: Predicate, kept: bool) -> None:
    assert bool(left([add], wanted)) is kept


@pytest.mark.parametrize(
    "add",
    [
        split("nothing known"),
        bounded("n", None, None, nulls=None, rows=None),
        bounded("n", None, "9"),
        bounded("n", "five", "5", nulls=None),
        bounded("n", "0", "0", nulls=3, rows=None),
    ],
    ids=lambda add: add.path,
)
def test_a_statistic_that_is_missing_or_no_value_never_prunes(add: Add) -> None:
    assert keeps(add, col("n") == 0)
    assert keeps(add, col("n").is_not_null())


def test_a_bound_that_is_no_value_keeps_its_own_split_only() -> None:
    splits = [bounded("n", "1", "1"), bounded("n", "one", "one"), bounded("n", "3", "3")]
    assert left(splits, (col("n") == 3).predicate) == ["one..one", "3..3"]


def test_a_split_of_nulls_matches_no_comparison_but_is_null() -> None:
    nulls = bounded("n", None, None, nulls=9)
    assert not keeps(nulls, col("n") != 0)
    assert not keeps(nulls, col("n").is_not_null())
    assert keeps(nulls, col("n").is_null())
    assert not keeps(bounded("n", "1", "1"), col("n").is_null())


@pytest.mark.parametrize("text", ["pair.n > 5", "t.pair.n > 5", "not (pair.n <= 5)"])
def test_a_field_of_a_struct_is_not_the_column_of_that_name(text: str) -> None:
    add = bounded("n", "1", "2")
    assert keeps(add, from_sql(text))
    wanted = where_of(parse(f"select * from t where {text}"), "t")
    assert left([add], wanted) == [add.path]


def test_a_sample_is_taken_of_all_rows_before_the_condition() -> None:
    assert where_of(parse("select * from t where n = 1 using sample 5 rows"), "t") is None


@pytest.mark.parametrize("query", ["select * from t where t.n > 5", "select * from t as u where u.n > 5"])
def test_a_column_is_known_by_the_name_of_its_table_too(query: str) -> None:
    wanted = where_of(parse(query), "t")
    assert left([bounded("n", "1", "2")], wanted) == []


@pytest.mark.parametrize(
    ("start", "seconds"), [(2**62, HOUR), (-(2**63), HOUR), (0, 2**63 - 1), (0, 0), (0, -5), (0, None), (None, HOUR)]
)
def test_a_window_that_is_no_span_of_time_never_prunes(start: int | None, seconds: int | None) -> None:
    add = split("odd", windowStart=start, windowSeconds=seconds)
    assert keeps(add, col("time") == dt.datetime(2015, 5, 17, tzinfo=dt.UTC))


@pytest.mark.parametrize("column", ["n", "s", None, "gone"])
def test_a_window_says_nothing_about_what_is_no_time(column: str | None) -> None:
    add = split("far", windowStart=10 * HOUR, windowSeconds=HOUR)
    for wanted in (col("n") == 0, col("s") == "1970-01-01", col("gone") == 1):
        assert left([add], wanted.predicate, time_column=column) == ["far"]


@pytest.mark.parametrize(
    ("column", "text", "wanted", "kept"),
    [
        (column, text, wanted.predicate, kept)
        for column, text, wanted, kept in [
            ("n", "7", col("n") == 7, True),
            ("n", "7", col("n") == 8, False),
            ("n", "7", col("n").is_null(), False),
            ("n", "7", col("n").is_not_null(), True),
            ("n", "", col("n").is_null(), True),
            ("n", "", col("n") == 8, True),
            ("n", "seven", col("n") == 8, True),
            ("s", "é" * 40, col("s") == "é" * 40, True),
            ("day", "2015-05-17", col("day") >= dt.date(2015, 5, 18), False),
            ("day", "2015-05-17", col("n") == 1, True),
        ]
    ],
)
def test_a_partition_value_is_the_value_of_every_row(column: str, text: str, wanted: Predicate, kept: bool) -> None:
    assert bool(left([split("p", partitionValues={column: text})], wanted)) is kept


@pytest.mark.parametrize("far", [0, 1, -1])
def test_a_decimal_is_kept_for_every_double_that_it_may_be_rounded_to(far: int) -> None:
    # DuckDB's cast of a wide decimal rounds twice, so its result may be the double after the nearest double.
    stored = 2**100 + 2**47 + 1
    near = float(stored)
    wanted = near if far == 0 else math.nextafter(near, math.inf if far > 0 else -math.inf)
    assert keeps(bounded("z", str(stored), str(stored)), col("z") == wanted)


@pytest.mark.parametrize("column", ["n", "d", "f"])
@pytest.mark.parametrize("exponent", [999_999_999, -999_999_999])
def test_a_literal_of_any_size_is_compared_in_bounded_time(column: str, exponent: int) -> None:
    add = bounded(column, "1", "2")
    literal = Decimal(f"1e{exponent}")
    below, above = (Compare(column, comparison, literal) for comparison in (Comparison.LT, Comparison.GT))
    kept = [bool(left([add], each)) for each in (below, above)]
    assert kept == [exponent > 0, exponent < 0]


def test_an_integer_beyond_every_double_prunes_no_float_column() -> None:
    wanted = Compare("f", Comparison.EQ, 10**400)
    assert left([bounded("f", "1.0", "2.0")], wanted)


PARTITIONS = ("s", "n", "day")


def may_match(manifest: ManifestBounds, wanted: Filter | None, columns: Sequence[str] = PARTITIONS) -> bool:
    predicate = None if wanted is None else wanted.predicate
    return manifest_filter(predicate, schema=SCHEMA, time_column="time", partition_columns=columns)(manifest)


def bounds(*splits: Add) -> ManifestBounds:
    return bounds_of(table_of(splits), schema=SCHEMA, partition_columns=PARTITIONS)


def test_a_manifest_is_left_unread_when_its_partitions_rule_the_filter_out() -> None:
    manifest = bounds(split("a", partitionValues={"n": "9"}), split("b", partitionValues={"n": "10"}))
    assert manifest.partitions == {"n": ("9", "10")}
    assert may_match(manifest, col("n") == 10)
    assert not may_match(manifest, col("n") == 11)
    assert not may_match(manifest, (col("n") > 10) & (col("f") > 0.0))
    assert not may_match(manifest, col("n").is_null())
    assert may_match(manifest, (col("n") > 10) | (col("f") > 0.0))
    assert may_match(manifest, col("n") == 11, columns=())
    assert may_match(manifest, None)


def test_a_manifest_is_left_unread_when_its_windows_rule_the_filter_out() -> None:
    manifest = bounds(*(split("a", windowStart=each * HOUR, windowSeconds=HOUR) for each in (2, 5, 3)))
    assert (manifest.windows, manifest.window_seconds, manifest.has_null_window) == ((2 * HOUR, 5 * HOUR), HOUR, False)
    for hour, kept in ((1, False), (2, True), (4, True), (5, True), (6, False)):
        assert may_match(manifest, col("time") == dt.datetime(1970, 1, 1, hour, tzinfo=dt.UTC)) is kept


@pytest.mark.parametrize(
    "manifest",
    [
        ManifestBounds(),
        ManifestBounds(windows=(0, 0), window_seconds=HOUR, has_null_window=True),
        ManifestBounds(windows=(0, 0), window_seconds=None, has_null_window=False),
        ManifestBounds(windows=(0, 2**62), window_seconds=HOUR, has_null_window=False),
        ManifestBounds(partitions={"n": (None, None)}, in_order_of_type=True),
        ManifestBounds(partitions={"n": ("1", None)}, in_order_of_type=True),
        ManifestBounds(partitions={"n": ("1", "many")}, in_order_of_type=True),
        bounds(split("a", windowStart=0, windowSeconds=HOUR), split("b", partitionValues={"n": "1"})),
        bounds(split("a", partitionValues={"n": "1"}), split("b", partitionValues={"n": "x"})),
        bounds(split("a", partitionValues={"n": "1"}), split("b", partitionValues={"n": ""})),
        bounds(),
    ],
    ids=str,
)
def test_a_manifest_of_which_too_little_is_known_is_read(manifest: ManifestBounds) -> None:
    assert may_match(manifest, (col("time") == dt.datetime(2015, 5, 17, tzinfo=dt.UTC)) & (col("n") == 99))


def test_bounds_in_an_unknown_order_say_something_only_when_they_are_equal() -> None:
    as_text = ManifestBounds(partitions={"n": ("10", "9"), "s": ("a", "c")})
    assert may_match(as_text, col("n") == 500)
    assert may_match(as_text, col("s") == "z")
    one = ManifestBounds(partitions={"n": ("10", "10")})
    assert may_match(one, col("n") == 10)
    assert not may_match(one, col("n") == 9)


def test_bounds_of_others_say_nothing_of_nulls() -> None:
    theirs, ours = (ManifestBounds(partitions={"n": ("1", "1")}, in_order_of_type=typed) for typed in (False, True))
    for wanted in (col("n").is_null(), ~col("n").is_not_null(), col("n").is_null() & (col("s") == "a")):
        assert may_match(theirs, wanted)
        assert not may_match(ours, wanted)
    assert not may_match(theirs, col("n") == 2)
