"""How the columns of a table change: by a commit of its schema, never by a rewrite of rows (decision 0138).

A change is a function of the newest snapshot, made again when another commit of settings was first. The first one
gives every column an id, and the table the feature that keeps releases away which know nothing of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.declaration_parts import arrow_field, spark_type
from storage_core.definition import check_definition
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.ingest.landing import LANDING, LandingSpec, captured_columns
from storage_core.log.log import TransactionLog
from storage_core.log.replanned import replanned
from storage_core.log.snapshot import Snapshot
from storage_core.rows.columns import (
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
)
from storage_core.rows.dropped_columns import with_dropped
from storage_core.rows.fold import record_schema
from storage_core.rows.new_columns import require_names, require_new_columns
from storage_core.rows.schema import to_schema_string
from storage_core.rows.sort_order import bind, recorded_order
from storage_core.rows.vectors import type_text

ColumnType: TypeAlias = pa.DataType | str


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A change of one column: what history calls it, and the schema that it makes of one whose columns have ids.

    `make` returns the same schema where there is nothing to change, and raises `InvalidInput` for what cannot be.
    """

    operation: str
    column: str
    make: Callable[[Snapshot, pa.Schema], pa.Schema]


def add_column(name: str, type_: ColumnType, default: object = None) -> ColumnChange:
    """Return the change that adds a nullable column behind the others; rows that were written before have `default`."""
    require_names([name])
    kind = _type(type_)
    require_new_columns([pa.field(name, kind)])

    def make(_: Snapshot, schema: pa.Schema) -> pa.Schema:
        if name in schema.names:
            raise InvalidInput(
                f"the table has a column {name!r} already, of type {type_text(schema.field(name).type)}; choose "
                "another name, or widen that one",
                column=name,
            )
        field = pa.field(name, kind)
        entries = {} if default is None else {DEFAULT: default_text(default, field)}
        return schema.append(with_entries(field, entries))

    return ColumnChange(operation="ADD COLUMN", column=name, make=make)


def widen_column(name: str, type_: ColumnType) -> ColumnChange:
    """Return the change of a column into a wider type; values that were written before are widened as they are read."""
    wider = _type(type_)

    def make(snapshot: Snapshot, schema: pa.Schema) -> pa.Schema:
        field = _existing(schema, name)
        if field.type == wider:
            return schema
        if not may_widen(field.type, wider):
            raise InvalidInput(
                f"column {name!r} is {type_text(field.type)} and cannot become {type_text(wider)} without a rewrite: "
                "integers may become wider integers, float double, a decimal one of more digits with the same scale, "
                f"a date a timestamp; add a column of type {type_text(wider)} and write the values into that",
                column=name,
            )
        if pa.types.is_date(field.type) and name in _partition_sources(snapshot):
            raise InvalidInput(
                f"column {name!r} is a date that the table is partitioned by, and its partitions are not those of a "
                "timestamp; make a table with the other type and copy the rows",
                column=name,
            )
        if pa.types.is_date(field.type) and name in snapshot.config.primary_key:
            raise InvalidInput(
                f"column {name!r} is a date in the primary key, and its hash is not that of a timestamp; make a table "
                "with the other key and copy the rows",
                column=name,
            )
        return _with(schema, field.with_type(wider))

    return ColumnChange(operation="WIDEN COLUMN", column=name, make=make)


def relax_column(name: str) -> ColumnChange:
    """Return the change of a required column into a nullable one."""

    def make(snapshot: Snapshot, schema: pa.Schema) -> pa.Schema:
        field = _existing(schema, name)
        if name in snapshot.config.primary_key:
            raise InvalidInput(f"column {name!r} is part of the primary key, which every row needs", column=name)
        return _with(schema, field.with_nullable(nullable=True))

    return ColumnChange(operation="RELAX COLUMN", column=name, make=make)


def rename_column(old: str, new: str) -> ColumnChange:
    """Return the change of a column's name; splits know it by the one that it has there."""
    require_names([new])

    def make(snapshot: Snapshot, schema: pa.Schema) -> pa.Schema:
        field = _existing(schema, old)
        if new == old:
            return schema
        if new in schema.names:
            raise InvalidInput(f"the table has a column {new!r} already; drop or rename that one first", column=new)
        _require_free(snapshot, old, "renamed")
        stored, entries = stored_name(field), entries_of(field)
        entries.pop(STORED_NAME, None)
        renamed = with_entries(field.with_name(new), entries if stored == new else {**entries, STORED_NAME: stored})
        return schema.set(schema.get_field_index(old), renamed)

    return ColumnChange(operation="RENAME COLUMN", column=old, make=make)


def drop_column(name: str) -> ColumnChange:
    """Return the change that takes a column away; compaction takes its values out of the splits that it rewrites."""

    def make(snapshot: Snapshot, schema: pa.Schema) -> pa.Schema:
        _existing(schema, name)
        _require_free(snapshot, name, "dropped")
        if len(schema) == 1:
            raise InvalidInput(f"column {name!r} is the only one of the table; add another one first", column=name)
        return schema.remove(schema.get_field_index(name))

    return ColumnChange(operation="DROP COLUMN", column=name, make=make)


def _require_free(snapshot: Snapshot, name: str, change: str) -> None:
    """Raise `InvalidInput` where the table relies on a column of this name, saying how and what to do."""
    config, copy = snapshot.config, "make a table without that and copy the rows"
    indexes = [each.name for each in config.indexes if name in each.columns]
    landing = snapshot.metadata.configuration.get(LANDING)
    pattern = None if landing is None else LandingSpec.from_json(landing).pattern
    uses = {
        f"part of the primary key; {copy}": name in config.primary_key,
        f"the time column; {copy}": name == config.time_column,
        f"a column that regions divide the table by; {copy}": any(
            name in field.source_ids for spec in config.region_specs for field in spec.fields
        ),
        f"a column that the table is partitioned by; {copy}": name in _partition_sources(snapshot),
        f"a column of the index {next(iter(indexes), '')!r}; declare the table without that first": bool(indexes),
        "named in bloom_filters; declare the table without it there first": name in config.bloom_filters,
        "named in map_columns, by which patches merge it; put whole rows of another column": name in config.map_columns,
        "filled from the names of landed files; declare another pattern first": (
            pattern is not None and name in captured_columns(pattern)
        ),
        "in the sort schema; declare another one first": name in bind(config, snapshot.schema).described,
    }
    used = next((use for use, is_used in uses.items() if is_used), None)
    if used is None and name in _sorted_by(snapshot):
        used = "in the sort schema of older splits. Rewrite them with `tidemark compact NAME --resort`"
    if used is not None:
        raise InvalidInput(f"column {name!r} cannot be {change}: it is {used}", column=name)


def _partition_sources(snapshot: Snapshot) -> set[str]:
    return {*snapshot.metadata.partitionColumns, *(each.column for each in snapshot.config.partition_fields)}


def _sorted_by(snapshot: Snapshot) -> set[str]:
    """The columns that live splits are sorted by. Reads every manifest."""
    texts = pc.unique(snapshot.splits.table().column("sortSchema")).drop_null().to_pylist()
    orders = (recorded_order(text, snapshot.config, snapshot.schema) for text in texts)
    return {name for order in orders if order is not None for name in order.described}


def declared_changes(name: str, declared: pa.Schema, found: pa.Schema, *, follows: bool = False) -> list[ColumnChange]:
    """Return the changes that make the columns of a table those that its declaration has: added and widened ones.

    The order of columns is the table's. One that `follows` a source may have more columns, and wider ones.
    Raises `InvalidInput` for what a declaration does not change, saying what does.
    """
    alter, changes = f"`tidemark alter {name}", list[ColumnChange]()
    for field in declared:
        own = found.field(field.name) if field.name in found.names else None
        if own is None and field.nullable:
            changes.append(add_column(field.name, field.type))
        elif own is None:
            raise _undeclared(name, field, "it is new and required: declare it nullable")
        elif own.nullable != field.nullable:
            advice = f"run {alter} relax-column {field.name}`" if field.nullable else "declare it nullable"
            raise _undeclared(name, field, f"it is {_nullability(own)} in the table: {advice}")
        elif follows and may_widen(field.type, own.type):
            continue
        elif own.type != field.type and not may_widen(own.type, field.type):
            raise _undeclared(name, field, f"it is {type_text(own.type)} in the table: add a column of the other type")
        elif own.type != field.type:
            changes.append(widen_column(field.name, field.type))
    gone = next((each for each in found if each.name not in declared.names), None)
    if gone is not None and not follows:
        do = f"run {alter} drop-column {gone.name}` or {alter} rename-column {gone.name} …`"
        raise _undeclared(name, gone, f"it is in the table and not declared: {do}")
    return changes


def _undeclared(name: str, field: pa.Field, why: str) -> InvalidInput:
    message = (
        f"the declaration of {name!r} differs from the existing table in columns: {field.name!r} cannot follow, {why}"
    )
    return InvalidInput(message, changed=["columns"], column=field.name)


def _nullability(field: pa.Field) -> str:
    return "nullable" if field.nullable else "required"


def change_column(log: TransactionLog, snapshot: Snapshot, change: ColumnChange) -> Snapshot:
    """Commit the change as a version of its own and return what then is newest; nothing where it is made already.

    Raises `InvalidInput` for a change that this table cannot have, saying why and what to do, and `CommitConflict` when
    others keep changing the table's settings; nothing is committed then. Requests: those of `log.refresh`, and of a
    commit.
    """

    def attempt(head: Snapshot) -> Snapshot:
        changed = altered(head, change)
        if changed is None:
            return head
        metrics = {"column": change.column}
        return log.commit(head, [changed.metadata], operation=change.operation, metrics=metrics).snapshot

    return replanned(log, log.refresh(snapshot), attempt)


def altered(snapshot: Snapshot, change: ColumnChange) -> Snapshot | None:
    """Return the snapshot as it will be with the change; None where it is made already. Raises as `change_column`."""
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


def _new(field: pa.Field, number: int, taken: Collection[str]) -> pa.Field:
    """A column that is added, with its id, under a name in splits that no column of the table ever had there."""
    folded, stored = {name.casefold() for name in taken}, str(field.name)
    while stored.casefold() in folded:
        stored = f"{stored}~{number}"
    entries = {**entries_of(field), COLUMN_ID: str(number)}
    return with_entries(field, entries if stored == field.name else {**entries, STORED_NAME: stored})


def _existing(schema: pa.Schema, name: str) -> pa.Field:
    if name not in schema.names:
        raise InvalidInput(f"there is no column {quoted(name)}; the table has {schema.names}", column=name)
    return schema.field(name)


def _with(schema: pa.Schema, field: pa.Field) -> pa.Schema:
    return schema.set(schema.get_field_index(field.name), field)


def _type(type_: ColumnType) -> pa.DataType:
    if isinstance(type_, str):
        return arrow_field("column", spark_type(type_)).type
    if not isinstance(type_, pa.DataType):
        raise InvalidInput(f"{type_!r} is no column type: give an Arrow type or the name of one, such as 'long'")
    return type_
