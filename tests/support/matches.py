"""Expected counts, orders and snippets of a search, computed in plain Python from the rows of a scan."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from storage_core.read.search.matches import Query, Searched, matched, search_facets
from storage_core.read.search.order import with_snippets
from storage_core.read.search.ranking import Order, search_ordered
from tests.support.searching import search

Row = Mapping[str, Any]
Rows = Sequence[Row]


def in_order(rows: Rows, column: str, ties: Sequence[str], *, descending: bool) -> list[Row]:
    """Return the rows sorted by a column and then by the columns `ties`, with nulls last in each column."""
    tied = sorted(rows, key=lambda row: [(row[name] is None, 0 if row[name] is None else row[name]) for name in ties])
    with_value = [row for row in tied if row[column] is not None]
    ordered = sorted(with_value, key=lambda row: row[column], reverse=descending)  # equal rows keep their order
    return [*ordered, *(row for row in tied if row[column] is None)]


def facets(rows: Rows, column: str) -> list[dict[str, Any]]:
    """Return the number of rows per value, most frequent first, then by value, null last."""
    counted = Counter(row[column] for row in rows)
    ordered = sorted(counted.items(), key=lambda each: (-each[1], each[0] is None, each[0] or ""))
    return [{"value": value, "count": count} for value, count in ordered]


def marked(text: str | None, words: Sequence[str]) -> str | None:
    """Return the text with each of the words in `<b>` tags. The text must be short and without special characters.

    Return None if the text has none of the words.
    """
    found = re.sub(r"\w+", lambda each: f"<b>{each[0]}</b>" if each[0] in words else each[0], text or "")
    return found if "<b>" in found else None


def judge(
    searched: Searched,
    rows: Rows,
    *,
    query: object,
    index: str,
    matches: Callable[[Row], bool],
    facet: str,
    ties: Sequence[str],
) -> None:
    """Fail unless count, facets and orders match the rows of the search."""
    expected = [row for row in rows if matches(row)]
    wanted = Query.of(searched.snapshot, query, index=index)
    assert matched(searched, wanted, lambda found: found.number()) == len(expected)
    found = search_facets(searched, wanted, facet, 100).to_pylist()
    assert found == facets(expected, facet)
    assert search_facets(searched, wanted, facet, 1).to_pylist() == found[:1]
    for order in (Order(ties[0]), Order(ties[0], descending=False), Order(facet, descending=len(rows) % 2 == 0)):
        ordered = in_order(expected, order.column, ties, descending=order.descending)
        for limit, offset in ((1_000, 0), (2, 0), (3, 2)):
            found = search_ordered(searched, query, order, index=index, limit=limit, offset=offset)
            assert found.to_pylist() == ordered[offset : offset + limit], order


def judge_snippets(searched: Searched, text: str, query: str, words: Sequence[str], *, index: str) -> None:
    """Fail unless the snippets of all returned rows mark exactly these words."""
    own = searched

    def found(columns: Sequence[str] | None) -> Any:
        return search(
            own.store,
            own.snapshot,
            query,
            index=index,
            limit=1_000,
            columns=columns,
            filter=own.filter,
            unmerged=own.unmerged,
            kept=own.kept,
        )

    rows = with_snippets(found, own.snapshot, query, None, index=index, syntax="strict").to_pylist()
    plain = found(None).to_pylist()
    assert [{name: value for name, value in row.items() if name != "snippets"} for row in rows] == plain
    for row in rows:
        assert row["snippets"] == {text: marked(row[text], words)}
