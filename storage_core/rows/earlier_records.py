"""Records of any schema that a table had as records of a later one (`docs/spec.md`, "Columns that change").

Unlike splits, records have the columns under the names of when they were written, and their ids beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import CommitConflict
from storage_core.rows.columns import column_id, default_of, has_changed, of_earlier, stored_name
from storage_core.rows.fold import FIELDS, OPERATION, Operation, merging


def conformed(records: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return records of whichever schema the table has had as records of `wanted`, a `record_schema` of a later one.

    A whole row has the default of a column that was added since, or null; a patch leaves such a column alone. Records
    of a table that never changed come as they are. Raises `CommitConflict` for records of an even later schema, with a
    column that is wider there.
    """
    if records.schema.equals(wanted, check_metadata=True) or not (has_changed(wanted) or has_changed(records.schema)):
        return records
    names = _names_in(records.schema, wanted)
    if records.schema.equals(wanted) and all(name == names.get(name) for name in wanted.names):
        return records
    columns = list(of_earlier(records, wanted, names))
    columns[1] = _renamed(columns[1], {there: name for name, there in names.items()})
    known = set(records.column_names)
    added = [at for at, each in enumerate(wanted) if names.get(each.name) not in known and default_of(each) is not None]
    if added:
        operations = records.column(OPERATION)
        is_whole = pc.or_(pc.equal(operations, int(Operation.PUT)), pc.equal(operations, int(Operation.RESET)))
        for index in added:
            columns[index] = pc.if_else(is_whole, columns[index], pa.scalar(None, wanted.field(index).type))
    for column, field in zip(columns, wanted, strict=True):
        if column.type != field.type:
            raise CommitConflict(
                f"records have {column.type} in column {field.name!r}, which is {field.type} as far as is known: the "
                "column was widened meanwhile; plan again",
                column=field.name,
            )
    return pa.Table.from_arrays(columns, schema=wanted)


def _names_in(found: pa.Schema, wanted: pa.Schema) -> dict[str, str]:
    """What records call the columns of `wanted`: by the ids that they have, else as they were called at first."""
    by_id = {number: field.name for field in found if (number := column_id(field)) is not None}
    if not by_id:
        return {field.name: stored_name(field) for field in wanted}
    numbers = {field.name: number for field in wanted if (number := column_id(field)) is not None}
    known = {name: by_id[number] for name, number in numbers.items() if number in by_id}
    return {OPERATION: OPERATION, FIELDS: FIELDS, **known}


def _renamed(fields: pa.ChunkedArray, names: Mapping[str, str]) -> pa.ChunkedArray:
    """What patches give, by the names that the columns have now; what the table has no more is left out."""
    lists = fields.combine_chunks()
    given = pc.list_flatten(lists)
    known = {**names, **{merging(there): merging(name) for there, name in names.items()}}
    if all(known.get(name) == name for name in given.unique().to_pylist()):
        return fields
    places = pc.index_in(given, pa.array([*known], pa.string()))
    now = pa.array([*known.values()], pa.string()).take(places)
    kept = now.is_valid()
    counts = np.zeros(len(lists), np.int64)
    np.add.at(counts, pc.list_parent_indices(lists).to_numpy(), kept.to_numpy(zero_copy_only=False))
    offsets = pa.array(np.cumsum([0, *counts]), pa.int32())
    made = pa.ListArray.from_arrays(offsets, now.filter(kept), mask=lists.is_null())
    return pa.chunked_array([made.cast(lists.type)])
