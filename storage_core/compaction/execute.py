"""One merge operation, from the splits of the inputs to the actions of a commit (design page 04).

Runs in a Spark task or in this process alike; needs a store and the operation, not the table. Whether the result still
fits the table is decided by the commit: an input that another commit removed aborts it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa

from storage_core.compaction import invariants
from storage_core.compaction.kernel import merge_order, take_column
from storage_core.compaction.planner import MergeOperation
from storage_core.errors import Corrupt
from storage_core.ids import Ids
from storage_core.log.action_json import read_actions, write_actions
from storage_core.log.actions import Action, Add, Remove
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows import fingerprint
from storage_core.rows.fingerprint import RowFingerprint
from storage_core.rows.sort_order import SortOrder
from storage_core.split.encode import cut, decoded
from storage_core.split.lineage import Lineage
from storage_core.split.read import OpenSplit, open_split
from storage_core.split.write import write_split

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What to commit, and what it cost. Bytes are encoded file sizes. Travels as JSON."""

    adds: tuple[Add, ...]
    removes: tuple[Remove, ...]
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int

    @property
    def actions(self) -> list[Action]:
        """The actions that must go into one commit."""
        return [*self.removes, *self.adds]

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal result."""
        body = {
            "adds": write_actions(self.adds),
            "removes": write_actions(self.removes),
            "figures": [self.rows_in, self.rows_out, self.bytes_in, self.bytes_out],
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> CompactionResult:
        """Return the result that `to_json` wrote."""
        body: dict[str, Any] = json.loads(text)
        adds = read_actions(body["adds"], Add, "compaction result")
        return CompactionResult(adds, read_actions(body["removes"], Remove, "compaction result"), *body["figures"])


def execute(store: ObjectStore, operation: MergeOperation, *, ids: Ids, now_ms: int) -> CompactionResult:
    """Merge the inputs into as few sorted splits as the target size allows and return the actions that swap them.

    The rows stay the same multiset (MC-1), every value stays the same (MC-2), the output is sorted as the inputs were
    (MC-3) and has all their columns (MC-4): checked before anything is written, so no result is returned in breach.
    One GET per input, one PUT per output; nothing is deleted. Running it again writes new files under fresh ids, and at
    most one run's result can be committed. Raises `InvalidInput` for inputs that do not belong together, `Corrupt` for
    an input whose bytes changed or an output that breaks an invariant.
    """
    context, adds = operation.context, operation.inputs
    invariants.require_one_scope(context.table_id, operation.window, adds)
    splits = [open_split(store, add, as_dictionary=True) for add in adds]
    schema = invariants.union_schema([(split.add.path, split.schema) for split in splits])
    before = _fingerprint_of_splits(splits)
    merged = merge(splits, schema, context.order)
    require_merged(merged, before, schema, operation)
    replaces = {split.add.path: split.rows for split in splits}
    lineage = Lineage(operation="compact", operation_id=ids.uuid(), replaces=replaces)
    outputs = [
        write_split(
            store,
            piece,
            context=context,
            window=operation.window,
            num_merge_ops=operation.merge_ops,
            split_id=ids.uuid(),
            now_ms=now_ms,
            lineage=lineage,
        )
        for piece in cut(merged, context.order, context.target_bytes)
    ]
    return _result(operation, outputs, rows_in=before.rows, now_ms=now_ms)


def merge(splits: Sequence[OpenSplit], schema: pa.Schema, order: SortOrder) -> pa.Table:
    """Return the rows of all splits in `order` with the columns of `schema`, strings as dictionaries.

    Memory, beside the encoded inputs: the sort columns, then the output and one column of the inputs at a time.
    """
    names = {each.name for each in order.columns}
    runs = merge_order([split.read(names) for split in splits], order)
    input_rows = [split.rows for split in splits]
    _logger.debug("merge order: %d rows in %d runs of %d splits", runs.rows, len(runs), len(splits))
    columns = [take_column([_column(split, name) for split in splits], runs, input_rows) for name in schema.names]
    fields = [pa.field(field.name, column.type, field.nullable) for field, column in zip(schema, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


def require_merged(merged: pa.Table, before: RowFingerprint, schema: pa.Schema, operation: MergeOperation) -> None:
    """Raise `Corrupt` when the merged rows break MC-1 to MC-4 against the inputs' fingerprint and union schema."""
    inputs = operation.inputs
    invariants.require_columns(decoded(merged.slice(0, 0)).schema, schema, inputs)
    invariants.require_same_rows(before, fingerprint.of(merged), inputs)
    invariants.require_sorted(merged, operation.context.order, inputs)


def _column(split: OpenSplit, name: str) -> pa.ChunkedArray | None:
    return split.read([name]).column(name) if name in split.schema.names else None


def _fingerprint_of_splits(splits: Sequence[OpenSplit]) -> RowFingerprint:
    """Row group by row group: the rows of the inputs are never in memory together."""
    parts = (fingerprint.of(table) for split in splits for table in split.batches())
    return reduce(fingerprint.combine, parts)


def _result(operation: MergeOperation, outputs: Sequence[Add], *, rows_in: int, now_ms: int) -> CompactionResult:
    rows_out = sum(add.numRecords or 0 for add in outputs)
    if rows_in != rows_out:
        raise Corrupt(f"MC-1: {rows_in} rows were read and {rows_out} written; do not commit the outputs")
    removes = (
        Remove(
            path=add.path,
            deletionTimestamp=now_ms,
            dataChange=False,
            partitionValues=add.partitionValues,
            size=add.size,
        )
        for add in operation.inputs
    )
    return CompactionResult(
        adds=tuple(replace(add, dataChange=False) for add in outputs),
        removes=tuple(removes),
        rows_in=rows_in,
        rows_out=rows_out,
        bytes_in=sum(add.size for add in operation.inputs),
        bytes_out=sum(add.size for add in outputs),
    )
