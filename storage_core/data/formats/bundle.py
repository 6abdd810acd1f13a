"""Bundles and translations. A bundle is several files in one object. A translation of row numbers is a bundle.

A bundle has this layout:

    offset 0          magic `TIDEMKB`, version byte `1`                              8 bytes
    offset 8          the parts, one after the other, without gaps
    footer offset     directory: UTF-8 JSON, see below                               n bytes
    end - 20          n as unsigned 32 bit, little endian                            4 bytes
    end - 16          xxh3-64 of the directory and the 8 bytes below, little endian  8 bytes
    end - 8           magic and version again                                        8 bytes

The directory is `{"identity": text, "properties": {text: text}, "parts": [{"name", "offset", "length", "xxh3"}]}`. The
log contains the footer offset, the size and the xxh3-64 of the object. Therefore a reader fetches the directory with
one ranged read, and each part with one more read. A reader can verify the bytes of every read. Each part has its own
checksum, and the trailer contains the checksum of the directory. With the identity, readers detect a valid bundle that
is stored under the wrong key.

A translation belongs to a merge. For each output row, a translation contains the input row. A translation also contains
the input rows that the merge dropped. A translation is a bundle with these parts:

    order.zst        the number of the input of each output row, one output after the other: one byte per row, or
                     two (little endian) for more than 256 inputs, compressed by zstd
    dropped-<i>.bin  the rows of input i that were not moved, a portable Roaring bitmap (absent if all were moved)
    rows.zst         only for merges of early 0.1, which did not keep the order of their inputs, in place of `dropped`:
                     for each output row its row in its input, four bytes each (little endian), compressed by zstd

If the rows of an input keep their order (decision 0016), `order` is enough to find each row. The k-th moved row of
input i is at the k-th position in `order` that contains the number i. In this form, each output row has exactly one
input. The counts show whether a row is missing.

This module does no I/O.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, Unsupported

# Bundles.

MAGIC = b"TIDEMKB"
VERSION = b"1"
_HEAD = MAGIC + VERSION
_TRAILER = struct.Struct("<IQ8s")

# Readers unpack parts into files with these names. A file with a valid name cannot be outside the directory and cannot
# be a hidden file.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a bundle: bytes `offset` to `offset + length` of the object. `xxh3` has 16 hex digits."""

    name: str
    offset: int
    length: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory of a bundle.

    `identity` is the id that the writer gave to the object, and `properties` describe the content.
    """

    identity: str
    parts: tuple[Part, ...]
    properties: Mapping[str, str] = field(default_factory=dict)

    def part(self, name: str) -> Part:
        """Return the part with this name. Raises `NotFound`."""
        for each in self.parts:
            if each.name == name:
                return each
        raise NotFound(f"bundle {self.identity}: no part {name!r}. It holds {[each.name for each in self.parts]}")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed object, and the values that the log stores for it.

    Readers need these values to find and verify the parts.
    """

    data: bytes
    footer_offset: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class Expected:
    """The log's record of a stored bundle. `where` is the name of the object in errors."""

    where: str
    identity: str
    size: int
    footer_offset: int
    xxh3: str


def pack_bundle(parts: Mapping[str, bytes | memoryview], *, identity: str, properties: Mapping[str, str]) -> Bundle:
    """Return one object that contains `parts` in the given order. The same input gives the same bytes.

    Raises `InvalidInput` for an invalid part name. A valid part name contains only letters, digits, `.`, `_` and `-`,
    and does not start with `.` or `-`.
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
    """Return the directory of a bundle. `tail` contains the bytes of the object from the footer offset to its end.

    Raises:
        Corrupt: A byte differs from what was packed, or the log records a different object.
        Unsupported: A newer release wrote the bundle.
    """
    where = expected.where
    if len(tail) != expected.size - expected.footer_offset or len(tail) < _TRAILER.size:
        raise _corrupt(where, f"the footer has {len(tail)} bytes, expected {expected.size - expected.footer_offset}")
    length, digest, magic = _TRAILER.unpack_from(tail, len(tail) - _TRAILER.size)
    footer = tail[: -_TRAILER.size]
    if length != len(footer):
        raise _corrupt(where, f"the directory has {len(footer)} bytes, its trailer says {length}")
    # The checksum covers the version byte. So a flipped bit in this byte is reported as damage, not as a newer format.
    if xxhash.xxh3_64_intdigest(footer + magic) != digest:
        raise _corrupt(where, "the checksum of the directory does not match")
    _check_magic(magic, where)
    directory = _decode(footer, where)
    _check_directory(directory, expected)
    return directory


def unpack_bundle(data: bytes, expected: Expected) -> dict[str, memoryview]:
    """Return the verified parts of a complete object by name. The parts are not copied.

    Raises:
        Corrupt: The size, the checksum or the identity differs from the log's record.
        Unsupported: A newer release wrote the bundle.
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
    """Raise `Corrupt` unless `data` has exactly the bytes that were packed as `part`.

    The error contains the object and the part.
    """
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
        raise Unsupported(f"{where}: bundle version {found!r}, this release reads {VERSION!r}. Upgrade Tidemark")


def _decode(footer: bytes, where: str) -> Directory:
    try:
        value = cast("dict[str, object]", json.loads(footer))
        parts = cast("list[object]", value["parts"])
        return Directory(
            identity=str(value["identity"]),
            properties=dict(cast("Mapping[str, str]", value["properties"])),
            parts=tuple(_decode_part(each) for each in parts),
        )
    # A RecursionError means that the directory is too deep for the parser, and `pack_bundle` never writes such a
    # directory.
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
            raise _corrupt(expected.where, f"the directory entry of {part.name!r} is not valid")
        offset += part.length
    names = {part.name for part in directory.parts}
    if offset != expected.footer_offset or len(names) != len(directory.parts):
        raise _corrupt(expected.where, f"the parts end at byte {offset}, the footer is at {expected.footer_offset}")


def _corrupt(where: str, what: str) -> Corrupt:
    advice = "restore the object, or drop the index segment and run catch-up again"
    return Corrupt(f"{where}: {what}", advice=advice, key=where)


# Translations.

MOST_INPUTS = 2**16
"""The maximum number of inputs of a translation. The number of an input is stored in at most two bytes."""

Rows = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]

_ORDER = "order.zst"
_ROWS = "rows.zst"
_CODEC = "zstd"


@dataclass(frozen=True, slots=True, eq=False)
class TranslationMap:
    """A translation of the rows of a merge.

    Attributes:
        input_rows: The number of rows in the file of each input.
        output_rows: The number of rows in each output.
        order: The number of the input of each output row.
        dropped: For each input, the rows of the input that are in no output. Empty if `rows` is set.
        rows: For each output row, its row number in the input. None if the rows of the inputs kept their order.
    """

    input_rows: tuple[int, ...]
    output_rows: tuple[int, ...]
    order: Numbers
    dropped: tuple[BitMap, ...] = ()
    rows: Numbers | None = None

    @property
    def moved(self) -> npt.NDArray[np.int64]:
        """The number of rows that each output (second axis) received from each input (first axis)."""
        inputs, outputs = len(self.input_rows), len(self.output_rows)
        output = np.repeat(np.arange(outputs), self.output_rows)
        pairs = self.order.astype(np.int64) * outputs + output
        return np.bincount(pairs, minlength=inputs * outputs).reshape(inputs, outputs)

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory, in bytes."""
        rows = 0 if self.rows is None else self.rows.nbytes
        return int(self.order.nbytes + rows) + sum(map(_bytes_of, self.dropped)) + 1

    def places(self, source: int, rows: Rows) -> tuple[Rows, Rows]:
        """Return the indexes of the moved rows in `rows`, and their new positions. `rows` are rows of one input.

        Positions count the rows of all outputs, one output after the other.
        """
        if self.rows is not None:
            return self._gathered(source, rows, self.rows)
        dropped = np.array(self.dropped[source].to_array(), np.int64)
        before = np.searchsorted(dropped, rows, side="right")
        stays = before == np.searchsorted(dropped, rows, side="left")
        moved = np.flatnonzero(stays & (rows < self.input_rows[source]))
        return moved, np.flatnonzero(self.order == source)[rows[moved] - before[moved]]

    def _gathered(self, source: int, wanted: Rows, gathered: Numbers) -> tuple[Rows, Rows]:
        own = np.flatnonzero(self.order == source)
        at = np.full(self.input_rows[source], -1)
        at[gathered[own]] = own
        known = np.flatnonzero(wanted < self.input_rows[source])
        there = at[wanted[known]]
        return known[there >= 0], there[there >= 0]


def _bytes_of(rows: BitMap) -> int:
    """Return the bytes of a bitmap in memory.

    In a part of a merge, a bitmap may contain nearly all rows, in a few ranges.
    """
    return sum(int(str(count)) for name, count in rows.get_statistics().items() if name.startswith("n_bytes_"))


def pack_translation(translation: TranslationMap, *, identity: str) -> Bundle:
    """Return the object. The same translation gives the same bytes."""
    wide = len(translation.input_rows) > 2**8
    order = np.ascontiguousarray(translation.order, "<u2" if wide else "u1")
    parts = {_ORDER: _compressed(order)}
    if translation.rows is not None:
        parts[_ROWS] = _compressed(np.ascontiguousarray(translation.rows, "<u4"))
    for number, rows in enumerate(translation.dropped):
        if rows:
            parts[_dropped(number)] = rows.serialize()
    return pack_bundle(parts, identity=identity, properties={})


def unpack_translation(
    data: bytes, expected: Expected, *, inputs: Sequence[int], outputs: Sequence[int], moved: Sequence[int]
) -> TranslationMap:
    """Verify the checksums of a translation, compare all its counts with the log, and return the translation.

    Args:
        data: The bytes.
        expected: The log's record of the bundle.
        inputs: The number of rows of each input.
        outputs: The number of rows of each output.
        moved: The number of rows of each input in each output. The numbers for the first input come first.

    Raises:
        Corrupt: A value differs.
    """
    parts, where = unpack_bundle(data, expected), expected.where
    gathered = _ROWS in parts
    known = {_ORDER, _ROWS} if gathered else {_ORDER, *map(_dropped, range(len(inputs)))}
    if _ORDER not in parts or not parts.keys() <= known:
        raise _corrupt_translation(where, f"the parts are {sorted(parts)}, expected parts such as {sorted(known)[:3]}")
    found = TranslationMap(
        input_rows=tuple(inputs),
        output_rows=tuple(outputs),
        order=_numbers(parts[_ORDER], "<u2" if len(inputs) > 2**8 else "u1", sum(outputs), where),
        dropped=() if gathered else tuple(_rows(parts, number, where) for number in range(len(inputs))),
        rows=_numbers(parts[_ROWS], "<u4", sum(outputs), where) if gathered else None,
    )
    for number, (rows, dropped) in enumerate(zip(inputs, found.dropped, strict=not gathered)):
        if dropped and dropped.max() >= rows:
            raise _corrupt_translation(
                where,
                f"the translation drops row {dropped.max()} of input {number}, but the input has only {rows} rows",
            )
    if len(found.order) and int(found.order.max()) >= len(inputs):
        raise _corrupt_translation(
            where, f"a row is from input {found.order.max()}, but there are only {len(inputs)} inputs"
        )
    counts = found.moved
    if counts.ravel().tolist() != list(moved):
        raise _corrupt_translation(where, "the number of rows per input and output differs from the log")
    if found.rows is not None:
        _require_each_once(found, found.rows, where)
    for number, count in enumerate([] if gathered else counts.sum(axis=1).tolist()):
        if count + len(found.dropped[number]) != inputs[number]:
            gone = len(found.dropped[number])
            raise _corrupt_translation(
                where,
                f"{count} rows of input {number} moved and {gone} were dropped, but the input has "
                f"{inputs[number]} rows",
            )
    return found


def _require_each_once(found: TranslationMap, rows: Numbers, where: str) -> None:
    """Raise `Corrupt` unless each output row has a different input row that exists."""
    counts = np.array(found.input_rows, np.int64)
    if (rows >= counts[found.order]).any():
        raise _corrupt_translation(where, "a row is not in its input")
    if len(np.unique((np.cumsum(counts) - counts)[found.order] + rows)) != len(rows):
        raise _corrupt_translation(where, "a row of an input is in two places")


def _compressed(numbers: Numbers) -> bytes:
    return bytes(pa.Codec(_CODEC).compress(numbers.tobytes(), asbytes=True))


def _numbers(part: memoryview, kind: str, count: int, where: str) -> Numbers:
    try:
        size = count * np.dtype(kind).itemsize
        data = pa.decompress(part, decompressed_size=size, codec=_CODEC, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt_translation(where, f"the numbers in the file cannot be read: {error}") from error
    found: Numbers = np.frombuffer(data, kind)
    return found


def _rows(parts: Mapping[str, memoryview], number: int, where: str) -> BitMap:
    data = parts.get(_dropped(number))
    if data is None:
        return BitMap()
    try:
        return BitMap.deserialize(bytes(data))
    except (ValueError, LookupError) as error:
        raise _corrupt_translation(where, f"the dropped rows of input {number} cannot be read: {error}") from error


def _dropped(number: int) -> str:
    return f"dropped-{number}.bin"


def _corrupt_translation(where: str, what: str) -> Corrupt:
    advice = "nothing is lost: a search reads the splits. Run: tidemark catch-up"
    return Corrupt(f"{where}: not the translation of the log: {what}", advice=advice, key=where)
