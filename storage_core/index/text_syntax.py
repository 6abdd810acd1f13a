"""The syntax of full-text queries: the tree that tantivy reads a text as, and the tree of a text that is only words."""

from __future__ import annotations

import re
from typing import cast

from storage_core.index import native_errors
from storage_core.index.text_limits import Node

_DISTANCE = re.compile("~[0-9]*$")


def read(text: str) -> Node:
    """Return tantivy's tree of a query that `check_text` let through. Raises `ValueError` for a text that is none."""
    import tantivy

    try:
        with native_errors.as_query_error():
            return cast("Node", tantivy.parse_query(text))
    except ValueError as error:
        raise ValueError("it has a Syntax Error") from error


def words(text: str) -> Node:
    """Return the tree for any of the words of a text: what stands between spaces, and nothing in it is an operator.

    The tokenizer of the index reads each: it makes a phrase of `can't`, and nothing of a lone `/`. A distance
    behind a word (`slip~2`) is left out.
    """
    found = [_DISTANCE.sub("", word) for word in text.split()]
    return any_of([literal(word) for word in dict.fromkeys(found)])


def literal(text: str) -> Node:
    """Return the node for a text as one phrase, in any column."""
    return {
        "type": "literal",
        "field_name": None,
        "phrase": text,
        "delimiter": "double_quotes",
        "slop": 0,
        "prefix": False,
    }


def any_of(nodes: list[Node]) -> Node:
    """Return the node for what any of some nodes finds."""
    return {"type": "bool", "clauses": [(None, each) for each in nodes]}
