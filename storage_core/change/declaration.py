"""Declarations of tables (`tables/*.yaml`) and of raw logs (`raw_logs/*.yaml`).

A table declaration defines the table, its landing location, and the times of its maintenance. A raw log declaration
defines the stores and tables of the raw log, and the times of its distribution. A new file adds a table or a raw log.

A file is checked completely when it is loaded. Each error contains the file, the line and the field. Every scalar is
read as text, and the field converts the text. A column with the name `on` or `no` is therefore not a boolean. The
fields for the settings of a table are generated from `settings.table`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, create_model, field_validator

from storage_core.base.errors import InvalidInput, TidemarkError
from storage_core.base.text import quoted, repeated
from storage_core.change.declaration_file import load_as
from storage_core.change.declaration_parts import (
    Closed,
    ColumnDeclaration,
    Cron,
    Freshness,
    LandingDeclaration,
    Milliseconds,
    Owners,
    PartitionsDeclaration,
    ScheduleDeclaration,
    Switch,
    Tags,
    UpkeepDeclaration,
    arrow_field,
    below,
    place,
    require_columns,
)
from storage_core.change.definition import CHECKS, in_canonical_form
from storage_core.data.formats.keys import validate_table_name
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.setting import Change, Setting
from storage_core.data.settings.table import GROUPS, SETTINGS, FeedingRawLog, Publish, TableConfig, with_values
from storage_core.store.resolve import written_alike
from storage_core.write.distribution.work import UNIQUE_FOR_MS
from storage_core.write.ingest.changes import ChangeFormat
from storage_core.write.ingest.landing import LandingSpec, captured_columns, reject_overlap
from storage_core.write.raw_log.history import CLOSED_AFTER_MS
from storage_core.write.region.spec import first_specs

_FIRST: Final = ("columns", "time_column", "primary_key", "coarse_window", "window", "indexes")
"""Fields that are checked first because other checks need them, in the order of the checks."""
_NEEDS: Final = {"retention": "window", "compaction": "window", "maintained_indexes": "indexes"}
"""Settings that cannot be checked if another field is invalid."""


class _Placed(Closed):
    name: str = Field(description="the name of the table in commands and assets")
    uri: str = Field(description="the location of the table: a path or `s3://bucket/…`")
    columns: dict[str, ColumnDeclaration] = Field(
        min_length=1,
        description="name and type of each column: `string, byte, short, int, long, float, double, boolean, date, "
        "timestamp, timestamp_ntz, decimal(p,s), binary, map<key,value>, vector(d)`. With `!` after the type, each "
        "row must have a value",
    )

    @field_validator("name")
    @classmethod
    def _name_is_a_table_name(cls, name: str) -> str:
        return validate_table_name(name)

    @field_validator("uri")
    @classmethod
    def _uri_stays_below_its_root(cls, uri: str) -> str:
        return place(uri)

    @field_validator("columns")
    @classmethod
    def _columns_are_distinct(cls, columns: dict[str, ColumnDeclaration]) -> dict[str, ColumnDeclaration]:
        seen: dict[str, str] = {}
        for name in columns:
            if not name.isprintable() or not name.strip() or name.startswith("_"):
                raise InvalidInput(
                    f"{name!r} cannot name a column: the name is blank, unprintable or starts with `_`. Give "
                    "the column another name"
                )
            other = seen.setdefault(name.casefold(), name)
            if other is not name:
                raise InvalidInput(f"the columns {other!r} and {name!r} differ only in case. Rename one")
        return columns


def _field(entry: Setting) -> tuple[Any, Any]:
    """Return the pydantic type and default of a setting's field."""
    # A region spec is created when the columns are known. The declaration contains only the fields of the region spec.
    default = () if entry.change is Change.REGIONS else entry.default

    def read(given: object) -> object:
        if given is None:
            return default
        if isinstance(given, str) and entry.schema.get("type") == "array":
            raise InvalidInput(f"{quoted(given)} is not a list. Write the list in brackets: [{given[:80]}]")
        value = entry.form.read(given)
        entry.check(value)
        return value

    return Annotated[Any, BeforeValidator(read)], Field(default=default, json_schema_extra=_described(entry.schema))


def _described(schema: Mapping[str, object]) -> Callable[[dict[str, Any]], None]:
    """Return a function that replaces pydantic's JSON schema with the schema of the setting."""

    def put(found: dict[str, Any]) -> None:
        found.pop("default", None)
        found.update(schema)

    return put


def _group(name: str, about: str) -> tuple[Any, Any]:
    """Return the pydantic type and default of a group of settings.

    If a table has no `late_data`, the group `late_data` has no value.
    """
    parts = {
        each.name.removeprefix(f"{name}."): _field(each)
        for each in SETTINGS.values()
        if each.name.startswith(f"{name}.")
    }
    model: Any = create_model(name.title().replace("_", ""), __base__=Closed, __doc__=about, **parts)  # type: ignore[call-overload]
    type_, default = (model | None, None) if name == "late_data" else (model, model())
    return type_, Field(default=default, json_schema_extra=_described({"description": about}))


def _fields() -> dict[str, tuple[Any, Any]]:
    single = [name for name, each in SETTINGS.items() if "." not in name and each.change is not Change.WINDOW]
    first = [name for name in _FIRST if name in single]
    fields = {name: _field(SETTINGS[name]) for name in (*first, *single)}
    return fields | {name: _group(name, about) for name, about in GROUPS.items()}


if TYPE_CHECKING:

    class _Settings(_Placed):
        """Settings that other modules read by name. `config` returns all settings."""

        time_column: str | None
        window: int | None
        primary_key: tuple[str, ...]
        regions: tuple[Any, ...]
        indexes: tuple[IndexDefinition, ...]
        retention: int | None
        raw_logs: tuple[FeedingRawLog, ...]
        publish: Publish
else:
    _Settings = create_model("_Settings", __base__=_Placed, **_fields())


class TableDeclaration(_Settings):
    """The declaration of one table. Each field is checked against the fields above it.

    `retention` applies to rows. `gc.retention` is the time for which old versions can be read. Reads at `latest`
    include the rows in `raw_logs`.
    """

    landing: LandingDeclaration | None = Field(
        default=None,
        description="`{uri: landing/clicks, format: ndjson}`. Formats: `ndjson`, `json`, `csv`, `parquet`, `avro`, "
        "`arrow`, `pattern` (with a regular expression in `pattern`), `delta` (a Delta table, with `changes: refuse`, "
        "`skip` or `apply`). Also `time_format`, `null_values`, `suffix`, settings of the format, and `queue` with "
        "`list_every` (see below)",
    )
    freshness: Freshness | None = Field(
        default=None,
        description="when no rows came in for this long, `tidemark status`, Dagster and alerts report that the table "
        "is behind",
    )
    partitions: PartitionsDeclaration | None = Field(
        default=None,
        description="`{start: 2026-01-01T00:00, end: …}`: the windows that Dagster shows and backfills",
    )
    schedule: ScheduleDeclaration = Field(
        default=ScheduleDeclaration(),
        description='a cron line (UTC) per step: `{compact: "0 2 * * *"}`. A step without a line runs when needed',
    )
    upkeep: UpkeepDeclaration = Field(
        default=UpkeepDeclaration(),
        description='`{priority: 5, bytes_per_hour: 50GB, quiet_hours: "08:00-18:00"}`: which table comes first, what '
        "maintenance may read in an hour, and when it rests (UTC)",
    )
    automation: Switch | None = Field(
        default=None,
        description="`on`: the sensors and schedules of maintenance start by themselves for this table. "
        "`off`: the sensors and schedules ignore the table",
    )
    backfill_job: bool = Field(default=False, description="a job `NAME_backfill`, for `dagster job backfill`")
    owners: Owners = Field(default=(), description="`[ann@example.com, team:data]`: on every asset of the table")
    tags: Tags = Field(default_factory=dict, description="`{domain: web}`: on every asset of the table")

    def schema(self) -> pa.Schema:  # type: ignore[override]  # pydantic's own is deprecated and means something else
        """Return the columns in declared order. The time column and the key columns are required (not nullable)."""
        required = {self.time_column, *self.primary_key}
        return pa.schema(
            [
                arrow_field(name, column.type, nullable=column.nullable and name not in required)
                for name, column in self.columns.items()
            ]
        )

    def config(self) -> TableConfig:
        """Return the settings that are stored with the table. The sort schema has its canonical text."""
        return in_canonical_form(self._config())

    def _config(self) -> TableConfig:
        return with_values(TableConfig(), {**dict(self._values()), "regions": first_specs(self.regions, self.schema())})

    def _values(self) -> Iterator[tuple[str, object]]:
        for name, entry in SETTINGS.items():
            group, _, part = name.rpartition(".")
            owner = getattr(self, group) if group else self
            if entry.change is not Change.WINDOW and owner is not None:
                yield name, getattr(owner, part)

    def below(self, root: Path) -> TableDeclaration:
        """Return the declaration with its relative locations resolved against `root`."""
        changes: dict[str, object] = {"uri": below(root, self.uri)}
        if self.landing:
            changes["landing"] = self.landing.model_copy(update={"uri": below(root, self.landing.uri)})
        if self.raw_logs:
            changes["raw_logs"] = tuple(each.moved(lambda uri: below(root, uri)) for each in self.raw_logs)
        return self.model_copy(update=changes)

    def landing_spec(self) -> LandingSpec | None:
        """Return the landing location of the table, or None if rows come only through writers."""
        return self.landing.spec() if self.landing else None

    @field_validator("*")
    @classmethod
    def _setting_fits(cls, value: Any, info: ValidationInfo) -> Any:
        """Check a setting against the columns and the settings above it.

        If some of these are not valid, skip the check.
        """
        name = str(info.field_name)
        of_table = name in GROUPS or name in SETTINGS
        before = _FIRST[: _FIRST.index(name)] if name in _FIRST else ("columns", "time_column", "primary_key")
        if not of_table or not {*before, _NEEDS.get(name, "columns")} <= info.data.keys():
            return value
        if name == "raw_logs":
            value = tuple(each.moved(place) for each in value)
        found = cls.model_construct(**{**info.data, name: value})
        check, config = CHECKS.get(name), found._config()  # noqa: SLF001  # of this class
        if check is not None:
            check(found.schema(), config)
        return value

    @field_validator("backfill_job")
    @classmethod
    def _only_windows_are_backfilled(cls, value: object, info: ValidationInfo) -> object:
        if value and "window" in info.data and info.data["window"] is None:
            raise InvalidInput("a table without windows has nothing to backfill. Leave out backfill_job")
        return value

    @field_validator("landing")
    @classmethod
    def _landed_files_fill_the_columns(
        cls, landing: LandingDeclaration | None, info: ValidationInfo
    ) -> LandingDeclaration | None:
        if landing is None or not {"columns", "time_column", "primary_key"} <= info.data.keys():
            return landing
        if info.data["primary_key"] and landing.changes not in (None, "apply"):
            raise InvalidInput(
                f"a keyed table does not support `changes: {landing.changes}`, because it applies every change "
                "by key. Leave it out"
            )
        if landing.time_format is not None and info.data["time_column"] is None:
            raise InvalidInput("time_format needs a time_column. Declare a time_column, or leave time_format out")
        if "uri" in info.data and written_alike(info.data["uri"], landing.uri):
            reject_overlap(landing.uri, info.data["uri"], "the table")
        cls._require_readable_maps(landing, info.data)
        for raw_log in info.data.get("raw_logs", ()):
            for store in (*raw_log.stores, *raw_log.optional):
                if written_alike(store, landing.uri):
                    reject_overlap(landing.uri, store, f"the raw log {raw_log.name!r}")
        cls._require_filled_columns(landing, info.data)
        cls._require_timestamps(landing, info.data)
        if not landing.is_delta:
            found = cls.model_construct(**info.data)
            ChangeFormat.of(landing.spec(), found.schema(), TableConfig(primary_key=info.data["primary_key"]))
        cls._require_text_column(landing, info.data)
        return landing

    @classmethod
    def _require_text_column(cls, landing: LandingDeclaration, given: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` unless the column for new fields is a text column that may be null."""
        name = landing.spec().drift.column
        if name is None:
            return
        require_columns([name], given["columns"])
        column = given["columns"][name]
        if column.type != "string" or not column.nullable or name in given["primary_key"]:
            raise InvalidInput(
                f"on_new_field: column {name!r} cannot get the new fields. Give the column the type string, without `!`"
            )

    @classmethod
    def _require_readable_maps(cls, landing: LandingDeclaration, given: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` for a map column that files of the format cannot fill."""
        for name, column in given["columns"].items():
            if column.is_map and landing.format in ("csv", "pattern"):
                raise InvalidInput(
                    f"column {name!r} is a map, which has no text form. Land the files as ndjson or parquet"
                )
            if column.is_map and landing.format in ("ndjson", "json") and column.key_type != "string":
                raise InvalidInput(
                    f"column {name!r} is a map with keys of type {column.key_type}, and names in JSON are text. Land "
                    "the files as parquet"
                )

    @classmethod
    def _require_timestamps(cls, landing: LandingDeclaration, given: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` if `times` contains the column of `time_format` or a column that is not a timestamp."""
        require_columns([*landing.times], given["columns"])
        for name in landing.times:
            if not given["columns"][name].type.startswith("timestamp"):
                raise InvalidInput(
                    f"times: column {name!r} is not a timestamp. Give the column the type timestamp, or leave "
                    "the column out of times"
                )
            if landing.time_format is not None and name == given["time_column"]:
                raise InvalidInput(f"column {name!r} has a time_format and a unit in times. Leave one of them out")

    @classmethod
    def _require_filled_columns(cls, landing: LandingDeclaration, given: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` unless every field name is a column and every required column is a field name."""
        named = landing.columns if landing.pattern is None else captured_columns(landing.pattern)
        filled = [each for each in named if each != landing.op]
        if filled:
            require_columns(filled, given["columns"])
            lost = [each.name for each in cls.model_construct(**given).schema() if not each.nullable]
            if missing := sorted(set(lost) - set(filled)):
                names = ", ".join(missing)
                if landing.pattern is not None:
                    raise InvalidInput(
                        f"the pattern has no group for the required columns {names}. Add a group for each of "
                        "these columns"
                    )
                raise InvalidInput(
                    f"the required columns {names} are missing in `columns`. Name all fields of the files in order"
                )

    @field_validator("partitions")
    @classmethod
    def _partitions_are_windows(
        cls, partitions: PartitionsDeclaration | None, info: ValidationInfo
    ) -> PartitionsDeclaration | None:
        if partitions is None or "window" not in info.data:
            return partitions
        partitions.require_windows(info.data["window"])
        return partitions


def load(path: str | Path) -> TableDeclaration:
    """Return the table that one file declares. Raises the errors of `declaration_file.load_as`."""
    return load_as(TableDeclaration, path)


TABLES: Final = "TIDEMARK_TABLES"
"""The environment variable with the folder of the table declarations."""


def find_declared(name: str, environment: Mapping[str, str] = os.environ) -> tuple[Path, str] | None:
    """Return the file that declares a table of this name, and the location of the table.

    Return None if no file declares the table.

    Searches the folder `TIDEMARK_TABLES`, or `tables/` in the working directory. Skips invalid files.
    """
    named = environment.get(TABLES)
    folder = Path(named) if named else Path("tables")
    for file in sorted(folder.glob("*.yaml")):
        try:
            declaration = load(file)
        except TidemarkError:
            continue
        if declaration.name == name:
            return file, declaration.below(folder.resolve().parent).uri if named else declaration.uri
    return None


class RawStoreDeclaration(Closed):
    """One store of a raw log. In its short form, the declaration of a store is only its URI.

    A mandatory store acknowledges every append. An optional store may fail.
    """

    uri: Annotated[str, AfterValidator(place)]
    mandatory: bool = True


def _spelled_out(store: object) -> object:
    return {"uri": store} if isinstance(store, str) else store


class RawLogDeclaration(Closed):
    """The declaration of one raw log.

    - `tables`: the tables with rows in the raw log. The default is every declared table.
    - `closed_after`: the age at which a segment counts as closed, even if its writer started no other segment. Every
      writer must start another segment before this age.
    - `retention`: the age at which chunks are collected if every table has the records. Without `retention`, all chunks
      are kept.
    - `unique_for`: within this time, only one of two records with the same producer id is used. The time between two
      records is the time between the starts of their segments.
    - `upkeep_schedule`: when stores are healed and chunks are collected.
    - `owners`, `tags`: shown on the Dagster assets of the raw log.
    """

    name: Annotated[str, AfterValidator(validate_table_name)]
    stores: tuple[Annotated[RawStoreDeclaration, BeforeValidator(_spelled_out)], ...] = Field(min_length=1)
    tables: tuple[Annotated[str, AfterValidator(validate_table_name)], ...] = ()
    closed_after: Milliseconds = CLOSED_AFTER_MS
    schedule: Cron = "*/15 * * * *"
    unique_for: Milliseconds = UNIQUE_FOR_MS
    retention: Milliseconds | None = None
    upkeep_schedule: Cron = "40 3 * * *"
    owners: Owners = ()
    tags: Tags = Field(default_factory=dict)

    @field_validator("stores")
    @classmethod
    def _one_is_mandatory(cls, stores: tuple[RawStoreDeclaration, ...]) -> tuple[RawStoreDeclaration, ...]:
        if twice := repeated(each.uri for each in stores):
            raise InvalidInput(f"{twice[0]!r} is given twice. Give each store of a raw log once")
        if not any(each.mandatory for each in stores):
            raise InvalidInput(
                "a raw log needs a mandatory store, or its records are not durable. Declare a store without "
                "`mandatory: false`"
            )
        return stores

    def feeds(self, table: str) -> bool:
        """Return whether the raw log contains rows of this table."""
        return not self.tables or table in self.tables

    @property
    def uris(self) -> tuple[str, ...]:
        """The URIs of the stores. Mandatory stores come first."""
        return tuple(each.uri for each in sorted(self.stores, key=lambda each: not each.mandatory))


def load_raw_log(path: str | Path) -> RawLogDeclaration:
    """Return the raw log that one file declares. Raises the errors of `declaration_file.load_as`."""
    return load_as(RawLogDeclaration, path)
