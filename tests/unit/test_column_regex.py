"""Column regular expressions: their reference values, and their use on the columns of splits."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from storage_core.data.rows.statistics import MOST_DISTINCT, ColumnRegexes, column_regex, mismatches
from tests.support.steps import steps_of

GOLDEN = [
    (["a"], "^a$"),
    (["bc", "a"], "^(a|bc)$"),
    (["ab", "a"], "^a(|b)$"),
    (["prod", "staging", "production"], "^(prod(|uction)|staging)$"),
]


@pytest.mark.parametrize(("values", "expression"), GOLDEN)
def test_the_golden_expressions_of_page_09(values: list[str], expression: str) -> None:
    assert column_regex(values) == expression
    assert column_regex([*reversed(values), *values]) == expression


@pytest.mark.parametrize(
    ("most", "expression"),
    [
        (17, "^(prod(|uction)|staging)$"),
        (16, r"^(prod(|[\s\S]+)|staging)$"),
        (11, r"^(prod(|[\s\S]+)|staging)$"),
        (10, r"^[\s\S]+$"),
        (0, r"^[\s\S]+$"),
    ],
)
def test_what_exceeds_the_bound_on_transitions_is_any_tail(most: int, expression: str) -> None:
    assert column_regex(["prod", "staging", "production"], most) == expression


def test_no_value_has_no_expression_and_the_empty_text_has_one() -> None:
    assert column_regex([]) is None
    assert column_regex([""]) == "^$"
    assert column_regex(["", "a"]) == "^(|a)$"
    assert column_regex(["", "a"], 0) == r"^(|[\s\S]+)$"


def test_syntax_in_values_is_escaped() -> None:
    value = r"a.b\c*d+e?f(g|h)[i]{j}^$"
    expression = column_regex([value])
    assert expression == r"^a\.b\\c\*d\+e\?f\(g\|h\)\[i\]\{j\}\^\$$"
    assert re.fullmatch(expression, value)


def test_a_long_value_does_not_use_up_what_others_need() -> None:
    assert column_regex(["x" * 500, "ab", "ac"]) == rf"^(a(b|c)|{'x' * 64}[\s\S]+)$"
    assert column_regex(["x" * 500, "x" * 500 + "y"]) == rf"^{'x' * 64}[\s\S]+$"


def _expressions(rows: pa.Table, names: list[str], pieces: int = 1) -> dict[str, str]:
    found = ColumnRegexes(names)
    size = max(1, -(-rows.num_rows // pieces))
    for start in range(0, rows.num_rows, size):
        found.add(rows.slice(start, size))
    return found.result()


def test_rows_in_pieces_have_the_expressions_of_all_together() -> None:
    many = [f"host-{number}" for number in range(MOST_DISTINCT + 1)]
    rows = pa.table({"h": many, "s": ["prod", "staging", None] * 1365 + ["production", "prod"]})
    assert _expressions(rows, ["h", "s"], pieces=7) == _expressions(rows, ["h", "s"])
    assert _expressions(rows, ["h", "s"], pieces=7)["s"] == "^(prod(|uction)|staging)$"


def test_of_very_many_values_the_prefix_is_taken() -> None:
    many = [f"host-{number}" for number in range(MOST_DISTINCT + 1)]
    assert _expressions(pa.table({"h": many}), ["h"]) == {"h": r"^host-[\s\S]+$"}
    assert _expressions(pa.table({"h": [*many, "host-"]}), ["h"]) == {"h": r"^host-(|[\s\S]+)$"}


def test_only_strings_have_expressions_and_dictionaries_are_described_by_what_occurs() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0, None, 2, 0]), pa.array(["b", "unused", "a"]))
    rows = pa.table({"d": coded, "s": ["x", None, "x", "y"], "n": [1, 2, 3, 4], "z": pa.nulls(4, pa.string())})
    assert _expressions(rows, ["d", "s", "n", "z", "absent"]) == {"d": "^(a|b)$", "s": "^(x|y)$"}
    assert _expressions(rows, ["s"]) == {"s": "^(x|y)$"}


def test_an_expression_that_misses_a_value_is_told_with_the_value() -> None:
    rows = pa.table({"s": pa.array(["x", "y", None]), "n": [1, 2, 3]})
    assert mismatches(rows, {"s": "^(x|y)$"}) == []
    assert mismatches(rows, {"s": "^x$"}) == ["column 's': '^x$' does not match 'y'"]
    (broken,) = mismatches(rows, {"s": "("})
    assert "cannot be matched" in broken
    (number,) = mismatches(rows, {"n": "^1$"})
    assert "cannot be matched" in number
    (absent,) = mismatches(rows, {"gone": "^$"})
    assert "does not have" in absent


def test_a_long_value_costs_no_step_per_character() -> None:
    long = "k" * 100_000
    assert column_regex([long]) == column_regex([long + "k"]) == f"^{'k' * 64}[\\s\\S]+$"
    assert steps_of(lambda: column_regex([long, long + "a"])).count < 1000
    many = ColumnRegexes(["a"])
    many.add(pa.table({"a": ["k" * 5000 + str(number) for number in range(MOST_DISTINCT + 1)]}))
    assert steps_of(many.result).count < 1000
