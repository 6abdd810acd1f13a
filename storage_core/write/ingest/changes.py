"""Convert landed records to changes of a keyed table. A change has an operation and an order.

A landed record is a put of a whole row unless it has another operation. A field of the record (`op`) contains the
operation. This field is not a column. If the records have envelopes, the envelope contains the operation (`envelopes`).
The column `order_by` orders the records of one key. `order_by` is a column of the table, because a later run compares
its values with the table's rows (decision 0045).

| Operation | Words, in upper or lower case |
|---|---|
| put | `insert`, `upsert`, `put`, `update`, `c`, `r`, `u`, `i`, empty text, or null |
| patch | `patch` |
| delete | `delete`, `d` |

In JSON, a patch sets the fields that are present in the record. In other formats, a patch sets the columns that have a
value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.text import fitted, unknown_names
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.fold import FIELDS, OPERATION, Operation, field_lists, merging, record_schema
from storage_core.data.rows.keys import beyond_limit, too_long
from storage_core.data.settings.table import TableConfig
from storage_core.write.ingest.drift import QUARANTINE
from storage_core.write.ingest.landing import LandingSpec

ENVELOPE_OP: Final = OPERATION
"""The name of the operation field in records that are converted from envelopes."""

OF_ENVELOPE: Final = ("ts_ms", "ts_us", "ts_ns")
"""The fields of an envelope that can order its records. A path with a dot is also a path in the envelope."""

WORDS: Final = {
    **dict.fromkeys(("insert", "upsert", "put", "update", "c", "r", "u", "i"), Operation.PUT),
    "patch": Operation.PATCH,
    **dict.fromkeys(("delete", "d"), Operation.DELETE),
}
_OPERATIONS: Final = np.array([*WORDS.values()], np.int8)
_UNKNOWN: Final = -1
_LONGEST_WORD: Final = 50


@dataclass(frozen=True, slots=True)
class ChangeFormat:
    """The rules for converting records of a landing location to changes of one keyed table.

    - `schema`, `key`, `merged_maps`: the columns, the key and the merged maps of the table.
    - `op`: the field with the operation, or None.
    - `order`: the column that orders the records of a key, or None.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    merged_maps: tuple[str, ...] = ()
    op: str | None = None
    order: str | None = None

    @staticmethod
    def of(spec: LandingSpec, schema: pa.Schema, config: TableConfig) -> ChangeFormat | None:
        """Return the format for a keyed table, or None for an append table.

        Raises `InvalidInput` for settings that do not fit the table.
        """
        given = [name for name in ("op", "order_by", "envelope") if getattr(spec, name) is not None]
        if config.kind != "keyed":
            if given:
                raise InvalidInput(
                    f"{given[0]} is for tables with a primary key. Declare a primary_key, or leave it out"
                )
            return None
        if spec.drift != QUARANTINE:
            raise InvalidInput(
                "a keyed table does not support on_new_field and on_type_conflict. Leave them out. Lines with new "
                "fields or wider values go to quarantine"
            )
        op = ENVELOPE_OP if spec.envelope else spec.op
        if op in schema.names:
            raise InvalidInput(f"op: {op!r} is a column of the table. Name a field that is not a column")
        order = order_column(spec)
        if order is not None:
            _require_order(order, spec, schema)
        return ChangeFormat(schema, config.primary_key, config.merged_maps, op, order)

    @property
    def fields(self) -> pa.Schema:
        """The fields of a landed record.

        Only the key and the order are required, because a delete has no other fields.
        """
        required = {*self.key, self.order}
        columns = [each.with_nullable(nullable=each.name not in required) for each in self.schema]
        op = [] if self.op is None else [pa.field(self.op, pa.string())]
        return pa.schema([*columns, *op])

    @property
    def records(self) -> pa.Schema:
        """The schema of the records that `records_of` returns."""
        return record_schema(self.schema)

    def faults(self, rows: pa.Table) -> pa.StringArray:
        """Return for each row of `fields` the reason why it is not a valid change.

        The reason of a valid change is null.
        """
        reasons = np.full(rows.num_rows, None, object)
        operations = self._operations(rows)
        for row in np.flatnonzero(operations == _UNKNOWN):
            word = fitted(rows.column(self.op)[int(row)].as_py(), _LONGEST_WORD)
            reasons[row] = f"{word!r} is not an operation. Use insert, upsert, put, update, patch or delete"
        # A patch may be the first record of its key. A patch that is the first record of its key creates the row.
        creates = operations != Operation.DELETE
        for name in self.key:
            for row in np.flatnonzero(beyond_limit(rows, name) & creates):
                reasons[row] = too_long(name, int(pc.binary_length(rows.column(name)[int(row)]).as_py()))
        for field in self.schema:
            if not field.nullable and field.name not in self.key:
                reasons[_nulls(rows, field.name) & creates] = f"column {field.name}: a value is required"
        return pa.array(reasons, pa.string())

    def patches(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Return the positions of the patches."""
        return np.flatnonzero(self._operations(rows) == Operation.PATCH)

    def records_of(self, rows: pa.Table, given: pa.ListArray | None = None) -> pa.Table:
        """Return the rows of `fields` as records, in order. A delete record contains its order value for later runs.

        Args:
            rows: rows without faults.
            given: the names of the fields that each patch names, in the order of the patches. None: a patch names the
                columns with a value.
        """
        operations, patches = self._operations(rows), self.patches(rows)
        named: list[tuple[str, Mask]] = []
        for name in self.schema.names:
            if name in self.key:
                continue
            is_set = ~_nulls(rows, name)[patches]
            listed = is_set if given is None else _lists_with(given, name)
            is_merged = is_set if name in self.merged_maps else np.zeros(len(patches), np.bool_)
            named += [(name, listed & ~is_merged), (merging(name), listed & is_merged)]
        deletes = pa.array(operations == Operation.DELETE)
        kept = {*self.key, self.order}
        columns = [
            rows.column(name)
            if name in kept or not deletes.true_count
            else pc.if_else(deletes, pa.scalar(None, rows.column(name).type), rows.column(name))
            for name in self.schema.names
        ]
        fields = field_lists(rows.num_rows, patches, named, self.records.field(FIELDS).type)
        return pa.Table.from_arrays([pa.array(operations), fields, *columns], schema=self.records)

    def _operations(self, rows: pa.Table) -> npt.NDArray[np.int8]:
        if self.op is None:
            return np.zeros(rows.num_rows, np.int8)
        words = pc.utf8_lower(rows.column(self.op))
        found = pc.fill_null(pc.index_in(words, value_set=pa.array([*WORDS], pa.string())), _UNKNOWN).to_numpy()
        operations = np.where(found == _UNKNOWN, np.int8(_UNKNOWN), _OPERATIONS[found])
        operations[pc.fill_null(pc.equal(words, ""), fill_value=True).to_numpy()] = Operation.PUT
        return operations


def order_column(spec: LandingSpec) -> str | None:
    """Return the column that orders the records of a key. If `order_by` is a path, return its last name."""
    if spec.order_by is None or order_path(spec) is None:
        return spec.order_by
    return spec.order_by.rpartition(".")[2]


def order_path(spec: LandingSpec) -> tuple[str, ...] | None:
    """Return the envelope path in `order_by`, or None if `order_by` is a column of the landed row."""
    if spec.envelope is None or spec.order_by is None:
        return None
    path = tuple(spec.order_by.split("."))
    return path if len(path) > 1 or path[0] in OF_ENVELOPE else None


def _require_order(order: str, spec: LandingSpec, schema: pa.Schema) -> None:
    if order not in schema.names:
        if order_path(spec) is not None:
            raise InvalidInput(
                f"order_by {spec.order_by} needs the column {order}, which the table does not have. Add the column "
                f"{order}: long. Ingest stores the order of each row in this column",
                column=order,
            )
        raise InvalidInput(f"order_by: {unknown_names('column', [order], schema.names)}", column=order)
    type_ = schema.field(order).type
    types = pa.types
    is_ordered = (types.is_integer, types.is_decimal, types.is_timestamp, types.is_date, types.is_string)
    if not any(each(type_) for each in is_ordered):
        raise InvalidInput(
            f"order_by: column {order!r} has the type {type_}, which cannot order records. Use an integer, a "
            "decimal, a date, a timestamp or a string",
            column=order,
        )


def _nulls(rows: pa.Table, name: str) -> Mask:
    mask: Mask = rows.column(name).is_null().to_numpy()
    return mask


def _lists_with(given: pa.ListArray, name: str) -> Mask:
    """Return for each list whether it contains the name."""
    mask = np.zeros(len(given), np.bool_)
    parents = pc.list_parent_indices(given).to_numpy()
    mask[parents[pc.equal(pc.list_flatten(given), name).to_numpy(zero_copy_only=False)]] = True
    return mask
