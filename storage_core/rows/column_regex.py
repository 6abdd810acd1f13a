r"""Anchored regular expressions that match every value of a string column (docs/architecture/compaction.md, "Split
files").

The distinct values become a trie whose edges are as long as nothing branches: `prod, production, staging` is
`^(prod(|uction)|staging)$`. What would exceed the bounds below becomes `[\s\S]+`, so an expression always matches every
value and stays short: `MOST_TRANSITIONS` characters of values, and up to about ten times as many of syntax. The syntax
is what RE2, Java, Rust and Python understand alike.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.foreign_text import quoted
from storage_core.rows.statistics import values_and_nulls

MOST_TRANSITIONS: Final = 128
"""Characters of an expression, its syntax aside: what the log keeps per column and split stays small."""

MOST_PER_EDGE: Final = 64
"""Characters without a branch, so that one long value does not use up what others need."""

MOST_DISTINCT: Final = 4096
"""Of more values only the prefix is taken: they would not fit the bounds, and need not be sorted to see it."""

_ANYTHING: Final = r"[\s\S]+"
_SYNTAX: Final = re.compile(r"[\\.+*?()|\[\]{}^$]")


@dataclass(frozen=True, slots=True)
class _Edge:
    """The text `label` from a node to the node that stands for `values[low:high]`, which agree up to `depth`.

    `cut`: the label is only the beginning of what the values agree in.
    """

    label: str
    low: int
    high: int
    depth: int
    cut: bool


_Opened = dict[_Edge, list[_Edge]]


def column_regex(values: Iterable[str], most_transitions: int = MOST_TRANSITIONS) -> str | None:
    """Return the expression of these values, in any order and number; None when there are none.

    Equal sets of values give equal text.
    """
    ordered = sorted(set(values))  # by code point, which is by UTF-8 bytes
    if not ordered:
        return None
    root = _edge(ordered, (0, len(ordered)), 0, most_transitions)
    opened = _open(ordered, root, most_transitions - len(root.label))
    return f"^{_escaped(root.label)}{_tail(ordered, root, opened)}$"


class ColumnRegexes:
    """The expressions of rows that pass in pieces: of every column among `names` that holds strings.

    Values are looked at once each, whatever the number of rows, and at most `MOST_DISTINCT` of a column are remembered.
    """

    __slots__ = ("_columns", "_names")

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._columns: dict[str, _Seen] = {}

    def add(self, rows: pa.Table) -> None:
        """Take the next rows."""
        for name in (each for each in rows.column_names if each in self._names):
            values, _ = values_and_nulls(rows.column(name))
            if pa.types.is_string(values.type):
                self._columns[name] = self._columns.get(name, _Seen(pa.array([], pa.string()))).and_(values)

    def result(self) -> dict[str, str]:
        """Return the expression of each column; one without a value has no entry."""
        found = {name: seen.expression() for name, seen in self._columns.items()}
        return {name: text for name, text in found.items() if text is not None}


@dataclass(frozen=True, slots=True)
class _Seen:
    """The values of a column so far, each once; with `many`, only the least and the greatest."""

    values: pa.Array
    many: bool = False

    def and_(self, values: pa.ChunkedArray) -> _Seen:
        together = pa.chunked_array([self.values, *values.chunks], pa.string())
        if not self.many:
            distinct = pc.unique(together).drop_null()
            if len(distinct) <= MOST_DISTINCT:
                return _Seen(distinct)
        bounds = pc.min_max(together)
        return _Seen(pa.array([bounds["min"].as_py(), bounds["max"].as_py()]), many=True)

    def expression(self) -> str | None:
        texts = self.values.to_pylist()
        return _of_many(*texts) if self.many else column_regex(texts)


def may_match(expression: str, value: str) -> bool:
    """Return whether a column that the expression describes may hold the value; True for what RE2 cannot read."""
    try:
        return bool(pc.match_substring_regex(pa.scalar(value), expression).as_py())
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return True


def mismatches(rows: pa.Table, expressions: Mapping[str, str]) -> list[str]:
    """Return one sentence per column whose values the expression does not match; empty when all are sound.

    Judged by RE2, which takes linear time whatever the expression is.
    """
    found: list[str] = []
    for name, expression in expressions.items():
        if name not in rows.column_names:
            found.append(f"column {name!r}: {expression!r} describes a column that the split does not have")
            continue
        values = pc.unique(values_and_nulls(rows.column(name))[0]).drop_null()
        try:
            lost = values.filter(pc.invert(pc.match_substring_regex(values, expression)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
            found.append(f"column {name!r}: {expression!r} cannot be matched: {error}")
            continue
        if len(lost):
            found.append(f"column {name!r}: {expression!r} does not match {quoted(lost[0].as_py())}")
    return found


def _of_many(least: str, greatest: str) -> str:
    """What all texts from `least` to `greatest` agree in is what these two agree in."""
    prefix = _shared(least[:MOST_PER_EDGE], greatest[:MOST_PER_EDGE])
    tail = f"(|{_ANYTHING})" if least == prefix else _ANYTHING
    return f"^{_escaped(prefix)}{tail}$"


def _open(values: Sequence[str], root: _Edge, transitions: int) -> _Opened:
    """Return the edges out of each node that is spelled out, nearest to the root first, until nothing is left."""
    opened: _Opened = {}
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        if node.cut:
            continue
        edges = _edges(values, node, transitions)
        if edges is not None:
            transitions -= sum(len(each.label) for each in edges)
            opened[node] = edges
            waiting.extend(edges)
    return opened


def _edges(values: Sequence[str], node: _Edge, transitions: int) -> list[_Edge] | None:
    """The edges out of a node; None when they have more characters than are left."""
    edges: list[_Edge] = []
    low = node.low + _ends_here(values, node)
    while low < node.high:
        first = values[low][node.depth]
        high = low + 1
        while high < node.high and values[high][node.depth] == first:
            high += 1
        edges.append(_edge(values, (low, high), node.depth, MOST_PER_EDGE))
        transitions -= len(edges[-1].label)
        if transitions < 0:
            return None
        low = high
    return edges


def _edge(values: Sequence[str], within: tuple[int, int], depth: int, most: int) -> _Edge:
    low, high = within
    most = min(most, MOST_PER_EDGE)
    ahead = slice(depth, depth + most + 1)  # one more than is kept, which tells whether it is cut
    shared = _shared(values[low][ahead], values[high - 1][ahead])
    label = shared[:most]
    return _Edge(label, low, high, depth + len(label), cut=len(label) < len(shared))


def _shared(a: str, b: str) -> str:
    """The text that both begin with."""
    length = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:length]


def _ends_here(values: Sequence[str], node: _Edge) -> bool:
    """Whether the text up to the node is a value itself, which then is the least of its values."""
    return len(values[node.low]) == node.depth


def _tail(values: Sequence[str], node: _Edge, opened: _Opened) -> str:
    """The expression of what follows a node."""
    if node.cut:
        return _ANYTHING
    edges = opened.get(node)
    rest = [_ANYTHING] if edges is None else [_escaped(each.label) + _tail(values, each, opened) for each in edges]
    choices = ["", *rest] if _ends_here(values, node) else rest
    return choices[0] if len(choices) == 1 else f"({'|'.join(choices)})"


def _escaped(text: str) -> str:
    return _SYNTAX.sub(r"\\\g<0>", text)
