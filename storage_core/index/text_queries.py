"""Queries of tantivy, put together from the tree of a text for the columns of one index.

Every word goes through the tokenizer that the documents went through. A phrase of several words is a phrase query, and
of n-grams too: their places in the text are those in the index. So a query of n-grams finds the texts that contain it.

Answers are those of set algebra. Tantivy answers a group of clauses by what its positive clauses find, so a group that
only excludes (`NOT beta`, also inside `alpha AND NOT beta`) finds nothing there. The group gets a clause that matches
every row and scores nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage_core.foreign_text import shortened
from storage_core.index import text_terms, text_tokenizers
from storage_core.index.text_arrangements import arrangements
from storage_core.index.text_limits import Node
from storage_core.index.text_terms import Term
from storage_core.settings.index import IndexDefinition

if TYPE_CHECKING:
    import tantivy

_logger = logging.getLogger(__name__)

_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")  # no other sign: behind a backslash `<` is the edge of a word
_ANYTHING = "(?s:.)*"
_ESCAPED_SIGN = re.compile(r"\\([*~\\])")
_SPECIAL = re.compile(r"""[+^`:{}"'\[\]()!\\* ]""")
_LONGEST_PREFIX = 900  # bytes: tantivy refuses regular expressions of more than 1,000 states


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """Builds queries for one index: `index` is open under its schema and has its tokenizers.

    `is_strict` refuses what no document can match; otherwise a warning says it. `marking` builds a query for the words
    of texts alone, not for the rows that have them in the places that a phrase says.
    """

    definition: IndexDefinition
    index: tantivy.Index
    boosts: Mapping[str, float] = field(default_factory=dict)
    is_strict: bool = False
    marking: bool = False

    def of(self, tree: Node) -> tantivy.Query:
        """Return the query that a tree means; `check_tree` let it through. Raises `ValueError` that says why not."""
        import tantivy

        return _any(self._of(tree)) or tantivy.Query.empty_query()

    def _of(self, node: Node) -> list[tantivy.Query]:
        """Queries of which any finds a row of the node; none where it has no word, so a group is as without it."""
        match node["type"]:
            case "bool":
                return self._group(node["clauses"])
            case "boost":
                return _wrapped(self._of(node["underlying"]), lambda query: _boosted(query, node["boost"]))
            case "all":
                return [_every_row()]
            case "literal":
                return self._literal(node)
            case "prefix":  # of a text that is only words
                return self._in_columns(None, lambda column: self._prefix_if_any(column, node["text"]))
            case "set":
                return self._in_columns(node["field"], lambda column: self._set(column, node["elements"]))
            case "range":
                return self._in_columns(node["field"], lambda column: self._range(column, node))
            case "exists":
                column = self.definition.columns[0]
                raise ValueError(f"an index does not know which rows have a value; scan with `{column} is not null`")
            case "regex":
                raise ValueError("Regex queries are not allowed; ask for a prefix or a fuzzy word")
            case kind:
                raise ValueError(f"{kind!r} is not a query that an index answers")

    def _group(self, clauses: Sequence[tuple[str | None, Node]]) -> list[tantivy.Query]:
        import tantivy

        occurs = {"must": tantivy.Occur.Must, "must_not": tantivy.Occur.MustNot}
        built = [(occurs.get(occur or ""), self._of(child)) for occur, child in clauses]
        if not any(occur for occur, _ in built):
            return [each for _, found in built for each in found]
        parts = [
            (occur or tantivy.Occur.Should, each)
            for occur, found in built
            for each in (found if occur is None else _wrapped(found, lambda query: query))
        ]
        if clauses and all(occur == "must_not" for occur, _ in clauses):
            parts.insert(0, (tantivy.Occur.Must, tantivy.Query.const_score_query(_every_row(), 0.0)))
        return [tantivy.Query.boolean_query(parts)] if parts else []

    def _literal(self, node: Node) -> list[tantivy.Query]:
        if node.get("prefix"):
            raise ValueError(
                "a phrase has no prefixes; ask for the words and the prefix with AND, or quote a literal `*`"
            )
        term = text_terms.term_of(node)
        if term is not None:
            return self._in_columns(term.field, lambda column: self._term(column, term))
        text = node["phrase"]
        if node["delimiter"] == "none":
            text = _ESCAPED_SIGN.sub(r"\1", text)
        return self._in_columns(node["field_name"], lambda column: self._text(column, text, node["slop"]))

    def _in_columns(self, name: str | None, build: Callable[[str], tantivy.Query | None]) -> list[tantivy.Query]:
        """Queries for each of the columns that a name means, or no name, with their boosts."""
        found = [(column, build(column)) for column in self._columns(name)]
        return [_boosted(query, self.boosts.get(column, 1.0)) for column, query in found if query is not None]

    def _columns(self, name: str | None) -> Sequence[str]:
        known = self.definition.columns
        if name is None:
            return known
        for column in (name, name.replace("\\.", ".")):  # the only sign that tantivy leaves escaped
            if column in known:
                return (column,)
        raise ValueError(f"the index has no column {name!r}")

    def _text(self, column: str, text: str, slop: int) -> tantivy.Query | None:
        """The rows with a text of the query, as one phrase."""
        words = text_tokenizers.words(self.definition, column, text)
        self._require_indexed(words)
        length = text_tokenizers.gram_of(self.definition, column)
        if length is not None and slop:
            raise ValueError(f"column {column!r} has n-grams, which have no distance; leave out `~{slop}`")
        if not words:
            return None
        if length is not None and len(text) < length and not self.marking:
            return self._regular(column, f"{_ANYTHING}{_quoted(words[0])}{_ANYTHING}")
        return self._phrase(column, words, 0 if self.marking else slop)

    def _phrase(self, column: str, words: Sequence[str], slop: int) -> tantivy.Query:
        """The rows with these words, which together are moved by at most `slop` places.

        Tantivy counts one word twice, and misses orders of three or more. So each arrangement of these is asked for.
        """
        import tantivy

        schema = self.index.schema
        if len(words) == 1:
            return tantivy.Query.term_query(schema, column, words[0])
        if not slop or (len(words) == 2 and words[0] != words[1]):
            return tantivy.Query.phrase_query(schema, column, list(words), slop)
        found = [tantivy.Query.phrase_query(schema, column, list(each)) for each in arrangements(words, slop)]
        return tantivy.Query.disjunction_max_query(found)

    def _term(self, column: str, term: Term) -> tantivy.Query | None:
        """The rows with a word that a prefix or a fuzzy word stands for; each scores 1."""
        import tantivy

        if text_tokenizers.gram_of(self.definition, column) is not None:
            if term.changes is not None:
                raise self._not_a_word(column, term)
            return _scored(self._text(column, term.text, 0))
        if term.changes is None:
            return self._prefix(column, term)
        words = text_tokenizers.unstemmed(self.definition, column, term.text)
        self._require_indexed(words)
        if len(words) != 1:
            raise self._not_a_word(column, term)
        if text_tokenizers.has_stems(self.definition, column):
            return self._whole_word(column, term)
        return tantivy.Query.fuzzy_term_query(self.index.schema, column, words[0], distance=term.changes)

    def _prefix(self, column: str, term: Term) -> tantivy.Query | None:
        words = text_tokenizers.unstemmed(self.definition, column, term.text)
        self._require_indexed(words)
        longer = text_tokenizers.unstemmed(self.definition, column, f"{term.text}x")
        if not words or (self.is_strict and len(words) > 1 and len(longer) == len(words)):
            raise self._not_a_word(column, term)
        if len(longer) > len(words):  # its last word ends before the star, so whatever follows is another word
            return _scored(self._text(column, term.text, 0))
        if text_tokenizers.has_stems(self.definition, column):
            return self._whole_word(column, term)
        *before, last = words
        if len(last.encode()) > _LONGEST_PREFIX:
            raise ValueError(f"a prefix has at most {_LONGEST_PREFIX} bytes; write fewer characters")
        beginning = self._regular(column, f"{_quoted(last)}{_ANYTHING}")
        return self._after(column, term, before, beginning) if before else beginning

    def _after(self, column: str, term: Term, before: Sequence[str], beginning: tantivy.Query) -> tantivy.Query | None:
        """The rows with some words as a phrase, and a word with the beginning: tantivy has no exact query for both.

        So it may find more rows, and never fewer. Decision 0182.
        """
        import tantivy

        self._warn(f"{f'{term.text}*'!r} finds the phrase before its last word, and the prefix anywhere in the text")
        phrase = self._phrase(column, before, 0)
        occur = tantivy.Occur.Should if self.marking else tantivy.Occur.Must
        return _scored(tantivy.Query.boolean_query([(occur, phrase), (occur, beginning)]))

    def _prefix_if_any(self, column: str, text: str) -> tantivy.Query | None:
        """The rows of a prefix, else of its words as a phrase."""
        try:
            return self._term(column, Term(None, text, None))
        except ValueError:
            return self._text(column, text, 0)

    def _whole_word(self, column: str, term: Term) -> tantivy.Query | None:
        """The rows with the word of a term itself: an index of stems does not contain the words. Decision 0182."""
        written = f"{term.text}*" if term.changes is None else f"{term.text}~{term.changes}"
        self._refuse_or_warn(self._stems_of(column), f"The search reads {written!r} as the word {term.text!r}")
        return _scored(self._text(column, term.text, 0))

    def _stems_of(self, column: str) -> str:
        return f"column {column!r} has stems, so it finds only whole words"

    def _set(self, column: str, elements: Sequence[str]) -> tantivy.Query | None:
        """The rows with any of some texts; each scores 1."""
        import tantivy

        words = [text_tokenizers.words(self.definition, column, each) for each in elements]
        if text_tokenizers.gram_of(self.definition, column) is None and all(len(each) == 1 for each in words):
            self._require_indexed(each for [each] in words)
            return (
                tantivy.Query.term_set_query(self.index.schema, column, [each for [each] in words]) if words else None
            )
        found = _any([each for each in (self._text(column, each, 0) for each in elements) if each is not None])
        return _scored(found)

    def _range(self, column: str, node: Node) -> tantivy.Query:
        if node["field"] is None:
            raise ValueError(f"a range is of one column; write it as {self.definition.columns[0]}:[a TO b]")
        if text_tokenizers.gram_of(self.definition, column) is not None:
            raise ValueError(f"column {column!r} has n-grams, which have no ranges")
        if text_tokenizers.has_stems(self.definition, column):
            self._refuse_or_warn(self._stems_of(column), "The search reads a query with a range as words")
            raise ValueError(self._stems_of(column))
        name = _SPECIAL.sub(r"\\\g<0>", column)
        text = f"{name}:{_low(node['lower'])} TO {_high(node['upper'])}"
        text = text_tokenizers.folded(self.definition, column, text)
        try:
            return self.index.parse_query(text, [column])
        except ValueError as error:
            raise ValueError(f"a range of column {column!r} has one word at each end") from error

    def _regular(self, column: str, pattern: str) -> tantivy.Query:
        import tantivy

        return tantivy.Query.regex_query(self.index.schema, column, pattern)

    def _require_indexed(self, words: Iterable[str]) -> None:
        """Raise `ValueError`, or log a warning, for a word that is in no index."""
        for word in words:
            if len(word) * 4 > text_tokenizers.MOST_BYTES and len(word.encode()) > text_tokenizers.MOST_BYTES:
                reason = (
                    f"{shortened(repr(word), 40)} has {len(word.encode()):,} bytes, and an index has no word of more "
                    f"than {text_tokenizers.MOST_BYTES:,}, so it matches nothing"
                )
                if self.is_strict:
                    raise ValueError(f"{reason}; leave it out")
                _logger.warning("full-text query on index %s: %s", self.definition.name, reason)

    def _refuse_or_warn(self, reason: str, instead: str) -> None:
        """Raise `ValueError` with the reason where syntax is strict; else log it with what is done instead."""
        if self.is_strict:
            advice = "Ask for whole words, or search an index with the tokenizer `default`"
            raise ValueError(f"{reason}. {advice}")
        self._warn(f"{reason}. {instead}")

    def _warn(self, what: str) -> None:
        if not self.marking:  # the search has said so
            _logger.warning("full-text query on index %s: %s", self.definition.name, shortened(what, 300))

    def _not_a_word(self, column: str, term: Term) -> ValueError:
        name = text_tokenizers.tokenizer_of(self.definition, column)
        return ValueError(f"{term.text!r} is not one word by the tokenizer {name!r} of column {column!r}")


def _every_row() -> tantivy.Query:
    import tantivy

    return tantivy.Query.all_query()


def _any(found: Sequence[tantivy.Query]) -> tantivy.Query | None:
    import tantivy

    if len(found) < 2:
        return found[0] if found else None
    return tantivy.Query.boolean_query([(tantivy.Occur.Should, each) for each in found])


def _wrapped(found: Sequence[tantivy.Query], wrap: Callable[[tantivy.Query], tantivy.Query]) -> list[tantivy.Query]:
    query = _any(found)
    return [] if query is None else [wrap(query)]


def _boosted(query: tantivy.Query, boost: float) -> tantivy.Query:
    import tantivy

    return query if boost == 1 else tantivy.Query.boost_query(query, boost)


def _scored(query: tantivy.Query | None) -> tantivy.Query | None:
    """The same rows, each with the score 1."""
    import tantivy

    return None if query is None else tantivy.Query.const_score_query(query, 1.0)


def _quoted(text: str) -> str:
    return _META.sub(r"\\\g<0>", text)


def _low(limit: Node) -> str:
    return f"{'{' if limit['type'] == 'exclusive' else '['}{limit.get('value', '*')}"


def _high(limit: Node) -> str:
    return f"{limit.get('value', '*')}{'}' if limit['type'] == 'exclusive' else ']'}"
