"""Avro binary encoding of numbers (Avro 1.12, "Binary Encoding")."""

from __future__ import annotations


def long_bytes(number: int) -> bytes:
    """Return a long in Avro's encoding: zigzag, seven bits per byte."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
