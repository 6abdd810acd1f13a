"""Arrow data that is invalid for its type. Programs that wrap their own buffers may produce invalid Arrow data."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pyarrow as pa


def text_of(values: Sequence[bytes], type_: pa.DataType | None = None) -> pa.Array:
    """Return a string array of these bytes, which may be invalid UTF-8."""
    offsets = [0]
    for each in values:
        offsets.append(offsets[-1] + len(each))
    return with_offsets(offsets, b"".join(values), type_ or pa.string())


def with_offsets(offsets: Sequence[int], data: bytes = b"abc", type_: pa.DataType | None = None) -> pa.Array:
    """Return a string array with these offsets. The offsets need not be in ascending order."""
    held = type_ or pa.string()
    packed = struct.pack(f"<{len(offsets)}{'q' if pa.types.is_large_string(held) else 'i'}", *offsets)
    return pa.Array.from_buffers(held, len(offsets) - 1, [None, pa.py_buffer(packed), pa.py_buffer(data)])


def numbers_of(values: Sequence[int], type_: pa.DataType) -> pa.Array:
    """Return an array of a decimal, time or date type that stores these integers."""
    width = type_.bit_width // 8
    data = b"".join(each.to_bytes(width, "little", signed=True) for each in values)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(data)])


BAD = text_of([b"a", b"m\xff", b"z"])
"""Three texts. The second text is not valid UTF-8."""

_FINE = pa.array(["a", "b", "c"])
_COUNTS = pa.map_(pa.string(), pa.int64())
_ONES = [0, 1, 2, 3]

INVALID: Mapping[str, pa.Array | pa.ChunkedArray] = {
    "text": BAD,
    "large text": text_of([b"a", b"m\xff", b"z"], pa.large_string()),
    "text in a view": BAD.view(pa.binary()).cast(pa.binary_view()).view(pa.string_view()),
    "a dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), BAD),
    "the last chunk": pa.chunked_array([_FINE.slice(0, 2), BAD.slice(1, 1)]),
    "a slice": text_of([b"\xff", b"a", b"m\xff", b"z"]).slice(1),
    "offsets that descend": with_offsets([0, 2, 1, 3]),
    "offsets past the end": with_offsets([0, 9, 9, 3]),
    "an index out of range": pa.DictionaryArray.from_arrays(pa.array([0, 7, 0]), pa.array(["a"]), safe=False),
    "a list": pa.ListArray.from_arrays(_ONES, BAD),
    "a large list": pa.LargeListArray.from_arrays(_ONES, BAD),
    "a list of a fixed size": pa.FixedSizeListArray.from_arrays(BAD, 1),
    "a struct": pa.StructArray.from_arrays([BAD], ["x"]),
    "the keys of a map": pa.MapArray.from_arrays(_ONES, BAD, pa.array([1, 2, 3])),
    "structs in a map": pa.MapArray.from_arrays(_ONES, _FINE, pa.StructArray.from_arrays([BAD], ["x"])),
    "a key twice in a map": pa.array([[("a", 1)], [("b", 1), ("a", 2), ("b", 3)], [("b", 1)]], _COUNTS),
    "a key twice in a map in a struct": pa.array(
        [{"m": []}, {"m": [("a", 1), ("a", 1)]}, None], pa.struct([("m", _COUNTS)])
    ),
    "a decimal": numbers_of([1, 12345, 2], pa.decimal128(3, 1)),
    "a wide decimal": numbers_of([1, 12345, 2], pa.decimal256(3, 1)),
}
"""Columns of three rows. At least the second row is invalid."""
