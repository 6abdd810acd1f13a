"""What the bounds of a generation rule out: splits of the base, and wanted keys. On columns, never one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.generation_manifest import Generation
from storage_core.rows.codes import Mask
from storage_core.rows.key_ranges import with_room
from storage_core.rows.map_lookup import map_column
from storage_core.rows.sortable import bound_keys, sortable, unless_false

Bounds = Mapping[str, tuple[pa.Array, pa.Array]]


def may_overlap(
    files: pa.Table, generations: Sequence[Generation], *, key: Sequence[str], schema: pa.Schema
) -> pa.BooleanArray:
    """Tell per row of a table of splits (`FILES_SCHEMA`) whether its split may hold a key of a generation.

    False only when for every generation some key column leaves no room for a common value; a bound that is missing or
    is no value of its column rules nothing out. No request is made.
    """
    types = {name: schema.field(name).type for name in key}
    touched = [_bounds_of(each, types) for each in generations]
    masks = [_overlaps(batch, touched, types) for batch in files.select(["minValues", "maxValues"]).to_batches()]
    return pa.array(np.concatenate([np.empty(0, dtype=bool), *masks]))


def may_hold(files: pa.Table, wanted: pa.Table) -> pa.BooleanArray:
    """Tell per row of a table of splits (`FILES_SCHEMA`) whether its split may hold one of these keys.

    False only when the bounds of the split and those of the keys, column by column, leave no room for a common value.
    No request is made. `wanted` has the key columns and at least one row.
    """
    ends = {name: pc.min_max(sortable(wanted[name].combine_chunks())) for name in wanted.column_names}
    bounds = {name: (pa.array([each["min"]]), pa.array([each["max"]])) for name, each in ends.items()}
    types = {each.name: each.type for each in wanted.schema}
    masks = [_overlaps(batch, [bounds], types) for batch in files.select(["minValues", "maxValues"]).to_batches()]
    return pa.array(np.concatenate([np.empty(0, dtype=bool), *masks]))


def admitting(generations: Sequence[Generation], wanted: pa.Table) -> list[Generation]:
    """Return those of the generations, in their order, whose bounds have room for one of the keys. No request.

    One comparison per key column, however many generations and keys; see `with_room`.
    """
    if not generations:
        return []
    ranges = [
        (_keys(each, [held.min_key for held in generations]), _keys(each, [held.max_key for held in generations]))
        for each in wanted.schema
    ]
    return list(compress(generations, with_room(ranges, wanted).tolist()))


def _keys(column: pa.Field, bounds: Sequence[Mapping[str, str]]) -> pa.Array:
    return bound_keys(pa.array([each.get(column.name) for each in bounds], pa.string()), column.type)


def admitted(generation: Generation, wanted: pa.Table) -> Mask:
    """Tell per row of a table of keys False when the generation's bounds exclude the key. No request.

    One comparison per key column and bound, however many the keys; NaN, the greatest value, is one value, and a bound
    that is missing or is no value of its column excludes nothing.
    """
    mask = np.ones(wanted.num_rows, dtype=bool)
    for name, (least, greatest) in _bounds_of(generation, {each.name: each.type for each in wanted.schema}).items():
        keys = sortable(wanted[name].combine_chunks())
        mask &= unless_false(pc.greater_equal(keys, least[0])) & unless_false(pc.less_equal(keys, greatest[0]))
    return mask


def _bounds_of(generation: Generation, types: Mapping[str, pa.DataType]) -> Bounds:
    found = {
        name: bound_keys(pa.array([generation.min_key.get(name), generation.max_key.get(name)], pa.string()), type_)
        for name, type_ in types.items()
    }
    return {name: (both[:1], both[1:]) for name, both in found.items()}


def _overlaps(files: pa.RecordBatch, touched: Sequence[Bounds], types: Mapping[str, pa.DataType]) -> Mask:
    lows, highs = map_column(files.column("minValues")), map_column(files.column("maxValues"))
    held = {
        name: (bound_keys(lows.lookup(name), kind), bound_keys(highs.lookup(name), kind))
        for name, kind in types.items()
    }
    mask = np.zeros(files.num_rows, dtype=bool)
    for bounds in touched:
        common = np.ones(files.num_rows, dtype=bool)
        for name, (low, high) in held.items():
            least, greatest = bounds[name]
            # Bounds are inclusive: values may be common where one range ends as the other begins.
            common &= unless_false(pc.less_equal(low, greatest[0])) & unless_false(pc.greater_equal(high, least[0]))
        mask |= common
    return mask
