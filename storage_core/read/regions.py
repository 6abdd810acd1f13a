"""Which regions a read has to look at: pruning by keys and by what a filter pins.

The sources of a region's fields are part of the primary key, so a row that meets an equality on them can only be in
the region that the equality names. Leaving the others out never changes an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.predicate import And, Compare, Comparison, Filter, Predicate
from storage_core.region.registry import known_regions
from storage_core.region.spec import canonical, field_values, region_for, route
from storage_core.rows.exact import exact_array
from storage_core.settings.region_fields import Region, RegionField, Value


def holding_regions(snapshot: Snapshot, *, keys: pa.Table) -> Sequence[Region]:
    """Return the regions of these keys, rows with the key columns. No request: a region is named by its values."""
    return route(snapshot.table_id, snapshot.config.region_spec, keys).regions


def matching_regions(store: ObjectStore, snapshot: Snapshot, *, filter: Filter | None) -> Sequence[Region] | None:  # noqa: A002  # as `Table.scan` calls it
    """Return the regions that may hold rows which the filter keeps; None for all of them.

    No request when the filter pins every field by equality, else one GET of the registry when it pins any.
    """
    spec = snapshot.config.region_spec
    equal = {} if filter is None else _equalities(filter.predicate, snapshot.schema)
    pinned = {at: value for at, field in enumerate(spec.fields) for value in _pinned(field, equal)}
    if not pinned:
        return None
    if len(pinned) == len(spec.fields):
        return [region_for(snapshot.table_id, spec, tuple(pinned[at] for at in range(len(spec.fields))))]
    return [each for each in known_regions(store, snapshot) if _fits(each, pinned)]


def _fits(region: Region, pinned: dict[int, Value]) -> bool:
    return region.values is None or all(region.values[at] == value for at, value in pinned.items())


def _pinned(field: RegionField, equal: dict[str, pa.Array]) -> list[Value]:
    """The one value that rows with these equalities have in the field; nothing when they leave it open."""
    if any(name not in equal for name in field.source_ids):
        return []
    try:
        row = pa.table([equal[name] for name in field.source_ids], names=list(field.source_ids))
        return canonical(field_values(field, row))
    except InvalidInput:  # an expression that has no value here: then no row of a region has this source
        return []


def _equalities(predicate: Predicate, schema: pa.Schema) -> dict[str, pa.Array]:
    """What the predicate demands of columns by equality, as arrays of one value of the column's type."""
    match predicate:
        case And(children):
            found: dict[str, pa.Array] = {}
            for child in children:
                found |= _equalities(child, schema)
            return found
        case Compare(column, Comparison.EQ, value) if column in schema.names:
            try:
                return {column: exact_array([value], schema.field(column).type)}
            except (TypeError, ValueError, OverflowError, pa.ArrowException):
                return {}  # DuckDB compares it by its own rules
        case _:
            return {}
