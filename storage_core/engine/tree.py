"""The tree that DuckDB's parser makes of a text, and how a text that is not run is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

Node = Mapping[str, Any]
_NESTED = (dict, list)  # as JSON gives them


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


def refused(text: str, what: str, why: str) -> InvalidInput:
    """Return the error of a text that is not run."""
    return InvalidInput(f"the {what} {shown(text)} is refused: {why}", query=text)


def shown(text: str) -> str:
    """Return the text as an error shows it."""
    return quoted(text, 500)
