"""Where a query reads a table, and what the rows must meet there to count: WHERE, and ON where a join allows it.

Each SELECT is looked at by itself, wherever it stands in the query: rows that its conditions refuse change nothing of
what it returns. A read that is not understood asks for all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from storage_core.engine.tree import Node, nodes_of
from storage_core.read.column_names import folded
from storage_core.read.predicate import And, Or, Predicate
from storage_core.read.sql_predicate import Names, predicate_of

_JOINS = ("REGULAR", "CROSS")
_KEEPING_LEFT = frozenset({"INNER", "LEFT", "SEMI", "ANTI"})

Conditions = tuple[Node, ...]


def where_of(tree: Node, table: str, schemas: Mapping[str, pa.Schema] | None = None) -> Predicate | None:
    """Return the condition that every row of `table` used by this query meets, or None when there is no telling.

    Where tables are joined, a column counts that has the name of its table before it, or that by the `schemas` of all
    of them is of one table only, or shared by USING.
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
    """Return whether a FROM clause, or a side of a join, is the table and all of it under its own names."""
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
    """What each understood read of the table by this SELECT demands of the rows; None where it is nothing."""
    if select["sample"] is not None:  # which is taken before the condition applies
        return
    where = select["where_clause"]
    scope = _Scope.of(select["from_table"], known)
    for read, conditions in _conditions(select["from_table"], table, () if where is None else (where,)):
        names = scope.names(read)
        met = tuple(predicate_of(each, names) for each in conditions) if names is not None else ()
        yield (met[0] if len(met) == 1 else And(met)) if met else None


def _conditions(source: Node | None, table: str, met: Conditions) -> Iterator[tuple[Node, Conditions]]:
    """The reads of the table by a FROM clause, and what rows must meet that count.

    A row of the other side of an outer join counts, with nulls, where no row of the table meets it: for such rows ON
    decides which are met, and nothing above the join.
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
    """What a FROM clause reads by one name; `columns` by their folded names, None where they are not known."""

    node: Node
    columns: Mapping[str, pa.DataType] | None

    @property
    def name(self) -> str:
        return folded(str(self.node.get("alias") or self.node.get("table_name")))


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a FROM clause reads, from left to right, and how it is joined."""

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
        """How columns of a table that is read here are named; None where another is called like it."""
        [relation] = [each for each in self.relations if each.node is read]
        if sum(each.name == relation.name for each in self.relations) > 1:
            return None
        return Names(relation.name, None if len(self.relations) == 1 else self._own(relation))

    def _own(self, relation: _Relation) -> Collection[str]:
        """The columns that are meant by their name alone."""
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
        """Whether a column by which all are joined is meant: that of the first, and those that are equal to it."""
        kinds = {each["join_type"] for each in self.joins}
        using = ({folded(str(column)) for column in each["using_columns"]} for each in self.joins)
        if not kinds <= _KEEPING_LEFT or not all(name in each for each in using):
            return False
        return relation is self.relations[0] or (are_alike and kinds == {"INNER"})
