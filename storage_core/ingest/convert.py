"""Text fields to typed columns: every value converts exactly, or its row is named with the reason.

One SQL statement over the whole block, run by DuckDB in UTC. DuckDB's own casts forgive too much for data that cannot
be asked for again (1.5 becomes 2, 0x1f becomes 31, infinity becomes a time), so each type first admits only text of
its own form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from storage_core.engine.session import session
from storage_core.engine.types import sql_type
from storage_core.errors import InvalidInput
from storage_core.rows.calendar import BEYOND
from storage_core.rows.vectors import NOT_FINITE, NULL_INSIDE, ZERO, is_vector, type_text
from storage_core.settings.query import LONGEST_QUERY_SECONDS, QueryLimits
from storage_core.system_errors import out_of_memory

CONVERSION = QueryLimits(seconds=LONGEST_QUERY_SECONDS, memory_bytes=2**31)
"""What the conversion of a piece of a file may use, as DuckDB counts it: a line of 60 MB takes more than half of it."""

_INTEGER_FORM = "[+-]?[0-9]+"
_FLOAT_FORM = r"(?i)[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?|nan"
_VECTOR_FORM = r"(?i)\s*\[\s*(({number})(\s*,\s*({number}))*)?\s*\]\s*".replace(
    "{number}", f"{_FLOAT_FORM.removeprefix('(?i)')}|null"
)
_INFINITE_FORM = r"(?i)[+-]?inf(inity)?"
_DATE_FORM = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK_FORM = r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0*)?)?"
_ZONE_FORM = " ?(Z|z|[+-][0-9]{2}(:?[0-9]{2})?)"
_NO_TIME = (
    (r"\s*[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*", "which is text such as 2026-01-01T10:00:00Z and not a number"),
    (
        rf"{_DATE_FORM}[T ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}\.[0-9]{{7,}}({_ZONE_FORM})?",
        "which has at most 6 digits after the second",
    ),
)
"""Texts that are times to other programs, and why they are none here."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """What text must become, and how it reads: the time column, its strptime format, and the words for null.

    `nonzero` are the vectors that must not be zero.
    """

    schema: pa.Schema
    time_column: str | None = None
    time_format: str | None = None
    null_values: tuple[str, ...] = ()
    nonzero: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Converted:
    """As many rows as went in, of the table's schema; `reasons` holds why a row does not fit, null where it does."""

    rows: pa.Table
    reasons: pa.StringArray


def convert(raw: pa.Table, target: RowFormat) -> Converted:
    """Convert columns of strings to the schema; a column that `raw` lacks is null, one that the schema lacks an error.

    Columns of maps are taken as they are. Empty text is no value for any type but string. A time without a zone is UTC.
    A row that lacks a required value, or has one not of its column's type, gets a reason that names the first such
    column in schema order.
    Raises `InvalidInput` for an unknown column, a type that text cannot hold, and a time format that is none, and
    DuckDB's own error for want of memory.
    """
    unknown = sorted(set(raw.column_names) - set(target.schema.names))
    if unknown:
        raise InvalidInput(f"{', '.join(unknown)} is not a column of the table", columns=unknown)
    with session(CONVERSION, threads=1) as connection:
        connection.register("raw", raw)
        try:
            table = connection.sql(_statement(raw.schema, target)).to_arrow_table()
        except duckdb.Error as error:
            if out_of_memory(error):  # which says nothing of the format
                raise
            problem = str(error).splitlines()[0]
            what = "the text cannot be converted"
            if target.time_format is not None:
                what = f"time_format {target.time_format!r} cannot be used"
            raise InvalidInput(f"{what}: {problem}") from error
    last = table.num_columns - 1  # by its place: a column of the table may have any name
    return Converted(table.remove_column(last), table.column(last).combine_chunks())


def _statement(present: pa.Schema, target: RowFormat) -> str:
    """Three projections: `c<i>` is column i with the words for null taken out, `t<i>` typed, then names and reason."""
    schema = target.schema
    maps = {field.name for field in present if pa.types.is_map(field.type)}
    clean = [_clean(field, present, target) for field in schema]
    typed = [
        f"c{index}" if field.name in maps else _typed(f"c{index}", field, target) for index, field in enumerate(schema)
    ]
    cases = [case for index, field in enumerate(schema) for case in _reasons(index, field, target)]
    named = [f"t{index} AS {_quoted(field.name)}" for index, field in enumerate(schema)]
    reason = f"CASE {' '.join(cases)} END" if cases else "NULL"
    # Names and literals are quoted by `_quoted` and `_literal`; values never become part of the statement.
    return (
        f"WITH clean AS (SELECT {', '.join(f'{each} AS c{index}' for index, each in enumerate(clean))} FROM raw), "  # noqa: S608
        f"typed AS (SELECT *, {', '.join(f'{each} AS t{index}' for index, each in enumerate(typed))} FROM clean) "
        f"SELECT {', '.join(named)}, ({reason})::VARCHAR AS reason FROM typed"
    )


def _clean(field: pa.Field, present: pa.Schema, target: RowFormat) -> str:
    if field.name not in present.names:
        return "NULL::VARCHAR"
    is_map = pa.types.is_map(present.field(field.name).type)
    return _quoted(field.name) if is_map else _cleaned(field, target.null_values)


def _cleaned(field: pa.Field, null_values: Sequence[str]) -> str:
    name = _quoted(field.name)
    nulls = [*null_values] if pa.types.is_string(field.type) else ["", *null_values]
    return f"CASE WHEN {name} NOT IN ({', '.join(map(_literal, nulls))}) THEN {name} END" if nulls else name


def _typed(value: str, field: pa.Field, target: RowFormat) -> str:
    if pa.types.is_timestamp(field.type) and field.name == target.time_column and target.time_format is not None:
        return f"TRY_CAST(try_strptime({value}, {_literal(target.time_format)}) AS {_sql_type(field)})"
    form = _form(field)
    if is_vector(field.type):
        return f"CASE WHEN regexp_full_match({value}, {_literal(_VECTOR_FORM)}) THEN TRY_CAST({value} AS FLOAT[]) END"
    cast = f"TRY_CAST({value} AS {_sql_type(field)})"
    if pa.types.is_floating(field.type):  # the cast makes infinity of what is too large
        cast = f"CASE WHEN NOT isinf({cast}) OR regexp_full_match({value}, {_literal(_INFINITE_FORM)}) THEN {cast} END"
    return cast if form is None else f"CASE WHEN regexp_full_match({value}, {_literal(form)}) THEN {cast} END"


def _form(field: pa.Field) -> str | None:
    """The text form that a type admits; None where the cast itself is exact."""
    types, type_ = pa.types, field.type
    if types.is_integer(type_):
        return _INTEGER_FORM
    if types.is_floating(type_):
        return _FLOAT_FORM
    if types.is_decimal(type_):
        return rf"[+-]?[0-9]+(\.[0-9]{{0,{type_.scale}}}0*)?"
    if types.is_date(type_):
        return _DATE_FORM
    if types.is_timestamp(type_):
        return f"{_DATE_FORM}({_CLOCK_FORM}" + (f"({_ZONE_FORM})?" if type_.tz else "") + ")?"
    return None


def _sql_type(field: pa.Field) -> str:
    found = sql_type(field.type)
    if found is None:
        message = f"column {field.name!r}: {field.type} has no text form; land it as Parquet"
        raise InvalidInput(message, column=field.name)
    return found


def _reasons(index: int, field: pa.Field, target: RowFormat) -> Iterator[str]:
    nonzero, formatted = target.nonzero, {target.time_column} if target.time_format else ()
    if not field.nullable:
        yield f"WHEN c{index} IS NULL THEN {_literal(f'column {field.name}: a value is required')}"
    if not pa.types.is_string(field.type):
        unread = f"t{index} IS NULL AND c{index} IS NOT NULL"
        wrong = f"column {field.name}: not a valid {_readable(field.type)}"
        if pa.types.is_timestamp(field.type) and field.name not in formatted:
            for form, why in _NO_TIME:
                known = f"regexp_full_match(c{index}, {_literal(form)})"
                yield f"WHEN {unread} AND {known} THEN {_literal(f'{wrong}, {why}')}"
        yield f"WHEN {unread} THEN {_literal(wrong)}"
    if is_vector(field.type):
        yield from _vector_reasons(f"t{index}", field, is_nonzero=field.name in nonzero)
    if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
        last = "9999-12-31" if pa.types.is_date(field.type) else "9999-12-31 23:59:59.999999"
        outside = f"NOT BETWEEN {_sql_type(field)} '0001-01-01' AND {_sql_type(field)} '{last}'"
        yield f"WHEN t{index} {outside} THEN {_literal(f'column {field.name}: {BEYOND}')}"


def _vector_reasons(vector: str, field: pa.Field, *, is_nonzero: bool) -> Iterator[str]:
    size, where = field.type.list_size, f"column {field.name}: "
    begin, end = _literal(f"{where}a vector of "), _literal(f" numbers, the table has {type_text(field.type)}")
    yield f"WHEN len({vector}) <> {size} THEN {begin} || len({vector}) || {end}"
    yield f"WHEN list_count({vector}) < {size} THEN {_literal(where + NULL_INSIDE)}"
    yield f"WHEN NOT isfinite(list_sum({vector})) THEN {_literal(where + NOT_FINITE)}"
    if is_nonzero:
        yield f"WHEN list_min({vector}) = 0 AND list_max({vector}) = 0 THEN {_literal(where + ZERO)}"


def _readable(type_: pa.DataType) -> str:
    if is_vector(type_):
        return type_text(type_)
    return re.sub(r"\[.*\]|128", "", str(type_))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
