"""Rows of splits with their places in the files, hidden ones too, used row group by row group where they are read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
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
from storage_core.split.opened import OpenSplit, Piece, read_together
from storage_core.split.ranges import Footers
from storage_core.split.read import open_split, share_of
from storage_core.split.vectors import visible

SPLITS_AT_ONCE: Final = 16
PIECES_AT_ONCE: Final = 8
HELD_BYTES: Final = 128 * 2**20
"""What row groups that are under way may need of memory, about; one may need more."""

NEAR_AT_ONCE: Final = 4
TOGETHER_BYTES: Final = 16 * 2**20
"""Of files on a local disk, which nobody waits for, so much is read by one thread at a time: others cost their time."""

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
    """Row groups of a split that are read one after the other."""

    pieces: Sequence[Piece]
    schema: pa.Schema
    use: Callable[[Part], Used]
    memory_bytes: int

    def used(self) -> list[Used]:
        split = self.pieces[0].split
        first_rows = split.first_rows
        read = zip(self.pieces, read_together(self.pieces), strict=True)
        return [self.use(Part(split.add, int(first_rows[piece.group]), rows, self.schema)) for piece, rows in read]


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
    is_near = all(store.local_path(add.path) is not None for add in splits)

    def opened(add: Add) -> OpenSplit:
        is_older = add.footerXxh3 is None
        return open_split(
            store, add, whole=is_older, share=share, footers=footers, deleted=BitMap(), as_dictionary=as_dictionary
        )

    def wanted() -> Generator[_Wanted[Used]]:
        with closing(prefetch(opened, splits, 1 if is_near else SPLITS_AT_ONCE)) as found:
            for split in found:
                for pieces, size in _together(split.pieces(stored, groups(split)), TOGETHER_BYTES if is_near else 0):
                    yield _Wanted(pieces, schema, use, size)

    with (
        closing(wanted()) as keys,
        closing(
            prefetch(
                _Wanted.used,
                keys,
                NEAR_AT_ONCE if is_near else PIECES_AT_ONCE,
                weight=attrgetter("memory_bytes"),
                most=HELD_BYTES,
            )
        ) as found,
    ):
        yield from chain.from_iterable(found)


def _together(pieces: Sequence[Piece], most: int) -> Iterator[tuple[Sequence[Piece], int]]:
    """The pieces, as many together as take at most so much memory, or one that takes more; and what they take."""
    held, size = list[Piece](), 0
    for piece in pieces:
        own = piece.memory_bytes
        if held and size + own > most:
            yield held, size
            held, size = [], 0
        held.append(piece)
        size += own
    if held:
        yield held, size
