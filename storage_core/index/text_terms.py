"""Words of a query that stand for several: `kib*` for those that begin so, `kibana~1` for those one change away.

Tantivy's own syntax drops such a star and knows no `~` behind a word, so queries with one are put together here, of
what tantivy makes of all else. Every word of the index that fits counts, however many there are: the rows of a prefix
are read from the index by an automaton. A row scores 1 for each of them that it has, times what boosts say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage_core.index import text_tokenizers
from storage_core.index.text_limits import Node, walk
from storage_core.settings.index import IndexDefinition

if TYPE_CHECKING:
    import tantivy

MOST_CHANGES: Final = 2
"""Of letters that are added, left out, replaced or swapped with their neighbour."""

_WORD = r"((?:[^\\]|\\.)+)"  # a backslash takes the meaning from what follows
_PREFIX = re.compile(rf"{_WORD}\*", re.DOTALL)
_FUZZY = re.compile(rf"{_WORD}~([0-9]?)", re.DOTALL | re.ASCII)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_META = re.compile(r"[^\w]", re.ASCII)
_SHORTEST_PREFIX = 2


@dataclass(frozen=True, slots=True)
class Term:
    """A word that stands for others: with `changes`, else all that begin with `text`."""

    field: str | None
    text: str
    changes: int | None


def term_of(node: Node) -> Term | None:
    """Return the term that a node of tantivy's tree is; None for all others. Raises `ValueError` for an odd one."""
    if node["type"] != "literal" or node["delimiter"] != "none":
        return None
    written: str = node["phrase"]
    if found := _PREFIX.fullmatch(written):
        if len(found[1]) < _SHORTEST_PREFIX:
            raise ValueError(f"{written!r} stands for too many words; write {_SHORTEST_PREFIX} characters or more")
        return Term(node["field_name"], _ESCAPED.sub(r"\1", found[1]), None)
    if found := _FUZZY.fullmatch(written):
        changes = int(found[2] or 1)
        return (
            Term(node["field_name"], _ESCAPED.sub(r"\1", found[1]), changes) if 1 <= changes <= MOST_CHANGES else None
        )
    return None


def has_terms(tree: Node) -> bool:
    """Tell whether a word of the query stands for several. Raises what `term_of` raises."""
    return any(term_of(node) is not None for node, _, _ in walk(tree))


@dataclass(frozen=True, slots=True)
class TermQueries:
    """Queries for one index: `parse` is tantivy's reading of a text that has no such word."""

    definition: IndexDefinition
    schema: tantivy.Schema
    boosts: Mapping[str, float]
    parse: Callable[[Node], tantivy.Query]

    def of(self, node: Node) -> tantivy.Query:
        """Return the query that a tree means; `check_tree` let it through. Raises `ValueError`."""
        import tantivy

        match node["type"]:
            case "bool":
                occurs = {"must": tantivy.Occur.Must, "must_not": tantivy.Occur.MustNot}
                parts = [(occurs.get(occur, tantivy.Occur.Should), self.of(child)) for occur, child in node["clauses"]]
                return tantivy.Query.boolean_query(parts)
            case "boost":
                return tantivy.Query.boost_query(self.of(node["underlying"]), node["boost"])
            case _:
                term = term_of(node)
                return self.parse(node) if term is None else self._any(term)

    def _any(self, term: Term) -> tantivy.Query:
        """The rows that have the term in any of its columns."""
        import tantivy

        columns = self._columns(term)
        found = [(tantivy.Occur.Should, self._in(column, term)) for column in columns]
        return found[0][1] if len(found) == 1 else tantivy.Query.boolean_query(found)

    def _columns(self, term: Term) -> Sequence[str]:
        known = self.definition.columns
        if term.field is not None and term.field not in known:
            raise ValueError(f"the index has no column {term.field!r}")
        columns = known if term.field is None else (term.field,)
        for column in columns:
            if not text_tokenizers.is_part_of_a_word(self.definition, column, term.text):
                name = text_tokenizers.tokenizer_of(self.definition, column)
                raise ValueError(f"{term.text!r} is not one word by the tokenizer {name!r} of column {column!r}")
        return columns

    def _in(self, column: str, term: Term) -> tantivy.Query:
        import tantivy

        text = text_tokenizers.lowered(self.definition, column, term.text)
        if term.changes is None:
            pattern = _META.sub(lambda found: f"\\{found[0]}" if found[0].isascii() else found[0], text)
            query = tantivy.Query.regex_query(self.schema, column, f"{pattern}.*")
        else:
            query = tantivy.Query.fuzzy_term_query(self.schema, column, text, distance=term.changes)
        boost = self.boosts.get(column, 1.0)
        return query if boost == 1 else tantivy.Query.boost_query(query, boost)
