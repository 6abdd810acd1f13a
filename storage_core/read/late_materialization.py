"""Late materialization: of a row group the columns of a condition first, the others where a row of it may meet that.

A condition is judged by the rules of `read.pruning`, each row by its own values as bounds. They leave in what DuckDB
may find to be true, so rows that are left out could not be in an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.objectstore.prefetch import prefetch
from storage_core.read.bounds import ColumnBounds
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import by_bounds, conditions, possible
from storage_core.rows.codes import Mask
from storage_core.rows.sortable import sortable
from storage_core.split.conform import conform_split
from storage_core.split.leaves import leaves_of
from storage_core.split.opened import Piece

OTHER_BYTES: Final = 2**20
"""Of a row group, columns outside the condition that take less are fetched at once: a second wait takes as long."""

_MOST_CONDITIONS: Final = 32
"""Each takes one comparison per row."""

_OF_FIRST: Final = 4
"""The columns fetched first may hold a quarter of `most`, beside it."""

_IN_VAIN: Final = 8
"""Once row groups with a possible match outnumber those without by more than this, the rest is fetched at once."""


def first_and_rest(
    footer: pq.FileMetaData, group: int, columns: Collection[str], predicate: Predicate | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Return those of `columns` of a row group that are fetched first, and those that may turn out to be needless.

    The second is empty where all are fetched at once.
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
    """Return per row False only where it cannot make the predicate true; columns that it lacks may hold anything."""

    @cache
    def bounds(column: str) -> ColumnBounds | None:
        if column not in rows.column_names:
            return None
        values = rows.column(column).combine_chunks()
        try:
            keys = sortable(values)
        except pa.ArrowInvalid:  # beyond what keys hold
            keys = sortable(pa.nulls(len(values), values.type))
        ones = pa.array(np.ones(len(values), np.int64))
        return ColumnBounds(values.type, lambda: keys, lambda: keys, values.is_null().cast(pa.int64()), ones)

    return possible(predicate, by_bounds(bounds), rows.num_rows)


def read_late(
    pieces: Iterable[Piece], predicate: Predicate | None, schema: pa.Schema, *, at_once: int, most: int
) -> Generator[pa.Table]:
    """Yield the rows of pieces in their order, but for some that cannot make the predicate true, each as it comes.

    `schema` has the wanted columns, typed as in the table. `at_once` are read at a time, within about `most` bytes of
    memory and a quarter more. Ranged GETs where a split is read by ranges: those of a piece's columns, in one wait or
    in two. Raises what `Piece.read` does.
    """
    bytes_held = attrgetter("memory_bytes")
    if predicate is None:
        yield from prefetch(Piece.read, pieces, at_once, weight=bytes_held, most=most)
        return
    stages = _Stages(predicate, schema)
    with closing(
        prefetch(_FirstRead.taken, map(stages.first, pieces), at_once, weight=bytes_held, most=most // _OF_FIRST)
    ) as begun:
        yield from prefetch(_RestRead.read, map(stages.second, begun), at_once, weight=bytes_held, most=most)


@dataclass(frozen=True, slots=True)
class _FirstRead:
    """A piece, and its columns that are fetched `first`, unless all are fetched at once; then those `rows`."""

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
    """What is still to be fetched of a piece, and which `rows` of those fetched are left by a `mask`."""

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
        both = pa.table(dict(chain.from_iterable(named)))  # a name with a dot may be read both times
        return both if self.mask is None else both.filter(pa.array(self.mask))


@dataclass(slots=True)
class _Stages:
    """Which columns of the pieces of a read are fetched when."""

    predicate: Predicate
    schema: pa.Schema
    _in_vain: int = 0

    def first(self, piece: Piece) -> _FirstRead:
        if not piece.split.is_ranged or piece.columns is None or self._in_vain > _IN_VAIN:
            return _FirstRead(piece)
        first, rest = first_and_rest(piece.split.footer, piece.group, piece.columns, self.predicate)
        if not rest:
            return _FirstRead(piece)
        return _FirstRead(piece, replace(piece, columns=first), replace(piece, columns=rest))

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
