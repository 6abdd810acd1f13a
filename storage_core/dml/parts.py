"""Rows of splits with their places in the files, whether a vector hides them or not, row group by row group."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import prefetch
from storage_core.rows.columns import stored_schema
from storage_core.rows.keys import Positions
from storage_core.split.conform import conform_split
from storage_core.split.opened import OpenSplit, Piece
from storage_core.split.ranges import Footers
from storage_core.split.read import open_split, share_of

SPLITS_AT_ONCE: Final = 16
PIECES_AT_ONCE: Final = 8
HELD_BYTES: Final = 128 * 2**20
"""What row groups that are under way may need of memory, about; one may need more."""

GroupsOf = Callable[[OpenSplit], Sequence[int]]
"""Tells which row groups of an open split are wanted, ascending."""


Keep = Callable[[Add, int, int], Positions]
"""Tells which rows of a row group are wanted, ascending, given its split, its first row's place and how many it has."""


@dataclass(frozen=True, slots=True)
class Part:
    """A row group of a split: the place in the file of its first row, and its rows that are wanted."""

    split: Add
    first: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class _Wanted:
    piece: Piece
    first: int
    schema: pa.Schema
    keep: Keep | None

    @property
    def memory_bytes(self) -> int:
        return self.piece.memory_bytes

    def read(self) -> Part:
        add, rows = self.piece.split.add, self.piece.read()
        if self.keep is not None:
            own = self.keep(add, self.first, rows.num_rows)
            rows = rows if len(own) == rows.num_rows else rows.take(pa.array(own))
        return Part(add, self.first, conform_split(rows, self.schema))


def parts(
    store: ObjectStore,
    splits: Sequence[Add],
    schema: pa.Schema,
    *,
    whole: pa.Schema,
    groups: GroupsOf,
    footers: Footers,
    keep: Keep | None = None,
) -> Generator[Part]:
    """Yield the wanted row groups of the splits in their order, with the columns of `schema`, which it types.

    `whole` is the schema of the table; both have what it remembers of its columns (`rows.columns`). Requests and
    errors: those of `read.fetching.fetched`, but for deletion vectors, which are not read: of each row group all rows
    come, each at its place, or those that `keep` tells. Texts of others are not decoded where a file has them as a
    dictionary.
    """
    stored = stored_schema(schema).names
    share = share_of(schema.names, whole)

    def opened(add: Add) -> OpenSplit:
        is_older = add.footerXxh3 is None
        coded = keep is not None
        return open_split(
            store, add, whole=is_older, share=share, footers=footers, deleted=BitMap(), as_dictionary=coded
        )

    def pieces() -> Generator[_Wanted]:
        with closing(prefetch(opened, splits, SPLITS_AT_ONCE)) as found:
            for split in found:
                first_rows = split.first_rows
                for piece in split.pieces(stored, groups(split)):
                    yield _Wanted(piece, int(first_rows[piece.group]), schema, keep)

    with (
        closing(pieces()) as wanted,
        closing(
            prefetch(_Wanted.read, wanted, PIECES_AT_ONCE, weight=attrgetter("memory_bytes"), most=HELD_BYTES)
        ) as read,
    ):
        yield from read
