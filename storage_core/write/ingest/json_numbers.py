"""Numbers of JSON with an exponent, written without it."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

_EXPONENT = r"\A[+-]?[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]+\z"
_MOST_ZEROS = 100


def without_exponent(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts, with the digits written out for each number with an exponent."""
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
    # No decimal column has more digits, and a short text must not become a long one.
    return f"{number:f}" if number.is_finite() and abs(number.adjusted()) <= _MOST_ZEROS else text
