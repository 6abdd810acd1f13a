"""Words of a query that stand for several: `kib*` for those that begin so, `kibana~1` for those one change away.

Tantivy's own syntax drops such a star and knows no `~` behind a word, so they are read here. Every word of the index
that fits counts: `text_queries` reads the rows of a prefix from the index by an automaton.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from storage_core.index.text_limits import Node

MOST_CHANGES: Final = 2
"""Of letters that are added, left out, replaced or swapped with their neighbour."""

SHORTEST_PREFIX: Final = 2
"""Characters before the star."""

_WORD = r"((?:[^\\]|\\.)+)"  # a backslash takes the meaning from what follows
_PREFIX = re.compile(rf"{_WORD}\*", re.DOTALL)
_FUZZY = re.compile(rf"{_WORD}~([0-9]?)", re.DOTALL | re.ASCII)
_ESCAPED = re.compile(r"\\([\W_])")


@dataclass(frozen=True, slots=True)
class Term:
    """A word that stands for others: with `changes`, else all that begin with `text`."""

    field: str | None
    text: str
    changes: int | None


def term_of(node: Node) -> Term | None:
    """Return the term that a node of tantivy's tree is; None for all others. Raises `ValueError` for an odd one."""
    if node["type"] != "literal" or node["delimiter"] != "none":
        return None
    written: str = node["phrase"]
    if found := _PREFIX.fullmatch(written):
        text = _ESCAPED.sub(r"\1", found[1])
        if len(text) < SHORTEST_PREFIX:
            raise ValueError(f"{written!r} stands for too many words; write {SHORTEST_PREFIX} characters or more")
        return Term(node["field_name"], text, None)
    if found := _FUZZY.fullmatch(written):
        changes = int(found[2] or 1)
        return (
            Term(node["field_name"], _ESCAPED.sub(r"\1", found[1]), changes) if 1 <= changes <= MOST_CHANGES else None
        )
    return None
