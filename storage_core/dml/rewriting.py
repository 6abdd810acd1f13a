"""The rows of an update: read from where they were found, changed, and written as new splits of their windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from storage_core.dml.assignments import Assignments, repeated
from storage_core.dml.finding import ByCondition
from storage_core.dml.parts import used
from storage_core.dml.statement import Found
from storage_core.log.actions import Add, Metadata
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.read.row_group_pruning import groups_with
from storage_core.read.verified import Verified
from storage_core.rows.columns import stored_schema
from storage_core.rows.incoming import PIECE_BYTES
from storage_core.rows.schema import conform
from storage_core.settings.query import QueryLimits
from storage_core.split.context import context_of
from storage_core.split.encodings import Encodings, inherited
from storage_core.split.opened import OpenSplit
from storage_core.split.write import sort_and_write

ROWS_AT_ONCE: Final = 2**18


@dataclass(slots=True, eq=False)
class Rewriter:
    """Writes rows as `given` sets them: window by window, so that of one whose rows are the same nothing is rewritten.

    Memory: about 64 MiB of rows, and what `parts.used` holds.
    """

    log: TransactionLog
    given: object
    finder: ByCondition
    limits: QueryLimits
    verified: Verified
    _written: dict[int | None, tuple[Metadata, Sequence[Found], Sequence[Add]]] = field(default_factory=dict)

    def require_sound(self, head: Snapshot) -> None:
        """Return when what is set fits the table; else raise what `Assignments` raises. No request."""
        assignments = Assignments.of(self.given, head.schema)
        assignments.applied(head.schema.empty_table(), self.limits, head.config.nonzero_vectors)

    def __call__(self, head: Snapshot, found: Sequence[Found]) -> Sequence[Add]:
        """Return the splits of the rows that were found on this head.

        Requests: those of `parts.used`, and one PUT per split. Raises what `Assignments` raises.
        """
        windows: defaultdict[int | None, list[Found]] = defaultdict(list)
        for each in found:
            windows[each.split.windowStart].append(each)
        return [add for window, own in windows.items() for add in self._of_window(head, window, own)]

    def _of_window(self, head: Snapshot, window: int | None, found: Sequence[Found]) -> Sequence[Add]:
        known = self._written.get(window)
        if known is None or known[0] != head.metadata or not _are_alike(known[1], found):
            known = self._written[window] = head.metadata, found, self._rewritten(head, found)
        return known[2]

    def _rewritten(self, head: Snapshot, found: Sequence[Found]) -> Sequence[Add]:
        ids, context = self.log.ids, context_of(head)
        assignments, nonzero = Assignments.of(self.given, head.schema), head.config.nonzero_vectors
        adds: list[Add] = []
        encodings: Encodings | None = None
        for rows in self._pieces(self._columns(head, assignments), found):
            changed = [
                assignments.applied(rows.slice(first, ROWS_AT_ONCE), self.limits, nonzero)
                for first in range(0, rows.num_rows, ROWS_AT_ONCE)
            ]
            encodings = self._inherited(head, found) if encodings is None else encodings
            adds += sort_and_write(
                self.log.store,
                pa.concat_tables(changed),
                context=context,
                ids=ids,
                now_ms=self.log.clock.now_ms(),
                encodings=encodings,
            )
        return adds

    def _inherited(self, head: Snapshot, found: Sequence[Found]) -> Encodings | None:
        """The encodings of the splits that the rows are from, of those whose footers are held; no request."""
        footers = [(each.split.numRecords or 0, self.verified.footers.held(each.split)) for each in found]
        inputs = [(rows, {} if footer is None else footer.entries) for rows, footer in footers]
        return inherited(inputs, stored_schema(head.schema))

    def _columns(self, head: Snapshot, assignments: Assignments) -> _Columns:
        needed = assignments.needed(head.schema.names)
        known = {**self.finder.only_values(head)}
        known |= {name: value for name, value in assignments.values.items() if name not in needed}
        read = [each for each in head.schema if each.name in needed and each.name not in known]
        return _Columns(head.schema, pa.schema(read or [head.schema.field(0)]), known)

    def _pieces(self, columns: _Columns, found: Sequence[Found]) -> Iterator[pa.Table]:
        """The rows in tables of about 64 MiB."""
        rows = {each.split.path: each.rows for each in found}

        def groups(split: OpenSplit) -> Sequence[int]:
            return groups_with(rows[split.add.path], split.footer, range(split.row_groups))

        read = used(
            lambda part: columns.whole(part.taken(rows[part.split.path])),
            self.log.store,
            [each.split for each in found],
            columns.read,
            whole=columns.schema,
            groups=groups,
            footers=self.verified.footers.of_a_read(),
            as_dictionary=True,
        )
        waiting: list[pa.Table] = []
        size = 0
        with closing(read) as each_part:
            for part in each_part:
                waiting.append(part)
                size += part.nbytes
                if size >= PIECE_BYTES:
                    yield pa.concat_tables(waiting)
                    waiting, size = [], 0
        if waiting:
            yield pa.concat_tables(waiting)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a table, those that are `read`, and of others the one value that is `known` of all rows."""

    schema: pa.Schema
    read: pa.Schema
    known: Mapping[str, pa.Scalar]

    def whole(self, rows: pa.Table) -> pa.Table:
        """Return rows that were read with all columns; of which nothing is needed have no values."""
        read = conform(rows, self.read)
        return pa.table([self._column(each, read) for each in self.schema], schema=self.schema)

    def _column(self, field: pa.Field, rows: pa.Table) -> pa.Array | pa.ChunkedArray:
        if field.name in self.known:
            return repeated(self.known[field.name], rows.num_rows)
        return rows.column(field.name) if field.name in self.read.names else pa.nulls(rows.num_rows, field.type)


def _are_alike(one: Sequence[Found], other: Sequence[Found]) -> bool:
    """Whether both are the same rows; which others are gone does not matter."""
    return [(each.split.path, each.rows) for each in one] == [(each.split.path, each.rows) for each in other]
