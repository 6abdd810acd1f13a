"""Thrift's compact protocol, as Parquet uses it, read from bytes that nobody vouches for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
_MOST_FIELDS = 64
_DEEPEST = 8


def struct(data: bytes | memoryview, position: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the numbers, structs and lists of a struct by field id, and where it ends; texts are passed over.

    Raises `ValueError` or `IndexError` for bytes that are none.
    """
    found: dict[int, Any] = {}
    end = position
    for field, value, after in fields(data, position, depth):
        end = after
        if value is not None:
            found[field] = value
    return found, end + 1


def fields(data: bytes | memoryview, position: int, depth: int = 0) -> Iterator[tuple[int, Any, int]]:
    """Yield the fields of a struct as they stand: id, value as of `struct`, and where the field ends. Raises as it."""
    field = 0
    for _ in range(_MOST_FIELDS):
        head = data[position]
        if head == _STOP:
            return
        position += 1
        if head >> 4:
            field += head >> 4
        else:
            field, position = _signed(data, position)
        if head & 15 in (_TRUE, _FALSE):
            value: Any = head & 15 == _TRUE
        else:
            value, position = _value(data, position, head & 15, depth)
        yield field, value, position
    raise ValueError("too many fields")


def _value(data: bytes | memoryview, position: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_I16, _I32, _I64):
        return _signed(data, position)
    if kind == _BINARY:
        length, position = _unsigned(data, position)
        return None, position + length
    if kind in (_BYTE, _DOUBLE):
        return None, position + (1 if kind == _BYTE else 8)
    if depth < _DEEPEST and kind == _STRUCT:
        return struct(data, position, depth + 1)
    if depth < _DEEPEST and kind == _LIST:
        return _list(data, position, depth + 1)
    raise ValueError(f"no field is of kind {kind}")


def _list(data: bytes | memoryview, position: int, depth: int) -> tuple[list[Any], int]:
    head = data[position]
    size, position = head >> 4, position + 1
    if size == 15:  # more than fit into half a byte
        size, position = _unsigned(data, position)
    if size > len(data):
        raise ValueError(f"a list of {size} values")
    found = []
    for _ in range(size):
        value, position = _value(data, position, _BYTE if head & 15 in (_TRUE, _FALSE) else head & 15, depth)
        found.append(value)
    return found, position


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
