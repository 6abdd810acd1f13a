"""The tokens of a text under each full-text tokenizer, and the texts that a query finds, in plain Python."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

_JOINERS = "\u200c\u200d"
_IDEOGRAPHS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")


def words(tokenizer: str, text: str) -> list[str]:
    """Return the words of a text.

    A word is the whole value, or a sequence of letters and digits with their combining marks.
    """
    match tokenizer:
        case "raw":
            return [text]
        case "whitespace":
            return [each for each in re.split(r"[ \t\n\r\f]", text) if each]
        case _:
            return [_lowered(each) for each in _runs(text, apart=tokenizer == "cjk")]


def contains(tokenizer: str, text: str, wanted: str) -> bool:
    """Return True if a text contains `wanted` as a phrase.

    For n-grams, return True if `wanted` is a part of the text.
    """
    if tokenizer.startswith("ngram"):
        return _lowered(wanted) in _lowered(text)
    found, phrase = words(tokenizer, text), words(tokenizer, wanted)
    return any(found[start : start + len(phrase)] == phrase for start in range(len(found)))


def begins(tokenizer: str, text: str, prefix: str) -> bool:
    """Return True if a text has a word with this prefix.

    The prefix may be part of one word, or a sequence of one-character words.
    """
    if tokenizer.startswith("ngram") or len(words(tokenizer, f"{prefix}x")) > len(words(tokenizer, prefix)):
        return contains(tokenizer, text, prefix)
    [wanted] = words(tokenizer, prefix)
    return any(each.startswith(wanted) for each in words(tokenizer, text))


def near(text: Sequence[str], phrase: Sequence[str], slop: int) -> bool:
    """Return True if a text contains the words of a phrase, moved against each other by at most `slop` positions."""
    places = [[place for place, each in enumerate(text) if each == word] for word in phrase]
    for chosen in itertools.product(*places):
        moves = [place - number for number, place in enumerate(chosen)]
        if len({*chosen}) == len(phrase) and max(moves) - min(moves) <= slop:
            return True
    return False


def _runs(text: str, *, apart: bool) -> Iterator[str]:
    run, is_ideograph = "", False
    for character in text:
        kind = unicodedata.category(character)[0]
        own = apart and unicodedata.name(character, "").startswith(_IDEOGRAPHS)
        if run and (kind == "M" or (character in _JOINERS and not is_ideograph)):
            run += character
        elif kind not in "LN":
            yield from [run] if run else []
            run = ""
        elif run and not own and not is_ideograph:
            run += character
        else:
            yield from [run] if run else []
            run, is_ideograph = character, own
    yield from [run] if run else []


def _lowered(text: str) -> str:
    """Convert each letter of a text to lower case separately, as the index does.

    All sigmas become the same lower-case letter.
    """
    return "".join(each.lower() for each in text).replace("ς", "σ")
