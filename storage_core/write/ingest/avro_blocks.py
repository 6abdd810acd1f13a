"""Reader of landed Avro object containers, block by block.

`fastavro` decodes the records of a block without their logical types. Arrow converts the columns afterwards. Python's
time types would lose nanoseconds, and they do not support all years. `fastavro` returns text as undecoded bytes. So
text that is not UTF-8 rejects only its row, and not the whole file.

Avro types that a table does not have follow the rules of Parquet. Each column must be convertible to the type of the
table's column without loss.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa

from storage_core.base.errors import Corrupt, TidemarkError, Unsupported, damaged_file_error, raise_refused
from storage_core.base.text import quoted, shortened
from storage_core.data.formats.avro import (
    CODEC_DAMAGE,
    MAGIC,
    SYNC_BYTES,
    Measure,
    expand,
    expanded_bytes,
    least_bytes,
    measure_of,
)
from storage_core.data.rows.values import Change, with_changed_leaves
from storage_core.write.ingest.convert import Parsed, RowFormat
from storage_core.write.ingest.drift import QUARANTINE, DriftRule
from storage_core.write.ingest.landed_times import AS_WRITTEN, LandedTimes
from storage_core.write.ingest.landing import HEAD_BYTES, Expansion, require_uncompressed
from storage_core.write.ingest.parquet_files import check_columns, checked_rows, in_pieces

LARGEST_BLOCK = 32 * 2**20
"""The maximum size of an expanded block in bytes. A decoded record takes several times its encoded size in memory."""

_LARGEST_HEADER = 2**20
_LONGEST_LONG = 10
_BYTES_AT_ONCE = 2 * 2**20
_RECORDS_AT_ONCE = 65_536
_ROWS: Final = "rows"
_DAMAGE = (*CODEC_DAMAGE, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, pa.ArrowException)

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.binary(),
}
_NULLS: Final = ("null", {"type": "null"})
_TIMES: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{local}timestamp-{name}"): pa.timestamp(unit, None if local else "UTC")
        for local in ("", "local-")
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}


def avro_blocks(
    file: str,
    stream: BinaryIO,
    schema: pa.Schema,
    *,
    nonzero: Collection[str] = (),
    times: LandedTimes = AS_WRITTEN,
    drift: DriftRule = QUARANTINE,
) -> Iterator[Parsed]:
    """Yield the records of an Avro file, numbered from 1. The rules for rejecting rows are the same as for Parquet.

    Raises:
        Corrupt: the file is truncated or damaged, its columns do not convert exactly to the table's, or it expands too
            far.
        Unavailable: the system refuses the read. The file may be valid.
    """
    number = 1
    target = RowFormat(schema, nonzero=frozenset(nonzero), times=times, drift=drift)
    try:
        for batch in _batches(file, stream, partial(check_columns, target=target)):
            yield checked_rows(file, batch, number, target)
            number += batch.num_rows
    except Unsupported as error:
        raise damaged_file_error(
            "the file uses a codec of Avro that Tidemark cannot read. Use null, deflate, snappy or zstandard"
        ) from error
    except TidemarkError:
        raise
    except _DAMAGE as error:
        raise_refused(file, error)
        raise _damaged() from error


def _damaged() -> Corrupt:
    return damaged_file_error("the file is not a whole Avro file, or the file is damaged")


def _batches(file: str, stream: BinaryIO, check: Callable[[pa.Schema], None]) -> Iterator[pa.RecordBatch]:
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    head = stream.read(HEAD_BYTES)
    if not head.startswith(MAGIC):
        require_uncompressed(head, "An Avro")
        raise damaged_file_error("the file is not an Avro file")
    stream.seek(len(MAGIC))
    cursor = _Cursor(stream)
    text, codec, sync = _header(cursor)
    try:
        least = least_bytes(text, file)
    except Corrupt as error:
        raise damaged_file_error(
            "the Avro schema cannot be used. The schema is invalid, too deep, or has a type inside itself"
        ) from error
    columns = _Columns.of(json.loads(text))
    check(columns.schema)
    try:
        parsed = fastavro.parse_schema(columns.plain)
    except (SchemaParseException, UnknownType) as error:
        raise damaged_file_error(
            "the Avro schema cannot be used. The schema has a name or a type that is not valid"
        ) from error
    expansion, measure = Expansion(size), measure_of(codec, file)
    while cursor.has_more():
        records, length = cursor.long(), cursor.long()
        if records < 0 or not 0 <= length <= size:
            raise _damaged()
        block = cursor.take(length)
        if cursor.take(SYNC_BYTES) != sync:
            raise _damaged()
        _check_size(measure, block, file)
        data = expand(codec, block, file)
        if records and not 0 < records * least <= len(data):
            raise _damaged()
        for part in _decoded(fastavro.schemaless_reader, parsed, data, records):
            yield from in_pieces(columns.batch(part), expansion)


def _check_size(measure: Measure, block: bytes, file: str) -> None:
    try:
        expanded_bytes(measure, block, LARGEST_BLOCK, file)
    except Corrupt as error:
        raise damaged_file_error(
            f"a block of {len(block)} bytes is damaged, or expands to more than {LARGEST_BLOCK} bytes. Write smaller "
            "blocks"
        ) from error


def _decoded(read: Any, schema: Any, data: bytes, total: int) -> Iterator[list[Any]]:
    """Yield the records of a block in lists of a limited size."""
    source = io.BytesIO(data)
    records: list[Any] = []
    begin = 0
    for _ in range(total):
        records.append(read(source, schema, None))
        if len(records) == _RECORDS_AT_ONCE or source.tell() - begin > _BYTES_AT_ONCE:
            yield records
            records, begin = [], source.tell()
    if source.read(1):
        raise _damaged()
    if records:
        yield records


class _Cursor:
    """A position in an Avro file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._ahead = b""

    def has_more(self) -> bool:
        self._ahead = self._ahead or self._stream.read(1)
        return bool(self._ahead)

    def take(self, size: int) -> bytes:
        taken, self._ahead = self._ahead[:size], self._ahead[size:]
        data = taken + self._stream.read(size - len(taken))
        if len(data) != size:
            raise damaged_file_error("the last Avro block is truncated")
        return data

    def long(self) -> int:
        value = 0
        for index in range(_LONGEST_LONG):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise _damaged()


def _header(cursor: _Cursor) -> tuple[bytes, str, bytes]:
    """Return the schema, the codec and the sync marker."""
    found: dict[bytes, bytes] = {}
    total = 0
    while entries := cursor.long():
        if entries < 0:
            cursor.long()  # the size of the entries
        for _ in range(abs(entries)):
            entry = []
            for _ in range(2):
                length = cursor.long()
                total += length + 1
                if length < 0 or total > _LARGEST_HEADER:
                    raise damaged_file_error(f"its Avro header has more than {_LARGEST_HEADER} bytes, or is damaged")
                entry.append(cursor.take(length))
            found[entry[0]] = entry[1]
    if b"avro.schema" not in found:
        raise _damaged()
    codec = found.get(b"avro.codec", b"null").decode("ascii", "replace")
    return found[b"avro.schema"], codec, cursor.take(SYNC_BYTES)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of an Avro schema.

    - `plain`: the schema without logical types and with bytes in place of text. The plain schema has the same binary
      encoding.
    - `physical`: the Arrow type of the values that `fastavro` returns for the plain schema.
    - `changes`: the conversion of each leaf to its logical type.
    """

    plain: Any
    physical: pa.StructType
    changes: tuple[Change | None, ...]

    @staticmethod
    def of(schema: Any) -> _Columns:
        """Return the columns. Raises `Corrupt` for a type that tables do not support."""
        types = _Types()
        plain, physical = types.read(schema, "the record")
        if not pa.types.is_struct(physical):
            raise damaged_file_error("the Avro schema is not a record")
        if not physical.num_fields:
            raise damaged_file_error("the Avro record has no fields. Write records with fields")
        return _Columns(plain, physical, tuple(types.changes))

    @property
    def schema(self) -> pa.Schema:
        """The columns with their logical types."""
        return pa.schema(list(self._changed(pa.array([], self.physical)).type))

    def batch(self, records: list[Any]) -> pa.RecordBatch:
        """Return the records as columns with their logical types."""
        return pa.RecordBatch.from_struct_array(self._changed(pa.array(records, self.physical)))

    def _changed(self, rows: pa.StructArray) -> pa.StructArray:
        return with_changed_leaves(rows, iter(self.changes))


class _Types:
    """Conversion of an Avro schema to its plain form and Arrow type.

    Each named type is stored, so that later references find the type by its name.
    """

    def __init__(self) -> None:
        self.changes: list[Change | None] = []
        self._named: dict[str, Any] = {}
        self._names = count()

    def read(self, schema: Any, path: str) -> tuple[Any, pa.DataType]:
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return self._leaf(schema, {}, path)
            return self.read(self._named[schema.rsplit(".", 1)[-1]], path)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.read(kind, path)
        if "name" in schema and kind in ("record", "error", "enum", "fixed"):
            self._named[schema["name"].rsplit(".", 1)[-1]] = schema
        match kind:
            case "record" | "error":
                return self._record(schema, path)
            case "array":
                plain, item = self.read(schema["items"], f"{path}.element")
                return {"type": "array", "items": plain}, pa.list_(pa.field("element", item))
            case "map":
                self.changes.append(None)  # the keys
                plain, item = self.read(schema["values"], f"{path}.value")
                return {"type": "map", "values": plain}, pa.map_(pa.string(), item)
            case "enum":
                self.changes.append(None)
                return {"type": "enum", "name": self._name(), "symbols": schema["symbols"]}, pa.string()
            case _:
                return self._leaf(kind, schema, path)

    def _name(self) -> str:
        """Return a new name for a type.

        Names are not reused, because a plain schema has no references to named types.
        """
        return f"Type{next(self._names)}"

    def _union(self, branches: list[Any], path: str) -> tuple[Any, pa.DataType]:
        others = [each for each in branches if each not in _NULLS]
        if len(others) > 1:
            raise damaged_file_error(
                f"{path} is a union of {len(others)} types, which tables do not support. Write one type"
            )
        if not others:
            self.changes.append(None)
            return ["null"], pa.null()
        plain, type_ = self.read(others[0], path)
        return ["null" if each in _NULLS else plain for each in branches], type_

    def _record(self, schema: Any, path: str) -> tuple[Any, pa.DataType]:
        plain, fields = [], []
        name = self._name()
        for each in schema["fields"]:
            shown = f"column {quoted(each['name'])}" if path == "the record" else f"{path}.{each['name']}"
            encoded, type_ = self.read(each["type"], shown)
            plain.append({"name": each["name"], "type": encoded})
            fields.append(pa.field(each["name"], type_))
        return {"type": "record", "name": name, "fields": plain}, pa.struct(fields)

    def _leaf(self, kind: str, schema: Mapping[str, Any], path: str) -> tuple[Any, pa.DataType]:
        logical = schema.get("logicalType")
        plain: Any = "bytes" if kind == "string" else kind
        physical = _PLAIN.get(kind)
        if kind == "fixed":
            plain = {"type": "fixed", "name": self._name(), "size": schema["size"]}
            physical = pa.binary(schema["size"])
        if physical is None:
            raise KeyError(kind)
        if logical == "duration":
            raise damaged_file_error(
                f"{path} has the logical type duration, which tables do not support. Write numbers or text"
            )
        self.changes.append(_change(kind, schema, path))
        return plain, physical


def _change(kind: str, schema: Mapping[str, Any], path: str) -> Change | None:
    logical = schema.get("logicalType")
    if kind == "string":
        return lambda values: values.view(pa.string())
    if timed := _TIMES.get((kind, str(logical))):
        return lambda values: values.view(timed)
    if kind == "fixed" and logical == "uuid" and schema["size"] == 16:
        return lambda values: pa.ExtensionArray.from_storage(pa.uuid(), values)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema["precision"], schema.get("scale", 0)
        if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 38):
            raise damaged_file_error(
                f"{path} is a decimal of {shortened(str(precision), 20)} digits. The limit is 38 digits"
            )
        return lambda values: _decimals(values, pa.decimal128(precision, scale))
    return None


def _decimals(values: pa.Array, type_: pa.Decimal128Type) -> pa.Array:
    """Return the decimals whose numbers are stored as big-endian bytes.

    A number may have more digits than the decimal type allows.
    """
    numbers = [int.from_bytes(each or b"", "big", signed=True) for each in values.to_pylist()]
    if any(not -(2**127) <= each < 2**127 for each in numbers):
        raise damaged_file_error("the file has a decimal of more than 38 digits, which tables do not support")
    data = b"".join(each.to_bytes(16, "little", signed=True) for each in numbers)
    nulls = pa.array(np.asarray(values.is_valid(), np.bool_)).buffers()[1]
    return pa.Array.from_buffers(type_, len(values), [nulls, pa.py_buffer(data)])
