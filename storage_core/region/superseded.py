"""The rows of a split that records supersede: found by the key columns, read only where a patch needs their values.

The base never holds two live rows of one key (docs/architecture/ingestion.md, "Merge"), so a record supersedes at most
one row of all splits together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.ids import Ids
from storage_core.log.actions import Add, Remove
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows import fold
from storage_core.rows.keys import Positions, key_codes
from storage_core.rows.positions import bitmap_of, positions
from storage_core.rows.schema import conform
from storage_core.split.conform import conform_split
from storage_core.split.hidden import hiding
from storage_core.split.opened import OpenSplit
from storage_core.split.ranges import Footers
from storage_core.split.read import open_split
from storage_core.split.vectors import deleted_rows


@dataclass(frozen=True, slots=True)
class Superseded:
    """What folded records do to one split.

    `deleted` are its rows, by their place in the file, that are not live after it, `rows` how many the file has, `hit`
    how many of them the records end; `read` are the rows that patches among them lay their fields over.
    """

    split: Add
    rows: int
    deleted: BitMap
    hit: int
    read: pa.Table

    def entry(self, store: ObjectStore, *, ids: Ids, now_ms: int) -> Add | Remove:
        """Return the action that says so: the entry with a longer vector, or its end. At most one PUT."""
        return hiding(store, self.split, self.deleted, rows=self.rows, ids=ids, now_ms=now_ms)


def find(
    store: ObjectStore,
    split: Add,
    records: pa.Table,
    *,
    key: Sequence[str],
    schema: pa.Schema,
    footers: Footers | None = None,
    among: Positions | None = None,
) -> Superseded | None:
    """Return what the records do to the split, None for nothing.

    `records` is folded; `among` are the places, ascending, of the only rows that may have one of their keys, where that
    is known: none cost no request. Ranged GETs of the footer and the key columns, of the row groups of those places,
    and, where a patch hits, of the row groups that hold its row: a split up to `split.read.SMALL_SPLIT_BYTES` is one
    GET in all; one more for a vector that is stored. What `footers` hold or have cached costs none. Raises what
    `open_split` raises.
    """
    if among is not None and not len(among):
        return None
    footers = footers or Footers()
    deleted = deleted_rows(store, split, footers.cached)
    opened = open_split(store, split.as_written, whole=False, footers=footers).of_table(schema)
    rows = opened.rows
    at = np.arange(rows) if among is None else among
    wanted, held = key_codes([records, opened.read(key) if among is None else opened.take(at, key)], key)
    live = np.ones(rows, np.bool_)
    live[positions(deleted)] = False
    hit = live[at] & np.isin(held, wanted)
    if not hit.any():
        return None
    patched = wanted[records.column(fold.OPERATION).to_numpy() == fold.Operation.PATCH]
    return Superseded(
        split=split,
        rows=rows,
        deleted=deleted | bitmap_of(at[hit]),
        hit=int(hit.sum()),
        read=_rows(opened, at[hit & np.isin(held, patched)], schema),
    )


def _rows(opened: OpenSplit, places: Positions, schema: pa.Schema) -> pa.Table:
    # The file does not know which columns are required, the table does.
    return conform(conform_split(opened.take(places), schema), schema)
