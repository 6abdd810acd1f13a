"""Bitmap segments: for every value of a column, the set of row numbers of one split that hold it.

Files per indexed column `i`: `values-<i>.arrow`, an Arrow file with the distinct values and, per value, where its
bitmap lies; `bitmaps-<i>.bin`, the bitmaps one after the other in the portable Roaring format. Nulls are in no bitmap.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.errors import Corrupt, InvalidInput
from storage_core.foreign_text import quoted, shortened
from storage_core.headroom import require_headroom
from storage_core.index.native_errors import REBUILD
from storage_core.settings.index import IndexDefinition
from storage_core.system_errors import of_the_system, out_of_memory, unavailable

_COPIES = 8  # of a text, of which each character may take four bytes, and its Arrow forms
_MAGIC_BYTES = 8  # of an Arrow file, with the padding behind it


@dataclass(frozen=True, slots=True)
class Condition:
    """Rows whose column holds one of `values`, for every column named; no value is null. Make it with `parse`."""

    values: Mapping[str, pa.Array]


def validate(definition: IndexDefinition, schema: pa.Schema) -> None:
    """Return only when the index can be built over tables of `schema`; raises `InvalidInput`.

    Columns are booleans, integers, decimals, strings, dates or timestamps. There are no options.
    """
    for column in definition.columns:
        kind = schema.field(column).type
        if not _indexable(kind):
            raise InvalidInput(
                f"index {definition.name!r}: a bitmap needs a boolean, integer, decimal, string, date or timestamp "
                f"column, {column!r} is {kind}"
            )
    if definition.options:
        unknown = min(definition.options)
        raise InvalidInput(f"index {definition.name!r}: unknown option {unknown!r}; bitmap indexes take none")


def build(rows: pa.Table, definition: IndexDefinition) -> dict[str, bytes]:
    """Return the files of a segment over `rows`, the rows of one split in order, as name ▸ content.

    The same rows give the same bytes. One Python step per distinct value, none per row.
    """
    files: dict[str, bytes] = {}
    for position, column in enumerate(definition.columns):
        values, bitmaps = _bitmaps(rows.column(column))
        encoded = [bitmap.serialize() for bitmap in bitmaps]
        lengths = np.array([len(each) for each in encoded], dtype=np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[:-1] if len(lengths) else lengths
        table = pa.table({"value": values, "offset": pa.array(offsets), "length": pa.array(lengths)})
        files[_values_name(position)] = _arrow_file(table)
        files[_bitmaps_name(position)] = b"".join(encoded)
    return files


def check(files: Mapping[str, bytes | memoryview], definition: IndexDefinition, *, where: str) -> None:
    """Return only when these can be the files of a segment; raises `Corrupt` that names `where`.

    The bitmaps themselves are decoded, and judged, where they are used.
    """
    positions = range(len(definition.columns))
    names = {name(position) for position in positions for name in (_values_name, _bitmaps_name)}
    if names != files.keys():
        raise _damaged(where, f"its files are {sorted(files)}, expected {sorted(names)}")
    for position in positions:
        with _damage(where):
            table = _values(pa.BufferReader(files[_values_name(position)]))
            offsets, lengths = (table.column(name).to_numpy() for name in ("offset", "length"))
            ends = np.cumsum(lengths, dtype=np.int64)
            end = int(ends[-1]) if len(ends) else 0
            if (lengths < 0).any() or (offsets != ends - lengths).any() or end != len(files[_bitmaps_name(position)]):
                raise ValueError(f"the bitmaps of {_values_name(position)} do not lie one after the other")


def matching_rows(directory: Path, definition: IndexDefinition, condition: Condition) -> list[int]:
    """Return, ascending, the row numbers of an unpacked segment that meet the condition. Raises `Corrupt`."""
    found: BitMap | None = None
    for column, wanted in condition.values.items():
        position = definition.columns.index(column)
        rows = _union(directory, position, wanted)
        found = rows if found is None else found & rows
    return [] if found is None else list(found)


def parse(query: object, definition: IndexDefinition, schema: pa.Schema) -> Condition:
    """Return the condition that a query asks for: a value, several of them (any matches), or columns with values (all).

    Text is `404`, `404,500`, a JSON list, or a JSON object of columns. Values are read by the type of the column;
    timestamps as ISO 8601. An index over several columns takes an object only. Raises `InvalidInput` when a value does
    not read, is null, or a column is not in the index.
    """
    decoded = _decode_text(query, definition) if isinstance(query, str) else query
    if not isinstance(decoded, Mapping):
        if len(definition.columns) > 1:
            example = json.dumps({name: ["…"] for name in definition.columns}, ensure_ascii=False)
            raise _refused(definition, f"it covers several columns; ask for some of them as {example}")
        decoded = {definition.columns[0]: decoded}
    if not decoded:
        raise _refused(definition, "the query names no column")
    return Condition(values={name: _value_array(name, each, definition, schema) for name, each in decoded.items()})


def _indexable(kind: pa.DataType) -> bool:
    # Floats are left out on purpose: equality is rarely meant, and NaN and -0.0 would need rules of their own.
    checks = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_decimal, pa.types.is_string)
    return any(check(kind) for check in (*checks, pa.types.is_date, pa.types.is_timestamp))


def _bitmaps(column: pa.ChunkedArray) -> tuple[pa.Array, list[BitMap]]:
    """Return the distinct values in order of first appearance and the rows of each."""
    values = column.unique().drop_null()
    codes = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy()
    by_code = np.argsort(codes, kind="stable").astype(np.uint32)
    bounds = np.searchsorted(codes[by_code], np.arange(len(values) + 1))
    return values, [BitMap(by_code[start:end]) for start, end in pairwise(bounds)]


def _union(directory: Path, position: int, wanted: pa.Array) -> BitMap:
    found = BitMap()
    with _damage(directory.name):
        with pa.memory_map(str(directory / _values_name(position))) as source:
            table = _values(source)
            places = pc.index_in(wanted, value_set=table.column("value")).drop_null()
            ranges = table.select(["offset", "length"]).take(places)
            spans = list(zip(ranges.column("offset").to_pylist(), ranges.column("length").to_pylist(), strict=True))
        with (directory / _bitmaps_name(position)).open("rb") as file:
            for offset, length in spans:
                file.seek(offset)
                found |= BitMap.deserialize(file.read(length))
    return found


def _values(source: pa.NativeFile) -> pa.Table:
    """Read the distinct values and where their bitmaps lie. Raises what `_damage` catches."""
    source.seek(_MAGIC_BYTES)  # an Arrow file is a stream between two magic numbers, then a footer
    first, *batches = pa.ipc.MessageReader.open_stream(source)
    if first.type != "schema" or any(each.type != "record batch" or _compressed(each) for each in batches):
        raise ValueError("it holds other messages than plain record batches")
    source.seek(_MAGIC_BYTES)
    table = pa.ipc.open_stream(source).read_all()
    if table.schema.names != ["value", "offset", "length"] or not _indexable(table.schema.field("value").type):
        raise ValueError(f"the columns are {table.schema.names}")
    if {table.schema.field(name).type for name in ("offset", "length")} != {pa.int64()}:
        raise ValueError("offsets and lengths are not whole numbers")
    table.validate(full=True)
    if any(column.null_count for column in table.columns):
        raise ValueError("a value, offset or length is null")
    return table


def _compressed(message: pa.ipc.Message) -> bool:
    """Whether a record batch says that it is compressed: a few bytes could then fill the memory; none is written so.

    `compression` is the field after `length`, `nodes` and `buffers` of the flatbuffer that is the message's `header`,
    its field after `version` and `header_type`. A table has a list of where its fields lie, cut off after the last.
    """
    data = message.metadata.to_pybytes()
    (root,) = struct.unpack_from("<I", data)
    place = root + _field(data, root, 2)
    (offset,) = struct.unpack_from("<I", data, place)
    return _field(data, place + offset, 3) != 0


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table lies, counted from the table; 0 when it has none."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, fields)
    place = 4 + 2 * number
    return int(struct.unpack_from("<H", data, fields + place)[0]) if place < size else 0


@contextmanager
def _damage(where: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, struct.error) as error:
        # Memory, threads and the disk are the machine's; Arrow raises an OSError without a number for damaged bytes.
        if of_the_system(error):
            raise
        raise _damaged(where, f"{type(error).__name__}: {error}") from error


def _damaged(where: str, what: str) -> Corrupt:
    found = f"{where}: not the files of a bitmap segment: {shortened(what)}"
    return Corrupt(found, advice=REBUILD, key=where)


def _arrow_file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def _decode_text(text: str, definition: IndexDefinition) -> object:
    stripped = text.strip()
    if stripped[:1] not in ("[", "{"):
        return [each.strip() for each in text.split(",")]
    try:
        return json.loads(stripped, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        reason = f"{quoted(text, 300)} is not JSON ({error}); write a value that starts with [ or {{ as a JSON list"
        raise _refused(definition, reason) from error


def _value_array(column: str, given: object, definition: IndexDefinition, schema: pa.Schema) -> pa.Array:
    if column not in definition.columns:
        raise _refused(definition, f"column {column!r} is not one of {', '.join(definition.columns)}")
    kind = schema.field(column).type
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
    if not listed:
        raise _refused(definition, f"no value to look for in {column!r}")
    size = sum(len(each) for each in listed if isinstance(each, str))
    with require_headroom(f"values to look for in {column!r}", size=_COPIES * size):  # for which Arrow ends the process
        return pa.array([_scalar(column, each, definition, kind).as_py() for each in listed], type=kind)


def _scalar(column: str, value: object, definition: IndexDefinition, kind: pa.DataType) -> pa.Scalar:
    """Every value goes through its text: Arrow parses text strictly, but cuts 404.5 down to an integer silently."""
    if value is None:
        raise _refused(definition, f"null is not a value; a bitmap holds no nulls of {column!r}, filter with IS NULL")
    if pa.types.is_string(kind) and not isinstance(value, str):
        raise _refused(definition, f"{column!r} holds strings, found {quoted(value, 300)}; put it in quotes")
    try:
        return pa.scalar(_text(value), pa.string()).cast(kind)
    except (pa.ArrowException, MemoryError, ValueError) as error:  # the last for half a character, or many digits
        if out_of_memory(error):
            raise unavailable(f"a value of {column!r}", error) from error
        reason = f"{quoted(value, 300)} does not read as {kind} for {column!r}: {shortened(str(error))}"
        raise _refused(definition, reason) from error


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)


def _refused(definition: IndexDefinition, reason: str) -> InvalidInput:
    return InvalidInput(f"bitmap query on index {definition.name!r}: {reason}", index=definition.name)


def _values_name(position: int) -> str:
    return f"values-{position}.arrow"


def _bitmaps_name(position: int) -> str:
    return f"bitmaps-{position}.bin"
