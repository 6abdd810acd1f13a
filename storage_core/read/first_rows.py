"""The splits that hold the first rows of a table: in the order in which rows come, or in that of a column.

Splits are left out only when enough rows surely come before all of theirs. What is not known of a split keeps it, and
its rows count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.log.snapshot import Snapshot
from storage_core.read.bounds import ColumnBounds, statistics_of
from storage_core.read.pruning import Pruned, PruneStep
from storage_core.rows.codes import Mask

_READ = ["minValues", "maxValues", "nullCounts", "numRecords"]

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class First:
    """So many rows, the first in the order of `column`, or as they come where it is None."""

    rows: int
    column: str | None = None
    descending: bool = False
    nulls_first: bool = False


def first_splits(snapshot: Snapshot, first: First) -> Pruned:
    """Return the splits in their order that can hold one of the first rows. Reads every manifest."""
    files = snapshot.splits.table()
    rows = files.column("numRecords").fill_null(0).to_numpy()
    deleted = _deleted(snapshot, files)
    if first.column is None:
        # The split in which the last of the rows is, and all before it.
        keep = np.cumsum(np.maximum(rows - deleted, 0)) - np.maximum(rows - deleted, 0) < first.rows
    else:
        keep = ~_behind(files, first, snapshot.schema.field(first.column), deleted)
    sizes = files.column("size").fill_null(0).to_numpy()
    step = PruneStep("limit" if first.column is None else "order", int((~keep).sum()), int(sizes[~keep].sum()))
    return Pruned(snapshot.splits.records_at(files, np.flatnonzero(keep)), (step,))


def _deleted(snapshot: Snapshot, files: pa.Table) -> Counts:
    """How many rows of each split are deleted."""
    marked = {add.path: add.deleted_rows.cardinality for add in snapshot.splits.marked() if add.deleted_rows}
    found: Counts = np.zeros(files.num_rows, np.int64)
    if marked:
        places = pc.index_in(files.column("path"), pa.array([*marked], pa.string())).fill_null(-1).to_numpy()
        found[places >= 0] = np.array([*marked.values()])[places[places >= 0]]
    return found


def _behind(files: pa.Table, first: First, field: pa.Field, deleted: Counts) -> Mask:
    """Tell of each split whether all of its rows come after the first ones."""
    none: Mask = np.zeros(files.num_rows, np.bool_)
    kinds = pa.types
    if not any(each(field.type) for each in (kinds.is_integer, kinds.is_date, kinds.is_timestamp, kinds.is_decimal)):
        return none
    bounds = _bounds(files, field)
    if bounds is None:
        return none
    nulls, rows = (each.fill_null(-1).to_numpy() for each in (bounds.nulls, bounds.rows))
    surely_null = np.maximum(nulls - deleted, 0)
    wanted = first.rows
    if first.nulls_first:
        wanted -= int(surely_null.sum())
        if wanted <= 0:
            return np.asarray(nulls == 0)
    known = (nulls >= 0) & (rows >= 0)
    beyond = _beyond(bounds, np.where(known, np.maximum(rows - nulls - deleted, 0), 0), wanted, first)
    if beyond is None:
        return none
    found: Mask = beyond & (nulls == 0) if first.nulls_first else beyond | (known & (nulls == rows))
    return found


def _bounds(files: pa.Table, field: pa.Field) -> ColumnBounds | None:
    """The bounds of a column in all splits; None where they are not all of one type."""
    batches = files.select(_READ).to_batches()
    parts = [each for batch in batches if (each := statistics_of(batch, pa.schema([field]))(field.name)) is not None]
    lows, highs = [each.low() for each in parts], [each.high() for each in parts]
    if len({each.type for each in (*lows, *highs)}) != 1:
        return None
    low, high = pa.concat_arrays(lows), pa.concat_arrays(highs)
    nulls, rows = (pa.concat_arrays(each) for each in ([part.nulls for part in parts], [part.rows for part in parts]))
    return ColumnBounds(field.type, lambda: low, lambda: high, nulls, rows)


def _beyond(bounds: ColumnBounds, sure: Counts, wanted: int, first: First) -> Mask | None:
    """Tell of each split whether all values of it are beyond `wanted` rows; None where there are too few for that.

    Each split has `sure` rows at least that have a value. Rows with the value of the last one wanted are not beyond it.
    """
    near, far = (bounds.high(), bounds.low()) if first.descending else (bounds.low(), bounds.high())
    order = pc.array_sort_indices(far, order="descending" if first.descending else "ascending").to_numpy()
    counts = np.where(far.is_valid().to_numpy(zero_copy_only=False), sure, 0)[order]
    place = int(np.searchsorted(np.cumsum(counts), max(wanted, 1)))
    if place == len(order):
        return None
    beyond = (pc.less if first.descending else pc.greater)(near, far[int(order[place])])
    mask: Mask = beyond.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    return mask
