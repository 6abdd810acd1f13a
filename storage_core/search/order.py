"""The order of answers: by score, and among equal scores by what is in the rows (decision 0094).

So it does not depend on the split, generation or place that a row is in, and pages stay as they are over a compaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.rows.codes import Codes, Mask, Unsigned, codes
from storage_core.rows.columns import stored_name
from storage_core.rows.keys import Positions, pack, sorted_order
from storage_core.rows.sortable import bound_keys, leading_keys, sortable
from storage_core.search.first_of import FirstRows

if TYPE_CHECKING:
    from storage_core.search.source import Source

SCORE = "score"

Between = tuple[Unsigned, Unsigned]
"""Per row two `leading_keys`: of what its value in the first of the `tie_columns` is not below, and not above."""


def tie_columns(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the columns that order rows with equal scores: the key, or the time column and then all others.

    Rows that are equal in all of these are equal, but for -0.0 and 0.0.
    """
    if snapshot.config.primary_key:
        return tuple(snapshot.config.primary_key)
    first = [snapshot.config.time_column] if snapshot.config.time_column in snapshot.schema.names else []
    return tuple(dict.fromkeys([*first, *snapshot.schema.names]))


def row_name(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the columns that name a row, in whichever source it is found: the key, or its split and its place there.

    Those two are in no schema (`Best.taken`); a table without a key has its rows in splits only.
    """
    if snapshot.config.primary_key:
        return tuple(snapshot.config.primary_key)
    return free_name("split", snapshot.schema.names), free_name("row", snapshot.schema.names)


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, behind as many `_` as it takes to be no other's."""
    while name in taken:
        name = f"_{name}"
    return name


def first_column(snapshot: Snapshot) -> pa.Field:
    """Return the first of the `tie_columns`."""
    return snapshot.schema.field(tie_columns(snapshot)[0])


def least(add: Add, snapshot: Snapshot) -> Any:
    """Return what no value of the first of the `tie_columns` is below in this split, as `rows.sortable`; or None."""
    first = first_column(snapshot)
    text = (add.minValues or {}).get(stored_name(first))
    return bound_keys(pa.array([text], pa.string()), first.type)[0].as_py()


class Best:
    """The best `limit` of the rows that it is given. Memory is that of twice as many, and of those given last."""

    def __init__(
        self,
        snapshot: Snapshot,
        limit: int,
        columns: Collection[str],
        *,
        is_named: bool = False,
        has_ties: bool = True,
    ) -> None:
        """Hold no row yet; of a row `columns` are wanted. If `is_named` its `row_name` too, which orders equal rows.

        Unless it `has_ties`, no two rows will have the same score, and what else orders them need not be read.
        """
        self._name = tuple(each for each in row_name(snapshot) if each not in snapshot.schema.names) if is_named else ()
        self._columns = (*(tie_columns(snapshot) if has_ties else ()), *self._name)
        wanted = {*columns, *self._columns, *(row_name(snapshot) if is_named else ())}
        schema = pa.schema([each for each in snapshot.schema if each.name in wanted])
        self._read: Sequence[str] = tuple(schema.names)
        for name, kind in zip(self._name, (pa.string(), pa.int64()), strict=False):
            schema = schema.append(pa.field(name, kind))
        self._score = free_name(SCORE, schema.names)
        self._rows = FirstRows(schema.append(pa.field(self._score, pa.float64())), limit, self._order)

    def taken(self, source: Source, rows: Sequence[int]) -> pa.Table:
        """Return what `add` takes of these rows of a source. Requests: those of `Source.take`. Safe for threads."""
        taken = source.take(rows, self._read)
        if self._name:
            splits, places = np.empty(len(rows), object), np.empty(len(rows), np.int64)
            for split, own, there in source.in_splits(rows):
                splits[own], places[own] = split, there
            for name, values in zip(self._name, (pa.array(splits, pa.string()), pa.array(places)), strict=True):
                taken = taken.append_column(name, values)
        return taken

    def add(self, rows: pa.Table, scores: Sequence[float]) -> None:
        """Take rows, each with its score."""
        self._rows.add(rows.append_column(self._score, pa.array(scores, pa.float64())))

    @property
    def is_full(self) -> bool:
        """Whether it has as many rows as are wanted."""
        return self._rows.is_full

    def excludes(self, score: float, low: Any) -> bool:
        """Whether no row of this score is among the best whose first column is at least `low`; None is any value."""
        if low is None or not self.is_full:
            return False
        lowest, worst = self._worst()
        reached = sortable(worst)[0].as_py()
        return bool(lowest > score or (lowest == score and reached is not None and reached < low))

    def contenders(self, low: Unsigned, high: Unsigned, *, score: float, wanted: int) -> Mask:
        """Return which of some rows of this score, of which `wanted` at most are among the best, may be.

        The first column of each is between these `leading_keys`.
        """
        reached = [np.partition(high, wanted - 1)[wanted - 1]] if len(high) >= wanted else []
        if self.is_full:
            lowest, worst = self._worst()
            reached += leading_keys(worst).tolist() if lowest == score else []
        return low <= min(reached) if reached else np.ones(len(low), np.bool_)

    def _worst(self) -> tuple[float, pa.Array]:
        """The score and the first column of the last row."""
        last = self._rows.last()
        return last.column(self._score)[0].as_py(), last.column(self._columns[0]).combine_chunks()

    def answer(self, columns: Sequence[str], *, score: str) -> pa.Table:
        """Return these columns of the rows in their order, and behind them the `score`."""
        rows = self._rows.rows()
        return rows.select(list(columns)).append_column(score, rows.column(self._score))

    def _order(self, rows: pa.Table) -> Positions:
        return best_first(rows.column(self._score), rows, self._columns)


def best_first(scores: pa.ChunkedArray, rows: pa.Table, columns: Sequence[str]) -> Positions:
    """Return the order of rows: by score, and among equal scores by these columns."""
    coded = [codes(scores, descending=True)]
    if len(np.unique(scores.to_numpy())) < len(scores):
        coded += [codes_of(rows.column(name)) for name in columns]
    return sorted_order(pack(coded, rows.num_rows))


def codes_of(column: pa.ChunkedArray) -> Codes:
    """Return the codes of one of the `tie_columns`: lists, structs and maps, which have no order, go by their text."""
    if pa.types.is_nested(column.type):
        column = pa.chunked_array([[None if each is None else repr(each) for each in column.to_pylist()]], pa.string())
    return codes(column)
