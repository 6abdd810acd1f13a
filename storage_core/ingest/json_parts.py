"""How much is in a line of JSON: a parser makes about 200 bytes of each part, however small the part is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MOST_PARTS = 1_000_000
"""A line of more parts is no record: its text alone would take a hundred times its length."""

TOO_MANY = f"the line has more than {MOST_PARTS:,} values in it"

_IS_START = np.zeros(256, np.bool_)
_IS_START[list(b",[{")] = True


def parts_of(lines: pa.StringArray) -> npt.NDArray[np.int64]:
    """Return per line at least as many parts as it has: what commas and opening brackets say, in text as well."""
    _, offsets, data = lines.buffers()
    if data is None or not len(lines):
        return np.zeros(len(lines), np.int64)
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    found = np.flatnonzero(_IS_START[text]) + ends[0]
    return np.diff(np.searchsorted(found, ends)).astype(np.int64)


def has_too_many(line: str) -> bool:
    """Return whether the line has more than `MOST_PARTS` parts, those of its texts not counted."""
    # What stands in texts is between two quotes, once no quote is left that is part of a text.
    text = np.frombuffer(line.encode().replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    is_outside = ~np.logical_xor.accumulate(text == ord('"'))
    return int(np.count_nonzero(_IS_START[text] & is_outside)) >= MOST_PARTS
