"""Full-text queries: translation of a text to a tantivy query for the columns of one index.

`read` returns the syntax tree of a text, and `check_tree` checks it against limits. `QueryBuilder` builds the tantivy
query from the tree.

The builder passes every word of a query through the tokenizer that is used for documents. If the tokenizer splits a
text into several words, the builder makes a phrase query. N-grams also become a phrase query, because n-grams have the
same relative positions in the query and in the index. Therefore a query for a text finds all documents that contain the
text.

The builder combines the clauses of a query with set operations: union, intersection and difference of rows. In tantivy,
a group returns only rows that match one of its positive clauses. Therefore a group with only negative clauses (`NOT
beta`, also within `alpha AND NOT beta`) would find nothing. For a group with only negative clauses, the builder adds a
clause that matches every row and adds no score.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from storage_core.base.text import shortened
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import damage, text_files

if TYPE_CHECKING:
    import tantivy

# Limits of a full-text query.
#
# Tantivy parses recursively. A text with many parentheses would overflow the stack and end the process. Therefore the
# text is first checked against limits. These limits count characters, even characters in quotes. After parsing, the
# tree is checked.


Node: TypeAlias = Mapping[str, Any]

MAX_CHARACTERS = 65_536
MAX_OPENINGS = 1_000  # the number of `(` and NOT, which open levels of nesting (tantivy tolerates about 4,000)
MAX_DEPTH = 100
MAX_CLAUSES = 2_048
MAX_BOOST = 1e9
MAX_SLOP = 65_536
MAX_ARRANGEMENTS = 2_048  # maximum number of ways to place the words of a phrase. Each way is a separate phrase query
MAX_MOVES = 2**18  # maximum number of word positions that the search for arrangements tries

_WORD = re.compile(r"[^\W_]+")


def check_length(text: str) -> None:
    """Raise `ValueError` if a text is too long to be read. The message contains the limit and a remedy."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"it has {len(text):,} characters, at most {MAX_CHARACTERS:,} are allowed. Search for fewer words"
        )


def check_text(text: str) -> None:
    """Raise `ValueError` if a text is not safe to parse. The message contains the limit and a remedy."""
    openings = text.count("(") + text.count("NOT")
    if openings > MAX_OPENINGS:
        raise ValueError(
            f"the query contains `(` or `NOT` {openings:,} times. The limit is {MAX_OPENINGS:,}. Use fewer groups"
        )


def check_tree(tree: Node) -> None:
    """Raise `ValueError` if it is not safe to walk the tree, or to search with the tree.

    The message contains the limit and a remedy.
    """
    clauses = 0
    for node, depth, boost in walk(tree):
        clauses += _clauses(node)
        if depth > MAX_DEPTH:
            raise ValueError(f"the query is nested deeper than {MAX_DEPTH} levels. Use fewer groups")
        if clauses > MAX_CLAUSES:
            raise ValueError(
                f"the query has more than {MAX_CLAUSES:,} words and clauses. Search for fewer words, or send "
                "several queries"
            )
        if not boost <= MAX_BOOST:  # also true for NaN, the result of 0 times infinity
            raise ValueError(
                f"the boost is greater than {MAX_BOOST:.0f}, so scores would be infinite. Use a smaller boost"
            )
        if node.get("slop", 0) > MAX_SLOP:
            raise ValueError(
                f"the slop {node['slop']} of a phrase is above {MAX_SLOP:,}. Search for the words with AND"
            )


def walk(tree: Node) -> Iterator[tuple[Node, int, float]]:
    """Yield every node of tantivy's tree, with its depth and the product of its boosts, without recursion."""
    waiting = [(tree, 1, 1.0)]
    while waiting:
        node, depth, boost = waiting.pop()
        boost *= node["boost"] if node["type"] == "boost" else 1.0
        yield node, depth, boost
        waiting.extend((child, depth + 1, boost) for child in _children(node))


def _children(node: Node) -> list[Node]:
    match node["type"]:
        case "bool":
            return [child for _, child in node["clauses"]]
        case "boost":
            return [node["underlying"]]
        case _:
            return []


def _clauses(node: Node) -> int:
    """Return the number of clauses of the node itself. A phrase counts as one clause per word."""
    match node["type"]:
        case "literal":
            return max(1, len(_WORD.findall(node["phrase"])))
        case "set":
            return 1 + len(node["elements"])
        case _:
            return 1


# An arrangement assigns a position to each word of a phrase. The slop limits the distance between assigned and original
# positions. Each arrangement of the words of a phrase becomes a separate phrase query.


def arrangements(words: Sequence[str], slop: int) -> Iterator[Sequence[tuple[int, str]]]:
    """Yield the possible positions of the words of a phrase with slop. Each set of positions is yielded once.

    A word that moves by `d` is placed `d` positions after its original position in the phrase. Any two words move by
    distances that differ by at most `slop`, and no two words have the same position. Raises `ValueError` if there are
    too many possible arrangements of the words.
    """
    for count, moves in enumerate(_moves(words, slop), 1):
        if count > MAX_ARRANGEMENTS:
            raise _too_many(words, slop)
        yield sorted((number + move, word) for number, (move, word) in enumerate(zip(moves, words, strict=True)))


def _moves(words: Sequence[str], slop: int) -> Iterator[tuple[int, ...]]:
    """Yield each possible combination of moves, with one move for each word of the phrase.

    Each word of the phrase moves forward by 0 to `slop` positions. At least one word moves by 0 positions, and no two
    words have the same position after moving.

    Equal words keep their order, because swapping two equal words gives the same sequence of words. Raises
    `ValueError` if the function would try more than `MAX_MOVES` moves.
    """
    earlier = _earlier(words)
    moves: list[int] = []
    taken: set[int] = set()

    def choices() -> Iterator[int]:
        number = len(moves)
        equal = earlier[number]
        first = 0 if equal is None else max(0, equal + moves[equal] + 1 - number)
        is_last = number + 1 == len(words) and 0 not in moves
        return iter(range(first, 1 if is_last else slop + 1))

    waiting, tried = [choices()], 0
    while waiting:
        number, move = len(moves), next(waiting[-1], None)
        if move is None:
            waiting.pop()
            if moves:
                taken.remove(number - 1 + moves.pop())
            continue
        tried += 1
        if tried > MAX_MOVES:
            raise _too_many(words, slop)
        if number + move in taken:
            continue
        if number + 1 == len(words):
            yield (*moves, move)
            continue
        moves.append(move)
        taken.add(number + move)
        waiting.append(choices())


def _earlier(words: Sequence[str]) -> list[int | None]:
    """Return, for each word, the position of the nearest equal word before it, or None."""
    last: dict[str, int] = {}
    found = []
    for number, word in enumerate(words):
        found.append(last.get(word))
        last[word] = number
    return found


def _too_many(words: Sequence[str], slop: int) -> ValueError:
    return ValueError(
        f"the {len(words)} words of the phrase have too many possible orders within {slop} positions. Lower the slop"
    )


# A query word with `*` or `~` can match several words of the index. `kib*` matches all words that begin with `kib`.
# `kibana~1` matches all words that differ from `kibana` by at most one character.
#
# Tantivy's own syntax ignores the star, and does not support `~` after a word. This module parses both `*` and `~`. The
# search finds every matching word of the index, because tantivy uses an automaton to find the rows of a prefix.


MOST_CHANGES: Final = 2
"""The maximum edit distance. A change adds, removes or replaces a letter, or swaps two adjacent
letters."""

SHORTEST_PREFIX: Final = 2
"""The minimum number of characters before the star."""

_ESCAPED_WORD = r"((?:[^\\]|\\.)+)"  # a backslash escapes the next character
_PREFIX = re.compile(rf"{_ESCAPED_WORD}\*", re.DOTALL)
_FUZZY = re.compile(rf"{_ESCAPED_WORD}~([0-9]?)", re.DOTALL | re.ASCII)
_ESCAPED = re.compile(r"\\([\W_])")


@dataclass(frozen=True, slots=True)
class Term:
    """A word of a query that matches all words which differ from it by at most `changes` characters.

    If `changes` is None, the term matches all words that begin with `text`.
    """

    field: str | None
    text: str
    changes: int | None


def term_of(node: Node) -> Term | None:
    """Return the term of a node of tantivy's tree, or None if the node is not a term.

    Raises `ValueError` for an invalid term.
    """
    if node["type"] != "literal" or node["delimiter"] != "none":
        return None
    written: str = node["phrase"]
    if found := _PREFIX.fullmatch(written):
        text = _ESCAPED.sub(r"\1", found[1])
        if len(text) < SHORTEST_PREFIX:
            raise ValueError(f"{written!r} matches too many words. Write {SHORTEST_PREFIX} characters or more")
        return Term(node["field_name"], text, None)
    if found := _FUZZY.fullmatch(written):
        changes = int(found[2] or 1)
        return (
            Term(node["field_name"], _ESCAPED.sub(r"\1", found[1]), changes) if 1 <= changes <= MOST_CHANGES else None
        )
    return None


_logger = logging.getLogger(__name__)

_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")  # other characters stay unescaped: `\<` matches the start of a word
_ANYTHING = "(?s:.)*"
_ESCAPED_SIGN = re.compile(r"\\([*~\\])")
_SPECIAL = re.compile(r"""[+^`:{}"'\[\]()!\\* ]""")
_LONGEST_PREFIX = 900  # the maximum in bytes. Tantivy refuses regular expressions with more than 1,000 states.


@dataclass(frozen=True, slots=True)
class QueryBuilder:
    """A builder of queries for one index.

    `index` is an open index with the schema and the tokenizers of the definition.

    If `is_strict` is True, the builder refuses terms that no document can match. Otherwise, the builder logs a warning.
    If `marking` is True, the builder makes a query that only marks words in texts. A query that marks words finds the
    words of a phrase at any position.
    """

    definition: IndexDefinition
    index: tantivy.Index
    boosts: Mapping[str, float] = field(default_factory=dict)
    is_strict: bool = False
    marking: bool = False

    def of(self, tree: Node) -> tantivy.Query:
        """Return the query of a tree that `check_tree` accepted.

        Raises `ValueError` with the reason if there is no query for the tree.
        """
        import tantivy

        return _any(self._of(tree)) or tantivy.Query.empty_query()

    def _of(self, node: Node) -> list[tantivy.Query]:
        """Return queries for a node. A row matches the node if it matches any of these queries.

        The list is empty if the node contains no word. A group then ignores the node.
        """
        match node["type"]:
            case "bool":
                return self._group(node["clauses"])
            case "boost":
                return _wrapped(self._of(node["underlying"]), lambda query: _boosted(query, node["boost"]))
            case "all":
                return [_every_row()]
            case "literal":
                return self._literal(node)
            case "prefix":  # this node comes from an invalid query text, which `words` reads as a list of words
                return self._in_columns(None, lambda column: self._prefix_if_any(column, node["text"]))
            case "set":
                return self._in_columns(node["field"], lambda column: self._set(column, node["elements"]))
            case "range":
                return self._in_columns(node["field"], lambda column: self._range(column, node))
            case "exists":
                column = self.definition.columns[0]
                raise ValueError(
                    f"a full-text index cannot find the rows that have a value. Scan with `{column} is not null`"
                )
            case "regex":
                raise ValueError("Regex queries are not allowed. Use a prefix or a fuzzy word")
            case kind:
                raise ValueError(f"an index does not support queries of the kind {kind!r}")

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
                "a phrase cannot contain a prefix. Search for the words and the prefix with AND, or quote a literal `*`"
            )
        term = term_of(node)
        if term is not None:
            return self._in_columns(term.field, lambda column: self._term(column, term))
        text = node["phrase"]
        if node["delimiter"] == "none":
            if self.is_strict and _FUZZY.fullmatch(text):
                raise ValueError(f"{text!r} has a wrong number of changes. Write ~1 or ~2")
            text = _ESCAPED_SIGN.sub(r"\1", text)
        return self._in_columns(node["field_name"], lambda column: self._text(column, text, node["slop"]))

    def _in_columns(self, name: str | None, build: Callable[[str], tantivy.Query | None]) -> list[tantivy.Query]:
        """Return the queries for the columns that `name` selects, with the boosts of the columns.

        If `name` is None, it selects all columns.
        """
        found = [(column, build(column)) for column in self._columns(name)]
        return [_boosted(query, self.boosts.get(column, 1.0)) for column, query in found if query is not None]

    def _columns(self, name: str | None) -> Sequence[str]:
        known = self.definition.columns
        if name is None:
            return known
        for column in (name, name.replace("\\.", ".")):  # tantivy leaves only the dot escaped
            if column in known:
                return (column,)
        raise ValueError(f"the index has no column {name!r}")

    def _text(self, column: str, text: str, slop: int) -> tantivy.Query | None:
        """Return the query for the rows that contain a text as one phrase."""
        words = text_files.words(self.definition, column, text)
        self._require_indexed(words)
        length = text_files.gram_of(self.definition, column)
        if length is not None and slop:
            raise ValueError(f"column {column!r} has n-grams, which do not support a distance. Leave out `~{slop}`")
        if not words:
            return None
        if length is not None and len(text) < length and not self.marking:
            return self._regular(column, f"{_ANYTHING}{_quoted(words[0])}{_ANYTHING}")
        return self._phrase(column, words, 0 if self.marking else slop)

    def _phrase(self, column: str, words: Sequence[str], slop: int) -> tantivy.Query:
        """Return the query for the rows with these words. The words may move by at most `slop` positions in total.

        Tantivy may count one word of a text for two words of the phrase, and misses some orders of three or more words.
        For these phrases, each arrangement becomes a separate phrase query.
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
        """Return the query for the rows with a word that matches a prefix or a fuzzy word. Each row has the score 1."""
        import tantivy

        if text_files.gram_of(self.definition, column) is not None:
            if term.changes is not None:
                raise self._not_a_word(column, term)
            return _scored(self._text(column, term.text, 0))
        if term.changes is None:
            return self._prefix(column, term)
        words = text_files.unstemmed(self.definition, column, term.text)
        self._require_indexed(words)
        if len(words) != 1:
            raise self._not_a_word(column, term)
        if text_files.has_stems(self.definition, column):
            return self._whole_word(column, term)
        return tantivy.Query.fuzzy_term_query(self.index.schema, column, words[0], distance=term.changes)

    def _prefix(self, column: str, term: Term) -> tantivy.Query | None:
        words = text_files.unstemmed(self.definition, column, term.text)
        self._require_indexed(words)
        longer = text_files.unstemmed(self.definition, column, f"{term.text}x")
        if not words or (self.is_strict and len(words) > 1 and len(longer) == len(words)):
            raise self._not_a_word(column, term)
        if len(longer) > len(words):  # the last word ends before the star, so the star belongs to another word
            return _scored(self._text(column, term.text, 0))
        if text_files.has_stems(self.definition, column):
            return self._whole_word(column, term)
        *before, last = words
        if len(last.encode()) > _LONGEST_PREFIX:
            raise ValueError(f"the prefix has more than {_LONGEST_PREFIX} bytes. Write fewer characters")
        beginning = self._regular(column, f"{_quoted(last)}{_ANYTHING}")
        return self._after(column, term, before, beginning) if before else beginning

    def _after(self, column: str, term: Term, before: Sequence[str], beginning: tantivy.Query) -> tantivy.Query | None:
        """Return the query for rows that contain a phrase of some words, and also a word with a prefix.

        Tantivy has no exact query for both. The query finds all of these rows, and possibly more (decision 0023).
        """
        import tantivy

        self._warn(
            f"{f'{term.text}*'!r} finds texts that contain the phrase without its last word, and the prefix in "
            "any place"
        )
        phrase = self._phrase(column, before, 0)
        occur = tantivy.Occur.Should if self.marking else tantivy.Occur.Must
        return _scored(tantivy.Query.boolean_query([(occur, phrase), (occur, beginning)]))

    def _prefix_if_any(self, column: str, text: str) -> tantivy.Query | None:
        """Return the query for the rows with a prefix.

        If the text is not a valid prefix, return a query for it as a phrase.
        """
        try:
            return self._term(column, Term(None, text, None))
        except ValueError:
            return self._text(column, text, 0)

    def _whole_word(self, column: str, term: Term) -> tantivy.Query | None:
        """Return a query for the exact word of a term, without a prefix or changes.

        If the index contains stems, it does not contain the word itself (decision 0023).
        """
        written = f"{term.text}*" if term.changes is None else f"{term.text}~{term.changes}"
        self._refuse_or_warn(self._stems_of(column), f"The search reads {written!r} as the word {term.text!r}")
        return _scored(self._text(column, term.text, 0))

    def _stems_of(self, column: str) -> str:
        return f"column {column!r} has stems, so it finds only whole words"

    def _set(self, column: str, elements: Sequence[str]) -> tantivy.Query | None:
        """Return the query for the rows that contain at least one of these texts. Each row has the score 1."""
        import tantivy

        words = [text_files.words(self.definition, column, each) for each in elements]
        if text_files.gram_of(self.definition, column) is None and all(len(each) == 1 for each in words):
            self._require_indexed(each for [each] in words)
            return (
                tantivy.Query.term_set_query(self.index.schema, column, [each for [each] in words]) if words else None
            )
        found = _any([each for each in (self._text(column, each, 0) for each in elements) if each is not None])
        return _scored(found)

    def _range(self, column: str, node: Node) -> tantivy.Query:
        if node["field"] is None:
            raise ValueError(f"a range needs a column. Write the range as {self.definition.columns[0]}:[a TO b]")
        if text_files.gram_of(self.definition, column) is not None:
            raise ValueError(f"column {column!r} has n-grams, which have no ranges")
        if text_files.has_stems(self.definition, column):
            self._refuse_or_warn(self._stems_of(column), "The search reads a query with a range as words")
            raise ValueError(self._stems_of(column))
        name = _SPECIAL.sub(r"\\\g<0>", column)
        text = f"{name}:{_low(node['lower'])} TO {_high(node['upper'])}"
        text = text_files.folded(self.definition, column, text)
        try:
            return self.index.parse_query(text, [column])
        except ValueError as error:
            raise ValueError(f"a range of column {column!r} needs one word at each end") from error

    def _regular(self, column: str, pattern: str) -> tantivy.Query:
        import tantivy

        return tantivy.Query.regex_query(self.index.schema, column, pattern)

    def _require_indexed(self, words: Iterable[str]) -> None:
        """Raise `ValueError` or log a warning if a word is too long to be in an index."""
        for word in words:
            if len(word) * 4 > text_files.MOST_BYTES and len(word.encode()) > text_files.MOST_BYTES:
                reason = (
                    f"{shortened(repr(word), 40)} has {len(word.encode()):,} bytes. An index has no word of more than "
                    f"{text_files.MOST_BYTES:,} bytes, so it matches nothing"
                )
                if self.is_strict:
                    raise ValueError(f"{reason}. Leave it out")
                _logger.warning("full-text query on index %s: %s", self.definition.name, reason)

    def _refuse_or_warn(self, reason: str, instead: str) -> None:
        """Raise `ValueError` with the reason if the query uses the strict syntax.

        Otherwise log the reason, and how the search reads the text.
        """
        if self.is_strict:
            advice = "Ask for whole words, or search an index with the tokenizer `default`"
            raise ValueError(f"{reason}. {advice}")
        self._warn(f"{reason}. {instead}")

    def _warn(self, what: str) -> None:
        if not self.marking:  # the search has already logged the warning
            _logger.warning("full-text query on index %s: %s", self.definition.name, shortened(what, 300))

    def _not_a_word(self, column: str, term: Term) -> ValueError:
        name = text_files.tokenizer_of(self.definition, column)
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
    """Return a query for the same rows, with the score 1 for each row."""
    import tantivy

    return None if query is None else tantivy.Query.const_score_query(query, 1.0)


def _quoted(text: str) -> str:
    return _META.sub(r"\\\g<0>", text)


def _low(limit: Node) -> str:
    return f"{'{' if limit['type'] == 'exclusive' else '['}{limit.get('value', '*')}"


def _high(limit: Node) -> str:
    return f"{limit.get('value', '*')}{'}' if limit['type'] == 'exclusive' else ']'}"


# The syntax of full-text queries.


_DISTANCE = re.compile("~[0-9]*$")
_PAIR = re.compile(r"\\(.)", re.DOTALL)
_STAND_INS = range(0xF0000, 0x110000)  # private characters. This range has more characters than any query text.


def read(text: str) -> Node:
    r"""Return tantivy's tree of a query that `check_text` accepted. Raises `ValueError` for an invalid query.

    Tantivy returns the same phrase for `a\*` and `a\\*`. Therefore each escaped backslash is replaced before parsing.
    The replacement is a character that the text does not contain. After parsing, this character is replaced with two
    backslashes in an unquoted literal.
    """
    import tantivy

    used = {*text}
    stand_in = next(each for each in map(chr, _STAND_INS) if each not in used)
    written = _PAIR.sub(lambda found: stand_in if found[1] == "\\" else found[0], text) if "\\\\" in text else text
    try:
        with damage.as_query_error():
            tree = cast("Node", tantivy.parse_query(written))
    except ValueError as error:
        raise ValueError("the text is not a valid query") from error
    if written != text:
        for node, _, _ in walk(tree):
            _put_back(cast("dict[str, Any]", node), stand_in)
    return tree


def _put_back(node: dict[str, Any], stand_in: str) -> None:
    """Replace the stand-in character in a node with a backslash. This character replaced an escaped backslash."""
    for name in ("field", "field_name"):
        if node.get(name):
            node[name] = node[name].replace(stand_in, "\\")
    match node["type"]:
        case "literal":
            node["phrase"] = node["phrase"].replace(stand_in, "\\\\" if node["delimiter"] == "none" else "\\")
        case "set":
            node["elements"] = [each.replace(stand_in, "\\") for each in node["elements"]]
        case "range":  # tantivy keeps both backslashes of `\\` in the limits of a range, and parses the limits again
            for end in (node["lower"], node["upper"]):
                if "value" in end:
                    end["value"] = end["value"].replace(stand_in, "\\\\")


def words(text: str) -> Node:
    """Return a tree that finds texts with any of the words of `text`.

    Words are separated by spaces. No word is an operator.

    The tokenizer of the index reads each word. For example, the tokenizer splits `can't` into a phrase of two words,
    and finds no word in a single `/`. A distance after a word (`slip~2`) is removed. A star (`o'n*`) makes the word a
    prefix, unless the text has more than `MAX_CLAUSES` words. Tantivy needs about a millisecond to build the query of a
    prefix.
    """
    found = dict.fromkeys(_DISTANCE.sub("", word) for word in text.split())
    return any_of([(_word if len(found) <= MAX_CLAUSES else literal)(word) for word in found])


def _word(text: str) -> Node:
    prefix = text.rstrip("*")
    if prefix == text or len(prefix) < SHORTEST_PREFIX:
        return literal(text)
    return {"type": "prefix", "text": prefix}


def literal(text: str) -> Node:
    """Return the node that searches a text as one phrase, in any column."""
    return {
        "type": "literal",
        "field_name": None,
        "phrase": text,
        "delimiter": "double_quotes",
        "slop": 0,
        "prefix": False,
    }


def any_of(nodes: list[Node]) -> Node:
    """Return the node for the union of some nodes."""
    return {"type": "bool", "clauses": [(None, each) for each in nodes]}
