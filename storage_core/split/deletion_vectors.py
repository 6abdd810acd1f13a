"""Reading, verification and writing of the deletion vectors of splits.

A deletion vector is inline or in its own object.

A deletion vector hides rows of a file. The file itself never changes. Rows are counted from 0 in file order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from pyroaring import BitMap

from storage_core.base.clock import Ids
from storage_core.base.errors import SEE_CORRUPT, CommitConflict, Corrupt, InvalidInput, NotFound, SnapshotExpired
from storage_core.data.formats.keys import parse, vector_key
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.keys import positions
from storage_core.log.actions import Add, Remove
from storage_core.log.deletion_vector import DeletionVector, encode, inline, rows_of, stored
from storage_core.store.contract import ObjectStore, create_once
from storage_core.store.meter import all_of
from storage_core.store.pieces import NOT_CACHED, CachedPieces, Piece

INLINE_BYTES = 1024
"""The maximum size of a deletion vector inside the add action. About 500 scattered deleted rows fit into this size.

A deletion vector above this size is stored in an object. A version file, a manifest, and the memory of every reader
contain the action. An object costs each reader one request when the reader opens the split.
"""


PARALLEL_READS = 8
"""The number of stored deletion vectors to read concurrently.

Stored deletion vectors are small objects, and there may be one per split.
"""


def deleted_rows(store: ObjectStore, add: Add, cached: CachedPieces = NOT_CACHED) -> BitMap:
    """Return the rows of the file that are replaced or deleted. Without a deletion vector, the result is empty.

    Makes one GET for a stored deletion vector that is not cached.

    Raises:
        Corrupt: The vector does not match the log, or contains rows that the split does not have. The error names the
            vector.
        SnapshotExpired: The object of the vector no longer exists.
    """
    vector = add.deleted_rows
    if vector is None:
        return BitMap()
    deleted = rows_of(vector, None, where=add.path) if vector.path is None else _stored(store, add, vector, cached)
    if add.numRecords is not None and deleted.max() >= add.numRecords:
        raise Corrupt(
            f"{add.path}: its deletion vector contains row {deleted.max()}, but the split has {add.numRecords} rows",
            key=add.path,
        )
    return deleted


def deleted_rows_of_each(store: ObjectStore, adds: Sequence[Add]) -> list[BitMap]:
    """Return the `deleted_rows` of each of these splits.

    Makes one GET per stored vector, and at most `PARALLEL_READS` GETs at a time.
    """
    return all_of(partial(deleted_rows, store), adds, PARALLEL_READS)


def vector_for(store: ObjectStore, add: Add, deleted: BitMap, *, ids: Ids) -> DeletionVector:
    """Return a deletion vector that hides the rows `deleted` of a split. Tidemark must have written the split.

    A deletion vector of at most `INLINE_BYTES` is inline and costs no request. A deletion vector of more than
    `INLINE_BYTES` is stored as an object next to the split, with one PUT. If no version refers to the object, it is an
    orphan. Raises `CommitUnknown` if the store did not report whether it stored the object, and the object is not
    there.
    """
    data = encode(deleted)
    if len(data) <= INLINE_BYTES:
        return inline(deleted)
    split = parse(add.path)
    if split is None or split.windowed is None:
        raise InvalidInput(
            f"{add.path}: the path is not the key of a split, so its rows cannot be deleted", path=add.path
        )
    key = vector_key(split.window, split.windowed, ids.uuid())
    if not create_once(store, key, data, advice="write the vector again with a new id"):
        raise CommitConflict(f"{key}: another object has this id. Write with a new id", key=key)
    return stored(key, data)


def visible(deleted: BitMap, first: int, rows: int) -> Mask | None:
    """Return a mask of the visible rows among `rows` rows from `first` on, or None if all rows are visible."""
    if not deleted.range_cardinality(first, first + rows):
        return None
    mask = np.ones(rows, np.bool_)
    mask[positions(deleted & BitMap(range(first, first + rows))) - first] = False
    return mask


def _stored(store: ObjectStore, add: Add, vector: DeletionVector, cached: CachedPieces) -> BitMap:
    path, piece = str(vector.path), Piece(0, vector.size, vector.xxh3)
    data = cached.made(store.uri, path, vector.xxh3, piece, fetch=lambda: _object(store, path, add))
    return rows_of(vector, data, where=path)


def _object(store: ObjectStore, path: str, add: Add) -> bytes:
    try:
        return store.get(path).data
    except NotFound as error:
        raise SnapshotExpired(
            f"{add.path}: its deleted rows are in {path}, which the store does not have. Open a newer version. "
            f"If the newer version also refers to this file, the file is lost. {SEE_CORRUPT}",
            key=add.path,
        ) from error


# Actions for a live split that loses rows: the entry with a larger deletion vector, or the removal of the split.


def hide_rows(store: ObjectStore, split: Add, deleted: BitMap, *, rows: int, ids: Ids, now_ms: int) -> Add | Remove:
    """Return the action that hides the rows `deleted` of a live split. `deleted` includes rows deleted earlier.

    Makes at most one PUT, for a stored vector. Raises the errors of `vector_for`.
    """
    if len(deleted) == rows:
        return removal(split, now_ms)
    return replace(split, deletionVector=vector_for(store, split, deleted, ids=ids), dataChange=True)


def removal(split: Add, now_ms: int, *, changes_rows: bool = True) -> Remove:
    """Return the action that removes a live split.

    Unless `changes_rows` is True, other splits now contain the rows of this split.
    """
    return Remove(
        path=split.path,
        deletionTimestamp=now_ms,
        dataChange=changes_rows,
        partitionValues=dict(split.partitionValues),
        size=split.size,
    )
