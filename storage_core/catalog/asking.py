"""Which statements of anybody a catalog sends to its database: those that ask for rows, told by their first word.

A read-only transaction is not enough: PostgreSQL carries out COPY to a file or a program in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

ASKING: Final = frozenset({"select", "values", "table", "with", "show", "explain"})
"""What a statement begins with."""

_OF_EXPLAIN: Final = frozenset({"analyze", "verbose", "query", "plan"})
_BEFORE_A_WORD: Final = re.compile(r"[\s(]+|--[^\n\r]*")
_WORD: Final = re.compile(r"\w+")
_OPTIONS: Final = re.compile(r"(?<=explain)\s*\([^()']*\)", re.IGNORECASE)
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")


def require_asking(statement: str, place: str) -> None:
    """Raise `InvalidInput` for a statement that does not ask for rows, or that is not valid Unicode text."""
    if re.search("[\ud800-\udfff]", statement):
        raise InvalidInput(
            f"{place}: the statement contains half of a surrogate pair. Write it as one character.", place=place
        )
    words = _words(statement)
    first = found = next(words, "")
    if first == "explain":
        found = next((each for each in words if each not in _OF_EXPLAIN), "")
    if found not in ASKING - ({"explain", "show"} if first == "explain" else set()):
        name = f"{first} {found}".strip() if first == "explain" else first or "another character than a letter"
        raise InvalidInput(
            f"{place}: the statement begins with {quoted(name)}. A statement here asks for rows: begin it with "
            f"{', '.join(sorted(ASKING))}; EXPLAIN of one of these is one, too",
            place=place,
        )


def _words(statement: str) -> Iterator[str]:
    """Yield the words that a statement begins with, in lower case, without comments, parentheses and options."""
    at = 0
    while at < len(statement):
        if statement.startswith("/*", at):
            at = _comment_end(statement, at)
        elif found := _BEFORE_A_WORD.match(statement, at):
            at = found.end()
        elif found := _WORD.match(statement, at):
            yield found.group().lower()
            at = found.end()
            if options := _OPTIONS.match(statement, at):
                at = options.end()
        else:
            return


def _comment_end(statement: str, at: int) -> int:
    """Return where a comment ends, which may hold others as in PostgreSQL. SQLite has none of these."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(statement, at):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end()
    return len(statement)
