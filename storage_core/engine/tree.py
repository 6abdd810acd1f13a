"""The tree that DuckDB's parser makes of a text, and how a text that is not run is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

Node = Mapping[str, Any]
_NESTED = (dict, list)  # as JSON gives them
_SCHEMAS = (["main"], ["system", "main"])
"""Where DuckDB looks for a function before it looks for a column of that name."""


def nodes_of(tree: Any) -> Iterator[Node]:
    """Yield every record of the tree, however deep it is, parents first."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(each for each in node.values() if each.__class__ in _NESTED)
        else:
            waiting.extend(each for each in node if each.__class__ in _NESTED)


def called_on(call: Node) -> list[str]:
    """Return what stands before a function: the column in `s.repeat(3)`, which the parser takes for a schema."""
    before = [str(each) for each in call["qualified_name"]["path"][:-1]]
    return [] if before in _SCHEMAS else before


def arguments(call: Node) -> list[Node]:
    """Return what a function is called with, the column that it is called on first."""
    given: list[Node] = [each["expression"] for each in call["arguments"]]
    before = called_on(call)
    return [{"class": "COLUMN_REF", "column_names": before}, *given] if before else given


def refused(text: str, what: str, why: str) -> InvalidInput:
    """Return the error of a text that is not run."""
    return InvalidInput(f"the {what} {shown(text)} is refused: {why}", query=text)


def shown(text: str) -> str:
    """Return the text as an error shows it."""
    return quoted(text, 500)
