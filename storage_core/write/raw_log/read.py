"""Conversion of raw log records to typed records of a table. Each record fits the table's schema or is rejected.

No input of a producer raises an error here. A bad record is rejected with its reason and never stops other records
(docs/architecture/README.md, rule 7).

`typed_records` is the main function. `typed_records` converts *plain* records column by column (`plain_records`) and
all other records one by one (`one_by_one`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from storage_core.base.errors import InvalidInput, raise_refused
from storage_core.data.formats.raw_chunk import OPERATIONS
from storage_core.data.formats.raw_fields import Digits, decode_fields
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.fold import FIELDS, OPERATION, Operation, field_lists, merging, record_schema
from storage_core.data.rows.incoming import exact_array
from storage_core.data.rows.keys import MAX_KEY_BYTES, Positions, beyond_limit, size_of_key, too_long
from storage_core.data.rows.times import BEYOND, beyond
from storage_core.data.rows.vectors import faults, fitting, is_vector, type_text

# A value of a row is plain if its text matches the regular expression of its type. Each type also has a conversion of
# matching text to a column. Arrow's JSON reader and `one_by_one` read matching text as the same value. The expressions
# exclude text that Arrow and `one_by_one` read differently. Text of a whole number is plain if no sign precedes a zero
# and the number of digits fits the type. Text of a fraction is plain if the number does not overflow its type. Text of
# a date is plain if the date exists in the calendar. An escape in a text is plain if the escaped character is not a
# surrogate. Text of a time is plain if the time is in UTC. Only dates, times and decimals can have a plain tag
# (`formats.raw_fields`). Text that the expressions exclude can be valid, and `one_by_one` reads this text.


TAGGED = r'\{"\$(?:date|timestamp|local|decimal)":("[^"\\]*")\}'
"""A pattern for a tagged value. The quoted text inside the tag also has a plain form.

The pattern cannot match inside a text, because each quote in a text follows a backslash.
"""

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
    """Form of the values of a type.

    `pattern` (RE2) matches the text of the values. Arrow reads the values as the type `read_as`, and `finish` converts
    the result to the type of the column. `tag` is the tag that producers put on values of this type, or None.
    """

    pattern: str
    read_as: pa.DataType
    finish: Callable[[pa.ChunkedArray], pa.ChunkedArray | pa.Array]
    tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """A pattern for the text of a record's fields, and the `ValueForm` of each column that may occur in the text."""

    pattern: str
    values: Mapping[str, ValueForm]

    @property
    def reading(self) -> pa.Schema:
        """The schema for Arrow's JSON reader if no value has a tag."""
        return pa.schema([pa.field(name, each.read_as) for name, each in self.values.items()])

    @property
    def reading_tagged(self) -> pa.Schema:
        """The schema for Arrow's JSON reader if every possible tag is present.

        A value with a tag is a struct with one field.
        """
        return pa.schema(
            [
                pa.field(name, pa.struct([(each.tag, each.read_as)]) if each.tag else each.read_as)
                for name, each in self.values.items()
            ]
        )


def row_form(schema: pa.Schema) -> RowForm | None:
    """Return the `RowForm` for rows of this schema, or None if no column has a `ValueForm`.

    The form excludes columns with names that need escapes in JSON or in the expression.
    """
    values = {field.name: value_form(field.type) for field in schema if _NAME.fullmatch(field.name)}
    if not values:
        return None
    pairs = "|".join(f'"{name}":(?:null|{form.pattern})' for name, form in values.items())
    # This pattern also accepts a comma after the last pair. So `_matching` also checks that the text ends with a brace.
    return RowForm(pattern=rf"\A\{{(?:(?:{pairs})(?:,|\}}\z))+\z", values=values)


def value_form(type_: pa.DataType) -> ValueForm:
    """Return the plain form of values of this type. Some types have no plain form except null."""
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
    """Return the form of a type that JSON supports directly."""
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
        # Arrow first reads the text as a double, as Python does, and then converts the double to a float. A direct
        # conversion of the text to float could round differently.
        number = _either(_digits(7), _fraction("0?[0-9]|1[0-9]"))
        return ValueForm(pattern=number, read_as=pa.float64(), finish=lambda column: column.cast(type_))
    return None


def _whole(bits: int) -> str:
    """Return a pattern for whole numbers with this number of bits.

    Of the numbers with the maximum number of digits, the pattern matches only numbers with a smaller first digit.
    """
    greatest = str(2 ** (bits - 1) - 1)
    shorter = _digits(len(greatest) - 1)
    first = int(greatest[0]) - 1
    return shorter if first < 1 else _either(shorter, f"-?[1-{first}][0-9]{{{len(greatest) - 1}}}")


def _digits(most: int) -> str:
    return f"0|-?[1-9][0-9]{{0,{most - 1}}}"


def _fraction(exponent: str) -> str:
    """Return the pattern of numbers with a point, an exponent or both. The pattern does not match whole numbers.

    The pattern allows at most 17 digits before the point. So the exponent cannot exceed the range of the type.
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
    """Convert the texts of times to instants. A time has the zone UTC or no zone. Times without a zone are UTC."""
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
    """Return the form of a list type that JSON supports directly. Text in these lists is never converted."""
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


# Plain records of a raw log, converted column by column without a step per record.
# The fast path converts records that certainly fit, with the same result as `one_by_one`. The fast path never rejects a
# record, and leaves every uncertain record to `one_by_one`.


_TAG = '{"$'


@dataclass(frozen=True, slots=True)
class PlainRecords:
    """The positions of the plain records, and the plain records in order.

    The plain records have the schema `rows.fold.record_schema`.
    """

    positions: npt.NDArray[np.int64]
    records: pa.Table


def plain_records(
    records: pa.Table, schema: pa.Schema, key: Sequence[str], nonzero: Collection[str] = ()
) -> PlainRecords:
    """Return the plain records with all required values. `one_by_one` converts the records that are not plain.

    `records` has the columns `RECORD_COLUMNS`. Time: two passes over every byte. Memory: the text and the columns.
    """
    form = row_form(schema)
    nothing = PlainRecords(np.zeros(0, np.int64), record_schema(schema).empty_table())
    if form is None:
        return nothing
    matched = np.flatnonzero(_matching(records.column("fields"), form))
    found = records if len(matched) == records.num_rows else records.take(pa.array(matched))
    read = _read(found, form)
    if read is None:
        # At least one record has a name twice. This is rare. The search for records with a repeated name would cost as
        # much as all other steps.
        once = _named_once(found, form)
        matched, found = matched[once], found.filter(pa.array(once))
        read = _read(found, form)
    if read is None:
        return nothing
    kept = _complete(found, read, schema, key) & _with_vectors(read, schema, nonzero)
    rows = read.filter(pa.array(kept)) if not kept.all() else read
    found = found.filter(pa.array(kept)) if not kept.all() else found
    return PlainRecords(matched[kept], _assembled(found, rows, form, schema))


def _matching(texts: pa.ChunkedArray, form: RowForm) -> Mask:
    try:
        matching = pc.and_(pc.match_substring_regex(texts, form.pattern), pc.ends_with(texts, "}"))
    except pa.ArrowInvalid:  # a table with so many columns that the expression is too large
        return np.zeros(len(texts), np.bool_)
    return _as_mask(matching)


def _read(records: pa.Table, form: RowForm) -> pa.Table | None:
    """Return the fields that Arrow reads.

    Return None if Arrow refuses the text. Arrow refuses the text if a plain record has the same name twice.
    """
    texts = records.column("fields").combine_chunks()
    if not len(texts):
        return form.reading.empty_table()
    if pc.any(pc.match_substring(texts, _TAG)).as_py():
        # Most producers either tag every value of a column or tag no value of the column. Removing the tags costs as
        # much as reading the text.
        tagged = _parsed(texts, form.reading_tagged)
        if tagged is not None:
            return _untagged(tagged)
        texts = pc.replace_substring_regex(texts, TAGGED, r"\1")
    return _parsed(texts, form.reading)


def _parsed(texts: pa.StringArray, schema: pa.Schema) -> pa.Table | None:
    lines = pc.binary_join_element_wise(texts, "", "\n")
    data = lines.buffers()[2].slice(0, pc.sum(pc.binary_length(lines)).as_py())
    try:
        return pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
    except pa.ArrowInvalid:
        return None


def _untagged(read: pa.Table) -> pa.Table:
    columns = [pc.struct_field(each, [0]) if pa.types.is_struct(each.type) else each for each in read.columns]
    return pa.Table.from_arrays(columns, names=read.column_names)


def _named_once(records: pa.Table, form: RowForm) -> Mask:
    texts = records.column("fields")
    twice = np.zeros(len(texts), np.bool_)
    for name in form.values:
        twice |= _as_mask(pc.greater(pc.count_substring(texts, _named(name)), 1))
    return ~twice


def _complete(records: pa.Table, read: pa.Table, schema: pa.Schema, key: Sequence[str]) -> Mask:
    """Return a mask of the records with all required values.

    A delete needs only the columns of the key. A delete must not set a required column to null.
    """
    complete = np.ones(records.num_rows, np.bool_)
    for field in schema:
        if field.nullable and field.name not in key:
            continue
        absent = (
            _as_mask(read.column(field.name).is_null()) if field.name in read.column_names else ~np.zeros_like(complete)
        )
        if field.name not in key and absent.any():
            named = pc.match_substring(records.column("fields"), _named(field.name))
            absent &= _as_mask(pc.or_(pc.not_equal(records.column("operation"), "delete"), named))
        complete &= ~absent
    return complete


def _with_vectors(read: pa.Table, schema: pa.Schema, nonzero: Collection[str]) -> Mask:
    """Return a mask of records with valid embeddings or nulls.

    The expression does not check the length of embeddings.
    """
    sound = np.ones(read.num_rows, np.bool_)
    for field in schema:
        if is_vector(field.type) and field.name in read.column_names and not pa.types.is_null(read[field.name].type):
            fits = np.flatnonzero(sound & fitting(read[field.name], field.type.list_size))
            column = read[field.name].take(pa.array(fits)).cast(field.type)
            sound[:] = False
            sound[fits] = True
            for _, wrong in faults(column, nonzero=field.name in nonzero):
                sound[fits[wrong]] = False
    return sound


def _assembled(records: pa.Table, read: pa.Table, form: RowForm, schema: pa.Schema) -> pa.Table:
    target = record_schema(schema)
    operations = pc.index_in(records.column("operation"), pa.array(OPERATIONS)).cast(target.field(OPERATION).type)
    columns = [
        form.values[field.name].finish(read.column(field.name))
        if field.name in form.values
        else pa.nulls(records.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays([operations, _given(records, form, target), *columns], schema=target)


def _given(records: pa.Table, form: RowForm, target: pa.Schema) -> pa.Array:
    """Return for each patch the columns that it sets.

    A record with a map is never converted as a plain record. So no map is merged, and a patch replaces each column that
    it sets.
    """
    patches = np.flatnonzero(_as_mask(pc.equal(records.column("operation"), "patch")))
    texts = records.column("fields").take(pa.array(patches))
    named = [(name, _as_mask(pc.match_substring(texts, _named(name)))) for name in target.names if name in form.values]
    return field_lists(records.num_rows, patches, named, target.field(FIELDS).type)


def _named(name: str) -> str:
    """Return a name as it appears in JSON.

    The quoted name cannot occur inside a JSON text, because a quote inside a text follows a backslash.
    """
    return f'"{name}":'


def _as_mask(column: pa.Array | pa.ChunkedArray) -> Mask:
    return np.asarray(column, np.bool_)


FEW = 128
"""The minimum number of records for a conversion by columns.

For fewer records than `FEW`, it is cheaper to convert each record separately.
"""

_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?", re.ASCII)
_CODES: Mapping[str, Operation] = {each.name.lower(): each for each in Operation}


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRecord:
    """The complete text of a record that does not fit its table, and the reason."""

    record_id: str
    table: str
    operation: str
    key: str | None
    fields: str
    reason: str

    @classmethod
    def of(cls, record: Mapping[str, Any], reason: str) -> RejectedRecord:
        """Return the rejected record with this reason. The record is a row of `RECORD_COLUMNS`."""
        return cls(reason=reason, **{name: value for name, value in record.items() if name != "timestamp_ms"})


@dataclass(frozen=True, slots=True)
class TypedRecords:
    """Records that fit, with the columns of `rows.fold.record_schema`, and records that do not fit.

    `ids` and `written_ms` (the time of the write) have one value for each record that fits the table's schema.
    """

    records: pa.Table
    ids: pa.StringArray
    written_ms: pa.Int64Array
    rejected: tuple[RejectedRecord, ...]


def typed_records(
    records: pa.Table,
    schema: pa.Schema,
    *,
    key: Sequence[str] = (),
    merged_maps: Sequence[str] = (),
    nonzero: Collection[str] = (),
) -> TypedRecords:
    """Convert records (`RECORD_COLUMNS`) of one table to the schema of the table.

    Every value is converted exactly, or rejected.

    `data.rows.incoming` converts the values. `data.rows.incoming` reads dates and times from text. A text of decimal
    digits becomes a decimal, because JSON has no decimals. A record is rejected for any of these faults:

    - fields that are not in the format of the raw log
    - a column that the schema lacks
    - a value that does not fit
    - a missing column of `key`
    - for all operations except delete: a missing required column, or a key beyond `MAX_KEY_BYTES`
    - a zero embedding in a column of `nonzero`

    If a patch sets a column of `merged_maps`, the entries of the patch are added to the existing entries
    (`rows.fold.merging`). If a patch sets a column of `merged_maps` to null, the column becomes null.
    """
    if records.num_rows < FEW:
        return one_by_one(records, schema, key=key, merged_maps=merged_maps, nonzero=nonzero).all
    plain = plain_records(records, schema, key, nonzero)
    if any(beyond_limit(plain.records, name).any() for name in key):
        return one_by_one(records, schema, key=key, merged_maps=merged_maps, nonzero=nonzero).all
    others = np.delete(np.arange(records.num_rows), plain.positions)
    if not len(others):
        return _of_all(records, plain.positions, plain.records, ())
    rest = one_by_one(records.take(pa.array(others)), schema, key=key, merged_maps=merged_maps, nonzero=nonzero)
    positions = np.concatenate([plain.positions, others[rest.positions]])
    order = np.argsort(positions)
    rows = pa.concat_tables([plain.records, rest.all.records]).take(pa.array(order))
    return _of_all(records, positions[order], rows, rest.all.rejected)


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Records that were converted one by one, and the positions of the records that fit."""

    all: TypedRecords
    positions: Positions


def one_by_one(
    records: pa.Table,
    schema: pa.Schema,
    *,
    key: Sequence[str] = (),
    merged_maps: Sequence[str] = (),
    nonzero: Collection[str] = (),
) -> OneByOne:
    """Return the result of `typed_records`. This function defines the correct result for every possible record."""
    given = records.to_pylist()
    rows: list[dict[str, Any] | str] = [_row(each, schema, key) for each in given]
    for field in schema:
        _check(rows, field, nonzero=field.name in nonzero)
    _check_keys(given, rows, key)
    fitting = [(one, row) for one, row in zip(given, rows, strict=True) if isinstance(row, dict)]
    rejected = tuple(RejectedRecord.of(one, row) for one, row in zip(given, rows, strict=True) if isinstance(row, str))
    positions = np.array([index for index, row in enumerate(rows) if isinstance(row, dict)], np.int64)
    return OneByOne(_of_all(records, positions, _records(fitting, schema, merged_maps), rejected), positions)


def _of_all(
    records: pa.Table, positions: Positions, rows: pa.Table, rejected: tuple[RejectedRecord, ...]
) -> TypedRecords:
    fitting = records.select(["record_id", "timestamp_ms"]).take(pa.array(positions))
    ids, written_ms = (column.combine_chunks() for column in fitting.columns)
    return TypedRecords(rows, ids, written_ms, rejected)


def _row(record: Mapping[str, Any], schema: pa.Schema, key: Sequence[str]) -> dict[str, Any] | str:
    """Return the fields with text converted where the schema requires it, or the reason for a rejection."""
    try:
        fields = decode_fields(record["fields"])
    except InvalidInput as error:
        return str(error)
    if unknown := sorted(set(fields) - set(schema.names)):
        return f"{', '.join(map(repr, unknown))}: not a column of the table"
    if absent := [name for name in key if fields.get(name) is None]:
        return f"column {absent[0]!r}: a value is required, because the column is part of the key"
    # A patch may be the first record of its key and then creates the row.
    makes = record["operation"] != "delete"
    for field in schema:
        if not field.nullable and fields.get(field.name) is None and (makes or field.name in fields):
            return f"column {field.name!r}: a value is required"
    return {name: _valued(value, schema.field(name).type) for name, value in fields.items()}


def _valued(value: Any, type_: pa.DataType) -> Any:
    """Return the result of `_from_text` for a top-level value.

    Each number in the value, at any depth, is converted for the type of its column.
    """
    return _from_text(_numbered(value, type_), type_)


def _numbered(value: Any, type_: pa.DataType) -> Any:
    """Return the value with its `Digits` converted: exact for a decimal type, otherwise the nearest float."""
    match value:
        case Digits():
            return value.as_decimal() if pa.types.is_decimal(type_) else value.as_float()
        case dict():
            return {name: _numbered(each, _type_within(type_, name)) for name, each in value.items()}
        case list():
            return [_numbered(each, _type_within(type_, None)) for each in value]
        case (key, item):  # An entry of a map. The key of the entry may have another type than text.
            key_type, item_type = (
                (type_.key_type, type_.item_type) if pa.types.is_map(type_) else (pa.null(), pa.null())
            )
            return _numbered(key, key_type), _numbered(item, item_type)
        case _:
            return value


def _from_text(value: Any, type_: pa.DataType) -> Any:
    """If the type is decimal, convert a text of digits to a decimal. Return other values unchanged."""
    is_decimal = isinstance(value, str) and pa.types.is_decimal(type_) and _DECIMAL.fullmatch(value)
    return Decimal(value) if is_decimal else value


def _type_within(type_: pa.DataType, name: str | None) -> pa.DataType:
    """Return the type of the value with this name in an object. If `name` is None, return the type of array elements.

    If `name` is None and the type is a map, return the map type itself.
    """
    if pa.types.is_map(type_):
        return type_ if name is None else type_.item_type
    if pa.types.is_struct(type_) and name in [field.name for field in type_.fields]:
        return type_.field(name).type
    return type_.value_type if name is None and (pa.types.is_list(type_) or is_vector(type_)) else pa.null()


def _check(rows: list[dict[str, Any] | str], field: pa.Field, *, nonzero: bool) -> None:
    """Replace each row that does not fit the column by the reason. The function first tries the whole column."""
    present = [
        (index, row[field.name]) for index, row in enumerate(rows) if isinstance(row, dict) and field.name in row
    ]
    if _problem([value for _, value in present], field, nonzero=nonzero) is None:
        return
    for index, value in present:
        problem = _problem([value], field, nonzero=nonzero)
        if problem is not None:
            rows[index] = problem


def _check_keys(given: Sequence[Mapping[str, Any]], rows: list[dict[str, Any] | str], key: Sequence[str]) -> None:
    """Replace each row whose key is too long with the reason of its rejection. Deletes with a too long key stay."""
    for index, (record, row) in enumerate(zip(given, rows, strict=True)):
        if isinstance(row, dict) and record["operation"] != "delete":
            sizes = ((name, size_of_key(row[name])) for name in key)
            rows[index] = next((too_long(name, size) for name, size in sizes if size > MAX_KEY_BYTES), row)


def _problem(values: Sequence[Any], field: pa.Field, *, nonzero: bool = False) -> str | None:
    try:
        array = exact_array(values, field.type, field.name)
        outside = beyond(array)
    except (TypeError, ValueError, OverflowError, RecursionError, pa.ArrowException) as error:
        raise_refused(f"records of a raw log: column {field.name!r}", error)
        return f"column {field.name!r}: a value does not fit the type {type_text(field.type)}: {error}"
    if is_vector(field.type):
        return next((f"column {field.name!r}: {why}" for why, _ in faults(array, nonzero=nonzero)), None)
    return None if outside is None else f"column {field.name!r}: a value is {BEYOND}"


def _records(
    fitting: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], schema: pa.Schema, merged_maps: Sequence[str]
) -> pa.Table:
    target = record_schema(schema)
    rows = [row for _, row in fitting]
    columns = [
        pa.array([_CODES[one["operation"]] for one, _ in fitting], target.field(OPERATION).type),
        pa.array([_patched_columns(*each, schema, merged_maps) for each in fitting], target.field(FIELDS).type),
        *(exact_array([row.get(field.name) for row in rows], field.type, field.name) for field in schema),
    ]
    return pa.Table.from_arrays(columns, schema=target)


def _patched_columns(
    record: Mapping[str, Any], row: Mapping[str, Any], schema: pa.Schema, merged_maps: Sequence[str]
) -> list[str] | None:
    """Return the columns of a patch. Return None for an operation other than a patch."""
    if record["operation"] != "patch":
        return None
    given = [name for name in schema.names if name in row]
    return [merging(name) if name in merged_maps and row[name] is not None else name for name in given]
