"""Bytes to numbered lines of text, whole blocks at a time.

The one rule: a line is what ends in LF, CR LF, or the end of the file. Empty lines say nothing and are left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.errors import unsound

BLOCK_BYTES = 32 * 2**20
LONGEST_LINE_BYTES = 64 * 2**20
MOST_CELLS = 16 * 2**20
"""Values that are converted at once. A block of short lines has many more in a table of many columns."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Lines that are UTF-8 with their numbers in the file (from 1), and those that are not, as they are."""

    numbers: npt.NDArray[np.int64]
    text: pa.StringArray
    not_text: tuple[tuple[int, bytes], ...] = ()

    def pieces(self, weights: npt.NDArray[np.int64]) -> Iterator[LineBlock]:
        """Yield the same lines in order, as many at once as weigh up to `MOST_CELLS`, but one at least."""
        total = np.concatenate([[0], np.cumsum(weights)])
        start, bad = 0, self.not_text
        while start < len(self.numbers):
            end = max(start + 1, int(np.searchsorted(total, total[start] + MOST_CELLS, side="right")) - 1)
            passed = len(bad) if end == len(self.numbers) else bisect_left(bad, (int(self.numbers[end]),))
            yield LineBlock(self.numbers[start:end], self.text.slice(start, end - start), bad[:passed])
            start, bad = end, bad[passed:]
        if bad:
            yield LineBlock(self.numbers[:0], self.text.slice(0, 0), bad)


def read_lines(stream: BinaryIO, block_bytes: int = BLOCK_BYTES) -> Iterator[LineBlock]:
    """Yield the lines of the stream in blocks of about `block_bytes`; memory stays within a few blocks.

    Raises `Corrupt` for a line above 64 MB, and whatever reading the stream raises.
    """
    first_number, rest, at_start = 1, b"", True
    while chunk := stream.read(block_bytes):
        if at_start:
            chunk, at_start = chunk.removeprefix(_BYTE_ORDER_MARK), False
        end = chunk.rfind(b"\n") + 1
        if end == 0:
            rest += chunk
            if len(rest) > LONGEST_LINE_BYTES:
                raise unsound(f"line {first_number} is longer than {LONGEST_LINE_BYTES} bytes; not a file of lines")
            continue
        lines, numbers, first_number = split_lines(rest + chunk[:end], first_number)
        rest = chunk[end:]
        yield _block(lines, numbers)
    if rest:
        lines, numbers, _ = split_lines(rest, first_number)
        yield _block(lines, numbers)


def split_lines(data: bytes, first_number: int = 1) -> tuple[pa.BinaryArray, npt.NDArray[np.int64], int]:
    """Return the lines of `data` that are not empty, without their ends, their numbers, and that of the next line.

    In one pass and without a loop. Beside a copy of `data` and two marks per byte, memory is that of filled lines: a
    gzipped kilobyte can hold a million empty ones.
    """
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    ended = np.frombuffer(data, np.uint8) == ord("\n")
    filled = ~ended
    starts = np.flatnonzero(filled[1:] & ended[:-1]) + 1
    starts = np.concatenate([[0], starts]) if filled[0] else starts
    ends = np.flatnonzero(ended[1:] & filled[:-1]) + 1
    # Between two filled lines there is nothing but the ends of lines.
    numbers = first_number + np.cumsum(starts - np.concatenate([[0], ends[:-1]])[: len(starts)], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(ends - starts)], dtype=np.int32)
    joined = pa.py_buffer(data.translate(None, b"\n"))
    lines = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), joined])
    return lines, numbers, first_number + int(np.count_nonzero(ended))


def valid_text(values: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Return which values are UTF-8; null counts as text."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        # Only a block with a bad byte in it pays for looking at its values one at a time.
        return np.fromiter((_is_text(value.as_py()) for value in values), np.bool_, len(values))
    return np.ones(len(values), np.bool_)


def _block(lines: pa.BinaryArray, numbers: npt.NDArray[np.int64]) -> LineBlock:
    valid = valid_text(lines)
    text = lines if valid.all() else lines.filter(pa.array(valid))
    not_text = tuple((int(numbers[index]), lines[int(index)].as_py()) for index in np.flatnonzero(~valid))
    return LineBlock(numbers[valid], text.cast(pa.string()), not_text)


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False
