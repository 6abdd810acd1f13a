"""Checks of a table definition: whether a schema and a configuration form a valid table.

`Table.create` and declarations share all of these checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.base.text import names_of, unknown_names
from storage_core.data.rows import sort_order
from storage_core.data.rows.columns import former_names, stored_name
from storage_core.data.rows.fold import merging
from storage_core.data.rows.schema import require_new_columns, to_schema_string
from storage_core.data.rows.vectors import type_text
from storage_core.data.rows.windows import check_partitions, validate_duration
from storage_core.data.settings.table import FIXED, SETTINGS, LateData, TableConfig, changed, with_values
from storage_core.log.snapshot import Snapshot
from storage_core.store.resolve import check_location
from storage_core.write.region.spec import check_spec, first_specs

AUTO: Final = "auto"
"""The default window: 15 minutes if there is a time column, else no windows."""
_USUAL_WINDOW: Final = "15m"


def check_definition(schema: pa.Schema, config: TableConfig) -> None:
    """Raise `InvalidInput` if the table cannot be created. The error message contains the invalid part.

    Two column names must not differ only in upper and lower case, because DuckDB and Spark ignore case. A keyed table
    may have windows only if its time column is part of the key (docs/architecture/ingestion.md).
    """
    if not isinstance(schema, pa.Schema):
        raise InvalidInput(f"the schema of the table is {schema!r}. Give an Arrow schema, such as pa.schema([…])")
    to_schema_string(schema)  # refuses column types that the log cannot store
    if not schema.names:
        raise InvalidInput("the schema has no columns. Give at least one column")
    folded = [name.lower() for name in schema.names]
    if len(set(folded)) != len(folded):
        raise InvalidInput(
            f"two of the columns {names_of(schema.names)} differ at most in case. Rename one of these columns"
        )
    for check in CHECKS.values():
        check(schema, config)


def check_new(schema: pa.Schema, config: TableConfig) -> None:
    """Raise the errors of `check_definition`, and `InvalidInput` for columns that a new table cannot have."""
    if isinstance(schema, pa.Schema):  # objects of other types fail in `check_definition`
        require_new_columns(schema)
    check_definition(schema, config)


def check_names(snapshot: Snapshot, config: TableConfig) -> None:
    """Raise `InvalidInput` if changes of columns made a column name unusable for a setting.

    Splits store their order as column names. The columns of the sort schema must therefore have the same name in all
    splits. Index segments and their caches use column names as well. An index can therefore use a column name only if
    no other column had this name before.
    """
    other = {field.name for field in snapshot.schema if stored_name(field) != field.name}
    former = former_names(snapshot.metadata.configuration)
    for name in sorted(sort_order.bind(config, snapshot.schema).described & other):
        stored = stored_name(snapshot.schema.field(name))
        raise InvalidInput(
            f"the sort schema cannot use the column {name!r}, because its name in splits is {stored!r}. The column "
            "was renamed, or an earlier column had this name. Sort by another column",
            column=name,
        )
    for index in config.indexes:
        if taken := sorted({*index.columns} & other & former):
            raise InvalidInput(
                f"index {index.name!r} cannot use the column {taken[0]!r}, because an earlier column had this name. "
                "Give the column a name that no column had",
                column=taken[0],
                index=index.name,
            )


def _require_column(schema: pa.Schema, setting: str, name: str) -> None:
    if name not in schema.names:
        raise InvalidInput(unknown_names("column", [name], schema.names, where=setting), column=name)


def _check_key(schema: pa.Schema, config: TableConfig) -> None:
    for name in config.primary_key:
        _require_column(schema, "primary_key", name)
        if pa.types.is_nested(schema.field(name).type):
            kind = type_text(schema.field(name).type)
            raise InvalidInput(
                f"primary_key names {name!r} of type {kind}, which has no order. "
                "Name columns of numbers, texts, dates or times",
                column=name,
            )


def _check_time_column(schema: pa.Schema, config: TableConfig) -> None:
    if config.time_column is None:
        return
    _require_column(schema, "time_column", config.time_column)
    if not pa.types.is_timestamp(schema.field(config.time_column).type):
        found = type_text(schema.field(config.time_column).type)
        raise InvalidInput(
            f"time_column is {config.time_column!r}, which has the type {found}. Name a column of the type timestamp",
            column=config.time_column,
        )


def _check_maps(schema: pa.Schema, config: TableConfig) -> None:
    for name in config.map_columns:
        _require_column(schema, "map_columns", name)
        if not pa.types.is_map(schema.field(name).type):
            found = type_text(schema.field(name).type)
            raise InvalidInput(
                f"map_columns: the column {name!r} is not a map, its type is {found}. Name a column of maps",
                column=name,
            )
    for name in config.merged_maps:
        if pa.types.is_nested(schema.field(name).type.key_type):
            raise InvalidInput(
                f"map_columns: the keys of {name!r} have no order, so they cannot be merged. "
                "Use replace for this column",
                column=name,
            )
        if merging(name) in schema.names:
            raise InvalidInput(
                f"map_columns: the column {merging(name)!r} has the name that records use for {name!r}. Rename "
                "one of these columns",
                column=name,
            )


def _check_bloom_filters(schema: pa.Schema, config: TableConfig) -> None:
    """Check the types of the columns.

    Equal values must have equal bytes. For example, 0.0 and -0.0 are equal but have different bytes.
    """
    for name in config.bloom_filters:
        _require_column(schema, "bloom_filters", name)
        kind, kinds = schema.field(name).type, pa.types
        if kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_nested(kind):
            raise InvalidInput(
                f"bloom_filters: {name!r} is {type_text(kind)}, which a Bloom filter does not support. Use whole "
                "numbers, decimals, texts, binary, dates or times",
                column=name,
            )


def _check_indexes(schema: pa.Schema, config: TableConfig) -> None:
    for index in config.indexes:
        from storage_core.index import segments  # imported late, because it imports all kinds of indexes

        segments.validate(index, schema)
        index.require_key(config.primary_key)


def _check_maintained(_: pa.Schema, config: TableConfig) -> None:
    for name in config.maintained_indexes or ():
        if config.kind != "keyed":
            raise InvalidInput(
                f"maintained_indexes contains {name!r}, but the setting works only for keyed tables. Leave the "
                "setting out, or alter the setting to None",
                index=name,
            )
        if config.index(name) is None:
            defined = [each.name for each in config.indexes]
            raise InvalidInput(unknown_names("index", [name], defined, where="maintained_indexes"), index=name)


def _check_late_data(_: pa.Schema, config: TableConfig) -> None:
    if config.late_data is not None and config.time_column is None:
        raise InvalidInput(
            "late_data needs a time_column: without one no row is late. Declare a time_column, or leave late_data out"
        )


def _check_window(_: pa.Schema, config: TableConfig) -> None:
    if config.window_seconds is None:
        return
    if config.time_column is None:
        raise InvalidInput("window needs a time_column. Declare a time_column, or leave window out")
    validate_duration(config.window_seconds, coarse=config.coarse_window)
    if config.primary_key and config.time_column not in config.primary_key:
        raise InvalidInput(
            f"a keyed table has windows only if its time column is part of the key. Add {config.time_column!r} to "
            "primary_key, or create a table without windows",
            column=config.time_column,
        )


def _check_raw_logs(_: pa.Schema, config: TableConfig) -> None:
    try:
        for each in config.raw_logs:
            each.moved(check_location)
    except InvalidInput as error:
        raise error.reworded(f"raw_logs: {error.found}", setting="raw_logs") from error


Check: TypeAlias = Callable[[pa.Schema, TableConfig], object]
CHECKS: Final[Mapping[str, Check]] = {
    "primary_key": _check_key,
    "time_column": _check_time_column,
    "regions": lambda schema, config: check_spec(config.region_spec, schema, config.primary_key),
    "partition_by": lambda schema, config: check_partitions(config.partition_fields, schema, config.primary_key),
    "map_columns": _check_maps,
    "bloom_filters": _check_bloom_filters,
    "indexes": _check_indexes,
    "maintained_indexes": _check_maintained,
    "late_data": _check_late_data,
    "window": _check_window,
    "sort_schema": lambda schema, config: sort_order.bind(config, schema),
    "raw_logs": _check_raw_logs,
}
"""The check of each setting.

Each check raises `InvalidInput` if the setting contradicts the columns or an earlier setting.
"""


def new_config(schema: pa.Schema, given: Mapping[str, object], settings: Mapping[str, object]) -> TableConfig:
    """Return the settings of a new table.

    Args:
        schema: Columns of the table.
        given: Settings that are arguments of `Table.create`, by name.
        settings: Further settings by name.

    Raises:
        InvalidInput: The settings contradict each other.
    """
    values = {name: SETTINGS[name].read(value) for name, value in _spelled_out(given).items()}
    values["regions"] = first_specs(given.get("regions", ()), schema)  # type: ignore[arg-type]  # checked there
    config = with_values(TableConfig(), values)
    if given.get("late_data") is not None:
        config = _with_late_data(config, given["late_data"])
    config = changed(config, settings)
    check_new(schema, config)  # the canonical text would omit the explicit types
    return in_canonical_form(config)


def _spelled_out(given: Mapping[str, object]) -> dict[str, object]:
    """Return the settings without `late_data`. If the table has a time column, the result has the default window."""
    timed, window = given.get("time_column") is not None, given.get("window", AUTO)
    if not timed and (window not in (None, AUTO) or given.get("coarse_window")):
        found = "coarse_window" if window in (None, AUTO) else f"window={window!r}"
        raise InvalidInput(f"{found} needs a time_column: windows divide the rows by that time. Declare a time_column")
    usual = _USUAL_WINDOW if timed else None
    return {
        **{name: given[name] for name in given if name != "late_data"},
        "window": usual if window == AUTO else window,
    }


def _with_late_data(config: TableConfig, given: object) -> TableConfig:
    if isinstance(given, LateData):
        return replace(config, late_data=given)
    if not isinstance(given, Mapping):
        raise InvalidInput(f"late_data is {given!r}. Write a mapping with policy and acceptance_window")
    return changed(config, {"late_data": {"policy": LateData().policy, **given}})


def in_canonical_form(config: TableConfig) -> TableConfig:
    """Return the settings with the canonical text of the sort schema. The canonical text omits defaults."""
    if config.sort_schema is None:
        return config
    return replace(config, sort_schema=sort_order.parse_sort_schema(config.sort_schema, config.time_column).text)


def check_unchanged(name: str, declared: TableConfig, found: TableConfig) -> None:
    """Raise `InvalidInput` if the declaration and the existing table differ in fixed settings.

    The error message contains these settings.

    In this release the key and the time column cannot change. Only `Table.set_regions` changes regions, and only
    `creation` changes columns. Order, window, indexes and maintenance settings may change.
    """
    differing = [name for name in FIXED if _setting(declared, name) != _setting(found, name)]
    if differing:
        raise InvalidInput(
            f"the declaration of {name!r} differs from the existing table in {', '.join(differing)}. These settings "
            "cannot change. Restore the declaration, or declare a new table at another uri",
            changed=differing,
        )
    keeping_windows(declared, found)


def keeping_order(declared: TableConfig, found: TableConfig) -> TableConfig:
    """Return the declared settings.

    If both sort schemas mean the same order, the result has the sort schema text of the table.

    If a declaration writes the same order with different text, the table therefore does not change (decision 0006).
    """
    ours, theirs = (
        sort_order.parse_sort_schema(each.sort_schema or sort_order.TIME_ONLY) for each in (declared, found)
    )
    return replace(declared, sort_schema=found.sort_schema) if sort_order.equivalent(ours, theirs) else declared


def keeping_windows(wanted: TableConfig, found: TableConfig) -> TableConfig:
    """Return the wanted settings. If the window changes, add the old window to the former windows.

    Raises `InvalidInput` if the wanted settings add windows to a table without windows, or remove all windows.
    """
    if wanted.window_seconds == found.window_seconds:
        return replace(wanted, former_windows=found.former_windows)
    if wanted.window_seconds is None or found.window_seconds is None:
        has = "none" if found.window_seconds is None else f"windows of {found.window_seconds} s"
        raise InvalidInput(
            f"window: the table has {has}. Windows cannot be added or removed later. Give another duration, or "
            "create a new table",
            changed=["window_seconds"],
        )
    former = found.former_windows
    former = former if found.window_seconds in former else (*former, found.window_seconds)
    return replace(wanted, former_windows=former)


def keeping_hand_regions(wanted: TableConfig, found: TableConfig) -> TableConfig:
    """Return the wanted settings.

    Raises `InvalidInput` if the wanted settings turn off manual regions, because these may contain unmerged rows.
    """
    if found.regions_by_hand and not wanted.regions_by_hand:
        raise InvalidInput(
            "regions_by_hand is true and cannot become false, because readers would then miss rows in manual "
            "regions. Write regions_by_hand: true, or create a table without it",
            changed=["regions_by_hand"],
        )
    return wanted


def _setting(config: TableConfig, name: str) -> object:
    """Return the value of a setting for comparison.

    For a region spec, the value is its current fields. Ids and history of the region spec belong to the table.
    """
    if name == "former_windows":
        return None  # this setting belongs to the table, too
    return config.region_spec.fields if name == "region_specs" else getattr(config, name)
