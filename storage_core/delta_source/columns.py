"""The columns of a table follow those of the Delta table that lands in it (decision 0158).

Added columns are added, widened ones widened, each by a commit of its own before the rows come; making it again changes
nothing. What cannot follow is refused, saying what to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from storage_core.alteration import ColumnChange, add_column, change_column, widen_column
from storage_core.delta_source.files import DeltaSchema
from storage_core.delta_source.plan import DeltaGroup
from storage_core.errors import InvalidInput
from storage_core.importing.union import as_held, require_fits
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.rows.columns import may_widen
from storage_core.rows.schema import from_schema_string
from storage_core.rows.vectors import is_vector, type_text


def columns_of(schema: DeltaSchema, where: str) -> pa.Schema:
    """Return the columns of a Delta table as a table has them. Raises `InvalidInput` for a type that none has."""
    try:
        found = from_schema_string(_without_metadata(schema.text))
    except InvalidInput as error:
        raise error.reworded(f"{where}: {error.found}; leave the column out of the Delta table that lands") from error
    return as_held(found, where)


def follow(log: TransactionLog, snapshot: Snapshot, group: DeltaGroup, where: str) -> Snapshot:
    """Give the table the columns that it lacks of the group's, and the wider types, and return what then is newest.

    Raises `InvalidInput` for a column that was renamed or dropped since, until it is in the table too, and for a type
    that the table's cannot become. Two requests and those of a commit per change, none without.
    """
    if group.before is not None:
        _require_no_renames(snapshot.schema, group.before.schema, group.table.schema, f"{where}, {group.name}")
    columns = columns_of(group.table.schema, where)
    for change in _changes(snapshot.schema, columns, f"{where}, {group.name}"):
        snapshot = change_column(log, snapshot, change)
    require_fits(columns, snapshot.schema, f"{where}, {group.name}")
    return snapshot


def _changes(own: pa.Schema, columns: pa.Schema, where: str) -> Iterator[ColumnChange]:
    names = {each.name.casefold(): each for each in own}
    for field in columns:
        held = names.get(field.name.casefold())
        if held is None:
            yield add_column(field.name, field.type)
        elif held.type != field.type and not may_widen(field.type, held.type) and not _is_list_of(held, field):
            if not may_widen(held.type, field.type):
                raise InvalidInput(
                    f"{where}: column {field.name!r} is {type_text(field.type)} in the Delta table and "
                    f"{type_text(held.type)} here, which cannot become that; land it under another name in the Delta "
                    "table, or land the Delta table in a new table",
                    column=field.name,
                )
            yield widen_column(held.name, field.type)


def _is_list_of(held: pa.Field, field: pa.Field) -> bool:
    """Whether the column is of vectors, and the Delta table has lists of the same numbers."""
    return is_vector(held.type) and pa.types.is_list(field.type) and field.type.value_type == held.type.value_type


def _require_no_renames(own: pa.Schema, before: DeltaSchema, after: DeltaSchema, where: str) -> None:
    """Raise `InvalidInput` for a column that has another name in the Delta table now, or none, and the old one here."""
    now = after.physical_names()
    for physical, name in before.physical_names().items():
        if now.get(physical) == name or name not in own.names:
            continue
        if name in now.values():  # dropped, and another one of its name added
            raise InvalidInput(
                f"{where}: column {name!r} of the Delta table is another one than before; rename or drop the one here "
                f"first: `tidemark alter NAME rename-column {name} …` or `drop-column {name}`",
                column=name,
            )
        new = now.get(physical)
        did, do = ("was dropped", f"drop-column {name}") if new is None else (f"is called {new!r} now", "")
        raise InvalidInput(
            f"{where}: column {name!r} of the Delta table {did}; change it here too, and run this again: "
            f"`tidemark alter NAME {do or f'rename-column {name} {new}'}`",
            column=name,
        )


def _without_metadata(text: str) -> str:
    """The schema without what Delta and Spark note of columns, which means nothing here."""
    schema = json.loads(text)
    for each in schema["fields"]:
        each["metadata"] = {}
    return json.dumps(schema)
