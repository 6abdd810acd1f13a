"""Which regions a read has to look at: pruning by keys, and by what a predicate says of the columns of regions.

The sources of a region's fields are part of the primary key, so all rows of a region agree on the values of the fields;
those of a region made by hand on nothing.
Leaving regions out never changes an answer: their rows do not meet the predicate, now or in the base.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.column_names import in_columns
from storage_core.read.literals import DIGITS, MICROSECONDS_OF_A_DAY, Limit, interval
from storage_core.read.predicate import And, Beginning, Compare, Comparison, Day, Instant, IsNull, Literal, Predicate
from storage_core.read.pruning import Leaf, conditions, possible
from storage_core.region.registry import hand_regions, known_regions
from storage_core.region.spec import canonical, field_values, region_for, route
from storage_core.region.transforms import TransformKind, parse_transform
from storage_core.rows.codes import Mask
from storage_core.rows.exact import exact_array
from storage_core.settings.region_fields import BY_HAND_SPEC, Region, RegionField, RegionSpec, Value

_IN_ORDER = frozenset({TransformKind.IDENTITY, TransformKind.TRUNCATE, TransformKind.YEAR})
_OTHERS = frozenset({Comparison.NE, Comparison.LT, Comparison.GT})
_MOST_EXACT = 2**53  # as a float64 each integer up to here is itself


def holding_regions(store: ObjectStore, snapshot: Snapshot, *, keys: pa.Table) -> Sequence[Region]:
    """Return the regions that may hold these keys, rows with the key columns: those of the spec, then all by hand.

    No request, as a region is named by its values; where the table may have regions by hand, one GET of the registry.
    """
    routed = route(snapshot.table_id, snapshot.config.region_spec, keys).regions
    return (*routed, *hand_regions(store, snapshot))


def matching_regions(store: ObjectStore, snapshot: Snapshot, *, predicate: Predicate | None) -> Sequence[Region] | None:
    """Return the regions that may hold rows for which the predicate is true; None for all of them.

    No request when it pins every field by equality, or none of the columns that regions are made of is in it, else one
    GET of the registry. Those made by hand may hold any row, and cost that GET each time.
    """
    spec = snapshot.config.region_spec
    predicate = in_columns(predicate, snapshot.schema.names)
    sources = {name for field in spec.fields for name in field.source_ids}
    if predicate is None or sources.isdisjoint(each.column for each in conditions(predicate)):
        return None
    equal = _equalities(predicate, snapshot.schema)
    pinned = {at: value for at, field in enumerate(spec.fields) for value in _pinned(field, equal)}
    if len(pinned) == len(spec.fields):
        own = region_for(snapshot.table_id, spec, tuple(pinned[at] for at in range(len(spec.fields))))
        return [own, *hand_regions(store, snapshot)]
    regions = known_regions(store, snapshot)
    fitting = [each for each in regions if each.spec_id == spec.id and _fits(each, pinned)]
    keep = possible(predicate, _by_values(fitting, spec, snapshot.schema), len(fitting))
    routed = (each for each, is_kept in zip(fitting, keep, strict=True) if is_kept)
    return [*routed, *(each for each in regions if each.spec_id == BY_HAND_SPEC)]


def _by_values(regions: Sequence[Region], spec: RegionSpec, schema: pa.Schema) -> Leaf:
    """Whether rows of each region may meet a condition, by the values of the fields that one column makes."""

    def leaf(condition: Compare | IsNull) -> Mask | None:
        index = schema.get_field_index(condition.column)
        if index < 0 or not isinstance(condition, Compare):
            return None
        wanted = _limits(condition.value, schema.field(index).type)
        fields = [(at, field) for at, field in enumerate(spec.fields) if field.source_ids == (condition.column,)]
        if wanted is None or not fields:
            return None
        found = np.ones(len(regions), dtype=bool)
        for at, field in fields:
            for is_met in _tests(field, condition.comparison, wanted):
                values = (None if each.values is None else each.values[at] for each in regions)
                found &= np.fromiter((each is None or is_met(each) for each in values), bool, len(regions))
        return found

    return leaf


def _tests(
    field: RegionField, comparison: Comparison, wanted: tuple[pa.Array, pa.Array]
) -> Iterator[Callable[[Any], bool]]:
    """What the value of a field is where its column compares so with a value from the one limit to the other."""
    try:
        [least], [greatest] = (canonical(field_values(field, pa.table([each], field.source_ids))) for each in wanted)
    except InvalidInput:  # an expression that has no value here
        return
    is_exact = wanted[0].equals(wanted[1])
    if comparison is Comparison.EQ and is_exact:
        yield lambda value: value == least
        return
    if comparison in _OTHERS and is_exact and field.transform == TransformKind.IDENTITY:
        yield lambda value: value != least
    if _keeps_order(field, wanted[0].type):
        if comparison in (Comparison.EQ, Comparison.GT, Comparison.GE):
            yield lambda value: value >= least
        if comparison in (Comparison.EQ, Comparison.LT, Comparison.LE):
            yield lambda value: value <= greatest


def _keeps_order(field: RegionField, source: pa.DataType) -> bool:
    """Whether a greater value of the column never has a lesser value of the field, as values are written down."""
    if field.transform is None or parse_transform(field.transform).kind not in _IN_ORDER:
        return False
    kinds = pa.types
    return any(each(source) for each in (kinds.is_integer, kinds.is_string, kinds.is_date32, kinds.is_timestamp))


def _limits(value: Literal, type_: pa.DataType) -> tuple[pa.Array, pa.Array] | None:
    """The least and the greatest value of the column that the literal may stand for; None where none can tell."""
    if pa.types.is_floating(type_) and type(value) is int and abs(value) <= _MOST_EXACT:
        value = float(value)
    found = interval(value, type_)
    is_point = found is not None and not isinstance(value, Instant | Beginning | Day) and found.least == found.greatest
    if is_point or (isinstance(value, bytes) and pa.types.is_binary(type_)):
        with suppress(TypeError, ValueError, OverflowError, pa.ArrowException):
            exact = exact_array([value], type_)
            return exact, exact
    if found is None or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return None  # DuckDB compares it by its own rules
    try:
        return _rounded(found.least, type_, up=True), _rounded(found.greatest, type_)
    except (TypeError, ValueError, OverflowError, pa.ArrowException):  # beyond what the column holds
        return None


def _rounded(limit: Limit, type_: pa.DataType, *, up: bool = False) -> pa.Array:
    """A limit of `literals.interval` as a value of the column."""
    if isinstance(limit, str):
        return pa.array([limit], type_)
    if pa.types.is_integer(type_):
        if isinstance(limit, Decimal) and limit.adjusted() > DIGITS:
            raise OverflowError
        return pa.array([math.ceil(limit) if up else math.floor(limit)], type_)
    microseconds = int(limit)
    if not pa.types.is_date32(type_):
        return pa.array([microseconds], pa.int64()).cast(type_)
    days = -(-microseconds // MICROSECONDS_OF_A_DAY) if up else microseconds // MICROSECONDS_OF_A_DAY
    return pa.array([days], pa.int32()).cast(type_)


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
            wanted = _limits(value, schema.field(column).type)
            return {column: wanted[0]} if wanted is not None and wanted[0].equals(wanted[1]) else {}
        case _:
            return {}
