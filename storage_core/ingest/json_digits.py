"""JSON numbers as they are written: DuckDB reads one with a point or an exponent as a double, and writes that.

Most come back from a double with their value, so only lines with one that may not are rewritten, one by one.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

# A double keeps 15 digits for sure; with the point these are 16 signs. `as_written` looks at whatever has more.
_DOUBTFUL = r"[:,\[]\s*-?[0-9](?:[0-9.]{16}|[0-9.]*[eE])"
_EXPONENT = r"\A[+-]?[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]+\z"
# Possessive: a repetition that could go back keeps a note of a hundred bytes for each character.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}:,]|[^\s"\[\]{}:,]+')
_MOST_ZEROS = 100
_DEPTH = {"{": 1, "[": 1, "}": -1, "]": -1}


def as_written(objects: pa.StringArray) -> pa.StringArray:
    """Return the lines, each a valid JSON object, with those values of theirs made text whose digits would change.

    These are numbers, and arrays and objects that hold numbers: their text is the one they have, without the space
    between its parts. Time: one look at every byte, and a step for each part of a line that is rewritten.
    """
    doubtful = pc.match_substring_regex(objects, _DOUBTFUL)
    if not pc.any(doubtful).as_py():
        return objects
    rewritten = pa.array([_quoted(text) for text in objects.filter(doubtful).to_pylist()], pa.string())
    return pc.replace_with_mask(objects, doubtful, rewritten)


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


def _quoted(line: str) -> str:
    """The parts of the line, what follows a colon of the outermost object as text where it needs to be."""
    written: list[str] = []
    value: list[str] = []
    depth = 0
    for token in _TOKEN.findall(line):
        if depth == 1 and token in (",", "}") and value:
            written.append(_as_text("".join(value)))
            value = []
        depth += _DEPTH.get(token, 0)
        if value or (written and written[-1] == ":"):
            value.append(token)
        else:
            written.append(token)
    return "".join(written)


def _as_text(value: str) -> str:
    is_number = value[0] in "-0123456789"
    is_doubtful = value[0] in "{[" and re.search(_DOUBTFUL, value)
    return json.dumps(value, ensure_ascii=False) if is_number or is_doubtful else value
