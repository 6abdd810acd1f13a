"""Columns as DuckDB finds them by name: whatever the case of their letters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from storage_core.read.predicate import And, Compare, IsNull, Opaque, Or, Predicate


def folded(name: str) -> str:
    """Return what two names have in common that are one to DuckDB, which takes no other letters than ASCII's alike."""
    return name.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")


def in_columns(predicate: Predicate | None, names: Iterable[str]) -> Predicate | None:
    """Return the predicate over the columns `names` of a table, which it may call by names of another case.

    What it says of other columns, and of one that several may be, is `Opaque`.
    """
    known = defaultdict[str, list[str]](list)
    for name in names:
        known[folded(name)].append(name)
    return None if predicate is None else _renamed(predicate, known)


def _renamed(predicate: Predicate, known: Mapping[str, list[str]]) -> Predicate:
    match predicate:
        case And(children):
            return And(tuple(_renamed(child, known) for child in children))
        case Or(children):
            return Or(tuple(_renamed(child, known) for child in children))
        case Compare(column) | IsNull(column):
            found = known.get(folded(column), [])
            return replace(predicate, column=found[0]) if len(found) == 1 else Opaque(column)
        case Opaque(_):
            return predicate
        case _:
            assert_never(predicate)
