"""Sort schemas are parsed as the tables of docs/architecture/reference-values.md prescribe."""

from __future__ import annotations

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.sort_order import ColumnType, equivalent, nulls_of, parse_sort_schema

CANONICAL = [
    ("timestamp/V2", "timestamp/V2"),
    ("service__s|env__s|timestamp/V2", "service|env|timestamp/V2"),
    ("service__s|&env__s|timestamp/V2", "service|&env|timestamp/V2"),
    ("service|timestamp|tiebreaker/V2", "service|timestamp|tiebreaker/V2"),
    ("testSchema=columnA__s|columnB__i:-|timestamp/V2", "testSchema=columnA|columnB__i:-|timestamp/V2"),
    ("-metric_name__s|+host__s|timestamp/V2", "metric_name:-|host|timestamp/V2"),
    ("columnA__s:dense-string:+|columnB__i:-|timestamp/V2", "columnA|columnB__i:-|timestamp/V2"),
    ("named=timestamp:dense-int64:-/V2", "named=timestamp/V2"),
    ("service|timestamp-/V2", "service|timestamp/V2"),
    ("metric_value__i|value|timestamp/V2", "metric_value__i|value|timestamp/V2"),
    ("value__nf|timestamp_secs/V2", "value|timestamp_secs/V2"),
    ("service__s|env__s|&timestamp/V2", "service|env|&timestamp/V2"),
    ("name__x|timestamp/V2", "name__x|timestamp/V2"),
    ("metric_name|host|timestamp&service/V2", "metric_name|host|&service|timestamp/V2"),
    ("timestamp&service|env/V2", "timestamp&service|env/V2"),
    ("timestamp/V3", "timestamp/V3"),
    ("-a|timestamp/V2 nulls first", "a:-|timestamp/V2 nulls first"),
    ("n=a|timestamp/V2 nulls last", "n=a|timestamp/V2"),
]
REFUSED = [
    ("timestamp", "no version"),
    ("timestamp/V0", "not supported"),
    ("timestamp/V1", "not supported"),
    ("timestamp/X", "not a version"),
    ("timestamp/VX", "not a version"),
    ("timestamp/V", "not a version"),
    ("timestamp/V2 nulls", "not a version"),
    ("timestamp/V2 nulls first nulls first", "not a version"),
    ("a=b=c/V2", "more than one '='"),
    ("=timestamp/V2", "empty"),
    ("name__i:dense-string:+|timestamp/V2", "the type int64 in its suffix, but also the type string"),
    ("name:dense-sketch:+|timestamp/V2", "dense-sketch"),
    ("name__i:up|timestamp/V2", "direction 'up'"),
    ("name:dense-int64:+:more|timestamp/V2", "more than name, type and direction"),
    ("name__i:dense-int64:+/V2", "timestamp column"),
    ("service/V2", "timestamp column"),
    ("timestamp|timestamp_secs/V2", "timestamp column"),
    ("a|&b|&c|timestamp/V2", "more than one '&'"),
    ("a|&&b|timestamp/V2", "more than one '&'"),
    ("a|&|timestamp/V2", "no name"),
    ("a||timestamp/V2", "no name"),
    ("/V2", "no name"),
    ("__i|timestamp/V2", "no name"),
    ("&a|b|timestamp/V2", "first column"),
    ("&timestamp/V2", "first column"),
    ("a|env&__s|timestamp/V2", "no name"),
    ("a|env&b|timestamp/V2", "inside a column name"),
    ("+a+|timestamp/V2", "direction twice"),
    ("+a-|timestamp/V2", "direction twice"),
    ("+a:+|timestamp/V2", "direction twice"),
    ("a-:-|timestamp/V2", "direction twice"),
    ("a|+timestamp/V2", "newest first"),
    ("a|timestamp+/V2", "newest first"),
    ("a|timestamp__s/V2", "newest first"),
    ("timestamp|b/V2", "only 'tiebreaker'"),
    ("timestamp|tiebreaker|b/V2", "only 'tiebreaker'"),
    ("timeseries_id|host|timestamp/V2", "means all tags"),
    ("a|a|timestamp/V2", "more than once"),
]
DEFAULT_TYPES: list[tuple[str, ColumnType]] = [
    ("timestamp", "int64"),
    ("tiebreaker", "int64"),
    ("timeseries_id", "int64"),
    ("metric_value", "float64"),
    ("value", "float64"),
    ("host", "string"),
    ("name__x", "string"),
    ("host__i", "int64"),
    ("host__nf", "float64"),
    ("value__s", "string"),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_an_accepted_schema_has_one_canonical_text_that_means_the_same(text: str, canonical: str) -> None:
    parsed = parse_sort_schema(text)
    assert parsed.text == canonical
    again = parse_sort_schema(canonical)
    assert again.text == canonical
    assert equivalent(parsed, again)
    assert [each.name for each in again.compared] == [each.name for each in parsed.compared]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_a_refused_schema_is_quoted_with_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        parse_sort_schema(text)
    assert repr(text) in str(refusal.value)
    assert why in str(refusal.value)


@pytest.mark.parametrize(("name", "expected"), DEFAULT_TYPES)
def test_a_type_comes_from_the_suffix_or_else_from_the_name(name: str, expected: ColumnType) -> None:
    text = {"timestamp": "timestamp/V2", "tiebreaker": "timestamp|tiebreaker/V2"}.get(name, f"{name}|timestamp/V2")
    wanted = name if name == "name__x" else name.partition("__")[0]
    (column,) = (each for each in parse_sort_schema(text).columns if each.name == wanted)
    assert column.type == expected
    assert column.typed_explicitly == (wanted != name)


def test_directions_may_be_prefix_suffix_or_default() -> None:
    assert [column.descending for column in parse_sort_schema("-metric_name__s|+host__s|timestamp/V2").columns] == [
        True,
        False,
        True,
    ]
    assert [column.descending for column in parse_sort_schema("a-|b+|c|timestamp/V2").columns] == [
        True,
        False,
        False,
        True,
    ]


def test_the_cutoff_marks_columns_that_are_not_compared() -> None:
    schema = parse_sort_schema("service|&env|zone|timestamp|tiebreaker/V2")
    assert schema.cutoff == 1
    assert [column.name for column in schema.compared] == ["service", "timestamp", "tiebreaker"]


def test_the_older_form_carries_statistics_only() -> None:
    schema = parse_sort_schema("metric_name|host|timestamp|tiebreaker&service/V2")
    assert schema.cutoff == 2
    assert [column.name for column in schema.compared] == ["metric_name", "host", "timestamp", "tiebreaker"]
    assert [column.name for column in parse_sort_schema("timestamp&service/V2").compared] == ["timestamp"]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("timestamp/V2", "timestamp/V2", True),
        ("service|timestamp/V2", "named=service__s|timestamp/V2", True),
        ("service|timestamp/V2", "timestamp/V2", False),
        ("env|service|timestamp/V2", "service|env|timestamp/V2", False),
        ("service|timestamp/V2", "service|timestamp/V3", False),
        ("service|timestamp/V2", "-service|timestamp/V2", False),
        ("service|timestamp/V2", "service__i|timestamp/V2", False),
        ("service|timestamp/V2", "service|timestamp/V2 nulls last", True),
        ("service|timestamp/V2", "service|timestamp/V2 nulls first", False),
    ],
)
def test_equivalence_ignores_the_name_and_nothing_else(a: str, b: str, same: bool) -> None:
    assert equivalent(parse_sort_schema(a), parse_sort_schema(b)) is same
    assert equivalent(parse_sort_schema(b), parse_sort_schema(a)) is same


@pytest.mark.parametrize("other", ["service|env|timestamp/V2", "service|env|&timestamp/V2"])
def test_the_cutoff_counts(other: str) -> None:
    assert not equivalent(parse_sort_schema("service|&env|timestamp/V2"), parse_sort_schema(other))


def test_what_a_split_records_tells_where_its_nulls_are() -> None:
    assert [
        nulls_of(parse_sort_schema(f"n=a|timestamp/V2{rule}").text) for rule in ("", " nulls last", " nulls first")
    ] == [
        "last",
        "last",
        "first",
    ]
    assert [nulls_of(text) for text in ("key(a,b)", "", None)] == ["last", "last", "last"]
