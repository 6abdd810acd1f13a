"""Order of search results: sort keys, selection of the first rows, and snippets.

- A result is ordered by score. Rows with equal scores are ordered by the values of their columns (decision 0022). The
  order does not depend on the split, the generation or the position of a row. A compaction therefore does not change
  pages.
- `FirstRows` and `Best` keep the first rows of an order, in bounded memory.
- `in_windows` builds a result in steps. Each step reads a window, which contains the first rows of the ranking up to
  the window's size. The first rows come from the first window. Each further window is `GROWTH` times as large as the
  window before, and adds the next rows. The first rows of a longer ranking may differ from the rows of a shorter
  ranking. The size of the pages does not change the rows or their order.
- `with_snippets` adds snippets to the rows of a search. A row's snippets depend only on the values of this row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted
from storage_core.data.rows.codes import Codes, Mask, Unsigned, bound_keys, codes, leading_keys, sortable
from storage_core.data.rows.columns import stored_name
from storage_core.data.rows.keys import Positions, key_codes, pack, sorted_order
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext
from storage_core.index.fulltext import Scores, snippets
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.read.search.search_request import index_for, names_of

if TYPE_CHECKING:
    from storage_core.read.search.source_protocol import Source


_SPARE_ROWS: Final = 10_000

_Item = TypeVar("_Item")


class FirstRows:
    """A collector of the first `limit` rows of all added rows.

    Memory: `2 * limit` rows, and the rows of the last call of `add`.
    """

    def __init__(self, schema: pa.Schema, limit: int, order_of: Callable[[pa.Table], Positions]) -> None:
        """Start without rows. `order_of` returns the positions of rows in their sort order."""
        self._rows, self._limit, self._order_of = schema.empty_table(), limit, order_of
        self._is_trimmed = True

    def add(self, rows: pa.Table) -> None:
        """Add rows with the schema of this object."""
        self._rows, self._is_trimmed = pa.concat_tables([self._rows, rows]), False
        if self._rows.num_rows > 2 * self._limit + _SPARE_ROWS:
            self.rows()

    @property
    def is_full(self) -> bool:
        """Whether the number of rows has reached the limit."""
        return bool(self._rows.num_rows >= self._limit)

    def rows(self) -> pa.Table:
        """Return the first rows, in their order."""
        if not self._is_trimmed:
            self._rows = self._rows.take(pa.array(self._order_of(self._rows)[: self._limit]))
            self._is_trimmed = True
        return self._rows

    def last(self) -> pa.Table:
        """Return the last of the rows that `rows` returns."""
        return self.rows()[-1:]


def in_turns(
    waiting: Sequence[_Item], is_behind: Callable[[_Item], bool], most: Callable[[], int], *, at_once: int = 1
) -> Iterator[Sequence[_Item]]:
    """Yield the items in groups, in the same order. Stop at the first item whose rows all come after the wanted rows.

    The first group has `at_once` items. Each further group has twice as many items, up to `most()`.
    """
    while waiting and not is_behind(waiting[0]):
        group, waiting = waiting[:at_once], waiting[at_once:]
        yield group
        at_once = min(2 * at_once, most())


SCORE = "score"

# The bounds of float columns ignore NaN, which sorts after all other values. Bounds of texts are truncated, and texts
# often have the same long prefix.
BOUNDED = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp)


def tie_columns(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the columns that order rows with equal scores.

    For a keyed table, the columns are the key. Otherwise the columns are the time column and then all other columns.

    If two rows have equal values in all of these columns, the rows are equal, except for -0.0 and 0.0.
    """
    if snapshot.config.primary_key:
        return tuple(snapshot.config.primary_key)
    first = [snapshot.config.time_column] if snapshot.config.time_column in snapshot.schema.names else []
    return tuple(dict.fromkeys([*first, *snapshot.schema.names]))


def row_name(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the columns that identify a row in every source: the key, or the split and the row's position.

    The split and the position are not columns of the schema (`Best.taken`). In a table without a key, every row is in a
    split.
    """
    if snapshot.config.primary_key:
        return tuple(snapshot.config.primary_key)
    return free_name("split", snapshot.schema.names), free_name("row", snapshot.schema.names)


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with the prefix `_` repeated until no other column has this name."""
    while name in taken:
        name = f"_{name}"
    return name


def first_column(snapshot: Snapshot) -> pa.Field:
    """Return the first of the `tie_columns`."""
    return snapshot.schema.field(tie_columns(snapshot)[0])


def least(add: Add, snapshot: Snapshot) -> Any:
    """Return a lower bound of the first column of `tie_columns` in this split, or None.

    The bound is a code of `data.rows.codes`.
    """
    first = first_column(snapshot)
    text = (add.minValues or {}).get(stored_name(first))
    return bound_keys(pa.array([text], pa.string()), first.type)[0].as_py()


class Best:
    """A collector of the best `limit` rows of all added rows.

    Memory: `2 * limit` rows, and the rows of the last call of `add`.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        limit: int,
        columns: Collection[str],
        *,
        is_named: bool = False,
        has_ties: bool = True,
    ) -> None:
        """Start without rows.

        Args:
            snapshot: The snapshot that is searched.
            limit: The number of wanted rows.
            columns: The wanted columns of a row.
            is_named: Keep the `row_name` of each row, and use it to order equal rows.
            has_ties: True if two rows may have the same score. Otherwise the columns that order equal scores are not
                read.
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

    def taken(self, source: Source, rows: Positions) -> pa.Table:
        """Return these rows of a source in the form that `add` accepts.

        Requests: those of `Source.take`. Safe for threads.
        """
        taken = source.take(rows, self._read)
        if self._name:
            splits, places = np.empty(len(rows), object), np.empty(len(rows), np.int64)
            for split, own, there in source.in_splits(rows):
                splits[own], places[own] = split, there
            for name, values in zip(self._name, (pa.array(splits, pa.string()), pa.array(places)), strict=True):
                taken = taken.append_column(name, values)
        return taken

    def add(self, rows: pa.Table, scores: Scores) -> None:
        """Add rows, each with its score."""
        self._rows.add(rows.append_column(self._score, pa.array(scores, pa.float64())))

    @property
    def is_full(self) -> bool:
        """Whether the number of rows has reached the limit."""
        return self._rows.is_full

    def excludes(self, score: float, low: Any) -> bool:
        """Return True if none of these rows can be among the best rows.

        The rows have this score, and their first column is at least `low`.

        `low=None` matches any value.
        """
        if low is None or not self.is_full:
            return False
        lowest, worst = self._worst()
        reached = sortable(worst)[0].as_py()
        return bool(lowest > score or (lowest == score and reached is not None and reached < low))

    def contenders(self, low: Unsigned, high: Unsigned, *, score: float, wanted: int) -> Mask:
        """Return a mask of the rows that may be among the best rows. All of these rows have the same score.

        At most `wanted` rows are needed. The first column of each row is between its `leading_keys` in `low` and
        `high`.
        """
        reached = [np.partition(high, wanted - 1)[wanted - 1]] if len(high) >= wanted else []
        if self.is_full:
            lowest, worst = self._worst()
            reached += leading_keys(worst).tolist() if lowest == score else []
        return low <= min(reached) if reached else np.ones(len(low), np.bool_)

    def _worst(self) -> tuple[float, pa.Array]:
        """Return the score and the first column of the last row."""
        last = self._rows.last()
        return last.column(self._score)[0].as_py(), last.column(self._columns[0]).combine_chunks()

    def answer(self, columns: Sequence[str], *, score: str) -> pa.Table:
        """Return these columns of the rows, best first, and then the `score`."""
        rows = self._rows.rows()
        return rows.select(list(columns)).append_column(score, rows.column(self._score))

    def _order(self, rows: pa.Table) -> Positions:
        return best_first(rows.column(self._score), rows, self._columns)


def best_first(scores: pa.ChunkedArray, rows: pa.Table, columns: Sequence[str]) -> Positions:
    """Return the order of the rows by score. Rows with equal scores are ordered by these columns."""
    coded = [codes(scores, descending=True)]
    if len(np.unique(scores.to_numpy())) < len(scores):
        coded += [codes_of(rows.column(name)) for name in columns]
    return sorted_order(pack(coded, rows.num_rows))


def codes_of(column: pa.ChunkedArray) -> Codes:
    """Return the codes of one of the `tie_columns`.

    Lists, structs and maps have no order, so their text is compared.
    """
    if pa.types.is_nested(column.type):
        column = pa.chunked_array([[None if each is None else repr(each) for each in column.to_pylist()]], pa.string())
    return codes(column)


GROWTH: Final = 4


def windows(first: int, most: int) -> Iterator[int]:
    """Yield increasing window sizes. The last size is the first size of at least `most` rows."""
    yield first
    while first < most:
        first *= GROWTH
        yield first


def in_windows(
    ranked: Callable[[int], tuple[pa.Table, bool]], most: int, name: Sequence[str], *, first: int
) -> pa.Table:
    """Read the ranking in growing windows, and return the first `most` rows of the ranking.

    Args:
        ranked: A function that takes the size of a window. It returns the rows of the window, best first, and whether
            these are all rows. It may return more rows than the size.
        most: The number of wanted rows.
        name: The columns that identify a row.
        first: The size of the first window.
    """
    found = list[pa.Table]()
    for window in windows(first, most):
        rows, is_all = ranked(window)
        if found:
            *known, own = key_codes([*found, rows], name)
            rows = rows.filter(pa.array(~np.isin(own, np.concatenate(known))))
        found.append(rows if is_all else rows.slice(0, window - sum(each.num_rows for each in found)))
        if is_all:
            break
    return pa.concat_tables(found).slice(0, most)


SNIPPETS = "snippets"


def with_snippets(
    search: Callable[[Sequence[str] | None], pa.Table],
    snapshot: Snapshot,
    query: object,
    columns: Sequence[str] | None,
    *,
    index: object,
    syntax: object,
    wanted: object = True,
) -> pa.Table:
    """Return the result of `search` with the wanted columns and an additional struct column.

    The struct has a snippet for each column of the index.

    The name of the struct column is `snippets`, with the prefix `_` if another column has this name. A snippet is HTML
    text, or null if the column has no match (`fulltext.snippets`). The texts are read together with the rows.

    Raises:
        InvalidInput: The index is not a full-text index. The errors of `search` are raised, too.
    """
    if wanted is not True:
        raise InvalidInput(f"snippets is {quoted(wanted)}. Give true or false")
    definition = _text_index(snapshot, index, query)
    if definition.kind != "fulltext" or not isinstance(query, str):
        raise InvalidInput(
            f"snippets need a full-text index, but index {definition.name!r} has the kind {definition.kind}. "
            "Name a full-text index, or leave snippets out"
        )
    parsed = fulltext.parse(query, definition, syntax=syntax)
    names = tuple(snapshot.schema.names) if columns is None else tuple(columns)
    found = search(tuple(dict.fromkeys([*names, *definition.columns])))
    added = [each for each in found.column_names if each not in snapshot.schema.names]
    name = free_name(SNIPPETS, [*snapshot.schema.names, *added])
    return found.select([*names, *added]).append_column(name, snippets(parsed, found))


def _text_index(snapshot: Snapshot, index: object, query: object) -> IndexDefinition:
    """Return the index that marks matches in texts: the named index, or the only full-text index."""
    if not isinstance(index, list | tuple):
        return index_for(snapshot, index, by_vector=query is None)
    named = [each for each in snapshot.config.indexes if each.name in names_of(index)]
    texts = [each for each in named if each.kind == "fulltext"] if len(named) > 1 else named
    if len(texts) != 1:
        raise InvalidInput(
            f"snippets need one full-text index, but {quoted(index)} has {len(texts)}. Name one full-text index",
            index=index,
        )
    return texts[0]
