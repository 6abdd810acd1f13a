"""Rows of splits with their places in the files, hidden ones too, used row group by row group where they are read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import prefetch
from storage_core.rows.codes import Mask
from storage_core.rows.columns import stored_schema
from storage_core.rows.positions import positions
from storage_core.split.conform import conform_split
from storage_core.split.opened import OpenSplit, Piece
from storage_core.split.ranges import Footers
from storage_core.split.read import open_split, share_of
from storage_core.split.vectors import visible

SPLITS_AT_ONCE: Final = 16
PIECES_AT_ONCE: Final = 8
HELD_BYTES: Final = 128 * 2**20
"""What row groups that are under way may need of memory, about; one may need more."""

GroupsOf = Callable[[OpenSplit], Sequence[int]]
"""Tells which row groups of an open split are wanted, ascending."""

Used = TypeVar("Used")


@dataclass(frozen=True, slots=True)
class Part:
    """A row group of a split as the file has it, and the place in the file of its first row."""

    split: Add
    first: int
    stored: pa.Table
    schema: pa.Schema

    @property
    def rows(self) -> pa.Table:
        """Its rows, as the table has them."""
        return conform_split(self.stored, self.schema)

    def live(self, hidden: BitMap) -> Mask:
        """Return which of its rows are not hidden."""
        rows = self.stored.num_rows
        mask = visible(hidden, self.first, rows)
        return np.ones(rows, np.bool_) if mask is None else mask

    def taken(self, places: BitMap) -> pa.Table:
        """Return those of its rows, as the table has them, that are at these places of the file."""
        count = self.stored.num_rows
        own = positions(places & BitMap(range(self.first, self.first + count))) - self.first
        return self.rows if len(own) == count else replace(self, stored=self.stored.take(pa.array(own))).rows


@dataclass(frozen=True, slots=True)
class _Wanted(Generic[Used]):
    piece: Piece
    first: int
    schema: pa.Schema
    use: Callable[[Part], Used]

    @property
    def memory_bytes(self) -> int:
        return self.piece.memory_bytes

    def used(self) -> Used:
        return self.use(Part(self.piece.split.add, self.first, self.piece.read(), self.schema))


def used(
    use: Callable[[Part], Used],
    store: ObjectStore,
    splits: Sequence[Add],
    schema: pa.Schema,
    *,
    whole: pa.Schema,
    groups: GroupsOf,
    footers: Footers,
    as_dictionary: bool = False,
) -> Generator[Used]:
    """Yield what `use` makes of each wanted row group of the splits, in their order; it runs where one was read.

    That is in several threads, side by side. Row groups come with the columns of `schema`, which types them. `whole`
    is the schema of the table; both have what it remembers of its columns (`rows.columns`). Requests and errors: those
    of `read.fetching.fetched`, but for deletion vectors, which are not read: all rows come, each at its place.
    `as_dictionary`: texts are decoded of rows that are taken only, where a file has them as a dictionary.
    """
    stored = stored_schema(schema).names
    share = share_of(schema.names, whole)

    def opened(add: Add) -> OpenSplit:
        is_older = add.footerXxh3 is None
        return open_split(
            store, add, whole=is_older, share=share, footers=footers, deleted=BitMap(), as_dictionary=as_dictionary
        )

    def pieces() -> Generator[_Wanted[Used]]:
        with closing(prefetch(opened, splits, SPLITS_AT_ONCE)) as found:
            for split in found:
                first_rows = split.first_rows
                for piece in split.pieces(stored, groups(split)):
                    yield _Wanted(piece, int(first_rows[piece.group]), schema, use)

    with (
        closing(pieces()) as wanted,
        closing(
            prefetch(_Wanted.used, wanted, PIECES_AT_ONCE, weight=attrgetter("memory_bytes"), most=HELD_BYTES)
        ) as each,
    ):
        yield from each
