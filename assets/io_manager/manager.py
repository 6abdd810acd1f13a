"""The I/O manager. An asset is a table, and a partition of the asset is a slice of the table.

The I/O manager commits rows before Dagster records the output. A killed store step may therefore have committed its
rows. Dagster then runs this step again. The repetition is safe. An overwrite and an upsert produce the same rows again.
An append recognizes that its own run has already committed the rows (docs/architecture/orchestration.md).

The module has three parts: the settings in metadata, the conditions for partitions, and the manager. An
unknown setting is an error.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa
from dagster import (
    ConfigurableIOManager,
    InputContext,
    MetadataValue,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    OutputContext,
    PartitionsDefinition,
    TimeWindowPartitionsDefinition,
)
from pydantic import Field

from storage_core.base.errors import InvalidInput, NotFound
from storage_core.base.limits import QueryLimits
from storage_core.base.text import choice_of, quoted
from storage_core.data.formats.keys import short_hash
from storage_core.interop.column_union import as_held
from storage_core.read.sql_predicate import between, one_of
from storage_core.read.view import Consistency
from storage_core.store.resolve import check_location, name_of
from storage_core.table import Table, exists

# A relative import, because a module of the project may be called `assets`.
from ..failures import table_metadata, typed_failures
from .frames import Form, data_of, required_form, rows_in

if TYPE_CHECKING:
    from storage_core.read.predicate import Filter

    from .frames import Data


# Settings in metadata.


URI, MODE, ON, CREATE = "tidemark/uri", "tidemark/mode", "tidemark/on", "tidemark/create"
AT, CONSISTENCY = "tidemark/at", "tidemark/consistency"
COLUMNS, PARTITION_EXPR = "columns", "partition_expr"
"""Metadata keys that Dagster's own I/O managers for tables also use."""

DAGSTER_URI = "dagster/uri"
"""The metadata key in which a step of a declared table stores the location of the table."""

_PREFIX = "tidemark/"
_OF_AN_ASSET, _OF_AN_INPUT = (URI, MODE, ON, CREATE), (URI, AT, CONSISTENCY)
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)

Metadata = Mapping[str, object]


class WriteMode(StrEnum):
    """The way to store rows: append them, replace the rows of the partition, or upsert them by key."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetSettings:
    """The settings of a stored asset. None selects the default, and this default depends on the table."""

    uri: str | None = None
    mode: WriteMode | None = None
    on: tuple[str, ...] = ()
    create: Mapping[str, Any] | None = None
    partition_expr: str | Mapping[str, str] | None = None

    @classmethod
    def of(cls, metadata: Metadata) -> Self:
        """Return the settings in the metadata of a definition. Raises `InvalidInput` for an invalid setting."""
        given = _values(metadata, _OF_AN_ASSET)
        mode, create, on = given.get(MODE), given.get(CREATE), given.get(ON, ())
        if mode is not None and mode not in list(WriteMode):
            raise InvalidInput(choice_of(MODE, mode, [*WriteMode]))
        if create is not None and not isinstance(create, Mapping):
            raise InvalidInput(
                f"{CREATE} is {quoted(create)}. Set {CREATE} to a mapping of parameters of Table.create."
            )
        columns = given.get(PARTITION_EXPR)
        if columns is not None and not isinstance(columns, str | Mapping):
            raise InvalidInput(
                f"{PARTITION_EXPR} is {quoted(columns)}. Set {PARTITION_EXPR} to a column, or to "
                "one column per dimension."
            )
        return cls(
            uri=_place(given),
            mode=None if mode is None else WriteMode(str(mode)),
            on=_names(ON, on),
            create=create,
            partition_expr=columns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """The settings of an input, without its partition."""

    uri: str | None = None
    columns: tuple[str, ...] | None = None
    at: int | str | None = None
    consistency: str | None = None

    @classmethod
    def of(cls, metadata: Metadata) -> Self:
        """Return the settings in the metadata of an input. Raises `InvalidInput` for an invalid setting."""
        given = _values(metadata, _OF_AN_INPUT)
        columns, at, consistency = given.get(COLUMNS), given.get(AT), given.get(CONSISTENCY)
        if at is not None and (isinstance(at, bool) or not isinstance(at, int | str)):
            raise InvalidInput(f"{AT} is {quoted(at)}. Set {AT} to a version, a time or a tag.")
        return cls(
            uri=_place(given),
            columns=None if columns is None else _names(COLUMNS, columns),
            at=at,
            consistency=None if consistency is None else str(consistency),
        )


def place_of(root: str, key: Sequence[str]) -> str:
    """Return the default location of an asset.

    The location is a path below the root, followed by the parts of the asset key.

    Raises `InvalidInput` if the key cannot be a path.
    """
    for part in key:
        if not _PART.fullmatch(part):
            raise InvalidInput(
                f"the asset key {quoted('/'.join(key))} is not the location of a table, because {quoted(part)} is not "
                f"the name of a folder. Give the asset the metadata {URI!r}."
            )
    place, mark, parameters = root.partition("?") if "://" in root else (root, "", "")  # the parameters of an s3:// URI
    return "/".join([place.rstrip("/"), *key]) + mark + parameters


def _values(metadata: Metadata, known: Sequence[str]) -> dict[str, Any]:
    """Return the metadata as plain values.

    Raises `InvalidInput` for an unknown setting that begins with `tidemark/`.
    """
    found = {name: each.value if isinstance(each, MetadataValue) else each for name, each in metadata.items()}
    unknown = [name for name in found if name.startswith(_PREFIX) and name not in known]
    if unknown:
        raise InvalidInput(f"{quoted(unknown[0])} is not a setting here. The settings are {', '.join(known)}.")
    return found


def _place(given: Mapping[str, Any]) -> str | None:
    uri = given.get(URI)
    if uri is not None and not isinstance(uri, str):
        raise InvalidInput(f"{URI} is {quoted(uri)}. Set {URI} to the location of a table.")
    return None if uri is None else check_location(uri)


def _names(setting: str, given: object) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise InvalidInput(f"{setting} is {quoted(given)}. Set {setting} to a list of column names.")
    return tuple(names)


# Conditions for partitions.


Partitions: TypeAlias = "PartitionsDefinition[str]"
Columns: TypeAlias = "str | Mapping[str, str] | None"
"""The metadata `partition_expr`.

For an asset with one dimension, `partition_expr` contains one column. For an asset with several dimensions,
`partition_expr` contains one column per dimension.
"""

_ALONE = ""
"""The name of the dimension if an asset has only one dimension."""

_Span = tuple[dt.datetime, dt.datetime]


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a table that a condition needs: its location, columns and time column.

    The table may not exist yet.
    """

    uri: str
    schema: pa.Schema
    time_column: str | None

    @classmethod
    def of(cls, table: Table) -> Self:
        """Return the shape of a table at the version of the `Table` object."""
        return cls(table.uri, table.schema, table.config.time_column)


def condition_of(table: Shape, definition: Partitions, keys: Sequence[str], columns: Columns) -> Filter:
    """Return a condition that selects only the rows of these partitions. Without keys, the condition selects no row.

    For a time dimension, the condition compares the table's time column with the start and end of each window. The
    format of the partition key does not matter. For a dimension that is not a time dimension, the condition compares a
    column with the partition keys. The parameter `columns` can select this column. By default, the column has the name
    of the dimension.

    Raises:
        InvalidInput: No column is known, there are two time dimensions, or a key is not a value of its column.
    """
    dimensions = _dimensions(definition)
    timed = [name for name, each in dimensions.items() if isinstance(each, TimeWindowPartitionsDefinition)]
    if len(timed) > 1:
        raise InvalidInput(
            f"the partitions have the time dimensions {timed}, but a table has only one time "
            "column. Make one of these dimensions a column of days."
        )
    plain = [name for name in dimensions if name not in timed]
    fields = {name: table.schema.field(_column(table, name, columns, timed=name in timed)) for name in dimensions}
    parts = [_by_dimension(definition, key) for key in keys]
    if not parts:
        return one_of(next(iter(fields.values())), [])

    def of_time(moments: Iterable[str]) -> list[Filter]:
        return [
            reduce(or_, [between(fields[name], *span) for span in _spans(dimensions[name], moments)]) for name in timed
        ]

    def of_values(values: list[tuple[str, ...]]) -> list[Filter]:
        if len(plain) == 1:
            return [one_of(fields[plain[0]], [value for (value,) in values])]
        each = [[one_of(fields[name], [value]) for name, value in zip(plain, row, strict=True)] for row in values]
        return [reduce(or_, [reduce(and_, row) for row in each])] if plain else []

    grouped = _grouped(parts, plain, timed)
    return reduce(or_, [reduce(and_, [*of_values(values), *of_time(times)]) for times, values in grouped])


def _grouped(
    parts: Sequence[Mapping[str, str]], plain: Sequence[str], timed: Sequence[str]
) -> list[tuple[list[str], list[tuple[str, ...]]]]:
    """Combine partitions into groups. In each group, every time key occurs with every value.

    The value consists of the partition's keys of all dimensions except time. One condition can therefore cover all
    times and values of a group.
    """
    by_values: dict[tuple[str, ...], list[str]] = {}
    for part in parts:
        times = by_values.setdefault(tuple(part[name] for name in plain), [])
        times += [part[name] for name in timed]
    by_times: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for values, times in by_values.items():
        by_times.setdefault(tuple(sorted(times)), []).append(values)
    return [(list(times), values) for times, values in by_times.items()]


def _dimensions(definition: Partitions) -> Mapping[str, Partitions]:
    if isinstance(definition, MultiPartitionsDefinition):
        return {each.name: each.partitions_def for each in definition.partitions_defs}
    return {_ALONE: definition}


def _by_dimension(definition: Partitions, key: str) -> Mapping[str, str]:
    if not isinstance(definition, MultiPartitionsDefinition):
        return {_ALONE: key}
    found = key if isinstance(key, MultiPartitionKey) else definition.get_partition_key_from_str(key)
    return found.keys_by_dimension


def _column(table: Shape, dimension: str, columns: Columns, *, timed: bool) -> str:
    named = columns.get(dimension) if isinstance(columns, Mapping) else columns if dimension == _ALONE else None
    name = named or (table.time_column if timed else None) or dimension
    if name not in table.schema.names:
        what = f"the dimension {dimension!r} of the partitions" if dimension else "the partition"
        example = "'country'" if dimension == _ALONE else f"{{{dimension!r}: 'country'}}"
        raise InvalidInput(
            f"{table.uri}: {what} has no known column (found {name!r}). Give the asset the metadata "
            f"'partition_expr', such as {example}, with a column of {table.schema.names}.",
            column=name,
        )
    return name


def _spans(definition: Partitions, keys: Iterable[str]) -> list[_Span]:
    """Return the time windows of the keys in ascending order. Adjacent windows are joined."""
    assert isinstance(definition, TimeWindowPartitionsDefinition)  # noqa: S101  # the caller has checked it
    windows = [definition.time_window_for_partition_key(key) for key in keys]
    spans: list[_Span] = []
    for start, end in sorted(((each.start, each.end) for each in windows), key=lambda span: span[0].timestamp()):
        if spans and spans[-1][1].timestamp() == start.timestamp():
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
    return spans


# The I/O manager.


EVERY_ROW = "true"


class TidemarkIOManager(ConfigurableIOManager):
    """Stores assets as tables and loads them from tables.

    The metadata `tidemark/uri` of an asset contains the location of its table. Without this metadata, the location is
    `root`, followed by the key of the asset. An input is loaded as the type of its annotation, or as `default_type`
    without an annotation. The I/O manager spends at most `load_seconds` seconds on loading the rows of partitions.
    """

    root: str = Field(default="warehouse", description="The folder or URI for assets without a location of their own.")
    default_type: str = Field(
        default=Form.ARROW.value, description=f"The type of an input without an annotation: {', '.join(Form)}."
    )
    load_seconds: float = Field(default=3600.0, description="Time limit in seconds for loading the rows of partitions.")

    def load_input(self, context: InputContext) -> object:
        """Return the rows of an asset in the type of the input. If the input has partitions, return only their rows.

        By default, these are the rows of the newest version. For a keyed table, they include every acknowledged row.
        The metadata `tidemark/at` and `tidemark/consistency` of the input select another version or another consistency
        level.

        Raises:
            Failure: A typed error occurred. The failure contains the kind and message of this error.
        """
        with typed_failures():
            form = self._form(context.dagster_type.typing_type)
            given = InputSettings.of(context.definition_metadata)
            above = context.upstream_output.definition_metadata if context.upstream_output else {}
            kept = AssetSettings.of(above)
            table = Table.open(given.uri or self._place(context, kept, above), at=given.at)
            condition = _partitions_of_input(context, table, kept)
            usual = Consistency.LATEST if table.config.primary_key and given.at is None else Consistency.SNAPSHOT
            scan = table.scan(
                given.columns,
                condition,
                consistency=given.consistency or usual,
                limits=None if condition is None else QueryLimits(seconds=self.load_seconds),
            )
            context.log.info("loading %s at version %d as %s", table.uri, table.version, form)
            return rows_in(scan, form)

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Store the value of an asset.

        The setting `tidemark/mode` selects how the rows are stored. By default, the rows of a keyed table are stored by
        key. In any other table, the rows replace the rows of the partition. A missing table is created with the columns
        of the rows and the settings in `tidemark/create`.

        Raises:
            Failure: A typed error occurred. The failure contains the kind and message of this error. Nothing is
                committed.
        """
        with typed_failures():
            kept = AssetSettings.of(context.definition_metadata)
            uri = self._place(context, kept, context.definition_metadata)
            data = data_of(obj)
            there = Table.open(uri) if exists(uri) else None
            shape = _to_be(uri, data, kept.create) if there is None else Shape.of(there)
            condition = _partitions_of_output(context, shape, kept)
            table = there or _made(shape, kept.create or {})
            mode = kept.mode or (WriteMode.UPSERT if table.config.primary_key else WriteMode.OVERWRITE)
            written = _store(context, table, data, mode=mode, condition=condition, on=kept.on)
            found: dict[str, Any] = {
                **table_metadata(table, _table_name(context, table, kept)),
                "tidemark/version": table.version,
                "tidemark/mode": mode.value,
                "tidemark/rows_written": written,
            }
            if mode is WriteMode.OVERWRITE and context.has_asset_partitions and len(context.asset_partition_keys) == 1:
                found["dagster/partition_row_count"] = written
        context.log.info("stored %d rows in %s: %s, version %d", written, table.uri, mode, table.version)
        context.add_output_metadata(found)

    def _form(self, annotation: object) -> Form:
        if annotation is not Any:
            return required_form(annotation)
        if self.default_type not in list(Form):
            raise InvalidInput(choice_of("default_type", self.default_type, [*Form]))
        return Form(self.default_type)

    def _place(self, context: InputContext | OutputContext, kept: AssetSettings, metadata: Mapping[str, object]) -> str:
        declared = metadata.get(DAGSTER_URI)
        if kept.uri or declared:
            return kept.uri or str(getattr(declared, "value", declared))
        if not context.has_asset_key:
            raise InvalidInput(
                "the output has no location, because it is not an asset with a key. Give the output the "
                "metadata 'tidemark/uri'."
            )
        return place_of(self.root, context.asset_key.path)


def _partitions_of_input(context: InputContext, table: Table, kept: AssetSettings) -> Filter | None:
    if not context.has_asset_partitions:
        return None
    shape = Shape.of(table)
    return condition_of(shape, context.asset_partitions_def, context.asset_partition_keys, kept.partition_expr)


def _partitions_of_output(context: OutputContext, table: Shape, kept: AssetSettings) -> Filter | None:
    """Return the condition for the rows that an overwrite replaces.

    Raises `InvalidInput` if the asset has partitions and the run has no partition.
    """
    if context.has_asset_partitions:
        return condition_of(table, context.asset_partitions_def, context.asset_partition_keys, kept.partition_expr)
    if context.has_asset_key and context.asset_spec.partitions_def is not None:
        raise InvalidInput(
            f"{context.asset_key.to_user_string()} has partitions, but the run has no partition. "
            "Run the asset for one partition."
        )
    return None


def _store(
    context: OutputContext, table: Table, data: Data, *, mode: WriteMode, condition: Filter | None, on: tuple[str, ...]
) -> int:
    """Commit the rows, and return the number of written rows.

    If the append is already committed, no rows are written.
    """
    match mode:
        case WriteMode.APPEND if table.config.primary_key:
            return table.append(data).rows
        case WriteMode.APPEND:
            done = table.append(data, application=(_work_of(context), 0))
            if not done.commit_id:
                context.log.info("nothing to append, because there are no rows or this run has already appended them")
            return done.rows
        case WriteMode.OVERWRITE:
            return table.overwrite(data, EVERY_ROW if condition is None else condition).rows_added
        case WriteMode.UPSERT:
            return table.upsert(data, on=on or table.config.primary_key).rows_added


def _work_of(context: OutputContext) -> str:
    """Return a unique name for the step that stores this output.

    The step and its retries have the same name. The name contains the id of the first run.
    """
    run = context.step_context.dagster_run
    keys = context.asset_partition_key_range if context.has_asset_partitions else None
    what = [context.step_key, context.name, context.mapping_key, *([] if keys is None else [keys.start, keys.end])]
    first = run.root_run_id or run.get_root_run_id() or run.run_id  # the record or a tag of a retry contains this id
    return f"dagster:{first}:{short_hash(json.dumps(what))}"


def _to_be(uri: str, data: Data, create: Mapping[str, Any] | None) -> Shape:
    """Return the shape of a table that does not exist yet. Raises `NotFound` without the setting `tidemark/create`."""
    if create is None:
        raise NotFound(
            f"{uri}: there is no table. Give the asset the metadata {CREATE!r} with parameters of Table.create, such "
            "as {'time_column': 'at', 'window': '1h'} or {}, to create the table from its first rows. Or declare the "
            "table in tables/*.yaml and run tidemark init.",
            uri=uri,
        )
    known = sorted({*Table.create.__annotations__} - {"uri", "schema", "return"})
    unknown = [name for name in create if name not in known]
    if unknown:
        raise InvalidInput(
            f"{CREATE}: {quoted(unknown[0])} is not a parameter of Table.create. The parameters are {known}."
        )
    return Shape(uri, as_held(data.schema, "the rows"), create.get("time_column"))


def _made(shape: Shape, create: Mapping[str, Any]) -> Table:
    try:
        return Table.create(shape.uri, shape.schema, **create)
    except InvalidInput:
        if not exists(shape.uri):  # if the table exists, the run of another partition created it
            raise
        return Table.open(shape.uri)


def _table_name(context: OutputContext, table: Table, kept: AssetSettings) -> str:
    """Return the name of the table.

    For an asset with a default location, the name of the table is the asset key. Otherwise, the table has the name of
    its folder.
    """
    if kept.uri is None and context.has_asset_key:
        return ".".join(context.asset_key.path)
    return name_of(table.uri)
