"""SQL conditions as predicates: DuckDB's own parser reads the text, and what pruning can use is taken from its tree.

Nothing here pastes text into a statement. `from_sql` accepts exactly one boolean expression over one table: a text that
closes the condition and goes on (`1=1) union select …`), or that holds a subquery, is refused (lesson 83).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import duckdb

from storage_core.errors import InvalidInput
from storage_core.read.predicate import (
    MIRRORED,
    And,
    Compare,
    Comparison,
    Filter,
    IsNull,
    Moment,
    Opaque,
    Or,
    Predicate,
    Scalar,
    negate,
)

Node = Mapping[str, Any]

_COMPARISONS = {
    "COMPARE_EQUAL": Comparison.EQ,
    "COMPARE_NOTEQUAL": Comparison.NE,
    "COMPARE_LESSTHAN": Comparison.LT,
    "COMPARE_LESSTHANOREQUALTO": Comparison.LE,
    "COMPARE_GREATERTHAN": Comparison.GT,
    "COMPARE_GREATERTHANOREQUALTO": Comparison.GE,
}
_TEMPORAL_CASTS = {"DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"}


def parse_select(query: str) -> Node:
    """Return DuckDB's tree of one SELECT statement. Raises `InvalidInput` for anything else."""
    if not isinstance(query, str):
        raise InvalidInput(f"a query is text, found {query!r}", query=query)
    with duckdb.connect() as connection:
        row = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchone()
    tree: dict[str, Any] = json.loads(row[0] if row else '{"error": true, "error_message": "no answer"}')
    if tree["error"]:
        raise InvalidInput(f"cannot read the query {query!r}: {tree['error_message']}", query=query)
    statements = tree["statements"]
    if len(statements) != 1:
        raise InvalidInput(f"expected one SELECT statement, found {len(statements)} in {query!r}", query=query)
    node: Node = statements[0]["node"]
    return node


def from_sql(text: str) -> Filter:
    """Return the filter for a SQL condition such as `status >= 500 AND method = 'GET'`.

    Raises `InvalidInput` when the text is not one condition over plain columns.
    """
    node = parse_select(f"SELECT * FROM t WHERE {text}")  # noqa: S608  # parsed only, to be checked below
    extra = [key for key in ("group_expressions", "modifiers", "having", "qualify", "sample") if node.get(key)]
    shape = node.get("type") == "SELECT_NODE" and _is_plain_table(node.get("from_table"), "t")
    if not shape or extra or node.get("where_clause") is None or _has_subquery(node["where_clause"]):
        raise InvalidInput(f"the filter {text!r} is not one condition over columns of the table", filter=text)
    return Filter(_predicate(_unqualified(node["where_clause"], "t")), duckdb.SQLExpression(text))


def where_of(query: Node, table: str) -> Predicate | None:
    """Return the condition that every row of `table` used by this query must meet, or None when there is no telling."""
    if query.get("type") != "SELECT_NODE" or not _is_plain_table(query.get("from_table"), table):
        return None
    shadowed = any(entry["key"].lower() == table.lower() for entry in query["cte_map"]["map"])
    where = query.get("where_clause")
    if shadowed or where is None or _reads(query, table) > 1:
        return None
    return _predicate(_unqualified(where, str(query["from_table"].get("alias") or table)))


def _unqualified(node: Any, table: str) -> Any:
    """Drop the table's name before its columns; what is left with two names is a field of a struct column."""
    if isinstance(node, Mapping):
        if node.get("class") == "COLUMN_REF":
            first, *rest = node["column_names"]
            return {**node, "column_names": rest if rest and first.lower() == table.lower() else [first, *rest]}
        return {key: _unqualified(child, table) for key, child in node.items()}
    return [_unqualified(child, table) for child in node] if isinstance(node, list) else node


def _reads(node: object, table: str) -> int:
    """Count the places of the tree that read `table`."""
    if isinstance(node, Mapping):
        own = node.get("type") == "BASE_TABLE" and str(node.get("table_name")).lower() == table.lower()
        return int(own) + sum(_reads(child, table) for child in node.values())
    if isinstance(node, list):
        return sum(_reads(child, table) for child in node)
    return 0


def _is_plain_table(node: Node | None, table: str) -> bool:
    return (
        node is not None
        and node.get("type") == "BASE_TABLE"
        and str(node.get("table_name")).lower() == table.lower()
        and not node.get("schema_name")
        and not node.get("column_name_alias")
        and node.get("sample") is None
        and node.get("at_clause") is None
    )


def _has_subquery(node: object) -> bool:
    if isinstance(node, Mapping):
        return node.get("class") == "SUBQUERY" or any(_has_subquery(child) for child in node.values())
    return isinstance(node, list) and any(_has_subquery(child) for child in node)


def _predicate(node: Node) -> Predicate:
    """Translate one condition; whatever is not understood becomes `Opaque`, which never prunes."""
    kind = str(node["type"])
    if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        children = tuple(_predicate(child) for child in node["children"])
        return And(children) if kind == "CONJUNCTION_AND" else Or(children)
    if kind in _COMPARISONS:
        return _comparison(node, _COMPARISONS[kind])
    if kind == "COMPARE_BETWEEN":
        low = _compare(node["input"], Comparison.GE, node["lower"])
        return And((low, _compare(node["input"], Comparison.LE, node["upper"])))
    if kind == "OPERATOR_NOT":
        return negate(_predicate(node["children"][0]))
    if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        column = _column(node["children"][0])
        return IsNull(column, negated=kind == "OPERATOR_IS_NOT_NULL") if column else Opaque(kind)
    if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
        subject, *members = node["children"]
        chosen = Or(tuple(_compare(subject, Comparison.EQ, member) for member in members))
        return negate(chosen) if kind == "COMPARE_NOT_IN" else chosen
    return Opaque(kind)


def _comparison(node: Node, comparison: Comparison) -> Predicate:
    if _column(node["left"]) is not None:
        return _compare(node["left"], comparison, node["right"])
    return _compare(node["right"], MIRRORED[comparison], node["left"])


def _compare(subject: Node, comparison: Comparison, constant: Node) -> Predicate:
    column, value = _column(subject), _constant(constant)
    return Opaque(str(comparison)) if column is None or value is None else Compare(column, comparison, value)


def _column(node: Node) -> str | None:
    if node["class"] != "COLUMN_REF":
        return None
    names = node["column_names"]
    return str(names[0]) if len(names) == 1 else None


def _constant(node: Node) -> Scalar | Moment | None:
    """Return a literal's value, or None for what is not a literal, and for casts to anything but dates and times."""
    if node["class"] == "CAST" and not node["try_cast"]:
        name = str(node["type_expr"].get("type_name", "")).upper()
        inner = _constant(node["child"])
        rounds = name == "DATE" and isinstance(inner, str) and len(inner) != len("2015-05-17")
        return Moment(inner) if name in _TEMPORAL_CASTS and isinstance(inner, str) and not rounds else None
    if node["class"] != "CONSTANT":
        return None
    literal = node["literal"]
    match literal.get("kind"):
        case "INTEGER":
            return int(literal["text"])
        case "NUMERIC":  # DuckDB reads a literal with an exponent as a double, others as exact decimals
            text = str(literal["text"])
            return float(text) if "e" in text.lower() else Decimal(text)
        case "STRING":
            return str(literal["text"])
        case "BOOLEAN":
            return str(literal["text"]).lower() == "true"
        case _:
            return None
