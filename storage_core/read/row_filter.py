"""The filter of a search: which of some rows meet it.

Bitmap indexes tell of rows by their places. DuckDB tells of all others, in a process that can do nothing else. What it
said of rows of splits is kept, so that no index of a search asks again, and no other search of the same version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.engine.sandbox.pool import prepare
from storage_core.engine.statement import TABLE
from storage_core.index.bitmap_parts import BitmapParts
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.bitmap_pruning import UNKNOWN, Answer, Bitmaps
from storage_core.read.column_names import in_columns
from storage_core.read.columns_read import columns_of
from storage_core.read.predicate import And, Filter, Opaque, Or, Predicate
from storage_core.read.pruning import prune
from storage_core.read.query_errors import query_errors
from storage_core.read.source import Source
from storage_core.rows.codes import Mask
from storage_core.rows.keys import Positions
from storage_core.rows.positions import bitmap_of
from storage_core.settings.query import QueryLimits
from storage_core.split.kept_values import KeptValues

_KNOWN_BYTES = 1_000  # of a name and the objects behind it


@dataclass(frozen=True, slots=True)
class Known:
    """Rows of a split, or of what else has a name, about which the filter was asked, and those of them that meet it."""

    judged: BitMap
    met: BitMap


NOTHING_KNOWN: Final = Known(BitMap(), BitMap())


class RowFilter:
    """A filter over rows of one snapshot; it keeps those where it is true, by DuckDB's rules."""

    columns: Sequence[str]
    """Those that the filter reads, and one at least."""

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
        """Start the process that may be asked later, if it `is_run`. Raises `Unavailable` where the system gives none.

        What it says of rows is kept in `values`; without them for this filter only. Errors call it `query`.
        """
        self._query = query
        self._snapshot = snapshot
        self._wanted = wanted
        self._limits = QueryLimits() if limits is None else limits
        with query_errors(query, columns=snapshot.schema.names):  # a literal may be none of DuckDB's
            self._condition = str(wanted.expression)
        self.rows_read = 0
        """Of so many rows were the `columns` read."""
        self._name = ("filter", self._condition, snapshot.table_id, snapshot.version)
        self.answers: dict[str, Answer] = {}
        """What bitmap indexes told of splits, by path."""
        names = snapshot.schema.names
        read = columns_of(wanted, names)
        self.columns = tuple(names if read is None else sorted(read) or names[:1])
        self._predicate = in_columns(wanted.predicate, names)
        # A condition that is not understood may be another at another time: what is known of it ends with the search.
        self._kept = values if values is not None and _is_lasting(self._predicate or wanted.predicate) else KeptValues()
        self._bitmaps = Bitmaps(store, snapshot, self._predicate, columns=self.columns, parts=parts, is_bounded=False)
        self._is_judged = self._bitmaps.is_exact  # whose values are those of the columns' types
        if is_run and not self._is_judged:
            prepare()  # while rows are found

    @property
    def condition(self) -> str:
        """The filter as SQL."""
        return self._condition

    @property
    def bitmap_indexes(self) -> tuple[str, ...]:
        """The names of the bitmap indexes that are asked, of splits that they cover."""
        return tuple(each.definition.name for each in self._bitmaps.indexes)

    @property
    def is_answered_by_bitmaps(self) -> bool:
        """Whether these tell all that the filter asks, of splits that they cover."""
        return self._bitmaps.is_exact

    @cached_property
    def splits(self) -> frozenset[str]:
        """The paths of the splits that may hold a row that meets the filter. Requests: those of `pruning.prune`."""
        return frozenset(add.path for add in prune(self._snapshot, self._predicate))

    def by_bitmaps(self, split: str) -> Answer:
        """Return what bitmap indexes tell of the rows of a split. Requests: those of `Bitmaps.of_split`, once."""
        if not self._bitmaps.indexes:
            return UNKNOWN
        if split not in self.answers:
            self.answers[split] = self._bitmaps.of_split(self._snapshot.splits[split])
        return self.answers[split]

    def known(self, name: str) -> Known:
        """Return what was noted of rows of a split, or of what else has a name; what it was asked about is sound."""
        found = self._kept.get((*self._name, name))
        if not isinstance(found, Known):
            return NOTHING_KNOWN
        self._is_judged = True
        return found

    def note(self, name: str, rows: Positions, met: Mask) -> None:
        """Keep which of these rows of a split meet the filter, or of what else has a name that fixes its rows."""
        before = self.known(name)
        judged, meeting = bitmap_of(rows), bitmap_of(rows[met])
        now = Known(before.judged | judged, before.met | meeting)
        size = _KNOWN_BYTES + len(now.judged.serialize()) + len(now.met.serialize())
        self._kept.keep((*self._name, name), now, size)

    def require_sound(self) -> None:
        """Raise as `mask` does for a filter that was asked of no row, because none was found."""
        if not self._is_judged:
            self.mask(self._snapshot.schema.empty_table(), 0)

    def mask(self, rows: pa.Table, count: int) -> Mask:
        """Return which of `count` rows, of which the `columns` are given, meet the filter.

        Raises `InvalidInput` where the filter cannot be evaluated, `Unavailable` where it passes a limit.
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
    """Whether a condition says the same of a row whenever it is asked."""
    match predicate:
        case And(children) | Or(children):
            return all(map(_is_lasting, children))
        case Opaque():
            return False
        case _:
            return True
