"""The sort schema language: which columns order a table, in which direction, and which only carry statistics.

    [name=]column|…[|&column…]|timestamp[|tiebreaker]/V2[ nulls first| nulls last]
    column = [+|-]name[__type] | name[__type][+|-] | name[__type][:dense-type]:(+|-)

`__s`, `__i` and `__nf` are string, int64 and float64; any other suffix belongs to the name. `&` marks the cutoff: the
columns from it up to the timestamp are not compared. The timestamp column is compared always, newest first, and so is a
tiebreaker behind it; the time column of the table may stand under its own name. Nulls are last, whatever the direction,
unless the schema says first; see "Sort schema" in docs/architecture/compaction.md. The place of nulls is our extension
(decision 0070), and so is the own name (decision 0015).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from storage_core.errors import InvalidInput
from storage_core.repeated import repeated

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
    """One column of a sort schema; `typed_explicitly` tells a written type from the default of the name."""

    name: str
    type: ColumnType
    typed_explicitly: bool
    descending: bool

    @property
    def text(self) -> str:
        """The canonical form: the type and the direction only where they are not the default of the name."""
        suffix = "" if self.type == _default_type(self.name) else f"__{_SUFFIX_BY_TYPE[self.type]}"
        direction = "" if self.descending == _default_descending(self.name) else ":-" if self.descending else ":+"
        return f"{self.name}{suffix}{direction}"


@dataclass(frozen=True, slots=True)
class SortSchema:
    """A parsed sort schema. `cutoff` is the index of the first column that `&` marks, None without one."""

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
        """The columns that decide the order: those before the cutoff, the timestamp, and its tiebreaker."""
        cutoff = len(self.columns) if self.cutoff is None else self.cutoff
        return tuple(each for i, each in enumerate(self.columns) if i < cutoff or i >= self.timestamp_index)

    @property
    def text(self) -> str:
        """The canonical text; `parse(schema.text)` is equivalent to the schema, and its text is the same."""
        columns = [column.text for column in self.columns]
        if self.cutoff == 0:
            # Nothing is compared before the timestamp: only the older form, with `&` behind it, can say that.
            statistics, compared = columns[: self.timestamp_index], columns[self.timestamp_index :]
            body = f"{'|'.join(compared)}&{'|'.join(statistics)}"
        else:
            body = "|".join(f"&{text}" if i == self.cutoff else text for i, text in enumerate(columns))
        name = "" if self.name is None else f"{self.name}="
        return f"{name}{body}/V{self.version}{_NULLS_FIRST if self.nulls_first else ''}"


def parse(text: str, time_column: str | None = None) -> SortSchema:
    """Return the parsed schema. Raises `InvalidInput` that quotes the text and says what is wrong with it.

    Where no column is called `timestamp`, the table's time column is taken for it.
    The older form `…|timestamp&column/V2` is read too: its columns behind `&` carry statistics only, and the result
    says so with the cutoff in front of the timestamp.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a sort schema is text such as service|timestamp/V2, found {text!r}")
    try:
        named, nulls_first = _split_nulls(text)
        name, rest = _split_name(named)
        body, version = _split_version(rest)
        columns, cutoff = _split_cutoff(body if time_column is None else _with_timestamp(body, time_column))
        _check(columns)
    except InvalidInput as error:
        raise InvalidInput(f"sort schema {text!r}: {error}", sort_schema=text) from error
    return SortSchema(name, columns, cutoff, version, nulls_first)


def equivalent(a: SortSchema, b: SortSchema, *, for_compaction: bool = False) -> bool:
    """Whether both mean the same: columns, types, directions, version and place of nulls; the name never counts.

    The cutoff counts too, except for compaction, which keeps the order that its inputs recorded.
    """
    return _meaning(a) == _meaning(b) and (for_compaction or a.cutoff == b.cutoff)


def nulls_of(recorded: str | None) -> Literal["first", "last"]:
    """Return where nulls are in the order that a split records, be it a sort schema or another order (then last)."""
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
        raise InvalidInput("more than one '='; only the schema name is set off by one")
    if not name:
        raise InvalidInput("the name before '=' is empty")
    return name, rest


def _split_version(text: str) -> tuple[str, int]:
    body, slash, version = text.rpartition("/")
    if not slash:
        raise InvalidInput("no version; end it with /V2")
    digits = version[1:]
    if version[:1] != "V" or not (digits.isascii() and digits.isdigit()):
        raise InvalidInput(f"/{version} is not a version; end it with /V2")
    if int(digits) < LEAST_VERSION:
        raise InvalidInput(f"version {version} is not supported; end it with /V2")
    return body, int(digits)


def _with_timestamp(body: str, time_column: str) -> str:
    """The columns with the time column under the name that the language has for it."""
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
    except InvalidInput:  # said where the columns are read
        return token


def _split_cutoff(body: str) -> tuple[tuple[SortColumn, ...], int | None]:
    before, marker, after = body.partition("&")
    if not marker:
        return _columns(before), None
    if "&" in after:
        raise InvalidInput("more than one '&'; one cutoff serves all columns behind it")
    if not before:
        raise InvalidInput("'&' on the first column would leave nothing to compare; move it to the right")
    if before.endswith("|"):
        head = _columns(before[:-1])
        return head + _columns(after), len(head)
    return _columns_of_older_form(_columns(before), _columns(after))


def _columns_of_older_form(
    compared: tuple[SortColumn, ...], statistics: tuple[SortColumn, ...]
) -> tuple[tuple[SortColumn, ...], int]:
    cutoff = next((i for i, column in enumerate(compared) if column.name in TIMESTAMP_NAMES), None)
    if cutoff is None:
        raise InvalidInput("'&' inside a column name; put it in front of a column, or behind the timestamp")
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
            raise InvalidInput(f"column {token!r} has more than name, type and direction")
    full_name, direction = _split_direction(token, named, colon_direction)
    name, type_ = _split_type(token, full_name, long_type)
    if not name:
        raise InvalidInput("a column has no name")
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
        raise InvalidInput(f"column {token!r} gives its direction twice; give it once")
    if found and found[0] not in ("+", "-"):
        raise InvalidInput(f"column {token!r} has the direction {found[0]!r}; use + or -")
    return named, found[0] if found else None


def _split_type(token: str, full_name: str, long_type: str | None) -> tuple[str, ColumnType | None]:
    name, separator, suffix = full_name.rpartition("__")
    short = _TYPE_BY_SUFFIX.get(suffix) if separator else None
    if long_type is None:
        return (name, short) if short else (full_name, None)
    written = _TYPE_BY_LONG_NAME.get(long_type)
    if written is None:
        raise InvalidInput(f"column {token!r} has the type {long_type!r}; use one of {', '.join(_TYPE_BY_LONG_NAME)}")
    if short is not None and short != written:
        raise InvalidInput(f"column {token!r} is {short} by its suffix and {written} by its type; keep one")
    return (name if short else full_name), written


def _check(columns: tuple[SortColumn, ...]) -> None:
    names = [column.name for column in columns]
    if twice := sorted(repeated(names)):
        raise InvalidInput(f"the columns {twice} occur more than once")
    stamps = [i for i, name in enumerate(names) if name in TIMESTAMP_NAMES]
    if len(stamps) != 1:
        raise InvalidInput(
            "exactly one timestamp column is needed; end the columns with |timestamp or the time column's own name"
        )
    stamp = columns[stamps[0]]
    if not stamp.descending or stamp.type != "int64":
        raise InvalidInput(f"the column {stamp.name!r} is ordered newest first and holds instants; leave it bare")
    behind = names[stamps[0] + 1 :]
    if behind not in ([], [TIEBREAKER]):
        raise InvalidInput(f"{behind} come after the timestamp, where only {TIEBREAKER!r} may stand")
    if SERIES in names:
        tags = names[names.index(SERIES) + 1 : stamps[0]]
        if tags:
            raise InvalidInput(f"{tags} come after {SERIES!r}, which already stands for all tags; move them before it")
