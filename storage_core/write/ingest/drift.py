"""Schema drift of landed files: fields that are not columns, and values that need a wider column.

The declaration of the table determines how ingest handles a drift. `on_new_field` applies to fields that the table does
not have. `on_type_conflict` applies to values that do not fit the type of their column. A field whose value is null is
not a new field.

A task cannot know the fields that other tasks find. If a file has new fields or wider values, a task that may add or
widen columns does not write the rows of the file. The task returns the `Drift` of the file: its new fields with their
types, and the columns that must be wider. The driver merges the drift of all tasks and changes the schema once. Then
the driver ingests these files again with the new schema. In this second pass, the schema is final (`is_settled`). In
the second pass, a line is rejected if it contains a field that is still not a column. Files without new fields or wider
values are read only once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.base.text import choice_of, fitted, most_frequent
from storage_core.data.rows.columns import may_widen
from storage_core.data.rows.schema import from_schema_string, require_new_columns, table_type, to_schema_string
from storage_core.data.rows.times import row_text

OnTypeConflict = Literal["quarantine", "widen"]
MOST_NEW_FIELDS: Final = 16
"""The default for the maximum number of columns that one run adds."""

MOST_NEW_FIELDS_ALLOWED: Final = 1_000
OTHER_FIELDS: Final = "other fields"

MOST_NAMED: Final = 50
"""The largest number of names in a commit (`name_drift`)."""

WHOLE_FILES: Final = "whole files"
"""The name for files that were rejected completely."""

_INTO: Final = "column:"
_CHOICES: Final = ("quarantine", "ignore", "add", "column:NAME")
_LONGEST_NAME: Final = 100
_MOST_FOUND: Final = 1_000
"""The maximum number of new fields in a result. A run adds fewer columns than this maximum."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DriftRule:
    """The effect of new fields and of values that need a wider column.

    - `column`: for the rule `column`, the table column that stores the new fields of a row as a JSON object.
    - `widens`: whether columns become wider.
    - `is_settled`: whether the schema is final, so that no file adds or widens columns any more.
    - `refused`: the new fields that could not become columns of the table, each with the reason.
    """

    new_field: Literal["quarantine", "ignore", "add", "column"] = "quarantine"
    column: str | None = None
    widens: bool = False
    is_settled: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def parse(on_new_field: str, on_type_conflict: str) -> DriftRule:
        """Return the rule that a declaration selects. Raises `InvalidInput` for an unknown choice."""
        if on_type_conflict not in ("quarantine", "widen"):
            raise InvalidInput(choice_of("on_type_conflict", on_type_conflict, ("quarantine", "widen")))
        widens = on_type_conflict == "widen"
        match on_new_field:
            case "quarantine" | "ignore" | "add":
                return DriftRule(on_new_field, None, widens)
            case str() if on_new_field.removeprefix(_INTO) not in ("", on_new_field):
                return DriftRule("column", on_new_field.removeprefix(_INTO), widens)
            case _:
                raise InvalidInput(choice_of("on_new_field", on_new_field, _CHOICES))

    @property
    def counted_as(self) -> str:
        """The name of the metric that counts the values of new fields."""
        return "fields_kept" if self.new_field == "column" else "fields_ignored"

    @property
    def may_change_columns(self) -> bool:
        """Whether a file can add or widen columns."""
        return not self.is_settled and (self.new_field == "add" or self.widens)

    def settled(self, refused: Mapping[str, str] = MappingProxyType({})) -> DriftRule:
        """Return the rule for files that are ingested with the final schema.

        `refused` contains the fields that did not become columns.
        """
        return replace(self, is_settled=True, widens=False, refused=refused)

    def filled(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that get the values of fields with the same name.

        The column for new fields is excluded.
        """
        place = -1 if self.column is None else schema.get_field_index(self.column)
        return schema if place < 0 else schema.remove(place)

    def fault(self, name: str, schema: pa.Schema) -> str | None:
        """Return the reason why a row with this new field is rejected, or None if the row is accepted."""
        shown = f"the field {fitted(name, _LONGEST_NAME)}"
        if self.new_field == "quarantine":
            return f"{shown} is not a column of the table"
        if self.new_field != "add":
            return None
        if alike := next((each for each in schema.names if each.casefold() == name.casefold()), None):
            return f"{shown} differs from the column {alike} only in case. Use the name of the column"
        try:
            require_new_columns([pa.field(name, pa.string())])
            name.encode()
        except (InvalidInput, UnicodeEncodeError):
            return f"{shown} cannot be a column, because its name is blank or not usable. Rename the field"
        if not self.is_settled:
            return None
        why = self.refused.get(name)
        return f"{shown} is not a column, and the run could not add it{f': {why}' if why else '. Add the column'}"


QUARANTINE: Final = DriftRule()
"""The default rule: every row with a new field is rejected."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The new fields, and the columns that need a wider type, of a file, a block or a run.

    - `counts`: the number of values that were left out or stored in the column for new fields, by field. If there are
      too many fields, the values of the remaining fields are counted as `other fields`.
    - `fields`: the new fields, each with the number of its values and a type that can store all values.
    - `widened`: the columns that must be wider, each with a type that can store all values.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, tuple[int, pa.DataType]] = field(default_factory=dict)
    widened: Mapping[str, pa.DataType] = field(default_factory=dict)

    @property
    def changes_columns(self) -> bool:
        """Whether the table needs new or wider columns for the rows."""
        return bool(self.fields or self.widened)

    def __or__(self, other: Drift) -> Drift:
        """Return the combined drift of `self` and `other`."""
        if other == NO_DRIFT:
            return self
        fields, widened = dict(self.fields), dict(self.widened)
        for name, (count, type_) in other.fields.items():
            known = fields.get(name)
            if known is not None:
                fields[name] = (known[0] + count, joined(known[1], type_))
            elif len(fields) < _MOST_FOUND:
                fields[name] = (count, type_)
        for name, type_ in other.widened.items():
            widened[name] = joined(widened.get(name, type_), type_)
        return Drift(count_fields(self.counts, other.counts), fields, widened)

    def to_json(self) -> str:
        """Return this drift as JSON text for `from_json`."""
        fields = {name: [count, _text_of(type_)] for name, (count, type_) in self.fields.items()}
        widened = {name: _text_of(type_) for name, type_ in self.widened.items()}
        return json.dumps({"counts": dict(self.counts), "fields": fields, "widened": widened})

    @staticmethod
    def from_json(text: str) -> Drift:
        """Return the `Drift` from the text that `to_json` returned."""
        body = json.loads(text)
        fields = {name: (count, _type_of(type_)) for name, (count, type_) in body["fields"].items()}
        return Drift(body["counts"], fields, {name: _type_of(type_) for name, type_ in body["widened"].items()})


NO_DRIFT: Final = Drift()


def count_fields(*counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of the counts by field, limited as in `most_frequent`."""
    return most_frequent(counts, OTHER_FIELDS, _LONGEST_NAME)


_OF_A_FILE: Final = "the file "
_OF_A_FIELD = re.compile(r"the field (.+?) (?:is not a column|differs from the column|cannot be a column|has the type)")


def name_drift(
    reasons: Mapping[str, int], fields: Mapping[str, int], widened: Collection[str], columns: Iterable[str]
) -> list[str]:
    """Return the most frequent names for a commit (`field X`, `column X` and `whole files`) in sorted order.

    Args:
        reasons: The number of rejected lines by reason. A line that is not valid JSON has no name.
        fields: The number of values by new field.
        widened: The columns that became wider.
        columns: All columns of the table.
    """
    names = [f"column {each}" for each in columns]
    found = Counter({f"field {each}": count for each, count in fields.items() if each != OTHER_FIELDS})
    found.update(f"column {each}" for each in widened)
    for reason, count in reasons.items():
        if name := _name_in(reason, names):
            found[name] += count
    return sorted(name for name, _ in found.most_common(MOST_NAMED))


def _name_in(reason: str, columns: Iterable[str]) -> str | None:
    """Return the field, column or kind of fault in the reason of a rejected line, or None."""
    if reason.startswith(_OF_A_FILE):
        return WHOLE_FILES
    if named := _OF_A_FIELD.match(reason):
        return f"field {named[1]}"
    found = [each for each in columns if reason.startswith(tuple(f"{each}{mark}" for mark in ":.["))]
    return max(found, key=len, default=None)


def _text_of(type_: pa.DataType) -> str:
    return to_schema_string(pa.schema([pa.field("field", type_)]))


def _type_of(text: str) -> pa.DataType:
    return from_schema_string(text).field(0).type


# Types of new fields. If a new field has only whole numbers that a double stores exactly, the field's type is `int32`
# until the column is added. The type `int32` can become double if other numbers of the field have a fraction. When the
# column is added, `int32` becomes `long`.


_EXACT_DIGITS: Final = 15
_LONG: Final = range(-(2**63), 2**63)
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[-+][0-9]{2}:[0-9]{2})")
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


def joined(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return a type that can store the values of both types without a loss. Text can store every value."""
    for one, other in ((first, second), (second, first)):
        is_exact = pa.types.is_integer(one) and one.bit_width <= 32 and pa.types.is_float64(other)
        if one == other or may_widen(one, other) or is_exact:
            return other
    return pa.string()


def column_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the column for a new field with values of this type."""
    if pa.types.is_integer(type_):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(type_) else type_


def json_type(text: str) -> pa.DataType:
    """Return the type of a JSON value that is not null. A list or an object is stored as its JSON text."""
    if text in ("true", "false"):
        return pa.bool_()
    if text.startswith('"'):
        return _TIMESTAMP if _is_instant(text[1:-1]) else pa.string()
    return pa.string() if text.startswith(("{", "[")) else _number_type(text)


def _plain_type(text: str) -> pa.DataType:
    """Return the type of an untyped text value, such as a CSV field. A number with leading zeros has the type text."""
    if text in ("true", "false"):
        return pa.bool_()
    return _TIMESTAMP if _is_instant(text) else _number_type(text)


def _number_type(text: str) -> pa.DataType:
    if not _NUMBER.fullmatch(text):
        return pa.string()
    if not _WHOLE.fullmatch(text):
        return pa.float64() if np.isfinite(float(text)) else pa.string()
    if len(text.removeprefix("-")) <= _EXACT_DIGITS:
        return pa.int32()
    return pa.int64() if len(text) <= 20 and int(text) in _LONG else pa.string()


def _is_instant(text: str) -> bool:
    """Return whether the text is an unambiguous time, with a date, a second and a zone."""
    if not _INSTANT.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return False
    return True


# The new fields of the rows of a block.


Members = tuple[tuple[str, str], ...]
"""The name and the JSON text of each field of an object."""


class NewFields(Protocol):
    """The new fields of some rows: fields that have a value and are not columns of the table."""

    def filter(self, chosen: Mask) -> NewFields:
        """Return the new fields of these rows."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return the number of values by field."""
        ...

    def types(self) -> Mapping[str, tuple[int, pa.DataType]]:
        """Return the number of values and their type by field."""
        ...

    def objects(self) -> pa.StringArray:
        """Return the new fields of each row as a JSON object, or null for a row without new fields."""
        ...

    def faults(self, rule: DriftRule, schema: pa.Schema) -> pa.StringArray:
        """Return for each row the reason why a new field causes the rejection of the row, or null."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectFields:
    """New fields of JSON objects. `rows` maps the position of a row to the name and text of each new field."""

    rows: Mapping[int, Members]
    size: int

    def filter(self, chosen: Mask) -> ObjectFields:
        """See `NewFields`."""
        places = np.cumsum(chosen) - 1
        kept = {int(places[row]): each for row, each in self.rows.items() if chosen[row]}
        return ObjectFields(kept, int(chosen.sum()))

    def counts(self) -> Mapping[str, int]:
        """See `NewFields`."""
        return Counter(name for each in self.rows.values() for name, _ in each)

    def types(self) -> Mapping[str, tuple[int, pa.DataType]]:
        """See `NewFields`."""
        found: dict[str, tuple[int, pa.DataType]] = {}
        for each in self.rows.values():
            for name, text in each:
                count, type_ = found.get(name, (0, None))
                own = json_type(text)
                found[name] = (count + 1, own if type_ is None else joined(type_, own))
        return found

    def objects(self) -> pa.StringArray:
        """See `NewFields`."""
        texts: list[str | None] = [None] * self.size
        for row, each in self.rows.items():
            texts[row] = "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text}" for name, text in each) + "}"
        return pa.array(texts, pa.string())

    def faults(self, rule: DriftRule, schema: pa.Schema) -> pa.StringArray:
        """Return null for every row, because the reader of the lines has already rejected the faulty lines."""
        del rule, schema
        return pa.nulls(self.size, pa.string())


@dataclass(frozen=True, slots=True)
class ColumnFields:
    """The new fields of a file whose format has columns. If `is_text` is set, all values are text without a type."""

    columns: pa.Table
    is_text: bool = False

    def filter(self, chosen: Mask) -> ColumnFields:
        """See `NewFields`."""
        return replace(self, columns=self.columns.filter(pa.array(chosen)))

    def counts(self) -> Mapping[str, int]:
        """See `NewFields`."""
        pairs = zip(self.columns.column_names, self.columns.columns, strict=True)
        return {name: count for name, values in pairs if (count := len(values) - values.null_count)}

    def types(self) -> Mapping[str, tuple[int, pa.DataType]]:
        """See `NewFields`."""
        held = {name: count for name, count in self.counts().items() if self.is_text or self._unheld(name) is None}
        return {name: (count, self._type(self.columns.column(name))) for name, count in held.items()}

    def _type(self, values: pa.ChunkedArray) -> pa.DataType:
        if not self.is_text:
            return table_type(values.type)
        found: pa.DataType | None = None
        for text in pc.unique(values).drop_null().to_pylist():
            own = _plain_type(text)
            found = own if found is None else joined(found, own)
        return pa.string() if found is None else found

    def objects(self) -> pa.StringArray:
        """See `NewFields`."""
        has_some = self._has_some()
        texts = [self._object(index) if some else None for index, some in enumerate(has_some)]
        return pa.array(texts, pa.string())

    def _object(self, index: int) -> str:
        row = json.loads(row_text(self.columns, index), parse_constant=str)
        return json.dumps({name: value for name, value in row.items() if value is not None}, ensure_ascii=False)

    def _has_some(self) -> Mask:
        found = np.zeros(self.columns.num_rows, np.bool_)
        for values in self.columns.columns:
            found |= np.asarray(values.is_valid())
        return found

    def faults(self, rule: DriftRule, schema: pa.Schema) -> pa.StringArray:
        """See `NewFields`."""
        found = pa.nulls(self.columns.num_rows, pa.string())
        for why, has_value in self.reasons(rule, schema):
            found = pc.coalesce(found, pc.if_else(pa.array(has_value), why, pa.scalar(None, pa.string())))
        return found

    def reasons(self, rule: DriftRule, schema: pa.Schema) -> list[tuple[str, Mask]]:
        """Return each rejection reason of a new field, and a mask of the rejected rows."""
        return [
            (why, np.asarray(self.columns.column(name).is_valid()))
            for name in self.counts()
            if (why := rule.fault(name, schema) or (self._unheld(name) if rule.new_field == "add" else None))
        ]

    def _unheld(self, name: str) -> str | None:
        return unheld(self.columns.schema.field(name))


def unheld(column: pa.Field) -> str | None:
    """Return the reason why a table cannot store the values of this file column, or None if it can."""
    try:
        _text_of(table_type(column.type))
    except InvalidInput:
        name = fitted(column.name, _LONGEST_NAME)
        return f"the field {name} has the type {column.type}, which tables do not support. Leave it out"
    return None


def json_texts(values: pa.ChunkedArray) -> pa.StringArray:
    """Return each value as JSON text. Text and times have no quotes, so they are the same as values from a JSON file.

    The quarantine stores the same texts for a rejected row, so a retry adds the same values as the ingest of the file.
    """
    texts = (json.dumps(each, default=str, ensure_ascii=False) for each in values.to_pylist())
    return pa.array([None if text == "null" else _plain(text) for text in texts], pa.string())


def drift_of(new: NewFields, rule: DriftRule) -> Drift:
    """Return the drift of these new fields. The rows are added now, or after the new fields become columns."""
    if rule.new_field in ("ignore", "column"):
        return Drift(count_fields(new.counts()))
    return Drift(fields=new.types()) if rule.new_field == "add" else NO_DRIFT


_BLANKS = re.compile(r"[ \t\n\r]*")


def _refuse(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def members_of(line: str) -> Members:
    """Return the name and the original text of each field of a JSON object.

    Raises `ValueError` if the line is not valid JSON, and `RecursionError` if the line nests too deeply.
    """
    found: list[tuple[str, str]] = []
    at = _after_blanks(line, line.index("{") + 1)
    while line[at] == '"':
        name, at = _DECODER.raw_decode(line, at)
        at = _after_blanks(line, at)
        if line[at] != ":":
            raise ValueError(f"no colon at character {at}")
        begin = _after_blanks(line, at + 1)
        _, end = _DECODER.raw_decode(line, begin)
        found.append((name, line[begin:end]))
        at = _after_blanks(line, end)
        if line[at] == ",":
            at = _after_blanks(line, at + 1)
    return tuple(found)


def _after_blanks(line: str, at: int) -> int:
    found = _BLANKS.match(line, at) if line[at] in " \t\n\r" else None
    return at if found is None else found.end()


def without_nulls(members: Iterable[tuple[str, str]], null_values: Collection[str]) -> Members:
    """Return the fields whose value is neither null nor a word for null."""
    return tuple(
        (name, text) for name, text in members if text != "null" and not (null_values and _plain(text) in null_values)
    )


def _plain(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


# Wider columns.


def widest_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the widest type of each column that can become wider without a loss."""
    found = {}
    for each in schema:
        kinds, type_ = pa.types, each.type
        if kinds.is_signed_integer(type_) and type_.bit_width < 64:
            found[each.name] = pa.int64()
        elif kinds.is_float32(type_):
            found[each.name] = pa.float64()
        elif kinds.is_decimal128(type_) and type_.precision < 38:
            found[each.name] = pa.decimal128(38, type_.scale)
    return found


def needed_type(values: pa.ChunkedArray, own: pa.DataType) -> pa.DataType | None:
    """Return the wider type that these values need, or None if the column type `own` can store all values."""
    kinds = pa.types
    if kinds.is_floating(own):
        is_beyond = pc.and_(pc.is_inf(values.cast(own)), pc.is_finite(values))
        return values.type if pc.any(is_beyond).as_py() else None
    try:
        values.cast(own)
    except pa.ArrowInvalid:
        if not kinds.is_decimal(own):
            return values.type
        digits = max(len(each.as_tuple().digits) for each in pc.unique(values.drop_null()).to_pylist())
        return pa.decimal128(max(digits, own.precision + 1), own.scale)
    return None


def with_types(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the schema with other types for these columns."""
    return pa.schema([each.with_type(types.get(each.name, each.type)) for each in schema])


def split_columns(table: pa.Table, names: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return one table with the columns in `names`, and one table with all other columns."""
    known = {*names}
    others = [each for each in table.column_names if each not in known]
    return table.drop_columns(others) if others else table, table.select(others)
