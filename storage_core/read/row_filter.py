"""The filter of a search. The filter selects the candidate rows that meet a condition.

For rows that bitmap indexes cover, the row numbers in the indexes decide. For rows that bitmap indexes do not cover,
DuckDB evaluates the filter in a process with restricted rights. The results for rows of splits are cached. Therefore
other indexes of the same search do not evaluate these rows again. Later searches at the same version also use the
cached results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.limits import QueryLimits
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.keys import Positions, bitmap_of
from storage_core.engine.sandbox.process import prepare
from storage_core.engine.statement import TABLE
from storage_core.index.segment_reader import BitmapParts
from storage_core.log.snapshot import Snapshot
from storage_core.read.bitmap import UNKNOWN, Answer, Bitmaps
from storage_core.read.duckdb_view import Source
from storage_core.read.predicate import And, Filter, Opaque, Or, Predicate, in_columns
from storage_core.read.pruning import prune
from storage_core.read.sql_predicate import columns_of
from storage_core.read.verified_files import query_errors
from storage_core.store.contract import ObjectStore
from storage_core.store.pieces import KeptValues

_KNOWN_BYTES = 1_000  # the approximate size of a name and its objects


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The rows for which the filter was evaluated. The rows belong to a split or to another set of rows with a name.

    `judged` are the evaluated rows, and `met` are the evaluated rows that meet the filter.
    """

    judged: BitMap
    met: BitMap


NOTHING_KNOWN: Final = FilterResult(BitMap(), BitMap())


class RowFilter:
    """A filter over rows of one snapshot. The filter keeps the rows that make its condition true by DuckDB's rules."""

    columns: Sequence[str]
    """The columns that the filter reads. `columns` contains at least one column."""

    def __init__(
        self,
        store: ObjectStore,
        snapshot: Snapshot,
        wanted: Filter,
        *,
        limits: QueryLimits | None,
        parts: BitmapParts,
        values: KeptValues | None = None,
        query: str = "search",
        is_run: bool = True,
    ) -> None:
        """Prepare the filter. If `is_run` is True, the process that evaluates the filter starts later.

        Results are cached in `values`. Without `values`, results are cached for this filter only. Error messages call
        the filter `query`. Raises `Unavailable` if no process can be started.
        """
        self._query = query
        self._snapshot = snapshot
        self._wanted = wanted
        self._limits = QueryLimits() if limits is None else limits
        with query_errors(query, columns=snapshot.schema.names):  # DuckDB may refuse a literal
            self._condition = str(wanted.expression)
        self.rows_read = 0
        """The number of rows for which `columns` were read."""
        self._name = ("filter", self._condition, snapshot.table_id, snapshot.version)
        self.answers: dict[str, Answer] = {}
        """The results of the bitmap indexes, by the path of the split."""
        names = snapshot.schema.names
        read = columns_of(wanted, names)
        self.columns = tuple(names if read is None else sorted(read) or names[:1])
        self._predicate = in_columns(wanted.predicate, names)
        # A condition that Tidemark does not understand may have another result later. Therefore the results of this
        # condition are not cached after the search.
        self._kept = values if values is not None and _is_lasting(self._predicate or wanted.predicate) else KeptValues()
        self._bitmaps = Bitmaps(store, snapshot, self._predicate, columns=self.columns, parts=parts, is_bounded=False)
        self._is_judged = self._bitmaps.is_exact  # in this case, the literals are values of the columns' types
        if is_run and not self._is_judged:
            prepare()  # the process starts while the search finds rows

    @property
    def condition(self) -> str:
        """The filter as SQL."""
        return self._condition

    @property
    def bitmap_indexes(self) -> tuple[str, ...]:
        """The names of the bitmap indexes that the filter uses. Each index is used for the splits that it covers."""
        return tuple(each.definition.name for each in self._bitmaps.indexes)

    @property
    def is_answered_by_bitmaps(self) -> bool:
        """Whether the bitmap indexes decide the whole filter for the splits that they cover."""
        return self._bitmaps.is_exact

    @cached_property
    def splits(self) -> frozenset[str]:
        """The paths of the splits that may contain a row for which the filter is true.

        Makes the requests of `pruning.prune`.
        """
        return frozenset(add.path for add in prune(self._snapshot, self._predicate))

    def by_bitmaps(self, split: str) -> Answer:
        """Return the result of the bitmap indexes for the rows of a split.

        Requests: those of `Bitmaps.of_split`, once.
        """
        if not self._bitmaps.indexes:
            return UNKNOWN
        if split not in self.answers:
            self.answers[split] = self._bitmaps.of_split(self._snapshot.splits[split])
        return self.answers[split]

    def known(self, name: str) -> FilterResult:
        """Return the cached results for the rows of a split or of another named set.

        If the cache has results, the filter is valid and is not checked again.
        """
        found = self._kept.get((*self._name, name))
        if not isinstance(found, FilterResult):
            return NOTHING_KNOWN
        self._is_judged = True
        return found

    def note(self, name: str, rows: Positions, met: Mask) -> None:
        """Cache which of these rows meet the filter. `name` is the path of a split or identifies the set of rows."""
        before = self.known(name)
        judged, meeting = bitmap_of(rows), bitmap_of(rows[met])
        now = FilterResult(before.judged | judged, before.met | meeting)
        size = _KNOWN_BYTES + len(now.judged.serialize()) + len(now.met.serialize())
        self._kept.keep((*self._name, name), now, size)

    def require_valid(self) -> None:
        """Raise the errors of `mask` if the filter was never evaluated because the search found no row."""
        if not self._is_judged:
            self.mask(self._snapshot.schema.empty_table(), 0)

    def mask(self, rows: pa.Table, count: int) -> Mask:
        """Return a mask of the rows that meet the filter. `rows` contains `count` rows with the columns of the filter.

        Raises:
            InvalidInput: The filter cannot be evaluated.
            Unavailable: The filter exceeds a limit.
        """
        self._is_judged = True
        self.rows_read += count
        place = "place"
        while place in self._condition.lower() or place in map(str.lower, self._snapshot.schema.names):
            place += "_"
        read = [each for each in self._snapshot.schema if each.name in self.columns]
        columns = [
            rows.column(each.name) if each.name in rows.column_names else pa.nulls(count, each.type) for each in read
        ]
        numbered = pa.table([*columns, np.arange(count)], names=[*(each.name for each in read), place])
        text = f"SELECT {place} FROM {TABLE} WHERE {self._condition}"  # noqa: S608  # made of parts, or was checked
        errors = query_errors(self._query, (), self._limits, columns=self._snapshot.schema.names)
        with errors, Source(numbered).answer(text, self._limits) as result:
            places = [batch.column(0).to_numpy() for batch in result]
        mask: Mask = np.zeros(count, np.bool_)
        for each in places:
            mask[each] = True
        return mask


def _is_lasting(predicate: Predicate) -> bool:
    """Return whether a condition always has the same result for the same row."""
    match predicate:
        case And(children) | Or(children):
            return all(map(_is_lasting, children))
        case Opaque():
            return False
        case _:
            return True
