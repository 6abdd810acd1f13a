"""The order of the rows of one table: a sort schema bound to the columns that the table has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.rows import sort_schema
from storage_core.rows.sort_schema import TIMESTAMP_NAMES, ColumnType, SortColumn
from storage_core.rows.vectors import type_text
from storage_core.settings.table import TableConfig

TIME_ONLY = "timestamp/V2"


@dataclass(frozen=True, slots=True)
class OrderColumn:
    """One column that is compared, under its name in the table. Nulls are last unless `nulls_first`."""

    name: str
    descending: bool
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The columns that decide the order, most significant first. Where nulls are does not depend on the direction.

    `statistics` are the columns behind the cutoff, described by splits and not compared. `text` is what splits
    record: the canonical sort schema, `key(a,b)` for order by primary key, empty for no order. Splits of equal text are
    ordered alike.
    """

    columns: tuple[OrderColumn, ...]
    text: str
    statistics: tuple[str, ...] = ()

    @property
    def described(self) -> frozenset[str]:
        """The columns that a split describes by more than bounds: all that the sort schema names."""
        return frozenset((*(each.name for each in self.columns), *self.statistics))

    def present(self, names: Collection[str]) -> SortOrder:
        """Return the order without columns that are not among `names`: a missing one is all null and orders nothing."""
        return replace(self, columns=tuple(each for each in self.columns if each.name in names))


def bind(config: TableConfig, schema: pa.Schema) -> SortOrder:
    """Return the order of a table with this configuration and schema.

    `timestamp` in a sort schema means the table's time column, which may stand there under its own name as well.
    Without a sort schema the order is by time, else by primary key, else none. Raises `InvalidInput` for a column that
    the table lacks, a type that has no order, a type written in the sort schema that contradicts the table, and a time
    column that is not a timestamp.
    Types are checked as they are written: bind the text that the user gave before storing its canonical form.
    """
    if config.time_column is not None:
        _check_time_column(schema, config.time_column)
        return _bind_sort_schema(config.sort_schema or TIME_ONLY, config.time_column, schema)
    if config.sort_schema is not None:
        raise InvalidInput(
            f"the sort schema {config.sort_schema!r} orders by time, but the table has no time column; name one",
            sort_schema=config.sort_schema,
        )
    for name in config.primary_key:
        _check_orderable(_field(schema, name, "the primary key"))
    columns = tuple(OrderColumn(name, descending=False) for name in config.primary_key)
    return SortOrder(columns, f"key({','.join(config.primary_key)})" if columns else "")


def nameless(text: str) -> str:
    """Return a recorded sort schema without its name; orders by key, or none at all, have no name."""
    try:
        return replace(sort_schema.parse(text), name=None).text
    except InvalidInput:
        return text


def recorded_order(text: str, config: TableConfig, schema: pa.Schema) -> SortOrder | None:
    """Return the order that a split was written in, whatever the table's is now; None when it no longer binds.

    Splits keep the sort schema they were written with, but a column it names may have left the table since.
    """
    current = bind(config, schema)
    if nameless(current.text) == nameless(text):
        return current
    try:
        order = bind(replace(config, sort_schema=nameless(text)), schema)
    except InvalidInput:
        return None
    return order if nameless(order.text) == nameless(text) else None


def _bind_sort_schema(text: str, time_column: str, schema: pa.Schema) -> SortOrder:
    parsed = sort_schema.parse(text, time_column)
    names: dict[str, SortColumn] = {}
    for column in parsed.columns:
        name = time_column if column.name in TIMESTAMP_NAMES else column.name
        field = _field(schema, name, f"the sort schema {text!r}")
        _check_orderable(field)
        _check_type(column, field, text)
        if name in names:
            raise InvalidInput(f"the sort schema {text!r} orders by {name!r} twice: it is the timestamp", column=name)
        names[name] = column
    compared = set(parsed.compared)
    order = tuple(
        OrderColumn(name, column.descending, parsed.nulls_first) for name, column in names.items() if column in compared
    )
    statistics = tuple(name for name, column in names.items() if column not in compared)
    return SortOrder(order, parsed.text, statistics)


def _field(schema: pa.Schema, name: str, where: str) -> pa.Field:
    index = schema.get_field_index(name)
    if index < 0:
        raise InvalidInput(f"{where} names the column {name!r}; the table has {schema.names}", column=name)
    return schema.field(index)


def _check_time_column(schema: pa.Schema, name: str) -> None:
    field = _field(schema, name, "the time column setting")
    if not pa.types.is_timestamp(field.type):
        raise InvalidInput(f"the time column {name!r} has the type {field.type}; it must be a timestamp", column=name)


def _check_orderable(field: pa.Field) -> None:
    if pa.types.is_nested(field.type):
        raise InvalidInput(
            f"the column {field.name!r} of type {type_text(field.type)} has no order; leave it out of the sort"
        )


def _is_whole(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_timestamp(type_) or pa.types.is_date(type_))


_FITS: Mapping[ColumnType, Callable[[pa.DataType], bool]] = {
    "string": pa.types.is_string,
    "int64": _is_whole,
    "float64": pa.types.is_floating,
}


def _check_type(column: SortColumn, field: pa.Field, text: str) -> None:
    if column.typed_explicitly and not _FITS[column.type](field.type):
        raise InvalidInput(
            f"the sort schema {text!r} says that {field.name!r} is {column.type}, the table says {field.type}",
            column=field.name,
        )
