"""Point lookups by primary key. A lookup is planned and then executed, with exact results (docs/architecture/reads.md).

A lookup has three steps:

1. The lookup selects the regions that may contain the key (`holding_regions`, `matching_regions`). The source columns
   of a region's fields are part of the primary key. Therefore all rows of a region have the same field values. A manual
   region may contain any row. An excluded region never changes the result. No row of an excluded region meets the
   predicate, neither in the region nor in the base.
2. The lookup reads the unmerged records of these regions. The lookup skips a generation if the bounds or the Bloom
   filter show that the generation does not contain the key.
3. The lookup reads the base (`get_many`). The lookup selects the splits with a key range that contains the key. In
   these splits, the lookup reads the key columns of those row groups that may contain the key. If a row group contains
   the key, the lookup also reads the other columns of the row group.

`explained` returns the plan of a lookup for `explain_get`. If the lookup was run, the plan contains the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput, raise_refused
from storage_core.base.text import counted, listed, quoted
from storage_core.data.rows import fold
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.conform import conform
from storage_core.data.rows.incoming import exact_array
from storage_core.data.rows.keys import Positions, key_codes
from storage_core.data.rows.times import as_text, is_timed
from storage_core.data.rows.vectors import type_text
from storage_core.data.settings.layout import BY_HAND_SPEC, Region, RegionField, RegionSpec, Value
from storage_core.engine.statement import TABLE
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.read import key_splits
from storage_core.read.bounds import DIGITS, MICROSECONDS_OF_A_DAY, Limit, interval
from storage_core.read.key_splits import KeyRead
from storage_core.read.plan import Analysis, RawPart, TablePlan, Watched, analysis
from storage_core.read.predicate import (
    And,
    Beginning,
    Compare,
    Comparison,
    Day,
    Instant,
    IsNull,
    Literal,
    Predicate,
    in_columns,
)
from storage_core.read.pruning import Leaf, PruneStep, conditions, possible
from storage_core.read.verified_files import VerifiedFiles
from storage_core.read.view import At, View
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import MeteredStore, RequestMeter, all_of
from storage_core.store.pieces import KeptValues
from storage_core.write.region.expressions import TransformKind, parse_transform
from storage_core.write.region.spec import canonical, field_values, hand_regions, known_regions, region_for, route

_IN_ORDER = frozenset({TransformKind.IDENTITY, TransformKind.TRUNCATE, TransformKind.YEAR})
_OTHERS = frozenset({Comparison.NE, Comparison.LT, Comparison.GT})
_MOST_EXACT = 2**53  # a float64 represents each integer up to here exactly


def holding_regions(store: ObjectStore, snapshot: Snapshot, *, keys: pa.Table) -> Sequence[Region]:
    """Return the regions that may contain these keys. Regions of the region spec come before all manual regions.

    `keys` has the key columns. The ids of regions of the spec are computed from the keys without a request. If the
    table may have manual regions, makes one GET of the registry.
    """
    routed = route(snapshot.table_id, snapshot.config.region_spec, keys).regions
    return (*routed, *hand_regions(store, snapshot))


def matching_regions(store: ObjectStore, snapshot: Snapshot, *, predicate: Predicate | None) -> Sequence[Region] | None:
    """Return the regions that may contain rows for which the predicate is true, or None for all regions.

    Cost:
        No request if the predicate fixes every field by equality, or uses no source column of the regions. Otherwise
        one GET of the registry. A table with manual regions always needs this GET, because a manual region may contain
        any row.
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
    """Return a function that uses the field values of a region to test whether its rows may meet a condition.

    The test uses only fields that have a single source column.
    """

    def leaf(condition: Compare | IsNull) -> Mask | None:
        index = schema.get_field_index(condition.column)
        if index < 0 or not isinstance(condition, Compare):
            return None
        wanted = _limits(condition.value, schema.field(index).type)
        fields = [(at, each) for at, each in enumerate(spec.fields) if each.source_ids == (condition.column,)]
        if wanted is None or not fields:
            return None
        found = np.ones(len(regions), dtype=bool)
        for at, of in fields:
            for is_met in _tests(of, condition.comparison, wanted):
                values = (None if each.values is None else each.values[at] for each in regions)
                found &= np.fromiter((each is None or is_met(each) for each in values), bool, len(regions))
        return found

    return leaf


def _tests(
    field: RegionField, comparison: Comparison, wanted: tuple[pa.Array, pa.Array]
) -> Iterator[Callable[[Any], bool]]:
    """Yield functions that test the value of a field. The tests depend on `comparison` and the limits `wanted`.

    A test returns True for the field value of every row that meets the comparison.
    """
    try:
        [least], [greatest] = (canonical(field_values(field, pa.table([each], field.source_ids))) for each in wanted)
    except InvalidInput:  # the expression of the region field fails for the smallest or the greatest value
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
    """Return True if the order of the stored field values follows the order of the column values."""
    if field.transform is None or parse_transform(field.transform).kind not in _IN_ORDER:
        return False
    kinds = pa.types
    return any(each(source) for each in (kinds.is_integer, kinds.is_string, kinds.is_date32, kinds.is_timestamp))


def _limits(value: Literal, type_: pa.DataType) -> tuple[pa.Array, pa.Array] | None:
    """Return the smallest and the greatest column value that can equal the literal, or None if unknown."""
    if pa.types.is_floating(type_) and type(value) is int and abs(value) <= _MOST_EXACT:
        value = float(value)
    found = interval(value, type_)
    is_point = found is not None and not isinstance(value, Instant | Beginning | Day) and found.least == found.greatest
    if is_point or (isinstance(value, bytes) and pa.types.is_binary(type_)):
        with suppress(TypeError, ValueError, OverflowError, pa.ArrowException):
            exact = exact_array([value], type_)
            return exact, exact
    if found is None or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return None  # DuckDB compares these types by its own rules
    try:
        return _rounded(found.least, type_, up=True), _rounded(found.greatest, type_)
    except (TypeError, ValueError, OverflowError, pa.ArrowException):  # the limit is outside the range of the type
        return None


def _rounded(limit: Limit, type_: pa.DataType, *, up: bool = False) -> pa.Array:
    """Return a limit of `bounds.interval` as a value of the column."""
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
    """Return a list with the region field's value for rows whose columns have the values in `equal`.

    Return an empty list if the equalities do not determine the value.
    """
    if any(name not in equal for name in field.source_ids):
        return []
    try:
        row = pa.table([equal[name] for name in field.source_ids], names=list(field.source_ids))
        return canonical(field_values(field, row))
    except InvalidInput:  # the field expression fails for these values, so no region contains a row with these values
        return []


def _equalities(predicate: Predicate, schema: pa.Schema) -> dict[str, pa.Array]:
    """Return the values that the predicate requires by equality.

    Each value is an array of length one in the column's type.
    """
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


Key = object

_SPLITS_AT_ONCE = 8


def key_rows(snapshot: Snapshot, keys: Sequence[Key]) -> pa.Table:
    """Return the keys as a table with one row per key and the types of the key columns. Makes no request.

    Args:
        snapshot: The snapshot with the key columns.
        keys: The keys. Each is a value, a sequence of values in primary-key order, or a mapping.

    Raises:
        InvalidInput: The table has no primary key, or a key does not fit its columns.
    """
    if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Sequence):
        raise InvalidInput(f"the keys of get_many are {keys!r}. Give a list of keys, or use get for one key", keys=keys)
    columns = snapshot.config.primary_key
    if not columns:
        raise InvalidInput(
            "get needs a primary key, and this table has none. Use a query or a scan with a condition",
            table=snapshot.table_id,
        )
    fields = pa.schema([snapshot.schema.field(name) for name in columns])
    if not keys:
        return fields.empty_table()
    given = [keys] if _are_values(keys, columns) else zip(*(_values(key, columns) for key in keys), strict=True)
    try:
        arrays = [_array(values, field.type) for values, field in zip(given, fields, strict=True)]
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise_refused("a lookup", error)
        if len(keys) > 1:  # Here each key is converted separately. The error then contains the key that does not fit.
            return pa.concat_tables([key_rows(snapshot, [key]) for key in keys]).combine_chunks()
        raise InvalidInput(
            f"the key {_key_text(keys[0])} does not fit the key columns. Give {_columns_text(fields)}", key=keys[0]
        ) from error
    return conform(pa.table(arrays, names=list(columns)), fields)


def _key_text(key: Any) -> str:
    match key:
        case list() | tuple():
            return listed([quoted(each) for each in key])
        case Mapping():
            return listed([f"{quoted(name)}: {quoted(value)}" for name, value in key.items()])
        case _:
            return quoted(key)


def _columns_text(fields: pa.Schema) -> str:
    return ", ".join(f"{field.name} {type_text(field.type)}" for field in fields)


def keys_in(snapshot: Snapshot, keys: pa.Table) -> pa.Table:
    """Convert keys from `key_rows` to the key types of this snapshot. The types in `keys` may have another width.

    Raises:
        InvalidInput: A key does not fit the types of this snapshot.
    """
    fields = pa.schema([snapshot.schema.field(name) for name in keys.column_names])
    return keys if keys.schema.types == fields.types else conform(keys, fields)


def get_many(
    store: ObjectStore,
    snapshot: Snapshot,
    wanted: pa.Table,
    *,
    records: pa.Table | None = None,
    verified: VerifiedFiles,
    kept: KeptValues,
) -> list[dict[str, object] | None]:
    """Return the row of each key, or None for a key without a row.

    A time after the year 9999 is returned as text. A map is returned as a dictionary. If the map repeats a key, or has
    keys that cannot be dictionary keys, it is returned as a list of pairs.

    Args:
        store: The store of the table.
        snapshot: The snapshot to read.
        wanted: The keys (`key_rows`).
        records: The records of these keys that are not merged into the snapshot. The records of a key are in the order
            of arrival. The base is read for the keys that have no record or only a patch (`key_splits.plan`,
            `key_splits.rows`).
        kept: The cache of key pages and of index parts.
    """
    read = key_splits.plan(store, snapshot, wanted, records=records, verified=verified, kept=kept)
    parts = all_of(lambda add: list(key_splits.rows(read, add)), read.splits, _SPLITS_AT_ONCE)
    rows = pa.concat_tables([snapshot.schema.empty_table(), *chain.from_iterable(parts)])
    if read.newer is not None and read.newer.num_rows:
        rows = fold.apply(rows, read.newer, snapshot.config.primary_key)
    found = _python_rows(as_text(rows))
    if wanted.num_rows == 1:
        return [found[-1] if found else None]
    held, requested_codes = key_codes([rows, wanted], wanted.column_names)
    by_code = dict(zip(held.tolist(), found, strict=True))
    return [by_code.get(each) for each in requested_codes.tolist()]


def _python_rows(rows: pa.Table) -> list[dict[str, object]]:
    names, columns = rows.column_names, map(_python_values, rows.columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _python_values(column: pa.ChunkedArray) -> list[object]:
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return list(column.to_numpy().tolist())  # this conversion is ten times faster
    try:
        found: list[object] = column.to_pylist(maps_as_pydicts="strict")
    except (KeyError, TypeError):  # the map repeats a key, or a key is a list
        if len(column) == 1:
            return list(column.to_pylist())
        return [value for row in range(len(column)) for value in _python_values(column.slice(row, 1))]
    return found


def _are_values(keys: Sequence[Key], columns: Sequence[str]) -> bool:
    """Return whether there is only one key column, and each key is a plain int or str."""
    return len(columns) == 1 and {*map(type, keys)} <= {int, str}


def _values(key: Key, columns: Sequence[str]) -> list[object]:
    """Return the value of each key column."""
    if isinstance(key, Mapping):
        values = [key.get(name) for name in columns] if set(key) <= set(columns) else []
    elif isinstance(key, tuple | list):
        values = list(key)
    else:
        values = [key]
    if len(values) != len(columns) or any(value is None for value in values):
        raise InvalidInput(
            f"the key {_key_text(key)} does not have one value for each key column. Give {', '.join(columns)}", key=key
        )
    return values


def _array(values: Sequence[object], wanted: pa.DataType) -> pa.Array:
    """Return the values as an array of the wanted type. Texts are parsed, so a key of any type can be given as text."""
    if pa.types.is_string(wanted) or not any(isinstance(each, str) for each in values):
        return exact_array(values, wanted)
    return pa.concat_arrays([_scalar_array(each, wanted) for each in values])


def _scalar_array(value: object, wanted: pa.DataType) -> pa.Array:
    if not isinstance(value, str) or is_timed(wanted):
        return exact_array([value], wanted)
    read = pa.array([value]).cast(wanted)
    if pa.types.is_floating(wanted) and pc.is_inf(read)[0].as_py() and "inf" not in value.lower():
        raise ValueError(f"{value!r} is beyond {wanted}")
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """The unmerged part of one region, and the share of this part that a lookup reads.

    Attributes:
        region_id: The id of the region.
        manifest_version: The version of the region's manifest, or 0 if the region was never written.
        log_entries: The number of WAL entries outside all generations. The lookup reads all of these entries.
        generations: The number of generations that the base has not merged.
        copied_filters: The number of Bloom filters that the region's manifest contains.
        admitted_by_bounds: The number of these generations with bounds that admit the key.
        admitted_by_filters: The number of these generations with a Bloom filter that also admits the key. The lookup
            reads them from the newest to the oldest, until one of them contains the whole row.
    """

    region_id: str
    manifest_version: int
    log_entries: int
    generations: int
    copied_filters: int
    admitted_by_bounds: int
    admitted_by_filters: int

    def __str__(self) -> str:
        """Return the plan of the region as two lines of text."""
        told = f"manifest {self.manifest_version:,}, {counted(self.log_entries, 'log entry', 'log entries')}"
        left = f"may contain the key: {self.admitted_by_bounds:,} by bounds, {self.admitted_by_filters:,} by filters"
        held = f"{counted(self.generations, 'generation')} not merged, {self.copied_filters:,} with a copied filter"
        return f"region {self.region_id}: {told}\n  {held}: {left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPlan:
    """The plan of a lookup, and the cost of the lookup if it was executed.

    The numbers of requests and bytes for the base are upper limits. The real cost is lower if a row group does not
    contain the key. The lookup then does not fetch the columns outside the key.

    Attributes:
        consistency: The consistency of the lookup.
        unmerged_requests: The requests for the newest version of the table, and for the unmerged records of `regions`.
            The number of these records is `base.newer_records`.
        regions: The plan of each region.
        base: The plan of the splits. It reads nothing if the unmerged records contain the whole row.
        raw_logs: The undistributed parts of raw logs.
        analysis: The cost of the lookup if it was run.
    """

    consistency: str
    unmerged_requests: int
    regions: tuple[RegionPlan, ...]
    base: TablePlan
    raw_logs: tuple[RawPart, ...] = ()
    analysis: Analysis | None = field(default=None)

    @property
    def requests(self) -> int:
        """The maximum number of requests that the lookup is expected to make."""
        return self.unmerged_requests + self.base.requests

    def __str__(self) -> str:
        """Return the plan as lines of text: the regions, the base, and a last line with the cost of the run."""
        newer = (
            f"{self.consistency}: {counted(self.unmerged_requests, 'request')} for the records that are newer than "
            "the base"
        )
        done = [] if self.analysis is None else [str(self.analysis)]
        return "\n".join([newer, *map(str, self.regions), *map(str, self.raw_logs), str(self.base), *done])

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "consistency": self.consistency,
            "requests": self.requests,
            "unmerged_requests": self.unmerged_requests,
            "regions": [asdict(each) for each in self.regions],
            "raw_logs": [asdict(each) for each in self.raw_logs],
            "base": self.base.to_dict(),
            "analysis": None if self.analysis is None else asdict(self.analysis),
        }

    def analyzed(self, watched: Collection[Watched], read: Callable[[], int]) -> LookupPlan:
        """Return the plan with the cost of running `read`, which returns the number of rows."""
        return replace(self, analysis=analysis(watched, read))


def explained(
    store: MeteredStore, view: View, wanted: pa.Table, *, at: At | None, consistency: str, verified: VerifiedFiles
) -> LookupPlan:
    """Return the plan of a lookup of these keys. `keys` is a table with the key columns. Caches nothing.

    Cost:
        The requests of the lookup for unmerged records and for a primary-key index. One request for each Bloom filter
        without a copy in the region's manifest, even if the lookup would not read the filter. One request for the
        footer of each split that may contain a key, unless the footer is cached. A small split takes one request for
        the whole split instead.
    """
    meter, apart = RequestMeter(), view.copy()
    with store.counted_by(meter):
        snapshot, captured = apart.captured(at, consistency, partial(holding_regions, store, keys=wanted))
        wanted = keys_in(snapshot, wanted)
        records = None if captured is None else captured.above(snapshot, keys=wanted)
    regions = () if captured is None else captured.regions
    read = key_splits.plan(store, snapshot, wanted, records=records, verified=verified, kept=apart.kept)
    return LookupPlan(
        consistency=consistency,
        unmerged_requests=sum(meter.requests.values()),
        regions=tuple(
            RegionPlan(
                region_id=each.region,
                manifest_version=0 if each.manifest is None else each.manifest.version,
                log_entries=len(each.entries),
                generations=len(admitted.unmerged),
                copied_filters=sum(bool(held.filter_bytes) for held in admitted.unmerged),
                admitted_by_bounds=admitted.by_bounds,
                admitted_by_filters=admitted.by_filters,
            )
            for each in regions
            for admitted in [each.admitting(snapshot, wanted)]
        ),
        base=_described(read, newer=0 if records is None else records.num_rows),
        raw_logs=() if captured is None else captured.raw_parts,
    )


def _described(read: KeyRead, *, newer: int) -> TablePlan:
    """Return the plan of reading the base. `newer` is the number of unmerged records for these keys."""
    snapshot, splits = read.snapshot, tuple(read.splits)
    out = len(snapshot.splits) - len(splits), snapshot.bytes - sum(add.size for add in splits)
    steps = [PruneStep("bounds of keys" if read.wanted.num_rows else "newer records", *out)]
    requests = size = 0
    named = dict[str, Positions | None]()
    if read.index is not None:
        tally, answers = read.index.tally(), {add.path: read.index.of_split(add) for add in splits}
        splits = tuple(add for add in splits if not tally.add(add, answers[add.path]))
        steps.append(tally.step)
        requests, size = tally.requests, tally.bytes
        named = {path: answer.places for path, answer in answers.items()}
    parts = [_part(read, add, named.get(add.path)) for add in splits]
    if parts:
        steps.append(PruneStep("row groups", 0, 0, sum(each.groups_left_out for each in parts)))
    return TablePlan(
        name=TABLE,
        version=snapshot.version,
        live_splits=len(snapshot.splits),
        live_bytes=snapshot.bytes,
        columns=tuple(snapshot.schema.names) if splits else (),
        steps=tuple(steps),
        splits=splits,
        whole_splits=sum(each.is_whole for each in parts),
        row_groups=sum(each.groups for each in parts if not each.is_whole),
        read_bytes=sum(each.bytes for each in parts) + size,
        requests=sum(each.requests for each in parts) + requests,
        newer_records=newer,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """The maximum number of bytes to read from a split.

    The lookup reads byte ranges unless the split is local or read whole.
    """

    requests: int
    bytes: int
    is_whole: bool
    groups: int
    groups_left_out: int


def _part(read: KeyRead, add: Add, named: Positions | None) -> _Part:
    from storage_core.split import pages, verification  # both modules import Parquet, which only the base needs
    from storage_core.split.fetch import Footers, requests_for
    from storage_core.split.metadata import admitting
    from storage_core.split.read import leaves_of, open_split

    path = read.store.local_path(add.path)
    held = read.verified.footers.cached_footer(add) is not None
    footers = read.verified.footers if held else Footers()
    opened = open_split(read.store, add.as_written, whole=False, file_path=path, footers=footers)
    groups = admitting(opened.bounds, opened.row_groups, read.wanted)
    if named is not None:
        groups = np.unique(np.searchsorted(opened.first_rows, named, side="right") - 1).tolist()
    vectors = int(add.deleted_rows is not None and add.deleted_rows.path is not None)
    left_out = opened.row_groups - len(groups)
    if not opened.is_ranged:
        is_local = path is not None
        return _Part(
            requests=vectors + (not is_local),
            bytes=add.size,
            is_whole=not is_local,
            groups=len(groups),
            groups_left_out=left_out,
        )
    footer_bytes = 0 if held else (add.footerEndOffset or 0) - (add.footerStartOffset or 0)
    places = verification.places(opened.footer)
    keys = leaves_of(opened.footer, read.wanted.column_names)

    def ranges() -> Iterator[tuple[int, int]]:
        for group in groups:
            if named is None and not pages.is_kept(add, group, read.kept):
                yield from requests_for(places[group, keys])
            yield from requests_for(places[group])

    found = list(ranges())
    return _Part(
        requests=vectors + (not held) + len(found),
        bytes=footer_bytes + sum(end - start for start, end in found),
        is_whole=False,
        groups=len(groups),
        groups_left_out=left_out,
    )
