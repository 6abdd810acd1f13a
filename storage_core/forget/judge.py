"""Whether rows, records and texts meet the condition by which rows are forgotten."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.forget.memory import Memory
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.column_names import in_columns
from storage_core.read.late_materialization import may_match
from storage_core.read.predicate import And, Compare, Comparison, Filter, Or, Predicate
from storage_core.read.row_filter import RowFilter
from storage_core.read.verified import Verified
from storage_core.region.memtable import matching
from storage_core.rows.codes import Mask
from storage_core.rows.earlier_records import conformed
from storage_core.rows.fold import OPERATION, Operation, record_schema
from storage_core.settings.query import QueryLimits
from storage_core.split.conform import conform_split

_WHOLE = pa.array([int(Operation.PUT), int(Operation.RESET)], pa.int8())


@dataclass(slots=True, eq=False)
class Judge:
    """A condition over rows of a table, whichever schema of it they were written under.

    Of a keyed table it also remembers the keys of rows that met it: a patch or a delete of one of these is a record of
    such a row, though it does not say what the condition asks for.
    """

    store: ObjectStore
    snapshot: Snapshot
    wanted: Filter
    limits: QueryLimits | None = None
    verified: Verified = field(default_factory=Verified)
    memory: Memory = field(init=False)
    _filter: RowFilter = field(init=False)
    _predicate: Predicate = field(init=False)

    def __post_init__(self) -> None:
        """Raise what `RowFilter` raises. Nothing is asked yet."""
        self.memory = Memory(self.snapshot.config.primary_key)
        self._filter = RowFilter(
            self.store, self.snapshot, self.wanted, limits=self.limits, parts=self.verified.bitmaps, query="forget"
        )
        names = self.snapshot.schema.names
        self._predicate = in_columns(self.wanted.predicate, names) or self.wanted.predicate

    def at(self, head: Snapshot) -> Judge:
        """Return what judges by another version; of the same columns and settings it remembers what this one does."""
        judge = Judge(self.store, head, self.wanted, self.limits, self.verified)
        if head.metadata == self.snapshot.metadata:
            judge.memory = self.memory
        return judge

    @property
    def key(self) -> Sequence[str]:
        """The primary key; empty of an append table."""
        return self.snapshot.config.primary_key

    @property
    def schema(self) -> pa.Schema:
        """The columns that are looked at."""
        wanted = {*self._filter.columns, *self.key}
        return pa.schema([each for each in self.snapshot.schema if each.name in wanted])

    def rows(self, rows: pa.Table) -> Mask:
        """Return which rows of a split meet the condition. Raises what `conform_split` and `RowFilter.mask` raise."""
        return self._judged(conform_split(rows, self.schema))

    def records(self, records: pa.Table) -> Mask:
        """Return which records meet it: whole rows by their values, others by their keys, so far as they are known."""
        known = conformed(records, record_schema(self.snapshot.schema))
        whole = pc.is_in(known.column(OPERATION), _WHOLE).to_numpy()
        mask = np.zeros(known.num_rows, np.bool_)
        mask[whole] = self._judged(known.filter(pa.array(whole)).select(self.schema.names))
        if {*self._filter.columns} <= {*self.key}:  # also of a delete
            mask[~whole] = self._judged(known.filter(pa.array(~whole)).select(self.schema.names))
        elif not whole.all():
            self.memory.leave_open()
            keys = self.memory.keys
            if keys is not None:
                others = known.select(self.key).filter(pa.array(~whole))
                numbered = others.append_column("", pa.array(np.flatnonzero(~whole)))
                mask[matching(numbered, keys, self.key).column("").to_numpy()] = True
        return mask

    def arrived(self, rows: pa.Table) -> Mask:
        """Return which quarantined rows meet it: rows, or records, as somebody gave them."""
        if OPERATION in rows.column_names:
            return self.records(rows)
        try:
            return self.rows(rows)
        except (InvalidInput, pa.ArrowException):  # of other types than the table has
            return np.array([self.text(repr(each)) is not False for each in rows.to_pylist()], np.bool_)

    def require_sound(self) -> None:
        """Raise `InvalidInput` for a condition that cannot be evaluated."""
        self._filter.require_sound()

    def text(self, text: str) -> bool | None:
        """Return whether a text that is no row says what the condition asks for; None where it cannot be told.

        It can be told of conditions of equality: the text has the value, as a word.
        """
        return _says(self._predicate, text)

    def _judged(self, rows: pa.Table) -> Mask:
        mask = may_match(rows, self._predicate)
        if mask.any():
            left = rows.filter(pa.array(mask))
            mask[mask] = self._filter.mask(left, left.num_rows)
        if self.key and mask.any():
            met = rows.filter(pa.array(mask))
            self.memory.add(pa.table({name: met.column(name) for name in self.key}))
        return mask


def _says(predicate: Predicate, text: str) -> bool | None:
    match predicate:
        case Compare(comparison=Comparison.EQ, value=value):
            found = value if isinstance(value, str | bytes) else getattr(value, "text", value)
            plain = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
            return any(_has_word(text, each) for each in {plain, json.dumps(plain)[1:-1]})
        case And(children):
            answers = [_says(each, text) for each in children]
            return False if False in answers else True if True in answers else None
        case Or(children):
            answers = [_says(each, text) for each in children]
            return True if True in answers else None if None in answers else False
        case _:
            return None


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None
