"""One column of a merge: put together from the inputs, and compared with where it came from (MC-1, MC-2).

Arrow moves the values, numpy looks every one of them up again: of each input row, whether its value is at its place in
the output. That is exact, needs no hash but for nested values, and costs about what moving them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import Corrupt
from storage_core.rows import fingerprint
from storage_core.rows.codes import is_blob_or_text
from storage_core.rows.keys import Positions
from storage_core.rows.statistics import used_values
from storage_core.rows.vectors import is_vector, matrix

Words = npt.NDArray[np.generic]

_NULL = -1
_ABSENT = -2
_WORD_BITS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The way of rows from inputs to output: row i of the output is row `positions[i]` of one input after the other.

    `places` is the way back. Each row has exactly one place, or there would be no route.
    """

    positions: pa.Array
    places: Positions


def route(positions: Positions, rows: int) -> Route:
    """Return the route of `rows` rows; raises `Corrupt` (MC-1) unless each of them has exactly one place."""
    places = np.full(rows, _NULL, np.int64)
    inside = bool(np.all((positions >= 0) & (positions < rows)))
    if inside:
        places[positions] = np.arange(len(positions), dtype=np.int64)
    if not inside or len(positions) != rows or (rows and int(places.min()) < 0):
        raise Corrupt(f"MC-1: {len(positions)} places are not a permutation of {rows} rows; nothing was committed")
    return Route(pa.array(positions.astype(np.uint32) if rows < 1 << 32 else positions), places)


def take_column(inputs: Sequence[pa.Array], way: Route, type_: pa.DataType) -> pa.Array:
    """Return a column of the output as `type_`, from the rows of the inputs one after the other, cut anyhow.

    Dictionary columns come out with one dictionary that has no value without a row, or as their values where `type_` is
    that of the values.
    """
    chunks = [chunk if chunk.type == type_ else chunk.cast(type_) for chunk in inputs]
    whole = pa.concat_arrays(chunks) if chunks else pa.array([], type_)
    taken = pc.take(whole, way.positions, boundscheck=False)  # `route` has checked them
    return _without_unused(taken) if pa.types.is_dictionary(type_) else taken


def require_same_values(name: str, inputs: Sequence[pa.Array], way: Route, taken: pa.Array) -> None:
    """Raise `Corrupt` unless every value of the inputs, one after the other, is with its row: MC-1, MC-2."""
    rows = len(way.places)
    if len(taken) != rows:
        raise Corrupt(f"MC-1: the merge read {rows} rows and made {len(taken)} of {name!r}; nothing was committed")
    if not same_values(inputs, way, taken):
        raise Corrupt(f"MC-2: a value of {name!r} is not with its row in the output; nothing was committed")


def same_values(inputs: Sequence[pa.Array], way: Route, taken: pa.Array) -> bool:
    """Whether every value of the inputs, one after the other, is in `taken` at the place that the route gives its row.

    Bit by bit for numbers, vectors and times, value by value for strings and dictionaries, by a 64-bit hash for other
    nested values.
    """
    if not len(taken) == len(way.places) == sum(map(len, inputs)):
        return False
    if pa.types.is_dictionary(taken.type):
        return not inputs or np.array_equal(_indices(taken).take(way.places), _places_in(taken.dictionary, inputs))
    plain = [chunk if chunk.type == taken.type else chunk.cast(taken.type) for chunk in inputs]
    whole = pa.concat_arrays(plain) if plain else taken
    if is_blob_or_text(taken.type):  # to take strings back is cheaper than to hash them
        return bool(taken.take(pa.array(way.places)).equals(whole))
    if whole.null_count != taken.null_count:
        return False
    if whole.null_count and not np.array_equal(_null_mask(taken).take(way.places), _null_mask(whole)):
        return False
    return np.array_equal(_cells(taken).take(way.places, axis=0), _cells(whole))


def _places_in(dictionary: pa.Array, columns: Sequence[pa.DictionaryArray]) -> Words:
    """The place in `dictionary` of each value of one column after the other; -1 for null, -2 for what is not there."""
    distinct: dict[tuple[int, int, int], tuple[pa.Array, int]] = {}
    firsts, start = [], 0
    for column in columns:
        own = column.dictionary
        # known by its address: the chunks of a row group share a dictionary
        key = (_address(own), own.offset, len(own))
        if key not in distinct:
            distinct[key] = own, start
            start += len(own)
        firsts.append(distinct[key][1])
    stacked = pa.concat_arrays([own for own, _ in distinct.values()]) if distinct else dictionary.slice(0, 0)
    lookup = pc.index_in(stacked, value_set=dictionary).fill_null(_ABSENT).to_numpy()
    # of all columns at once: there are many of them, and each has few rows
    indices = pa.concat_arrays([column.indices for column in columns])
    shifts = np.repeat(firsts, [len(column) for column in columns])
    if not indices.null_count:
        return np.asarray(lookup.take(shifts + indices.to_numpy()))
    places = np.full(len(indices), _NULL, np.int32)
    present = np.flatnonzero(~_null_mask(indices))
    places[present] = lookup.take((shifts + indices.fill_null(0).to_numpy())[present])
    return places


def _address(array: pa.Array) -> int:
    buffer = array.buffers()[1]
    return 0 if buffer is None else int(buffer.address)


def _cells(column: pa.Array) -> Words:
    """A word or a row of words per cell, zero for null; of what has no fixed width a hash."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if is_vector(column.type):
        words: Words = matrix(column).view(np.uint32)
        return np.where(_null_mask(column)[:, None], np.uint32(0), words) if column.null_count else words
    width = _bit_width(column.type)
    if width is None:
        return fingerprint.cells(column)
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column), np.uint8)
    narrow = width <= _WORD_BITS
    flat = np.frombuffer(buffer, np.dtype(f"u{width // 8}")) if narrow else np.frombuffer(buffer, np.uint64)
    cells: Words = flat if narrow else flat.reshape(-1, width // _WORD_BITS)
    cells = cells[column.offset : column.offset + len(column)]
    if column.null_count:
        cells = cells.copy()
        cells[_null_mask(column)] = 0
    return cells


def _bit_width(type_: pa.DataType) -> int | None:
    """The bits of a value of whole bytes; None for a type of other values."""
    kinds = pa.types
    if kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_temporal(type_) or kinds.is_decimal(type_):
        return int(type_.bit_width)
    return None


def _indices(column: pa.DictionaryArray) -> Words:
    """The place of each value in the dictionary, -1 for null."""
    indices = column.indices.fill_null(_NULL) if column.indices.null_count else column.indices
    return np.asarray(indices.to_numpy())


def _null_mask(column: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return mask


def _without_unused(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values under a dictionary of no others: a Parquet writer stores all that it is given."""
    used = used_values(column)
    if used.all():
        return column
    renumbered = pa.array(np.cumsum(used, dtype=np.int32) - np.int32(1))
    return pa.DictionaryArray.from_arrays(pc.take(renumbered, column.indices), column.dictionary.filter(pa.array(used)))
