"""Point lookups by primary key: the newest row of a key, or of many, exact (docs/architecture/reads.md).

Of the regions' generations only those are read whose bounds and bloom filter admit the key, of the base only the splits
whose minimum and maximum do; of such a split the key columns of the row groups that may hold it, the rest of a row
group only on a hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.read import key_splits
from storage_core.read.verified import Verified
from storage_core.rows import fold
from storage_core.rows.calendar import as_text
from storage_core.rows.exact import exact_array
from storage_core.rows.keys import key_codes
from storage_core.rows.schema import conform
from storage_core.rows.times import is_timed
from storage_core.split.kept_values import KeptValues
from storage_core.system_errors import raise_refused

if TYPE_CHECKING:
    from storage_core.read.indexed_keys import IndexedKeys

Key = object

_SPLITS_AT_ONCE = 8


def key_rows(snapshot: Snapshot, keys: Sequence[Key]) -> pa.Table:
    """Return the keys as a table with the types of the key columns, one row each. No request.

    A key is a value, a sequence of values in primary-key order, or a mapping. Raises `InvalidInput` when the table has
    no primary key or a key does not fit.
    """
    if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Sequence):
        raise InvalidInput(f"get_many takes a list of keys, found {keys!r}", keys=keys)
    columns = snapshot.config.primary_key
    if not columns:
        raise InvalidInput("get needs a keyed table; this one was created without primary_key", table=snapshot.table_id)
    fields = pa.schema([snapshot.schema.field(name) for name in columns])
    if not keys:
        return fields.empty_table()
    given = [keys] if _are_values(keys, columns) else zip(*(_values(key, columns) for key in keys), strict=True)
    try:
        arrays = [_array(values, field.type) for values, field in zip(given, fields, strict=True)]
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise_refused("a lookup", error)
        if len(keys) > 1:  # each may fit by itself; one that does not is named
            return pa.concat_tables([key_rows(snapshot, [key]) for key in keys]).combine_chunks()
        raise InvalidInput(
            f"the key {quoted(keys[0])} does not fit the key columns {list(columns)}: {error}", key=keys[0]
        ) from error
    return conform(pa.table(arrays, names=list(columns)), fields)


def keys_in(snapshot: Snapshot, keys: pa.Table) -> pa.Table:
    """Return keys (`key_rows`) of one version as those of another, whose key columns may be wider or narrower.

    Raises `InvalidInput` for a key that does not fit there.
    """
    fields = pa.schema([snapshot.schema.field(name) for name in keys.column_names])
    return keys if keys.schema.types == fields.types else conform(keys, fields)


def get_many(
    store: ObjectStore,
    snapshot: Snapshot,
    wanted: pa.Table,
    *,
    records: pa.Table | None = None,
    verified: Verified,
    kept: KeptValues,
) -> list[dict[str, object] | None]:
    """Return for each of these keys (`key_rows`) its row, or None when there is none. Times beyond year 9999 are text.

    Maps are dictionaries, as they are put; one that repeats a key, or whose keys no dictionary can have, is a list of
    pairs.

    `records` are those of these keys that are not merged into the snapshot, in arrival order per key. The base is asked
    for the keys without a record, and with a patch (`key_splits.candidates`, `key_splits.rows`).
    """
    columns = snapshot.config.primary_key
    newer = _folded(records, wanted)
    requested = wanted if newer is None else fold.left_open([newer], wanted)

    splits = key_splits.candidates(snapshot, requested, kept) if requested.num_rows else ()
    index = key_index(store, snapshot, requested, splits=len(splits), verified=verified, kept=kept)

    def of_split(add: Add) -> list[pa.Table]:
        return list(key_splits.rows(store, add, requested, snapshot.schema, verified=verified, kept=kept, index=index))

    base = [snapshot.schema.empty_table(), *chain.from_iterable(all_of(of_split, splits, _SPLITS_AT_ONCE))]
    rows = pa.concat_tables(base)
    if newer is not None and newer.num_rows:
        rows = fold.apply(rows, newer, columns)
    found = _python_rows(as_text(rows))
    if wanted.num_rows == 1:
        return [found[-1] if found else None]
    held, requested_codes = key_codes([rows, wanted], columns)
    by_code = dict(zip(held.tolist(), found, strict=True))
    return [by_code.get(each) for each in requested_codes.tolist()]


def key_index(
    store: ObjectStore, snapshot: Snapshot, wanted: pa.Table, *, splits: int, verified: Verified, kept: KeptValues
) -> IndexedKeys | None:
    """Return `IndexedKeys.of`, None at once for a table without segments."""
    if not snapshot.segments:
        return None
    from storage_core.read.indexed_keys import IndexedKeys  # which tables without indexes do not need

    return IndexedKeys.of(store, snapshot, wanted, splits=splits, verified=verified, kept=kept)


def left_to_base(records: pa.Table | None, wanted: pa.Table) -> pa.Table:
    """Return those of the wanted keys whose rows these records over the base do not tell whole."""
    newer = _folded(records, wanted)
    return wanted if newer is None else fold.left_open([newer], wanted)


def _folded(records: pa.Table | None, wanted: pa.Table) -> pa.Table | None:
    return fold.fold(records, wanted.column_names) if records is not None and records.num_rows else None


def _python_rows(rows: pa.Table) -> list[dict[str, object]]:
    names, columns = rows.column_names, map(_python_values, rows.columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _python_values(column: pa.ChunkedArray) -> list[object]:
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return list(column.to_numpy().tolist())  # in a tenth of the time
    try:
        found: list[object] = column.to_pylist(maps_as_pydicts="strict")
    except (KeyError, TypeError):  # an entry twice, or a key that is a list
        if len(column) == 1:
            return list(column.to_pylist())
        return [value for row in range(len(column)) for value in _python_values(column.slice(row, 1))]
    return found


def _are_values(keys: Sequence[Key], columns: Sequence[str]) -> bool:
    """Whether each key is the value of the only key column."""
    return len(columns) == 1 and {*map(type, keys)} <= {int, str}


def _values(key: Key, columns: Sequence[str]) -> list[object]:
    """The value of each key column."""
    if isinstance(key, Mapping):
        values = [key.get(name) for name in columns] if set(key) <= set(columns) else []
    elif isinstance(key, tuple | list):
        values = list(key)
    else:
        values = [key]
    if len(values) != len(columns) or any(value is None for value in values):
        raise InvalidInput(f"the key {quoted(key)} does not name a value for each of {list(columns)}", key=key)
    return values


def _array(values: Sequence[object], wanted: pa.DataType) -> pa.Array:
    """Values as an array of the wanted type; text is read as that type, so that a command line can name any key."""
    if pa.types.is_string(wanted) or not any(isinstance(each, str) for each in values):
        return exact_array(values, wanted)
    return pa.concat_arrays([_scalar_array(each, wanted) for each in values])


def _scalar_array(value: object, wanted: pa.DataType) -> pa.Array:
    if not isinstance(value, str) or is_timed(wanted):
        return exact_array([value], wanted)
    read = pa.array([value]).cast(wanted)
    if pa.types.is_floating(wanted) and pc.is_inf(read)[0].as_py() and "inf" not in value.lower():
        raise ValueError(f"{value!r} is beyond {wanted}")
    return read
