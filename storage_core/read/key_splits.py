"""The base for a lookup by key: which splits may hold one of the keys, and the rows that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.predicate import And, Compare, Comparison, Or
from storage_core.read.pruning import manifests_for, prune_of
from storage_core.read.verified import Verified
from storage_core.region.memtable import matching
from storage_core.rows.columns import stored_name
from storage_core.rows.key_ranges import Range, with_room
from storage_core.rows.keys import Positions
from storage_core.rows.map_lookup import map_column
from storage_core.rows.sortable import bound_keys
from storage_core.split.kept_values import KeptValues

if TYPE_CHECKING:
    from storage_core.read.indexed_keys import IndexedKeys

_KEYS_AT_ONCE = 64
_BOUNDED = ("bounds of keys",)


@dataclass(frozen=True, slots=True, eq=False)
class _Bounded:
    """A table of splits, and per key column the bounds of its rows."""

    files: pa.Table
    ranges: Sequence[Range]


def candidates(snapshot: Snapshot, wanted: pa.Table, kept: KeptValues) -> Sequence[Add]:
    """Return the live splits that may hold one of these keys, of which there is at least one, by path.

    By the bounds of the key columns; of a split whose keys are not in `kept`, by all that the log says of it. One GET
    per manifest that was not read yet, and whose bounds leave room for such a key.
    """
    from storage_core.split import key_places  # and Parquet

    files = _files(snapshot, wanted)
    bounded = kept.get(_BOUNDED)
    if not isinstance(bounded, _Bounded) or bounded.files is not files:
        bounded = _Bounded(files, bounds_of_keys(files, wanted.schema))
        kept.keep(_BOUNDED, bounded, sum(each.nbytes for both in bounded.ranges for each in both))
    found = snapshot.splits.records_at(files, np.flatnonzero(with_room(bounded.ranges, wanted)))
    unknown = {add.path for add in found if not key_places.are_kept(add, kept)}
    if unknown:
        unread = files.filter(pc.is_in(files["path"], pa.array(sorted(unknown))))
        unknown -= _admitting(snapshot, unread, wanted)
    return sorted((add for add in found if add.path not in unknown), key=lambda add: add.path)


def rows(
    store: ObjectStore,
    add: Add,
    wanted: pa.Table,
    schema: pa.Schema,
    *,
    verified: Verified,
    kept: KeptValues,
    index: IndexedKeys | None = None,
) -> Iterator[pa.Table]:
    """Yield the live rows of a split with one of these keys, with the columns of the table.

    What is in `kept` and `verified` is not read again. Where the `index` tells of the split, the rows that it names
    are read, and nothing where it names none. A local file is read whole once, to verify it. Of any other split: one
    GET where it is small (`split.read.SMALL_SPLIT_BYTES`), else one of the footer, then per row group that
    may hold a key one of the key columns, or several where they lie apart, and per row group that does one of all
    columns. One GET more for a deletion vector that is stored and not cached, where the split has a key. Raises
    what `open_split` raises.
    """
    from storage_core.split import key_places, pages  # and Parquet
    from storage_core.split.conform import conform_split
    from storage_core.split.read import open_split

    named = None if index is None else index.of_split(add).places
    if named is not None and not len(named):
        return
    path = verified.path(store, add)
    opened = cache(lambda: open_split(store, add.as_written, whole=False, file_path=path, footers=verified.footers))
    places = key_places.find(add, opened, wanted, kept) if named is None else named
    if len(places) and add.deletionVector is not None:
        places = places[~np.isin(places, _deleted(store, add, kept))]
    if not len(places):
        return
    # A split without a checksum is of another writer, and its pages may be anything.
    if path is not None and add.xxh3 is not None:
        found = pages.take(store, add.as_written, path, places, kept=kept)
    else:
        found = opened().take(places)
    verified.recheck(store, [(add, path)] if path is not None else [])
    yield matching(conform_split(found, schema), wanted, wanted.column_names)


def _files(snapshot: Snapshot, wanted: pa.Table) -> pa.Table:
    """The splits of the manifests that have room for a key, and of all others that cost nothing to look at."""
    splits, config = snapshot.splits, snapshot.config
    partitions = {each.column for each in config.partition_fields}
    bounded = {*snapshot.metadata.partitionColumns, *partitions, config.time_column}
    if splits.is_read or bounded.isdisjoint(wanted.column_names):
        return splits.table()
    return splits.table(manifests_for(snapshot, _equal(wanted)))


def bounds_of_keys(files: pa.Table, key: pa.Schema) -> Sequence[Range]:
    """Return per key column the bounds of its values in each of a table of splits."""
    parts = [
        [map_column(chunk) for chunk in files.column(name).chunks if len(chunk)] for name in ("minValues", "maxValues")
    ]
    lows, highs = (
        [bound_keys(_joined([each.lookup(stored_name(field)) for each in part]), field.type) for field in key]
        for part in parts
    )
    return tuple(zip(lows, highs, strict=True))


def _joined(texts: Sequence[pa.Array]) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.string()), *texts])


def _admitting(snapshot: Snapshot, files: pa.Table, wanted: pa.Table) -> set[str]:
    """The paths of those of these splits that may hold one of the keys, by all that the log says of them."""
    keep = np.zeros(files.num_rows, np.bool_)
    for start in range(0, wanted.num_rows, _KEYS_AT_ONCE):
        equal = _equal(wanted.slice(start, _KEYS_AT_ONCE))
        pruned = prune_of(snapshot, files, equal)
        keep |= pruned.keep.to_numpy(zero_copy_only=False)
    return set(files["path"].filter(pa.array(keep)).to_pylist())


def _equal(wanted: pa.Table) -> Or:
    return Or(tuple(And(tuple(Compare(name, Comparison.EQ, row[name]) for name in row)) for row in wanted.to_pylist()))


def _deleted(store: ObjectStore, add: Add, kept: KeptValues) -> Positions:
    from storage_core.rows.positions import positions
    from storage_core.split.vectors import deleted_rows

    name = (add.path, add.deleted_rows)
    return positions(kept.made(name, BitMap, lambda: deleted_rows(store, add, kept.cached), lambda rows: 2 * len(rows)))
