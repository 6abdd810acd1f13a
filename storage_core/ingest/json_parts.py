"""How much is in a line of JSON: a parser makes about 200 bytes of each part, however small the part is."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MOST_PARTS = 1_000_000
"""A line of more parts is no record: its text alone would take a hundred times its length."""

TOO_MANY = f"the line has more than {MOST_PARTS:,} values in it"

_STARTS = b",[{"
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


def parts_of(lines: pa.StringArray) -> npt.NDArray[np.int64]:
    """Return per line at least as many parts as it has: what commas and opening brackets say, in text as well."""
    is_start = np.zeros(256, np.bool_)
    is_start[list(_STARTS)] = True
    _, offsets, data = lines.buffers()
    if data is None or not len(lines):
        return np.zeros(len(lines), np.int64)
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    found = np.flatnonzero(is_start[text]) + ends[0]
    return np.diff(np.searchsorted(found, ends)).astype(np.int64)


def has_too_many(line: str) -> bool:
    """Return whether the line has more than `MOST_PARTS` parts, those of its texts not counted."""
    text = line.encode()
    in_texts = sum(len(each[0]) - len(each[0].translate(None, _STARTS)) for each in _STRING.finditer(text))
    return len(text) - len(text.translate(None, _STARTS)) - in_texts >= MOST_PARTS
