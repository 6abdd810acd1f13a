"""What a full-text query may cost: limits that hold before tantivy, or a walk of its tree, could run out of stack.

Tantivy parses by recursion, so a text of many parentheses overflows the stack and ends the process. A text is first
bounded by counts that no quoting can hide, then its tree by what the query really holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Node: TypeAlias = Mapping[str, Any]

MAX_CHARACTERS = 65_536
MAX_OPENINGS = 1_000  # of parentheses and NOT together: every level of nesting has one; tantivy stands some 4,000
MAX_DEPTH = 100
MAX_CLAUSES = 2_048
MAX_BOOST = 1e9
MAX_SLOP = 65_536
MAX_ARRANGEMENTS = 2_048  # of the words of a phrase with slop: each is a phrase that the index is asked for
MAX_MOVES = 2**18  # of words, which are tried to find those: long phrases may need many for each

_WORD = re.compile(r"[^\W_]+")


def check_length(text: str) -> None:
    """Return only for a text that a search reads. Raises `ValueError` that names the limit and what to do."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters, at most {MAX_CHARACTERS:,} are read; ask for fewer words")


def check_text(text: str) -> None:
    """Return only for a text that is safe to parse. Raises `ValueError` as `check_length` does."""
    openings = text.count("(") + text.count("NOT")
    if openings > MAX_OPENINGS:
        raise ValueError(
            f"it has {openings:,} times `(` or `NOT`, at most {MAX_OPENINGS:,} are read; ask in fewer groups"
        )


def check_tree(tree: Node) -> None:
    """Return only for a tree that is safe to walk and to search by. Raises `ValueError` as `check_length` does."""
    clauses = 0
    for node, depth, boost in walk(tree):
        clauses += _clauses(node)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels; write it in fewer groups")
        if clauses > MAX_CLAUSES:
            raise ValueError(
                f"it has more than {MAX_CLAUSES:,} words and clauses; ask for fewer, or in several queries"
            )
        if not boost <= MAX_BOOST:  # 0 times infinity is neither
            raise ValueError(f"it boosts more than {MAX_BOOST:.0f} times; scores would be infinite, boost less")
        if node.get("slop", 0) > MAX_SLOP:
            raise ValueError(f"the slop {node['slop']} of a phrase is above {MAX_SLOP:,}; ask for the words with AND")


def walk(tree: Node) -> Iterator[tuple[Node, int, float]]:
    """Yield every node of tantivy's tree with its depth and how often it is boosted, without recursion."""
    waiting = [(tree, 1, 1.0)]
    while waiting:
        node, depth, boost = waiting.pop()
        boost *= node["boost"] if node["type"] == "boost" else 1.0
        yield node, depth, boost
        waiting.extend((child, depth + 1, boost) for child in _children(node))


def _children(node: Node) -> list[Node]:
    match node["type"]:
        case "bool":
            return [child for _, child in node["clauses"]]
        case "boost":
            return [node["underlying"]]
        case _:
            return []


def _clauses(node: Node) -> int:
    """How much of a query the node itself is; a phrase is as much as it has words."""
    match node["type"]:
        case "literal":
            return max(1, len(_WORD.findall(node["phrase"])))
        case "set":
            return 1 + len(node["elements"])
        case _:
            return 1
