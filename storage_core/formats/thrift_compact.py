"""Thrift's compact protocol, as far as the headers of Parquet's pages use it."""

from __future__ import annotations

from typing import Any, Final

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _BINARY, _STRUCT = 0, 1, 2, 3, 4, 5, 6, 8, 12
_MOST_FIELDS: Final = 64
_DEEPEST: Final = 8


def read_struct(data: bytes | memoryview, position: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the numbers and structs of a struct by field id, and where it ends; texts are passed over.

    Raises `IndexError` or `ValueError` for what is no such struct.
    """
    found: dict[int, Any] = {}
    field = 0
    for _ in range(_MOST_FIELDS):
        head = data[position]
        position += 1
        if head == _STOP:
            return found, position
        if head >> 4:
            field += head >> 4
        else:
            field, position = _signed(data, position)
        kind = head & 15
        if kind in (_TRUE, _FALSE):
            found[field] = kind == _TRUE
        elif kind == _BYTE:
            position += 1
        elif kind in (_I16, _I32, _I64):
            found[field], position = _signed(data, position)
        elif kind == _BINARY:
            length, position = _unsigned(data, position)
            position += length
        elif kind == _STRUCT and depth < _DEEPEST:
            found[field], position = read_struct(data, position, depth + 1)
        else:
            raise ValueError(f"no page has a field of kind {kind}")
    raise ValueError("too many fields")


def _signed(data: bytes | memoryview, position: int) -> tuple[int, int]:
    number, position = _unsigned(data, position)
    return (number >> 1) ^ -(number & 1), position


def _unsigned(data: bytes | memoryview, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # the last byte of a number
            return number, position
    raise ValueError("a number without an end")
