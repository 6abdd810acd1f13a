"""A column's regular expression matches every value of its column, in Python and in RE2."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.rows.statistics import MOST_TRANSITIONS, column_regex, mismatches
from tests.support.scale import scaled

ODD = st.sampled_from(["", "\n", "a\n", "\0", "^$", "(|)", "[\\s\\S]+", "é", "\ue000", "\U0010ffff", "x" * 300])
TEXT = st.text("ab|", max_size=6) | st.text(max_size=8) | ODD


@settings(max_examples=scaled(50))
@given(st.lists(TEXT, min_size=1, max_size=40), st.integers(0, MOST_TRANSITIONS))
def test_the_expression_matches_every_value(values: list[str], most: int) -> None:
    expression = column_regex(values, most)
    assert expression is not None
    assert all(re.fullmatch(expression, value) for value in values)
    assert mismatches(pa.table({"c": pa.array(values, pa.string())}), {"c": expression}) == []


@given(st.lists(st.text("ab|", max_size=6), min_size=1, max_size=12), st.text("ab|c", max_size=6))
def test_an_expression_within_its_bound_matches_nothing_else(values: list[str], other: str) -> None:
    expression = column_regex(values)
    assert expression is not None
    assert bool(re.fullmatch(expression, other)) == (other in values)
