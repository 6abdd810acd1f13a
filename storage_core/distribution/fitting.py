"""Records of one chunk for one table: which of them fit, and to which regions they belong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.distribution.work import Target
from storage_core.late_row_filter import in_time
from storage_core.raw_log.chunks import RawChunkRef
from storage_core.raw_log.read import TypedRecords, typed_records
from storage_core.region.spec import Routed, route
from storage_core.rows.fold import puts
from storage_core.rows.late import LateRule
from storage_core.rows.schema import conform
from storage_core.settings.region_fields import Region, RegionSpec


def of_table(records: pa.Table, name: str) -> pa.Table:
    """Return the records that name the table. No request."""
    own = pc.equal(records.column("table"), name)
    # Most chunks are of one table, and a copy of all their text is dear.
    return records if pc.all(own).as_py() else records.filter(own)


def fit(records: pa.Table, target: Target) -> TypedRecords:
    """Return the records as those of the table, and those that do not fit. No request."""
    config = target.config
    return typed_records(
        records,
        target.context.schema,
        key=config.primary_key,
        merged_maps=config.merged_maps,
        nonzero=config.nonzero_vectors,
    )


def fit_puts(records: pa.Table, target: Target) -> tuple[TypedRecords, pa.Table]:
    """Return what fits of the puts among records of an append table, which takes no others, and as rows of it."""
    schema = target.context.schema
    fitting = fit(records.filter(pc.equal(records.column("operation"), "put")), target)
    return fitting, conform(fitting.records.select(schema.names), schema)


def admitted(records: pa.Table, target: Target) -> pa.Table:
    """Return of the records of one chunk what distribution writes into the table, of an append table as puts.

    Those that name the table, fit it and are not late, or accepted. No request: others are not quarantined.
    """
    own, config = of_table(records, target.name), target.config
    rule = LateRule.of(config)
    if config.kind == "append":
        fitting, rows = fit_puts(own, target)
        return puts(in_time(rule, rows, fitting.written_ms, are_records=False))
    fitting = fit(own, target)
    return in_time(rule, fitting.records, fitting.written_ms, are_records=True)


def by_region(records: pa.Table, ref: RawChunkRef, target: Target) -> Iterator[tuple[Region, pa.Table]]:
    """Yield the regions that records of the chunk are to be distributed into, each once, with these, in order.

    Without those that a region has: of an earlier spec, to which rows were distributed while the spec was the table's,
    or of the current one. Raises `InvalidInput` when an expression of a region spec fails on one of them.
    """
    having = {region for region, offsets in target.further.items() if offsets.get(ref.writer, 0) >= ref.number}
    for spec in _earlier_specs(target) if having else ():
        found = _of_any(_routed(records, target, spec), having)
        records = records.filter(pa.array(~np.asarray(found)))
    routed = _routed(records, target, target.config.region_spec)
    for region in routed.regions:
        if region.id not in having:
            rows = records if len(routed.regions) == 1 else records.filter(_of_any(routed, {region.id}))
            if rows.num_rows:
                yield region, rows


def _earlier_specs(target: Target) -> Iterator[RegionSpec]:
    yield from target.config.region_specs[:-1]


def _routed(records: pa.Table, target: Target, spec: RegionSpec) -> Routed:
    return route(target.context.table_id, spec, records)


def _of_any(routed: Routed, regions: set[str]) -> pa.BooleanArray:
    wanted = np.array([each.id in regions for each in routed.regions], np.bool_)
    return pa.array(wanted[routed.positions], pa.bool_())
