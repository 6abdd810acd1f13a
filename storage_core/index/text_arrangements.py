"""The arrangements of the words of a phrase with slop, each of which the index is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage_core.index.text_limits import MAX_ARRANGEMENTS, MAX_MOVES


def arrangements(words: Sequence[str], slop: int) -> Iterator[Sequence[tuple[int, str]]]:
    """Yield the places that the words of a sloppy phrase may have, each set of places once.

    A word that is moved by d places stands d behind its place in the phrase. The moves of all words differ by at most
    `slop`, and no two words have one place. Raises `ValueError` where there are too many.
    """
    for count, moves in enumerate(_moves(words, slop), 1):
        if count > MAX_ARRANGEMENTS:
            raise _too_many(words, slop)
        yield sorted((number + move, word) for number, (move, word) in enumerate(zip(moves, words, strict=True)))


def _moves(words: Sequence[str], slop: int) -> Iterator[tuple[int, ...]]:
    """The moves of each word, from 0 to `slop`, at least one of them 0, that give no place to two words.

    Equal words stay in order, since they make the same arrangements in any order. Raises `ValueError` where too many
    moves have to be tried.
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
    """Which word before each is equal to it, the nearest one."""
    last: dict[str, int] = {}
    found = []
    for number, word in enumerate(words):
        found.append(last.get(word))
        last[word] = number
    return found


def _too_many(words: Sequence[str], slop: int) -> ValueError:
    return ValueError(f"its {len(words)} words have too many arrangements within {slop} places; lower the slop")
