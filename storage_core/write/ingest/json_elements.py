"""The elements of JSON files that do not have one object per line.

A file is a sequence of JSON values. If a value of the file is an array, its elements are the records. Every other
value is a record. So a file may be one array of objects, several arrays, or objects that take several lines.

The bytes are divided without parsing, by brackets and commas outside of texts. Line breaks outside of texts become
spaces. Each record is then read in the same way as a line of NDJSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import damaged_file_error
from storage_core.write.ingest.convert import LONGEST_LINE_BYTES, LineBlock, valid_text

MOST_BRACKETS = 1_000_000
"""The maximum number of commas and opening brackets in a record. The maximum also applies to a line of NDJSON."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPACE = " \t\r\n"
_STEP_BYTES = 4 * 2**20

_COMMA, _OPEN, _CLOSE = 1, 2, 3
_KIND = np.zeros(256, np.uint8)
_KIND[ord(",")] = _COMMA
_KIND[list(b"[{")] = _OPEN
_KIND[list(b"]}")] = _CLOSE
_IS_BREAK: Final = np.isin(np.arange(256), [*b"\r\n"])
_IS_SPACE: Final = np.isin(np.arange(256), [*_SPACE.encode()])

Positions = npt.NDArray[np.int64]


def read_elements(stream: BinaryIO, block_bytes: int) -> Iterator[LineBlock]:
    """Yield the records of the stream in blocks, with their numbers from 1. Memory holds a few blocks.

    Raises `Corrupt` for an array that is never closed and for a bracket that closes nothing. Also raises `Corrupt` for
    a record above 64 MB or with too many values. Raises also the errors of reading the stream.
    """
    number, in_array, rest, step = 1, False, b"", min(block_bytes, _STEP_BYTES)
    at_start = True
    while chunk := stream.read(max(step, len(rest))):
        if at_start:
            chunk, at_start = chunk.removeprefix(_BYTE_ORDER_MARK), False
        data = rest + chunk
        found = _divide(data, number, in_array=in_array)
        rest, in_array = data[found.end :], found.in_array
        if len(rest) > LONGEST_LINE_BYTES or found.open_parts >= MOST_BRACKETS:
            raise damaged_file_error(
                f"record {number + len(found.records)} is longer than {LONGEST_LINE_BYTES} bytes, or has more than "
                f"{MOST_BRACKETS:,} values. Land smaller records"
            )
        yield _block(found.records, number)
        number += len(found.records)
    if in_array:
        raise damaged_file_error("its JSON array is never closed, so the file is not complete")
    if rest.strip():
        yield _block(pa.array([rest], pa.binary()), number)


@dataclass(frozen=True, slots=True)
class _Divided:
    """The records in a piece of a file.

    - `records`: the bytes of each record, with the spaces around it.
    - `end`: the start of the first record that is not complete in the piece.
    - `in_array`: whether the incomplete record is an element of an array.
    - `open_parts`: the number of commas and opening brackets of the incomplete record.
    """

    records: pa.BinaryArray
    end: int
    in_array: bool
    open_parts: int


def _divide(data: bytes, number: int, *, in_array: bool) -> _Divided:
    """Return the records in `data`, which must begin at the start of a record."""
    text = np.frombuffer(data, np.uint8)
    # Escaped characters in texts are replaced by spaces, so every quote begins or ends a text.
    plain = data if b"\\" not in data else data.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    quotes = np.frombuffer(plain, np.uint8) == ord('"')
    is_outside = ~np.logical_xor.accumulate(quotes) if quotes.any() else np.ones(len(text), np.bool_)
    places = np.flatnonzero((_KIND[text] != 0) & is_outside)
    kinds = _KIND[text[places]]
    depth = np.cumsum((kinds == _OPEN).astype(np.int64) - (kinds == _CLOSE)) + int(in_array)
    if len(depth) and depth.min() < 0:
        raise damaged_file_error(
            f"a closing bracket at or after record {number} has no opening bracket, so the file is not valid JSON"
        )
    is_top = (kinds == _OPEN) & (depth == 1)
    group = np.cumsum(is_top)
    array_of = np.concatenate([[in_array], text[places[is_top]] == ord("[")])
    is_array = array_of[group]
    opens = is_top & is_array
    closes = (kinds == _CLOSE) & (depth == 0)
    is_end = opens | closes | ((kinds == _COMMA) & (depth == 1) & is_array)
    ends = places[is_end]
    starts = np.concatenate([[0], ends + 1])
    ends = ends + (closes & ~is_array)[is_end]  # the closing bracket of an object belongs to the record
    # There is no record between two brackets of arrays, or after the last comma of an array.
    records = _sliced(text, is_outside, (starts[:-1], ends), may_be_empty=(opens | closes)[is_end])
    end = int(starts[-1])
    after = places >= end
    still = bool(is_array[-1] and depth[-1] > 0) if len(places) else in_array
    return _Divided(records, end, still, int(np.count_nonzero(kinds[after] != _CLOSE)))


def _sliced(
    text: npt.NDArray[np.uint8],
    is_outside: npt.NDArray[np.bool_],
    parts: tuple[Positions, Positions],
    *,
    may_be_empty: npt.NDArray[np.bool_],
) -> pa.BinaryArray:
    """Return the parts of the text. Spaces replace the line breaks outside of JSON texts.

    The result omits a part that consists only of spaces if `may_be_empty` is True for this part.
    """
    starts, ends = parts
    if not len(starts):
        return pa.array([], pa.binary())
    last = int(ends[-1])
    one_line = np.where(_IS_BREAK[text[:last]] & is_outside[:last], np.uint8(ord(" ")), text[:last])
    change = np.zeros(last + 1, np.int8)
    np.add.at(change, starts, 1)
    np.add.at(change, ends, -1)
    joined = one_line[np.cumsum(change[:-1], dtype=np.int8).astype(np.bool_)]
    offsets = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int32)
    filled = np.concatenate([[0], np.cumsum(~_IS_SPACE[joined], dtype=np.int32)])[offsets]
    records = pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(joined)])
    is_none = may_be_empty & (np.diff(filled) == 0)
    return records.filter(pa.array(~is_none)) if is_none.any() else records


def _block(records: pa.BinaryArray, number: int) -> LineBlock:
    numbers = np.arange(number, number + len(records))
    valid = valid_text(records)
    not_text = tuple((int(numbers[index]), records[int(index)].as_py().strip()) for index in np.flatnonzero(~valid))
    text = records if valid.all() else records.filter(pa.array(valid))
    return LineBlock(numbers[valid], pc.utf8_trim(text.cast(pa.string()), characters=_SPACE), not_text)
