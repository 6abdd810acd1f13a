"""Parts of a declaration that the table does not store: columns, landing location, schedules and maintenance.

Cron lines and quiet hours are checked completely, so a scheduler can follow every accepted value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, Self

import pyarrow as pa
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from storage_core.base.errors import InvalidInput
from storage_core.base.text import unknown_names
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.rows.vectors import dimensions_of, vector_type
from storage_core.data.settings.setting import (
    DURATION_SCHEMA,
    INSTANT_FORMAT,
    INSTANT_SCHEMA,
    SIZE_SCHEMA,
    parse_instant,
    parse_milliseconds,
    parse_size,
)
from storage_core.data.settings.table import SETTINGS
from storage_core.data.steps import TABLE_STEPS
from storage_core.store.resolve import check_location, is_relative
from storage_core.write.ingest.drift import MOST_NEW_FIELDS, OnTypeConflict
from storage_core.write.ingest.landed_times import Nanoseconds, TimeUnit, Year
from storage_core.write.ingest.landing import DeltaChanges, Envelope, LandingFormat, LandingSpec

_TIME = r"([01]\d|2[0-3]):([0-5]\d)"
_HOURS = re.compile(rf"{_TIME}\s*-\s*(?:{_TIME}|(24):(00))")
_MINUTE_MS = 60_000
_DAY_MINUTES = 24 * 60
_FIELDS: Final[Mapping[str, range]] = {
    "minute": range(60),
    "hour": range(24),
    "day": range(1, 32),
    "month": range(1, 13),
    "weekday": range(8),
}
_PART = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?", re.ASCII)
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A range of times of day in minutes, from `start` (inclusive) to `end` (exclusive).

    The range crosses midnight if `end` is not later than `start`.
    """

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Return the hours in the text. Raises `InvalidInput`."""
        found = _HOURS.fullmatch(text.strip())
        if found is None:
            raise InvalidInput(
                f"{text!r} is not a valid range of hours. Write the range as 08:00-18:00 (UTC), or 22:00-06:00 "
                "past midnight"
            )
        first, second, *last = (int(each) for each in found.groups() if each is not None)
        start, end = first * 60 + second, last[0] * 60 + last[1]
        if start == end % _DAY_MINUTES:
            raise InvalidInput(f"{text!r} covers the whole day. Leave some hours of the day for maintenance")
        return cls(start, end)

    def hold(self, at_ms: int) -> bool:
        """Return whether the time `at_ms` is within the quiet hours."""
        minute = at_ms // _MINUTE_MS % _DAY_MINUTES
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return "-".join(f"{each // 60:02}:{each % 60:02}" for each in (self.start, self.end))


def parse_cron(given: object) -> str:
    """Return the cron line with single spaces between its five fields.

    Raises `InvalidInput` for a line that is not valid, and for a line that matches no date.
    """
    parts = given.split() if isinstance(given, str) else []
    if len(parts) != len(_FIELDS):
        raise InvalidInput(f"{given!r} is not a cron line of five fields, such as '*/15 * * * *'")
    found = {name: _numbers(part, name) for name, part in zip(_FIELDS, parts, strict=True)}
    day = min(found["day"])
    if day > max(_MONTH_DAYS[month - 1] for month in found["month"]):
        raise InvalidInput(
            f"{given!r} is a cron line that never matches, because its months have no day {day}. Give another day or "
            "month"
        )
    return " ".join(parts)


def _numbers(field: str, name: str) -> set[int]:
    """Return the numbers in one field of a cron line."""
    return {number for part in field.split(",") for number in _numbers_of_part(part, name)}


def _numbers_of_part(part: str, name: str) -> range:
    allowed = _FIELDS[name]
    if found := _PART.fullmatch(part):
        first, last, step = (None if each is None else int(each) for each in found.groups())
        start = allowed[0] if first is None else first
        is_one = first is not None and last is None and step is None
        end = start if is_one else allowed[-1] if last is None else last
        if start in allowed and end in allowed and (is_one or start < end) and step != 0:
            return range(start, end + 1, step or 1)
    raise InvalidInput(
        f"{part!r} is not a valid {name} of a cron line. Write *, a number from {allowed[0]} to {allowed[-1]}, or a "
        f"range such as {allowed[1]}-{allowed[4]}. A step after / must be 1 or more"
    )


AUTOMATION: Final = "automation.yaml"
"""The file next to `tables/` with the automation of all tables (decision 0037)."""
PARTITION_FORMAT = INSTANT_FORMAT
USUAL_PRIORITY = 5
_LEAST_FRESHNESS_MS = 60_000
MOST_PARTITIONS = 40_000
_COLUMN_TYPES = (
    "string, byte, short, int, long, float, double, boolean, date, timestamp, timestamp_ntz, decimal(p,s), binary, "
    "map<key,value> of two of these, vector(d)"
)
_SPARK_NAMES = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte"}
_SCALAR = r"\s*([a-z_]+(?:\(\d+,\s*\d+\))?)\s*"
_MAP = re.compile(rf"map<{_SCALAR},{_SCALAR}>")
_OWNER = re.compile(r"team:\S+|[^@\s]+@[^@\s]+\.[^@\s]+")
_TAG_KEY = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")


def _of_text(read: Callable[[Any], object]) -> BeforeValidator:
    """Return a validator that converts text and refuses lists. A value that is not text or a list stays unchanged."""
    return BeforeValidator(lambda given: read(given) if isinstance(given, str | list) else given)


def _switch(given: object) -> object:
    """Convert booleans to `on` and `off`. YAML 1.1 and Dagster's components read these words as booleans."""
    return {"true": "on", "false": "off"}.get(given, given) if isinstance(given, str) else given


def _freshness(duration_ms: int) -> int:
    if duration_ms < _LEAST_FRESHNESS_MS:
        raise InvalidInput(f"a freshness of {duration_ms} ms is too short. Dagster requires at least 1m")
    return duration_ms


def _owner(text: str) -> str:
    if not _OWNER.fullmatch(text):
        raise InvalidInput(f"{text!r} is not an owner. Write an address such as ann@example.com, or team:data")
    return text


def _tag_key(text: str) -> str:
    return text if _TAG_KEY.fullmatch(text) else _refuse_tag(text)


def _tag_value(text: str) -> str:
    return text if _TAG_VALUE.fullmatch(text) else _refuse_tag(text)


def _refuse_tag(text: str) -> NoReturn:
    raise InvalidInput(
        f"{text!r} is not a key or a value of a tag. Use at most 63 characters of A-Z a-z 0-9 _ - and a dot. A key "
        "may also have one /"
    )


def _written(schema: Mapping[str, object]) -> WithJsonSchema:
    """Return the JSON schema of the written form of a value."""
    return WithJsonSchema(dict(schema))


_MAX_REJECTED: Final = SETTINGS["landing.max_rejected"]
_Share = Annotated[
    float,
    BeforeValidator(lambda given: _MAX_REJECTED.default if given is None else _MAX_REJECTED.form.read(given)),
    _written(_MAX_REJECTED.schema),
]

Milliseconds = Annotated[int, _of_text(parse_milliseconds), Field(ge=0), _written(DURATION_SCHEMA)]
Bytes = Annotated[int, _of_text(parse_size), _written(SIZE_SCHEMA)]
Instant = Annotated[datetime, _of_text(parse_instant), _written(INSTANT_SCHEMA)]
Freshness = Annotated[Milliseconds, AfterValidator(_freshness)]
Hours = Annotated[str, AfterValidator(lambda text: str(QuietHours.parse(text)))]
Switch = Annotated[Literal["on", "off"], BeforeValidator(_switch), _written({"enum": ["on", "off", True, False]})]
Owners = tuple[Annotated[str, AfterValidator(_owner)], ...]
Tags = dict[Annotated[str, AfterValidator(_tag_key)], Annotated[str, AfterValidator(_tag_value)]]
Cron = Annotated[str, BeforeValidator(parse_cron)]


class Closed(BaseModel):
    """An immutable model without extra fields. A misspelled setting is therefore an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ColumnDeclaration(Closed):
    """Type and nullability of one column. Short form: `int`, or `int!` for a column that must have a value."""

    type: str
    nullable: bool = True

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema of both forms of a column."""
        return {
            "anyOf": [
                {
                    "type": "string",
                    "description": f"{_COLUMN_TYPES}. With `!` after the type, each row must have a value",
                },
                handler(core),
            ]
        }

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: object) -> object:
        if isinstance(value, str):
            return {"type": value.removesuffix("!"), "nullable": not value.endswith("!")}
        return value

    @field_validator("type")
    @classmethod
    def _known(cls, text: str) -> str:
        return spark_type(text)

    @property
    def is_map(self) -> bool:
        """Whether the column contains maps."""
        return self.key_type is not None

    @property
    def key_type(self) -> str | None:
        """The type of the keys of a map column, or None for another column."""
        found = _MAP.fullmatch(self.type)
        return None if found is None else found[1]


class LandingDeclaration(Closed):
    """The landing location of a table's files and their format.

    The fields are the fields of `ingest.landing.LandingSpec`, and the table setting `max_rejected`.
    """

    uri: Annotated[str, AfterValidator(check_location)]
    format: LandingFormat
    pattern: str | None = None
    time_format: str | None = None
    null_values: tuple[str, ...] = ()
    suffix: str | None = None
    changes: DeltaChanges | None = None
    encoding: str | None = None
    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool = True
    columns: tuple[str, ...] = ()
    times: dict[str, TimeUnit] = {}
    nanoseconds: Nanoseconds = "reject"
    year: Year | None = None
    on_new_field: str = "quarantine"
    on_type_conflict: OnTypeConflict = "quarantine"
    max_new_fields: int = MOST_NEW_FIELDS
    # The code version of assets contains the text of this model. Without `repr=False`, each of the following fields
    # would change the code version of every table.
    queue: str | None = Field(default=None, repr=False)
    list_every: Milliseconds | None = Field(default=None, repr=False)
    max_rejected: _Share = Field(default=_MAX_REJECTED.default, repr=False)  # type: ignore[assignment]  # a number
    op: str | None = Field(default=None, repr=False)
    order_by: str | None = Field(default=None, repr=False)
    envelope: Envelope | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.spec().check_time_format()
        return self

    @property
    def is_delta(self) -> bool:
        """Whether the landing location is a Delta table.

        The table then also gets the columns and wider types of the Delta table.
        """
        return self.format == "delta"

    def spec(self) -> LandingSpec:
        """Return the landing spec that ingestion uses. Raises `InvalidInput`."""
        given = {name: value for name, value in self if name not in ("max_rejected", "list_every")}
        times = tuple(sorted(self.times.items()))
        return LandingSpec(**{**given, "times": times, "list_every_ms": self.list_every})


class PartitionsDeclaration(Closed):
    """The windows that Dagster shows and backfills: from `start` (inclusive) to `end` (exclusive, or open if None)."""

    start: Instant
    end: Instant | None = None

    def require_windows(self, seconds: int | None) -> None:
        """Raise `InvalidInput` unless `start` and `end` are starts of windows of this length.

        They may be at most `MOST_PARTITIONS` windows apart.
        """
        if seconds is None:
            raise InvalidInput(
                "partitions need a table with a window. Declare a time_column and a window, or leave partitions out"
            )
        if any(each.timestamp() % seconds for each in (self.start, self.end) if each):
            raise InvalidInput(
                f"start or end is not the start of a window of {seconds} s. Write starts of windows, such as "
                "2026-01-01T00:00"
            )
        if self.end and not 0 < (self.end - self.start).total_seconds() / seconds <= MOST_PARTITIONS:
            raise InvalidInput(
                f"end must come after start, by at most {MOST_PARTITIONS} windows of {seconds} s. Correct start or end"
            )


class _Schedule(Closed):
    def cron_of(self, step: str) -> str:
        """Return the cron line of a step.

        If the line is empty, the step has no schedule and runs as soon as there is work.
        """
        line: str | None = getattr(self, step)
        return line or ""


if TYPE_CHECKING:

    class ScheduleDeclaration(_Schedule):
        """One cron line for each step of a table."""
else:
    ScheduleDeclaration = create_model(
        "ScheduleDeclaration",
        __base__=_Schedule,
        __doc__="One cron line per step, in UTC. The name of a field is the job of the step. A step without a cron "
        "line runs when needed.",
        **{each.name: (Cron, each.cron) if each.cron else (Cron | None, None) for each in TABLE_STEPS},
    )


class Budgeted(Closed):
    """Limits of maintenance: bytes to read per hour, and hours of the day (UTC) without maintenance (decision 0037)."""

    bytes_per_hour: Annotated[Bytes, Field(ge=1)] | None = None
    quiet_hours: Hours | None = None

    def is_quiet(self, at_ms: int) -> bool:
        """Return whether maintenance is paused at this time."""
        return self.quiet_hours is not None and QuietHours.parse(self.quiet_hours).hold(at_ms)


class UpkeepDeclaration(Budgeted):
    """The maintenance of one table: its limits and its priority. Tables with a higher `priority` come first."""

    priority: int = Field(default=USUAL_PRIORITY, ge=0, le=10)


class UpkeepOfAllDeclaration(Budgeted):
    """The maintenance of all tables together: its limits, and the maximum number of runs that are queued or running."""

    runs_at_once: int | None = Field(default=None, ge=1)


class AutomationDeclaration(Closed):
    """The automation of all tables.

    `default` applies to tables without a setting. `interval` is the minimum time between two ticks of the upkeep
    sensor.
    """

    default: Switch | None = None
    interval: Annotated[Milliseconds, Field(ge=1_000, le=86_400_000)] = 30_000


def place(uri: str) -> str:
    """Return the location in a declaration. Raises `InvalidInput` if the text is not a location or contains `..`."""
    if not uri.strip():
        raise InvalidInput(f"{uri!r} is not a location. Write a path such as warehouse/events, or a URI")
    check_location(uri)
    if ".." in PurePosixPath(uri).parts:
        raise InvalidInput(f"{uri!r} leaves its folder with `..`. Write the path without `..`")
    return uri


def below(root: Path, uri: str) -> str:
    """Return a location below `root`, or the same location if it is a URI or an absolute path."""
    return str(root / uri) if is_relative(uri) else uri


def arrow_field(name: str, spark_type: str, *, nullable: bool = True) -> pa.Field:
    """Return the Arrow field of a column. Raises `InvalidInput` for an unknown type."""
    dimensions = dimensions_of(spark_type)
    if dimensions is not None:
        return pa.field(name, vector_type(dimensions), nullable)
    kind: object = spark_type
    if entries := _MAP.fullmatch(spark_type):
        kind = {"type": "map", "keyType": entries[1], "valueType": entries[2], "valueContainsNull": True}
    field = {"name": name, "type": kind, "nullable": nullable, "metadata": {}}
    return from_schema_string(json.dumps({"type": "struct", "fields": [field]})).field(0)


def spark_type(text: str) -> str:
    """Return the type of a column in the form that `arrow_field` takes. Raises `InvalidInput` for an unknown type."""
    entries = _MAP.fullmatch(text)
    spark = f"map<{_spark(entries[1])},{_spark(entries[2])}>" if entries else _spark(text)
    try:
        arrow_field("column", spark)
    except InvalidInput as error:
        is_decimal = text.startswith("decimal(")
        advice = "Give 1 to 38 digits, such as decimal(38,2)" if is_decimal else f"Use one of {_COLUMN_TYPES}"
        raise InvalidInput(f"{text!r} is not a column type. {advice}") from error
    return spark


def _spark(text: str) -> str:
    return _SPARK_NAMES.get(text, text)


def require_columns(names: tuple[str, ...] | list[str], columns: Mapping[str, object] | None) -> None:
    """Raise `InvalidInput` if a name is not among the columns. The error contains each unknown name.

    Accept all names if the columns are unknown.
    """
    if columns is not None and (unknown := [name for name in names if name not in columns]):
        raise InvalidInput(unknown_names("column", unknown, list(columns)))
