"""Whether a schema and a configuration make a table: every check that `Table.create` and a declaration share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import cast

import pyarrow as pa

from storage_core.clock import HOUR_MS
from storage_core.errors import InvalidInput
from storage_core.index import segments
from storage_core.log.snapshot import Snapshot
from storage_core.region.spec import check_spec
from storage_core.rows import sort_order, sort_schema
from storage_core.rows.columns import former_names, stored_name
from storage_core.rows.fold import merging
from storage_core.rows.new_columns import require_new_columns
from storage_core.rows.partitions import check_partitions
from storage_core.rows.schema import to_schema_string
from storage_core.rows.vectors import type_text
from storage_core.rows.windows import parse_duration, validate_duration
from storage_core.settings.index import IndexDefinition
from storage_core.settings.late_data import LateData, LatePolicy
from storage_core.settings.table import CHANGEABLE, TableConfig
from storage_core.settings.vector_options import beside_kind


def check_definition(schema: pa.Schema, config: TableConfig) -> None:
    """Raise `InvalidInput` naming the part that is wrong; return when the table can be created.

    Column names must differ in more than case, because DuckDB and Spark do not tell them apart otherwise. A keyed
    table may be windowed only when its time column is part of the key (docs/architecture/ingestion.md).
    """
    if not isinstance(schema, pa.Schema):
        raise InvalidInput(f"a table needs an Arrow schema, found {schema!r}; make one by pa.schema([…])")
    to_schema_string(schema)  # refuses column types that have no form in the log
    folded = [name.lower() for name in schema.names]
    if not folded or len(set(folded)) != len(folded):
        raise InvalidInput(f"a table needs columns whose names differ in more than case; found {schema.names}")
    named = [("primary_key", name) for name in config.primary_key]
    named += [("time_column", config.time_column)] if config.time_column is not None else []
    for role, name in named:
        if name not in schema.names:
            raise InvalidInput(f"{role} names the column {name!r}; the table has {schema.names}", column=name)
    if nested := [name for name in config.primary_key if pa.types.is_nested(schema.field(name).type)]:
        kind = type_text(schema.field(nested[0]).type)
        raise InvalidInput(f"primary_key names {nested[0]!r} of type {kind}, which has no order", column=nested[0])
    check_spec(config.region_spec, schema, config.primary_key)
    check_partitions(config.partition_fields, schema, config.primary_key)
    check_maps(schema, config)
    check_bloom_filters(schema, config)
    for index in config.indexes:
        segments.validate(index, schema)
        index.require_key(config.primary_key)
    check_maintained(config)
    _check_time(schema, config)
    sort_order.bind(config, schema)


def check_new(schema: pa.Schema, config: TableConfig) -> None:
    """Raise what `check_definition` raises, and `InvalidInput` for columns that a new table cannot have."""
    if isinstance(schema, pa.Schema):  # what is none is refused next
        require_new_columns(schema)
    check_definition(schema, config)


def check_names(snapshot: Snapshot, config: TableConfig) -> None:
    """Raise `InvalidInput` naming a column that the settings of a changed table cannot name; else return.

    Splits record their order by names, so it is of columns that splits call as the table does. What an index has, or a
    cache of it, is known by names, so those are of columns whose name no other column had.
    """
    other = {field.name for field in snapshot.schema if stored_name(field) != field.name}
    former = former_names(snapshot.metadata.configuration)
    for name in sorted(sort_order.bind(config, snapshot.schema).described & other):
        stored = stored_name(snapshot.schema.field(name))
        raise InvalidInput(
            f"the sort schema names {name!r}, which splits have as {stored!r}: it was renamed, or has the name of an "
            "earlier column; sort by another column",
            column=name,
        )
    for index in config.indexes:
        if taken := sorted({*index.columns} & other & former):
            raise InvalidInput(
                f"index {index.name!r} names {taken[0]!r}, the name that an earlier column had; rename the column to "
                "one that none had",
                column=taken[0],
                index=index.name,
            )


def check_maintained(config: TableConfig) -> None:
    """Raise `InvalidInput` naming the first of `maintained_indexes` that is no index of a keyed table; else return."""
    for name in config.maintained_indexes or ():
        if config.kind != "keyed":
            raise InvalidInput(
                f"maintained_indexes names {name!r}, and is of keyed tables only: an append table has no generations; "
                "leave it out, or alter it to None",
                index=name,
            )
        if config.index(name) is None:
            defined = ", ".join(each.name for each in config.indexes) or "none"
            raise InvalidInput(f"maintained_indexes names the index {name!r}; the table has {defined}", index=name)


def check_maps(schema: pa.Schema, config: TableConfig) -> None:
    """Raise `InvalidInput` naming the column when `map_columns` cannot be what patches do; else return."""
    for name in config.map_columns:
        if name not in schema.names or not pa.types.is_map(schema.field(name).type):
            found = type_text(schema.field(name).type) if name in schema.names else "no such column"
            raise InvalidInput(f"map_columns names {name!r}, which is no map: {found}", column=name)
    for name in config.merged_maps:
        if pa.types.is_nested(schema.field(name).type.key_type):
            raise InvalidInput(
                f"map_columns: the keys of {name!r} have no order, so they cannot be merged", column=name
            )
        if merging(name) in schema.names:
            raise InvalidInput(
                f"map_columns: records say {merging(name)!r} for {name!r}, which is also a column; rename one",
                column=name,
            )


def check_bloom_filters(schema: pa.Schema, config: TableConfig) -> None:
    """Raise `InvalidInput` naming the column if `bloom_filters` names one that cannot have a Bloom filter.

    Values that compare equal must have equal bytes, which 0.0 and -0.0 have not.
    """
    for name in config.bloom_filters:
        if name not in schema.names:
            raise InvalidInput(f"bloom_filters names the column {name!r}; the table has {schema.names}", column=name)
        kind, kinds = schema.field(name).type, pa.types
        if kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_nested(kind):
            raise InvalidInput(
                f"bloom_filters: {name!r} is {type_text(kind)}, which no Bloom filter can hold; use whole "
                "numbers, decimals, texts, binary, dates or times",
                column=name,
            )


def _check_time(schema: pa.Schema, config: TableConfig) -> None:
    if config.time_column is not None and not pa.types.is_timestamp(schema.field(config.time_column).type):
        found = type_text(schema.field(config.time_column).type)
        raise InvalidInput(f"time_column {config.time_column!r} must be a timestamp; it is {found}")
    if config.late_data is not None and config.time_column is None:
        raise InvalidInput("late_data needs a time_column: without one no row is late")
    if config.window_seconds is None:
        return
    if config.time_column is None:
        raise InvalidInput("window needs a time_column")
    validate_duration(config.window_seconds, coarse=config.coarse_window)
    if config.primary_key and config.time_column not in config.primary_key:
        raise InvalidInput(
            f"a keyed table is windowed only when its time column is part of the key; add {config.time_column!r} to "
            "primary_key or pass window=None",
            column=config.time_column,
        )


def check_unchanged(name: str, declared: TableConfig, found: TableConfig) -> None:
    """Raise `InvalidInput` naming each fixed setting in which the declaration differs from the table that exists.

    Key and time column stay what a table was created with in this release; regions change by `Table.set_regions` only,
    columns by `alteration`. Order, window, indexes and the settings of the upkeep may change (`CHANGEABLE`).
    """
    fixed = [each.name for each in fields(TableConfig) if each.name not in CHANGEABLE]
    changed = [name for name in fixed if _setting(declared, name) != _setting(found, name)]
    if changed:
        raise InvalidInput(
            f"the declaration of {name!r} differs from the existing table in {', '.join(changed)}; a table keeps what "
            "it was created with: restore the declaration, or declare a new table at another uri",
            changed=changed,
        )
    keeping_windows(declared, found)


def keeping_order(declared: TableConfig, found: TableConfig) -> TableConfig:
    """Return the declared settings, with the table's own sort schema where the declared one means the same.

    So a table is not changed by a name, or by another spelling of its order (decision 0070).
    """
    ours, theirs = (sort_schema.parse(each.sort_schema or sort_order.TIME_ONLY) for each in (declared, found))
    return replace(declared, sort_schema=found.sort_schema) if sort_schema.equivalent(ours, theirs) else declared


def keeping_windows(wanted: TableConfig, found: TableConfig) -> TableConfig:
    """Return the wanted settings, with the duration that windows had among the former ones where it changes.

    Raises `InvalidInput` where a table without windows is to have some, or the other way round.
    """
    if wanted.window_seconds == found.window_seconds:
        return replace(wanted, former_windows=found.former_windows)
    if wanted.window_seconds is None or found.window_seconds is None:
        has = "none" if found.window_seconds is None else f"windows of {found.window_seconds} s"
        raise InvalidInput(
            f"window: the table has {has}, and keeps having windows or none; give another duration, or make a table",
            changed=["window_seconds"],
        )
    former = found.former_windows
    former = former if found.window_seconds in former else (*former, found.window_seconds)
    return replace(wanted, former_windows=former)


def keeping_hand_regions(wanted: TableConfig, found: TableConfig) -> TableConfig:
    """Return the wanted settings. Raises `InvalidInput` where regions by hand are to be none: rows may wait in some."""
    if found.regions_by_hand and not wanted.regions_by_hand:
        raise InvalidInput(
            "regions_by_hand is true and stays so: readers without it would miss what waits in regions that are named "
            "by hand; say regions_by_hand: true, or make a table without",
            changed=["regions_by_hand"],
        )
    return wanted


def _setting(config: TableConfig, name: str) -> object:
    """The setting to compare: of the region specs the fields in force; their ids and history are the table's own."""
    if name == "former_windows":
        return None  # the table's own as well
    return config.region_spec.fields if name == "region_specs" else getattr(config, name)


def key_columns(given: str | Sequence[str] | None, setting: str = "primary_key") -> tuple[str, ...]:
    """Return the columns of a key, or of another setting that takes one alone, in order; none for None."""
    if given is None or isinstance(given, str):
        return () if given is None else (given,)
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"{setting} is a column's name or a list of them, found {given!r}")
    return tuple(given)


def listed_names(setting: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names in order; raises `InvalidInput` for one text, which would be taken for its letters."""
    if not isinstance(names, list | tuple):
        raise InvalidInput(f"{setting} is a list of names, found {names!r}")
    return tuple(names)


def late_setting(late_data: object) -> LateData | None:
    """Return what becomes of late rows, from a record or a mapping with `policy` and `acceptance_window` (`"1h"`)."""
    if late_data is None or isinstance(late_data, LateData):
        return late_data
    known = {"policy", "acceptance_window"}
    if not isinstance(late_data, Mapping) or not known >= late_data.keys():
        raise InvalidInput(f"late_data is a mapping with policy and acceptance_window, found {late_data!r}")
    seconds = parse_duration(cast("str | int", late_data.get("acceptance_window", HOUR_MS // 1000)))
    policy = late_data.get("policy", LateData().policy)
    return LateData(policy=cast("LatePolicy", policy), acceptance_ms=seconds * 1000)


def index_definitions(indexes: Sequence[IndexDefinition | Mapping[str, object]]) -> tuple[IndexDefinition, ...]:
    """Return the definitions, each a record or a mapping with `name`, `kind`, `columns` and maybe `options`.

    The options of a vector index may stand beside its `kind`.
    """
    if not isinstance(indexes, list | tuple):
        raise InvalidInput(f"indexes are a list of definitions, found {indexes!r}")
    return tuple(_index_definition(each) for each in indexes)


def _index_definition(index: object) -> IndexDefinition:
    if isinstance(index, IndexDefinition):
        return index
    if not isinstance(index, Mapping):
        raise InvalidInput(f"an index is a mapping with name, kind and columns, found {index!r}")
    given = beside_kind(index)
    try:
        columns, options = given["columns"], given.get("options", {})
        name, kind = str(index["name"]), str(index["kind"])
    except KeyError as error:
        raise InvalidInput(f"the index {dict(index)} lacks {error}; give name, kind and columns") from error
    if unknown := [each for each in given if each not in ("name", "kind", "columns", "options")]:
        raise InvalidInput(f"index {name!r}: there is no entry {unknown[0]!r}; give name, kind, columns and options")
    if not isinstance(columns, list | tuple) or not isinstance(options, Mapping):
        raise InvalidInput(f"index {name!r}: columns must be a list and options a mapping")
    texts = {str(key): str(value) for key, value in options.items()}
    return IndexDefinition(name, kind, tuple(str(column) for column in columns), texts)  # type: ignore[arg-type]  # checked by the record
