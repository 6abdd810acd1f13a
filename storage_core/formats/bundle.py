"""Bundles: several files in one immutable object that a reader can take whole or in ranges.

    offset 0          magic `TIDEMKB`, version byte `1`                              8 bytes
    offset 8          the parts, one after the other, without gaps
    footer offset     directory: UTF-8 JSON, see below                               n bytes
    end - 20          n as unsigned 32 bit, little endian                            4 bytes
    end - 16          xxh3-64 of the directory and the 8 bytes below, little endian  8 bytes
    end - 8           magic and version again                                        8 bytes

The directory is `{"identity": text, "properties": {text: text}, "parts": [{"name", "offset", "length", "xxh3"}]}`. The
log records the footer offset, the object's size and its xxh3-64, so one ranged read fetches the directory and one more
each part, and every read can be verified: a part by its own checksum, the directory by the trailer's, and the object
by its identity, which tells a sound bundle under the wrong key. This module does no I/O.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import cast

import xxhash

from storage_core.errors import Corrupt, InvalidInput, NotFound, Unsupported

MAGIC = b"TIDEMKB"
VERSION = b"1"
_HEAD = MAGIC + VERSION
_TRAILER = struct.Struct("<IQ8s")

# Readers unpack parts into files of these names, so a name can never leave the directory or hide in it.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a bundle: bytes `offset` to `offset + length` of the object, `xxh3` as 16 hex digits."""

    name: str
    offset: int
    length: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class Directory:
    """What a bundle holds. `identity` is the id of the object it was written as; `properties` describe the content."""

    identity: str
    parts: tuple[Part, ...]
    properties: Mapping[str, str] = field(default_factory=dict)

    def part(self, name: str) -> Part:
        """Return the part of this name. Raises `NotFound`."""
        for each in self.parts:
            if each.name == name:
                return each
        raise NotFound(f"bundle {self.identity}: no part {name!r}; it holds {[each.name for each in self.parts]}")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed object, and what the log must record so that readers can find and verify its parts."""

    data: bytes
    footer_offset: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What the log says about a stored bundle; `where` names the object in errors."""

    where: str
    identity: str
    size: int
    footer_offset: int
    xxh3: str


def pack(parts: Mapping[str, bytes | memoryview], *, identity: str, properties: Mapping[str, str]) -> Bundle:
    """Return one object that holds `parts` in the given order; the same input gives the same bytes.

    Raises `InvalidInput` for a part name other than letters, digits, `.`, `_` and `-`, or one that starts with `.`.
    """
    entries, offset = [], len(_HEAD)
    for name, data in parts.items():
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"bundle part name {name!r}: use letters, digits, '.', '_' and '-'")
        entries.append(Part(name=name, offset=offset, length=len(data), xxh3=checksum(data)))
        offset += len(data)
    directory = {"identity": identity, "properties": dict(properties), "parts": [asdict(each) for each in entries]}
    footer = json.dumps(directory, separators=(",", ":"), ensure_ascii=False).encode()
    trailer = _TRAILER.pack(len(footer), xxhash.xxh3_64_intdigest(footer + _HEAD), _HEAD)
    data = b"".join([_HEAD, *parts.values(), footer, trailer])
    return Bundle(data=data, footer_offset=offset, xxh3=checksum(data))


def read_directory(tail: bytes, expected: Expected) -> Directory:
    """Return the directory from `tail`, the bytes of the object from the footer offset to its end.

    Raises `Corrupt` when a byte differs from what was packed or the object is another one than the log names, and
    `Unsupported` for a newer bundle version.
    """
    where = expected.where
    if len(tail) != expected.size - expected.footer_offset or len(tail) < _TRAILER.size:
        raise _corrupt(where, f"the footer has {len(tail)} bytes, expected {expected.size - expected.footer_offset}")
    length, digest, magic = _TRAILER.unpack_from(tail, len(tail) - _TRAILER.size)
    footer = tail[: -_TRAILER.size]
    if length != len(footer):
        raise _corrupt(where, f"the directory has {len(footer)} bytes, its trailer says {length}")
    # The checksum covers the version byte, so that a flipped bit in it is damage and not a newer format.
    if xxhash.xxh3_64_intdigest(footer + magic) != digest:
        raise _corrupt(where, "the checksum of the directory does not match")
    _check_magic(magic, where)
    directory = _decode(footer, where)
    _check_directory(directory, expected)
    return directory


def unpack(data: bytes, expected: Expected) -> dict[str, memoryview]:
    """Return every part of a whole object by name, verified, without copying.

    Raises `Corrupt` when the size, the checksum or the identity differs from what the log says, `Unsupported` for a
    newer bundle version.
    """
    if len(data) != expected.size:
        raise _corrupt(expected.where, f"the object has {len(data)} bytes, expected {expected.size}")
    found = checksum(data)
    if found != expected.xxh3:
        raise _corrupt(expected.where, f"the checksum of the object is {found}, expected {expected.xxh3}")
    _check_magic(data[: len(_HEAD)], expected.where)
    directory = read_directory(data[expected.footer_offset :], expected)
    view = memoryview(data)
    parts = {each.name: view[each.offset : each.offset + each.length] for each in directory.parts}
    for each in directory.parts:
        verify_part(parts[each.name], each, expected.where)
    return parts


def verify_part(data: bytes | memoryview, part: Part, where: str) -> None:
    """Return only when `data` is exactly what was packed as `part`; raises `Corrupt` naming the object and part."""
    if len(data) != part.length:
        raise _corrupt(where, f"part {part.name!r} has {len(data)} bytes, expected {part.length}")
    if checksum(data) != part.xxh3:
        raise _corrupt(where, f"the checksum of part {part.name!r} does not match")


def checksum(data: bytes | memoryview) -> str:
    """Return the xxh3-64 of `data` as 16 hex digits."""
    return xxhash.xxh3_64_hexdigest(data)


def _check_magic(magic: bytes, where: str) -> None:
    if magic[: len(MAGIC)] != MAGIC:
        raise _corrupt(where, f"not a bundle: expected the magic {MAGIC!r}, found {bytes(magic[: len(MAGIC)])!r}")
    if magic[len(MAGIC) :] != VERSION:
        found = bytes(magic[len(MAGIC) :])
        raise Unsupported(f"{where}: bundle version {found!r}, this release reads {VERSION!r}; upgrade Tidemark")


def _decode(footer: bytes, where: str) -> Directory:
    try:
        value = cast("dict[str, object]", json.loads(footer))
        parts = cast("list[object]", value["parts"])
        return Directory(
            identity=str(value["identity"]),
            properties=dict(cast("Mapping[str, str]", value["properties"])),
            parts=tuple(_decode_part(each) for each in parts),
        )
    # RecursionError: a directory nested deeper than the parser's stack was not written by `pack`.
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _corrupt(where, f"the directory cannot be read: {error!r}") from error


def _decode_part(entry: object) -> Part:
    match entry:
        case {"name": str(name), "offset": int(offset), "length": int(length), "xxh3": str(digest)}:
            return Part(name=name, offset=offset, length=length, xxh3=digest)
        case _:
            raise TypeError(f"not a part: {entry!r}")


def _check_directory(directory: Directory, expected: Expected) -> None:
    if directory.identity != expected.identity:
        raise _corrupt(expected.where, f"the object is bundle {directory.identity!r}, expected {expected.identity!r}")
    offset = len(_HEAD)
    for part in directory.parts:
        if not _NAME.fullmatch(part.name) or part.offset != offset or part.length < 0:
            raise _corrupt(expected.where, f"the directory entry {part!r} is not sound")
        offset += part.length
    names = {part.name for part in directory.parts}
    if offset != expected.footer_offset or len(names) != len(directory.parts):
        raise _corrupt(expected.where, f"the parts end at byte {offset}, the footer is at {expected.footer_offset}")


def _corrupt(where: str, what: str) -> Corrupt:
    advice = "restore the object, or drop the index segment and catch up again"
    return Corrupt(f"{where}: {what}", advice=advice, key=where)
