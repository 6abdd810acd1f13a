"""SQL queries over snapshots: the analysis of a query, and its execution.

This module analyses the syntax tree of a query, and then DuckDB executes the query. For each table, the analysis
determines the data that the query needs:

- The condition that a row of a table must meet to have an effect on the result (`where_of`). The condition comes from
  WHERE, and from ON if the type of the join allows it.
- The first rows of a table, for a query with LIMIT (`first_of`).
- The columns for which the query needs only metrics, such as the greatest value (`metrics_asked`).

Each SELECT of the query is analysed separately, including SELECTs in subqueries. A row that does not meet the
conditions of a SELECT does not change the result of the SELECT. If the analysis does not understand how a table is
read, the query reads all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.limits import QueryLimits
from storage_core.base.process import QUERY_BYTES, check_free_resources
from storage_core.base.text import quoted
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.values import TOO_LONG, find_long_decimals, wrong_values
from storage_core.engine.sandbox.process import prepare
from storage_core.engine.statement import (
    TABLE,
    Node,
    Parameters,
    called_on,
    check,
    is_table_name,
    nodes_of,
    parse,
    with_values,
)
from storage_core.read.answers import SqlResult
from storage_core.read.duckdb_view import Source, answer
from storage_core.read.plan import Plan, Watched
from storage_core.read.predicate import And, Or, Predicate, folded, in_columns
from storage_core.read.sql_predicate import Names, columns_read, predicate_of
from storage_core.read.table_read import First, TableRead, TableView, described, plan, source_of
from storage_core.read.verified_files import query_errors

_JOINS = ("REGULAR", "CROSS")
_KEEPING_LEFT = frozenset({"INNER", "LEFT", "SEMI", "ANTI"})

Conditions = tuple[Node, ...]


def where_of(tree: Node, table: str, schemas: Mapping[str, pa.Schema] | None = None) -> Predicate | None:
    """Return a condition that every row of `table` must meet to affect the result, or None if no condition is known.

    In a join, the condition on a column is used in three cases. In the first case, the name of the table precedes the
    column. In the second case, the USING clause of the join contains the column. In the third case, `schemas` shows
    that only one of the joined tables has the column.
    """
    common = {folded(str(each["key"])) for node in nodes_of(tree) for each in node.get("cte_map", {}).get("map", ())}
    known = {folded(name): schema for name, schema in (schemas or {}).items() if folded(name) not in common}
    selects = (node for node in nodes_of(tree) if node.get("type") == "SELECT_NODE")
    found = [each for select in selects for each in _reads(select, table, known)]
    everywhere = sum(_is_table(node, table) for node in nodes_of(tree))
    if folded(table) in common or len(found) != everywhere or not found:
        return None
    told = [each for each in found if each is not None]
    if len(told) < len(found):
        return None
    return told[0] if len(told) == 1 else Or(tuple(told))


def is_plain_table(node: Node | None, table: str) -> bool:
    """Return whether a FROM clause or one side of a join is the whole table. The columns must not have aliases."""
    return (
        node is not None
        and _is_table(node, table)
        and not node.get("schema_name")
        and not node.get("column_name_alias")
        and node.get("sample") is None
        and node.get("at_clause") is None
    )


def _is_table(node: Node, table: str) -> bool:
    return node.get("type") == "BASE_TABLE" and folded(str(node.get("table_name"))) == folded(table)


def _reads(select: Node, table: str, known: Mapping[str, pa.Schema]) -> Iterator[Predicate | None]:
    """Yield the condition of each read of the table, if the analysis supports the read.

    Yield None for a read without a condition.
    """
    if select["sample"] is not None:  # DuckDB takes the sample before it applies the condition
        return
    where = select["where_clause"]
    scope = _Scope.of(select["from_table"], known)
    for read, conditions in _conditions(select["from_table"], table, () if where is None else (where,)):
        names = scope.names(read)
        met = tuple(predicate_of(each, names) for each in conditions) if names is not None else ()
        yield (met[0] if len(met) == 1 else And(met)) if met else None


def _conditions(source: Node | None, table: str, met: Conditions) -> Iterator[tuple[Node, Conditions]]:
    """Yield the reads of the table in a FROM clause. With each read, yield the conditions that apply to its rows.

    An outer join keeps every row of one side (or of both sides), even without a matching row on the other side. For an
    outer join, conditions outside the join apply only to a side of which every row is kept. The ON condition of an
    outer join applies only to a side of which not every row is kept.
    """
    if source is None or source.get("type") != "JOIN":
        if source is not None and is_plain_table(source, table):
            yield source, met
        return
    if source["ref_type"] not in _JOINS:
        return
    on: Conditions = () if source["condition"] is None else (source["condition"],)
    sides: dict[str, tuple[Conditions, Conditions]] = {
        "INNER": (met + on, met + on),
        "LEFT": (met, on),
        "RIGHT": (on, met),
        "SEMI": (met + on, on),
        "ANTI": (met, on),
    }
    left, right = sides.get(source["join_type"], ((), ()))
    yield from _conditions(source["left"], table, left)
    yield from _conditions(source["right"], table, right)


@dataclass(frozen=True, slots=True)
class _Relation:
    """A table or subquery with a name in a FROM clause.

    `columns` maps the folded names of the relation's columns to their types. `columns` is None if the columns are
    unknown.
    """

    node: Node
    columns: Mapping[str, pa.DataType] | None

    @property
    def name(self) -> str:
        return folded(str(self.node.get("alias") or self.node.get("table_name")))


@dataclass(frozen=True, slots=True)
class _Scope:
    """The relations of a FROM clause from left to right, and the joins between them."""

    relations: tuple[_Relation, ...]
    joins: tuple[Node, ...]

    @staticmethod
    def of(source: Node | None, known: Mapping[str, pa.Schema]) -> _Scope:
        if source is None:
            return _Scope((), ())
        if source.get("type") == "JOIN":
            left, right = (_Scope.of(source[side], known) for side in ("left", "right"))
            return _Scope(left.relations + right.relations, (source, *left.joins, *right.joins))
        schema = known.get(folded(str(source.get("table_name"))))
        if schema is None or not is_plain_table(source, str(source["table_name"])):
            return _Scope((_Relation(source, None),), ())
        return _Scope((_Relation(source, {folded(each.name): each.type for each in schema}),), ())

    def names(self, read: Node) -> Names | None:
        """Return the column names of this table in the query, or None if another relation has the same table name."""
        [relation] = [each for each in self.relations if each.node is read]
        if sum(each.name == relation.name for each in self.relations) > 1:
            return None
        return Names(relation.name, None if len(self.relations) == 1 else self._own(relation))

    def _own(self, relation: _Relation) -> Collection[str]:
        """Return the columns of the relation that the query can name without the table name."""
        all_columns = [each.columns for each in self.relations if each.columns is not None]
        if relation.columns is None or len(all_columns) < len(self.relations):
            return ()
        return frozenset(
            name
            for name, type_ in relation.columns.items()
            for types in [[columns[name] for columns in all_columns if name in columns]]
            if len(types) == 1 or self._shares(relation, name, are_alike=all(each == type_ for each in types))
        )

    def _shares(self, relation: _Relation, name: str, *, are_alike: bool) -> bool:
        """Return whether a USING column without a table name refers to the column of this relation.

        Every join must have the column in its USING clause. The name then refers to the column of the first relation
        and to all columns that are equal to that column.
        """
        kinds = {each["join_type"] for each in self.joins}
        using = ({folded(str(column)) for column in each["using_columns"]} for each in self.joins)
        if not kinds <= _KEEPING_LEFT or not all(name in each for each in using):
            return False
        return relation is self.relations[0] or (are_alike and kinds == {"INNER"})


_ROW_BY_ROW = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "OPERATOR", "STAR", "TYPE"}
)
"""The classes of expressions that compute one value from each row.

A function call is one of these expressions only if the function is an operator.
"""
_BETWEEN = ("where_clause", "group_expressions", "group_sets", "having", "qualify", "sample")
_STARS = ("exclude_list", "replace_list", "rename_list", "qualified_exclude_list", "expr")
_LARGEST = 18
"""Maximum number of digits of a LIMIT or OFFSET."""


def first_of(tree: Node, table: str, names: Sequence[str]) -> First | None:
    """Return the rows of `table` that a query with LIMIT needs. ORDER BY may use one of the columns `names`.

    Returns None if the query may depend on other rows. The query may depend on other rows if it has one of these parts:
    a condition, GROUP BY, DISTINCT, a window or an aggregate function. Returns None also for a query with a second
    table or a second SELECT.
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
    """Return those columns of `names` for which the query needs only `min`, `max` and `count`.

    Return None if the query may need other data.
    """
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
    """Return whether a node is `min`, `max` or `count` of one column over all rows."""
    return (
        node.get("class") == "FUNCTION"
        and str(node["function_name"]).lower() in ("min", "max", "count")
        and len(node["arguments"]) == 1
        and node["arguments"][0]["expression"]["class"] == "COLUMN_REF"
        and not called_on(node)
        and not (node["distinct"] or node["filter"] or node["order_bys"]["orders"])
    )


def is_one_table(tree: Node, table: str) -> bool:
    """Return whether a query is a single SELECT from all rows of a single table.

    The select list may contain any expressions.
    """
    selects = sum(node.get("type") in ("SELECT_NODE", "BASE_TABLE") for node in nodes_of(tree))
    return (
        tree.get("type") == "SELECT_NODE"
        and selects == 2  # one node is the SELECT itself, and one node is its table
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
    """Return the column of an ORDER BY. Return None if the name may mean another column in the result."""
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
    """Return True if a selected item is the column itself.

    Also return True if the item's name differs from the column's name.
    """
    if item["class"] == "STAR":
        return not any(item.get(each) for each in _STARS)
    if item.get("alias"):
        return folded(str(item["alias"])) != folded(column)
    if item["class"] != "COLUMN_REF":
        return str(item["class"]) == "CONSTANT"
    return _is_named(item, column, table) or folded(str(item["column_names"][-1])) != folded(column)


Opened = Callable[[Predicate | None], TableView]
"""A function that takes the condition of a query and returns the view of a table."""


@dataclass(frozen=True, slots=True)
class _Query:
    """A checked query, with its syntax tree and the table or rows for each name."""

    text: str
    tree: Node
    views: Mapping[str, TableView | pa.Table]

    @staticmethod
    def of(tables: Mapping[str, Opened | pa.Table], text: str, parameters: Parameters | None) -> _Query:
        """Return the query with the values of its parameters, and open its tables. Raises `InvalidInput`."""
        if parameters is not None:
            text = with_values(text, parameters)
        tree = parse(text)
        check(tree, text, tables=[name.lower() for name in tables])
        views = {
            name: each if isinstance(each, pa.Table) else each(where_of(tree, name)) for name, each in tables.items()
        }
        return _Query(text, tree, views)

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The schema of each table or set of rows, by name."""
        return {
            name: each.schema if isinstance(each, pa.Table) else each.snapshot.schema
            for name, each in self.views.items()
        }

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """The columns of each table or set of rows, by name."""
        return {name: schema.names for name, schema in self.schemas.items()}

    def require_valid(self, limits: QueryLimits) -> None:
        """Raise the error of the query if DuckDB cannot bind the query.

        The function does not run the query and reads no table.
        """
        sources = {name: Source(schema.empty_table()) for name, schema in self.schemas.items()}
        with query_errors(self.text, (), limits, tables=self.names):
            answer(sources, self.text, limits).close()

    def plans(self, *, is_explained: bool = False) -> Mapping[str, TableRead]:
        """Return the plan of each table, by its name in the query."""
        tables = {name: view for name, view in self.views.items() if isinstance(view, TableView)}
        return {name: self._plan(name, view, is_explained=is_explained) for name, view in tables.items()}

    def _plan(self, name: str, view: TableView, *, is_explained: bool) -> TableRead:
        tree, names = self.tree, view.snapshot.schema.names
        return plan(
            view,
            in_columns(where_of(tree, name, self.schemas), names),
            columns=columns_read(tree, names, name),
            first=first_of(tree, name, names),
            asked=metrics_asked(tree, name, names),
            query=self.text,
            is_explained=is_explained,
        )


@check_free_resources("a query", size=QUERY_BYTES)
def query(
    tables: Mapping[str, Opened | pa.Table],
    text: str,
    *,
    limits: QueryLimits | None = None,
    parameters: Parameters | None = None,
) -> SqlResult:
    """Return the result of one SELECT over tables and rows in memory. The query uses the names in `tables`.

    The query can read only the splits of these tables, and it cannot write (decision 0024).

    Raises:
        InvalidInput: The text is not a single valid SELECT, or the parameters do not match the query.
        Unavailable: The query exceeds one of its limits.
    """
    prepare()  # Start a process before the check of the text, because most texts are valid and need a process.
    asked = _Query.of(tables, text, parameters)
    text, limits = asked.text, QueryLimits() if limits is None else limits
    read = asked.plans()
    sources = {
        name: Source(view) if isinstance(view, pa.Table) else source_of(read[name], query=text)
        for name, view in asked.views.items()
    }
    splits = [add for each in read.values() for add in each.splits]
    files = [file for each in sources.values() for file in each.splits]

    def batches() -> Iterator[pa.RecordBatch]:
        with query_errors(text, splits, limits, files=files, tables=asked.names), result:
            for batch in result:
                reject_changed_values(batch)
                yield batch
            for name, each in read.items():
                each.view.verified.recheck(each.view.store, sources[name].splits)

    with query_errors(text, splits, limits, files=files, tables=asked.names):
        result = answer(sources, text, limits, spill_bytes=limits.spill_bytes)
    return SqlResult(result.schema, batches(), on_stream=result.stream, memory_bytes=limits.memory_bytes, query=text)


def explain(
    tables: Mapping[str, Opened | pa.Table],
    text: str,
    *,
    limits: QueryLimits | None = None,
    parameters: Parameters | None = None,
    analyze: Collection[Watched] | None = None,
) -> Plan:
    """Return the plan of the data that the query reads from each table. Rows in memory are not part of the plan.

    Args:
        tables: The tables and rows by their names in the query.
        text: The query.
        limits: The limits of the query, or None for the default limits.
        parameters: The values of the query's parameters.
        analyze: The stores and caches to measure. If given, the query also runs, and its rows are discarded as they
            arrive.

    Cost:
        The requests of opening the tables, of `table_read.plan` and of `described`. A run adds the requests in the
        analysis.
    """
    asked = _Query.of(tables, text, parameters)
    asked.require_valid(QueryLimits() if limits is None else limits)
    plans = Plan(tuple(described(read, name) for name, read in asked.plans(is_explained=True).items()))
    if analyze is None:
        return plans
    return plans.analyzed(analyze, lambda: query(tables, asked.text, limits=limits).to_reader())


def other_names(tables: object) -> list[str]:
    """Return the names of the tables of a query other than `t`. Raises `InvalidInput` for an invalid name."""
    if not isinstance(tables, Mapping):
        raise InvalidInput(
            f"tables is {quoted(tables)}. Give a mapping of names to tables, as in tables={{'p': planes}}"
        )
    taken = {TABLE}
    for name in tables:
        if not isinstance(name, str) or not is_table_name(name) or name.lower() in taken:
            advice = "Give it a plain name that neither another table of the query nor DuckDB uses"
            raise InvalidInput(f"the name of a table in a query cannot be {quoted(name)}. {advice}", name=name)
        taken.add(name.lower())
    return list(tables)


_ADVICE = "Cast the column in the query, for example to VARCHAR."


def reject_changed_values(batch: pa.RecordBatch) -> None:
    """Raise `InvalidInput` if a value in a column differs from the value that the query computed."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if find_long_decimals(column) is not None:
            raise InvalidInput(f"column {quoted(name)}: {TOO_LONG}, {column.type}. {_ADVICE}", column=name)
        if wrong_values(column, _infinite) is not None:
            raise InvalidInput(
                f"column {quoted(name)}: an infinite date or time is not a value. {_ADVICE}", column=name
            )
        if wrong_values(column, _beyond_a_day) is not None:
            raise InvalidInput(f"column {quoted(name)}: 24:00:00 is not a time of a day. {_ADVICE}", column=name)


def _beyond_a_day(values: pa.Array) -> Mask | None:
    if not pa.types.is_time64(values.type):
        return None
    most = 86_400 * (10**6 if values.type.unit == "us" else 10**9)
    wrong = np.asarray(pc.greater_equal(values.cast(pa.int64()), most).fill_null(False))  # noqa: FBT003
    return wrong if wrong.any() else None


def _infinite(values: pa.Array) -> Mask | None:
    if pa.types.is_date32(values.type):
        ticks, most = values.cast(pa.int32()), 2**31 - 1
    elif pa.types.is_timestamp(values.type):
        ticks, most = values.cast(pa.int64()), 2**63 - 1
    else:
        return None
    least, greatest = (each.as_py() for each in pc.min_max(ticks).values())
    if least is None or (least > -most and greatest < most):
        return None
    return np.asarray(pc.is_in(ticks, pa.array([-most, most], ticks.type)))
