"""Creation of a table, and changes of its columns and settings.

If columns change, the commit changes only the schema of the table. Rows are never rewritten (decision 0005). Each
change is a function of the newest snapshot. If another process commits settings first, the function is applied again to
the new snapshot.

The first change of columns gives every column an id, and adds a table feature. Releases without support for changed
columns refuse a table with this feature.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.text import MOST_LISTED, shortened, unknown_names
from storage_core.change.definition import (
    check_definition,
    check_names,
    check_new,
    check_unchanged,
    in_canonical_form,
    keeping_hand_regions,
    keeping_order,
    keeping_windows,
)
from storage_core.data.formats.keys import version_key
from storage_core.data.rows.columns import (
    COLUMN_ID,
    DEFAULT,
    LAST_COLUMN_ID,
    STORED_NAME,
    column_id,
    default_text,
    entries_of,
    former_names,
    former_setting,
    may_widen,
    numbered,
    stored_name,
    with_entries,
    with_former,
    without_metadata,
)
from storage_core.data.rows.fold import record_schema
from storage_core.data.rows.schema import require_names, require_new_columns, to_schema_string, type_name, with_dropped
from storage_core.data.rows.sort_order import bind, recorded_order
from storage_core.data.rows.vectors import type_text
from storage_core.data.settings.layout import LANDING_KEY, REGIONS_KEY
from storage_core.data.settings.table import TableConfig, changed
from storage_core.log.actions import Action, Metadata, RemoveIndexSegment, RemoveTranslation
from storage_core.log.listing import reject_nested_table
from storage_core.log.log import TransactionLog, retry_on_conflict
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import require_durable

if TYPE_CHECKING:
    from storage_core.change.declaration import TableDeclaration
    from storage_core.write.ingest.drift import Drift
    from storage_core.write.ingest.landing import LandingSpec


ColumnType: TypeAlias = pa.DataType | str


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A change of one column: the operation name in the history, and the function that changes the schema.

    `make` gets a schema with column ids. `make` returns the same schema if there is nothing to change. `make` raises
    `InvalidInput` if the change is not possible.
    """

    operation: str
    column: str
    make: Callable[[Snapshot, pa.Schema], pa.Schema]


def add_column(name: str, type_: ColumnType, default: object = None) -> ColumnChange:
    """Return a `ColumnChange` that adds a nullable column after the existing columns.

    Rows written before the change have `default` in the column.
    """
    require_names([name])
    kind = _type(type_)
    require_new_columns([pa.field(name, kind)])

    def make(_: Snapshot, schema: pa.Schema) -> pa.Schema:
        if name in schema.names:
            raise InvalidInput(
                f"the table already has a column {name!r} of type {type_text(schema.field(name).type)}. Choose "
                "another name, or widen the existing column",
                column=name,
            )
        field = pa.field(name, kind)
        entries = {} if default is None else {DEFAULT: default_text(default, field)}
        return schema.append(with_entries(field, entries))

    return ColumnChange(operation="ADD COLUMN", column=name, make=make)


def widen_column(name: str, type_: ColumnType) -> ColumnChange:
    """Return the change that gives a column a wider type. Readers convert earlier values to the wider type."""
    wider = _type(type_)

    def make(snapshot: Snapshot, schema: pa.Schema) -> pa.Schema:
        field = _existing(schema, name)
        if field.type == wider:
            return schema
        if not may_widen(field.type, wider):
            raise InvalidInput(
                f"column {name!r} is {type_text(field.type)} and cannot become {type_text(wider)} without a rewrite. "
                "Possible changes are wider integers, float to double, decimal to more digits with the same scale, "
                f"and date to timestamp. Add a column of type {type_text(wider)} and write the values into it",
                column=name,
            )
        if pa.types.is_date(field.type) and name in _partition_sources(snapshot):
            raise InvalidInput(
                f"column {name!r} is a date in partition_by, and cannot become a timestamp, which has other "
                "partitions. Create a table with the other type and copy the rows",
                column=name,
            )
        if pa.types.is_date(field.type) and name in snapshot.config.primary_key:
            raise InvalidInput(
                f"column {name!r} is a date in the primary key, and cannot become a timestamp, which has another "
                "hash. Create a table with the other key and copy the rows",
                column=name,
            )
        return _with(schema, field.with_type(wider))

    return ColumnChange(operation="WIDEN COLUMN", column=name, make=make)


def relax_column(name: str) -> ColumnChange:
    """Return the change that makes a required column nullable."""

    def make(snapshot: Snapshot, schema: pa.Schema) -> pa.Schema:
        field = _existing(schema, name)
        if name in snapshot.config.primary_key:
            raise InvalidInput(
                f"column {name!r} is part of the primary key, so the column must stay required. Do not change "
                "the column",
                column=name,
            )
        return _with(schema, field.with_nullable(nullable=True))

    return ColumnChange(operation="RELAX COLUMN", column=name, make=make)


def rename_column(old: str, new: str) -> ColumnChange:
    """Return the change that renames a column. Existing splits keep the stored name of the column."""
    require_names([new])

    def make(snapshot: Snapshot, schema: pa.Schema) -> pa.Schema:
        field = _existing(schema, old)
        if new == old:
            return schema
        if new in schema.names:
            raise InvalidInput(f"the table already has a column {new!r}. Drop or rename that column first", column=new)
        _require_free(snapshot, old, "renamed")
        stored, entries = stored_name(field), entries_of(field)
        entries.pop(STORED_NAME, None)
        renamed = with_entries(field.with_name(new), entries if stored == new else {**entries, STORED_NAME: stored})
        return schema.set(schema.get_field_index(old), renamed)

    return ColumnChange(operation="RENAME COLUMN", column=old, make=make)


def drop_column(name: str) -> ColumnChange:
    """Return the change that removes a column. Compaction drops the values of the column when it rewrites splits."""

    def make(snapshot: Snapshot, schema: pa.Schema) -> pa.Schema:
        _existing(schema, name)
        _require_free(snapshot, name, "dropped")
        if len(schema) == 1:
            raise InvalidInput(
                f"column {name!r} is the only column of the table. Add another column first", column=name
            )
        return schema.remove(schema.get_field_index(name))

    return ColumnChange(operation="DROP COLUMN", column=name, make=make)


def _require_free(snapshot: Snapshot, name: str, change: str) -> None:
    """Raise `InvalidInput` if the table needs a column of this name.

    The error explains why the table needs the column and how to fix this.
    """
    config, copy = snapshot.config, "Create a table without it and copy the rows"
    indexes = [each.name for each in config.indexes if name in each.columns]
    uses = {
        f"part of the primary key. {copy}": name in config.primary_key,
        f"the time column. {copy}": name == config.time_column,
        f"a column that the regions are divided by. {copy}": any(
            name in field.source_ids for spec in config.region_specs for field in spec.fields
        ),
        f"a column that the table is partitioned by. {copy}": name in _partition_sources(snapshot),
        f"a column of the index {next(iter(indexes), '')!r}. Declare the table without that index first": bool(indexes),
        "named in bloom_filters. Remove the column from bloom_filters in the declaration first": name
        in config.bloom_filters,
        "named in map_columns, so patches merge the values of the column. Write whole values into another column": name
        in config.map_columns,
        "in the sort schema. Declare another sort schema first": name in bind(config, snapshot.schema).described,
    }
    used = next((use for use, is_used in uses.items() if is_used), None) or _use_by_landing(snapshot, name)
    if used is None and name in _sorted_by(snapshot):
        used = "in the sort schema of older splits. Rewrite these splits with `tidemark compact NAME --resort`"
    if used is not None:
        raise InvalidInput(f"column {name!r} cannot be {change}: it is {used}", column=name)


def _use_by_landing(snapshot: Snapshot, name: str) -> str | None:
    """Return a text that describes how the landing location uses the column, or None."""
    text = snapshot.metadata.configuration.get(LANDING_KEY)
    if text is None:
        return None
    from storage_core.write.ingest.changes import order_column  # Few tables have landed files.
    from storage_core.write.ingest.landing import LandingSpec, captured_columns

    spec = LandingSpec.from_json(text)
    uses = {
        "filled from the names of landed files. Declare another pattern first": (
            spec.pattern is not None and name in captured_columns(spec.pattern)
        ),
        "named in `times` of the landing location. Declare other `times` first": name in dict(spec.times),
        "named in `columns` of the landing location. Declare other `columns` first": name in spec.columns,
        "named in `on_new_field` of the landing location. Declare another effect of new fields first": (
            spec.drift.column == name
        ),
        "named in `order_by` of the landing location. Declare another `order_by` first": name == order_column(spec),
    }
    return next((use for use, is_used in uses.items() if is_used), None)


def _partition_sources(snapshot: Snapshot) -> set[str]:
    return {*snapshot.metadata.partitionColumns, *(each.column for each in snapshot.config.partition_fields)}


def _sorted_by(snapshot: Snapshot) -> set[str]:
    """Return the sort columns of live splits. Reads every manifest."""
    texts = pc.unique(snapshot.splits.table().column("sortSchema")).drop_null().to_pylist()
    orders = (recorded_order(text, snapshot.config, snapshot.schema) for text in texts)
    return {name for order in orders if order is not None for name in order.described}


def declared_changes(
    name: str, declared: pa.Schema, found: pa.Schema, landing: LandingSpec | None = None
) -> list[ColumnChange]:
    """Return the changes that add and widen columns, so that a table has the columns of its declaration.

    The table keeps its own order of columns.

    Args:
        name: Name of the declaration, for errors.
        declared: Columns of the declaration.
        found: Columns of the table.
        landing: The landing location, if there is one. A table that follows a Delta table, or whose landed files may
            add columns, may have further columns. The same is true of wider types.

    Raises:
        InvalidInput: A difference that a declaration cannot change. The error contains the remedy.
    """
    alter, changes = f"`tidemark alter {name}", list[ColumnChange]()
    gains = landing is not None and (landing.is_delta or landing.drift.new_field == "add")
    widens = landing is not None and (landing.is_delta or landing.drift.widens)
    for field in declared:
        own = found.field(field.name) if field.name in found.names else None
        if own is None and field.nullable:
            changes.append(add_column(field.name, field.type))
        elif own is None:
            raise _undeclared(name, field, "the column is new and required. Declare the column nullable")
        elif own.nullable != field.nullable:
            advice = f"Run {alter} relax-column {field.name}`" if field.nullable else "Declare the column nullable"
            raise _undeclared(name, field, f"the column is {_nullability(own)} in the table. {advice}")
        elif widens and may_widen(field.type, own.type):
            continue
        elif may_widen(field.type, own.type):
            kind = _declared_type(own.type)
            raise _undeclared(name, field, f"the column is {kind} in the table. Declare the column as {kind}")
        elif own.type != field.type and not may_widen(own.type, field.type):
            raise _undeclared(
                name, field, f"the column is {_declared_type(own.type)} in the table. Add a column of the other type"
            )
        elif own.type != field.type:
            changes.append(widen_column(field.name, field.type))
    gone = next((each for each in found if each.name not in declared.names), None)
    if gone is not None and not gains:
        do = f"Declare the column, or run {alter} drop-column {gone.name}` or {alter} rename-column {gone.name} …`"
        raise _undeclared(name, gone, f"the column is in the table but not declared. {do}")
    return changes


def _undeclared(name: str, field: pa.Field, why: str) -> InvalidInput:
    message = f"the declaration of {name!r} differs from the existing table in column {field.name!r}: {why}"
    return InvalidInput(message, changed=["columns"], column=field.name)


def _declared_type(type_: pa.DataType) -> str:
    """Return the name of a type as declarations write it."""
    name = type_name(type_)
    return "int" if name == "integer" else name


def _nullability(field: pa.Field) -> str:
    return "nullable" if field.nullable else "required"


def change_column(log: TransactionLog, snapshot: Snapshot, change: ColumnChange) -> Snapshot:
    """Commit the change as a separate version, and return the newest version after it.

    Nothing is committed if the table already has the change.

    Raises:
        InvalidInput: The table does not allow the change. The error explains the reason and the remedy.
        CommitConflict: Another process changed the settings first in every attempt. Nothing is committed.

    Cost:
        The requests of `log.refresh` and of a commit.
    """

    def attempt(head: Snapshot) -> Snapshot:
        changed = altered(head, change)
        if changed is None:
            return head
        metrics = {"column": change.column}
        return log.commit(head, [changed.metadata], operation=change.operation, metrics=metrics).snapshot

    return retry_on_conflict(log, log.refresh(snapshot), attempt)


def altered(snapshot: Snapshot, change: ColumnChange) -> Snapshot | None:
    """Return the snapshot with the change, or None if the snapshot already has the change.

    Raises the errors of `change_column`.
    """
    before = numbered(snapshot.schema)
    made = change.make(snapshot, before)
    configuration = snapshot.metadata.configuration
    if made.equals(before, check_metadata=True):
        return None
    last = int(configuration.get(LAST_COLUMN_ID, len(before)))
    former = with_former(former_names(configuration), before, made)
    for field in made:
        if column_id(field) is None:
            last += 1
            made = _with(made, _new(field, last, {*former, *map(stored_name, before)}))
    check_definition(made, snapshot.config)
    if snapshot.config.primary_key:
        record_schema(made)
    changed = {**with_dropped(configuration, before, made), LAST_COLUMN_ID: str(last)} | former_setting(former)
    metadata = replace(snapshot.metadata, schemaString=to_schema_string(made), configuration=changed)
    return replace(snapshot, metadata=metadata)


@dataclass(frozen=True, slots=True)
class GrownTable:
    """The planned and not yet committed version of a table, with the columns that landed files need.

    - `snapshot`: the planned version with the new schema.
    - `added`, `widened`: the new and the wider columns, each with its type.
    - `refused`: the fields that cannot be added and the columns that cannot be widened, each with the reason.
    """

    snapshot: Snapshot
    added: Mapping[str, str]
    widened: Mapping[str, str]
    refused: Mapping[str, str]

    def without_changes(self, before: Snapshot) -> GrownTable:
        """Return the result of a run that adds no rows. The table then keeps the columns that it has in `before`."""
        return GrownTable(before, {}, {}, self.refused)

    @property
    def details(self) -> dict[str, object]:
        """The changed columns and the first refused columns, for the report."""
        refused = dict(islice(self.refused.items(), MOST_LISTED))
        found = {"columns_added": dict(self.added), "columns_widened": dict(self.widened), "columns_refused": refused}
        return {name: each for name, each in found.items() if each}

    @property
    def actions(self) -> list[Action]:
        """The actions that change the schema. The commit that adds the rows must contain these actions."""
        return [self.snapshot.metadata] if self.added or self.widened else []


_LONGEST_REASON: Final = 500


def grow(snapshot: Snapshot, drift: Drift, most: int) -> GrownTable:
    """Return the table with new columns for the new fields of landed files, and with wider columns.

    Nothing is committed.

    At most `most` fields become columns. Fields with more values come first. `refused` contains each change that
    `change_column` refuses, with the reason.
    """
    from storage_core.write.ingest.drift import column_type  # loads the rules of landed files

    added, widened, refused = dict[str, str](), dict[str, str](), dict[str, str]()
    fields = sorted(drift.fields.items(), key=lambda each: (-each[1][0], each[0]))
    wanted = [(added, name, column_type(type_)) for name, (_, type_) in fields]
    wanted = [(widened, *each) for each in sorted(drift.widened.items())] + wanted
    for into, name, type_ in wanted:
        if into is added and len(added) == most:
            break
        try:
            change = (add_column if into is added else widen_column)(name, type_)
            if (changed := altered(snapshot, change)) is not None:
                snapshot, into[name] = changed, type_name(type_)
        except InvalidInput as error:
            refused[name] = shortened(str(error), _LONGEST_REASON)
    return GrownTable(snapshot, added, widened, refused)


def _new(field: pa.Field, number: int, taken: Collection[str]) -> pa.Field:
    """Return the new column with its id. No other column of the table has the same stored name."""
    folded, stored = {name.casefold() for name in taken}, str(field.name)
    while stored.casefold() in folded:
        stored = f"{stored}~{number}"
    entries = {**entries_of(field), COLUMN_ID: str(number)}
    return with_entries(field, entries if stored == field.name else {**entries, STORED_NAME: stored})


def _existing(schema: pa.Schema, name: str) -> pa.Field:
    if name not in schema.names:
        raise InvalidInput(unknown_names("column", [name], schema.names), column=name)
    return schema.field(name)


def _with(schema: pa.Schema, field: pa.Field) -> pa.Schema:
    return schema.set(schema.get_field_index(field.name), field)


def _type(type_: ColumnType) -> pa.DataType:
    if isinstance(type_, str):
        from storage_core.change.declaration_parts import arrow_field, spark_type  # loads the models of declarations

        return arrow_field("column", spark_type(type_)).type
    if not isinstance(type_, pa.DataType):
        raise InvalidInput(f"{type_!r} is not a column type. Give an Arrow type or the name of one, such as 'long'")
    return type_


def create(
    log: TransactionLog, schema: pa.Schema, config: TableConfig, extra: Mapping[str, str] = MappingProxyType({})
) -> Snapshot:
    """Create an empty table and return its version 0.

    Before the call, the caller must check the columns with `check_new`. This check must come before the sort schema
    becomes canonical.

    Args:
        log: Transaction log at the location of the table.
        schema: Columns of the table.
        config: Settings of the table.
        extra: Settings that are not part of `config`. Default: none.

    Raises:
        InvalidInput: There is already a table at, above or below the location. Or the location has splits of a table
            with a lost log. Or the arguments contradict each other.
        Unsupported: The store cannot hold a table.

    Cost:
        The requests of `reject_nested_table`, and of the log's `require_capable` and `create`.
    """
    check_definition(schema, config)
    schema = without_metadata(schema)
    metadata = Metadata(
        id=log.ids.uuid(),
        schemaString=to_schema_string(schema),
        partitionColumns=config.partition_columns,
        configuration={**config.to_configuration(), **extra},
        createdTime=log.clock.now_ms(),
    )
    reject_nested_table(log.store, is_new=True)
    log.require_capable()
    return log.create(metadata)


def declare(
    log: TransactionLog, declaration: TableDeclaration, marks: Mapping[str, str] = MappingProxyType({})
) -> Snapshot:
    """Return the newest version of the declared table. Create the table if it is missing. See `Table.declare`.

    A new table also gets the settings `marks`.
    """
    landing, extra = _landing_settings(log, declaration)
    if not log.exists():
        try:
            schema, config = declaration.schema(), declaration.config()
            check_new(schema, config)
            return create(log, schema, config, {**extra, **marks})
        except InvalidInput:
            if not log.exists():  # Otherwise another process has just declared the table.
                raise
    found = log.snapshot()
    changes = declared_changes(declaration.name, declaration.schema(), found.schema, landing)
    check_unchanged(declaration.name, declaration.config(), found.config)
    for change in changes:
        found = change_column(log, found, change)

    return _following(log, found, partial(_declared_settings, declaration, extra))


def _landing_settings(
    log: TransactionLog, declaration: TableDeclaration
) -> tuple[LandingSpec | None, Mapping[str, str]]:
    """Return the declared landing location, and its settings in the log.

    Raises `InvalidInput` if the table and the landing location overlap.
    """
    landing = declaration.landing_spec()
    if landing is None:
        return None, {}
    from storage_core.write.ingest.landing import reject_overlap

    reject_overlap(landing.uri, log.store.uri, "the table")
    return landing, {LANDING_KEY: landing.to_json()}


def as_declared(log: TransactionLog, declaration: TableDeclaration) -> Snapshot:
    """Return the newest version with the declared columns and settings, without a commit.

    A dry run uses this version for its plan.

    Raises the errors of `declare`, and `NotFound` if the table does not exist.
    """
    landing, extra = _landing_settings(log, declaration)
    found = log.snapshot()
    changes = declared_changes(declaration.name, declaration.schema(), found.schema, landing)
    check_unchanged(declaration.name, declaration.config(), found.config)
    for change in changes:
        found = altered(found, change) or found
    actions = _changing(found, _declared_settings(declaration, extra, found))
    metadata = next((each for each in actions if isinstance(each, Metadata)), found.metadata)
    return replace(found, metadata=metadata)


def _declared_settings(declaration: TableDeclaration, extra: Mapping[str, str], current: Snapshot) -> Mapping[str, str]:
    """Return the settings that the declaration gives to the table. `extra` contains settings outside `TableConfig`."""
    wanted = keeping_windows(keeping_order(declaration.config(), current.config), current.config)
    wanted = keeping_hand_regions(wanted, current.config)
    check_names(current, wanted)
    return {**wanted.to_configuration(), **extra}


def change_settings(log: TransactionLog, snapshot: Snapshot, given: Mapping[str, object]) -> Snapshot:
    """Commit the given settings, and return the newest version. `given` uses the setting names of `settings.table`.

    Other settings keep their values, even if another process changes settings concurrently. Raises `InvalidInput` if a
    setting cannot be changed, and the errors of `configure`.
    """

    def wanted_of(current: Snapshot) -> Mapping[str, str]:
        wanted = changed(current.config, given)
        check_definition(current.schema, wanted)  # the canonical text would omit the explicit types
        check_names(current, wanted)
        if wanted.sort_schema is not None:
            wanted = keeping_order(in_canonical_form(wanted), current.config)
        wanted = keeping_hand_regions(keeping_windows(wanted, current.config), current.config)
        landing = {name: text for name, text in current.metadata.configuration.items() if name == LANDING_KEY}
        return {**wanted.to_configuration(), **landing}

    return _following(log, snapshot, wanted_of)


def configure(log: TransactionLog, snapshot: Snapshot, settings: Mapping[str, str]) -> Snapshot:
    """Commit these settings unless the table already has them, and return the newest version.

    The regions and the settings of other releases do not change. Raises `CommitConflict` if another process changed the
    settings first in every attempt.
    """
    return _following(log, snapshot, lambda _: settings)


def _following(
    log: TransactionLog, snapshot: Snapshot, settings_for: Callable[[Snapshot], Mapping[str, str]]
) -> Snapshot:
    def attempt(head: Snapshot) -> Snapshot:
        actions = _changing(head, settings_for(head))
        if not actions:
            # If a commit with an unknown outcome set these values, the version may not be durable.
            require_durable(log.store, version_key(head.version), advice="declare the table again")
            return head
        log.require_capable()
        return log.commit(head, actions, operation="CONFIGURE").snapshot

    return retry_on_conflict(log, snapshot, attempt)


def _changing(snapshot: Snapshot, settings: Mapping[str, str]) -> list[Action]:
    """Return the actions that set these settings and remove the segments of dropped indexes.

    The list is empty if nothing changes.

    If the table has no index after the change, the actions also remove the translations of row numbers. The table keeps
    its own regions and their history.
    """
    current = dict(snapshot.metadata.configuration)
    ours = {name for name in current if name == LANDING_KEY or TableConfig.owns(name)} - {REGIONS_KEY}
    others = {name: value for name, value in current.items() if name not in ours}
    wanted = {**others, **{name: value for name, value in settings.items() if name != REGIONS_KEY}}
    if wanted == current:
        return []
    kept = {index.name for index in TableConfig.from_configuration(wanted).indexes}
    dropped = [
        RemoveIndexSegment(index=segment.index, path=segment.path)
        for segment in snapshot.segments.values()
        if segment.index not in kept
    ]
    idle = [] if kept else [RemoveTranslation(path=path) for path in sorted(snapshot.translations)]
    return [replace(snapshot.metadata, configuration=wanted), *dropped, *idle]
