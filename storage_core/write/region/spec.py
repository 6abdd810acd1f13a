"""Region specs of a table: declarations, the region of every row, and the registry of regions.

A region spec is a list of fields. Each field is computed from key columns, by a transform or by an SQL expression. For
example, `{"transform": "bucket", "source": "id", "n": 4}` divides a table into four regions. All rows with the same
field values are in one region (docs/architecture/ingestion.md, "Regions").

The UUID of a region is derived from the table, the spec and the field values. So a writer, a reader and a Spark task
can compute the region of a key without a request.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import Corrupt, InvalidInput, NotFound, RegionClosed, Unavailable
from storage_core.base.text import names_of, unknown_names
from storage_core.data.formats import keys
from storage_core.data.formats.documents import Registry, decode_region_registry, encode_region_registry
from storage_core.data.formats.region_manifest import RegionManifest
from storage_core.data.rows.codes import codes
from storage_core.data.rows.incoming import exact_array
from storage_core.data.rows.keys import dense_ranks, pack
from storage_core.data.rows.schema import from_schema_string, to_schema_string
from storage_core.data.settings.layout import (
    BY_HAND_SPEC,
    WHOLE_TABLE,
    WHOLE_TABLE_SPEC,
    Region,
    RegionField,
    RegionSpec,
    Value,
)
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ATTEMPTS, ObjectStore, PutResult, compare_and_swap, put_or_unknown, unchanged
from storage_core.store.meter import all_of
from storage_core.write.region import expressions
from storage_core.write.region.expressions import Transform, apply_transform, parse_transform, result_type, widen
from storage_core.write.region.manifest import read_latest, region_of

DeclaredField: TypeAlias = RegionField | Mapping[str, object]

_KEYS = {"field", "transform", "expression", "source", "sources", "n", "width"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The regions of some rows. `regions[positions[row]]` is the region of a row. Each region has at least one row."""

    regions: tuple[Region, ...]
    positions: npt.NDArray[np.int64]


def whole_table(table_id: str) -> Region:
    """Return the only region of a table whose region spec has no fields."""
    return Region(id=region_of(table_id), spec_id=WHOLE_TABLE_SPEC, values=())


def only_region(table_id: str, spec: RegionSpec) -> Region:
    """Return the region of a spec without fields.

    Raise `InvalidInput` for a spec with fields, because a spec with fields has several regions.
    """
    if spec.fields:
        names = [each.field_id for each in spec.fields]
        raise InvalidInput(
            f"the table's regions are divided by {names}. Name the region, or write through Table.writer()"
        )
    return region_for(table_id, spec, ())


def region_for(table_id: str, spec: RegionSpec, values: tuple[Value, ...]) -> Region:
    """Return the region for the given values of the region fields. There is one value per field of the spec.

    Every call with the same values returns the same region.
    """
    if spec.id == WHOLE_TABLE_SPEC:
        return whole_table(table_id)
    return _named(table_id, spec.id, values)


def hand_region(table_id: str, name: str) -> Region:
    """Return the manual region with this name. Raise `InvalidInput` for an empty name."""
    if not name:
        raise InvalidInput(f"the name of a manual region is {name!r}. Give a text that is not empty")
    return _named(table_id, BY_HAND_SPEC, (name,))


def _named(table_id: str, spec_id: int, values: tuple[Value, ...]) -> Region:
    name = f"region:{spec_id}:{json.dumps(values, separators=(',', ':'))}"
    return Region(id=str(uuid.uuid5(uuid.UUID(table_id), name)), spec_id=spec_id, values=values)


def closing_region(table_id: str, spec: RegionSpec) -> Region:
    """Return the region that closes a spec with fields.

    This region never contains rows. A row has one value per field of the spec, and this region has no values.
    """
    return Region(id=region_for(table_id, spec, ()).id, spec_id=spec.id, values=None)


def route(table_id: str, spec: RegionSpec, rows: pa.Table) -> Routed:
    """Return the region of every row. `rows` has the source columns with the table's types.

    Only distinct field values are converted to Python objects. Raises `InvalidInput` if an expression fails on a row.
    """
    if not spec.fields:
        return Routed(regions=(region_for(table_id, spec, ()),), positions=np.zeros(rows.num_rows, np.int64))
    if not rows.num_rows:
        return Routed(regions=(), positions=np.zeros(0, np.int64))
    values = [field_values(field, rows) for field in spec.fields]
    ranks = dense_ranks(pack([codes(pa.chunked_array([each])) for each in values], rows.num_rows))
    _, first = np.unique(ranks, return_index=True)
    distinct = zip(*(canonical(each.take(pa.array(first))) for each in values), strict=True)
    return Routed(regions=tuple(region_for(table_id, spec, each) for each in distinct), positions=ranks)


def region_of_values(table_id: str, spec: RegionSpec, values: Mapping[str, object]) -> Region:
    """Return the region with these values of the spec's fields, by field id.

    Raises `InvalidInput` with the field for an invalid value.
    """
    names = [each.field_id for each in spec.fields]
    if set(values) != set(names):
        advice = f"Give a value for each region field: {', '.join(names)}" if names else "Leave region out"
        has = "" if names else ", but the table has no region fields"
        raise InvalidInput(f"the values of a region are {values!r}{has}. {advice}", fields=names)
    return region_for(table_id, spec, tuple(_given_value(each, values[each.field_id]) for each in spec.fields))


def _given_value(field: RegionField, value: object) -> Value:
    wanted = from_schema_string(_value_schema(field.result_type)).field(0).type
    try:
        found = canonical(widen(exact_array([value], wanted)))[0]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"region field {field.field_id!r}: {value!r} is not a {field.result_type}: {error}"
        ) from error
    buckets = 0 if field.transform is None else parse_transform(field.transform).buckets
    if buckets and (not isinstance(found, int) or not 0 <= found < buckets):
        raise InvalidInput(
            f"region field {field.field_id!r}: {value!r} is not a bucket. Give a number from 0 to {buckets - 1}"
        )
    return found


def field_values(field: RegionField, rows: pa.Table) -> pa.Array:
    """Return the value of a field for every row, in the field's result type.

    All values of a missing column count as null.
    """
    columns = [_column(rows, name) for name in field.source_ids]
    if field.transform is not None:
        return apply_transform(parse_transform(field.transform), columns)
    return expressions.evaluate(field.expression or "", columns)


def canonical(values: pa.Array) -> list[Value]:
    """Return the values as plain JSON. Equal values have the same JSON form, for every width of the type.

    Integers, booleans and text stay as they are. Floats become the hexadecimal text of the float64. Bytes become
    hexadecimal text. Dates become days, and timestamps become microseconds. Decimals become text without trailing
    zeros.
    """
    kinds, type_ = pa.types, values.type
    if kinds.is_date32(type_) or kinds.is_timestamp(type_):
        plain = values.cast(pa.int32()) if kinds.is_date32(type_) else values.cast(pa.int64())
        return _plain(plain)
    return _plain(values)


def _key_advice(key: Sequence[str]) -> str:
    return f"Use only columns of the key: {names_of(key)}" if key else "Declare a primary_key"


def check_spec(spec: RegionSpec, schema: pa.Schema, key: Sequence[str]) -> None:
    """Raise `InvalidInput` unless the spec fits the table. The error contains the field and the column.

    All sources must be part of the primary key, because rows of one key must be in one region. All fields must have
    values of the declared result type.
    """
    for field in spec.fields:
        outside = [name for name in field.source_ids if name not in key]
        if outside:
            raise InvalidInput(
                f"region field {field.field_id!r} is computed from {names_of(outside)}, which is not part of the "
                f"primary key. {_key_advice(key)}",
                columns=outside,
            )
        found = _type_text(_result(field, schema))
        if found != field.result_type:
            raise InvalidInput(
                f"region field {field.field_id!r}: expected values of type {field.result_type}, its "
                f"{'transform' if field.transform else 'expression'} gives {found}",
                field=field.field_id,
            )


def first_specs(regions: Sequence[DeclaredField], schema: pa.Schema) -> tuple[RegionSpec, ...]:
    """Return the specs of a new table: the spec without fields, or one spec with these fields (`declared_fields`)."""
    fields = declared_fields(regions, schema)
    return (RegionSpec(id=WHOLE_TABLE_SPEC + 1, fields=fields),) if fields else (WHOLE_TABLE,)


def declared_fields(regions: Sequence[DeclaredField], schema: pa.Schema) -> tuple[RegionField, ...]:
    """Return the region fields for these mappings, such as `{"transform": "bucket", "source": "id", "n": 4}`.

    A mapping has these keys:

    - `transform` or `expression`. A bucket transform also has `n`, and truncate has `width`.
    - `source` or `sources`.
    - `field`, the id of the field. By default, the id consists of the transform and its sources.

    Raises `InvalidInput` with the fault.
    """
    if not isinstance(regions, list | tuple):
        raise InvalidInput(f"regions is {regions!r}. Give a list of region fields")
    return tuple(_declared(each, schema) for each in regions)


def _declared(declared: object, schema: pa.Schema) -> RegionField:
    if isinstance(declared, RegionField):
        return declared
    if not isinstance(declared, Mapping) or set(declared) - _KEYS:
        raise InvalidInput(f"a region field is {declared!r}. Give a mapping with some of the keys {sorted(_KEYS)}")
    sources = _sources(declared)
    for name in sources:
        if name not in schema.names:
            raise InvalidInput(unknown_names("column", [name], schema.names, where="regions"), column=name)
    transform = _transform(declared)
    expression = declared.get("expression")
    name = declared.get("field") or "_".join([str(transform.kind) if transform else "expression", *sources])
    unfinished = RegionField(
        field_id=str(name),
        source_ids=sources,
        result_type="",
        transform=None if transform is None else transform.text,
        expression=None if expression is None else str(expression),
    )
    return RegionField(
        field_id=unfinished.field_id,
        source_ids=sources,
        result_type=_type_text(_result(unfinished, schema)),
        transform=unfinished.transform,
        expression=unfinished.expression,
    )


def _sources(declared: Mapping[str, object]) -> tuple[str, ...]:
    one, several = declared.get("source"), declared.get("sources", ())
    if (one is None) == (not several) or not isinstance(several, list | tuple):
        raise InvalidInput(f"the region field {dict(declared)} needs a `source`, or a list of `sources`")
    return (str(one),) if one is not None else tuple(str(each) for each in several)


def _transform(declared: Mapping[str, object]) -> Transform | None:
    name = declared.get("transform")
    parameter = declared.get("width" if name == "truncate" else "n")
    given = {"n", "width"} & set(declared)
    if name is None or len(given) != (parameter is not None):
        if name is None and not given:
            return None
        raise InvalidInput(
            f"the region field {dict(declared)} has wrong parameters. Give `n` only with bucket, and `width` "
            "only with truncate"
        )
    return parse_transform(str(name) if parameter is None else f"{name}({parameter})")


def _result(field: RegionField, schema: pa.Schema) -> pa.DataType:
    types = [schema.field(name).type for name in field.source_ids]
    if field.transform is not None:
        return result_type(parse_transform(field.transform), types)
    text = field.expression or ""
    expressions.check_expression(text, len(types))
    return _tried(text, [expressions.sample(each) for each in types])


def _tried(text: str, columns: list[pa.Array]) -> pa.DataType:
    """Return the type of an expression's values.

    The expression must accept nulls, and return the same values when it is evaluated again.
    """
    nulls = expressions.evaluate(text, [each.slice(0, 1) for each in columns])
    try:
        first, second = (expressions.evaluate(text, columns) for _ in range(2))
    except InvalidInput:
        return nulls.type  # The expression fails for a sample value, so writes of rows with such a value are refused.
    if canonical(first) != canonical(second):
        raise InvalidInput(
            f"the region expression {text!r} gives different values for the same row. Use only functions of the row",
            expression=text,
        )
    return nulls.type


def _column(rows: pa.Table, name: str) -> pa.Array:
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, pa.int64())
    column = rows.column(name)
    plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return plain.combine_chunks()


def _plain(values: pa.Array) -> list[Value]:
    kinds, type_ = pa.types, values.type
    objects: list[Any] = values.to_pylist()
    if kinds.is_floating(type_):
        return [None if each is None else float(each).hex() for each in objects]
    if kinds.is_binary(type_):
        return [None if each is None else each.hex() for each in objects]
    if kinds.is_decimal(type_):
        return [None if each is None else _shortest(f"{each:f}") for each in objects]
    return objects


def _shortest(decimal: str) -> str:
    text = decimal.rstrip("0").rstrip(".") if "." in decimal else decimal
    return "0" if text == "-0" else text


def _value_schema(spark_type: str) -> str:
    field = {"name": "value", "type": spark_type, "nullable": True, "metadata": {}}
    return json.dumps({"type": "struct", "fields": [field]})


def _type_text(type_: pa.DataType) -> str:
    text = json.loads(to_schema_string(pa.schema([("value", type_)])))["fields"][0]["type"]
    return str(text)


# The registry of a table's regions. The registry lets readers find the regions without listing the log.
# `_mem_wal/_regions.json` contains every region of a spec with fields, and every manual region. If one region contains
# the whole table, the registry needs no entry for this region. A region is added by compare-and-swap *before* its first
# manifest is written. So every acknowledged row is in a region of the registry. The registry also contains the closed
# specs, to which no region can be added. A change of the spec closes the previous spec (decision 0010). The registry is
# derived data. A lost or torn registry is rebuilt from the manifests of the regions. A listing finds the directories of
# the regions.


_logger = logging.getLogger(__name__)

PARALLEL_REGIONS = 8
"""Number of regions that a reader reads concurrently."""


def read_registry(store: ObjectStore) -> Registry:
    """Return the registry. One GET. A lost or torn registry is rebuilt from the regions (see `rebuilt`).

    Raises `Corrupt` if the registry and the regions are unreadable. Raises `Unsupported` for a newer format.
    """
    key = keys.region_registry_key()
    try:
        blob = store.get(key)
    except NotFound:
        return rebuilt(store)
    try:
        return decode_region_registry(blob.data, etag=blob.etag)
    except Corrupt as error:
        _logger.warning("%s: made again from the manifests of the regions: %s", key, error)
        return replace(rebuilt(store), etag=blob.etag)


def known_regions(store: ObjectStore, snapshot: Snapshot) -> list[Region]:
    """Return the regions that may have unmerged rows at the snapshot.

    Regions of the current spec come first, then manual regions. A change of the spec first merges all regions of
    earlier specs (decision 0010). An append table has no regions.

    Cost:
        One GET of the registry. No request if the spec has no fields and the table has no manual regions.
    """
    config = snapshot.config
    if config.kind != "keyed":
        return []
    is_one = not config.region_spec.fields
    named = Registry() if is_one and not config.regions_by_hand else read_registry(store)
    if is_one:
        routed = [only_region(snapshot.table_id, config.region_spec)]
    else:
        empty = closing_region(snapshot.table_id, config.region_spec).id
        routed = [each for each in named.of_spec(config.region_spec.id) if each.id != empty]
    return [*routed, *(named.of_spec(BY_HAND_SPEC) if config.regions_by_hand else ())]


def hand_regions(store: ObjectStore, snapshot: Snapshot) -> list[Region]:
    """Return the manual regions, ordered by id. One GET of the registry if the table may have manual regions."""
    if snapshot.config.kind != "keyed" or not snapshot.config.regions_by_hand:
        return []
    return read_registry(store).of_spec(BY_HAND_SPEC)


def known_manifests(store: ObjectStore, snapshot: Snapshot) -> list[RegionManifest]:
    """Return the newest manifest of each region of `known_regions`.

    Regions that were never claimed are omitted. About three requests per region.
    """
    found = (read_latest(store, region.id) for region in known_regions(store, snapshot))
    return [manifest for manifest in found if manifest is not None]


def register(store: ObjectStore, region: Region, *, clock: Clock, ids: Ids) -> None:
    """Add the region to the registry, if it is not there. One GET, and one PUT if the region is new.

    Raises `RegionClosed` if the region's spec is closed. Raises `CommitUnknown` if the store does not report the
    outcome. In this case, call again.
    """
    if region.spec_id == WHOLE_TABLE_SPEC:
        return

    def with_region(current: Registry) -> Registry:
        if region.id in current.regions:
            return current
        if region.spec_id in current.closed:
            raise closed_region(region.id, region.spec_id, current.closed[region.spec_id])
        return replace(current, regions={**current.regions, region.id: region})

    _change(store, with_region, clock=clock, ids=ids)


def close_spec(store: ObjectStore, closing: Region, successor: int, *, clock: Clock, ids: Ids) -> Registry:
    """Close the region spec of `closing`. After `closing`, no region can be added to the spec. Return the registry.

    The returned registry is durable, and no further region of the spec can appear. A caller with an earlier state of
    the registry cannot add a region. A second call changes nothing. Raises `CommitUnknown` or `Unavailable`. One GET,
    and one PUT for the first call.
    """

    def with_closed(current: Registry) -> Registry:
        if closing.spec_id in current.closed and not current.is_rebuilt:
            return current
        regions = {**current.regions, closing.id: closing}
        return replace(current, regions=regions, closed={**current.closed, closing.spec_id: successor})

    return _change(store, with_closed, clock=clock, ids=ids)


def closed_region(region: str, spec_id: int, successor: int) -> RegionClosed:
    """Return the error of a claim if the region belongs to a closed spec."""
    return RegionClosed(
        f"region {region}: its region spec {spec_id} is closed, and spec {successor} follows it. Open the table again "
        "and write there. If `Table.set_regions` is running or was interrupted, finish it first",
        region=region,
        spec=spec_id,
        successor=successor,
    )


def rebuilt(store: ObjectStore) -> Registry:
    """Return a registry that is rebuilt from the regions.

    The registry has all regions with a manifest, and all closed specs. The manifest of a closed region shows that its
    spec is closed.

    The field values are unknown, so lookups do not exclude these regions until the next claim. Raises `Corrupt` with
    the name of an unreadable manifest. One LIST and about three requests per region.
    """
    found = (read_latest(store, region) for region in _listed(store))
    manifests = [each for each in found if each is not None and each.region_spec_id != WHOLE_TABLE_SPEC]
    regions = (Region(id=each.region_id, spec_id=each.region_spec_id, values=None) for each in manifests)
    closed = {each.region_spec_id: each.closed_by for each in manifests if each.closed_by}
    return Registry(regions={each.id: each for each in regions}, closed=closed, is_rebuilt=True)


def _listed(store: ObjectStore) -> Iterator[str]:
    """Yield the regions that have objects.

    After the first object of a region, the listing jumps to the next region. So the objects of the log are not listed.
    """
    prefix = keys.REGIONS_PREFIX
    after: str | None = None
    while True:
        parsed = (keys.parse(info.key) for info in store.list(prefix, after))
        region = next((each.region for each in parsed if each is not None and each.region is not None), None)
        if region is None:
            return
        yield region
        after = f"{prefix}{region}0"  # `0` follows `/`, so this is the first key after the keys of this region


def _change(store: ObjectStore, change: Callable[[Registry], Registry], *, clock: Clock, ids: Ids) -> Registry:
    key = keys.region_registry_key()

    def put(wanted: Registry) -> PutResult:
        return put_or_unknown(store, key, encode_region_registry(wanted, nonce=ids.uuid()), unchanged(wanted.etag))

    done = compare_and_swap(partial(read_registry, store), change, put, store=store, key=key, clock=clock, ids=ids)
    if done is None:
        raise Unavailable(
            f"{key}: other processes changed it during each of {ATTEMPTS} attempts. Nothing was changed. Try again "
            "later",
            key=key,
        )
    return done


# The progress of the regions of a table, from their manifests and a snapshot (docs/architecture/ingestion.md,
# "Regions").


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProgress:
    """The progress of a region: the epoch, the number of the next generation, and the last merged generation.

    `merged_generation` is the last generation that the snapshot has merged. `values` are the field values of the region
    spec, or None if unknown.
    """

    region_id: str
    values: tuple[Value, ...] | None
    epoch: int
    current_generation: int
    merged_generation: int


def list_regions(store: ObjectStore, snapshot: Snapshot) -> list[RegionProgress]:
    """Return the progress of every claimed region, ordered by id. An append table has no regions.

    Regions of earlier specs are omitted, because these regions accept no more rows. About three requests per region.
    """
    known = sorted(known_regions(store, snapshot), key=lambda each: each.id)
    manifests = all_of(lambda each: read_latest(store, each.id), known, PARALLEL_REGIONS)
    found = zip(known, manifests, strict=True)
    return [progress_of(region, manifest, snapshot) for region, manifest in found if manifest is not None]


def progress_of(region: Region, manifest: RegionManifest, snapshot: Snapshot) -> RegionProgress:
    """Return the progress of a region that has this manifest. No request."""
    return RegionProgress(
        region_id=region.id,
        values=region.values,
        epoch=manifest.writer_epoch,
        current_generation=manifest.current_generation,
        merged_generation=snapshot.merged_generations.get(region.id, 0),
    )
