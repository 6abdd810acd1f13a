"""Thrift's compact protocol, as Parquet uses it, read from bytes that nobody vouches for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
_MOST_FIELDS = 64
_DEEPEST = 8

LeftOut = Mapping[int, "LeftOut | None"]
"""The fields of a struct that are left out, by id; of one with a mapping what the structs in it leave out."""


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
        if data[position] == _STOP:
            return
        field, kind, position = _head(data, position, field)
        value, position = _value(data, position, kind, depth)
        yield field, value, position
    raise ValueError("too many fields")


def without(data: bytes | memoryview, position: int, left_out: LeftOut) -> tuple[bytes, int]:
    """Return a struct as it stands but for what is left out, and where it ended. Raises as `struct`.

    Also `ValueError` where two fields that stay would be more than 15 ids apart.
    """
    found, field, last = bytearray(), 0, 0
    while data[position] != _STOP:
        field, kind, start = _head(data, position, field)
        inner = left_out.get(field)
        if inner is None:
            value, position = None, _value(data, start, kind, 0)[1]
        else:
            value, position = _without_in(data, start, kind, inner)
        if inner is not None or field not in left_out:
            found.append((field - last) << 4 | kind)
            found += data[start:position] if value is None else value
            last = field
    found.append(_STOP)
    return bytes(found), position + 1


def _without_in(data: bytes | memoryview, start: int, kind: int, left_out: LeftOut) -> tuple[bytes, int]:
    """A struct, or a list of structs, without what each leaves out."""
    if kind == _STRUCT:
        return without(data, start, left_out)
    of, size, position = _list_head(data, start)
    if kind != _LIST or of != _STRUCT:
        raise ValueError(f"a field of kind {kind} has no structs")
    found = bytearray(data[start:position])
    for _ in range(size):
        value, position = without(data, position, left_out)
        found += value
    return bytes(found), position


def _head(data: bytes | memoryview, position: int, last: int) -> tuple[int, int, int]:
    """The id and the kind of the field at a position behind the field `last`, and where its value begins."""
    head = data[position]
    if head >> 4:
        return last + (head >> 4), head & 15, position + 1
    field, position = _signed(data, position + 1)
    return field, head & 15, position


def _value(data: bytes | memoryview, position: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, position
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
    kind, size, position = _list_head(data, position)
    found = []
    for _ in range(size):
        value, position = _value(data, position, _BYTE if kind in (_TRUE, _FALSE) else kind, depth)
        found.append(value)
    return found, position


def _list_head(data: bytes | memoryview, position: int) -> tuple[int, int, int]:
    """The kind and the number of the values of a list, and where the first begins."""
    head = data[position]
    size, position = head >> 4, position + 1
    if size == 15:  # more than fit into half a byte
        size, position = _unsigned(data, position)
    if size > len(data):
        raise ValueError(f"a list of {size} values")
    return head & 15, size, position


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
