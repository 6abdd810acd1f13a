"""Records of one chunk for one table: which of them fit, are in time, and to which regions they belong.

Both kinds of task ask here, so that they agree: what one finds to be of a region, the other writes into it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.dealing.work import Target
from storage_core.quarantine import late_records
from storage_core.raw_log.chunks import RawChunkRef
from storage_core.raw_log.read import TypedRecords, typed
from storage_core.region.spec import Region, Routed, route
from storage_core.region_fields import RegionSpec
from storage_core.rows.late import LateRule


def fit(records: pa.Table, target: Target) -> TypedRecords:
    """Return the records as those of the table, and those that do not fit. No request."""
    config = target.config
    return typed(records, target.context.schema, key=config.primary_key, merged_maps=config.merged_maps)


def in_time(fitting: TypedRecords, target: Target) -> pa.Table:
    """Return those of the records that the table takes, in order: a `LateDoor` that keeps nothing. No request.

    A record arrived when it was written to the raw log, so that it is late or not whenever it is dealt.
    """
    rule = LateRule.of(target.config)
    if rule is None or rule.late_data.policy == "accept":
        return fitting.records
    return fitting.records.filter(pc.invert(late_records(rule, fitting.records, fitting.written_ms)))


def regions_of(records: pa.Table, ref: RawChunkRef, target: Target) -> tuple[Region, ...]:
    """Return the regions that records of the chunk which fit are to be dealt into, each once.

    Raises `InvalidInput` when an expression of a region spec fails on one of them.
    """
    return _routed(_undealt(records, ref, target), target, target.config.region_spec).regions


def of_region(records: pa.Table, ref: RawChunkRef, target: Target, region: str) -> pa.Table:
    """Return those of the records that are to be dealt into the region, in order. Raises as `regions_of` does."""
    left = _undealt(records, ref, target)
    return left.filter(_of_any(_routed(left, target, target.config.region_spec), {region}))


def _undealt(records: pa.Table, ref: RawChunkRef, target: Target) -> pa.Table:
    """What no region of an earlier spec has: those were dealt into while the spec was the table's."""
    having = {region for region, marks in target.earlier.items() if marks.get(ref.writer, 0) >= ref.number}
    for spec in _earlier_specs(target) if having else ():
        found = _of_any(_routed(records, target, spec), having)
        records = records.filter(pa.array(~np.asarray(found)))
    return records


def _earlier_specs(target: Target) -> Iterator[RegionSpec]:
    yield from target.config.region_specs[:-1]


def _routed(records: pa.Table, target: Target, spec: RegionSpec) -> Routed:
    return route(target.context.table_id, spec, records)


def _of_any(routed: Routed, regions: set[str]) -> pa.BooleanArray:
    wanted = np.array([each.id in regions for each in routed.regions], np.bool_)
    return pa.array(wanted[routed.positions], pa.bool_())
