"""How the rows of a table are written plainly: a regular expression per type, and how such text becomes a column.

Text that matches means the same to Arrow's JSON reader and to `raw_log.read`: every difference of the two is left out
of the expressions. So a whole number has no sign before a zero and fits its type whatever its digits; a fraction does
not overflow; a date exists; an escape is no surrogate; a moment is UTC. Of tags (`formats.raw_fields`) only those of
dates, moments and decimals are plain. What is left out is not wrong, it is read record by record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.rows.vectors import is_vector

TAGGED = r'\{"\$(?:date|timestamp|local|decimal)":("[^"\\]*")\}'
"""A tag whose text alone is plain, too. It is no part of any text: there a quote has a backslash before it."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TEXT = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u00[01][0-9a-f]))*"'
_DAY = (
    r"(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|[1-9][0-9](?:0[48]|[2468][048]|[13579][26])-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_UTC = r"(?:Z|\+00:00)"
_TAGGED_FRACTION = "|".join(f"0{{{zeros}}}[1-9][0-9]{{{5 - zeros}}}" for zeros in range(6))
_TAGGED_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.(?:{_TAGGED_FRACTION}))?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueForm:
    """What a value looks like (RE2), the type that Arrow reads it as, and what makes the column of what was read.

    `tag` is the tag under which a producer's value of this type is written, if it is under one.
    """

    pattern: str
    read_as: pa.DataType
    finish: Callable[[pa.ChunkedArray], pa.ChunkedArray | pa.Array]
    tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """What the fields of a record look like, as a whole, and the form of each column that may have a value there."""

    pattern: str
    values: Mapping[str, ValueForm]

    @property
    def reading(self) -> pa.Schema:
        """The schema for Arrow's JSON reader where no value has a tag."""
        return pa.schema([pa.field(name, each.read_as) for name, each in self.values.items()])

    @property
    def reading_tagged(self) -> pa.Schema:
        """The schema for Arrow's JSON reader where every value that may have its tag has it, as a struct of one."""
        return pa.schema(
            [
                pa.field(name, pa.struct([(each.tag, each.read_as)]) if each.tag else each.read_as)
                for name, each in self.values.items()
            ]
        )


def row_form(schema: pa.Schema) -> RowForm | None:
    """Return the form of rows of this schema; None when no column has one.

    A column whose name has signs that JSON or the expression would have to escape is not named in plain rows.
    """
    values = {field.name: value_form(field.type) for field in schema if _NAME.fullmatch(field.name)}
    if not values:
        return None
    pairs = "|".join(f'"{name}":(?:null|{form.pattern})' for name, form in values.items())
    # The text is to end with a brace, too: the last pair may be followed by a comma here.
    return RowForm(pattern=rf"\A\{{(?:(?:{pairs})(?:,|\}}\z))+\z", values=values)


def value_form(type_: pa.DataType) -> ValueForm:
    """Return how values of a column of this type, null apart, are written plainly; of some types none is."""
    nothing = ValueForm(pattern="null", read_as=pa.null(), finish=lambda column: pa.nulls(len(column), type_))
    return _form(type_) or nothing


def _form(type_: pa.DataType) -> ValueForm | None:
    kinds = pa.types
    if kinds.is_list(type_) or is_vector(type_):
        return _list_form(type_)
    if kinds.is_date32(type_):
        text = _either(f'"{_DAY}"', rf'\{{"\$date":"{_DAY}"\}}')
        return ValueForm(pattern=text, read_as=pa.string(), finish=lambda column: column.cast(type_), tag="$date")
    if kinds.is_timestamp(type_):
        return _instant_form(type_)
    if kinds.is_decimal128(type_) and type_.precision > type_.scale:
        return _decimal_form(type_)
    return _own_form(type_)


def _own_form(type_: pa.DataType) -> ValueForm | None:
    """The form of a type that JSON has of its own."""
    kinds = pa.types
    if kinds.is_boolean(type_):
        return ValueForm(pattern="true|false", read_as=type_, finish=_as_read)
    if kinds.is_string(type_):
        return ValueForm(pattern=_TEXT, read_as=type_, finish=_as_read)
    if kinds.is_signed_integer(type_):
        return ValueForm(pattern=_whole(type_.bit_width), read_as=type_, finish=_as_read)
    if type_ == pa.float64():
        number = _either(_digits(15), _fraction("[0-9]{1,2}|[12][0-8][0-9]"))
        return ValueForm(pattern=number, read_as=type_, finish=_as_read)
    if type_ == pa.float32():
        # Read as a double first, as Python does: rounding once or twice is not always the same.
        number = _either(_digits(7), _fraction("0?[0-9]|1[0-9]"))
        return ValueForm(pattern=number, read_as=pa.float64(), finish=lambda column: column.cast(type_))
    return None


def _whole(bits: int) -> str:
    """Numbers of that many bits; of those with as many digits as the greatest only some."""
    greatest = str(2 ** (bits - 1) - 1)
    shorter = _digits(len(greatest) - 1)
    first = int(greatest[0]) - 1
    return shorter if first < 1 else _either(shorter, f"-?[1-{first}][0-9]{{{len(greatest) - 1}}}")


def _digits(most: int) -> str:
    return f"0|-?[1-9][0-9]{{0,{most - 1}}}"


def _fraction(exponent: str) -> str:
    """Numbers with a point, an exponent or both, for without either it is a whole number.

    At most 17 digits before the point, so that the exponent cannot take it beyond the type.
    """
    before = r"-?(?:0|[1-9][0-9]{0,16})"
    power = rf"[eE][+-]?(?:{exponent})"
    return rf"{before}(?:\.[0-9]+(?:{power})?|{power})"


def _instant_form(type_: pa.DataType) -> ValueForm | None:
    if type_.unit != "us" or type_.tz not in (None, "UTC"):
        return None
    local = rf'\{{"\$local":"{_DAY}T{_TAGGED_TIME}"\}}'
    if type_.tz is None:
        text = _either(f'"{_DAY}[T ]{_TIME}"', local)
        return ValueForm(pattern=text, read_as=pa.string(), finish=lambda column: column.cast(type_), tag="$local")
    text = _either(f'"{_DAY}[T ]{_TIME}{_UTC}?"', rf'\{{"\$timestamp":"{_DAY}T{_TAGGED_TIME}\+00:00"\}}', local)
    return ValueForm(pattern=text, read_as=pa.string(), finish=_instants, tag="$timestamp")


def _instants(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Moments with or without the zone UTC; without it they are UTC."""
    without = pc.replace_substring_regex(texts, _UTC + r"\z", "")
    return without.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))


def _decimal_form(type_: pa.DataType) -> ValueForm:
    whole = type_.precision - type_.scale
    fraction = rf"(?:\.[0-9]{{1,{type_.scale}}})?" if type_.scale else ""
    text = rf'"[+-]?[0-9]{{1,{whole}}}{fraction}"'
    number = _digits(whole) + (
        rf"|-?(?:0|[1-9][0-9]{{0,{whole - 1}}})\.[0-9]{{1,{type_.scale}}}" if type_.scale else ""
    )
    pattern = _either(text, rf'\{{"\$decimal":{text}\}}', number)
    return ValueForm(pattern=pattern, read_as=type_, finish=_as_read, tag="$decimal")


def _list_form(type_: pa.DataType) -> ValueForm | None:
    """Lists of what JSON has of its own: inside of them text is nothing but text."""
    inner = _own_form(type_.value_type)
    if inner is None:
        return None
    each = f"(?:null|{inner.pattern})"
    return ValueForm(
        pattern=rf"\[(?:{each}(?:,{each})*)?\]",
        read_as=pa.list_(pa.field(type_.value_field.name, inner.read_as)),
        finish=lambda column: column.cast(type_),
    )


def _either(*patterns: str) -> str:
    return "|".join(f"(?:{each})" for each in patterns)


def _as_read(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column
