"""Rows that match a question in the order of a column, such as the newest first, instead of by score.

The log knows bounds of the column in each split. What may hold the first rows is searched first, and what lies behind
all rows of the answer is not: neither its segments are opened, nor its rows read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.index.fulltext import LENIENT
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.prefetch import prefetch
from storage_core.rows.codes import Mask, codes
from storage_core.rows.columns import stored_name
from storage_core.rows.keys import Positions, pack, sorted_order
from storage_core.rows.positions import positions
from storage_core.rows.sortable import bound_keys, sortable
from storage_core.rows.vectors import type_text
from storage_core.search.first_of import FirstRows, in_turns
from storage_core.search.matches import Matches, Query, matched
from storage_core.search.order import codes_of, tie_columns
from storage_core.search.question import page
from storage_core.search.searched import Searched

_AT_ONCE: Final = 4
_MOST_SOURCES: Final = 16


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a column: greatest values first where it is `descending`, else least; nulls last."""

    column: str
    descending: bool = True

    @staticmethod
    def of(column: object, descending: object) -> Order:
        """Return the order that is wanted. Raises `InvalidInput` for none."""
        if not isinstance(descending, bool):
            raise InvalidInput(f"descending is {quoted(descending)}; it is true or false")
        if not isinstance(column, str):
            raise InvalidInput(f"order_by is {quoted(column)}; give the name of a column, and `descending` beside it")
        return Order(column, descending)

    def require_known(self, schema: pa.Schema) -> None:
        """Raise `InvalidInput` for a column that is not there, or has no order."""
        if self.column not in schema.names:
            raise InvalidInput(f"order_by is {quoted(self.column)}; it is one of the columns {', '.join(schema.names)}")
        if pa.types.is_nested(kind := schema.field(self.column).type):
            raise InvalidInput(f"order_by is {self.column!r}, which is {type_text(kind)}: its values have no order")


def refuse_scores(of_scores: Mapping[str, object]) -> None:
    """Raise `InvalidInput` where a parameter of scores is given, for an order leaves them out."""
    if given := [name for name, value in of_scores.items() if value is not None]:
        raise InvalidInput(f"order_by leaves scores out, and {given[0]} is of scores; give one of the two")


def search_ordered(
    searched: Searched,
    query: object,
    order: Order,
    columns: Sequence[str] | None = None,
    *,
    index: object = None,
    syntax: object = LENIENT,
    limit: object = 10,
    offset: object = 0,
) -> pa.Table:
    """Return `limit` rows that match, behind the first `offset`, in the order of a column; without a score.

    Rows with equal values come as rows with equal scores do (`search_order`), so pages of one version neither overlap
    nor leave a row out. Requests: those of `Matches.rows`, and of the rows that may be in the answer; none of sources
    whose bounds in the log are behind it. Integers, decimals, dates and timestamps have bounds. Raises `InvalidInput`
    for a column that has no order, and as `search` does.
    """
    snapshot = searched.snapshot
    order.require_known(snapshot.schema)
    wanted, (first, after) = Query.of(snapshot, query, index=index, syntax=syntax, what="order_by"), page(limit, offset)
    names = tuple(snapshot.schema.names) if columns is None else tuple(columns)

    def answer(matches: Matches) -> pa.Table:
        rows = _First(snapshot, order, first + after, names)
        _add_first(matches, rows)
        return rows.rows.rows().select(list(names)).slice(after)

    return matched(searched, wanted, answer)


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A source, or `rows` of it, of which no value comes before the key `bound`; None where that is unknown."""

    bound: Any
    source: int
    rows: BitMap = field(default_factory=BitMap)


class _First:
    """The first so many of the rows that it is given, in the order of a column."""

    def __init__(self, snapshot: Snapshot, order: Order, limit: int, columns: Collection[str]) -> None:
        self.by, self.descending, self.limit = order.column, order.descending, limit
        self._ties = tie_columns(snapshot)
        wanted = {self.by, *columns, *self._ties}
        schema = pa.schema([each for each in snapshot.schema if each.name in wanted])
        self.columns: Sequence[str] = tuple(schema.names)
        self._type = schema.field(self.by).type
        self.rows = FirstRows(schema, limit, self._order)

    def in_order(self, found: Iterable[_Bounded]) -> list[_Bounded]:
        """Return what may hold the first rows before what may not; what has no bound is before all."""
        each_found = [*found]
        known = [each for each in each_found if each.bound is not None]
        ordered = sorted(known, key=lambda each: each.bound, reverse=self.descending)
        return [*(each for each in each_found if each.bound is None), *ordered]

    def bound(self, bounds: Iterable[Any]) -> Any:
        """Return the key that nothing comes before of what has these bounds; None where that is unknown."""
        known = [*bounds]
        return None if not known or None in known else (max if self.descending else min)(known)

    def excludes(self, bound: Any) -> bool:
        """Whether no row is among the first whose value does not come before this key."""
        if bound is None or not self.rows.is_full:
            return False
        last = sortable(self.rows.last().column(self.by).combine_chunks())[0].as_py()
        return last is not None and bool(last > bound if self.descending else last < bound)

    def contenders(self, values: pa.ChunkedArray) -> Mask:
        """Return which rows with these values may be among the first."""
        last = self.rows.last().column(self.by) if self.rows.is_full else values.slice(0, 0)
        coded = codes(pa.chunked_array([*last.chunks, *values.chunks], self._type), descending=self.descending).values
        own = coded[len(last) :]
        reached = [coded[0]] if len(last) else []
        if len(own) > self.limit:
            reached.append(np.partition(own, self.limit - 1)[self.limit - 1])
        return own <= min(reached) if reached else np.ones(len(own), np.bool_)

    def _order(self, rows: pa.Table) -> Positions:
        coded = [codes(rows.column(self.by), descending=self.descending)]
        coded += [codes_of(rows.column(name)) for name in self._ties]
        return sorted_order(pack(coded, rows.num_rows))


def _add_first(matches: Matches, first: _First) -> None:
    """Search the sources in the order of their bounds, more and more at a time, until the next lie behind the rows."""
    splits = {split for source in matches.sources for split in source.splits}
    bounds = _bounds(matches.searched.snapshot, first, splits)
    waiting = first.in_order(
        _Bounded(first.bound(bounds[split] for split in source.splits), number)
        for number, source in enumerate(matches.sources)
    )
    at_once = sum(each.bound is None for each in waiting) or 1
    for group in in_turns(waiting, lambda each: first.excludes(each.bound), lambda: _MOST_SOURCES, at_once=at_once):
        _add(matches, first, _pieces(matches, bounds, [each.source for each in group]))


def _bounds(snapshot: Snapshot, first: _First, splits: Collection[str]) -> Mapping[str, Any]:
    """By split the key that no row of it comes before; None where the log does not tell."""
    kind, adds = snapshot.schema.field(first.by).type, [snapshot.splits[each] for each in splits]
    if not any(is_kind(kind) for is_kind in _BOUNDED):
        return dict.fromkeys(splits)
    known = [(add.maxValues if first.descending else add.minValues) or {} for add in adds]
    stored = stored_name(snapshot.schema.field(first.by))
    keys = bound_keys(pa.array([each.get(stored) for each in known], pa.string()), kind)
    return dict(zip(splits, keys.to_pylist(), strict=True))


# Bounds of floats do not tell of NaN, which is the greatest; those of texts are long before they differ.
_BOUNDED = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp)


def _pieces(matches: Matches, bounds: Mapping[str, Any], numbers: Sequence[int]) -> Iterator[_Bounded]:
    """Yield the rows that match in some sources, apart by the split that they are in."""
    for number, rows in matches.rows(numbers):
        source, own = matches.sources[number], np.array(rows.to_array(), np.uint32)
        if len(source.splits) < 2:
            yield _Bounded(bounds[source.splits[0]] if source.splits else None, number, rows)
            continue
        for split, which, _ in source.in_splits(own.tolist()):
            yield _Bounded(bounds[split], number, BitMap(own[which]))


def _add(matches: Matches, first: _First, pieces: Iterable[_Bounded]) -> None:
    """Give the rows of some pieces, in the order of their bounds: their values, then the rows that may be wanted."""

    def values(piece: _Bounded) -> pa.ChunkedArray:
        return matches.sources[piece.source].take(piece.rows.to_array().tolist(), [first.by]).column(first.by)

    for group in in_turns(first.in_order(pieces), lambda each: first.excludes(each.bound), lambda: _AT_ONCE):
        for piece, own in zip(group, prefetch(values, group, _AT_ONCE), strict=True):
            wanted = np.flatnonzero(first.contenders(own))
            rows = positions(piece.rows)[wanted].tolist()
            if rows:
                first.rows.add(matches.sources[piece.source].take(rows, first.columns))
