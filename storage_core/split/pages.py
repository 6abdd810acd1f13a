"""Single rows of a split: of each column the page that holds the row is decoded, and kept for the next search.

A row group is sixteen pages. Arrow reads a column chunk from its first page on, so it is given the file without the
pages before the wanted one. Columns of nested values, of whose pages nothing tells the rows, are decoded by row group;
but a page of vectors, where none is null, has as many rows as its numbers make.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.formats import thrift
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows import sortable
from storage_core.rows.codes import Unsigned
from storage_core.rows.columns import defaults
from storage_core.rows.keys import Positions
from storage_core.rows.vectors import Floats, column_of, typed
from storage_core.split import chunk_checksums, vector_pages
from storage_core.split.conform import conform_split
from storage_core.split.failures import corrupt_on_failure
from storage_core.split.gathered import gathered
from storage_core.split.kept_values import KeptValues
from storage_core.split.read import mapped, open_split
from storage_core.split.shifted_file import ShiftedFile

_FEW_PAGES: Final = 4
_READ_BYTES: Final = 65_536
_FOOTER_FACTOR: Final = 8  # what a footer takes in memory, to its bytes in the file
# Numbers of fields in `PageHeader` of parquet.thrift, and in the structs of its two kinds of data pages.
_STORED_SIZE, _DATA_PAGE, _DATA_PAGE_V2, _NUM_VALUES = 3, 5, 8, 1


@dataclass(frozen=True, slots=True)
class _Footer:
    """What is read of a file but once. `leaves` are the columns that are read by page, `vectors` those of vectors.

    `in_place` are the pages of vectors that are read from where they are, as the file records them.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    first_rows: Positions
    leaves: dict[str, int]
    vectors: dict[str, int]
    in_place: Mapping[str, vector_pages.Pages]


@dataclass(frozen=True, slots=True)
class _Pages:
    """The data pages of a column chunk: the row that each begins with, then the number of all, and where they lie.

    The chunk goes from `begin` to `end`; a dictionary is before the first data page.
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
    """Return the rows at these ascending places in the file `path` of a split, whether they are gone or not.

    Of `columns` those that the file has, in its order. The file is known to be sound as a whole. Decodes the pages that
    hold a row and are not in `kept`. No request. Raises what `open_split` raises.
    """
    with corrupt_on_failure(add):
        return _Taking(store, add, path, kept).take(places, columns)


def leading_keys(
    store: ObjectStore, add: Add, path: Path, places: Positions, *, field: pa.Field, kept: KeptValues
) -> Unsigned:
    """Return the `sortable.leading_keys` of a column of the table in the rows at these ascending places, as of `take`.

    Decodes what `take` does, or row groups of which many pages hold a row. Keys are kept, and not what was decoded.
    """
    with corrupt_on_failure(add):
        return _Taking(store, add, path, kept).leading_keys(places, field)


class _Taking:
    """The file of one split while rows of it are taken; it is mapped when the first page is not kept."""

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
        for group in np.unique(groups).tolist() if names else ():
            inside = places[groups == group] - footer.first_rows[group]
            vectors = {name: own for name in names if (own := self._vectors(group, name, inside)) is not None}
            for name, own in vectors.items():
                found[name].append((own, np.arange(len(inside))))
            ranges = {name: self._ranges(group, name, inside) for name in names if name not in vectors}
            values = self._values(group, ranges)
            for name, each in ranges.items():
                starts = [start for start, _ in each]
                for start, rows in zip(starts, np.split(inside, np.searchsorted(inside, starts[1:])), strict=True):
                    found[name].append((values[name, start], rows - start))
        fields = [footer.schema.field(name) for name in chosen]
        arrays = [
            in_place[each.name] if each.name in in_place else gathered(found[each.name], each.type) for each in fields
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields)).combine_chunks()

    def leading_keys(self, places: Positions, field: pa.Field) -> Unsigned:
        footer, found = self._footer, list[Unsigned]()
        if field.name not in footer.schema.names:
            return sortable.leading_keys(defaults(field, len(places)))
        groups = np.searchsorted(footer.first_rows, places, side="right") - 1
        for group in np.unique(groups).tolist():
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
            return sortable.leading_keys(decoded.column(0).combine_chunks())

        name = (*self._name, group, field.name, str(field.type), start, stop)
        return self._kept.made(name, np.ndarray, made, lambda keys: keys.nbytes)

    def _in_place(self, name: str, places: Positions) -> pa.Array | None:
        """The vectors at these places, from where they are in the file; None of others, and of compressed ones."""
        pages = self._footer.in_place.get(name)
        if pages is None:
            return None
        size, key = self._footer.schema.field(name).type.list_size, self._add.path
        return column_of(vector_pages.in_place(self._path, key, pages, places, size=size, mapped=lambda: self._data))

    def _vectors(self, group: int, name: str, inside: Positions) -> pa.Array | None:
        """The vectors at these places of a row group; None of other columns, and where pages do not tell their rows."""
        leaf = self._footer.vectors.get(name)
        if leaf is None:
            return None
        kind, chunk = self._footer.schema.field(name).type, self._footer.metadata.row_group(group)
        if chunk.column(leaf).num_values != chunk.num_rows * kind.list_size:
            return None  # a null has one value as well
        pages = self._pages(group, name, kind.list_size)
        if pages.rows[-1] != chunk.num_rows:
            return None  # some page does not end with a row
        numbers = np.searchsorted(pages.rows, inside, side="right") - 1
        found = np.empty((len(inside), kind.list_size), np.float32)
        for number in np.unique(numbers).tolist():
            values = self._vector_page(group, name, pages.positions[number])
            rows = int(pages.rows[number + 1] - pages.rows[number])
            if len(values) != rows * kind.list_size:
                return None
            own = numbers == number
            found[own] = values.reshape(rows, -1)[inside[own] - pages.rows[number]]
        return column_of(found)

    def _vector_page(self, group: int, name: str, position: int) -> Floats:
        """The numbers of the page at a position of the file; none where it is another kind of page than ours are."""
        codec = self._footer.metadata.row_group(group).column(self._footer.vectors[name]).compression

        def made() -> Floats:
            found = vector_pages.numbers(self._data, position, codec)
            return np.zeros(0, np.float32) if found is None else found

        return self._kept.made((*self._name, "vectors", position), np.ndarray, made, lambda each: each.nbytes)

    def _ranges(self, group: int, name: str, inside: Positions) -> list[tuple[int, int]]:
        """The rows from which to which a page of the column goes, of the pages that hold one of the rows."""
        if name not in self._footer.leaves:
            return [(0, self._footer.metadata.row_group(group).num_rows)]
        bounds = self._pages(group, name).rows
        found = np.unique(np.searchsorted(bounds, inside, side="right") - 1)
        return [(int(bounds[each]), int(bounds[each + 1])) for each in found]

    def _values(self, group: int, ranges: dict[str, list[tuple[int, int]]]) -> dict[tuple[str, int], pa.Array]:
        """The decoded pages by column and first row; columns whose pages begin alike are decoded together."""
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
            ShiftedFile(self._data, shifts),
            metadata=self._footer.metadata,
            pre_buffer=False,
            buffer_size=_READ_BYTES,
            page_checksum_verification=True,
        )
        # a name with a dot in it is a path for Arrow, which may lead to more columns
        batches = file.iter_batches(stop - start, row_groups=[group], columns=list(names), use_threads=False)
        return typed(pa.Table.from_batches([next(batches)]), self._footer.schema)

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
        vectors = vector_pages.leaves(metadata, opened.schema)
        pages = vector_pages.recorded(opened.metadata, metadata, self._add.path)
        joined = {name: vector_pages.of_file(pages, metadata, leaf) for name, leaf in vectors.items()}
        in_place = {name: own for name, own in joined.items() if own is not None}
        return _Footer(metadata, opened.schema, opened.first_rows, leaves, vectors, in_place)

    def _pages(self, group: int, name: str, width: int = 1) -> _Pages:
        """The pages of a column of which each row has `width` values, which is asked for first."""
        key = (*self._name, group, name)
        found = self._kept.get(key)
        if not isinstance(found, _Pages):
            leaf = self._footer.leaves[name] if name in self._footer.leaves else self._footer.vectors[name]
            found = self._read_pages(group, leaf, width)
            self._kept.keep(key, found, 2 * found.rows.nbytes)
        return found

    def _read_pages(self, group: int, leaf: int, width: int) -> _Pages:
        chunk = self._footer.metadata.row_group(group).column(leaf)
        begin, end = chunk_checksums.place(chunk)
        at, rows, positions = begin, [0], list[int]()
        while at < end:
            header, body = thrift.struct(self._data, at)
            page = header.get(_DATA_PAGE) or header.get(_DATA_PAGE_V2)
            if page is not None:
                positions.append(at)
                rows.append(rows[-1] + page[_NUM_VALUES] // width)
            at = body + header[_STORED_SIZE]
        return _Pages(np.array(rows, np.int64), begin, end, positions)

    @cached_property
    def _data(self) -> memoryview:
        return memoryview(mapped(self._add, self._path).read_buffer()).cast("B")
