"""Verification of split files against the log: whole files, footers, column chunks and pages of vectors.

The log contains the checksum of a split's footer. The footer contains the checksums of the column chunks, and describes
the pages of vectors. So a reader can verify any part of a split.

A search ranks several tens of rows by their vectors. These vectors are usually in different pages. Therefore the footer
records the rows, the bytes and the checksum of every page of vectors. If a row group contains a null vector, the number
of rows in its pages cannot be computed. The footer then contains no pages for this row group.

The module also packs the metadata of a file into one compressed entry.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from storage_core.base.errors import (
    SEE_CORRUPT,
    Corrupt,
    InvalidInput,
    NotFound,
    SnapshotExpired,
    Unsupported,
    raise_refused,
    typed,
)
from storage_core.data.formats import parquet_footer
from storage_core.data.rows.columns import stored_name
from storage_core.data.rows.keys import Positions, spans_of
from storage_core.data.rows.schema import from_schema_string, to_schema_string
from storage_core.data.rows.vectors import VECTOR, Floats, is_vector, listed
from storage_core.log.actions import Add
from storage_core.log.codec import schema_hash
from storage_core.split.metadata import CHECKSUM, FORMAT, FORMAT_KEY, PREFIX
from storage_core.store.contract import ObjectStore
from storage_core.store.pieces import Piece


def expired_split(add: Add) -> SnapshotExpired:
    """Return the error for a split if its file no longer exists."""
    return SnapshotExpired(
        f"{add.path}: the log contains this split, but the store does not. Open a newer version. If the newer "
        f"version also contains the split, the split is lost. {SEE_CORRUPT}",
        key=add.path,
    )


@contextmanager
def corrupt_on_failure(add: Add) -> Iterator[None]:
    """Raise `Corrupt` for any error of Arrow while it reads a split, and `SnapshotExpired` if the file is missing."""
    try:
        yield
    except NotFound as error:
        if "source" in error.context:  # The file is in the source of a shallow clone.
            raise SnapshotExpired(error.found, key=add.path) from error
        raise expired_split(add) from error
    except (pa.ArrowException, MemoryError, OSError, UnicodeDecodeError) as error:
        raise_refused(add.path, error)
        raise Corrupt(f"{add.path}: not a readable Parquet file: {error}", key=add.path) from error


def whole_file(store: ObjectStore, add: Add) -> bytes:
    """Return the bytes of a split. One GET. Raises `Corrupt` if the size or the xxh3-64 differs from the log."""
    data = store.get(add.path).data
    if len(data) != add.size:
        raise Corrupt(f"{add.path}: expected {add.size} bytes, found {len(data)}", key=add.path)
    found = xxhash.xxh3_64_hexdigest(data)
    if add.xxh3 is not None and found != add.xxh3:
        raise Corrupt(f"{add.path}: expected xxh3-64 {add.xxh3}, found {found}", key=add.path)
    return data


def require_known_format(add: Add, metadata: Mapping[str, str]) -> None:
    """Raise `Unsupported` if the format of the split is newer than this release."""
    written = metadata.get(PREFIX + "format", FORMAT)
    if written != FORMAT:
        raise Unsupported(
            f"{add.path}: split format {written!r}, this release reads {FORMAT}. Upgrade Tidemark", key=add.path
        )


def columns_of(add: Add, columns: pa.Schema, metadata: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a file. If a column is a vector in the recorded table schema, it gets the vector type."""
    columns = columns.remove_metadata()
    text = metadata.get(PREFIX + "table_schema", "")
    if VECTOR not in text:
        return columns
    try:
        recorded = from_schema_string(text)
    except InvalidInput as error:
        raise Corrupt(f"{add.path}: the schema that it records cannot be read: {error}", key=add.path) from error
    types = {stored_name(field): field.type for field in recorded if is_vector(field.type)}
    return pa.schema(
        [
            field.with_type(types[field.name]) if field.type == listed(types.get(field.name, pa.null())) else field
            for field in columns
        ]
    )


def require_itself(add: Add, metadata: Mapping[str, str], schema: pa.Schema, footer: pq.FileMetaData) -> None:
    """Raise `Corrupt` if columns, path or rows in the footer contradict the log or each other.

    If the log has no checksum of the footer, redundant values in the footer must agree. Otherwise, the reader would not
    find a column with a damaged name.
    """
    recorded = metadata.get(PREFIX + "schema_hash")
    if recorded is not None and recorded != _schema_hash(add, schema):
        raise Corrupt(f"{add.path}: the columns {schema.names} are not those that were written", key=add.path)
    claimed = metadata.get(PREFIX + "path")
    if claimed is not None and claimed != add.path:
        raise Corrupt(f"{add.path}: the object is a copy of {claimed}", key=add.path)
    rows = sum(footer.row_group(index).num_rows for index in range(footer.num_row_groups))
    expected = footer.num_rows if add.numRecords is None else add.numRecords
    if not rows == footer.num_rows == expected:
        raise Corrupt(f"{add.path}: expected {expected} rows, the file has {rows}", key=add.path)


def _schema_hash(add: Add, schema: pa.Schema) -> str:
    try:
        return schema_hash(to_schema_string(schema))
    except InvalidInput as error:
        raise Corrupt(f"{add.path}: its columns are not valid for a table: {error}", key=add.path) from error


# The key-value metadata of a split in one compressed entry. Therefore a small split has little overhead
# (docs/architecture/compaction.md).
#
# Most words of the metadata are the same in every file. These words are in a compression dictionary. The dictionary is
# part of the format and never changes. A format with another dictionary would need another name for the entry.


PACKED: Final = PREFIX + "packed"
PACKED_FORMAT: Final = "2"
"""The value of the metadata entry `format`, if the file stores its metadata in packed form.

Releases that cannot unpack the metadata refuse the file.
"""

_MOST_BYTES: Final = 64 * 2**20
_WORDS: Final = (
    b'tidemark.index.{"columns":["kind":"fulltext","options":{}tidemark.lateDatatidemark.primaryKey'
    b'{"format":"ndjson","null_values":[],"pattern":null,"suffix":null,"time_format":null,"uri":"'
    b'"tidemark.encodings":"{\\"DICTIONARY\\",\\"DELTA_BINARY_PACKED\\",'
    b'\\"PLAIN\\""tidemark.replaces":"{\\"splits/null/'
    b'"tidemark.chunk_checksums":"","tidemark.column_regexes":"{\\"^$\\"}","tidemark.configuration":"{\\"tidemark.'
    b'checkpointInterval\\":\\"tidemark.landing\\":\\"tidemark.sortSchema\\":\\"timestamp/V2\\",'
    b'\\"tidemark.splitMetadata'
    b'\\":\\"packed\\",\\"tidemark.timeColumn\\":\\"timestamp\\",\\"tidemark.windowSeconds\\":\\"900\\"}",'
    b'"tidemark.format":"1",'
    b'"tidemark.max_row_key":"[\\"","tidemark.max_values":"{\\"","tidemark.min_row_key":"[\\"",'
    b'"tidemark.min_values":"{\\""'
    b'T00:00:00.000000Z\\"}","tidemark.null_counts":"{\\"\\":0,\\"\\":1,\\"}","tidemark.nulls":"last",'
    b'"tidemark.num_merge_ops":'
    b'"0","tidemark.num_records":"1","tidemark.operation":"compact","tidemark.operation":"append",'
    b'"tidemark.operation_id":'
    b'"tidemark.path":"splits/all/.parquet","tidemark.planned_version":"1","tidemark.schema_hash":"","'
    + CHECKSUM.encode()
    + b'":"",'
    b'"tidemark.sort_schema":"timestamp/V2","tidemark.table_id":"",'
    b'"tidemark.table_schema":"{\\"fields\\":[{\\"metadata\\":{},'
    b'\\"name\\":\\"\\",\\"nullable\\":true,\\"type\\":\\"double\\"},{\\"metadata\\":{},\\"name\\":\\"\\",'
    b'\\"nullable\\":true,\\"type\\":'
    b'\\"long\\"},{\\"metadata\\":{},\\"name\\":\\"\\",\\"nullable\\":false,\\"type\\":\\"timestamp\\"},'
    b'{\\"metadata\\":{},\\"name\\":'
    b'\\"\\",\\"nullable\\":true,\\"type\\":\\"string\\"}],\\"type\\":\\"struct\\"}","tidemark.window_seconds":"3600",'
    b'"tidemark.window_start":"'
)


def packed(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata as two entries. `entries_of` unpacks these entries."""
    body = json.dumps(dict(metadata), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_DEFAULT_STRATEGY, _WORDS)
    data = compressor.compress(body) + compressor.flush()
    return {FORMAT_KEY: PACKED_FORMAT, PACKED: base64.b85encode(data).decode()}


def entries_of(footer: pq.FileMetaData, where: str) -> dict[str, str]:
    """Return the key-value metadata of a file, unpacked if necessary.

    Raises `Corrupt` with the text `where` in the message.

    Raises `UnicodeDecodeError` for values that are not text.
    """
    found = {key.decode(): value.decode() for key, value in (footer.metadata or {}).items()}
    if PACKED not in found or found.get(FORMAT_KEY) != PACKED_FORMAT:
        return found
    others = {key: value for key, value in found.items() if key not in (PACKED, FORMAT_KEY)}
    try:
        reader = zlib.decompressobj(-zlib.MAX_WBITS, _WORDS)
        body = reader.decompress(base64.b85decode(found[PACKED]), _MOST_BYTES)
        entries = json.loads(body) if reader.eof else None
    except (ValueError, zlib.error, RecursionError) as error:
        raise Corrupt(f"{where}: the metadata of the file cannot be unpacked: {error}", key=where) from error
    if not isinstance(entries, dict) or not all(isinstance(each, str) for each in entries.values()):
        raise Corrupt(f"{where}: the metadata of the file is not a mapping of texts", key=where)
    return others | entries


# The checksums of a split's column chunks are in the metadata of its footer. The log contains the footer's checksum.
#
# Therefore a reader of some part of a split verifies only this part. The footer is verified against the log, and each
# column chunk against the footer (decision 0017). The checksums of Parquet pages are not sufficient, because they do
# not cover the page headers.


CHECKSUMS_KEY: Final = PREFIX + "chunk_checksums"

_CHECKSUM: Final = np.dtype("<u8")


def checksums_entry(data: pa.Buffer, footer: pq.FileMetaData) -> dict[str, str]:
    """Return the metadata for `recorded_checksums`. The column chunks are in `data`, at the positions in `footer`."""
    view = memoryview(data)
    sums = [xxhash.xxh3_64_intdigest(view[start:end]) for start, end in places(footer).reshape(-1, 2).tolist()]
    return {CHECKSUMS_KEY: base64.b64encode(np.array(sums, _CHECKSUM).tobytes()).decode()}


def recorded_checksums(
    metadata: Mapping[str, str], footer: pq.FileMetaData, path: str
) -> npt.NDArray[np.uint64] | None:
    """Return the xxh3-64 of each column chunk by row group and leaf column.

    Return None if the file contains no checksums.

    Raises `Corrupt` with the name `path` if the numbers of checksums and of chunks in the footer differ.
    """
    text = metadata.get(CHECKSUMS_KEY)
    if text is None:
        return None
    shape = (footer.num_row_groups, footer.num_columns)
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), _CHECKSUM).reshape(shape)
    except ValueError as error:
        raise Corrupt(f"{path}: no checksums of {shape[0]} × {shape[1]} column chunks: {error}", key=path) from error


def places(footer: pq.FileMetaData, groups: Sequence[int] | None = None) -> npt.NDArray[np.int64]:
    """Return the start and end of each column chunk, by row group and leaf column. The default is all row groups."""
    chosen = range(footer.num_row_groups) if groups is None else groups
    metadata = [footer.row_group(group) for group in chosen]
    found = [place(group.column(index)) for group in metadata for index in range(footer.num_columns)]
    return np.array(found, np.int64).reshape(len(chosen), footer.num_columns, 2)


def place(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the start and end of a column chunk in the file.

    If a chunk has no dictionary, some writers record 0 as the position of the dictionary.
    """
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    return start, start + chunk.total_compressed_size


VECTOR_PAGES_KEY: Final = PREFIX + "vector_pages"

_PAGE: Final = np.dtype([("rows", "<u4"), ("bytes", "<u4"), ("xxh3", "<u8")])
# The numbers of fields in `PageHeader` of parquet.thrift, and in the structs of a data page.
_SIZE, _STORED_SIZE, _DATA_PAGE, _NUM_VALUES, _ENCODING = 2, 3, 5, 1, 2
_PLAIN: Final = 0
_FEW_VECTORS: Final = 256  # Up to this number of vectors, separate reads are faster than a memory mapping of the file.
_LEVELS = struct.Struct("<I")
_CODECS: Final = {"ZSTD": "zstd", "UNCOMPRESSED": None}


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """The pages of one column chunk.

    Attributes:
        rows: The first row of each page, then the total number of rows.
        starts: The start of each page in the file.
        ends: The end of each page in the file.
        checksums: The xxh3-64 of each page.
    """

    rows: Positions
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    checksums: Sequence[int]

    def of(self, rows: Positions) -> Positions:
        """Return the number of the page that contains each of these rows."""
        return np.searchsorted(self.rows, rows, side="right") - 1

    def piece(self, number: int) -> Piece:
        """Return the start, the end and the checksum of a page."""
        return Piece(int(self.starts[number]), int(self.ends[number]), f"{self.checksums[number]:016x}")


def leaves(footer: pq.FileMetaData, schema: pa.Schema) -> dict[str, int]:
    """Return, for each vector column with a unique leaf path, the index of its leaf column."""
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    listed = {each.name: f"{each.name}.list.element" for each in schema if is_vector(each.type)}
    return {name: paths.index(path) for name, path in listed.items() if paths.count(path) == 1}


def vector_pages_entry(data: pa.Buffer, footer: pq.FileMetaData, schema: pa.Schema) -> dict[str, str]:
    """Return the metadata for `recorded_vector_pages`.

    The result is empty for a file without vectors. The function reads the header of each page.
    """
    view, found = memoryview(data).cast("B"), dict[str, list[str | None]]()
    for name, leaf in leaves(footer, schema).items():
        size = schema.field(name).type.list_size
        found[str(leaf)] = [_encoded(view, footer.row_group(each), leaf, size) for each in range(footer.num_row_groups)]
    return {VECTOR_PAGES_KEY: json.dumps(found, separators=(",", ":"))} if found else {}


def recorded_vector_pages(
    metadata: Mapping[str, str], footer: pq.FileMetaData, path: str
) -> Mapping[tuple[int, int], Pages]:
    """Return the recorded pages by leaf column and row group. Raises `Corrupt` with the text `path` in the message."""
    found = {}
    try:
        for leaf, groups in json.loads(metadata.get(VECTOR_PAGES_KEY, "{}")).items():
            for group, text in enumerate(groups):
                if text is not None:
                    chunk, rows = footer.row_group(group).column(int(leaf)), footer.row_group(group).num_rows
                    found[int(leaf), group] = _decoded(text, place(chunk), rows)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Corrupt(f"{path}: the records of its vector pages cannot be read: {error}", key=path) from error
    return found


def numbers(data: memoryview, position: int, codec: str) -> Floats | None:
    """Return the numbers in the page at this position, or None if another writer wrote the page."""
    header, body = parquet_footer.struct(data, position)
    page = header.get(_DATA_PAGE)
    if page is None or page[_ENCODING] != _PLAIN or codec not in _CODECS:
        return None
    whole, name = data[body : body + header[_STORED_SIZE]], _CODECS[codec]
    if name is not None:
        whole = memoryview(pa.decompress(whole, decompressed_size=header[_SIZE], codec=name))
    at = 0
    for _ in ("repetition", "definition"):
        at += _LEVELS.size + _LEVELS.unpack_from(whole, at)[0]
    return np.frombuffer(whole[at:], "<f4")


def of_file(pages: Mapping[tuple[int, int], Pages], footer: pq.FileMetaData, leaf: int) -> Pages | None:
    """Return the pages of a leaf column in all row groups as a single sequence.

    Return None if a row group has no recorded pages, or if the column is compressed. Numbers in uncompressed pages can
    be read directly from the file.
    """
    groups = range(footer.num_row_groups)
    if not all(
        (leaf, each) in pages and footer.row_group(each).column(leaf).compression == "UNCOMPRESSED" for each in groups
    ):
        return None
    own = [pages[leaf, each] for each in groups]
    firsts = np.cumsum([0, *(int(each.rows[-1]) for each in own)])
    rows = [first + each.rows[:-1] for first, each in zip(firsts, own, strict=False)]
    return Pages(
        np.concatenate([*rows, firsts[-1:]]),
        np.concatenate([np.zeros(0, np.int64), *(each.starts for each in own)]),
        np.concatenate([np.zeros(0, np.int64), *(each.ends for each in own)]),
        [checksum for each in own for checksum in each.checksums],
    )


def in_place(
    path: Path, key: str, pages: Pages, rows: Positions, *, size: int, mapped: Callable[[], memoryview]
) -> Floats:
    """Return the vectors at these rows of a file. The vectors are read directly from uncompressed pages.

    The file and the recorded pages must already be verified. The numbers are at the end of each page. If only a few
    vectors are needed, each vector is read separately. If many vectors are needed, they are read together from the file
    in the memory mapping `mapped`. If the file became shorter, raises `Corrupt` with `key`.
    """
    own, width = pages.of(rows), 4 * size
    starts = pages.ends[own] - (pages.rows[own + 1] - rows) * width
    if len(starts) > _FEW_VECTORS:
        return spans_of(np.frombuffer(mapped(), np.uint8), starts, width).view("<f4")
    with typed(key), path.open("rb", buffering=0) as file:
        read = b"".join([os.pread(file.fileno(), width, start) for start in starts.tolist()])
    if len(read) != width * len(rows):
        raise Corrupt(f"{key}: it has become shorter while it was read", key=key)
    return np.frombuffer(read, "<f4").reshape(len(rows), size)


def _encoded(view: memoryview, group: pq.RowGroupMetaData, leaf: int, size: int) -> str | None:
    chunk = group.column(leaf)
    if chunk.num_values != group.num_rows * size or chunk.compression not in _CODECS:
        return None  # A null value is also counted as one value.
    (at, end), found = place(chunk), list[tuple[int, int, int]]()
    while at < end:
        header, body = parquet_footer.struct(view, at)
        page, after = header.get(_DATA_PAGE), body + header[_STORED_SIZE]
        if page is None or page[_ENCODING] != _PLAIN or page[_NUM_VALUES] % size:
            return None
        held = numbers(view, at, chunk.compression)
        if held is None or len(held) != page[_NUM_VALUES]:
            return None  # A vector with one number counts as one value, and a null vector also counts as one value.
        found.append((page[_NUM_VALUES] // size, after - at, xxhash.xxh3_64_intdigest(view[at:after])))
        at = after
    return base64.b64encode(np.array(found, _PAGE).tobytes()).decode()


def _decoded(text: str, place: tuple[int, int], rows: int) -> Pages:
    table = np.frombuffer(base64.b64decode(text, validate=True), _PAGE)
    ends = place[0] + np.cumsum(table["bytes"].astype(np.int64))
    firsts = np.append(0, np.cumsum(table["rows"].astype(np.int64)))
    if firsts[-1] != rows or not len(ends) or ends[-1] != place[1]:
        raise ValueError(f"the pages have {firsts[-1]} rows, expected {rows}")
    return Pages(firsts, ends - table["bytes"], ends, table["xxh3"].tolist())
