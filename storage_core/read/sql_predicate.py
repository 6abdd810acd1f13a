"""SQL conditions as predicates, and the columns that a SELECT reads.

- `from_sql` parses a text that contains one boolean expression over one table. The text is never pasted into a
  statement. A text is refused if it closes the condition and continues with other SQL (`1=1) union select …`). A
  subquery is also refused (lesson 83).
- `columns_read` returns the columns that a SELECT reads, from the syntax tree. The reader does not need to fetch the
  other columns.
- `one_of` and `between` build conditions from given texts or times. Each text becomes a value of its column, and never
  a part of a SQL statement.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted
from storage_core.data.rows.bound_text import has_bounds, text_of_bound
from storage_core.data.rows.columns import value_of
from storage_core.data.rows.vectors import type_text
from storage_core.engine.statement import TABLE, Node, arguments, called_on, check, nodes_of, parse, text_of, words
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
    col,
    folded,
    negate,
)

_REMEMBERED: Final = 2**12
"""The maximum number of characters of a condition that is cached. Short conditions are often used again."""

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
"""Maximum number of digits of a number.

Python refuses very long numbers, and no column contains a number with this many digits.
"""
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT2": 16, "INTEGER": 32, "INT": 32, "INT4": 32, "BIGINT": 64, "INT8": 64}
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DISTINCT = {"COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM"}
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
BOOLEAN_FUNCTIONS = words("""
    !~~ !~~* && <@ @> ^@ array_contains array_has array_has_all array_has_any contains ends_with ilike_escape isfinite
    isinf isnan json_contains json_valid like_escape list_contains list_has list_has_all list_has_any map_contains
    not_ilike_escape not_like_escape prefix regexp_full_match regexp_matches signbit starts_with struct_contains
    struct_has suffix ~~ ~~* ~~~
""")
"""Functions that always return a boolean, regardless of the types of their arguments."""
_BOOLEAN_CLASSES = {"COMPARISON", "BETWEEN"}
_BOOLEAN_OPERATORS = {"COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}
_BOOLEAN_TYPES = {"BOOL", "BOOLEAN", "LOGICAL"}
_TEMPORAL_CASTS = {"DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"}


def from_sql(text: str) -> Filter:
    """Return the filter for a SQL condition such as `status >= 500 AND method = 'GET'`.

    The result of a short text is cached.

    Raises:
        InvalidInput: The text is not one condition over plain columns.
    """
    return (_from_sql if len(text) <= _REMEMBERED else _from_sql.__wrapped__)(text)


@functools.lru_cache(maxsize=64)
def _from_sql(text: str) -> Filter:
    import duckdb

    query = f"SELECT * FROM {TABLE} WHERE {text}"  # noqa: S608  # parsed only, to be checked below
    where = (plain_select(query, "condition", given=text) or {}).get("where_clause")
    if where is None or any(each.get("class") == "SUBQUERY" for each in nodes_of(where)):
        raise InvalidInput(
            f"the condition {text!r} is not one condition over columns of the table. "
            "Write one condition, such as status >= 500",
            filter=text,
        )
    predicate, unchecked = predicate_of(where, Names(TABLE)), [*_unchecked(where)]
    # DuckDB may spell a part of the condition differently than the user.
    texts = [text.strip()] if unchecked == [where] else dict.fromkeys(map(text_of, unchecked))
    return Filter(predicate, (duckdb.SQLExpression(text),), unchecked=tuple(texts))


def _unchecked(node: Node) -> Iterator[Node]:
    """Yield those parts of a condition that DuckDB uses as conditions. A part may have another type than boolean.

    DuckDB casts each of these parts to a boolean. For example, the condition `status` is true for every row in which
    `status` is not 0.
    """
    kind, class_ = str(node["type"]), str(node["class"])
    if class_ == "CONJUNCTION" or kind == "OPERATOR_NOT":
        for child in node["children"]:
            yield from _unchecked(child)
    elif not (
        class_ in _BOOLEAN_CLASSES
        or kind in _BOOLEAN_OPERATORS
        or (class_ == "FUNCTION" and str(node["function_name"]).lower() in BOOLEAN_FUNCTIONS)
        or (class_ == "CONSTANT" and node["literal"].get("kind") in ("BOOLEAN", "NULL_LITERAL"))
        or (class_ == "CAST" and str(node["type_expr"].get("type_name", "")).upper() in _BOOLEAN_TYPES)
    ):
        yield node


def plain_select(query: str, what: str, *, given: str | None = None) -> Node | None:
    """Return the syntax tree of a SELECT that only selects and filters rows of the table.

    Return None if the statement does more than select and filter rows.

    Raises `InvalidInput` in the same cases as `parse` and `check`.
    """
    node = parse(query, what, given=given)
    check(node, query, tables=[TABLE], what=what, given=given)
    extra = [key for key in ("group_expressions", "modifiers", "having", "qualify", "sample") if node.get(key)]
    source = node.get("from_table") or {}
    is_plain = source.get("type") == "BASE_TABLE" and not (source["column_name_alias"] or source.get("alias"))
    shape = node.get("type") == "SELECT_NODE" and is_plain and source["sample"] is None
    return node if shape and not extra else None


@dataclass(frozen=True, slots=True)
class Names:
    """The names by which a query can refer to the columns of a table.

    A query can always refer to a column with `table` before the name. For the columns in `own`, the name of the table
    is optional. If `own` is None, every column name may be written without the name of the table.
    """

    table: str
    own: Collection[str] | None = None


def predicate_of(node: Node, table: Names) -> Predicate:
    """Return one condition as a predicate.

    If this function does not understand an expression, the expression becomes `Opaque`, which pruning does not use.
    """
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
    """Return the predicate of the constants `true` and `false`, or None for other expressions."""
    value = _constant(node)
    if not isinstance(value, bool):
        return None
    return And(()) if value else Or(())


def _are_alike(constants: Sequence[Node]) -> bool:
    """Return True if all nodes are literals that can be compared together.

    The results must equal those of separate comparisons (`are_alike`).
    """
    values = [_constant(each) for each in constants]
    types = {str(each["type_expr"].get("type_name", "")).upper() for each in constants if each["class"] == "CAST"}
    return None not in values and len(types) <= 1 and are_alike(values)


def _comparison(node: Node, comparison: Comparison, table: Names) -> Predicate:
    if _constant(node["right"]) is not None:
        return _compare(node["left"], comparison, node["right"], table)
    return _compare(node["right"], MIRRORED[comparison], node["left"], table)


def _distinct(node: Node, table: Names, *, negated: bool) -> Predicate:
    """Return the predicate of IS [NOT] DISTINCT FROM a value. A null is distinct from every other value."""
    differs = _comparison(node, Comparison.NE, table)
    if not isinstance(differs, Compare):
        return differs
    found = Or((IsNull(differs.column), differs))
    return negate(found) if negated else found


def _any(node: Node, table: Names) -> Predicate:
    """Return the predicate of a condition such as `n = any([3, 5])`, which DuckDB's parser converts to a subquery.

    If the list has a member that is not an integer, the result is `Opaque`.
    """
    unnested = [each for item in node["subquery"]["node"].get("select_list", ()) for each in _given(item, "unnest")]
    members = [each for item in unnested for each in _given(item, "list_value")]
    is_list = len(unnested) == 1 and members and all(_integer(each) is not None for each in members)
    if not is_list or node["subquery_type"] != "ANY" or node["comparison_type"] != "COMPARE_EQUAL":
        return Opaque("ANY")
    found = (_compare(node["child"], Comparison.EQ, each, table) for each in members)
    return And((Or(tuple(found)), Opaque("ANY")))  # The subquery may do more than return the list of values.


def _given(node: Node, function: str) -> list[Node]:
    """Return the arguments of a node that calls this function, or an empty list for all other nodes."""
    return arguments(node) if node.get("function_name") == function else []


def _beginning(node: Node, table: Names) -> Predicate:
    """Return the predicate of a LIKE condition or a prefix function. These conditions compare the start of a text."""
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
    """Return the day of a node that a condition compares with a date. The node is a date, or the start of a day."""
    value = _constant(constant)
    text = value.text if isinstance(value, Instant) else value
    return Day(text) if isinstance(text, str) and _DAY.fullmatch(text) else None


def _column(node: Node, table: Names) -> str | None:
    """Return the column to which a node refers, or None if the node is not a column (for example a struct field)."""
    if node["class"] != "COLUMN_REF":
        return None
    first, *rest = map(str, node["column_names"])
    if rest and folded(first) == folded(table.table):
        first, *rest = rest
    elif table.own is not None and folded(first) not in table.own:
        return None
    return None if rest else first


def _type_cast_to(node: Node) -> str | None:
    """Return the target type of a cast. None if the node is not a cast or is a TRY_CAST."""
    is_cast = node["class"] == "CAST" and not node["try_cast"]
    return str(node["type_expr"].get("type_name", "")).upper() if is_cast else None


def _constant(node: Node) -> Scalar | Instant | None:
    """Return the constant value of a node, or None if the node is another expression.

    A constant is a literal, integer arithmetic, or a cast to an integer, DOUBLE, a date or a time.
    """
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
        case "NUMERIC":  # DuckDB reads a literal with an exponent as a double, and other literals as exact decimals
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
    """Return the value of integer arithmetic, or None for other nodes.

    The node is an INTEGER literal, or a sum, difference or product of INTEGER literals.

    If a value or an intermediate value exceeds the range of the type, DuckDB raises an error. For an expression that
    raises an error, the result is None.
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


def columns_read(tree: Node, names: Iterable[str], table: str) -> frozenset[str] | None:
    """Return the columns in `names` on which the result may depend, or None for all columns.

    None is also returned if the columns cannot be determined. Counting rows needs no column: `select count(*)` reads
    none. The result contains at least the columns that the query reads, and possibly more. A column is included if its
    name occurs anywhere in the query, with any meaning. The comparison of names follows DuckDB's rules.
    """
    known = defaultdict[str, set[str]](set)
    for name in names:
        known[name.lower()].add(name)
    nodes = list(nodes_of(tree))
    if any(_names_what_is_there(node) for node in nodes):
        return None
    name = table.lower()
    reads = [node for node in nodes if node.get("type") == "BASE_TABLE" and str(node["table_name"]).lower() == name]
    rows = {name} | {str(node["alias"]).lower() for node in reads}
    read = set[str]()
    for parts in _named(nodes):
        found = {name for part in parts if part in known for name in known[part]}
        if not found and not rows.isdisjoint(parts):  # the query uses a whole row as a value
            return None
        read |= found
    return frozenset(read)


def columns_of(wanted: Filter, names: Iterable[str]) -> frozenset[str] | None:
    """Return the columns in `names` that a filter reads. None means all columns, or that the columns are unknown."""
    condition, known = str(wanted.expression), tuple(names)
    return (_columns_of if len(condition) <= _REMEMBERED else _columns_of.__wrapped__)(condition, known)


@functools.lru_cache(maxsize=64)
def _columns_of(condition: str, names: tuple[str, ...]) -> frozenset[str] | None:
    try:
        tree = parse(f"SELECT 1 FROM {TABLE} WHERE {condition}", "filter")  # noqa: S608  # parsed, not run
    except InvalidInput:  # a filter that was built from parts may be longer than the maximum length of a query text
        return None
    return columns_read(tree, names, TABLE)


def _names_what_is_there(node: Node) -> bool:
    """Return whether a node reads columns whose names do not occur in the query.

    Three kinds of nodes read columns without names. A node of these kinds reads all columns, the columns that two
    tables share, or a column by its position.
    """
    kind = node.get("type")
    return (
        node.get("class") in ("STAR", "POSITIONAL_REFERENCE")
        or kind == "PIVOT"
        or (kind == "JOIN" and node["ref_type"] == "NATURAL")
        or (kind == "BASE_TABLE" and bool(node["column_name_alias"]))
    )


def _named(nodes: Iterable[Node]) -> Iterable[list[str]]:
    """Yield the parts of each dotted name in the nodes, in lower case."""
    for node in nodes:
        if node.get("class") == "COLUMN_REF":
            yield [str(part).lower() for part in node["column_names"]]
        elif "function_name" in node:
            yield [part.lower() for part in called_on(node)]
        for name in node.get("using_columns") or ():
            yield [str(name).lower()]


MIDNIGHT = dt.time(0)


def one_of(field: pa.Field, texts: Iterable[str]) -> Filter:
    """Return the condition that a column has one of these values.

    The values are given as text. If there are no values, no row matches.

    Raises:
        InvalidInput: A text is not a value of the column's type, or is not the canonical text of its value.
    """
    return col(field.name).isin([_value(field, each) for each in texts])


def between(field: pa.Field, start: dt.datetime, end: dt.datetime) -> Filter:
    """Return the condition that the time in a column is at or after `start` and before `end`.

    `start` and `end` have a time zone.

    A timestamp without a time zone is taken as UTC. A date means the day in the time zone of `start`.

    Raises:
        InvalidInput: The column does not contain times or dates, or it contains dates and `start` or `end` is not
            midnight.
    """
    column = col(field.name)
    first, last = _instant(field, start), _instant(field, end)
    return (column >= first) & (column < last)


def _value(field: pa.Field, text: str) -> Any:
    if pa.types.is_string(field.type):
        return text
    if not has_bounds(field.type):
        raise InvalidInput(
            f"column {field.name!r}: a value of {type_text(field.type)} cannot be written as text. Name another column",
            column=field.name,
        )
    try:
        found = value_of(text, field.type)
    except (ValueError, pa.ArrowException) as error:
        raise InvalidInput(
            f"column {field.name!r}: {quoted(text)} is not a value of {type_text(field.type)}: {error}",
            column=field.name,
        ) from error
    if (own := text_of_bound(found)) != text:
        raise InvalidInput(
            f"column {field.name!r}: {quoted(text)} is not the standard form of the value. Write {own}",
            column=field.name,
        )
    return found.as_py()


def _instant(field: pa.Field, instant: dt.datetime) -> dt.datetime | dt.date:
    if pa.types.is_timestamp(field.type):
        utc = instant.astimezone(dt.UTC)
        return utc if field.type.tz else utc.replace(tzinfo=None)
    if not pa.types.is_date(field.type):
        raise InvalidInput(
            f"column {field.name!r} is {type_text(field.type)}, which is not a time. Name a column of timestamps or "
            "dates",
            column=field.name,
        )
    if instant.time() != MIDNIGHT:
        raise InvalidInput(
            f"column {field.name!r} has dates, but {instant.isoformat()} is not the start of a day. Name a column of "
            "timestamps",
            column=field.name,
        )
    return instant.date()
