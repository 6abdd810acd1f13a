"""JSON numbers as they are written: DuckDB reads one with a point or an exponent as a double, and writes that.

Most come back from a double as they were. In lines with one that may not, numbers pass through DuckDB as text, which
begins with a mark: some text that is in no line, as one drawn at random is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

# A double keeps 15 digits for sure, with the point 16 signs; it has no zeros at the end, and -0 is no integer.
_DOUBTFUL = (
    r"[:,\[]\s*-?[0-9](?:[0-9.]{16}|[0-9.]*[eE]|[0-9]*\.[0-9]+0[\s,}\]]|\.0{6})|"  # six zeros: 1e-7
    r"[:,\[]\s*-0[\s,}\]]"
)
_NUMBER = r"-?[0-9]+[.eE][-+.eE0-9]*|-0"
# Behind these a quote is the end of a text: one that begins a text comes after a space or sign, one inside after `\`.
_NAMED = rf'([0-9A-Za-z_]"\s*:\s*)({_NUMBER})'
# Possessive: a repetition that could go back keeps a note of a hundred bytes for each character.
# Digits only are taken whole: from each of a million to look for a point behind the last would be steps without end.
_TEXT_OR_NUMBER = re.compile(rf'"[^"\\]*+(?:\\.[^"\\]*+)*+"|({_NUMBER})|[0-9]++')
_EXPONENT = r"\A[+-]?[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]+\z"
_MOST_ZEROS = 100


def marked(objects: pa.StringArray, mark: str) -> pa.StringArray:
    """Return the lines, each a valid JSON object, with those numbers made marked text whose digits would change.

    Some that would not change are made text as well. `mark` is of letters and digits, and in none of the lines. Time:
    a look at every byte; lines whose number is in an array, or has a name that does not end in a letter or digit of
    ASCII, are taken one by one.
    """
    replacement = rf'\1"{mark}\2"'
    named = _in_doubtful(
        objects, lambda lines: pc.replace_substring_regex(lines, pattern=_NAMED, replacement=replacement)
    )
    return _in_doubtful(named, lambda lines: _one_by_one(lines, mark))


def unmarked(texts: pa.ChunkedArray, mark: str) -> pa.ChunkedArray:
    """Return the texts with what `marked` made text as the numbers that were written."""
    if not pc.any(pc.match_substring(texts, mark)).as_py():
        return texts
    return pc.replace_substring_regex(texts, pattern=f'"?{mark}([-+.eE0-9]+)"?', replacement=r"\1")


def without_exponent(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts, those that are a number with an exponent written out as the digits of the same number."""
    found = pc.match_substring_regex(texts, _EXPONENT)
    if not pc.any(found).as_py():
        return texts
    return pa.chunked_array([pa.array([_plain(each) for each in texts.to_pylist()], pa.string())])


def _plain(text: str | None) -> str | None:
    if text is None or "e" not in text.lower():
        return text
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    # No decimal column keeps more, and a short text must not become a long one.
    return f"{number:f}" if number.is_finite() and abs(number.adjusted()) <= _MOST_ZEROS else text


def _in_doubtful(lines: pa.StringArray, change: Callable[[pa.StringArray], pa.StringArray]) -> pa.StringArray:
    doubtful = pc.match_substring_regex(lines, _DOUBTFUL)
    if not pc.any(doubtful).as_py():
        return lines
    return pc.replace_with_mask(lines, doubtful, change(lines.filter(doubtful)))


def _one_by_one(lines: pa.StringArray, mark: str) -> pa.StringArray:
    def text(found: re.Match[str]) -> str:
        return found[0] if found[1] is None else f'"{mark}{found[1]}"'

    return pa.array([_TEXT_OR_NUMBER.sub(text, each) for each in lines.to_pylist()], pa.string())
