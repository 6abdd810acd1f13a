"""The order of rows: the sort schema language, its columns in a table, and the sort itself.

**Sort schemas.** A sort schema contains the columns of the order, with their directions. A sort schema may also contain
columns that only have statistics:

    [name=]column|…[|&column…]|timestamp[|tiebreaker]/V2[ nulls first| nulls last]
    column = [+|-]name[__type] | name[__type][+|-] | name[__type][:dense-type]:(+|-)

The suffixes `__s`, `__i` and `__nf` are string, int64 and float64. Any suffix other than `__s`, `__i` and `__nf` is a
part of the column name. `&` marks the cutoff. The columns between the cutoff and the timestamp have statistics, but
rows are not compared by these columns. The timestamp column is always compared, with the newest time first. A
tiebreaker after the timestamp is also compared. The time column may have its own name instead of `timestamp`. Nulls are
last in both directions, unless the schema ends with `nulls first`. See "Sort schema" in
docs/architecture/compaction.md. Tidemark extends the language in two ways. A sort schema can set the position of nulls
(decision 0006), and it can give the time column its own name (docs/architecture/compaction.md).

**Sorting.** The sort is stable and total, and fast on presorted runs (step 1). Columns become integer codes
(`rows.codes`). Neighboring codes are packed into 64-bit keys (`rows.keys`), and the keys are sorted stably. In a
compaction, for example, the rows consist of presorted parts. Each doubling of the number of parts then costs one more
merge pass.

**`timeseries_id`.** This column contains one number for each series of points. In the sort order, `timeseries_id` comes
before the timestamp and keeps each series together. A metric name, a type and tags together identify a series. The
columns of a series are recognized by name: `metric_name` (text), `metric_type` (a whole number from 0 to 255), and the
tags. A missing `metric_type` is 0. The tags are all other string columns, except the columns of the value and the time.
If a row has no value for a tag, this tag is not a part of the row's series.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.text import repeated, unknown_names
from storage_core.data.rows.codes import Coding, Unsigned, codes, coding, nulls_before
from storage_core.data.rows.hashes import siphash_2_4
from storage_core.data.rows.keys import dense_ranks, pack, sorted_order
from storage_core.data.rows.vectors import type_text
from storage_core.data.settings.table import TableConfig

# Sort schemas.

ColumnType = Literal["string", "int64", "float64"]

TIMESTAMP_NAMES = frozenset({"timestamp", "timestamp_secs"})
TIEBREAKER = "tiebreaker"
SERIES = "timeseries_id"
LEAST_VERSION = 2
_NULLS_FIRST = " nulls first"
_NULLS_LAST = " nulls last"

_TYPE_BY_SUFFIX: Mapping[str, ColumnType] = {"s": "string", "i": "int64", "nf": "float64"}
_SUFFIX_BY_TYPE: Mapping[ColumnType, str] = {type_: suffix for suffix, type_ in _TYPE_BY_SUFFIX.items()}
_TYPE_BY_LONG_NAME: Mapping[str, ColumnType] = {f"dense-{type_}": type_ for type_ in _SUFFIX_BY_TYPE}
_DEFAULT_TYPES: Mapping[str, ColumnType] = {
    "timestamp": "int64",
    "timestamp_secs": "int64",
    "tiebreaker": "int64",
    "timeseries_id": "int64",
    "metric_value": "float64",
    "value": "float64",
}


@dataclass(frozen=True, slots=True)
class SortColumn:
    """One column of a sort schema.

    `typed_explicitly` is True if the text contains the type and this type differs from the default.
    """

    name: str
    type: ColumnType
    typed_explicitly: bool
    descending: bool

    @property
    def text(self) -> str:
        """The canonical form, which omits a type and a direction that are the defaults for the column's name."""
        suffix = "" if self.type == _default_type(self.name) else f"__{_SUFFIX_BY_TYPE[self.type]}"
        direction = "" if self.descending == _default_descending(self.name) else ":-" if self.descending else ":+"
        return f"{self.name}{suffix}{direction}"


@dataclass(frozen=True, slots=True)
class SortSchema:
    """A parsed sort schema. `cutoff` is the index of the first column that `&` marks, or None without a cutoff."""

    name: str | None
    columns: tuple[SortColumn, ...]
    cutoff: int | None
    version: int = LEAST_VERSION
    nulls_first: bool = False

    @property
    def timestamp_index(self) -> int:
        """The position of the timestamp column, which every sort schema has."""
        return next(i for i, column in enumerate(self.columns) if column.name in TIMESTAMP_NAMES)

    @property
    def compared(self) -> tuple[SortColumn, ...]:
        """The columns that decide the order: the columns before the cutoff, the timestamp, and its tiebreaker."""
        cutoff = len(self.columns) if self.cutoff is None else self.cutoff
        return tuple(each for i, each in enumerate(self.columns) if i < cutoff or i >= self.timestamp_index)

    @property
    def text(self) -> str:
        """The canonical text. `parse_sort_schema(schema.text)` is equivalent to the schema and has the same text."""
        columns = [column.text for column in self.columns]
        if self.cutoff == 0:
            # No column is compared before the timestamp. An order that begins with the timestamp needs the older form
            # of a sort schema, with `&` after the timestamp.
            statistics, compared = columns[: self.timestamp_index], columns[self.timestamp_index :]
            body = f"{'|'.join(compared)}&{'|'.join(statistics)}"
        else:
            body = "|".join(f"&{text}" if i == self.cutoff else text for i, text in enumerate(columns))
        name = "" if self.name is None else f"{self.name}="
        return f"{name}{body}/V{self.version}{_NULLS_FIRST if self.nulls_first else ''}"


def parse_sort_schema(text: str, time_column: str | None = None) -> SortSchema:
    """Return the parsed schema.

    The older form `…|timestamp&column/V2` is accepted, too. In this older form, the columns after `&` only have
    statistics. In the parsed schema, the columns that only have statistics are between the cutoff and the timestamp.

    Args:
        text: The sort schema.
        time_column: The column that is used as the timestamp if no column has the name `timestamp`.

    Raises:
        InvalidInput: The text is invalid. The error quotes the text and describes the fault.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"the sort schema is {text!r}. Give a text such as service|timestamp/V2")
    try:
        named, nulls_first = _split_nulls(text)
        name, rest = _split_name(named)
        body, version = _split_version(rest)
        columns, cutoff = _split_cutoff(body if time_column is None else _with_timestamp(body, time_column))
        _check(columns)
    except InvalidInput as error:
        raise InvalidInput(f"the sort schema {text!r}: {error}", sort_schema=text) from error
    return SortSchema(name, columns, cutoff, version, nulls_first)


def equivalent(a: SortSchema, b: SortSchema) -> bool:
    """Return whether both schemas have the same columns, types, directions, cutoff, version and nulls.

    The names of the schemas are not compared.
    """
    return _meaning(a) == _meaning(b) and a.cutoff == b.cutoff


def nulls_of(recorded: str | None) -> Literal["first", "last"]:
    """Return the position of nulls in the recorded order of a split. Without a sort schema, nulls are last."""
    return "first" if recorded is not None and recorded.endswith(_NULLS_FIRST) else "last"


def _meaning(schema: SortSchema) -> tuple[int, bool, tuple[tuple[str, str, bool], ...]]:
    return schema.version, schema.nulls_first, tuple((each.name, each.type, each.descending) for each in schema.columns)


def _default_type(name: str) -> ColumnType:
    return _DEFAULT_TYPES.get(name, "string")


def _default_descending(name: str) -> bool:
    return name in TIMESTAMP_NAMES


def _split_nulls(text: str) -> tuple[str, bool]:
    if text.endswith(_NULLS_FIRST):
        return text.removesuffix(_NULLS_FIRST), True
    return text.removesuffix(_NULLS_LAST), False


def _split_name(text: str) -> tuple[str | None, str]:
    name, equals, rest = text.partition("=")
    if not equals:
        return None, text
    if "=" in rest:
        raise InvalidInput("the sort schema has more than one '='. Write '=' only after the schema name")
    if not name:
        raise InvalidInput("the name before '=' is empty. Write a name, as in byhost=host|timestamp/V2")
    return name, rest


def _split_version(text: str) -> tuple[str, int]:
    body, slash, version = text.rpartition("/")
    if not slash:
        raise InvalidInput("the sort schema has no version. End the sort schema with /V2")
    digits = version[1:]
    if version[:1] != "V" or not (digits.isascii() and digits.isdigit()):
        raise InvalidInput(f"/{version} is not a version. End the sort schema with /V2")
    if int(digits) < LEAST_VERSION:
        raise InvalidInput(f"version {version} is not supported. End it with /V2")
    return body, int(digits)


def _with_timestamp(body: str, time_column: str) -> str:
    """Return the columns. The time column gets the name `timestamp`, which the sort schema language uses."""
    tokens = re.split(r"([|&])", body)
    names = [_column_name(token) for token in tokens]
    if TIMESTAMP_NAMES.intersection(names):
        return body
    renamed = (
        t.replace(time_column, "timestamp", 1) if n == time_column else t for t, n in zip(tokens, names, strict=True)
    )
    return "".join(renamed)


def _column_name(token: str) -> str:
    try:
        return _column(token).name
    except InvalidInput:  # the same error is raised again when the columns are read
        return token


def _split_cutoff(body: str) -> tuple[tuple[SortColumn, ...], int | None]:
    before, marker, after = body.partition("&")
    if not marker:
        return _columns(before), None
    if "&" in after:
        raise InvalidInput(
            "the sort schema has more than one '&'. Keep one '&', which applies to all columns after the '&'"
        )
    if not before:
        raise InvalidInput("'&' is on the first column, which leaves no column to compare. Move the '&' to the right")
    if before.endswith("|"):
        head = _columns(before[:-1])
        return head + _columns(after), len(head)
    return _columns_of_older_form(_columns(before), _columns(after))


def _columns_of_older_form(
    compared: tuple[SortColumn, ...], statistics: tuple[SortColumn, ...]
) -> tuple[tuple[SortColumn, ...], int]:
    cutoff = next((i for i, column in enumerate(compared) if column.name in TIMESTAMP_NAMES), None)
    if cutoff is None:
        raise InvalidInput("'&' is inside a column name. Write the '&' before a column, or after the timestamp")
    return compared[:cutoff] + statistics + compared[cutoff:], cutoff


def _columns(text: str) -> tuple[SortColumn, ...]:
    return tuple(_column(token) for token in text.split("|"))


def _column(token: str) -> SortColumn:
    match token.split(":"):
        case [named]:
            long_type, colon_direction = None, None
        case [named, colon_direction]:
            long_type = None
        case [named, long_type, colon_direction]:
            pass
        case _:
            raise InvalidInput(f"column {token!r} has more than name, type and direction. Remove the rest")
    full_name, direction = _split_direction(token, named, colon_direction)
    name, type_ = _split_type(token, full_name, long_type)
    if not name:
        raise InvalidInput("a column has no name. Write a name between two '|'")
    return SortColumn(
        name=name,
        type=type_ or _default_type(name),
        typed_explicitly=type_ is not None,
        descending=_default_descending(name) if direction is None else direction == "-",
    )


def _split_direction(token: str, named: str, colon_direction: str | None) -> tuple[str, str | None]:
    found = [] if colon_direction is None else [colon_direction]
    if named[:1] in ("+", "-"):
        found.append(named[0])
        named = named[1:]
    if named[-1:] in ("+", "-"):
        found.append(named[-1])
        named = named[:-1]
    if len(found) > 1:
        raise InvalidInput(f"column {token!r} gives its direction twice. Give it once")
    if found and found[0] not in ("+", "-"):
        raise InvalidInput(f"column {token!r} has the direction {found[0]!r}. Use + or -")
    return named, found[0] if found else None


def _split_type(token: str, full_name: str, long_type: str | None) -> tuple[str, ColumnType | None]:
    name, separator, suffix = full_name.rpartition("__")
    short = _TYPE_BY_SUFFIX.get(suffix) if separator else None
    if long_type is None:
        return (name, short) if short else (full_name, None)
    written = _TYPE_BY_LONG_NAME.get(long_type)
    if written is None:
        raise InvalidInput(f"column {token!r} has the type {long_type!r}. Use one of {', '.join(_TYPE_BY_LONG_NAME)}")
    if short is not None and short != written:
        raise InvalidInput(
            f"column {token!r} has the type {short} in its suffix, but also the type {written}. Keep one of these types"
        )
    return (name if short else full_name), written


def _check(columns: tuple[SortColumn, ...]) -> None:
    names = [column.name for column in columns]
    if twice := sorted(repeated(names)):
        raise InvalidInput(f"the columns {twice} occur more than once. Name each column once")
    stamps = [i for i, name in enumerate(names) if name in TIMESTAMP_NAMES]
    if len(stamps) != 1:
        raise InvalidInput(
            "the sort schema needs exactly one timestamp column. End the columns with |timestamp or |NAME of "
            "the time column"
        )
    stamp = columns[stamps[0]]
    if not stamp.descending or stamp.type != "int64":
        raise InvalidInput(
            f"the timestamp column {stamp.name!r} always has the newest first. Write only the name of the "
            "column, without a direction or a type"
        )
    behind = names[stamps[0] + 1 :]
    if behind not in ([], [TIEBREAKER]):
        raise InvalidInput(
            f"{behind} come after the timestamp, where only {TIEBREAKER!r} is allowed. Move these columns "
            "before the timestamp"
        )
    if SERIES in names:
        tags = names[names.index(SERIES) + 1 : stamps[0]]
        if tags:
            raise InvalidInput(
                f"{tags} come after {SERIES!r}, which already means all tags. Move these tags before {SERIES!r}"
            )


# The order of a table.

TIME_ONLY = "timestamp/V2"


@dataclass(frozen=True, slots=True)
class OrderColumn:
    """One column that the order compares, with its name in the table. Nulls are last unless `nulls_first`."""

    name: str
    descending: bool
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The columns that decide the order, most significant first. The position of nulls is independent of the direction.

    `statistics` contains the columns that the sort schema lists after the cutoff. Splits store statistics of the
    columns after the cutoff, but rows are not sorted by these columns. `text` is the text in the metadata of splits.
    The text is the canonical sort schema, or `key(a,b)` for the order by primary key. The text is empty if rows have no
    order. If two splits have an equal `text`, their rows have the same order.
    """

    columns: tuple[OrderColumn, ...]
    text: str
    statistics: tuple[str, ...] = ()

    @property
    def described(self) -> frozenset[str]:
        """The columns in the sort schema. For a sort schema column, a split stores more statistics than the bounds."""
        return frozenset((*(each.name for each in self.columns), *self.statistics))

    def present(self, names: Collection[str]) -> SortOrder:
        """Return the order with only the columns that are in `names`.

        A missing column contains only nulls, so it does not affect the order.
        """
        return replace(self, columns=tuple(each for each in self.columns if each.name in names))


def bind(config: TableConfig, schema: pa.Schema) -> SortOrder:
    """Return the order of a table with this configuration and schema.

    `timestamp` in a sort schema is the table's time column. The sort schema may also contain the time column's own
    name. Without a sort schema, the rows are ordered by time. In a table without a time column, the rows are ordered by
    primary key, or not at all.

    The function checks the types that the sort schema contains. The canonical form may omit a type. Therefore call
    `bind` with the user's text before the canonical form is stored.

    Raises:
        InvalidInput: The table lacks a column, a type has no order, a type in the sort schema contradicts the table, or
            the time column is not a timestamp.
    """
    if config.time_column is not None:
        _check_time_column(schema, config.time_column)
        return _bind_sort_schema(config.sort_schema or TIME_ONLY, config.time_column, schema)
    if config.sort_schema is not None:
        raise InvalidInput(
            f"the sort schema {config.sort_schema!r} orders by time, but the table has no time column. Name one",
            sort_schema=config.sort_schema,
        )
    for name in config.primary_key:
        _check_orderable(_field(schema, name, "the primary key"))
    columns = tuple(OrderColumn(name, descending=False) for name in config.primary_key)
    return SortOrder(columns, f"key({','.join(config.primary_key)})" if columns else "")


def nameless(text: str) -> str:
    """Return a recorded sort schema without its name. Return a text unchanged if it is not a sort schema."""
    try:
        return replace(parse_sort_schema(text), name=None).text
    except InvalidInput:
        return text


def recorded_order(text: str, config: TableConfig, schema: pa.Schema) -> SortOrder | None:
    """Return the order in which a split was written. Return None if the table no longer has the columns.

    A split keeps its own sort schema, even if the table has another sort schema now.
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
    parsed = parse_sort_schema(text, time_column)
    names: dict[str, SortColumn] = {}
    for column in parsed.columns:
        name = time_column if column.name in TIMESTAMP_NAMES else column.name
        field = _field(schema, name, f"the sort schema {text!r}")
        _check_orderable(field)
        _check_type(column, field, text)
        if name in names:
            raise InvalidInput(
                f"the sort schema {text!r} contains the time column {name!r} twice. Write the time column only "
                "as the timestamp",
                column=name,
            )
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
        raise InvalidInput(unknown_names("column", [name], schema.names, where=where), column=name)
    return schema.field(index)


def _check_time_column(schema: pa.Schema, name: str) -> None:
    field = _field(schema, name, "the time column setting")
    if not pa.types.is_timestamp(field.type):
        raise InvalidInput(
            f"time_column is {name!r}, which has the type {field.type}. Name a column of the type timestamp",
            column=name,
        )


def _check_orderable(field: pa.Field) -> None:
    if pa.types.is_nested(field.type):
        raise InvalidInput(
            f"the column {field.name!r} of type {type_text(field.type)} has no order. Leave the column out of "
            "the sort schema"
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
            f"the sort schema {text!r} declares {field.name!r} as {column.type}, but the column has the type "
            f"{field.type}. Correct the type",
            column=field.name,
        )


# Sorting.


def sort_indices(table: pa.Table, order: SortOrder) -> npt.NDArray[np.int64]:
    """Return the row numbers of `table` in sorted order. Equal rows keep their order.

    Without order columns, the rows keep their order. Raises `InvalidInput` for a column that has no order.
    """
    if not order.columns:
        return np.arange(table.num_rows, dtype=np.int64)
    return sorted_order(_keys(table, order))


def is_sorted(table: pa.Table, order: SortOrder) -> bool:
    """Return whether the rows of `table` are sorted by `order`. The time is linear in the number of rows."""
    undecided = np.ones(max(table.num_rows - 1, 0), np.bool_)
    for key in _keys(table, order):
        if np.any(undecided & (key[1:] < key[:-1])):
            return False
        undecided &= key[1:] == key[:-1]
    return True


def ranks(column: pa.ChunkedArray, descending: bool = False) -> npt.NDArray[np.int64]:  # noqa: FBT001, FBT002 - reads as SQL's DESC
    """Return the dense rank of every value among the column's distinct values, from 0. Null has the last rank.

    Ranks have the same order as the values. With `descending`, all ranks except the rank of null are reversed.
    """
    return dense_ranks([codes(column, descending=descending).values])


def _keys(table: pa.Table, order: SortOrder) -> list[Unsigned]:
    return pack([key_coding(table.column(each.name), each) for each in order.columns], table.num_rows)


def key_coding(column: pa.ChunkedArray, each: OrderColumn) -> Coding:
    """Return codes that order the rows by this column of a sort schema, with its direction and null position."""
    found = coding(column, descending=each.descending)
    return nulls_before(found) if each.nulls_first else found


# Series ids.

METRIC_NAME: Final = "metric_name"
METRIC_TYPE: Final = "metric_type"
NO_TAGS: Final = frozenset({"start_timestamp_secs", "sum", "timestamp", "timestamp_secs", "value"})

_END: Final = b"\xff"
"""A byte that no UTF-8 text contains."""


def with_series(rows: pa.Table, order: SortOrder) -> pa.Table:
    """Return the rows with a computed `timeseries_id` in place of null. If the order lacks this column, change nothing.

    The function computes ids only if the column has the type int64. Raises `InvalidInput` for a metric type outside 0
    to 255.
    """
    at = rows.schema.get_field_index(SERIES)
    if at < 0 or SERIES not in order.described:
        return rows
    column = rows.column(at)
    if not column.null_count or not pa.types.is_int64(column.type):
        return rows
    missing = column.is_null()
    computed = pc.replace_with_mask(column.combine_chunks(), missing.combine_chunks(), _ids(rows.filter(missing)))
    return rows.set_column(at, rows.schema.field(at), pa.chunked_array([computed]))


def series_ids(series: Sequence[tuple[str, int, Mapping[str, str]]]) -> npt.NDArray[np.int64]:
    """Return the id of every series. A series is given as metric name, type and tags."""
    return siphash_2_4([_message(name, type_, tags) for name, type_, tags in series])


def _ids(rows: pa.Table) -> pa.Array:
    """Return the id of every row. Each series is hashed once."""
    names = _identifying(rows.schema)
    ranks = dense_ranks(pack([codes(rows.column(name)) for name in names], rows.num_rows))
    _, first = np.unique(ranks, return_index=True)
    # If no column identifies a series, all rows belong to one series, but `to_pylist` would return an empty list.
    distinct = rows.select(names).take(pa.array(first)).to_pylist() if names else [{}]
    return pa.array(series_ids([_series(each) for each in distinct])[ranks])


def _identifying(schema: pa.Schema) -> list[str]:
    texts = [field.name for field in schema if pa.types.is_string(field.type) and field.name not in NO_TAGS]
    return [METRIC_TYPE, *texts] if _is_typed(schema) else texts


def _is_typed(schema: pa.Schema) -> bool:
    return METRIC_TYPE in schema.names and bool(pa.types.is_integer(schema.field(METRIC_TYPE).type))


def _series(row: dict[str, Any]) -> tuple[str, int, dict[str, str]]:
    type_ = row.pop(METRIC_TYPE) if isinstance(row.get(METRIC_TYPE), int) else 0
    if not 0 <= type_ <= 0xFF:
        raise InvalidInput(
            f"{METRIC_TYPE} is {type_}, but {SERIES} needs a number from 0 to 255. Give a number in this range"
        )
    name = row.pop(METRIC_NAME, None) or ""
    return name, type_, {key: value for key, value in row.items() if value is not None}


def _message(name: str, type_: int, tags: Mapping[str, str]) -> bytes:
    texts = (text.encode() + _END for key in sorted(tags) for text in (key, tags[key]))
    return name.encode() + _END + bytes([type_]) + b"".join(texts)
