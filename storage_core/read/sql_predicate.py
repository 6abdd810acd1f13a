"""SQL conditions as predicates: DuckDB's own parser reads the text, and what pruning can use is taken from its tree.

Nothing here pastes text into a statement. `from_sql` accepts exactly one boolean expression over one table: a text that
closes the condition and goes on (`1=1) union select …`), or that holds a subquery, is refused (lesson 83).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from storage_core.engine.statement import TABLE, check, parse
from storage_core.engine.tree import Node, nodes_of
from storage_core.errors import InvalidInput
from storage_core.read.predicate import (
    MIRRORED,
    And,
    Beginning,
    Compare,
    Comparison,
    Filter,
    Instant,
    IsNull,
    Opaque,
    Or,
    Predicate,
    Scalar,
    are_alike,
    negate,
)

_COMPARISONS = {
    "COMPARE_EQUAL": Comparison.EQ,
    "COMPARE_NOTEQUAL": Comparison.NE,
    "COMPARE_LESSTHAN": Comparison.LT,
    "COMPARE_LESSTHANOREQUALTO": Comparison.LE,
    "COMPARE_GREATERTHAN": Comparison.GT,
    "COMPARE_GREATERTHANOREQUALTO": Comparison.GE,
}
_BEGINNINGS = {"~~", "^@", "starts_with", "prefix"}
_WILDCARD = re.compile("[%_]")
_LONGEST_NUMBER = 100
"""Python refuses to read digits without end, and no column holds so many."""
_TEMPORAL_CASTS = {"DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"}


def from_sql(text: str) -> Filter:
    """Return the filter for a SQL condition such as `status >= 500 AND method = 'GET'`.

    Raises `InvalidInput` when the text is not one condition over plain columns.
    """
    import duckdb

    query = f"SELECT * FROM {TABLE} WHERE {text}"  # noqa: S608  # parsed only, to be checked below
    node = parse(query, "filter")
    check(node, query, tables=[TABLE], what="filter")
    extra = [key for key in ("group_expressions", "modifiers", "having", "qualify", "sample") if node.get(key)]
    shape = node.get("type") == "SELECT_NODE" and _is_plain_table(node.get("from_table"), TABLE)
    where = node.get("where_clause")
    if not shape or extra or where is None or any(each.get("class") == "SUBQUERY" for each in nodes_of(where)):
        raise InvalidInput(f"the filter {text!r} is not one condition over columns of the table", filter=text)
    return Filter(_predicate(where, _Names(TABLE)), (duckdb.SQLExpression(text),))


def where_of(query: Node, table: str) -> Predicate | None:
    """Return the condition that every row of `table` used by this query must meet, or None when there is no telling.

    Of joined tables it is what the WHERE clause says of columns before which the name of the table stands.
    """
    where = query.get("where_clause")
    if query.get("type") != "SELECT_NODE" or where is None or _reads(query, table) != 1:
        return None
    if query["sample"] is not None:  # which is taken before the condition applies
        return None
    source = query["from_table"]
    read = _kept_of(source, table)
    shadowed = any(entry["key"].lower() == table.lower() for entry in query["cte_map"]["map"])
    if read is None or shadowed:
        return None
    return _predicate(where, _Names(str(read.get("alias") or table), is_joined=read is not source))


def _kept_of(source: Node | None, table: str) -> Node | None:
    """Where a FROM clause reads `table`, if of its rows only those count that the WHERE clause keeps.

    A row of the other side of an outer join counts, with nulls, where no row of `table` meets it.
    """
    if source is None or source.get("type") != "JOIN":
        return source if _is_plain_table(source, table) else None
    if source["join_type"] not in ("INNER", "LEFT") or source["ref_type"] not in ("REGULAR", "CROSS"):
        return None
    sides = ("left", "right") if source["join_type"] == "INNER" else ("left",)
    return next((found for side in sides if (found := _kept_of(source[side], table)) is not None), None)


@dataclass(frozen=True, slots=True)
class _Names:
    """How columns of a table are named: with its name before them, or without where it is the only one."""

    table: str
    is_joined: bool = False


def _reads(tree: object, table: str) -> int:
    """Count the places of the tree that read `table`."""
    return sum(
        node.get("type") == "BASE_TABLE" and str(node.get("table_name")).lower() == table.lower()
        for node in nodes_of(tree)
    )


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


def _predicate(node: Node, table: _Names) -> Predicate:
    """Translate one condition; whatever is not understood becomes `Opaque`, which never prunes."""
    kind = str(node["type"])
    if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        children = tuple(_predicate(child, table) for child in node["children"])
        return And(children) if kind == "CONJUNCTION_AND" else Or(children)
    if kind in _COMPARISONS:
        return _comparison(node, _COMPARISONS[kind], table)
    if kind == "COMPARE_BETWEEN":
        if not _are_alike([node["lower"], node["upper"]]):
            return Opaque(kind)
        low = _compare(node["input"], Comparison.GE, node["lower"], table)
        return And((low, _compare(node["input"], Comparison.LE, node["upper"], table)))
    if kind == "OPERATOR_NOT":
        return negate(_predicate(node["children"][0], table))
    if kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
        column = _column(node["children"][0], table)
        return IsNull(column, negated=kind == "OPERATOR_IS_NOT_NULL") if column else Opaque(kind)
    if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
        subject, *members = node["children"]
        if not _are_alike(members):
            return Opaque(kind)
        chosen = Or(tuple(_compare(subject, Comparison.EQ, member, table) for member in members))
        return negate(chosen) if kind == "COMPARE_NOT_IN" else chosen
    if kind == "FUNCTION" and str(node["function_name"]).lower() in _BEGINNINGS:
        return _beginning(node, table)
    return Opaque(kind)


def _are_alike(constants: Sequence[Node]) -> bool:
    """Whether all of these are literals that a column is compared with as with each of them alone: see `are_alike`."""
    values = [_constant(each) for each in constants]
    types = {str(each["type_expr"].get("type_name", "")).upper() for each in constants if each["class"] == "CAST"}
    return None not in values and len(types) <= 1 and are_alike(values)


def _comparison(node: Node, comparison: Comparison, table: _Names) -> Predicate:
    if _column(node["left"], table) is not None:
        return _compare(node["left"], comparison, node["right"], table)
    return _compare(node["right"], MIRRORED[comparison], node["left"], table)


def _beginning(node: Node, table: _Names) -> Predicate:
    """What a function of a text and its pattern, or its beginning, says of how the text begins."""
    arguments = [each["expression"] for each in node["arguments"]]
    column = _column(arguments[0], table) if len(arguments) == 2 else None
    pattern = _constant(arguments[1]) if column is not None else None
    if column is None or not isinstance(pattern, str):
        return Opaque(str(node["function_name"]))
    text = _WILDCARD.split(pattern, maxsplit=1)[0] if node["function_name"] == "~~" else pattern
    return Compare(column, Comparison.EQ, Beginning(text))


def _compare(subject: Node, comparison: Comparison, constant: Node, table: _Names) -> Predicate:
    column, value = _column(subject, table), _constant(constant)
    return Opaque(str(comparison)) if column is None or value is None else Compare(column, comparison, value)


def _column(node: Node, table: _Names) -> str | None:
    """The column that is named; None for all else, such as a field of a struct."""
    if node["class"] != "COLUMN_REF":
        return None
    first, *rest = map(str, node["column_names"])
    if rest and first.lower() == table.table.lower():
        first, *rest = rest
    elif table.is_joined:
        return None
    return None if rest else first


def _constant(node: Node) -> Scalar | Instant | None:
    """Return a literal's value, or None for what is none, and for casts to other than dates, times and DOUBLE."""
    if node["class"] == "CAST" and not node["try_cast"]:
        name = str(node["type_expr"].get("type_name", "")).upper()
        inner = _constant(node["child"])
        if name == "DOUBLE" and isinstance(inner, int | float | Decimal) and not isinstance(inner, bool):
            return float(inner)
        rounds = name == "DATE" and isinstance(inner, str) and len(inner) != len("2015-05-17")
        return Instant(inner) if name in _TEMPORAL_CASTS and isinstance(inner, str) and not rounds else None
    if node["class"] != "CONSTANT":
        return None
    literal = node["literal"]
    match literal.get("kind"):
        case "INTEGER":
            text = str(literal["text"])
            return int(text) if len(text) <= _LONGEST_NUMBER else None
        case "NUMERIC":  # DuckDB reads a literal with an exponent as a double, others as exact decimals
            text = str(literal["text"])
            if len(text) > _LONGEST_NUMBER:
                return None
            return float(text) if "e" in text.lower() else Decimal(text)
        case "STRING":
            return str(literal["text"])
        case "BOOLEAN":
            return str(literal["text"]).lower() == "true"
        case _:
            return None
