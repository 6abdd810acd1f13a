"""Point lookups by primary key: the newest row of a key, or of many, exact (docs/architecture/reads.md).

Of the regions' generations only those are read whose bounds and bloom filter admit the key, of the base only the splits
whose minimum and maximum do; of such a split the key columns of the row groups that may hold it, the rest of a row
group only on a hit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.headroom import QUERY_BYTES, require_headroom
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.predicate import And, Compare, Comparison, Or
from storage_core.read.pruning import prune
from storage_core.rows import fold
from storage_core.rows.calendar import as_text
from storage_core.rows.exact import exact_array
from storage_core.rows.keys import key_codes
from storage_core.rows.schema import conform
from storage_core.system_errors import raise_refused

Key = object

_KEYS_AT_ONCE = 64


def key_row(snapshot: Snapshot, key: Key) -> pa.Table:
    """Return the key as a table of one row with the types of the key columns. No request.

    `key` is a value, a sequence of values in primary-key order, or a mapping. Raises `InvalidInput` when the table has
    no primary key or the key does not fit.
    """
    columns = snapshot.config.primary_key
    if not columns:
        raise InvalidInput("get needs a keyed table; this one was created without primary_key", table=snapshot.table_id)
    return _key_table(key, columns, snapshot.schema)


def key_rows(snapshot: Snapshot, keys: Sequence[Key]) -> pa.Table:
    """Return the keys as a table with the types of the key columns, one row each. Raises what `key_row` raises."""
    if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Sequence):
        raise InvalidInput(f"get_many takes a list of keys, found {keys!r}", keys=keys)
    columns = snapshot.config.primary_key
    empty = pa.schema([snapshot.schema.field(name) for name in columns]).empty_table()
    return pa.concat_tables([empty, *(key_row(snapshot, each) for each in keys)])


def get(
    store: ObjectStore, snapshot: Snapshot, wanted: pa.Table, *, records: pa.Table | None = None
) -> dict[str, object] | None:
    """Return the row of this key (`key_row`), or None when the table holds none: see `get_many`."""
    return get_many(store, snapshot, wanted, records=records)[0]


@require_headroom("a lookup by key", size=QUERY_BYTES)
def get_many(
    store: ObjectStore, snapshot: Snapshot, wanted: pa.Table, *, records: pa.Table | None = None
) -> list[dict[str, object] | None]:
    """Return for each of these keys (`key_rows`) its row, or None when there is none. Times beyond year 9999 are text.

    Maps are dictionaries, as they are put; one that repeats a key, or whose keys no dictionary can have, is a list of
    pairs.

    `records` are what is not merged into the snapshot, in arrival order per key; those of other keys do no harm. The
    base is asked for the keys without a record, and with a patch. Per split whose bounds admit one of those: one GET
    where it is small (`split.read.AHEAD_BYTES`), else one of the footer, then per row group that may hold a key one of
    the key columns, or several where they lie apart, and per row group that does one of all columns.
    """
    columns = snapshot.config.primary_key
    newer = fold.fold(_matching(records, wanted), columns) if records is not None and records.num_rows else None
    requested_of_base = wanted if newer is None else _left_open(newer, wanted)
    base = [
        rows
        for add in _candidates(snapshot, requested_of_base)
        for rows in _held(store, add, requested_of_base, snapshot.schema)
    ]
    rows = pa.concat_tables(base) if base else snapshot.schema.empty_table()
    if newer is not None and newer.num_rows:
        rows = fold.apply(rows, newer, columns)
    found = _python_rows(as_text(rows))
    codes, requested = key_codes([rows, wanted], columns)
    by_code = dict(zip(codes.tolist(), found, strict=True))
    return [by_code.get(each) for each in requested.tolist()]


def _python_rows(rows: pa.Table) -> list[dict[str, object]]:
    names, columns = rows.column_names, map(_python_values, rows.columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _python_values(column: pa.ChunkedArray) -> list[object]:
    try:
        found: list[object] = column.to_pylist(maps_as_pydicts="strict")
    except (KeyError, TypeError):  # an entry twice, or a key that is a list
        if len(column) == 1:
            return list(column.to_pylist())
        return [value for row in range(len(column)) for value in _python_values(column.slice(row, 1))]
    return found


def _key_table(key: Key, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
    """The wanted key as a one-row table with the key columns' types."""
    if isinstance(key, Mapping):
        values = [key.get(name) for name in columns] if set(key) <= set(columns) else []
    elif isinstance(key, tuple | list):
        values = list(key)
    else:
        values = [key]
    if len(values) != len(columns) or any(value is None for value in values):
        raise InvalidInput(f"the key {quoted(key)} does not name a value for each of {list(columns)}", key=key)
    fields = [schema.field(name) for name in columns]
    try:
        arrays = [_scalar_array(value, field.type) for value, field in zip(values, fields, strict=True)]
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise_refused("a lookup", error)
        raise InvalidInput(
            f"the key {quoted(key)} does not fit the key columns {list(columns)}: {error}", key=key
        ) from error
    return conform(pa.table(arrays, names=list(columns)), pa.schema(fields))


def _scalar_array(value: object, wanted: pa.DataType) -> pa.Array:
    """One value as an array of the wanted type; text is read as that type, so that a command line can name any key."""
    if not isinstance(value, str) or pa.types.is_string(wanted):
        return exact_array([value], wanted)
    read = pa.array([value]).cast(wanted)
    if pa.types.is_floating(wanted) and pc.is_inf(read)[0].as_py() and "inf" not in value.lower():
        raise ValueError(f"{value!r} is beyond {wanted}")
    return read


def _candidates(snapshot: Snapshot, wanted: pa.Table) -> Sequence[Add]:
    found: dict[str, Add] = {}
    for start in range(0, wanted.num_rows, _KEYS_AT_ONCE):
        some = wanted.slice(start, _KEYS_AT_ONCE).to_pylist()
        equal = (And(tuple(Compare(name, Comparison.EQ, row[name]) for name in row)) for row in some)
        found |= {add.path: add for add in prune(snapshot, Or(tuple(equal)))}
    return [found[path] for path in sorted(found)]


def _held(store: ObjectStore, add: Add, wanted: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a split with one of the keys, with the columns of the table."""
    from storage_core.split.conform import conform_split
    from storage_core.split.read import open_split  # and Parquet

    key = wanted.column_names
    split = open_split(store, add, whole=False)
    admitted = split.groups_admitting(wanted)
    parts = zip(admitted, split.batches(key, groups=admitted), strict=True)
    hit = [group for group, rows in parts if _matching(rows, wanted).num_rows]
    for rows in split.batches(groups=hit):
        yield conform_split(_matching(rows, wanted), schema)


def _left_open(folded: pa.Table, wanted: pa.Table) -> pa.Table:
    """The keys whose row is not known from their folded record alone: a put, a reset and a delete say all of it."""
    whole = folded.filter(pc.not_equal(folded.column(fold.OPERATION), int(fold.Operation.PATCH)))
    if not whole.num_rows:
        return wanted
    told, keys = key_codes([whole, wanted], wanted.column_names)
    return wanted.filter(pa.array(~np.isin(keys, told)))


def _matching(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """The rows with one of the keys, by equality of the total order: NaN is equal to itself."""
    held, keys = key_codes([rows, wanted], wanted.column_names)
    return rows.filter(pa.array(np.isin(held, keys)))
