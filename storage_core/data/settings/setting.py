"""The definition of a setting: its entry, the forms of its values, and the text of a value in the log.

A record declares its settings as fields, such as `factor: int = setting(10, COUNT, least=2)`. The record's docstring
describes each setting. The entry of a setting is a `Setting`. All code uses this entry to read, show, store, check or
document the setting.

The module has three parts:

- Values of `metaData.configuration`. The values are texts, and functions such as `json_value` read these texts. Errors
  name the key.
- The grammar of the values that users write: durations, sizes, times, numbers and lists of names. Declarations,
  commands and `alter` share this grammar. If the name of a function ends in `_text`, the function writes a value as
  text. The function returns the shortest text that the matching function for reading accepts.
- `Form` and `Setting`, which combine these functions, and the forms themselves, such as `COUNT` and `SECONDS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeGuard, TypeVar, cast

from storage_core.base.errors import InvalidInput
from storage_core.base.text import choice_of, quoted

# Values of `metaData.configuration`.


def json_text(value: object) -> str:
    """Return the value as JSON without spaces. Characters outside ASCII are not escaped."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def json_value(key: str, text: str) -> object:
    """Return the parsed JSON value of a configuration entry. Raises `InvalidInput` with the key."""
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"table configuration {key!r}: not JSON ({error}): {quoted(text)}", key=key) from error


def json_object(key: str, text: str) -> dict[str, object]:
    """Return the parsed JSON object of a configuration entry. Raises `InvalidInput` with the key."""
    value = json_value(key, text)
    if not isinstance(value, dict):
        raise InvalidInput(f"table configuration {key!r}: expected a JSON object, found {quoted(text)}", key=key)
    return value


def column_names(key: str, value: object) -> tuple[str, ...]:
    """Return the names in a parsed list of names. Raises `InvalidInput` with the key."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidInput(f"table configuration {key!r}: expected a list of column names, found {value!r}", key=key)
    return tuple(value)


def whole_numbers(key: str, text: str) -> tuple[int, ...]:
    """Return the numbers in a JSON list of whole numbers. Raises `InvalidInput` with the key."""
    value = json_value(key, text)
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise InvalidInput(f"table configuration {key!r}: expected a list of whole numbers, found {text!r}", key=key)
    return tuple(value)


def whole_number(key: str, text: str) -> int:
    """Return the whole number in a configuration entry. Raises `InvalidInput` with the key."""
    try:
        return int(text)
    except ValueError as error:
        raise InvalidInput(f"table configuration {key!r}: expected a whole number, found {text!r}", key=key) from error


# The grammar of the values that users write.

INSTANT_FORMAT: Final = "%Y-%m-%dT%H:%M"

DURATION_PATTERN: Final = r"(?!\d{6,}d)(\d{1,9})(ms|[smhd]?)"
"""The grammar of durations. A duration of more than 99,999 days in microseconds does not fit into a 64-bit integer."""
SIZE_PATTERN: Final = r"(\d{1,15})\s*(B|[KMGT]i?B)?"

_DURATION = re.compile(DURATION_PATTERN)
_SIZE = re.compile(SIZE_PATTERN)
_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMBER = re.compile(r"(?=\.?\d)\d{0,19}\.?\d{0,30}(e-\d{1,3})?", re.ASCII)
_UNIT_MS: Final[Mapping[str, int]] = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "": 1000, "ms": 1}
_BINARY: Final[Mapping[str, int]] = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_DECIMAL: Final[Mapping[str, int]] = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3}
_TRUE, _FALSE = ("true", "yes", "on", "y", "t", "1"), ("false", "no", "off", "n", "f", "0")

T = TypeVar("T")


def parse_milliseconds(value: str | int) -> int:
    """Return milliseconds for `900` or `"900"` (seconds), `"500ms"`, `"90s"`, `"15m"`, `"1h"` or `"30d"`.

    All durations use this grammar. Raises `InvalidInput` for anything else.
    """
    if _is_whole(value):
        return value * 1000
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise InvalidInput(f"{value!r} is not a duration. Write seconds or a number with ms, s, m, h or d, such as 15m")
    return int(found[1]) * _UNIT_MS[found[2]]


def parse_duration(value: str | int) -> int:
    """Return whole seconds for a value that `parse_milliseconds` accepts. Bounds are not checked.

    Raises:
        InvalidInput: The value is not a duration, or not a whole number of seconds.
    """
    seconds, rest = divmod(parse_milliseconds(value), 1000)
    if rest:
        raise InvalidInput(
            f"{value!r} is not a whole number of seconds. Write whole seconds, or a number with ms, s, m, h or d"
        )
    return seconds


def milliseconds_text(ms: int) -> str:
    """Return the text of a duration in the largest unit that divides it."""
    unit = next(name for name, size in _UNIT_MS.items() if ms % size == 0 and name and (ms or name == "s"))
    return f"{ms // _UNIT_MS[unit]}{unit}"


def duration_text(seconds: int) -> str:
    """Return the text of a duration in the largest unit that divides it."""
    return milliseconds_text(1000 * seconds)


def parse_size(given: str | int) -> int:
    """Return bytes for a number of bytes or a text such as `64MiB`. Raises `InvalidInput`."""
    if _is_whole(given):
        return given
    found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        raise InvalidInput(
            f"{given!r} is not a size. Write a number of bytes, or a number with a unit, such as 50GB or 256MiB. The "
            "units are KB, MB, GB, TB, KiB, MiB, GiB and TiB"
        )
    return int(found[1]) * {**_BINARY, **_DECIMAL}.get(found[2] or "", 1)


def size_text(size_bytes: int) -> str:
    """Return the text of a number of bytes."""
    unit = next((name for name, size in _BINARY.items() if size_bytes and size_bytes % size == 0), None)
    return str(size_bytes) if unit is None else f"{size_bytes // _BINARY[unit]}{unit}"


def parse_instant(text: str) -> datetime:
    """Return the time in UTC of a text such as `2015-05-17T00:00`. Raises `InvalidInput`."""
    try:
        return datetime.strptime(text, INSTANT_FORMAT).replace(tzinfo=UTC)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{text!r} is not a time. Write the time as 2015-05-17T00:00 (UTC, without zone and seconds)"
        ) from error


def parse_seconds(given: str | int | datetime) -> int:
    """Return a time as seconds since the epoch. The time is a text for `parse_instant`, a datetime, or seconds."""
    if _is_whole(given):
        return given
    return int((given if isinstance(given, datetime) else parse_instant(parse_text(given))).timestamp())


def instant_text(seconds: int) -> str | int:
    """Return the text of a time. Return the number of seconds if the time is not a whole minute."""
    return seconds if seconds % 60 else datetime.fromtimestamp(seconds, UTC).strftime(INSTANT_FORMAT)


def parse_whole(given: object) -> int:
    """Return a whole number that is given as a number or as text. Raises `InvalidInput`."""
    if _is_whole(given):
        return given
    if not isinstance(given, str) or not _WHOLE.fullmatch(given.strip()):
        raise InvalidInput(f"{given!r} is not a whole number. Write a whole number, such as 10")
    return int(given)


def parse_share(given: object) -> float:
    """Return a number from 0 to 1. `given` is a number, or a text that contains a number. Raises `InvalidInput`."""
    text = given.strip() if isinstance(given, str) else str(given)
    if isinstance(given, bool) or not _NUMBER.fullmatch(text) or float(text) > 1:
        raise InvalidInput(f"{given!r} is not a number from 0 to 1. Write 0.01 for one percent")
    return float(text)


def parse_flag(given: object) -> bool:
    """Return True or False. The value may also be a text that YAML reads as a boolean. Raises `InvalidInput`."""
    text = given.strip().lower() if isinstance(given, str) else ""
    if isinstance(given, bool) or text in (*_TRUE, *_FALSE):
        return given is True or text in _TRUE
    raise InvalidInput(f"{given!r} is neither true nor false. Write true or false")


def parse_text(given: object) -> str:
    """Return the text. Raises `InvalidInput` for a value that is not a text."""
    if not isinstance(given, str):
        raise InvalidInput(f"{given!r} is not text. Write a text")
    return given


def parse_names(given: object) -> tuple[str, ...]:
    """Return the names in a list, or in a text that separates names by commas. Raises `InvalidInput`."""
    if isinstance(given, str):
        return tuple(each.strip() for each in given.split(",") if each.strip())
    return parse_columns(given)


def parse_columns(given: object) -> tuple[str, ...]:
    """Return the names in a list. If the given value is a text instead of a list, the function returns this text as the
    only name. Raises `InvalidInput`.
    """
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise InvalidInput(f"{given!r} is not a list of names. Write a list, such as [a, b]")
    return tuple(given)


def from_json(given: object, advice: str) -> object:
    """Return the value of JSON text. If the given value is not a text, return the value unchanged.

    Raises:
        InvalidInput: The text is not JSON. Its message ends with `advice`.
    """
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{quoted(given)} is not valid JSON. {advice}") from error


def each_of(read: Callable[[object], T], given: Sequence[object]) -> Iterator[T]:
    """Yield the result of `read` for each element. The context `at` of an error contains the element's number."""
    for number, each in enumerate(given):
        with located(number):
            yield read(each)


@contextmanager
def located(part: str | int) -> Iterator[None]:
    """Prepend `part` to the context `at` of an `InvalidInput` that the block raises.

    The context `at` is the path from a value to its invalid part.
    """
    try:
        yield
    except InvalidInput as error:
        raise error.reworded(error.found, at=(part, *place_of(error))) from error


def place_of(error: InvalidInput) -> tuple[str | int, ...]:
    """Return the path from the checked value to the invalid part that the error describes."""
    at = error.context.get("at", ())
    return at if isinstance(at, tuple) else ()


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# The definition of a setting.

JsonSchema = Mapping[str, object]

_ABOUT = re.compile(r"^ +- `(\w+)`: (.*(?:\n {6}.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Form:
    """The conversions of one kind of value.

    Attributes:
        read: Converts a value that a person gives, as text or in another form.
        show: Returns plain data that `read` accepts.
        store: Returns the text of the value in the log.
        load: Converts the text in the log to a value. Its first argument is the key, for errors.
        schema: The JSON schema with which an editor checks a value.
        unit: The unit of a number in the log.
    """

    read: Callable[[Any], Any]
    show: Callable[[Any], Any]
    store: Callable[[Any], str]
    load: Callable[[str, str], Any]
    schema: JsonSchema
    unit: str = ""

    def shown(self, value: object) -> object:
        """Return the value as plain data. None stays None."""
        return None if value is None else self.show(value)


class Change(StrEnum):
    """The way in which a setting of an existing table can change.

    The text of a member is the end of the error message for a forbidden change of the setting.
    """

    ALTER = "cannot be changed this way. Use `Table.alter`, `tidemark alter` or the declaration"
    NEVER = "cannot be changed after the table was created. For another value, make a new table"
    REGIONS = "cannot be changed this way. Use `Table.set_regions`"
    WINDOW = "cannot be changed. Tidemark changes this setting when the setting window changes"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a table.

    Attributes:
        form: The conversions of its values.
        about: The description of the setting for the docs and for editors. It is taken from the docstring of the
            record.
        name: The path of the setting in `tables/NAME.yaml`, such as `gc.retention`. By default, it is derived from the
            name of the field.
        key: The entry of `metaData.configuration` that stores the setting. By default, it is derived from the name of
            the field. A part of a record has no key.
        usual: The meaning of the default if the default is None or empty.
        least: The smallest valid value.
        most: The largest valid value.
        choices: All valid values, if they are a fixed list.
        change: How the setting can change after the table was created.
        feature: The table feature that a table needs if its log has the entry. Older releases refuse the table.
        field: The field of the record that declares the setting.
        default: The default of that field.
        record: The field of `TableConfig` that contains the record. Empty if the record is `TableConfig` itself.
    """

    form: Form
    about: str = ""
    name: str = ""
    key: str = ""
    usual: str = "none"
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    change: Change = Change.ALTER
    feature: str | None = None
    field: str = ""
    default: object = None
    record: str = ""

    def of(self, config: object) -> object:
        """Return the value that the setting has in the settings of a table. Return None if the table does not have the
        record.
        """
        record = getattr(config, self.record) if self.record else config
        return None if record is None else getattr(record, self.field)

    def read(self, given: object) -> object:
        """Return the given value, or the default for None. Raises `InvalidInput` with the name of the setting."""
        try:
            return self.default if given is None else self.form.read(given)
        except InvalidInput as error:
            raise error.reworded(f"{self.name}: {error.found}", setting=self.name) from error

    def check(self, value: Any) -> None:
        """Raise `InvalidInput` for a value out of bounds.

        The message contains the name and the value in the form of a declaration.
        """
        if self.choices and value not in self.choices:
            raise InvalidInput(choice_of(self.name, value, self.choices))
        if self.least is not None and value is not None and value < self.least:
            raise InvalidInput(f"{self.name} is {self.form.show(value)}. Give {self.form.show(self.least)} or more")
        if self.most is not None and value is not None and value > self.most:
            raise InvalidInput(f"{self.name} is {self.form.show(value)}. Give {self.form.show(self.most)} or less")

    @property
    def schema(self) -> JsonSchema:
        """The JSON schema of the setting in a declaration."""
        own: dict[str, object] = {**self.form.schema, "description": self.about}
        if self.choices:
            own["enum"] = list(self.choices)
        if own.get("type") == "integer":
            own |= {name: each for name, each in (("minimum", self.least), ("maximum", self.most)) if each is not None}
        return own if self.default in (None, (), {}) else {**own, "default": self.form.shown(self.default)}

    @property
    def default_text(self) -> str:
        """The default as the docs show it."""
        shown = self.form.shown(self.default)
        return self.usual if shown in (None, [], {}) else f"`{str(shown).lower() if shown in (True, False) else shown}`"


def setting(default: Any, form: Form, **more: Any) -> Any:
    """Return a dataclass field that declares a setting. `more` contains the fields of `Setting` other than `form` and
    `default`.
    """
    entry = Setting(form, default=default, **more)
    if isinstance(default, dict):  # a dataclass does not accept a dict as a default
        return field(default_factory=dict, metadata={"setting": entry})
    return field(default=default, metadata={"setting": entry})


def settings_of(record: Any) -> Mapping[str, Setting]:
    """Return the settings that the fields of a dataclass declare, by field."""
    return _settings_of(record)


@cache
def _settings_of(record: Any) -> Mapping[str, Setting]:
    abouts = {name: " ".join(text.split()) for name, text in _ABOUT.findall(record.__doc__ or "")}
    return {each.name: _completed(each.metadata["setting"], each.name, abouts) for each in fields(record)}


def _completed(entry: Setting, name: str, abouts: Mapping[str, str]) -> Setting:
    first, *others = name.split("_")
    key = entry.key or "".join(["tidemark.", first, *map(str.title, others)])
    return replace(entry, name=entry.name or name.removesuffix("_ms"), key=key, field=name, about=abouts.get(name, ""))


def check_bounds(record: Any, group: str = "") -> None:
    """Raise `InvalidInput` if a field of the record has a value outside the bounds of its setting.

    If the record is a group of table settings, `group` is the first part of the setting names.
    """
    for name, setting in settings_of(type(record)).items():
        named = replace(setting, name=f"{group}.{setting.name}") if group else setting
        named.check(getattr(record, name))


# The forms of setting values: how a value is read, checked and written.


def _or_number(pattern: str) -> JsonSchema:
    return {"anyOf": [{"type": "string", "pattern": f"^{pattern}$"}, {"type": "integer", "minimum": 0}]}


NAMES_SCHEMA: Final[JsonSchema] = {"type": "array", "items": {"type": "string"}}
DURATION_SCHEMA: Final = _or_number(DURATION_PATTERN)
SIZE_SCHEMA: Final = _or_number(SIZE_PATTERN)
INSTANT_SCHEMA: Final[JsonSchema] = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d$"}
_NAMES_SCHEMA_OR_ONE: Final[JsonSchema] = {"anyOf": [{"type": "string"}, NAMES_SCHEMA]}


def _load_names(key: str, text: str) -> tuple[str, ...]:
    return column_names(key, json_value(key, text))


def _load_share(key: str, text: str) -> float:
    try:
        return parse_share(text)
    except InvalidInput as error:
        raise InvalidInput(f"table configuration {key!r}: {error}", key=key) from error


def json_list(found: Any) -> str:
    """Return the JSON of a list."""
    return json_text(list(found))


TEXT: Final = Form(parse_text, str, str, lambda _, text: text, {"type": "string"})
COUNT: Final = Form(parse_whole, int, str, whole_number, {"type": "integer"})
SIZE: Final = Form(parse_size, size_text, str, whole_number, SIZE_SCHEMA, "bytes")
SHARE: Final = Form(parse_share, float, json_text, _load_share, {"type": "number", "minimum": 0, "maximum": 1})
FLAG: Final = Form(parse_flag, bool, lambda _: "true", lambda _, text: text == "true", {"type": "boolean"})
MILLISECONDS: Final = Form(parse_milliseconds, milliseconds_text, str, whole_number, DURATION_SCHEMA, "milliseconds")
SECONDS: Final = Form(parse_duration, duration_text, str, whole_number, DURATION_SCHEMA, "seconds")
INSTANT: Final = Form(parse_seconds, instant_text, str, whole_number, INSTANT_SCHEMA, "seconds since 1970")
NAMES: Final = Form(parse_names, list, json_list, _load_names, NAMES_SCHEMA)
COLUMNS: Final = Form(parse_columns, list, json_list, _load_names, _NAMES_SCHEMA_OR_ONE)
NUMBERS: Final = Form(tuple, list, json_list, whole_numbers, {"type": "array"}, "seconds")
