"""Which rows of the files that a query reads are deleted, as DuckDB is told: by the place of the file, and in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.positions import positions
from storage_core.split.kept_values import KeptValues
from storage_core.split.vectors import deleted_rows

SCHEMA: Final = pa.schema([("file", pa.uint64()), ("row", pa.int64())])
_LASTING_BYTES: Final = 32 * 2**20
"""The places of two million rows. More are sent with each query, for a sandbox keeps them as long as a session."""


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Places of rows, of `SCHEMA`. Those with the same `digest` are the same; without one nobody may keep them."""

    rows: pa.Table
    digest: str = ""

    @property
    def files(self) -> frozenset[int]:
        """The files that have one of the rows."""
        return frozenset(self.rows.column("file").unique().to_pylist())


def hidden_rows(store: ObjectStore, splits: Sequence[Add], kept: KeptValues) -> dict[str, BitMap]:
    """Return by its path the rows of each split that its vector hides; splits without a vector are left out.

    One GET for each stored vector that is not `kept`. Raises what `deleted_rows` raises.
    """
    marked = [add for add in splits if add.deleted_rows is not None]
    names = [_name(add) for add in marked]
    found = kept.made_all(names, BitMap, lambda place: deleted_rows(store, marked[place]), lambda rows: 2 * len(rows))
    return {add.path: rows for add, rows in zip(marked, found, strict=True)}


def requests_for_hidden(add: Add, kept: KeptValues | None) -> int:
    """Return how many GETs tell which rows of a split its vector hides: one where it is stored, and not `kept`."""
    is_stored = add.deleted_rows is not None and add.deleted_rows.path is not None
    return int(is_stored and (kept is None or kept.get(_name(add)) is None))


def places_of(splits: Sequence[Add], hidden: Mapping[str, BitMap], kept: KeptValues | None) -> DeletedRows | None:
    """Return the places of the rows that are `hidden` of splits, by their paths; None where there are none.

    Where they are those that the vectors of the splits hide they are `kept`.
    """
    of_each = {place: hidden[add.path] for place, add in enumerate(splits) if hidden.get(add.path)}
    if not of_each:
        return None
    if kept is None:
        return DeletedRows(_table(of_each))
    name = ("places", *((place, *_name(splits[place])) for place in of_each))
    return kept.made(name, DeletedRows, lambda: _lasting(_table(of_each)), lambda found: found.rows.nbytes)


def _name(add: Add) -> tuple[object, ...]:
    """What fixes the rows that are hidden of a split."""
    return ("vector", add.path, add.deleted_rows)


def _table(hidden: Mapping[int, BitMap]) -> pa.Table:
    rows = [positions(each) for each in hidden.values()]
    files = np.repeat(np.array([*hidden], np.uint64), [len(each) for each in rows])
    return pa.table([pa.array(files), pa.array(np.concatenate(rows))], schema=SCHEMA)


def _lasting(rows: pa.Table) -> DeletedRows:
    if rows.nbytes > _LASTING_BYTES:
        return DeletedRows(rows)
    digest = hashlib.blake2b(digest_size=16)
    for column in rows.columns:
        digest.update(column.combine_chunks().to_numpy())
    return DeletedRows(rows, digest.hexdigest())
