"""Bytes of a translation: which input each row of the outputs came from, and which rows of the inputs went nowhere.

A bundle with these parts:

    order.zst        the number of the input of each row of the outputs, one output after the other: one byte per row,
                     two (little endian) for more than 256 inputs, compressed by zstd
    dropped-<i>.bin  the rows of input i that were not moved, a portable Roaring bitmap; absent where all were
    rows.zst         of a merge of early 0.1, which kept no order of its inputs, in place of `dropped`: the row in
                     its input of each row of the outputs, four bytes each (little endian), compressed by zstd

Where the rows of an input keep their order (decision 0066), the k-th row of input i that was moved is at the k-th place
of i in `order`. A row of the outputs has one input by the form of it, and counts say that none is missing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import Corrupt
from storage_core.formats import bundle
from storage_core.formats.bundle import Bundle, Expected

MOST_INPUTS = 2**16
"""More inputs than two bytes can number have no translation."""

Rows = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]

_ORDER = "order.zst"
_ROWS = "rows.zst"
_CODEC = "zstd"


@dataclass(frozen=True, slots=True, eq=False)
class TranslationMap:
    """Where rows went: `order` has the input of each row of the outputs, `dropped` the rows of each input without one.

    `input_rows` are the rows of the files of the inputs, `output_rows` those of the outputs. Where the order of inputs
    was not kept, `rows` has the row in its input of each row of the outputs, and `dropped` says nothing.
    """

    input_rows: tuple[int, ...]
    output_rows: tuple[int, ...]
    order: Numbers
    dropped: tuple[BitMap, ...] = ()
    rows: Numbers | None = None

    @property
    def moved(self) -> npt.NDArray[np.int64]:
        """How many rows of each input (first axis) are in each output."""
        inputs, outputs = len(self.input_rows), len(self.output_rows)
        output = np.repeat(np.arange(outputs), self.output_rows)
        pairs = self.order.astype(np.int64) * outputs + output
        return np.bincount(pairs, minlength=inputs * outputs).reshape(inputs, outputs)

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        rows = 0 if self.rows is None else self.rows.nbytes
        return int(self.order.nbytes + rows) + sum(map(_bytes_of, self.dropped)) + 1

    def places(self, source: int, rows: Rows) -> tuple[Rows, Rows]:
        """Return which of these rows of an input were moved, by their places in `rows`, and where each of them went.

        Positions count the rows of all outputs, one after the other.
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
    """What a bitmap takes: of a part of a merge, one with nearly all rows of an input in a few stretches."""
    return sum(int(str(count)) for name, count in rows.get_statistics().items() if name.startswith("n_bytes_"))


def pack(translation: TranslationMap, *, identity: str) -> Bundle:
    """Return the object; the same translation gives the same bytes."""
    wide = len(translation.input_rows) > 2**8
    order = np.ascontiguousarray(translation.order, "<u2" if wide else "u1")
    parts = {_ORDER: _compressed(order)}
    if translation.rows is not None:
        parts[_ROWS] = _compressed(np.ascontiguousarray(translation.rows, "<u4"))
    for number, rows in enumerate(translation.dropped):
        if rows:
            parts[_dropped(number)] = rows.serialize()
    return bundle.pack(parts, identity=identity, properties={})


def unpack(
    data: bytes, expected: Expected, *, inputs: Sequence[int], outputs: Sequence[int], moved: Sequence[int]
) -> TranslationMap:
    """Return the translation in these bytes, verified against what the log says of it: checksums, and every count.

    `inputs` and `outputs` are their rows, `moved` the rows of each input in each output, those of the first input
    first. Raises `Corrupt` when anything differs.
    """
    parts, where = bundle.unpack(data, expected), expected.where
    gathered = _ROWS in parts
    known = {_ORDER, _ROWS} if gathered else {_ORDER, *map(_dropped, range(len(inputs)))}
    if _ORDER not in parts or not parts.keys() <= known:
        raise _corrupt(where, f"its parts are {sorted(parts)}, expected some of {sorted(known)[:3]} and so on")
    found = TranslationMap(
        input_rows=tuple(inputs),
        output_rows=tuple(outputs),
        order=_numbers(parts[_ORDER], "<u2" if len(inputs) > 2**8 else "u1", sum(outputs), where),
        dropped=() if gathered else tuple(_rows(parts, number, where) for number in range(len(inputs))),
        rows=_numbers(parts[_ROWS], "<u4", sum(outputs), where) if gathered else None,
    )
    for number, (rows, dropped) in enumerate(zip(inputs, found.dropped, strict=not gathered)):
        if dropped and dropped.max() >= rows:
            raise _corrupt(where, f"row {dropped.max()} of input {number} was dropped, which has {rows}")
    if len(found.order) and int(found.order.max()) >= len(inputs):
        raise _corrupt(where, f"a row of input {found.order.max()} of {len(inputs)}")
    counts = found.moved
    if counts.ravel().tolist() != list(moved):
        raise _corrupt(where, "rows of an input are in other outputs than the log says")
    if found.rows is not None:
        _require_each_once(found, found.rows, where)
    for number, count in enumerate([] if gathered else counts.sum(axis=1).tolist()):
        if count + len(found.dropped[number]) != inputs[number]:
            gone = len(found.dropped[number])
            raise _corrupt(where, f"{count} rows of input {number} moved and {gone} dropped, of {inputs[number]}")
    return found


def _require_each_once(found: TranslationMap, rows: Numbers, where: str) -> None:
    """Raise `Corrupt` unless each row of the outputs is another row, and one that its input has."""
    counts = np.array(found.input_rows, np.int64)
    if (rows >= counts[found.order]).any():
        raise _corrupt(where, "a row that its input does not have")
    if len(np.unique((np.cumsum(counts) - counts)[found.order] + rows)) != len(rows):
        raise _corrupt(where, "a row of an input is in two places")


def _compressed(numbers: Numbers) -> bytes:
    return bytes(pa.Codec(_CODEC).compress(numbers.tobytes(), asbytes=True))


def _numbers(part: memoryview, kind: str, count: int, where: str) -> Numbers:
    try:
        size = count * np.dtype(kind).itemsize
        data = pa.decompress(part, decompressed_size=size, codec=_CODEC, asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt(where, f"its numbers cannot be read: {error}") from error
    found: Numbers = np.frombuffer(data, kind)
    return found


def _rows(parts: Mapping[str, memoryview], number: int, where: str) -> BitMap:
    data = parts.get(_dropped(number))
    if data is None:
        return BitMap()
    try:
        return BitMap.deserialize(bytes(data))
    except (ValueError, LookupError) as error:
        raise _corrupt(where, f"the dropped rows of input {number} cannot be read: {error}") from error


def _dropped(number: int) -> str:
    return f"dropped-{number}.bin"


def _corrupt(where: str, what: str) -> Corrupt:
    advice = "nothing is lost: a search reads the splits; run: tidemark catch-up"
    return Corrupt(f"{where}: not the translation of the log: {what}", advice=advice, key=where)
