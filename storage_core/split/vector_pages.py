"""Pages of vectors: what a page holds, and single pages of a split that is read by ranges, each verified by itself.

A search ranks some tens of rows by their vectors, each in another page. So the footer, for which the log vouches, has
of every page of vectors its rows, its bytes and its checksum; of a row group in which a vector is null it has none, for
there nothing but the pages themselves tells the rows.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from storage_core.cache.pieces import CachedPieces, Piece
from storage_core.errors import Corrupt
from storage_core.formats import thrift
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.rows.keys import Positions
from storage_core.rows.vectors import Floats, is_vector
from storage_core.split import chunk_checksums
from storage_core.split.kept_values import KeptValues
from storage_core.split.metadata import PREFIX
from storage_core.split.ranges import Footer

KEY: Final = PREFIX + "vector_pages"

GAP_BYTES: Final = 32 * 2**10
"""Between pages that are wanted so much is fetched with them, rather than by a request for each."""

_AT_ONCE: Final = 48
_PAGE: Final = np.dtype([("rows", "<u4"), ("bytes", "<u4"), ("xxh3", "<u8")])
# Numbers of fields in `PageHeader` of parquet.thrift, and in the structs of a data page.
_SIZE, _STORED_SIZE, _DATA_PAGE, _NUM_VALUES, _ENCODING = 2, 3, 5, 1, 2
_PLAIN: Final = 0
_LEVELS = struct.Struct("<I")
_CODECS: Final = {"ZSTD": "zstd", "UNCOMPRESSED": None}


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """The pages of one column chunk: the row that each begins with, then the number of all; where each lies."""

    rows: Positions
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    checksums: Sequence[int]


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


def in_place(data: memoryview, pages: Pages, rows: Positions, size: int) -> Floats:
    """Return the vectors at these rows of a column chunk that is not compressed, from where they are in the file.

    What `data` holds was verified, and so was what is recorded of the pages: their numbers are the last of them.
    """
    own = _pages_of(pages, rows)
    starts = pages.ends[own] - (pages.rows[own + 1] - rows) * (4 * size)
    found = np.empty((len(rows), size), np.float32)
    for number, start in enumerate(starts.tolist()):
        found[number] = np.frombuffer(data, "<f4", size, start)
    return found


class RangedVectors:
    """The vectors of a split that is read by ranges. What was read last stays in `kept`, and on disk in `cached`."""

    def __init__(self, store: ObjectStore, add: Add, footer: Footer, *, kept: KeptValues, cached: CachedPieces) -> None:
        """Look at nothing yet."""
        self._store, self._add, self._footer, self._kept, self._cached = store, add, footer, kept, cached
        self._name = (add.path, add.footerXxh3, "vector pages")

    def take(self, name: str, schema: pa.Schema, places: Positions) -> pa.Array | None:
        """Return the vectors of a column at these places of the file; None where the footer does not tell its pages.

        Ranged GETs side by side of the pages that are not kept, one for those that lie near each other. Raises
        `NotFound`, and `Corrupt` for a page that is not what was written.
        """
        leaf, kind = leaves(self._footer.file, schema).get(name), schema.field(name).type
        if leaf is None:
            return None
        pages = self._kept.made(
            self._name, dict, self._recorded, lambda each: 64 + 32 * sum(map(_count, each.values()))
        )
        groups, inside = self._apart(places)
        if any((leaf, group) not in pages for group in np.unique(groups).tolist()):
            return None
        found = np.empty((len(places), kind.list_size), np.float32)
        wanted = [(group, pages[leaf, group], inside[groups == group]) for group in np.unique(groups).tolist()]
        needed = {(leaf, group): np.unique(_pages_of(own, rows)) for group, own, rows in wanted}
        held = self._held(pages, needed, kind.list_size)
        for group, own, rows in wanted:
            numbers_of = _pages_of(own, rows)
            part = np.empty((len(rows), kind.list_size), np.float32)
            for number in needed[leaf, group].tolist():
                mine = numbers_of == number
                part[mine] = held[leaf, group, number][rows[mine] - own.rows[number]]
            found[groups == group] = part
        return pa.FixedSizeListArray.from_arrays(pa.array(found.ravel()), type=kind)

    def _recorded(self) -> dict[tuple[int, int], Pages]:
        return dict(recorded(self._footer.entries, self._footer.file, self._add.path))

    def _apart(self, places: Positions) -> tuple[Positions, Positions]:
        """The row group of each place, and the place in it."""
        file = self._footer.file
        ends = np.cumsum([file.row_group(group).num_rows for group in range(file.num_row_groups)])
        groups = np.searchsorted(ends, places, side="right")
        return groups, places - np.append(0, ends)[groups]

    def _held(
        self, pages: Mapping[tuple[int, int], Pages], needed: Mapping[tuple[int, int], Positions], size: int
    ) -> dict[tuple[int, int, int], Floats]:
        """The numbers of the pages, rows by dimensions: those that are kept, and the others."""
        names = [(*chunk, number) for chunk, numbers in needed.items() for number in numbers.tolist()]
        found = {each: value for each in names if isinstance(value := self._kept.get((*self._name, *each)), np.ndarray)}
        missing = [each for each in names if each not in found]
        pieces = [self._piece(pages[leaf, group], number) for leaf, group, number in missing]
        for each, data in zip(missing, self._fetched(pieces), strict=True):
            leaf, group, number = each
            codec = self._footer.file.row_group(group).column(leaf).compression
            values, rows = numbers(memoryview(data), 0, codec), int(np.diff(pages[leaf, group].rows)[number])
            if values is None or len(values) != rows * size:
                raise self._damaged(f"a page of vectors does not hold {rows} of {size} numbers")
            found[each] = values.reshape(rows, size)
            self._kept.keep((*self._name, *each), found[each], len(data))
        return found

    @staticmethod
    def _piece(pages: Pages, number: int) -> Piece:
        return Piece(int(pages.starts[number]), int(pages.ends[number]), f"{pages.checksums[number]:016x}")

    def _fetched(self, pieces: Sequence[Piece]) -> list[bytes]:
        """The bytes of these pages, ascending, which have their checksums."""
        add, identity = self._add, str(self._add.xxh3 or self._add.footerXxh3)
        found = self._cached.read(self._store.uri, add.path, identity, pieces)
        spans = [(each.start, each.end or 0) for each, data in zip(pieces, found, strict=True) if data is None]
        runs = _joined(spans)
        read = dict(zip(runs, all_of(lambda run: self._store.get_range(add.path, *run), runs, _AT_ONCE), strict=True))
        fresh = []
        for place, (piece, data) in enumerate(zip(pieces, found, strict=True)):
            if data is None:
                first, whole = next((run[0], each) for run, each in read.items() if run[0] <= piece.start < run[1])
                own = whole[piece.start - first : (piece.end or 0) - first]
                if not piece.is_of(own):
                    raise self._damaged(f"expected xxh3-64 {piece.checksum} of the page at {piece.start}")
                found[place] = own
                fresh.append((piece, own))
        self._cached.write(self._store.uri, add.path, identity, fresh)
        return [data for data in found if data is not None]

    def _damaged(self, what: str) -> Corrupt:
        return Corrupt(f"{self._add.path}: {what}", key=self._add.path)


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


def _pages_of(pages: Pages, rows: Positions) -> Positions:
    return np.searchsorted(pages.rows, rows, side="right") - 1


def _count(pages: Pages) -> int:
    return len(pages.ends)


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans, ascending, with those put together that lie near each other."""
    found: list[tuple[int, int]] = []
    for start, end in spans:
        if found and start - found[-1][1] <= GAP_BYTES:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
