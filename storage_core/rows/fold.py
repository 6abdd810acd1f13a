"""Record merging: many records of a key become one, and records meet the base.

A record is a row behind two columns: `_op`, and `_fields`, the columns that a patch gives. Newest wins:

| then ▸ first ▾ | put | patch | delete | reset |
|---|---|---|---|---|
| put | put | put, fields laid over | delete | reset |
| patch | put | patch of both | delete | reset |
| delete | reset | reset to the given fields | delete | reset |
| reset | reset | reset, fields laid over | delete | reset |

Put and reset give the whole row: what they do not name becomes null. A patch replaces the value of a column that it
names, unless it names it as `merging(column)`: then the entries of its map are laid over those of the map that is
there, null standing for no entries. The record says which of the two it does, so folding needs no setting of the table,
and a map that is set to null, or put, starts anew. Folding is associative, so it does not matter which records were
folded before; `apply` is a fold over the base rows as puts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.rows.codes import Mask
from storage_core.rows.columns import default_of, defaults
from storage_core.rows.keys import Positions, key_codes, key_order
from storage_core.rows.map_union import union
from storage_core.rows.schema import conform

OPERATION = "_op"
FIELDS = "_fields"

_NONE = -1


class Operation(IntEnum):
    """What a record does to the row of its key."""

    PUT = 0
    PATCH = 1
    DELETE = 2
    RESET = 3


def merging(column: str) -> str:
    """Return what `_fields` says for a map column whose entries the patch lays over those that are there."""
    return f"merge:{column}"


def record_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of records of rows with `schema`: operation and fields first, then the columns, nullable.

    Raises `InvalidInput` when a column of the table has the name of a record column.
    """
    taken = {OPERATION, FIELDS} & set(schema.names)
    if taken:
        raise InvalidInput(f"the column names {sorted(taken)} are reserved for records; rename the columns")
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
    """Return one record per key that does what all records of the key do in turn, ascending by key.

    `records` is in arrival order. `_fields` counts for patches, puts and resets (null means every column); columns
    it does not name are taken as null there, and key columns are always given; only a patch merges a map. In the result
    only patches carry `_fields`: the columns given, in column order, each replaced or merged. Raises `InvalidInput` for
    an unknown operation or field, a missing record column, and a null in a key column.
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
        # Values are taken once, at the end: through `order` from where they arrived.
        column = records.column(name)
        if name in key:
            arrays[name] = column.take(pa.array(order[groups.starts]))
            continue
        newest = groups.newest(given.decided(name))
        named.append((name, newest[patches] != _NONE))
        source = np.where((newest != _NONE) & given.valued(name)[newest], newest, _NONE)
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
        if default_of(field := records.schema.field(name)) is not None:  # for rows that a patch makes after a delete
            arrays[name] = _filled(arrays[name], field, (source == _NONE) & (folded_operations == Operation.RESET))
    arrays[OPERATION] = pa.array(folded_operations, pa.int8())
    arrays[FIELDS] = field_lists(len(folded_operations), patches, named, records.schema.field(FIELDS).type)
    return pa.Table.from_arrays([arrays[name] for name in records.column_names], schema=records.schema)


def left_open(records: Sequence[pa.Table], wanted: pa.Table) -> pa.Table:
    """Return the keys whose row these records, of none but these keys, do not tell.

    A put, a reset and a delete say all of it, a patch does not.
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
    """Return the base rows with the records applied, ascending by key, under the schema of the base.

    `folded` is what `fold` returned. A patch without a base row is a put of the given fields, and of the defaults of
    others; a delete without one does nothing. Two base rows of one key become the later one. Raises `InvalidInput` when
    the records have other columns than the base, and when a record leaves a required column without a value (naming the
    column).
    """
    records = record_schema(base.schema)
    given = conform(folded, records)
    if base.num_rows:
        given = fold(pa.concat_tables([puts(base), given]), key)
    kept = _with_defaults(given.filter(pc.not_equal(given.column(OPERATION), int(Operation.DELETE))))
    return conform(kept.drop_columns([OPERATION, FIELDS]), base.schema)


def _with_defaults(records: pa.Table) -> pa.Table:
    """The records, those of them that are patches still with the defaults of the columns that they do not give."""
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
    """The column with the default of its field where the mask is set."""
    return pc.if_else(pa.array(mask), defaults(field, 1)[0], column) if mask.any() else column


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rows ordered by key, arrival order within a key: `starts` are where the groups of `rows` rows begin."""

    starts: Positions
    rows: int

    @property
    def lasts(self) -> Positions:
        """The last row of each group."""
        return np.append(self.starts, self.rows)[1:] - 1

    def newest(self, chosen: Mask) -> Positions:
        """The last chosen row of each group, -1 where there is none."""
        if chosen.all():
            return self.lasts
        positions = np.where(chosen, np.arange(len(chosen)), _NONE)
        return np.maximum.reduceat(positions, self.starts)

    def since(self, oldest: Positions, chosen: Mask, wanted: Mask) -> Positions:
        """Of each chosen row of a wanted group, from the group's `oldest` on, the number of its group; else -1."""
        lengths = np.diff(np.append(self.starts, len(chosen)))
        numbers = np.repeat(np.where(wanted, np.arange(len(self.starts)), _NONE), lengths)
        return np.where(chosen & (np.arange(len(chosen)) >= np.repeat(oldest, lengths)), numbers, _NONE)

    def any(self, chosen: Mask) -> Mask:
        """Whether each group has a chosen row."""
        return np.logical_or.reduceat(chosen, self.starts) if chosen.any() else np.zeros(len(self.starts), np.bool_)


class _Given:
    """Which rows give which columns a value, read from `_fields` once."""

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
            raise InvalidInput(f"records name the fields {unknown}; the table has {own}", fields=unknown)
        self._columns = {name: code for code, name in enumerate(known.to_pylist())}
        self._codes: Positions = pc.index_in(names, known).to_numpy(zero_copy_only=False)
        self._merging = {name for name in maps if self._names(merging(name)).any()}

    def valued(self, name: str) -> Mask:
        """Rows whose value in the column counts: it is listed, or nothing is listed; never in a delete."""
        listed = self._all | self._names(name)
        if name in self._merging:
            listed |= self._names(merging(name))
        listed[self._operations == Operation.DELETE] = False
        return listed

    def decided(self, name: str) -> Mask:
        """Rows after which older values of the column do not matter: it is replaced, or the whole row is."""
        decided = self._all | self._names(name)
        decided[self._operations != Operation.PATCH] = True
        return decided

    def merges(self, name: str) -> Mask | None:
        """Rows that lay entries of a map over older ones; None when no record does that in this column."""
        return self._names(merging(name)) & ~self.decided(name) if name in self._merging else None

    def _names(self, name: str) -> Mask:
        named = np.zeros(len(self._operations), np.bool_)
        named[self._parents[self._codes == self._columns[name]]] = True
        return named


def _check_record_columns(records: pa.Table) -> None:
    missing = {OPERATION, FIELDS} - set(records.column_names)
    if missing:
        raise InvalidInput(f"records need the columns {sorted(missing)}; found {records.column_names}")


def _operations(records: pa.Table) -> npt.NDArray[np.int8]:
    column = records.column(OPERATION)
    known = pc.is_in(column, pa.array([int(op) for op in Operation], column.type))
    if not pc.all(known, min_count=0).as_py():
        unknown = pc.unique(column.filter(pc.invert(known))).to_pylist()
        known_text = ", ".join(f"{op.value} {op.name}" for op in Operation)
        raise InvalidInput(f"records have the unknown operations {unknown}; use one of {known_text}")
    operations: npt.NDArray[np.int8] = column.to_numpy().astype(np.int8)
    return operations


def _with_unions(column: pa.ChunkedArray, ordered: pa.ChunkedArray, groups: Positions, merged: Mask) -> pa.ChunkedArray:
    """The column, and behind it one map for each merged group: the union of its values, which `groups` says."""
    taking = np.flatnonzero(groups != _NONE)
    numbers = (np.cumsum(merged) - 1)[groups[taking]]
    unions = union(ordered.take(pa.array(taking)), numbers, int(np.count_nonzero(merged)))
    return pa.chunked_array([*column.chunks, unions], column.type)


def _fold_operations(operations: npt.NDArray[np.int8], groups: _Groups) -> npt.NDArray[np.int8]:
    """The operation of each group, by its last record that is not a patch and by whether anything was deleted."""
    last_whole = groups.newest(operations != Operation.PATCH)
    last = groups.lasts
    emptied = groups.any((operations == Operation.DELETE) | (operations == Operation.RESET))
    folded = np.where(emptied, Operation.RESET, Operation.PUT)
    # A delete that patches follow has content again: that is a reset, not a delete.
    folded[(last_whole == last) & (operations[last] == Operation.DELETE)] = Operation.DELETE
    folded[last_whole == _NONE] = Operation.PATCH
    return folded.astype(np.int8)


def field_lists(records: int, patches: Positions, named: list[tuple[str, Mask]], type_: pa.DataType) -> pa.Array:
    """For each patch the names whose mask is set, in column order; null for every other record."""
    matrix = np.array([mask for _, mask in named], np.bool_).reshape(len(named), len(patches)).T
    names = pa.array([name for name, _ in named], pa.string())
    lengths = np.zeros(records + 1, np.int32)
    lengths[patches + 1] = matrix.sum(axis=1, dtype=np.int32)
    not_listed = np.ones(records, np.bool_)
    not_listed[patches] = False
    values = names.take(pa.array(np.nonzero(matrix)[1]))
    offsets = np.cumsum(lengths, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(not_listed)).cast(type_)
