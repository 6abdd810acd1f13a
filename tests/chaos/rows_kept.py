"""Checker of the reads of an append table.

All rows of an acknowledged call occur exactly once, and no read shows only a part of the rows of a call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A call that appended these rows. `ended` is None if the end was not recorded. A rejected call adds nothing."""

    name: str
    rows: tuple[int, ...]
    begun: int
    ended: int | None
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All rows that a session found."""

    session: str
    begun: int
    ended: int
    rows: tuple[int, ...]


def unexplained(appends: Sequence[Append], looks: Sequence[Look]) -> str | None:
    """Return a description of a read that contradicts the calls or an earlier read, or None if there is none."""
    of_row = {row: append for append in appends for row in append.rows}
    seen: list[tuple[int, frozenset[str]]] = []
    for look in sorted(looks, key=lambda each: each.ended):
        wrong = next(_wrong(look, appends, of_row, seen), None)
        if wrong is not None:
            return f"{look.session} from {look.begun} to {look.ended}: {wrong}"
        seen.append((look.ended, frozenset(of_row[row].name for row in look.rows)))
    return None


def _wrong(
    look: Look, appends: Sequence[Append], of_row: dict[int, Append], seen: Sequence[tuple[int, frozenset[str]]]
) -> Iterator[str]:
    twice = [row for row, times in Counter(look.rows).items() if times > 1]
    if twice:
        yield f"rows {twice} are there more than once"
    nowhere = [row for row in look.rows if row not in of_row]
    if nowhere:
        yield f"rows {nowhere} were given by nobody"
    found = {of_row[row].name for row in look.rows if row in of_row}
    must = set().union(*(names for ended, names in seen if ended < look.begun))
    for each in appends:
        here = each.name in found
        if here and each.refused:
            yield f"rows of {each}, which was refused"
        if here and each.begun > look.ended:
            yield f"rows of {each}, which began later"
        if here and not set(each.rows) <= set(look.rows):
            yield f"only a part of {each}"
        if not here and not each.refused and each.ended is not None and each.ended < look.begun:
            yield f"nothing of {each}, which was acknowledged before"
        if not here and each.name in must:
            yield f"nothing of {each}, which was seen before"
