"""One committed merge against TW-3, CS-1 to CS-3, MC-1 to MC-4 and SS-4: its inputs and outputs, read back.

What the log says of a merge can always be judged. Its rows can as long as the files of its inputs are there: once the
collector has taken one, the merge is not checkable, which is a third result beside sound and not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import pyarrow as pa

from storage_core.audit.retained_merges import RetainedMerge
from storage_core.audit.splits import AuditedTable, is_split_sorted
from storage_core.compaction.invariants import (
    Fault,
    column_faults,
    output_faults,
    row_faults,
    scope_faults,
    union_schema,
)
from storage_core.errors import InvalidInput, SnapshotExpired
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows import fingerprint
from storage_core.rows.fingerprint import RowFingerprint
from storage_core.rows.order import is_sorted, sort_indices
from storage_core.rows.sort_order import SortOrder
from storage_core.split.conform import conform_split
from storage_core.split.opened import OpenSplit
from storage_core.split.read import UNREADABLE, open_split


def audit_merge(store: ObjectStore, merged: RetainedMerge) -> tuple[list[Fault], str | None]:
    """Return what is wrong with a merge, and why its rows could not be compared, if they could not.

    One GET per input and output and per stored deletion vector, one split in memory at a time; of each the rows are
    those that were visible: of inputs right before the version, of outputs right after it.
    """
    table = AuditedTable.from_metadata(merged.metadata)
    found = list(_faults_of_the_log(merged, table))
    try:
        return [*found, *_faults_of_the_rows(store, merged, table)], None
    except SnapshotExpired as error:
        return found, f"{error.context.get('key')} has been collected since, so the rows cannot be compared"
    except UNREADABLE as error:
        return found, str(error)


def _faults_of_the_log(merged: RetainedMerge, table: AuditedTable) -> Iterator[Fault]:
    for path in merged.still_live:
        yield Fault("MC-1", f"{merged.name} says that it replaces {path}, which the version did not remove")
    if not merged.inputs:
        return
    window = merged.inputs[0].windowStart
    yield from scope_faults(table.table_id, window, merged.inputs, start=table.config.compaction.start)
    yield from output_faults(table.table_id, merged.inputs, merged.outputs)


def _faults_of_the_rows(store: ObjectStore, merged: RetainedMerge, table: AuditedTable) -> Iterator[Fault]:
    schemas: list[tuple[str, pa.Schema]] = []
    before = _fingerprint(_opened(store, merged.inputs, table.schema, schemas))
    try:
        union = union_schema(schemas)
    except InvalidInput as error:
        yield Fault("MC-4", str(error).removeprefix("MC-4: "))
        return
    order = table.order_of(merged.inputs[0]) if merged.inputs else None
    if merged.inputs and order is None and merged.inputs[0].sortSchema is not None:
        yield Fault("MC-3", f"the order {merged.inputs[0].sortSchema!r} does not fit the columns that the table had")
    outputs = _Outputs(order)
    after = _fingerprint(outputs.looked_at(_opened(store, merged.outputs, table.schema, schemas := [])))
    yield from row_faults(before, after)
    yield from outputs.faults()
    if merged.inputs:
        for _, schema in schemas:
            yield from column_faults(schema, union)


def _opened(
    store: ObjectStore, adds: Sequence[Add], schema: pa.Schema, schemas: list[tuple[str, pa.Schema]]
) -> Iterator[OpenSplit]:
    for add in adds:
        split = open_split(store, add).of_table(schema)
        schemas.append((add.path, split.schema))
        yield split


def _fingerprint(splits: Iterable[OpenSplit]) -> RowFingerprint:
    parts = (fingerprint.of(rows) for split in splits for rows in split.batches())
    return reduce(fingerprint.combine, parts, fingerprint.NO_ROWS)


class _Outputs:
    """The outputs of one merge as they pass: each sorted by the order of the inputs, and none within another (MC-3)."""

    def __init__(self, order: SortOrder | None) -> None:
        self._order = order
        self._unsorted: list[str] = []
        self._ends: dict[int | None, list[pa.Table]] = {}

    def looked_at(self, splits: Iterable[OpenSplit]) -> Iterator[OpenSplit]:
        """Yield the splits, each once it has been looked at."""
        for split in splits:
            if self._order is not None and split.rows:
                self._look(split, self._order)
            yield split

    def _look(self, split: OpenSplit, order: SortOrder) -> None:
        keys = order.present(split.schema.names)
        if not is_split_sorted(split, keys):
            self._unsorted.append(split.add.path)
            return
        names = [each.name for each in keys.columns]
        if not names:
            return
        pieces = (rows for rows in split.batches(names) if rows.num_rows)
        first = next(pieces)
        last = first
        for last in pieces:  # noqa: B007  # the last one is what is wanted
            pass
        ends = pa.concat_tables([first.slice(0, 1), last.slice(last.num_rows - 1)])
        self._ends.setdefault(split.add.windowStart, []).append(ends)

    def faults(self) -> Iterator[Fault]:
        """Yield how the outputs are not one sorted run."""
        text = "" if self._order is None else self._order.text
        for path in self._unsorted:
            yield Fault("MC-3", f"the rows of {path} are not sorted by the inputs' order {text!r}")
        if self._order is None or self._unsorted:
            return
        if not all(_are_disjoint(ends, self._order) for ends in self._ends.values()):
            yield Fault("MC-3", f"the outputs overlap each other by {text!r}: together they are not one sorted run")


def _are_disjoint(every: Sequence[pa.Table], order: SortOrder) -> bool:
    """Whether outputs, each given as its first and last row, are one sorted run in some turn."""
    schema = pa.schema({field.name: field for ends in every for field in ends.schema}.values())
    ends = [conform_split(each, schema) for each in every]
    keys = order.present(schema.names)
    by_last = sort_indices(pa.concat_tables([each.slice(1) for each in ends]), keys)
    # By the first row, and where that is the same one by the last: an output of one key comes before a longer one.
    by_first = sort_indices(pa.concat_tables([ends[number].slice(0, 1) for number in by_last.tolist()]), keys)
    return is_sorted(pa.concat_tables([ends[number] for number in by_last[by_first].tolist()]), keys)
