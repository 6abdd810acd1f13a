"""How much the functions of a query make of a row, layer upon layer: the bytes of every value, from the text alone.

Concatenations, quoting and escapes make texts longer, and each layer of a query (a call in a call, a subquery, a common
table) multiplies what the one below it made. What calls make of one batch of rows is outside DuckDB's accounting. So a
value is followed through the tree: a column of the table counts as a row, a constant as its text, a call as its
arguments times the most that the function can make of them. Columns are not told apart: each is as long as the longest
of its layer. What is not known to be short is as long as all of its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from storage_core.engine.functions import NESTED_TYPES
from storage_core.engine.growth import SERIES, factor
from storage_core.engine.lengths import (
    AS_TEXT,
    COMPARED,
    LONG_TYPES,
    MANY_PATHS,
    OVER_ELEMENTS,
    PER_BYTE,
    PRODUCTS,
    SHORT,
    TEXT,
    TEXT_TYPES,
    TIMES,
)
from storage_core.engine.tree import Node, arguments, nodes_of, refused

ROW = 64
"""Bytes of a row, at least: what numbers have as text is not longer."""
MOST_MADE = 100_000
"""Rows: what all functions of a query make of one row is not longer than so many of it."""
MOST_PER_STEP = 16
"""How many times longer a step of a recursive common table makes a value."""
_UNKNOWN = 10**30
"""The length of a column of the query within a function per element of a list: there are as many as its elements."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a query sees: the length of its longest column, of a row, and of what has a name."""

    most: int
    row: int
    rows: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    names: Mapping[str, int] = field(default_factory=dict)
    of_element: frozenset[str] = frozenset()


def check_layers(tree: Node, text: str, what: str, *, table: str) -> None:
    """Return when all functions together make at most `MOST_MADE` rows of one. Raises `InvalidInput`."""
    _Reckoning(text, what).query(tree, _Scope(0, 0, tables={table: (ROW, ROW)}))


@dataclass(slots=True)
class _Reckoning:
    text: str
    what: str
    made: int = 0

    def query(self, node: Node, outer: _Scope) -> tuple[int, int]:
        """The longest column and the row that a query gives."""
        tables = dict(outer.tables)
        inner = replace(outer, tables=tables)
        for entry in (node.get("cte_map") or {}).get("map", []):
            tables[str(entry["key"]).lower()] = self.query(entry["value"]["query_node"], inner)
        match node["type"]:
            case "SELECT_NODE":
                return self._select(node, inner)
            case "RECURSIVE_CTE_NODE":
                return self._recursive(node, inner, str(node["cte_name"]).lower())
        self._all(node.get("modifiers"), replace(inner, most=0))
        parts = [self.query(each, inner) for each in (node.get("children") or [node.get("left"), node.get("right")])]
        return max(most for most, _ in parts), max(row for _, row in parts)

    def _recursive(self, node: Node, outer: _Scope, name: str) -> tuple[int, int]:
        start = max(ROW, *self.query(node["left"], outer))
        made = max(self.query(node["right"], replace(outer, tables={**outer.tables, name: (start, start)})))
        if made > MOST_PER_STEP * start:
            why = f"a step of {name} makes its values more than {MOST_PER_STEP} times longer"
            raise refused(self.text, self.what, why)
        return max(start, made), max(start, made)

    def _select(self, node: Node, outer: _Scope) -> tuple[int, int]:
        names = dict(outer.names)
        scope = replace(self._source(node["from_table"], outer), names=names)
        most = row = 0
        for item in node["select_list"]:
            longest, all_ = self._item(item, scope)
            most, row = max(most, longest), row + all_
            if item.get("alias"):  # which those after it may use
                names[str(item["alias"]).lower()] = longest
        for key in node.keys() - {"select_list", "from_table", "cte_map"}:
            self._all(node[key], scope)
        return most, row

    def _item(self, item: Node, scope: _Scope) -> tuple[int, int]:
        if item["class"] != "STAR":
            return (self.value(item, scope),) * 2
        others = [self.value(each["value"], scope) for each in item["replace_list"]]
        return max(scope.most, *others, 0), scope.row + sum(others)

    def _source(self, node: Node, outer: _Scope) -> _Scope:
        """What is visible of a table, a join of tables, and of what is around the query."""
        most = row = 0
        match node["type"]:
            case "BASE_TABLE":
                most, row = outer.tables.get(str(node["table_name"]).lower(), (ROW, ROW))
            case "SUBQUERY":
                most, row = self.query(node["subquery"]["node"], outer)
            case "SHOW_REF":
                most, row = self.query(node["query"], outer)
                most, row = max(most, ROW), 16 * max(row, ROW)
            case "JOIN":
                left = self._source(node["left"], outer)
                both = self._source(node["right"], left)  # which may use the one before
                both = replace(both, row=left.row + both.row)
                self._all(node.get("condition"), both)
                return both
            case "PIVOT":
                below = self._source(node["source"], outer)
                made = self._all([node["aggregates"], node["pivots"]], below)
                columns = max(1, sum(len(each["entries"]) for each in node["pivots"])) ** max(1, len(node["pivots"]))
                most, row = max(below.most, made), below.row + columns * made
            case "TABLE_FUNCTION":
                call = node["function"]
                most = row = AS_TEXT * sum(self.value(each, outer) for each in arguments(call))
            case _:  # values, or none
                most = row = self._parts(node, outer)
        name = str(node.get("alias") or node.get("table_name") or "").lower()
        return replace(outer, most=max(outer.most, most), row=row, rows={**outer.rows, name: row})

    def _all(self, part: object, scope: _Scope) -> int:
        """What all expressions of this part of the tree make together."""
        if isinstance(part, list):
            return sum(self._all(each, scope) for each in part)
        if not isinstance(part, dict):
            return 0
        if "class" in part:
            return self.value(part, scope)
        if part.get("type") in ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"):
            return self.query(part, scope)[0]
        return sum(self._all(each, scope) for each in part.values())

    def value(self, node: Node, scope: _Scope) -> int:
        """The bytes of the value of an expression, where a row of the table has `ROW`, at most."""
        match node["class"]:
            case "COLUMN_REF":
                return self._column(node, scope)
            case "POSITIONAL_REFERENCE":
                return scope.most
            case "STAR":
                return self._item(node, scope)[1]
            case "CONSTANT":
                return max(PER_BYTE, _literal_bytes(node))
            case "COMPARISON" | "CONJUNCTION" | "BETWEEN":
                self._parts(node, scope)
                return PER_BYTE
            case "CAST":
                return self._cast(node, scope)
            case "SUBQUERY":
                self._all(node.get("child"), scope)
                found = self.query(node["subquery"]["node"], scope)[0]
                return found if node["subquery_type"] == "SCALAR" else PER_BYTE
            case "FUNCTION" | "WINDOW":
                return self._call(node, scope)
        return self._parts(node, scope)

    def _parts(self, node: Node, scope: _Scope) -> int:
        return self._all(list(node.values()), scope)

    def _column(self, node: Node, scope: _Scope) -> int:
        names = [str(each).lower() for each in node["column_names"]]
        if names[0] in scope.of_element:
            return 1
        row = scope.rows.get(names[0], 0) if len(names) == 1 else 0
        return max(scope.most, scope.names.get(names[-1], 0), row)

    def _cast(self, node: Node, scope: _Scope) -> int:
        inner = self.value(node["child"], scope)
        types = [each for each in nodes_of(node["type_expr"]) if each.get("class") == "TYPE"]
        names = {str(each["type_name"]).upper() for each in types}
        if not names & LONG_TYPES:
            return self._noted(PER_BYTE)
        if names <= TEXT_TYPES:
            return self._noted(inner if "JSON" not in names and _is_text(node["child"]) else inner * AS_TEXT)
        if not names & NESTED_TYPES:
            return self._noted(inner)
        texts = sum(_literal_bytes(each) for each in nodes_of(node["type_expr"]))
        places = PER_BYTE * len(types)
        for each in types:
            if str(each["type_name"]).upper() == "ARRAY":
                sizes = [str((part.get("literal") or {}).get("text", "")) for part in each["children"]]
                places *= max([int(size) for size in sizes if size.isdecimal() and len(size) < 20], default=1)
        return self._noted(inner * places + texts)

    def _call(self, node: Node, scope: _Scope) -> int:
        name = str(node["function_name"]).lower()
        given = arguments(node)
        if name in OVER_ELEMENTS and len(given) == 2:
            return self._noted(self._over_elements(name, given, scope))
        sizes = [self.value(each, scope) for each in given]
        for key in ("filter", "filter_expr", "order_bys", "orders", "partitions", "start_expr", "end_expr"):
            self._all(node.get(key), scope)
        if name in COMPARED:
            return self._noted(self._compared(name, given, sizes))
        if name in SHORT:
            return PER_BYTE
        if name in ("concat", "concat_ws", "printf", "format"):
            sizes = [size if _is_text(each) else size * AS_TEXT for size, each in zip(sizes, given, strict=True)]
        made = sum(sizes) + sum(len(str(each.get("name") or "")) for each in node["arguments"])
        if name == "concat_ws" and sizes:
            made += len(sizes) * sizes[0]
        grown = factor(name, given)
        if grown is None:
            advice = "; call it after FROM" if name in SERIES else ""
            raise refused(self.text, self.what, f"how much {name} makes must be written out in it{advice}")
        times = TIMES.get(name, 1) * max(1, grown)
        if sizes and (name in PRODUCTS or (name in MANY_PATHS and not _is_one(given[-1]))):
            times *= max(ROW, sizes[-1])
        return self._noted(made * times)

    def _over_elements(self, name: str, given: Sequence[Node], scope: _Scope) -> int:
        """Of a list: at most as many elements as bytes, each with what the function makes of nothing, and of it."""
        elements, before = self.value(given[0], scope), self.made
        body = given[1]
        inside = replace(scope, most=_UNKNOWN, row=_UNKNOWN, of_element=_names(body.get("lhs")))
        each = self.value(body["expr"] if body["class"] == "LAMBDA" else body, inside)
        self.made = before + (self.made - before) * elements
        return elements if "filter" in name else elements * (PER_BYTE + each)

    def _compared(self, name: str, given: Sequence[Node], sizes: Sequence[int]) -> int:
        written = [length for each in given[:2] if (length := _written_length(each)) is not None]
        if not written:
            advice = "a text written out, or left(x, n)"
            raise refused(self.text, self.what, f"{name} takes the time of both lengths multiplied: one is {advice}")
        return max(sizes) * min(written)

    def _noted(self, size: int) -> int:
        self.made += size
        if self.made > MOST_MADE * ROW:
            why = (
                f"its functions make more than {MOST_MADE} times of a row, one upon another; use fewer, or less of them"
            )
            if size >= _UNKNOWN:
                why = "what it makes of each element of a list is made of that element and of constants only"
            raise refused(self.text, self.what, why)
        return size


def _literal_bytes(node: Node) -> int:
    return len(str((node.get("literal") or {}).get("text", "")).encode())


def _is_text(node: Node) -> bool:
    if node["class"] == "CAST":
        return str(node["type_expr"].get("type_name", "")).upper() in TEXT_TYPES
    return node["class"] == "CONSTANT" or str(node.get("function_name", "")).lower() in TEXT


def _is_one(path: Node) -> bool:
    return path["class"] in ("CONSTANT", "COLUMN_REF")


def _names(lhs: Any) -> frozenset[str]:
    columns = (each for each in nodes_of(lhs or {}) if each.get("class") == "COLUMN_REF")
    return frozenset(str(each["column_names"][0]).lower() for each in columns)


def _written_length(node: Node) -> int | None:
    """How long a text is that says so."""
    literal = node.get("literal") or {}
    if literal.get("kind") == "STRING":
        return max(1, len(str(literal["text"])))
    places = {"left": 2, "substr": 3, "substring": 3}.get(str(node.get("function_name", "")).lower())
    given = arguments(node) if places else []
    length = str((given[-1].get("literal") or {}).get("text", "")) if len(given) == places else ""
    return int(length) if length.isdecimal() and len(length) < 20 else None
