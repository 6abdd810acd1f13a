"""The parts of a table declaration: columns, indexes, landing place, late data, partitions, schedule, upkeep."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, NoReturn, Self

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from storage_core.errors import InvalidInput
from storage_core.ingest.landing import DeltaChanges, LandingFormat, LandingSpec
from storage_core.ingest.time_format import check_time_format
from storage_core.named_settings import INSTANT_FORMAT, parse_instant, read_raw_logs
from storage_core.objectstore.resolve import check_location, is_relative
from storage_core.rows import windows
from storage_core.rows.schema import from_schema_string
from storage_core.rows.vectors import dimensions_of, vector_type
from storage_core.settings.compaction import CompactionSettings
from storage_core.settings.cron import parse_cron
from storage_core.settings.index import IndexDefinition, IndexKind
from storage_core.settings.late_data import LateData, LatePolicy
from storage_core.settings.publish import Publish
from storage_core.settings.raw_logs import FeedingRawLog
from storage_core.settings.sizes import parse_size
from storage_core.settings.vector_options import VectorOptions, beside_kind

PARTITION_FORMAT = INSTANT_FORMAT
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


def _milliseconds(text: object) -> object:
    """Read `24h`, `30d` or a number of seconds as milliseconds; what is not text goes on to the field's own check."""
    return windows.parse_milliseconds(text) if isinstance(text, str) else text


def _instant(text: object) -> object:
    return parse_instant(text) if isinstance(text, str) else text


def _bytes(text: object) -> object:
    return parse_size(text) if isinstance(text, str) else text


def _raw_logs(given: object) -> tuple[FeedingRawLog, ...]:
    return tuple(each.moved(place) for each in read_raw_logs(given))


def _owner(text: str) -> str:
    if not _OWNER.fullmatch(text):
        raise InvalidInput(f"{text!r} is no owner; write an address such as ann@example.com, or team:data")
    return text


def _tag_key(text: str) -> str:
    return text if _TAG_KEY.fullmatch(text) else _refuse_tag(text)


def _tag_value(text: str) -> str:
    return text if _TAG_VALUE.fullmatch(text) else _refuse_tag(text)


def _refuse_tag(text: str) -> NoReturn:
    raise InvalidInput(f"{text!r} is no part of a tag; write up to 63 of A-Z a-z 0-9 _ - . and in a key at most one /")


Milliseconds = Annotated[int, BeforeValidator(_milliseconds), Field(ge=0)]
Seconds = Annotated[int, BeforeValidator(lambda text: windows.parse_duration(text) if isinstance(text, str) else text)]
Bytes = Annotated[int, BeforeValidator(_bytes)]
Instant = Annotated[datetime, BeforeValidator(_instant)]
Published = Annotated[Publish, BeforeValidator(Publish.of)]
RawLogs = Annotated[tuple[FeedingRawLog, ...], BeforeValidator(_raw_logs)]
Owners = tuple[Annotated[str, AfterValidator(_owner)], ...]
Tags = dict[Annotated[str, AfterValidator(_tag_key)], Annotated[str, AfterValidator(_tag_value)]]
Cron = Annotated[str, BeforeValidator(parse_cron)]


class Closed(BaseModel):
    """Immutable, and no field but the declared ones: a misspelt setting is an error, not a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ColumnDeclaration(Closed):
    """Type and nullability of one column; in short `int`, or `int!` for a column that must have a value."""

    type: str
    nullable: bool = True

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
        """Whether the column holds maps."""
        return _MAP.fullmatch(self.type) is not None


class IndexDeclaration(Closed):
    """One index: `kind` decides which `options` mean something; those of vectors may stand beside it."""

    name: str
    kind: IndexKind
    columns: tuple[str, ...]
    options: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _options_together(cls, value: object) -> object:
        return beside_kind(value) if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.kind == "vector":
            VectorOptions.of(self.name, self.options)
        return self

    def definition(self) -> IndexDefinition:
        """Return the record that travels with the table. Raises `InvalidInput`."""
        return IndexDefinition(self.name, self.kind, self.columns, self.options)


class LandingDeclaration(Closed):
    """Where files of this table land and how they read; the fields are those of `ingest.landing.LandingSpec`."""

    uri: Annotated[str, AfterValidator(check_location)]
    format: LandingFormat
    pattern: str | None = None
    time_format: str | None = None
    null_values: tuple[str, ...] = ()
    suffix: str | None = None
    changes: DeltaChanges | None = None

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.spec()
        if self.time_format is not None:
            check_time_format(self.time_format)
        return self

    @property
    def is_delta(self) -> bool:
        """Whether it is a Delta table, whose columns and wider types the table gets beside those declared."""
        return self.format == "delta"

    def spec(self) -> LandingSpec:
        """Return the record that ingestion works with. Raises `InvalidInput`."""
        return LandingSpec(**dict(self))


class PartitionsDeclaration(Closed):
    """The windows that Dagster shows and backfills: from `start` (inclusive) to `end` (exclusive; open when None)."""

    start: Instant
    end: Instant | None = None

    def require_windows(self, seconds: int | None) -> None:
        """Return when both are starts of windows of so many seconds, and not too many are between them."""
        if seconds is None:
            raise InvalidInput("only a table with a window has partitions")
        if any(each.timestamp() % seconds for each in (self.start, self.end) if each):
            raise InvalidInput(f"start and end must be starts of windows of {seconds} s")
        if self.end and not 0 < (self.end - self.start).total_seconds() / seconds <= MOST_PARTITIONS:
            raise InvalidInput(f"end must come after start, by at most {MOST_PARTITIONS} windows of {seconds} s")


class ScheduleDeclaration(Closed):
    """A cron line per step, UTC, named as its job. A step without one runs as soon as storage asks for it."""

    ingest: Cron | None = None
    merge: Cron | None = None
    sort: Cron | None = None
    expire: Cron = "2 * * * *"
    compact: Cron | None = None
    checkpoint: Cron = "20 * * * *"
    catch_up: Cron | None = None
    collect: Cron = "30 3 * * *"
    publish: Cron = "25 * * * *"


class LateDeclaration(Closed):
    """What becomes of rows that arrive later than `acceptance_window` after their event time."""

    policy: LatePolicy = LateData().policy
    acceptance_window: Milliseconds = LateData().acceptance_ms

    def setting(self) -> LateData:
        """Return the record that travels with the table."""
        return LateData(policy=self.policy, acceptance_ms=self.acceptance_window)


class CompactionDeclaration(Closed):
    """When splits are merged; the fields are those of `CompactionSettings`, its durations and its start as text."""

    factor: int = CompactionSettings().factor
    most_inputs: int = CompactionSettings().most_inputs
    generations: int = CompactionSettings().generations
    most_files: int = CompactionSettings().most_files
    cold_after: Milliseconds = CompactionSettings().cold_after_ms
    mature_after: Milliseconds = CompactionSettings().mature_after_ms
    run_rows: int = CompactionSettings().run_rows
    coarsen_after: Milliseconds = CompactionSettings().coarsen_after_ms
    coarsen_to: Seconds | None = None
    start: Instant | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        self.setting()
        return self

    def setting(self) -> CompactionSettings:
        """Return the record that travels with the table. Raises `InvalidInput`."""
        return CompactionSettings(
            factor=self.factor,
            most_inputs=self.most_inputs,
            generations=self.generations,
            most_files=self.most_files,
            cold_after_ms=self.cold_after,
            mature_after_ms=self.mature_after,
            run_rows=self.run_rows,
            coarsen_after_ms=self.coarsen_after,
            coarsen_to=self.coarsen_to,
            start=None if self.start is None else int(self.start.timestamp()),
        )


def place(uri: str) -> str:
    """Return where a declaration says that something is. Raises `InvalidInput` for no place, and for one with `..`."""
    if not uri.strip():
        raise InvalidInput(f"{uri!r} is not a place; write a path such as warehouse/events, or a URI")
    check_location(uri)
    if ".." in PurePosixPath(uri).parts:
        raise InvalidInput(f"{uri!r} leaves its folder with `..`; write the path without it")
    return uri


def below(root: Path, uri: str) -> str:
    """Return a place with what it is relative to: `root`, unless it is a URI or an absolute path."""
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
    """Return the type of a column as `arrow_field` takes it. Raises `InvalidInput` for what is none."""
    entries = _MAP.fullmatch(text)
    spark = f"map<{_spark(entries[1])},{_spark(entries[2])}>" if entries else _spark(text)
    try:
        arrow_field("column", spark)
    except InvalidInput as error:
        raise InvalidInput(f"{text!r} is not a column type; use one of {_COLUMN_TYPES}") from error
    return spark


def _spark(text: str) -> str:
    return _SPARK_NAMES.get(text, text)


def require_columns(names: tuple[str, ...] | list[str], columns: Mapping[str, object] | None) -> None:
    """Return when the columns, where they are known, have these names. Raises `InvalidInput` naming the others."""
    if columns is not None and (unknown := [name for name in names if name not in columns]):
        raise InvalidInput(f"{', '.join(map(repr, unknown))} is not among the columns {', '.join(columns)}")
