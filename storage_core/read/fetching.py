"""Planning, concurrent fetching and verification of the rows of splits that are not local files.

The reader fetches most columns only after it has evaluated the condition. For each row group, the reader first fetches
the columns of the condition. The reader fetches the other columns only if a row of the row group may meet the
condition.

The rules of `read.pruning` evaluate a condition on the values of each row. These rules keep every row for which the
condition may be true in DuckDB. Therefore an excluded row cannot be in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain, islice
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.data.rows.codes import Mask, sortable
from storage_core.data.rows.columns import stored_names, stored_schema
from storage_core.log.actions import Add
from storage_core.read.bounds import ColumnBounds
from storage_core.read.predicate import Predicate, renamed
from storage_core.read.pruning import by_bounds, conditions, groups_left, groups_with, possible
from storage_core.split.fetch import Footers
from storage_core.split.read import OpenSplit, Piece, conform_split, is_small, leaves_of, open_split, share_of
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import prefetch

OTHER_BYTES: Final = 2**20
"""If a row group has less than this number of bytes outside the condition's columns, all columns are fetched at once.

For this small amount, a second request takes as long as the transfer of the data.
"""

_MOST_CONDITIONS: Final = 32
"""The maximum number of conditions in a read that fetches columns in two stages.

Each condition takes one comparison per row.
"""

_OF_FIRST: Final = 4
"""The additional memory for columns that are fetched first is the argument `most` divided by this number."""

_IN_VAIN: Final = 8
"""The limit for the difference of two counts. Above this limit, all columns are fetched at once.

The reader counts the row groups with and without a possible match. The difference is the first count minus the second
count.
"""


def first_and_rest(
    footer: pq.FileMetaData, group: int, columns: Collection[str], predicate: Predicate | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the `columns` of a row group to fetch first, and the `columns` to fetch only if needed.

    The second sequence is empty if all columns are fetched at once.
    """
    first, others = [*columns], list[str]()
    found = [] if predicate is None else list(islice(conditions(predicate), _MOST_CONDITIONS + 1))
    compared = {each.column for each in found}
    if not compared.isdisjoint(first) and len(found) <= _MOST_CONDITIONS:
        others = [name for name in first if name not in compared]
        chunks = footer.row_group(group)
        if sum(chunks.column(leaf).total_compressed_size for leaf in leaves_of(footer, others)) < OTHER_BYTES:
            return first, []
        first = [name for name in first if name in compared]
    return first, others


def may_match(rows: pa.Table, predicate: Predicate) -> Mask:
    """Return a mask that is True for every row that may match the predicate, and possibly for other rows.

    A missing column can have any value.
    """

    @cache
    def bounds(column: str) -> ColumnBounds | None:
        if column not in rows.column_names:
            return None
        values = rows.column(column).combine_chunks()
        try:
            keys = sortable(values)
        except pa.ArrowInvalid:  # the values exceed the range of keys
            keys = sortable(pa.nulls(len(values), values.type))
        ones = pa.array(np.ones(len(values), np.int64))
        return ColumnBounds(values.type, lambda: keys, lambda: keys, values.is_null().cast(pa.int64()), ones)

    return possible(predicate, by_bounds(bounds), rows.num_rows)


@dataclass(frozen=True, slots=True)
class LatePiece:
    """A piece of a split, and the columns that are fetched `first`.

    If `rest` is empty, all columns are fetched at once.
    """

    piece: Piece
    first: Sequence[str] = ()
    rest: Sequence[str] = ()


def read_late(
    pieces: Iterable[LatePiece], predicate: Predicate | None, schema: pa.Schema, *, at_once: int, most: int
) -> Generator[pa.Table]:
    """Yield the rows of the pieces in order. Rows that cannot match the predicate may be missing.

    If a split is read by ranges, each piece takes ranged GETs for its columns, in one or two round trips. Raises the
    errors of `Piece.read`.

    Args:
        pieces: The pieces to read.
        predicate: The condition, with the column names of the splits, or None.
        schema: The wanted columns with the types of the table.
        at_once: The number of pieces that are read at a time.
        most: The approximate memory for pieces, in bytes. The columns that are fetched first may use a quarter more.
    """
    bytes_held = attrgetter("memory_bytes")
    if predicate is None:
        yield from prefetch(Piece.read, (each.piece for each in pieces), at_once, weight=bytes_held, most=most)
        return
    stages = _Stages(predicate, schema)
    with closing(
        prefetch(_FirstRead.taken, map(stages.first, pieces), at_once, weight=bytes_held, most=most // _OF_FIRST)
    ) as begun:
        yield from prefetch(_RestRead.read, map(stages.second, begun), at_once, weight=bytes_held, most=most)


@dataclass(frozen=True, slots=True)
class _FirstRead:
    """A piece, and the part of the piece that is fetched first.

    If `first` is None, all columns are fetched at once. The part has all columns if all are fetched at once.

    `rows` are the rows of the part that is fetched first.
    """

    piece: Piece
    first: Piece | None = None
    rest: Piece | None = None
    rows: pa.Table | None = None

    @property
    def memory_bytes(self) -> int:
        return 0 if self.first is None else self.first.memory_bytes

    def taken(self) -> _FirstRead:
        return self if self.first is None else replace(self, rows=self.first.read())


@dataclass(frozen=True, slots=True)
class _RestRead:
    """The part of a piece that is not fetched yet. `mask` selects rows of the fetched `rows`."""

    piece: Piece | None
    rows: pa.Table | None = None
    mask: Mask | None = None

    @property
    def memory_bytes(self) -> int:
        return 0 if self.piece is None else self.piece.memory_bytes

    def read(self) -> pa.Table:
        if self.rows is None or self.piece is None:
            return self.rows if self.piece is None else self.piece.read()
        rest = self.piece.read()
        named = (zip(each.column_names, each.columns, strict=True) for each in (self.rows, rest))
        both = pa.table(dict(chain.from_iterable(named)))  # a column with a dot in its name may be read in both stages
        return both if self.mask is None else both.filter(pa.array(self.mask))


@dataclass(slots=True)
class _Stages:
    """Decides which columns of a piece are fetched first."""

    predicate: Predicate
    schema: pa.Schema
    _in_vain: int = 0

    def first(self, late: LatePiece) -> _FirstRead:
        piece = late.piece
        if not late.rest or self._in_vain > _IN_VAIN:
            return _FirstRead(piece)
        return _FirstRead(piece, replace(piece, columns=late.first), replace(piece, columns=late.rest))

    def second(self, begun: _FirstRead) -> _RestRead:
        rows = begun.rows
        if rows is None:
            return _RestRead(begun.piece)
        compared = pa.schema([self.schema.field(name) for name in rows.column_names if name in self.schema.names])
        mask = may_match(conform_split(rows, compared), self.predicate)
        if not mask.any():
            self._in_vain -= 1
            return _RestRead(None, self.schema.empty_table())
        self._in_vain += 1
        return _RestRead(begun.rest, rows, None if mask.all() else mask)


SPLITS_AT_ONCE: Final = 16
PIECES_AT_ONCE: Final = 8
HELD_BYTES: Final = 128 * 2**20
"""The approximate memory, in bytes, for pieces that are being read and for pieces that were read in advance.

A single piece may need more memory than this limit. If a read has a condition, the columns that are fetched first may
need another quarter of `HELD_BYTES`.
"""


_RELEASE_BYTES: Final = 64 * 2**20
"""Each time the reader has read this many bytes of rows, it tells Arrow to release freed memory.

Otherwise Arrow would keep several times the memory that is in use.
"""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The part of one split to read. The footer of the split determines the part to read.

    `named` contains the row groups in which an index selected a row. If no index was used, `named` has all row groups.
    `groups` are the row groups to read. These are the row groups in `named` with bounds that may include a wanted row.
    `columns` are the stored columns to read.
    """

    footer: pq.FileMetaData
    named: Sequence[int]
    groups: Sequence[int]
    columns: Sequence[str]
    condition: Predicate | None

    def stages(self, group: int) -> tuple[Sequence[str], Sequence[str]]:
        """Return the columns of a row group that are fetched first, and the other columns (see `first_and_rest`)."""
        return first_and_rest(self.footer, group, self.columns, self.condition)


@dataclass(frozen=True)
class FetchPlan:
    """The rows and columns of splits to read. `fetched` executes the plan, and `explain` prints it.

    `names` are columns of the `table`. The read may omit rows that cannot make `predicate` true. If `rows` has an entry
    for a split, the read may also omit the split's rows outside this entry.
    """

    table: pa.Schema
    names: Sequence[str]
    predicate: Predicate | None = None
    rows: Mapping[str, BitMap] = field(default_factory=dict)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that are read, with the types of the table."""
        return pa.schema([self.table.field(name) for name in self.names])

    @cached_property
    def share(self) -> float:
        """The approximate share of the bytes of a split that the read fetches."""
        return share_of(self.names, self.table)

    @cached_property
    def condition(self) -> Predicate | None:
        """The predicate with the column names of the splits."""
        return None if self.predicate is None else renamed(self.predicate, self.table)

    @cached_property
    def _stored(self) -> tuple[pa.Schema, frozenset[str]]:
        """The schema of the table and of the columns to read, with the column names in the splits."""
        return stored_schema(self.table), frozenset(stored_names(self.table, self.names))

    def is_whole(self, add: Add) -> bool:
        """Return True if the split is not a local file and one GET reads the whole split."""
        return add.footerXxh3 is None or is_small(add, self.share)

    def of_split(self, add: Add, footer: pq.FileMetaData, present: Sequence[str]) -> SplitPlan:
        """Return the part of a split to read. `present` are the columns of the split. Makes no request.

        If the log has no checksum of the split's footer, its statistics are not trusted and all row groups are read.
        """
        every, condition, (table, wanted) = range(footer.num_row_groups), self.condition, self._stored
        rows = None if add.footerXxh3 is None else self.rows.get(add.path)
        named = every if rows is None else groups_with(rows, footer, every)
        groups: Sequence[int] = named
        if add.footerXxh3 is not None and condition is not None:
            left = {*groups_left(footer, condition, table)}
            groups = [each for each in named if each in left]
        return SplitPlan(footer, named, groups, [each for each in present if each in wanted] or present[:1], condition)


def fetched(
    store: ObjectStore,
    splits: Sequence[Add],
    plan: FetchPlan,
    *,
    footers: Footers,
    deleted: Callable[[Add], BitMap] | None = None,
    one_by_one: bool = False,
) -> Generator[pa.Table]:
    """Yield the visible rows of the splits in order, with the columns of the plan's schema.

    Each row group and each footer is verified before it is decoded. If a whole split is read by one GET, the whole file
    is verified. Raises the errors of `open_split`.

    Args:
        store: The store of the table.
        splits: The splits to read.
        plan: The rows and columns to read.
        footers: The cache of footers.
        deleted: A function that returns the rows of a split that are not visible. The default returns the rows that the
            split's deletion vector hides.
        one_by_one: Read one row group at a time instead of several concurrently.

    Cost:
        One GET for a split that is read whole. Any other split takes one GET for its footer, unless `footers` contains
        it. Each row group of such a split takes one GET per range of adjacent columns. Cached bytes take no request.
    """
    footers = footers.of_a_read()
    stored = stored_schema(plan.schema)

    def opened(add: Add) -> OpenSplit:
        hidden = None if deleted is None else deleted(add)
        return open_split(store, add, whole=plan.is_whole(add), share=plan.share, footers=footers, deleted=hidden)

    def pieces() -> Generator[LatePiece]:
        with closing(prefetch(opened, splits, SPLITS_AT_ONCE)) as found:
            for split in found:
                yield from _pieces(split, plan.of_split(split.add, split.footer, split.schema.names))

    at_once = 1 if one_by_one else PIECES_AT_ONCE
    with (
        closing(pieces()) as wanted,
        closing(read_late(wanted, plan.condition, stored, at_once=at_once, most=HELD_BYTES)) as read,
    ):
        handed_on = 0
        for table in read:
            handed_on += table.nbytes
            if handed_on > _RELEASE_BYTES:
                pa.default_memory_pool().release_unused()
                handed_on = 0
            yield conform_split(table, plan.schema)


def _pieces(split: OpenSplit, plan: SplitPlan) -> Iterator[LatePiece]:
    for group in plan.groups:
        piece = Piece(split, plan.columns, group, is_alone=len(plan.groups) == 1)
        yield LatePiece(piece, *plan.stages(group)) if split.is_ranged else LatePiece(piece)
