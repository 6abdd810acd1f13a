"""The folding of records: all records of a key become one record, even if the schema changed between them.

A record is a row with two more columns in front. `_op` is the operation, and `_fields` lists the columns that a patch
sets. This table shows the result of two records of the same key:

| then ▸ first ▾ | put | patch | delete | reset |
|---|---|---|---|---|
| put | put | put, changed by the patch | delete | reset |
| patch | put | patch of both | delete | reset |
| delete | reset | reset with only the fields of the patch | delete | reset |
| reset | reset | reset, changed by the patch | delete | reset |

A put and a reset set the whole row. If a put or a reset does not set a column, the column becomes null. A patch
replaces the value of each column in its `_fields`. If `_fields` contains `merging(column)`, the patch merges its map
into the existing map. The entries of the patch's map then replace or extend the entries of the existing map. A null map
has no entries. The record itself contains whether it merges maps, so folding needs no setting of the table. If a record
puts a map or sets it to null, the older entries of the map are lost.

Folding is associative, so records may be folded in groups of any size. `apply` folds records into base rows, and treats
each base row as a put.

`conformed` converts earlier records to a later schema of the table (`docs/spec.md`, "Columns that change"). Unlike
splits, records contain the ids of columns. Records also contain the names that the columns had when the record was
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.columns import column_id, default_of, defaults, has_changed, of_earlier, stored_name
from storage_core.data.rows.conform import conform
from storage_core.data.rows.keys import Positions, key_codes, key_order, union

OPERATION = "_op"
FIELDS = "_fields"

_NONE = -1


class Operation(IntEnum):
    """The effect of a record on the row of its key."""

    PUT = 0
    PATCH = 1
    DELETE = 2
    RESET = 3


def merging(column: str) -> str:
    """Return the text in `_fields` for a map column.

    This text means that a patch merges its entries into the existing map.
    """
    return f"merge:{column}"


def record_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of records for rows with `schema`.

    The schema has the operation, the fields, and then the nullable columns.

    Raises `InvalidInput` if a column of the table has the name of a record column.
    """
    taken = {OPERATION, FIELDS} & set(schema.names)
    if taken:
        raise InvalidInput(f"the column names {sorted(taken)} are reserved for records. Rename the columns")
    operation = pa.field(OPERATION, pa.int8(), nullable=False)
    fields = pa.field(FIELDS, pa.list_(pa.field("element", pa.string())))
    return pa.schema([operation, fields, *(each.with_nullable(nullable=True) for each in schema)])


def puts(rows: pa.Table) -> pa.Table:
    """Return one put per row, in order."""
    records = record_schema(rows.schema)
    operations = pa.array(np.zeros(rows.num_rows, np.int8))
    fields = pa.nulls(rows.num_rows, records.field(FIELDS).type)
    names = [OPERATION, FIELDS, *rows.column_names]
    return conform(pa.Table.from_arrays([operations, fields, *rows.columns], names=names), records)


def fold(records: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return one record per key, in ascending order of keys.

    Each result has the combined effect of all records of its key.

    In the result, only patches contain `_fields`. `_fields` lists the columns that the patch replaces or merges, in
    column order. A delete in the result has the values of the last delete record of the key.

    Args:
        records: The records in arrival order. Patches, puts and resets use `_fields`, and a null in it means every
            column. In a put or reset, a column that `_fields` does not name counts as null. Key columns always have a
            value. Only a patch can merge a map.
        key: The key columns.

    Raises:
        InvalidInput: An operation or field is unknown, a record column is missing, or a key column contains a null.
    """
    _check_record_columns(records)
    order, begins = key_order(records, key)
    groups = _Groups(np.flatnonzero(begins), len(order))
    operations = _operations(records)[order]
    columns = [each for each in records.schema if each.name not in (OPERATION, FIELDS)]
    given = _Given(records.column(FIELDS).take(pa.array(order)), columns, operations)
    folded_operations = _fold_operations(operations, groups)
    patches = np.flatnonzero(folded_operations == Operation.PATCH)
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
    named: list[tuple[str, Mask]] = []
    for name in (each.name for each in columns):
        # The code copies each value from `records` only once, after all positions are known. `order` contains the
        # arrival position of the value.
        column = records.column(name)
        if name in key:
            arrays[name] = column.take(pa.array(order[groups.starts]))
            continue
        newest = groups.newest(given.decided(name))
        named.append((name, newest[patches] != _NONE))
        source = np.where((newest != _NONE) & given.valued(name)[newest], newest, _NONE)
        # A delete record from a landed file has a value in only one column. This column orders the records of a key.
        source = np.where(folded_operations == Operation.DELETE, groups.lasts, source)
        places = order[source]
        merges = given.merges(name)
        if merges is not None:
            merged = groups.newest(merges) > newest
            named.append((merging(name), (merged & (newest == _NONE))[patches]))
            ordered = column.take(pa.array(order))
            column = _with_unions(column, ordered, groups.since(newest, given.valued(name), merged), merged)
            places[merged] = len(order) + np.arange(np.count_nonzero(merged))
            source[merged] = places[merged]
        arrays[name] = column.take(pa.array(places, mask=source == _NONE))
        if default_of(field := records.schema.field(name)) is not None:  # a patch may create a row after a delete
            arrays[name] = _filled(arrays[name], field, (source == _NONE) & (folded_operations == Operation.RESET))
    arrays[OPERATION] = pa.array(folded_operations, pa.int8())
    arrays[FIELDS] = field_lists(len(folded_operations), patches, named, records.schema.field(FIELDS).type)
    return pa.Table.from_arrays([arrays[name] for name in records.column_names], schema=records.schema)


def left_open(records: Sequence[pa.Table], wanted: pa.Table) -> pa.Table:
    """Return the keys in `wanted` for which these records do not determine the whole row.

    The records contain only keys in `wanted`.

    A put, a reset and a delete determine the whole row. A patch does not determine the whole row.
    """
    masks = [each.column(OPERATION).to_numpy() != int(Operation.PATCH) for each in records]
    if not any(mask.any() for mask in masks):
        return wanted
    if wanted.num_rows == 1:
        return wanted.slice(0, 0)
    whole = [each.select(wanted.column_names).filter(pa.array(mask)) for each, mask in zip(records, masks, strict=True)]
    told, keys = key_codes([pa.concat_tables(whole), wanted], wanted.column_names)
    return wanted.filter(pa.array(~np.isin(keys, told)))


def apply(base: pa.Table, folded: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the base rows after the records were applied.

    The rows are ascending by key and have the schema of the base.

    A patch without a base row becomes a put of its fields, with defaults for all other columns. A delete without a base
    row has no effect. If two base rows have the same key, the later row wins.

    Args:
        base: The base rows.
        folded: The result of `fold`.
        key: The key columns.

    Raises:
        InvalidInput: The columns of the records differ from the columns of the base. Or a required column, which the
            error names, has no value.
    """
    records = record_schema(base.schema)
    given = conform(folded, records)
    if base.num_rows:
        given = fold(pa.concat_tables([puts(base), given]), key)
    kept = _with_defaults(given.filter(pc.not_equal(given.column(OPERATION), int(Operation.DELETE))))
    return conform(kept.drop_columns([OPERATION, FIELDS]), base.schema)


def _with_defaults(records: pa.Table) -> pa.Table:
    """Return the records. Each patch gets the defaults of the columns that it does not set."""
    fields = [field for field in records.schema if default_of(field) is not None]
    patches = np.flatnonzero(_operations(records) == Operation.PATCH) if fields else ()
    if not len(patches):
        return records
    lists = records.column(FIELDS).combine_chunks()
    parents, given = pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)
    for field in fields:
        is_open = np.zeros(records.num_rows, np.bool_)
        is_open[patches] = True
        is_open[parents[pc.equal(given, field.name).to_numpy(zero_copy_only=False)]] = False
        column = _filled(records.column(field.name), field, is_open)
        records = records.set_column(records.schema.get_field_index(field.name), field, column)
    return records


def _filled(column: pa.ChunkedArray | pa.Array, field: pa.Field, mask: Mask) -> pa.ChunkedArray | pa.Array:
    """Return the column. At the positions in the mask, the column has the default of the field."""
    return pc.if_else(pa.array(mask), defaults(field, 1)[0], column) if mask.any() else column


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rows ordered by key, and by arrival within a key.

    `starts` contains the position at which each group begins. `rows` is the number of all rows.
    """

    starts: Positions
    rows: int

    @property
    def lasts(self) -> Positions:
        """The last row of each group."""
        return np.append(self.starts, self.rows)[1:] - 1

    def newest(self, chosen: Mask) -> Positions:
        """Return the last chosen row of each group, or -1 if the group has no chosen row."""
        if chosen.all():
            return self.lasts
        positions = np.where(chosen, np.arange(len(chosen)), _NONE)
        return np.maximum.reduceat(positions, self.starts)

    def since(self, oldest: Positions, chosen: Mask, wanted: Mask) -> Positions:
        """Return, for each chosen row in a wanted group, the number of this group.

        Rows before the group's `oldest` row do not count.

        Return -1 for every other row.
        """
        lengths = np.diff(np.append(self.starts, len(chosen)))
        numbers = np.repeat(np.where(wanted, np.arange(len(self.starts)), _NONE), lengths)
        return np.where(chosen & (np.arange(len(chosen)) >= np.repeat(oldest, lengths)), numbers, _NONE)

    def any(self, chosen: Mask) -> Mask:
        """Return whether each group has a chosen row."""
        return np.logical_or.reduceat(chosen, self.starts) if chosen.any() else np.zeros(len(self.starts), np.bool_)


class _Given:
    """For each column, the rows that set its value. The class reads `_fields` only once."""

    def __init__(self, fields: pa.ChunkedArray, columns: list[pa.Field], operations: npt.NDArray[np.int8]) -> None:
        lists = fields.combine_chunks()
        self._all: Mask = lists.is_null().to_numpy(zero_copy_only=False)
        self._operations = operations
        self._parents: Positions = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
        names = pc.list_flatten(lists)
        own = [each.name for each in columns]
        maps = [each.name for each in columns if pa.types.is_map(each.type) and merging(each.name) not in own]
        known = pa.array([*own, *map(merging, maps)], pa.string())
        unknown = pc.unique(names.filter(pc.invert(pc.is_in(names, known)))).to_pylist()
        if unknown:
            raise InvalidInput(f"records contain the unknown fields {unknown}. The table has {own}", fields=unknown)
        self._columns = {name: code for code, name in enumerate(known.to_pylist())}
        self._codes: Positions = pc.index_in(names, known).to_numpy(zero_copy_only=False)
        self._merging = {name for name in maps if self._names(merging(name)).any()}

    def valued(self, name: str) -> Mask:
        """Return the records that set a value of the column. In these records, `_fields` is null or lists the column.

        A delete is never included.
        """
        listed = self._all | self._names(name)
        if name in self._merging:
            listed |= self._names(merging(name))
        listed[self._operations == Operation.DELETE] = False
        return listed

    def decided(self, name: str) -> Mask:
        """Return the records that replace the column or the whole row. Earlier values of the column have no effect."""
        decided = self._all | self._names(name)
        decided[self._operations != Operation.PATCH] = True
        return decided

    def merges(self, name: str) -> Mask | None:
        """Mark the records that merge entries into this map column. Return None if no record merges entries."""
        return self._names(merging(name)) & ~self.decided(name) if name in self._merging else None

    def _names(self, name: str) -> Mask:
        named = np.zeros(len(self._operations), np.bool_)
        named[self._parents[self._codes == self._columns[name]]] = True
        return named


def _check_record_columns(records: pa.Table) -> None:
    missing = {OPERATION, FIELDS} - set(records.column_names)
    if missing:
        raise InvalidInput(f"records lack the columns {sorted(missing)}. They have {records.column_names}")


def _operations(records: pa.Table) -> npt.NDArray[np.int8]:
    column = records.column(OPERATION)
    known = pc.is_in(column, pa.array([int(op) for op in Operation], column.type))
    if not pc.all(known, min_count=0).as_py():
        unknown = pc.unique(column.filter(pc.invert(known))).to_pylist()
        known_text = ", ".join(f"{op.value} {op.name}" for op in Operation)
        raise InvalidInput(f"records have the unknown operations {unknown}. Use one of {known_text}")
    operations: npt.NDArray[np.int8] = column.to_numpy().astype(np.int8)
    return operations


def _with_unions(column: pa.ChunkedArray, ordered: pa.ChunkedArray, groups: Positions, merged: Mask) -> pa.ChunkedArray:
    """Return the column and, after it, one map for each merged group.

    The map is the union of the values that `groups` selects.
    """
    taking = np.flatnonzero(groups != _NONE)
    numbers = (np.cumsum(merged) - 1)[groups[taking]]
    unions = union(ordered.take(pa.array(taking)), numbers, int(np.count_nonzero(merged)))
    return pa.chunked_array([*column.chunks, unions], column.type)


def _fold_operations(operations: npt.NDArray[np.int8], groups: _Groups) -> npt.NDArray[np.int8]:
    """Return the operation of each group.

    The operation of a group depends on the last record of the group that is not a patch. The operation of a group also
    depends on whether a record of the group deletes or resets the row.
    """
    last_whole = groups.newest(operations != Operation.PATCH)
    last = groups.lasts
    emptied = groups.any((operations == Operation.DELETE) | (operations == Operation.RESET))
    folded = np.where(emptied, Operation.RESET, Operation.PUT)
    # A patch after a delete creates the row again. The folded operation is then a reset and not a delete.
    folded[(last_whole == last) & (operations[last] == Operation.DELETE)] = Operation.DELETE
    folded[last_whole == _NONE] = Operation.PATCH
    return folded.astype(np.int8)


def field_lists(records: int, patches: Positions, named: list[tuple[str, Mask]], type_: pa.DataType) -> pa.Array:
    """Return, for each patch, the names whose mask is set, in column order. Return null for every other record."""
    matrix = np.array([mask for _, mask in named], np.bool_).reshape(len(named), len(patches)).T
    names = pa.array([name for name, _ in named], pa.string())
    lengths = np.zeros(records + 1, np.int32)
    lengths[patches + 1] = matrix.sum(axis=1, dtype=np.int32)
    not_listed = np.ones(records, np.bool_)
    not_listed[patches] = False
    values = names.take(pa.array(np.nonzero(matrix)[1]))
    offsets = np.cumsum(lengths, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(not_listed)).cast(type_)


# Records of earlier schemas.


def conformed(records: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return the records, converted from any schema of the table to `wanted`.

    `wanted` is the `record_schema` of a later schema.

    If a record sets the whole row, a column that was added later gets its default or null. A patch does not set a
    column that was added later. If the table never changed its schema, the records are not changed. Raises
    `CommitConflict` if a column has a wider type in `records` than in `wanted`. Records with a wider column have a
    later schema than `wanted`.
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
                f"records have {column.type} in column {field.name!r}, which is {field.type} in the snapshot of this "
                "merge: the column was widened by a later commit. Plan again",
                column=field.name,
            )
    return pa.Table.from_arrays(columns, schema=wanted)


def _names_in(found: pa.Schema, wanted: pa.Schema) -> dict[str, str]:
    """Return, for each column of `wanted`, the name of this column in the records. Columns are matched by id.

    Records without ids have stored names.
    """
    by_id = {number: field.name for field in found if (number := column_id(field)) is not None}
    if not by_id:
        return {field.name: stored_name(field) for field in wanted}
    numbers = {field.name: number for field in wanted if (number := column_id(field)) is not None}
    known = {name: by_id[number] for name, number in numbers.items() if number in by_id}
    return {OPERATION: OPERATION, FIELDS: FIELDS, **known}


def _renamed(fields: pa.ChunkedArray, names: Mapping[str, str]) -> pa.ChunkedArray:
    """Return the fields of patches with the current names of the columns. Dropped columns are omitted."""
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
