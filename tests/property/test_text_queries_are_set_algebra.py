"""Full-text queries of words, AND, OR, NOT, `+` and `-` find the same rows as set operations in plain Python."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext
from storage_core.index.text_files import open_searcher
from tests.support.listed_hits import listed
from tests.support.scale import scaled

WORDS = ("alpha", "beta", "gamma")
ROWS = [" ".join(chosen) for size in range(len(WORDS) + 1) for chosen in combinations(WORDS, size)]
EVERY = frozenset(range(len(ROWS)))
DEFINITION = IndexDefinition("text", "fulltext", ("body",))


@dataclass(frozen=True)
class Expected:
    """A query and its expected rows.

    If `bound` is True, the query can be part of a larger query without parentheses.
    """

    text: str
    rows: frozenset[int]
    bound: bool = True

    def inside(self) -> str:
        return self.text if self.bound else f"({self.text})"


def word(text: str) -> Expected:
    return Expected(text, frozenset(row for row, words in enumerate(ROWS) if text.strip('"') in words.split()))


def negated(one: Expected) -> Expected:
    return Expected(f"NOT {one.inside()}", EVERY - one.rows, bound=False)


def both(pair: tuple[Expected, Expected]) -> Expected:
    return Expected(" AND ".join(each.inside() for each in pair), pair[0].rows & pair[1].rows, bound=False)


def either(pair: tuple[Expected, Expected]) -> Expected:
    return Expected(" OR ".join(each.inside() for each in pair), pair[0].rows | pair[1].rows, bound=False)


def signed(clauses: list[tuple[str, Expected]]) -> Expected:
    musts = [each.rows for sign, each in clauses if sign == "+"]
    shoulds = [each.rows for sign, each in clauses if not sign]
    rows = frozenset.intersection(*musts) if musts else frozenset().union(*shoulds) if shoulds else EVERY
    for sign, each in clauses:
        rows = rows - each.rows if sign == "-" else rows
    return Expected(" ".join(sign + each.inside() for sign, each in clauses), rows, bound=False)


def boosted(one: Expected) -> Expected:
    return Expected(f"({one.text})^2.5", one.rows)


ATOMS = st.sampled_from([*WORDS, '"beta"', "body:alpha"]).map(
    lambda text: Expected(text, word(text.removeprefix("body:")).rows)
)
# The signs `+` and `-` are placed only before words. If brackets contain only one clause, tantivy ignores its sign.
SIGNED = st.lists(st.tuples(st.sampled_from(["+", "-", ""]), ATOMS), min_size=1, max_size=3)
QUERIES = st.recursive(
    ATOMS | SIGNED.map(signed),
    lambda inner: st.one_of(
        inner.map(negated),
        inner.map(boosted),
        st.tuples(inner, inner).map(both),
        st.tuples(inner, inner).map(either),
    ),
    max_leaves=6,
)


@settings(max_examples=scaled(25), deadline=None)
@given(st.lists(QUERIES, min_size=5, max_size=15))
def test_a_text_query_finds_what_sets_of_rows_say(queries: list[Expected]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part"
        part.mkdir()
        for name, data in fulltext.build(pa.table({"body": ROWS}), DEFINITION).items():
            (part / name).write_bytes(data)
        searcher = open_searcher([part], DEFINITION, Path(folder))
        for query in queries:
            hits = listed(fulltext.parse(query.text, DEFINITION).hits(searcher, len(ROWS)))
            assert {hit.row for hit in hits} == query.rows, query.text
