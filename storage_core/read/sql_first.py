"""What a query asks of a whole table: its first rows, by LIMIT, or metrics of its columns and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from storage_core.engine.tree import Node, called_on, nodes_of
from storage_core.read.column_names import folded
from storage_core.read.first_rows import First
from storage_core.read.sql_tables import is_plain_table

_ROW_BY_ROW = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "OPERATOR", "STAR", "TYPE"}
)
"""Expressions that make one value of one row, as operators do among functions."""
_BETWEEN = ("where_clause", "group_expressions", "group_sets", "having", "qualify", "sample")
_STARS = ("exclude_list", "replace_list", "rename_list", "qualified_exclude_list", "expr")
_LARGEST = 18
"""Digits of a limit."""


def first_of(tree: Node, table: str, names: Sequence[str]) -> First | None:
    """Return the rows of `table` that a query depends on, by LIMIT and ORDER BY one of the columns `names`.

    None where it may depend on others: it has a condition, groups, DISTINCT, a window, a function of whole columns,
    another table or another SELECT.
    """
    if not is_one_table(tree, table):
        return None
    *orders, limit = tree["modifiers"] or [{}]
    rows = _rows(limit)
    if rows is None or not all(map(_is_row_by_row, nodes_of([tree["select_list"], tree["modifiers"]]))):
        return None
    if not orders:
        return First(rows)
    if len(orders) > 1 or orders[0]["type"] != "ORDER_MODIFIER":
        return None
    by = orders[0]["orders"][0]
    column = _column(by["expression"], tree, names)
    if column is None:
        return None
    nulls_first = by["null_order"] == "NULLS FIRST"
    return First(rows, column, descending=by["type"] == "DESCENDING", nulls_first=nulls_first)


def metrics_asked(tree: Node, table: str, names: Sequence[str]) -> frozenset[str] | None:
    """Return the columns `names` of which a query needs only `min`, `max` and `count`; None where it may need more."""
    if not is_one_table(tree, table):
        return None
    called = _called(tree)
    nodes = list(nodes_of(tree))
    asked = [node["arguments"][0]["expression"] for node in nodes if _is_metric(node)]
    found = [[name for name in names if _is_named(node, name, called)] for node in asked]
    read = sum(node.get("class") in ("COLUMN_REF", "STAR", "POSITIONAL_REFERENCE", "WINDOW") for node in nodes)
    if not found or len(asked) != read or any(len(each) != 1 for each in found):
        return None
    return frozenset(name for [name] in found)


def _is_metric(node: Node) -> bool:
    """Whether a node is `min`, `max` or `count` of a column, of all rows."""
    return (
        node.get("class") == "FUNCTION"
        and str(node["function_name"]).lower() in ("min", "max", "count")
        and len(node["arguments"]) == 1
        and node["arguments"][0]["expression"]["class"] == "COLUMN_REF"
        and not called_on(node)
        and not (node["distinct"] or node["filter"] or node["order_bys"]["orders"])
    )


def is_one_table(tree: Node, table: str) -> bool:
    """Return whether a query is one SELECT from all rows of one table, whatever it makes of them."""
    selects = sum(node.get("type") in ("SELECT_NODE", "BASE_TABLE") for node in nodes_of(tree))
    return (
        tree.get("type") == "SELECT_NODE"
        and selects == 2  # itself, and its table
        and is_plain_table(tree["from_table"], table)
        and not any(tree.get(each) for each in _BETWEEN)
        and str(tree["aggregate_handling"]) == "STANDARD_HANDLING"
    )


def _rows(limit: Node) -> int | None:
    if limit.get("type") != "LIMIT_MODIFIER" or limit["limit_type"] != "ROW_COUNT":
        return None
    found = 0
    for each in (limit["limit"], limit["offset"]):
        literal = {"kind": "INTEGER", "text": "0"} if each is None else each.get("literal", {})
        text = str(literal.get("text"))
        if literal.get("kind") != "INTEGER" or not text.isdigit() or len(text) > _LARGEST:
            return None
        found += int(text)
    return None if limit["limit"] is None else found


def _is_row_by_row(node: Node) -> bool:
    class_ = node.get("class")
    if class_ is None:
        return node.get("type") != "DISTINCT_MODIFIER"
    return class_ in _ROW_BY_ROW or (class_ == "FUNCTION" and bool(node["is_operator"]))


def _column(by: Node, tree: Node, names: Sequence[str]) -> str | None:
    """The column that an ORDER BY names, and no other thing of that name in the answer."""
    if by["class"] != "COLUMN_REF":
        return None
    called = _called(tree)
    found = [name for name in names if _is_named(by, name, called)]
    if len(found) != 1 or not all(_leaves_alone(item, found[0], called) for item in tree["select_list"]):
        return None
    return found[0]


def _called(tree: Node) -> str:
    source = tree["from_table"]
    return folded(str(source.get("alias") or source["table_name"]))


def _is_named(node: Node, column: str, table: str) -> bool:
    parts = [folded(str(each)) for each in node["column_names"]]
    return parts in ([folded(column)], [table, folded(column)])


def _leaves_alone(item: Node, column: str, table: str) -> bool:
    """Whether what is selected is not called like the column, unless it is the column."""
    if item["class"] == "STAR":
        return not any(item.get(each) for each in _STARS)
    if item.get("alias"):
        return folded(str(item["alias"])) != folded(column)
    if item["class"] != "COLUMN_REF":
        return str(item["class"]) == "CONSTANT"
    return _is_named(item, column, table) or folded(str(item["column_names"][-1])) != folded(column)
