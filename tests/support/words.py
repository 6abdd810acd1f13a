"""What the tokenizers of full text make of a text, and which texts a query finds, in plain Python."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

_JOINERS = "\u200c\u200d"
_IDEOGRAPHS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")


def words(tokenizer: str, text: str) -> list[str]:
    """The words of a text: whole values, or letters and digits with the signs that combine with them."""
    match tokenizer:
        case "raw":
            return [text]
        case "whitespace":
            return [each for each in re.split(r"[ \t\n\r\f]", text) if each]
        case _:
            return [_lowered(each) for each in _runs(text, apart=tokenizer == "cjk")]


def contains(tokenizer: str, text: str, wanted: str) -> bool:
    """Whether a text has another as a phrase; of n-grams, as a part."""
    if tokenizer.startswith("ngram"):
        return _lowered(wanted) in _lowered(text)
    found, phrase = words(tokenizer, text), words(tokenizer, wanted)
    return any(found[start : start + len(phrase)] == phrase for start in range(len(found)))


def begins(tokenizer: str, text: str, prefix: str) -> bool:
    """Whether a text has a word that begins so; `prefix` is within one word, or of characters that are words."""
    if tokenizer.startswith("ngram") or len(words(tokenizer, f"{prefix}x")) > len(words(tokenizer, prefix)):
        return contains(tokenizer, text, prefix)
    [wanted] = words(tokenizer, prefix)
    return any(each.startswith(wanted) for each in words(tokenizer, text))


def near(text: Sequence[str], phrase: Sequence[str], slop: int) -> bool:
    """Whether the words of a phrase are at places of a text whose moves from the phrase differ by at most `slop`."""
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
    """A text letter by letter, as the index has it: a sigma has one small form."""
    return "".join(each.lower() for each in text).replace("ς", "σ")
