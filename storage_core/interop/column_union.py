"""The union of slightly different file schemas, and the conversion of rows to this schema (decision 0033).

Columns are joined by name, regardless of upper and lower case. The columns are in the order of their first occurrence.
A column is nullable if a file lacks the column or the column may contain nulls. Types are widened only if the type of a
column in a table may be widened in this way (`rows.columns.may_widen`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.columns import may_widen
from storage_core.data.rows.conform import conform
from storage_core.data.rows.schema import require_new_columns, table_type, to_schema_string
from storage_core.data.rows.values import TYPED_KEYS, has_untyped_keys, leaf_types, validated
from storage_core.data.rows.vectors import type_text

_TO_DO = "Convert the files to one type, declare a type that fits both, or import a query that casts the column"


@dataclass(slots=True)
class Union:
    """The columns of the files that were added so far.

    `first` maps the lower-case name of each column to the file that determined its type.
    """

    fields: dict[str, pa.Field] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _schemas: int = 0

    def add(self, schema: pa.Schema, where: str) -> None:
        """Add the columns of one more file.

        Raises `InvalidInput` naming the file, the column and both types if the types cannot be joined.
        """
        held = as_held(schema, where)
        self._schemas += 1
        for each in held:
            name = each.name.casefold()
            known = self.fields.get(name)
            self._counts[name] = self._counts.get(name, 0) + 1
            if known is None:
                self.fields[name], self.first[name] = each, where
                continue
            type_ = _joined(known.type, each.type)
            if type_ is None:
                raise InvalidInput(
                    f"{where}: column {each.name!r} has the type {type_text(each.type)}, and {type_text(known.type)} "
                    f"in {self.first[name]}. {_TO_DO}",
                    file=where,
                    column=each.name,
                )
            if type_ != known.type:
                self.first[name] = where
            self.fields[name] = pa.field(known.name, type_, nullable=known.nullable or each.nullable)

    def schema(self) -> pa.Schema:
        """Return the columns of all files, as columns of a table.

        Raises `InvalidInput` naming a column with an unsupported type, and its file.
        """
        for name, each in self.fields.items():
            where = self.first[name]
            if _has_untyped_part(each.type):
                raise InvalidInput(
                    f"{where}: column {each.name!r} has no type in any file, because all values of it or of one of "
                    "its fields are null. Declare the table with a type, or leave the column out with a query.",
                    file=where,
                    column=each.name,
                )
        return pa.schema(
            [
                each.with_nullable(each.nullable or self._counts[name] < self._schemas)
                for name, each in self.fields.items()
            ]
        )


def as_held(schema: pa.Schema, where: str) -> pa.Schema:
    """Return the columns with the types that a table stores.

    Raises `InvalidInput` for an unsupported type, and for two columns with one name. The error contains the column and
    `where`.
    """
    try:
        require_new_columns(schema)
    except InvalidInput as error:
        raise error.reworded(f"{where}: {error.found}", file=where) from error
    for each in schema:
        if has_untyped_keys(each.type):
            raise InvalidInput(
                f"{where}: column {each.name!r} contains a map with untyped keys. {TYPED_KEYS}",
                file=where,
                column=each.name,
            )
    held = pa.schema([pa.field(each.name, table_type(each.type)).with_nullable(each.nullable) for each in schema])
    try:
        to_schema_string(pa.schema([each for each in held if not _has_untyped_part(each.type)]))
    except InvalidInput as error:
        raise error.reworded(f"{where}: {error.found}", file=where) from error
    folded = [name.casefold() for name in held.names]
    if len({*folded}) < len(folded):
        twice = next(name for name in held.names if folded.count(name.casefold()) > 1)
        raise InvalidInput(
            f"{where}: two columns have the name {twice!r}, ignoring case. Leave one of these columns out with a query",
            file=where,
            column=twice,
        )
    return held


def require_fits(given: pa.Schema, schema: pa.Schema, where: str) -> None:
    """Raise `InvalidInput` if the types show that rows with these columns cannot become rows of a table.

    The error contains the column and `where`. The fault is a column that the table does not have, a missing required
    column, or a type whose values do not fit.
    """
    try:
        fitted(pa.Table.from_batches([], schema=given), schema)
    except InvalidInput as error:
        raise error.reworded(f"{where}: {error.found}", file=where) from error
    given_names = {name.casefold() for name in given.names}
    lacking = [each.name for each in schema if not each.nullable and each.name.casefold() not in given_names]
    if lacking:
        raise InvalidInput(
            f"{where}: the column {lacking[0]!r} is missing, which the table requires. Make the column optional, or "
            "fill it with a query",
            file=where,
            column=lacking[0],
        )


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with exactly this schema. Columns are joined by name, regardless of upper and lower case.

    Raises the errors of `conform`, and `InvalidInput` for a value that is not valid for its type.
    """
    rows = validated(rows)
    names = {each.name.casefold(): each for each in schema}
    named = rows.rename_columns([_name(each, names) for each in rows.column_names])
    columns = [_widened(named.column(each), names.get(each.casefold())) for each in named.column_names]
    return conform(pa.table(columns, names=named.column_names), schema)


def _name(name: str, names: Mapping[str, pa.Field]) -> str:
    found = names.get(name.casefold())
    return name if found is None else str(found.name)


def _widened(column: pa.ChunkedArray, target: pa.Field | None) -> pa.ChunkedArray:
    """Convert dates to timestamps. Only an import converts rows in this way."""
    widens = target is not None and pa.types.is_date32(column.type) and may_widen(column.type, target.type)
    return column.cast(target.type) if target is not None and widens else column


def _joined(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return a type that can store the values of both types, or None."""
    if first == second or pa.types.is_null(second) or may_widen(second, first):
        return first
    return second if pa.types.is_null(first) or may_widen(first, second) else _joined_inside(first, second)


def _joined_inside(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return a type that can store the values of both nested types.

    The types may differ only in parts that contain only nulls.
    """
    if not (_has_untyped_part(first) or _has_untyped_part(second)):
        return None
    kinds = pa.types
    if kinds.is_list(first) and kinds.is_list(second):
        element = _joined_inside_of(first.value_type, second.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if kinds.is_map(first) and kinds.is_map(second):
        key = _joined_inside_of(first.key_type, second.key_type)
        item = _joined_inside_of(first.item_type, second.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if not kinds.is_struct(first) or not kinds.is_struct(second):
        return None
    if [each.name for each in first.fields] != [each.name for each in second.fields]:
        return None
    inside = [_joined_inside_of(a.type, b.type) for a, b in zip(first.fields, second.fields, strict=True)]
    fields = [each.with_type(type_) for each, type_ in zip(first.fields, inside, strict=True) if type_ is not None]
    return pa.struct(fields) if len(fields) == len(inside) else None


def _joined_inside_of(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    if first == second or pa.types.is_null(second):
        return first
    return second if pa.types.is_null(first) else _joined_inside(first, second)


def _has_untyped_part(type_: pa.DataType) -> bool:
    """Return whether the type, or a type inside it, is `null`."""
    return any(pa.types.is_null(each) for each in leaf_types(type_))
