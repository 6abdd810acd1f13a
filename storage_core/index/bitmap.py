"""A bitmap segment of one split maps each value of a column to the numbers of the rows with this value.

Column `i` has two files. `bitmaps-<i>.bin` has the bitmaps one after the other, in the portable Roaring format.
`values-<i>.arrow` is an Arrow file with the distinct values, null last. For each value, the file contains the position
and the xxh3-64 checksum of the value's bitmap. The segment stores all bitmap files first, and the `values` files after
them, next to the directory. So one request reads the `values` files and the directory. Early releases of 0.1 wrote no
checksums and no nulls.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, InvalidInput, of_the_system
from storage_core.base.text import shortened
from storage_core.data.rows.codes import Mask, sortable
from storage_core.data.rows.columns import may_widen
from storage_core.data.rows.keys import Positions
from storage_core.data.rows.vectors import type_text
from storage_core.data.settings.index import IndexDefinition
from storage_core.index.damage import damaged

_DAYS = 10**8  # The limit for dates in conditions, in days from 1970. The microseconds of later dates would overflow.
_COLUMNS = ["value", "offset", "length"]
_MAGIC_BYTES = 8  # the magic number of an Arrow file with the padding after it


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The distinct values of a column in some rows, and for each value the position of its bitmap.

    `keys` contains the values, encoded as sort keys by `data.rows.codes`. If some rows have no value, `offsets` and
    `lengths` have one additional entry for the bitmap of these rows. `checksums` are the xxh3-64 of the bitmaps. In
    segments of early releases of 0.1, `checksums` is None and no bitmap contains the rows without a value.
    """

    type: pa.DataType
    values: pa.Array
    keys: pa.Array
    offsets: Positions
    lengths: Positions
    checksums: npt.NDArray[np.uint64] | None

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the values in bytes."""
        return int(self.values.nbytes + self.keys.nbytes + 3 * self.lengths.nbytes)


@dataclass(frozen=True, slots=True)
class ColumnBitmaps:
    """The values of a column and their bitmaps.

    `read` is a function that returns the encoded bitmaps at the given positions. The positions are in ascending order.

    The methods raise the errors of `read`. For an invalid bitmap, the methods raise `Corrupt` with `where` in the
    message.
    """

    values: ColumnValues
    where: str
    read: Callable[[Positions], Sequence[bytes | memoryview]]

    def rows(self, chosen: Mask) -> BitMap:
        """Return the rows that have one of the values chosen by the mask."""
        places = np.flatnonzero(chosen)
        encoded = self.read(places) if len(places) else []
        with damage(self.where):
            return BitMap.union(BitMap(), *(BitMap.deserialize(bytes(each)) for each in encoded))

    def widened(self, kind: pa.DataType) -> ColumnBitmaps:
        """Return the bitmaps unchanged, with the values converted to the column's current type.

        Raises `Corrupt` if the types are incompatible.
        """
        if self.values.type == kind:
            return self
        if not may_widen(self.values.type, kind):
            raise damaged(
                self.where, f"the values have the type {type_text(self.values.type)}, expected {type_text(kind)}"
            )
        with damage(self.where):
            wider = self.values.values.cast(kind)
        return replace(self, values=replace(self.values, type=kind, values=wider, keys=_keys(wider)))

    def counts(self, rows: BitMap) -> Positions:
        """Return, for each value, the number of these rows that have the value."""
        encoded = self.read(np.arange(len(self.values.values)))
        with damage(self.where):
            found = [BitMap.deserialize(bytes(each)).intersection_cardinality(rows) for each in encoded]
        return np.array(found, np.int64)

    def places(self, chosen: Mask, *, with_nulls: bool) -> Mask:
        """Return a mask of the bitmaps to read for the chosen values, and optionally for the rows without a value."""
        values = self.values
        if with_nulls and values.checksums is None:
            return np.ones(len(values.lengths), np.bool_)
        return np.append(chosen, np.full(len(values.lengths) - len(chosen), with_nulls))

    def nulls(self, count: Callable[[], int | None]) -> BitMap | None:
        """Return the rows without a value.

        If the segment has no checksums, `count` must return the number of rows. If `count` then returns None, the
        result is None.
        """
        chosen = np.zeros(len(self.values.keys), np.bool_)
        if self.values.checksums is not None:
            return self.rows(self.places(chosen, with_nulls=True))
        rows = count()
        return None if rows is None else BitMap(range(rows)) - self.rows(self.places(chosen, with_nulls=True))


def validate(definition: IndexDefinition, schema: pa.Schema) -> None:
    """Raise `InvalidInput` if the index cannot be built over tables of `schema`.

    Columns may be booleans, integers, decimals, strings, dates or timestamps. The index has no options.
    """
    for column in definition.columns:
        kind = schema.field(column).type
        if not _indexable(kind):
            raise InvalidInput(
                f"index {definition.name!r}: a bitmap needs a boolean, integer, decimal, string, date or timestamp "
                f"column, {column!r} is {type_text(kind)}. "
                "Name another column"
            )
    if definition.options:
        unknown = min(definition.options)
        raise InvalidInput(f"index {definition.name!r}: unknown option {unknown!r}. A bitmap index has no options")


def build(rows: pa.Table, definition: IndexDefinition) -> dict[str, bytes]:
    """Return the files of a segment over `rows`, as a mapping from name to content. `rows` are one split's rows in
    order.

    The same rows produce the same bytes. Python code runs once per distinct value, and never once per row.
    """
    files, values_files = dict[str, bytes](), dict[str, bytes]()
    for position, column in enumerate(definition.columns):
        values, bitmaps = _bitmaps(rows.column(column))
        encoded = [bitmap.serialize() for bitmap in bitmaps]
        lengths = np.array([len(each) for each in encoded], dtype=np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[:-1] if len(lengths) else lengths
        checksums = pa.array([xxhash.xxh3_64_intdigest(each) for each in encoded], pa.uint64())
        columns = {"value": values, "offset": pa.array(offsets), "length": pa.array(lengths), "xxh3": checksums}
        values_files[_values_name(position)] = _arrow_file(pa.table(columns))
        files[_bitmaps_name(position)] = b"".join(encoded)
    return files | values_files


def check(files: Mapping[str, bytes | memoryview], definition: IndexDefinition, *, where: str) -> None:
    """Raise `Corrupt` with `where` if the files cannot belong to a bitmap segment.

    The bitmaps are decoded and checked only when they are used.
    """
    positions = range(len(definition.columns))
    names = {name(position) for position in positions for name in (_values_name, _bitmaps_name)}
    if names != files.keys():
        raise _damaged(where, f"the segment has the files {sorted(files)}, expected {sorted(names)}")
    for position in positions:
        values = files[_values_name(position)]
        column_values(values, size=len(files[_bitmaps_name(position)]), where=where)


def column_files(definition: IndexDefinition, column: str) -> tuple[str, str]:
    """Return the names of a column's two files: the file with its values, and the file with their bitmaps."""
    position = definition.columns.index(column)
    return _values_name(position), _bitmaps_name(position)


def column_values(data: bytes | memoryview, *, size: int, where: str) -> ColumnValues:
    """Return the values of a column from their file. The bitmaps of the column have `size` bytes in total.

    Raises `Corrupt` with `where` for an invalid file.
    """
    with damage(where):
        table = value_table(pa.BufferReader(data))
        offsets, lengths = (table.column(name).to_numpy() for name in ("offset", "length"))
        ends = np.cumsum(lengths, dtype=np.int64)
        if (lengths < 0).any() or (offsets != ends - lengths).any() or (ends[-1] if len(ends) else 0) != size:
            raise ValueError("the bitmaps have gaps or overlap")
        checksums = table.column("xxh3").to_numpy() if "xxh3" in table.column_names else None
        kind = table.schema.field("value").type
        known = table.column("value").combine_chunks().drop_null()
        return ColumnValues(kind, known, _keys(known), offsets, lengths, checksums)


def bitmaps_within(values: ColumnValues, bitmaps: bytes | memoryview, *, where: str) -> ColumnBitmaps:
    """Return the bitmaps of a column from `bitmaps`, which is the content of their file."""
    offsets, lengths, data = values.offsets, values.lengths, memoryview(bitmaps)

    def read(places: Positions) -> Sequence[memoryview]:
        spans = zip(offsets[places].tolist(), lengths[places].tolist(), strict=True)
        return [data[offset : offset + length] for offset, length in spans]

    return ColumnBitmaps(values, where, read)


def unpacked_bitmaps(directory: Path, definition: IndexDefinition, column: str) -> ColumnBitmaps:
    """Return the bitmaps of a column from the files in a directory. Raises `Corrupt` for invalid files."""
    with damage(directory.name):
        values, bitmaps = ((directory / name).read_bytes() for name in column_files(definition, column))
    found = column_values(values, size=len(bitmaps), where=directory.name)
    return bitmaps_within(found, bitmaps, where=directory.name)


def _indexable(kind: pa.DataType) -> bool:
    # Floats are excluded. Conditions of equality on floats are rare, and NaN and -0.0 would need separate rules.
    checks = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_decimal, pa.types.is_string)
    return any(check(kind) for check in (*checks, pa.types.is_date, pa.types.is_timestamp))


def _bitmaps(column: pa.ChunkedArray) -> tuple[pa.Array, list[BitMap]]:
    """Return the distinct values in order of first appearance, null last, and for each value its rows."""
    values = column.unique().drop_null()
    codes = pc.fill_null(pc.index_in(column, value_set=values), len(values)).to_numpy()
    by_code = np.argsort(codes, kind="stable").astype(np.uint32)
    bounds = np.searchsorted(codes[by_code], np.arange(len(values) + 1 + (column.null_count > 0)))
    if column.null_count:
        bounds[-1] = len(codes)
        values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    return values, [BitMap(by_code[start:end]) for start, end in pairwise(bounds)]


def _keys(values: pa.Array) -> pa.Array:
    if pa.types.is_date(values.type):
        days = np.clip(values.view(pa.int32()).to_numpy(), -_DAYS, _DAYS)
        values = pa.array(days, pa.int32()).view(values.type)
    return sortable(values)


def value_table(source: pa.NativeFile) -> pa.Table:
    """Return the distinct values and the positions of their bitmaps. Raises the errors that `damage` catches."""
    source.seek(_MAGIC_BYTES)  # an Arrow file contains a magic number, a stream, a footer and a magic number
    first, *batches = pa.ipc.MessageReader.open_stream(source)
    if first.type != "schema" or any(each.type != "record batch" or _compressed(each) for each in batches):
        raise ValueError("it contains messages that are not plain record batches")
    source.seek(_MAGIC_BYTES)
    table = pa.ipc.open_stream(source).read_all()
    *names, last = table.schema.names
    if [*names, *([] if last == "xxh3" else [last])] != _COLUMNS or not _indexable(table.schema.field("value").type):
        raise ValueError(f"the columns are {table.schema.names}")
    if {table.schema.field(name).type for name in ("offset", "length")} != {pa.int64()}:
        raise ValueError("offsets and lengths are not whole numbers")
    if last == "xxh3" and table.schema.field(last).type != pa.uint64():
        raise ValueError("checksums are not whole numbers")
    table.validate(full=True)
    values, *others = table.columns
    nulls = values.null_count
    if any(each.null_count for each in others) or nulls > (last == "xxh3") or (nulls and values[-1].is_valid):
        raise ValueError("an offset, a length or a checksum is null, or a value before the last value is null")
    return table


def _compressed(message: pa.ipc.Message) -> bool:
    """Return whether a record batch is compressed.

    Tidemark never compresses a batch. A few compressed bytes of a forged file could fill the memory.

    In the flatbuffer of the message, the field `header` follows `version` and `header_type`. In `header`, the field
    `compression` follows `length`, `nodes` and `buffers`. Each table of a flatbuffer has a list of the positions of its
    fields. The list ends after the last used field.
    """
    data = message.metadata.to_pybytes()
    (root,) = struct.unpack_from("<I", data)
    place = root + _field(data, root, 2)
    (offset,) = struct.unpack_from("<I", data, place)
    return _field(data, place + offset, 3) != 0


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field, relative to its flatbuffer table, or 0 if the field is missing."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, fields)
    place = 4 + 2 * number
    return int(struct.unpack_from("<H", data, fields + place)[0]) if place < size else 0


@contextmanager
def damage(where: str) -> Iterator[None]:
    """Raise `Corrupt` with `where` if the block finds invalid values or bitmaps."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, struct.error) as error:
        # Failures of memory, threads and disk come from the machine and not from the file. For damaged bytes, Arrow
        # raises an `OSError` without an error number.
        if of_the_system(error):
            raise
        raise _damaged(where, f"{type(error).__name__}: {error}") from error


def _damaged(where: str, what: str) -> Corrupt:
    return damaged(where, f"not the files of a bitmap segment: {shortened(what)}")


def _arrow_file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def _values_name(position: int) -> str:
    return f"values-{position}.arrow"


def _bitmaps_name(position: int) -> str:
    return f"bitmaps-{position}.bin"
