"""Pages of vectors: what a page holds, and what the footer of a split records of them.

A search ranks some tens of rows by their vectors, each in another page. So the footer, for which the log vouches, has
of every page of vectors its rows, its bytes and its checksum; of a row group in which a vector is null it has none, for
there nothing but the pages themselves tells the rows.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from storage_core.cache.pieces import Piece
from storage_core.errors import Corrupt
from storage_core.formats import thrift
from storage_core.rows.keys import Positions
from storage_core.rows.spans import spans_of
from storage_core.rows.vectors import Floats, is_vector
from storage_core.split import chunk_checksums
from storage_core.split.metadata import PREFIX
from storage_core.system_errors import typed

KEY: Final = PREFIX + "vector_pages"

_PAGE: Final = np.dtype([("rows", "<u4"), ("bytes", "<u4"), ("xxh3", "<u8")])
# Numbers of fields in `PageHeader` of parquet.thrift, and in the structs of a data page.
_SIZE, _STORED_SIZE, _DATA_PAGE, _NUM_VALUES, _ENCODING = 2, 3, 5, 1, 2
_PLAIN: Final = 0
_FEW_VECTORS: Final = 256  # that take less to read one by one than to map the file
_LEVELS = struct.Struct("<I")
_CODECS: Final = {"ZSTD": "zstd", "UNCOMPRESSED": None}


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """The pages of one column chunk: the row that each begins with, then the number of all; where each lies."""

    rows: Positions
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    checksums: Sequence[int]

    def of(self, rows: Positions) -> Positions:
        """Return the number of the page that each of these rows is in."""
        return np.searchsorted(self.rows, rows, side="right") - 1

    def piece(self, number: int) -> Piece:
        """Return where a page lies in the object."""
        return Piece(int(self.starts[number]), int(self.ends[number]), f"{self.checksums[number]:016x}")


def leaves(footer: pq.FileMetaData, schema: pa.Schema) -> dict[str, int]:
    """Return the leaf column of each column of vectors that has one alone."""
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    listed = {each.name: f"{each.name}.list.element" for each in schema if is_vector(each.type)}
    return {name: paths.index(path) for name, path in listed.items() if paths.count(path) == 1}


def entry(data: pa.Buffer, footer: pq.FileMetaData, schema: pa.Schema) -> dict[str, str]:
    """Return the metadata that `recorded` reads; none for a file without vectors. Looks at the header of each page."""
    view, found = memoryview(data).cast("B"), dict[str, list[str | None]]()
    for name, leaf in leaves(footer, schema).items():
        size = schema.field(name).type.list_size
        found[str(leaf)] = [_encoded(view, footer.row_group(each), leaf, size) for each in range(footer.num_row_groups)]
    return {KEY: json.dumps(found, separators=(",", ":"))} if found else {}


def recorded(metadata: Mapping[str, str], footer: pq.FileMetaData, path: str) -> Mapping[tuple[int, int], Pages]:
    """Return the pages by leaf column and row group, of which the file tells. Raises `Corrupt` naming `path`."""
    found = {}
    try:
        for leaf, groups in json.loads(metadata.get(KEY, "{}")).items():
            for group, text in enumerate(groups):
                if text is not None:
                    chunk, rows = footer.row_group(group).column(int(leaf)), footer.row_group(group).num_rows
                    found[int(leaf), group] = _decoded(text, chunk_checksums.place(chunk), rows)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Corrupt(f"{path}: what it records of its pages of vectors cannot be read: {error}", key=path) from error
    return found


def numbers(data: memoryview, position: int, codec: str) -> Floats | None:
    """Return the numbers of the page at a position; None where it is another kind of page than ours are."""
    header, body = thrift.struct(data, position)
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
    """Return the pages of a leaf column of all row groups as those of one; None where one has none, or is compressed.

    Their numbers are where they are in the file then.
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
    """Return the vectors at these rows of a file, of pages that are not compressed, from where they are in it.

    The file was verified, and so was what it records of the pages: their numbers are the last of them. Few are read by
    themselves, others out of the file as it is `mapped`. Raises `Corrupt` naming the `key` of a file that became short.
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
        return None  # a null has one value as well
    (at, end), found = chunk_checksums.place(chunk), list[tuple[int, int, int]]()
    while at < end:
        header, body = thrift.struct(view, at)
        page, after = header.get(_DATA_PAGE), body + header[_STORED_SIZE]
        if page is None or page[_ENCODING] != _PLAIN or page[_NUM_VALUES] % size:
            return None
        held = numbers(view, at, chunk.compression)
        if held is None or len(held) != page[_NUM_VALUES]:
            return None  # of one number a vector has as many values as a null
        found.append((page[_NUM_VALUES] // size, after - at, xxhash.xxh3_64_intdigest(view[at:after])))
        at = after
    return base64.b64encode(np.array(found, _PAGE).tobytes()).decode()


def _decoded(text: str, place: tuple[int, int], rows: int) -> Pages:
    table = np.frombuffer(base64.b64decode(text, validate=True), _PAGE)
    ends = place[0] + np.cumsum(table["bytes"].astype(np.int64))
    firsts = np.append(0, np.cumsum(table["rows"].astype(np.int64)))
    if firsts[-1] != rows or not len(ends) or ends[-1] != place[1]:
        raise ValueError(f"pages of {firsts[-1]} rows, expected {rows}")
    return Pages(firsts, ends - table["bytes"], ends, table["xxh3"].tolist())
