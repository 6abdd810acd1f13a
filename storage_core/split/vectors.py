"""Deletion vectors of splits: read, verified, and written where they are best kept.

A vector hides rows of a file, which itself never changes. Rows are counted from 0 in file order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from pyroaring import BitMap

from storage_core.cache.pieces import NOT_CACHED, CachedPieces, Piece
from storage_core.errors import SEE_CORRUPT, CommitConflict, Corrupt, InvalidInput, NotFound, SnapshotExpired
from storage_core.formats.keys import parse, vector_key
from storage_core.ids import Ids
from storage_core.log.actions import Add
from storage_core.log.deletion_vector import DeletionVector, encode, inline, rows_of, stored
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_once
from storage_core.objectstore.prefetch import all_of
from storage_core.rows.codes import Mask
from storage_core.rows.positions import positions

INLINE_BYTES = 1024
"""The longest bitmap that stands in the action itself.

About 500 scattered rows. An action is in a version file, in a manifest, and in the memory of every reader; an object
costs one request per reader that opens the split.
"""


PARALLEL_READS = 8
"""Stored vectors on their way at a time: small objects, of which a table with many deletes has one per split."""


def deleted_rows(store: ObjectStore, add: Add, cached: CachedPieces = NOT_CACHED) -> BitMap:
    """Return the rows of the file that are superseded or deleted; none without a vector.

    One GET for a stored one, none where it is cached.

    Raises `Corrupt` naming it for a vector that is not what the log says, or names rows that the split does not
    have; `SnapshotExpired` when its object is gone.
    """
    vector = add.deleted_rows
    if vector is None:
        return BitMap()
    deleted = rows_of(vector, None, where=add.path) if vector.path is None else _stored(store, add, vector, cached)
    if add.numRecords is not None and deleted.max() >= add.numRecords:
        raise Corrupt(f"{add.path}: its deletion vector names row {deleted.max()} of {add.numRecords}", key=add.path)
    return deleted


def deleted_rows_of_each(store: ObjectStore, adds: Sequence[Add]) -> list[BitMap]:
    """Return what `deleted_rows` returns, for each of these. One GET per stored vector, `PARALLEL_READS` at a time."""
    return all_of(partial(deleted_rows, store), adds, PARALLEL_READS)


def vector_for(store: ObjectStore, add: Add, deleted: BitMap, *, ids: Ids) -> DeletionVector:
    """Return the vector that hides `deleted` of a split of ours: inline up to `INLINE_BYTES`, else stored beside it.

    No request, or one PUT; an object that no version names is an orphan. Raises `CommitUnknown` when the store did not
    say whether it kept the object and does not have it.
    """
    data = encode(deleted)
    if len(data) <= INLINE_BYTES:
        return inline(deleted)
    split = parse(add.path)
    if split is None or split.windowed is None:
        raise InvalidInput(f"{add.path}: not the key of a split of ours; its rows cannot be deleted", path=add.path)
    key = vector_key(split.window, split.windowed, ids.uuid())
    if not create_once(store, key, data, advice="write the vector again under a fresh id"):
        raise CommitConflict(f"{key}: the vector id is taken by other bytes; write under a fresh id", key=key)
    return stored(key, data)


def visible(deleted: BitMap, first: int, rows: int) -> Mask | None:
    """Return which of `rows` rows from `first` on are not gone; None when all of them are visible."""
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
            f"{add.path}: the log says that rows of it are deleted in {path}, which the store does not have; open a "
            f"newer version, and if that names it too, {SEE_CORRUPT}",
            key=add.path,
        ) from error
