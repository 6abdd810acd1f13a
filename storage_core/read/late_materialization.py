"""Late materialization: of a row group the columns of a condition first, the others where a row of it may meet that.

A condition is judged by the rules of `read.pruning`, each row by its own values as bounds. They leave in what DuckDB
may find to be true, so rows that are left out could not be in an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.read.bounds import ColumnBounds
from storage_core.read.predicate import Predicate
from storage_core.read.pruning import by_bounds, conditions, possible
from storage_core.rows.codes import Mask
from storage_core.rows.sortable import sortable
from storage_core.split.conform import conform_split
from storage_core.split.opened import Piece, leaves_of

OTHER_BYTES: Final = 2**20
"""Of a row group, columns outside the condition that take less are fetched at once: a second wait takes as long."""

_MOST_CONDITIONS: Final = 32
"""Each takes one comparison per row."""

_IN_VAIN: Final = 8
"""By so many row groups more that had such a row than had none, the rest of the read is fetched at once."""


def in_turn(
    footer: pq.FileMetaData, group: int, columns: Collection[str], predicate: Predicate | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Return those of `columns` of a row group that are fetched first, and those that may turn out to be needless.

    The others are none where all are fetched at once.
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


@dataclass(slots=True)
class PiecesRead:
    """Reads the pieces of splits for one read, each with its columns in turn while that spares something.

    Safe for threads. `predicate` is of a table with this schema.
    """

    predicate: Predicate | None
    schema: pa.Schema
    _in_vain: int = 0  # a hint: threads may lose one another's

    def read(self, piece: Piece) -> pa.Table:
        """Return the rows of a piece, but for some that cannot make the predicate true. Raises what `Piece.read` does.

        Ranged GETs where its split is read by ranges: those of its columns, in one wait or in two.
        """
        if self.predicate is None or not piece.is_ranged or piece.columns is None or self._in_vain > _IN_VAIN:
            return piece.read()
        [group] = piece.groups
        first, others = in_turn(piece.split.footer, group, piece.columns, self.predicate)
        if not others:
            return piece.read()
        rows = replace(piece, columns=first).read()
        compared = pa.schema([self.schema.field(name) for name in first])
        mask = may_match(conform_split(rows, compared), self.predicate)
        if not mask.any():
            self._in_vain -= 1
            return self.schema.empty_table()
        self._in_vain += 1
        rest = replace(piece, columns=others).read()
        named = (zip(each.column_names, each.columns, strict=True) for each in (rows, rest))
        both = pa.table(dict(chain.from_iterable(named)))  # a name with a dot may be read both times
        return both if mask.all() else both.filter(pa.array(mask))
