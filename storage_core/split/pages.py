"""Access to single rows of a split by row number or by key, and to single vectors by ranged reads.

**By row number** (`take`). Only the pages with the requested rows are decoded, column by column. The decoded pages are
cached for later searches. A row group has sixteen pages per column. Arrow always reads a column chunk from its first
page. Therefore Arrow gets a view of the file without the pages before the wanted page (`PageSkippingFile`). The headers
of nested columns' pages do not contain row numbers. Therefore whole row groups of nested columns are decoded. Vectors
without nulls are decoded page by page even though they are nested. The number of values in a page determines its number
of rows.

**Vectors by ranges** (`RangedVectors`). If a split is read by ranges, only the pages with the requested vectors are
fetched. Each page is verified by its own checksum.

**By key** (`find_keys`). The hashes of a split's keys are cached in memory. The hashes are sorted within each row
group. A lookup is then a binary search. If the key is missing, the lookup sends no request.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.base.errors import Corrupt
from storage_core.data.formats import parquet_footer
from storage_core.data.formats.key_hashes import HashedRows, key_hashes
from storage_core.data.rows import codes
from storage_core.data.rows.codes import Unsigned
from storage_core.data.rows.columns import defaults
from storage_core.data.rows.keys import Positions, key_codes
from storage_core.data.rows.vectors import Floats, column_of, with_vector_types
from storage_core.log.actions import Add
from storage_core.split import verification
from storage_core.split.fetch import Footer, Pieces, identity
from storage_core.split.metadata import Recorded, admitting
from storage_core.split.read import OpenSplit, conform_split, mapped, open_split
from storage_core.split.verification import Pages, corrupt_on_failure, leaves, numbers, recorded_vector_pages
from storage_core.store.contract import ObjectStore, SeekableFile
from storage_core.store.pieces import CachedPieces, KeptValues

# Reading the values of given rows from several pages.


_FEW_ROWS: Final = 8


def gathered(found: Sequence[tuple[pa.Array, Positions]], kind: pa.DataType) -> pa.ChunkedArray:
    """Return the values of each page at the given positions.

    Values of a fixed size are gathered in one step. All other values are gathered page by page. If only a few values of
    a page are needed, each value is sliced separately. Separate slices take a tenth of the time of one `take` call of
    Arrow for the page.
    """
    if found and pa.types.is_primitive(kind):
        pages = [page for page, _ in found]
        firsts = np.cumsum([0, *map(len, pages[:-1])])
        places = np.concatenate([first + rows for first, (_, rows) in zip(firsts, found, strict=True)])
        return pa.chunked_array(pages, kind).take(pa.array(places))
    parts: list[pa.Array] = []
    for page, rows in found:
        few = len(rows) <= _FEW_ROWS
        parts += [page.slice(row, 1) for row in rows.tolist()] if few else [page.take(pa.array(rows))]
    return pa.chunked_array(parts, kind)


def _distinct(numbers: Positions) -> list[int]:
    """Return the distinct values of ascending numbers. Most calls have only one value, which needs no sort."""
    if len(numbers) and numbers[0] == numbers[-1]:
        return [int(numbers[0])]
    return [int(each) for each in np.unique(numbers)]


# A view of a Parquet file for Arrow that omits the pages before the wanted page.


class PageSkippingFile(SeekableFile):
    """A view of a file that omits some pages of a column chunk.

    These pages follow the dictionary of the chunk. In the view, the bytes behind the omitted pages directly follow the
    dictionary.

    Args:
        shifts: For the start of each chunk: its end, the position of its first data page, and the number of omitted
            bytes.
    """

    def __init__(self, data: memoryview, shifts: Mapping[int, tuple[int, int, int]]) -> None:
        """Create a view of `data`. `data` is the whole file."""
        super().__init__(len(data))
        self._data = data
        self._shifts = shifts

    def read(self, size: int = -1, /) -> bytes | memoryview:  # Arrow accepts any buffer.
        """Return exactly `size` bytes.

        If the requested bytes extend past the end of the file, the additional bytes are zero.
        """
        start = self.position
        self.position += size
        for begin, (end, first, shift) in self._shifts.items():
            if begin <= start < end:
                before = self._data[start : min(first, self.position)]
                after = self._data[max(start, first) + shift : max(self.position, first) + shift]
                missing = size - len(before) - len(after)  # These bytes are beyond the end of the file.
                return b"".join((before, after, bytes(missing))) if len(before) or missing else after
        return self._data[start : self.position]


_FEW_PAGES: Final = 4
_READ_BYTES: Final = 65_536
_FOOTER_FACTOR: Final = 8  # The ratio of the memory of a decoded footer to the size of the footer in the file.
# The field numbers in `PageHeader` of parquet.thrift, and in the structs of the two kinds of data pages.
_STORED_SIZE, _DATA_PAGE, _DATA_PAGE_V2, _NUM_VALUES = 3, 5, 8, 1


@dataclass(frozen=True, slots=True)
class _Footer:
    """The parts of a file that are read only once.

    Attributes:
        leaves: The leaf columns that are read by page.
        vectors: The leaf columns of vectors.
        in_place: The recorded pages of the vectors that are read directly from the mapped file.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    first_rows: Positions
    leaves: dict[str, int]
    vectors: dict[str, int]
    in_place: Mapping[str, verification.Pages]


@dataclass(frozen=True, slots=True)
class _Pages:
    """The data pages of a column chunk.

    Attributes:
        rows: The first row of each page, then the total number of rows.
        begin: The start of the chunk. If the chunk has a dictionary, it starts here.
        end: The end of the chunk.
        positions: The position of each page in the file.
    """

    rows: Positions
    begin: int
    end: int
    positions: Sequence[int]


def take(
    store: ObjectStore,
    add: Add,
    path: Path,
    places: Positions,
    *,
    columns: Collection[str] | None = None,
    kept: KeptValues,
) -> pa.Table:
    """Return the rows at these ascending row numbers in the file `path` of a split. No request.

    Deleted rows are included. The content of the file must already be verified. A page is decoded only if it contains a
    requested row and is not cached in `kept`. Raises the errors of `open_split`.

    Args:
        columns: The columns to return, in the order of the file. Names that the file lacks are ignored.
    """
    with corrupt_on_failure(add):
        return _Taking(store, add, path, kept).take(places, columns)


def leading_keys(
    store: ObjectStore, add: Add, path: Path, places: Positions, *, field: pa.Field, kept: KeptValues
) -> Unsigned:
    """Return the `codes.leading_keys` of a column for the rows at these row numbers. `places` is ascending.

    The function decodes the same pages as `take`. If many pages of a row group contain a requested row, the whole row
    group is decoded. The keys are cached, but the decoded values are not cached.
    """
    with corrupt_on_failure(add):
        return _Taking(store, add, path, kept).leading_keys(places, field)


class _Taking:
    """The file of one split during `take`. The file is mapped when the call first needs a page that is not cached."""

    def __init__(self, store: ObjectStore, add: Add, path: Path, kept: KeptValues) -> None:
        self._store = store
        self._add = add
        self._path = path
        self._kept = kept
        self._name = (add.path, add.xxh3)

    def take(self, places: Positions, columns: Collection[str] | None) -> pa.Table:
        footer = self._footer
        chosen = [name for name in footer.schema.names if columns is None or name in columns]
        in_place = {name: own for name in chosen if (own := self._in_place(name, places)) is not None}
        names = [name for name in chosen if name not in in_place]
        found: dict[str, list[tuple[pa.Array, Positions]]] = {name: [] for name in names}
        groups = np.searchsorted(footer.first_rows, places, side="right") - 1
        for group in _distinct(groups) if names else ():
            inside = places[groups == group] - footer.first_rows[group]
            vectors = {name: own for name in names if (own := self._vectors(group, name, inside)) is not None}
            for name, own in vectors.items():
                found[name].append((own, np.arange(len(inside))))
            ranges = {name: self._ranges(group, name, inside) for name in names if name not in vectors}
            values = self._values(group, ranges)
            for name, each in ranges.items():
                starts = [start for start, _ in each]
                pages = np.split(inside, np.searchsorted(inside, starts[1:])) if len(starts) > 1 else [inside]
                for start, rows in zip(starts, pages, strict=True):
                    found[name].append((values[name, start], rows - start))
        fields = [footer.schema.field(name) for name in chosen]
        arrays = [
            in_place[each.name] if each.name in in_place else gathered(found[each.name], each.type) for each in fields
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields)).combine_chunks()

    def leading_keys(self, places: Positions, field: pa.Field) -> Unsigned:
        footer, found = self._footer, list[Unsigned]()
        if field.name not in footer.schema.names:
            return codes.leading_keys(defaults(field, len(places)))
        groups = np.searchsorted(footer.first_rows, places, side="right") - 1
        for group in _distinct(groups):
            inside = places[groups == group] - footer.first_rows[group]
            ranges = self._ranges(group, field.name, inside)
            if len(ranges) > _FEW_PAGES:
                ranges = [(0, footer.metadata.row_group(group).num_rows)]
            for start, stop in ranges:
                keys = self._keys(group, field, start, stop)
                found.append(keys[inside[np.searchsorted(inside, start) : np.searchsorted(inside, stop)] - start])
        return np.concatenate(found)

    def _keys(self, group: int, field: pa.Field, start: int, stop: int) -> Unsigned:
        def made() -> Unsigned:
            decoded = conform_split(self._decoded(group, start, stop, [field.name]), pa.schema([field]))
            return codes.leading_keys(decoded.column(0).combine_chunks())

        name = (*self._name, group, field.name, str(field.type), start, stop)
        return self._kept.made(name, np.ndarray, made, lambda keys: keys.nbytes)

    def _in_place(self, name: str, places: Positions) -> pa.Array | None:
        """Return the vectors at these row numbers directly from the file.

        Return None if the column has no vectors or is compressed.
        """
        pages = self._footer.in_place.get(name)
        if pages is None:
            return None
        size, key = self._footer.schema.field(name).type.list_size, self._add.path
        return column_of(verification.in_place(self._path, key, pages, places, size=size, mapped=lambda: self._data))

    def _vectors(self, group: int, name: str, inside: Positions) -> pa.Array | None:
        """Return the vectors at these positions within a row group.

        Return None if the column has no vectors, or if the rows of its pages are unknown.
        """
        leaf = self._footer.vectors.get(name)
        if leaf is None:
            return None
        kind, chunk = self._footer.schema.field(name).type, self._footer.metadata.row_group(group)
        if chunk.column(leaf).num_values != chunk.num_rows * kind.list_size:
            return None  # A null value is also counted as one value.
        pages = self._pages(group, name, kind.list_size)
        if pages.rows[-1] != chunk.num_rows:
            return None  # At least one page ends within a row.
        numbers = np.searchsorted(pages.rows, inside, side="right") - 1
        found = np.empty((len(inside), kind.list_size), np.float32)
        for number in _distinct(numbers):
            values = self._vector_page(group, name, pages.positions[number])
            rows = int(pages.rows[number + 1] - pages.rows[number])
            if len(values) != rows * kind.list_size:
                return None
            own = numbers == number
            found[own] = values.reshape(rows, -1)[inside[own] - pages.rows[number]]
        return column_of(found)

    def _vector_page(self, group: int, name: str, position: int) -> Floats:
        """Return the numbers in the page at this position. The result is empty if Tidemark did not write the page."""
        codec = self._footer.metadata.row_group(group).column(self._footer.vectors[name]).compression

        def made() -> Floats:
            found = verification.numbers(self._data, position, codec)
            return np.zeros(0, np.float32) if found is None else found

        return self._kept.made((*self._name, "vectors", position), np.ndarray, made, lambda each: each.nbytes)

    def _ranges(self, group: int, name: str, inside: Positions) -> list[tuple[int, int]]:
        """Return the row ranges of the column's pages that contain a requested row."""
        if name not in self._footer.leaves:
            return [(0, self._footer.metadata.row_group(group).num_rows)]
        bounds = self._pages(group, name).rows
        found = _distinct(np.searchsorted(bounds, inside, side="right") - 1)
        return [(int(bounds[each]), int(bounds[each + 1])) for each in found]

    def _values(self, group: int, ranges: dict[str, list[tuple[int, int]]]) -> dict[tuple[str, int], pa.Array]:
        """Return the decoded pages by column and first row.

        Columns with pages that start at the same row are decoded together.
        """
        values: dict[tuple[str, int], pa.Array] = {}
        missing = defaultdict[tuple[int, int], list[str]](list)
        for name, each in ranges.items():
            for start, stop in each:
                found = self._kept.get((*self._name, group, name, start))
                if isinstance(found, pa.Array):
                    values[name, start] = found
                else:
                    missing[start, stop].append(name)
        for (start, stop), names in missing.items():
            decoded = self._decoded(group, start, stop, names)
            for name in names:
                array = decoded.column(name).combine_chunks()
                values[name, start] = array
                self._kept.keep((*self._name, group, name, start), array, array.nbytes)
        return values

    def _decoded(self, group: int, start: int, stop: int, names: Sequence[str]) -> pa.Table:
        shifts: dict[int, tuple[int, int, int]] = {}
        for name in names:
            if name in self._footer.leaves:
                pages = self._pages(group, name)
                place = pages.positions[int(np.searchsorted(pages.rows, start))]
                shifts[pages.begin] = (pages.end, pages.positions[0], place - pages.positions[0])
        file = pq.ParquetFile(
            PageSkippingFile(self._data, shifts),
            metadata=self._footer.metadata,
            pre_buffer=False,
            buffer_size=_READ_BYTES,
            page_checksum_verification=True,
        )
        # Arrow treats a name with a dot as a path, which may match several columns.
        batches = file.iter_batches(stop - start, row_groups=[group], columns=list(names), use_threads=False)
        return with_vector_types(pa.Table.from_batches([next(batches)]), self._footer.schema)

    @cached_property
    def _footer(self) -> _Footer:
        found = self._kept.get(self._name)
        if not isinstance(found, _Footer):
            found = self._read_footer()
            self._kept.keep(self._name, found, _FOOTER_FACTOR * found.metadata.serialized_size)
        return found

    def _read_footer(self) -> _Footer:
        opened = open_split(self._store, self._add, file_path=self._path)
        metadata = opened.footer
        paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        times = Counter(paths)
        flat = {each.name for each in opened.schema if not pa.types.is_nested(each.type) and times[each.name] == 1}
        leaves = {path: index for index, path in enumerate(paths) if path in flat}
        vectors = verification.leaves(metadata, opened.schema)
        pages = verification.recorded_vector_pages(opened.metadata, metadata, self._add.path)
        joined = {name: verification.of_file(pages, metadata, leaf) for name, leaf in vectors.items()}
        in_place = {name: own for name, own in joined.items() if own is not None}
        return _Footer(metadata, opened.schema, opened.first_rows, leaves, vectors, in_place)

    def _pages(self, group: int, name: str, width: int = 1) -> _Pages:
        """Return the pages of a column with `width` values per row. Only the first call uses `width`."""
        key = (*self._name, group, name)
        found = self._kept.get(key)
        if not isinstance(found, _Pages):
            leaf = self._footer.leaves[name] if name in self._footer.leaves else self._footer.vectors[name]
            found = self._read_pages(group, leaf, width)
            self._kept.keep(key, found, 2 * found.rows.nbytes)
        return found

    def _read_pages(self, group: int, leaf: int, width: int) -> _Pages:
        chunk = self._footer.metadata.row_group(group).column(leaf)
        begin, end = verification.place(chunk)
        at, rows, positions = begin, [0], list[int]()
        while at < end:
            header, body = parquet_footer.struct(self._data, at)
            page = header.get(_DATA_PAGE) or header.get(_DATA_PAGE_V2)
            if page is not None:
                positions.append(at)
                rows.append(rows[-1] + page[_NUM_VALUES] // width)
            at = body + header[_STORED_SIZE]
        return _Pages(np.array(rows, np.int64), begin, end, positions)

    @cached_property
    def _data(self) -> memoryview:
        return memoryview(mapped(self._add, self._path).read_buffer()).cast("B")


GAP_BYTES: Final = 32 * 2**10
"""The maximum gap between two ranges that one request fetches together. The gap is half a page.

Requests run concurrently. So with a larger gap, the unneeded bytes would take bandwidth from the needed pages.
"""

_AT_ONCE: Final = 48


class RangedVectors:
    """The vectors of a split that is read by ranges. Recent pages stay in memory (`kept`) and on disk (`cached`)."""

    def __init__(self, store: ObjectStore, add: Add, footer: Footer, *, kept: KeptValues, cached: CachedPieces) -> None:
        """Prepare the access. Reads nothing."""
        self._add, self._footer, self._kept = add, footer, kept
        fetch = functools.partial(store.get_range, add.path)
        self._pieces = Pieces(store.uri, add.path, identity(add), cached, fetch)
        self._name = (add.path, add.footerXxh3, "vector pages")

    def take(self, name: str, schema: pa.Schema, places: Positions) -> pa.Array | None:
        """Return the vectors of a column at these row numbers.

        Return None if the footer does not record the column's pages.

        Sends concurrent ranged GETs for the pages that are not kept. Nearby pages share a GET. Raises `NotFound`, and
        `Corrupt` if a page differs from what was written.
        """
        leaf, kind = leaves(self._footer.file, schema).get(name), schema.field(name).type
        if leaf is None:
            return None
        pages = self._kept.made(self._name, dict, self._recorded, _size)
        groups, inside = self._apart(places)
        if any((leaf, group) not in pages for group in np.unique(groups).tolist()):
            return None
        found = np.empty((len(places), kind.list_size), np.float32)
        wanted = [(group, pages[leaf, group], inside[groups == group]) for group in np.unique(groups).tolist()]
        needed = {(leaf, group): np.unique(own.of(rows)) for group, own, rows in wanted}
        held = self._held(pages, needed, kind.list_size)
        for group, own, rows in wanted:
            numbers_of = own.of(rows)
            part = np.empty((len(rows), kind.list_size), np.float32)
            for number in needed[leaf, group].tolist():
                mine = numbers_of == number
                part[mine] = held[leaf, group, number][rows[mine] - own.rows[number]]
            found[groups == group] = part
        return column_of(found)

    def _recorded(self) -> dict[tuple[int, int], Pages]:
        return dict(recorded_vector_pages(self._footer.entries, self._footer.file, self._add.path))

    def _apart(self, places: Positions) -> tuple[Positions, Positions]:
        """Return the row group of each row, and its position in that row group."""
        file = self._footer.file
        ends = np.cumsum([file.row_group(group).num_rows for group in range(file.num_row_groups)])
        groups = np.searchsorted(ends, places, side="right")
        return groups, places - np.append(0, ends)[groups]

    def _held(
        self, pages: Mapping[tuple[int, int], Pages], needed: Mapping[tuple[int, int], Positions], size: int
    ) -> dict[tuple[int, int, int], Floats]:
        """Return the numbers in the pages as an array of rows by dimensions. Pages that are not kept are fetched."""
        names = [(*chunk, number) for chunk, numbers in needed.items() for number in numbers.tolist()]
        found = {each: value for each in names if isinstance(value := self._kept.get((*self._name, *each)), np.ndarray)}
        missing = [each for each in names if each not in found]
        pieces = [pages[leaf, group].piece(number) for leaf, group, number in missing]
        read = self._pieces.read(pieces, gap_bytes=GAP_BYTES, at_once=_AT_ONCE)
        for each, data in zip(missing, read, strict=True):
            leaf, group, number = each
            codec = self._footer.file.row_group(group).column(leaf).compression
            values, rows = numbers(memoryview(data), 0, codec), int(np.diff(pages[leaf, group].rows)[number])
            if values is None or len(values) != rows * size:
                path = self._add.path
                raise Corrupt(f"{path}: a page does not contain {rows} vectors of {size} numbers", key=path)
            found[each] = values.reshape(rows, size)
            self._kept.keep((*self._name, *each), found[each], len(data))
        return found


def _size(pages: Mapping[tuple[int, int], Pages]) -> int:
    return 64 + 32 * sum(len(each.ends) for each in pages.values())


_ENTRY_BYTES = 256  # The approximate memory for the bounds of a row group.


@dataclass(frozen=True, slots=True)
class _Groups:
    """The first row number of each row group, and the bounds of the row groups."""

    first_rows: Positions
    bounds: Recorded | None


def are_kept(add: Add, kept: KeptValues) -> bool:
    """Return whether keys of the split were looked up earlier and are in `kept`."""
    return kept.get(_name(add)) is not None


def is_kept(add: Add, group: int, kept: KeptValues) -> bool:
    """Return whether the keys of a row group of the split are in `kept`."""
    return kept.get((*_name(add), group)) is not None


def missing(add: Add, wanted: pa.Table, kept: KeptValues) -> int | None:
    """Return the number of row groups that may contain one of these keys.

    Row groups that are cached in `kept` do not count.

    Return None if `kept` has nothing about the split.
    """
    groups = kept.get(_name(add))
    if not isinstance(groups, _Groups):
        return None
    admitted = admitting(groups.bounds, len(groups.first_rows), wanted)
    return sum(not is_kept(add, group, kept) for group in admitted)


def _name(add: Add) -> tuple[object, ...]:
    return add.path, add.xxh3, "keys"


def find_keys(add: Add, opened: Callable[[], OpenSplit], wanted: pa.Table, kept: KeptValues) -> Positions:
    """Return, ascending, the row numbers of rows whose key has the same hash as a key in `wanted`.

    Deleted rows are included. In rare cases, the result includes a row with another key, because two keys can have the
    same hash.

    Args:
        opened: A function that returns the split with its deleted rows. It is called only if needed hashes are not in
            `kept`.

    Raises:
        InvalidInput: The key columns have other types than those of `wanted`.
        Exception: Any error of `opened` or of `OpenSplit.batches`.

    Cost:
        The requests of `OpenSplit.batches` for the key columns of row groups that are not in `kept`.
    """
    key, name = wanted.column_names, _name(add)
    groups = kept.made(
        name,
        _Groups,
        lambda: _Groups(opened().first_rows, opened().bounds),
        lambda each: _ENTRY_BYTES * (1 + len(each.first_rows)),
    )
    admitted = admitting(groups.bounds, len(groups.first_rows), wanted)
    hashed = {group: found for group in admitted if isinstance(found := kept.get((*name, group)), HashedRows)}
    missing = [group for group in admitted if group not in hashed]
    if missing:
        for group, rows in zip(missing, opened().batches(key, groups=missing), strict=True):
            key_codes([rows.slice(0, 1), wanted.slice(0, 1)], key)  # Raises an error if the types differ.
            hashed[group] = each = HashedRows.of(key_hashes(rows, key))
            kept.keep((*name, group), each, each.size_bytes)
    hashes = np.unique(key_hashes(wanted, key))
    parts = [groups.first_rows[group] + hashed[group].rows_of(hashes) for group in admitted]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
