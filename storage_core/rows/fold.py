"""Record merging: many records of a key become one, and records meet the base (design pages 03 "Records" and 09).

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
from storage_core.rows.keys import Mask, key_codes
from storage_core.rows.map_union import union
from storage_core.rows.schema import conform

OPERATION = "_op"
FIELDS = "_fields"

Positions = npt.NDArray[np.int64]
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
    return pa.schema([operation, fields, *(pa.field(each.name, each.type) for each in schema)])


def fold(records: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return one record per key that does what all records of the key do in turn, ascending by key.

    `records` is in arrival order. `_fields` counts for patches, puts and resets (null means every column); columns
    it does not name are taken as null there, and key columns are always given; only a patch merges a map. In the result
    only patches carry `_fields`: the columns given, in column order, each replaced or merged. Raises `InvalidInput` for
    an unknown operation or field, a missing record column, and a null in a key column.
    """
    _check_record_columns(records)
    groups = _groups(records, key)
    rows = records.take(pa.array(groups.order))
    operations = _operations(rows)
    columns = [name for name in records.column_names if name not in (OPERATION, FIELDS)]
    given = _Given(rows, columns, operations)
    folded_operations = _fold_operations(operations, groups)
    patches = np.flatnonzero(folded_operations == Operation.PATCH)
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
    named: list[tuple[str, Mask]] = []
    for name in columns:
        if name in key:
            arrays[name] = rows.column(name).take(pa.array(groups.starts))
            continue
        newest = groups.newest(given.decided(name))
        named.append((name, newest[patches] != _NONE))
        source = np.where((newest != _NONE) & given.valued(name)[newest], newest, _NONE)
        column = rows.column(name)
        merges = given.merges(name)
        if merges is not None:
            merged = groups.newest(merges) > newest
            named.append((merging(name), (merged & (newest == _NONE))[patches]))
            column = _with_unions(column, groups.since(newest, given.valued(name), merged), merged)
            source[merged] = len(rows) + np.arange(np.count_nonzero(merged))
        arrays[name] = column.take(pa.array(source, mask=source == _NONE))
    arrays[OPERATION] = pa.array(folded_operations, pa.int8())
    arrays[FIELDS] = field_lists(len(folded_operations), patches, named, records.schema.field(FIELDS).type)
    return pa.Table.from_arrays([arrays[name] for name in records.column_names], schema=records.schema)


def apply(base: pa.Table, folded: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the base rows with the records applied, ascending by key, under the schema of the base.

    A patch without a base row is a put of the given fields; a delete without one does nothing. Two base rows of one
    key become the later one. Raises `InvalidInput` when the records have other columns than the base, and when a
    record leaves a required column without a value (naming the column).
    """
    records = record_schema(base.schema)
    puts = {
        OPERATION: pa.array(np.zeros(base.num_rows, np.int8)),
        FIELDS: pa.nulls(base.num_rows, records.field(FIELDS).type),
    }
    as_records = pa.Table.from_arrays([*puts.values(), *base.columns], names=[*puts, *base.column_names])
    merged = fold(pa.concat_tables([conform(as_records, records), conform(folded, records)]), key)
    kept = merged.filter(pc.not_equal(merged.column(OPERATION), int(Operation.DELETE)))
    return conform(kept.drop_columns([OPERATION, FIELDS]), base.schema)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rows ordered by key, arrival order within a key: `order` sorts them, `starts` are where the groups begin."""

    order: Positions
    starts: Positions

    def newest(self, chosen: Mask) -> Positions:
        """The last chosen row of each group, -1 where there is none."""
        if not len(self.starts):
            return self.starts
        positions = np.where(chosen, np.arange(len(chosen)), _NONE)
        return np.maximum.reduceat(positions, self.starts)

    def since(self, oldest: Positions, chosen: Mask, wanted: Mask) -> Positions:
        """Of each chosen row of a wanted group, from the group's `oldest` on, the number of its group; else -1."""
        lengths = np.diff(np.append(self.starts, len(chosen)))
        numbers = np.repeat(np.where(wanted, np.arange(len(self.starts)), _NONE), lengths)
        return np.where(chosen & (np.arange(len(chosen)) >= np.repeat(oldest, lengths)), numbers, _NONE)

    def any(self, chosen: Mask) -> Mask:
        """Whether each group has a chosen row."""
        return np.logical_or.reduceat(chosen, self.starts) if len(self.starts) else np.zeros(0, np.bool_)


class _Given:
    """Which rows give which columns a value, read from `_fields` once."""

    def __init__(self, rows: pa.Table, columns: list[str], operations: npt.NDArray[np.int8]) -> None:
        lists = rows.column(FIELDS).combine_chunks()
        self._all: Mask = lists.is_null().to_numpy(zero_copy_only=False)
        self._operations = operations
        self._parents: Positions = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
        names = pc.list_flatten(lists)
        maps = [name for name in columns if pa.types.is_map(rows.column(name).type) and merging(name) not in columns]
        known = pa.array([*columns, *map(merging, maps)], pa.string())
        unknown = pc.unique(names.filter(pc.invert(pc.is_in(names, known)))).to_pylist()
        if unknown:
            raise InvalidInput(f"records name the fields {unknown}; the table has {columns}", fields=unknown)
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


def _groups(records: pa.Table, key: Sequence[str]) -> _Groups:
    (codes,) = key_codes([records], key)
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    begins = np.ones(len(ordered), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    return _Groups(order, np.flatnonzero(begins))


def _operations(rows: pa.Table) -> npt.NDArray[np.int8]:
    column = rows.column(OPERATION)
    known = pc.is_in(column, pa.array([int(op) for op in Operation], column.type))
    if not pc.all(known, min_count=0).as_py():
        unknown = pc.unique(column.filter(pc.invert(known))).to_pylist()
        known_text = ", ".join(f"{op.value} {op.name}" for op in Operation)
        raise InvalidInput(f"records have the unknown operations {unknown}; use one of {known_text}")
    operations: npt.NDArray[np.int8] = column.to_numpy().astype(np.int8)
    return operations


def _with_unions(column: pa.ChunkedArray, groups: Positions, merged: Mask) -> pa.ChunkedArray:
    """The column, and behind it one map for each merged group: the union of the values of its rows in `groups`."""
    taking = np.flatnonzero(groups != _NONE)
    numbers = (np.cumsum(merged) - 1)[groups[taking]]
    unions = union(column.take(pa.array(taking)), numbers, int(np.count_nonzero(merged)))
    return pa.chunked_array([*column.chunks, unions], column.type)


def _fold_operations(operations: npt.NDArray[np.int8], groups: _Groups) -> npt.NDArray[np.int8]:
    """The operation of each group, by its last record that is not a patch and by whether anything was deleted."""
    last_whole = groups.newest(operations != Operation.PATCH)
    last = np.append(groups.starts, len(operations))[1:] - 1
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
