"""Which columns of the table a SELECT reads, told by its tree: the others need not be fetched."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from storage_core.engine.statement import TABLE, parse
from storage_core.engine.tree import Node, called_on, nodes_of
from storage_core.errors import InvalidInput
from storage_core.read.predicate import Filter

_REMEMBERED: Final = 2**12
"""Characters of a condition that is asked again and again."""


def columns_read(tree: Node, names: Iterable[str], table: str) -> frozenset[str] | None:
    """Return those of a table's columns `names` on which the answer may depend; None for all, or where none can tell.

    The number of rows is no column: `select count(*)` reads none. More may be returned than are read, never fewer: a
    name counts wherever it stands, as DuckDB compares it, whatever it means there.
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
        if not found and not rows.isdisjoint(parts):  # a row as a value
            return None
        read |= found
    return frozenset(read)


def columns_of(wanted: Filter, names: Iterable[str]) -> frozenset[str] | None:
    """Return those of a table's columns `names` that a filter reads; None for all, or where none can tell."""
    condition, known = str(wanted.expression), tuple(names)
    return (_columns_of if len(condition) <= _REMEMBERED else _columns_of.__wrapped__)(condition, known)


@functools.lru_cache(maxsize=64)
def _columns_of(condition: str, names: tuple[str, ...]) -> frozenset[str] | None:
    try:
        tree = parse(f"SELECT 1 FROM {TABLE} WHERE {condition}", "filter")  # noqa: S608  # parsed, not run
    except InvalidInput:  # longer than a text from outside may be, as it was made of parts
        return None
    return columns_read(tree, names, TABLE)


def _names_what_is_there(node: Node) -> bool:
    """Whether columns are read by other than their names: all of them, those that two tables share, or by number."""
    kind = node.get("type")
    return (
        node.get("class") in ("STAR", "POSITIONAL_REFERENCE")
        or kind == "PIVOT"
        or (kind == "JOIN" and node["ref_type"] == "NATURAL")
        or (kind == "BASE_TABLE" and bool(node["column_name_alias"]))
    )


def _named(nodes: Iterable[Node]) -> Iterable[list[str]]:
    """What is named by words with dots between them, in lower case."""
    for node in nodes:
        if node.get("class") == "COLUMN_REF":
            yield [str(part).lower() for part in node["column_names"]]
        elif "function_name" in node:
            yield [part.lower() for part in called_on(node)]
        for name in node.get("using_columns") or ():
            yield [str(name).lower()]
