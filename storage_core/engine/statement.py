"""SQL from outside: one SELECT of known parts, or it is not run.

DuckDB's own parser gives the tree. Everything in it must be known: the kinds of queries, tables and expressions, every
field of every node, every function and type. So what a newer DuckDB adds to its language is refused, and so is what it
counts as part of a SELECT today (`with x as (copy … to …)`). Text that is too long or too deep never comes to the
parser, whose time grows faster than nesting does.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from storage_core.engine.functions import COPYING, NAMED, TABLE_FUNCTIONS, TYPES, words
from storage_core.engine.session import session
from storage_core.engine.tree import Node, nodes_of, refused, shown
from storage_core.errors import InvalidInput

if TYPE_CHECKING:
    import duckdb

TABLE = "t"
"""What a query calls the table that it is asked of."""
LONGEST_TEXT = 200_000
MOST_WORDS = 20_000
"""Words, numbers and signs: a list of some 10,000 constants."""
MOST_NESTED = 100
"""Brackets around brackets, and operators around operators. A list of conditions is one, however long."""
MOST_PARTS = 1_000
"""SELECTs, and tables that they read, each as often as it is named. DuckDB's time to plan grows faster than these."""
MOST_JOINS = 100
MOST_NAMES = 32
"""Names with dots between them, for one column or a field of it. DuckDB's time to plan grows faster than their number,
as with joins: a bound refuses at once what would use up the time of a query."""
MOST_COPIES = 8
"""Macros that name an argument twice, within each other."""

_QUERIES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"})
_TABLES = frozenset(
    {"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SHOW_REF", "SUBQUERY", "TABLE_FUNCTION"}
)
_PARTS = frozenset({"BASE_TABLE", "SELECT_NODE", "TABLE_FUNCTION"})
_MODIFIERS = frozenset({"DISTINCT_MODIFIER", "LIMIT_MODIFIER", "ORDER_MODIFIER"})
_ORDERS = frozenset({"ASCENDING", "DESCENDING", "ORDER_DEFAULT"})
_KINDS = _QUERIES | _TABLES | _MODIFIERS | _ORDERS
_CLASSES = words("""
    BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR
    POSITIONAL_REFERENCE STAR SUBQUERY TYPE WINDOW
""")
_FIELDS = words("""
    aggregate_handling aggregates alias aliases arg_orders arguments at_clause case_checks catalog catalog_name
    child children class collation column column_name_alias column_names columns comparison_type condition cte_map
    cte_name default_expr delim_flipped distinct distinct_on_targets duplicate_eliminated_columns else_expr end
    end_expr entries exclude_clause exclude_list expected_names expected_types export_state expr expression filter
    filter_expr from_table function function_name group_expressions group_sets groups has_ignore_nulls having id
    ignore_nulls include_nulls index input is_implicit is_null is_operator is_percentage join_type key key_targets
    kind left lhs limit limit_type literal lower map materialized method modifiers name named_param_map
    nearest_approx nearest_count nearest_order_type node null_order offset offset_expr order_bys orders partitions
    path payload_aggregates pivot_enum pivot_expressions pivots qualified_exclude_list qualified_name qualify
    query query_location query_location_length query_node ranking_expression ref_type relation_name rename_list
    repeatable replace_list right sample sample_rate sample_size schema schema_name seed select_list setop_all
    setop_type show_type source star_expr start start_expr subquery subquery_type syntax_type table table_name
    text then_expr try_cast type type_expr type_info type_name union_all unpivot_names upper using_columns value
    values when_expr where_clause with_ordinality
""")
_PARSER_TOO_DEEP = "Max expression depth"
_PLAIN_NAME = re.compile(r"[\w $-]+")
_DUCKDBS_OWN = re.compile(r"duckdb|pragma|pg_|sqlite_|information_schema|tidemark", re.IGNORECASE)


def parse(text: object, what: str = "query") -> Node:
    """Return DuckDB's tree of one SELECT statement. Raises `InvalidInput` for anything else, and for too large a text.

    The tree is not checked yet. It is nested so little that a function that calls itself per expression can read it.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a {what} is text, found {text!r}", query=text)
    _check_size(text, what)
    row = parser().execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    try:
        tree: dict[str, Any] = json.loads(row[0] if row else '{"error": true, "error_message": "no answer"}')
    except RecursionError:
        raise _too_deep(text, what) from None
    if tree["error"]:
        if _PARSER_TOO_DEEP in tree["error_message"]:
            raise _too_deep(text, what)
        raise InvalidInput(f"cannot read the {what} {shown(text)}: {tree['error_message']}", query=text)
    statements = tree["statements"]
    if len(statements) != 1:
        found = f"found {len(statements)} in {shown(text)}"
        raise InvalidInput(f"a {what} is one SELECT statement, {found}", query=text)
    node: Node = statements[0]["node"]
    return node


def parser() -> duckdb.DuckDBPyConnection:
    """Return a cursor of the confined session of this process, which parses and knows the engine's own lists."""
    return _parser(os.getpid()).cursor()


def check(tree: Node, text: str, *, tables: Collection[str], what: str = "query") -> None:
    """Return when every part of the tree is known, and it reads `tables` and its own common tables only."""
    nodes = list(nodes_of(tree))
    parts = sum(str(node.get("type")) in _PARTS for node in nodes)
    if parts > MOST_PARTS:
        advice = "ask in parts, or for several values by one condition"
        raise refused(text, what, f"it has {parts} SELECTs and tables where {MOST_PARTS} are the most; {advice}")
    joins = sum(node.get("type") == "JOIN" for node in nodes)
    if joins > MOST_JOINS:
        raise refused(text, what, f"it has {joins} joins where {MOST_JOINS} are the most")
    named = {str(node["key"]).lower() for node in nodes if _is_common_table(node.get("value"))}
    for name in named:
        if not is_table_name(name):
            raise refused(text, what, f"{name} cannot be the name of a common table")
    for node in nodes:
        why = _objection(node, named, tables)
        if why is not None:
            raise refused(text, what, why)
    check_copies(tree, text, what)


def check_copies(tree: Any, text: str, what: str) -> None:
    """Return when few macros that copy their arguments stand within each other. Raises `InvalidInput`."""
    waiting = [(tree, 0)]
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, dict):
            around += str(node.get("function_name")).lower() in COPYING
            if around > MOST_COPIES:
                names = ", ".join(sorted(COPYING))
                raise refused(text, what, f"at most {MOST_COPIES} of these stand within each other: {names}")
            waiting.extend((each, around) for each in node.values())
        elif isinstance(node, list):
            waiting.extend((each, around) for each in node)


def is_table_name(name: str) -> bool:
    """Return whether a table of a query may be called so: by a plain name that is none of DuckDB's own."""
    return bool(_PLAIN_NAME.fullmatch(name)) and not _DUCKDBS_OWN.match(name)


def _is_common_table(value: object) -> bool:
    return isinstance(value, Mapping) and "query_node" in value


def _objection(node: Node, common: set[str], tables: Collection[str]) -> str | None:
    """Why this record is none that a query may hold; None where it is."""
    if node.get("class") == "PARAMETER":
        return f"its parameter {node['identifier']} has no value; `parameters` of `Table.sql` gives one"
    unknown = node.keys() - _FIELDS
    if unknown:
        return f"a query may not hold {', '.join(sorted(unknown))}"
    kind, class_ = node.get("type"), node.get("class")
    if class_ is not None:
        return _expression_objection(node, str(class_))
    if not isinstance(kind, str):
        return None
    if kind not in _KINDS:
        return f"a query may not hold {kind}"
    match kind:
        case "BASE_TABLE":
            path = [str(each).lower() for each in node["qualified_name"]["path"]]
            if len(path) != 1 or path[0] not in {*common, *tables} or node["at_clause"] is not None:
                name = ".".join(map(str, node["qualified_name"]["path"]))
                return f"Table with name {name} does not exist! A query {_reading(tables)}"
        case "TABLE_FUNCTION":
            name = str(node["function"]["function_name"]).lower()
            return None if name in TABLE_FUNCTIONS else f"{name} is no function that a query may read from"
        case "SHOW_REF":
            return "a query may describe queries only" if node["query"] is None else None
        case "PIVOT":
            return "the values of a pivot are written out" if node["pivots"] and _from_type(node) else None
    return None


def _reading(tables: Collection[str]) -> str:
    if len(tables) == 1:
        return f"calls the table {', '.join(tables)}, and reads no other"
    return f"reads the tables {', '.join(tables)}, and no other"


def _from_type(pivot: Node) -> bool:
    return any(each.get("pivot_enum") or each.get("subquery") for each in pivot["pivots"])


def _expression_objection(node: Node, class_: str) -> str | None:
    if class_ not in _CLASSES:
        return f"a query may not hold {class_.lower().replace('_', ' ')}"
    if "function_name" in node:
        name = str(node["function_name"]).lower()
        if name not in _CALLED or node.get("export_state"):
            return f"{name} is no function that a query may use"
    if len(node.get("column_names") or ()) > MOST_NAMES:
        return f"a column is named by at most {MOST_NAMES} names with dots between them"
    if class_ == "TYPE" and str(node["type_name"]).upper() not in TYPES:
        return f"{node['type_name']} is no type that a query may use"
    return None


_CALLED = frozenset(map(str.lower, NAMED | TABLE_FUNCTIONS))


def _check_size(text: str, what: str) -> None:
    if len(text) > LONGEST_TEXT:
        advice = "give it in parts"
        raise InvalidInput(f"a {what} has at most {LONGEST_TEXT} characters, found {len(text)}; {advice}", query=None)
    try:
        coded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"a {what} is text of whole characters: {error}", query=text) from error
    import duckdb

    words, depth = duckdb.tokenize(text), 0
    if len(words) > MOST_WORDS:
        advice = "give it in parts"
        raise InvalidInput(
            f"a {what} has at most {MOST_WORDS} words and signs, found {len(words)}; {advice}", query=None
        )
    for offset, kind in words:
        if kind is duckdb.token_type.operator:
            depth += (coded[offset] in b"([{") - (coded[offset] in b")]}")
            if depth > MOST_NESTED:
                raise _too_deep(text, what)


@functools.cache
def _parser(process: int) -> duckdb.DuckDBPyConnection:  # noqa: ARG001  # what a fork leaves of another's is not used
    return session(threads=1, most_nested=MOST_NESTED)


def _too_deep(text: str, what: str) -> InvalidInput:
    return InvalidInput(f"the {what} {shown(text)} is nested more than {MOST_NESTED} deep; make it flatter", query=text)
