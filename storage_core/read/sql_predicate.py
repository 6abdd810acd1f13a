"""SQL conditions as predicates: DuckDB's own parser reads the text, and what pruning can use is taken from its tree.

Nothing here pastes text into a statement. `from_sql` accepts exactly one boolean expression over one table: a text that
closes the condition and goes on (`1=1) union select …`), or that holds a subquery, is refused (lesson 83).
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from storage_core.engine.statement import TABLE, check, parse
from storage_core.engine.tree import Node, arguments, nodes_of
from storage_core.errors import InvalidInput
from storage_core.read.column_names import folded
from storage_core.read.predicate import (
    MIRRORED,
    And,
    Beginning,
    Compare,
    Comparison,
    Day,
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

_REMEMBERED: Final = 2**12
"""Characters of a condition that is asked again and again."""

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
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT2": 16, "INTEGER": 32, "INT": 32, "INT4": 32, "BIGINT": 64, "INT8": 64}
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DISTINCT = {"COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM"}
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_TEMPORAL_CASTS = {"DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"}


def from_sql(text: str) -> Filter:
    """Return the filter for a SQL condition such as `status >= 500 AND method = 'GET'`.

    Raises `InvalidInput` when the text is not one condition over plain columns. What a short text says is remembered.
    """
    return (_from_sql if len(text) <= _REMEMBERED else _from_sql.__wrapped__)(text)


@functools.lru_cache(maxsize=64)
def _from_sql(text: str) -> Filter:
    import duckdb

    query = f"SELECT * FROM {TABLE} WHERE {text}"  # noqa: S608  # parsed only, to be checked below
    where = (plain_select(query, "filter") or {}).get("where_clause")
    if where is None or any(each.get("class") == "SUBQUERY" for each in nodes_of(where)):
        raise InvalidInput(f"the filter {text!r} is not one condition over columns of the table", filter=text)
    return Filter(predicate_of(where, Names(TABLE)), (duckdb.SQLExpression(text),))


def plain_select(query: str, what: str) -> Node | None:
    """Return the tree of a SELECT of known parts over the rows of the table as they are; None for any other statement.

    It may choose, and have a condition, and nothing else. Raises `InvalidInput` as `parse` and `check` do.
    """
    node = parse(query, what)
    check(node, query, tables=[TABLE], what=what)
    extra = [key for key in ("group_expressions", "modifiers", "having", "qualify", "sample") if node.get(key)]
    source = node.get("from_table") or {}
    is_plain = source.get("type") == "BASE_TABLE" and not (source["column_name_alias"] or source.get("alias"))
    shape = node.get("type") == "SELECT_NODE" and is_plain and source["sample"] is None
    return node if shape and not extra else None


@dataclass(frozen=True, slots=True)
class Names:
    """How columns of a table are named: with its name before them, and those of `own` without; all where it is None."""

    table: str
    own: Collection[str] | None = None


def predicate_of(node: Node, table: Names) -> Predicate:
    """Return one condition as a predicate; whatever is not understood becomes `Opaque`, which never prunes."""
    kind = str(node["type"])
    if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        children = tuple(predicate_of(child, table) for child in node["children"])
        return And(children) if kind == "CONJUNCTION_AND" else Or(children)
    if kind in _COMPARISONS:
        return _comparison(node, _COMPARISONS[kind], table)
    if kind in _DISTINCT:
        return _distinct(node, table, negated=kind == "COMPARE_NOT_DISTINCT_FROM")
    if kind == "SUBQUERY":
        return _any(node, table)
    if kind == "COMPARE_BETWEEN":
        if not _are_alike([node["lower"], node["upper"]]):
            return Opaque(kind)
        low = _compare(node["input"], Comparison.GE, node["lower"], table)
        return And((low, _compare(node["input"], Comparison.LE, node["upper"], table)))
    if kind == "OPERATOR_NOT":
        return negate(predicate_of(node["children"][0], table))
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
    return _always(node) or Opaque(kind)


def _always(node: Node) -> Predicate | None:
    """What `true` and `false` say by themselves; None for all else."""
    value = _constant(node)
    if not isinstance(value, bool):
        return None
    return And(()) if value else Or(())


def _are_alike(constants: Sequence[Node]) -> bool:
    """Whether all of these are literals that a column is compared with as with each of them alone: see `are_alike`."""
    values = [_constant(each) for each in constants]
    types = {str(each["type_expr"].get("type_name", "")).upper() for each in constants if each["class"] == "CAST"}
    return None not in values and len(types) <= 1 and are_alike(values)


def _comparison(node: Node, comparison: Comparison, table: Names) -> Predicate:
    if _constant(node["right"]) is not None:
        return _compare(node["left"], comparison, node["right"], table)
    return _compare(node["right"], MIRRORED[comparison], node["left"], table)


def _distinct(node: Node, table: Names, *, negated: bool) -> Predicate:
    """IS DISTINCT FROM a value, which a null is and, unlike to a comparison, is known to be."""
    differs = _comparison(node, Comparison.NE, table)
    if not isinstance(differs, Compare):
        return differs
    found = Or((IsNull(differs.column), differs))
    return negate(found) if negated else found


def _any(node: Node, table: Names) -> Predicate:
    """What `n = any([3, 5])` says, which the parser makes a subquery; of other members than integers nothing."""
    unnested = [each for item in node["subquery"]["node"].get("select_list", ()) for each in _given(item, "unnest")]
    members = [each for item in unnested for each in _given(item, "list_value")]
    is_list = len(unnested) == 1 and members and all(_integer(each) is not None for each in members)
    if not is_list or node["subquery_type"] != "ANY" or node["comparison_type"] != "COMPARE_EQUAL":
        return Opaque("ANY")
    found = (_compare(node["child"], Comparison.EQ, each, table) for each in members)
    return And((Or(tuple(found)), Opaque("ANY")))  # some of the members, for a subquery may go on


def _given(node: Node, function: str) -> list[Node]:
    """What this function is called with, where the node calls it."""
    return arguments(node) if node.get("function_name") == function else []


def _beginning(node: Node, table: Names) -> Predicate:
    """What a function of a text and its pattern, or its beginning, says of how the text begins."""
    given = [each["expression"] for each in node["arguments"]]
    column = _column(given[0], table) if len(given) == 2 else None
    pattern = _constant(given[1]) if column is not None else None
    if column is None or not isinstance(pattern, str):
        return Opaque(str(node["function_name"]))
    text = _WILDCARD.split(pattern, maxsplit=1)[0] if node["function_name"] == "~~" else pattern
    return Compare(column, Comparison.EQ, Beginning(text))


def _compare(subject: Node, comparison: Comparison, constant: Node, table: Names) -> Predicate:
    is_day = _type_cast_to(subject) == "DATE"
    column = _column(subject["child"] if is_day else subject, table)
    value = _day(constant) if is_day else _constant(constant)
    return Opaque(str(comparison)) if column is None or value is None else Compare(column, comparison, value)


def _day(constant: Node) -> Day | None:
    """The day that a date, or the first moment of a day, is compared as with a date."""
    value = _constant(constant)
    text = value.text if isinstance(value, Instant) else value
    return Day(text) if isinstance(text, str) and _DAY.fullmatch(text) else None


def _column(node: Node, table: Names) -> str | None:
    """The column that is named; None for all else, such as a field of a struct."""
    if node["class"] != "COLUMN_REF":
        return None
    first, *rest = map(str, node["column_names"])
    if rest and folded(first) == folded(table.table):
        first, *rest = rest
    elif table.own is not None and folded(first) not in table.own:
        return None
    return None if rest else first


def _type_cast_to(node: Node) -> str | None:
    """The name of the type that a value is cast to; None for what is no cast, and for one that may fail."""
    is_cast = node["class"] == "CAST" and not node["try_cast"]
    return str(node["type_expr"].get("type_name", "")).upper() if is_cast else None


def _constant(node: Node) -> Scalar | Instant | None:
    """Return the value of a literal, a cast to an integer, DOUBLE, a date or a time, or a sum; None for all else."""
    name = _type_cast_to(node)
    if name is not None:
        inner = _constant(node["child"])
        if name in _BITS:
            whole = int(inner) if isinstance(inner, str) and _WHOLE.fullmatch(inner) else inner
            return whole if type(whole) is int and _fits(whole, _BITS[name]) else None
        if name == "DOUBLE" and isinstance(inner, int | float | Decimal) and not isinstance(inner, bool):
            return float(inner)
        rounds = name == "DATE" and isinstance(inner, str) and len(inner) != len("2015-05-17")
        return Instant(inner) if name in _TEMPORAL_CASTS and isinstance(inner, str) and not rounds else None
    if node["class"] != "CONSTANT":
        return _integer(node)
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


def _integer(node: Node) -> int | None:
    """Return the value of a literal of DuckDB's type INTEGER, and of such added, taken away or multiplied; else None.

    What is more than the type holds is an error of the query, on its way too.
    """
    if node["class"] == "CONSTANT":
        value = _constant(node)
    elif node.get("is_operator") and node["function_name"] in _ARITHMETIC:
        numbers = [_integer(each) for each in arguments(node)]
        known = [each for each in numbers if each is not None]
        if len(known) < len(numbers) or len(known) not in (1, 2) or (len(known) == 1 and node["function_name"] != "-"):
            return None
        value = -known[0] if len(known) == 1 else _ARITHMETIC[node["function_name"]](*known)
    else:
        return None
    return value if type(value) is int and _fits(value, _BITS["INTEGER"]) else None


def _fits(value: int, bits: int) -> bool:
    least: int = -(2 ** (bits - 1))
    return least <= value < -least
