"""Tables as declared in `tables/*.yaml`: checked completely on load, each error with its file, line and field.

A declaration says what a table is, where its rows land, and when its upkeep runs. Adding a file adds a table. Every
scalar is read as text and converted by the field that takes it, so a column called `on` or `no` is not a boolean. More
than 300 lines: each field and what it must agree with is here.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pydantic import Field, ValidationInfo, field_validator

from storage_core.declaration_automation import Switch
from storage_core.declaration_file import load_as
from storage_core.declaration_parts import (
    Closed,
    ColumnDeclaration,
    CompactionDeclaration,
    IndexDeclaration,
    LandingDeclaration,
    LateDeclaration,
    Milliseconds,
    Owners,
    PartitionsDeclaration,
    Published,
    RawLogs,
    ScheduleDeclaration,
    Tags,
    arrow_field,
    below,
    place,
    require_columns,
)
from storage_core.declaration_upkeep import (
    CheckpointDeclaration,
    Freshness,
    GcDeclaration,
    SplitsDeclaration,
    UpkeepDeclaration,
)
from storage_core.definition import check_bloom_filters, check_maintained, check_maps
from storage_core.errors import InvalidInput
from storage_core.formats.keys import validate_table_name
from storage_core.index.segments import validate as validate_index
from storage_core.ingest.landing import LandingSpec, captured_columns, reject_overlap
from storage_core.objectstore.resolve import written_alike
from storage_core.region.spec import check_spec, first_specs
from storage_core.rows import sort_schema as sort_schemas
from storage_core.rows import windows
from storage_core.rows.partitions import check_partitions
from storage_core.rows.sort_order import bind
from storage_core.settings.publish import Publish
from storage_core.settings.table import MapMode, TableConfig


class TableDeclaration(Closed):
    """One table. Fields are checked in this order, each against those before it.

    `window` is in seconds; one above an hour needs `coarse_window: true`. A keyed table may be windowed only if its
    time column is part of the key, and takes its rows from region writers or a Delta table. `map_columns` says of
    a map column whether a patch merges its entries (`merge`) or replaces them. Generations get segments of
    `maintained_indexes`, without it of all `indexes`. Windows leave the table once they ended as long ago as
    `retention` says; how long versions can be read is `gc.retention`. `freshness` is how old the newest rows may be
    (decision 0164), `upkeep` how much its upkeep may read (0169), `automation` whether Dagster looks after the table by
    itself (0171). `raw_logs` are read at `latest`. Dagster shows `owners` and `tags` on every asset of the table, and a
    job of its own for backfills of a windowed one with `backfill_job: true`. `publish: delta` keeps a mirror for
    readers of Delta.
    """

    name: str
    uri: str
    columns: dict[str, ColumnDeclaration] = Field(min_length=1)
    time_column: str | None = None
    primary_key: tuple[str, ...] = ()
    sort_schema: str | None = None
    coarse_window: bool = False
    window: int | None = None
    map_columns: dict[str, MapMode] = Field(default_factory=dict)
    regions: tuple[dict[str, str | tuple[str, ...]], ...] = ()
    indexes: tuple[IndexDeclaration, ...] = ()
    maintained_indexes: tuple[str, ...] | None = None
    bloom_filters: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    landing: LandingDeclaration | None = None
    late_data: LateDeclaration | None = None
    retention: Milliseconds | None = None
    freshness: Freshness | None = None
    regions_by_hand: bool = False
    raw_logs: RawLogs = ()
    publish: Published = Publish()
    idle_after: Milliseconds = TableConfig().idle_after_ms
    partitions: PartitionsDeclaration | None = None
    schedule: ScheduleDeclaration = ScheduleDeclaration()
    upkeep: UpkeepDeclaration = UpkeepDeclaration()
    automation: Switch | None = None
    backfill_job: bool = False
    owners: Owners = ()
    tags: Tags = Field(default_factory=dict)
    splits: SplitsDeclaration = SplitsDeclaration()
    checkpoint: CheckpointDeclaration = CheckpointDeclaration()
    gc: GcDeclaration = GcDeclaration()
    compaction: CompactionDeclaration = CompactionDeclaration()

    def schema(self) -> pa.Schema:  # type: ignore[override]  # pydantic's own is deprecated and says something else
        """Return the columns in declared order; the time column and the key columns are required (non-nullable)."""
        required = {self.time_column, *self.primary_key}
        return pa.schema(
            [
                arrow_field(name, column.type, nullable=column.nullable and name not in required)
                for name, column in self.columns.items()
            ]
        )

    def config(self) -> TableConfig:
        """Return the settings that travel with the table, the sort schema in its canonical text."""
        return TableConfig(
            time_column=self.time_column,
            sort_schema=self.sort_schema,
            window_seconds=self.window,
            coarse_window=self.coarse_window,
            primary_key=self.primary_key,
            region_specs=first_specs(self.regions, self.schema()),
            indexes=tuple(index.definition() for index in self.indexes),
            maintained_indexes=self.maintained_indexes,
            bloom_filters=self.bloom_filters,
            partition_by=self.partition_by,
            retention_ms=self.retention,
            regions_by_hand=self.regions_by_hand,
            raw_logs=self.raw_logs,
            publish=self.publish,
            idle_after_ms=self.idle_after,
            late_data=self.late_data.setting() if self.late_data else None,
            map_columns=self.map_columns,
            compaction=self.compaction.setting(),
            **self.splits.settings(),
            **self.checkpoint.settings(),
            **self.gc.settings(),
        )

    def below(self, root: Path) -> TableDeclaration:
        """Return the declaration with its relative places taken as relative to `root`."""
        changes: dict[str, object] = {"uri": below(root, self.uri)}
        if self.landing:
            changes["landing"] = self.landing.model_copy(update={"uri": below(root, self.landing.uri)})
        if self.raw_logs:
            changes["raw_logs"] = tuple(each.moved(lambda uri: below(root, uri)) for each in self.raw_logs)
        return self.model_copy(update=changes)

    def landing_spec(self) -> LandingSpec | None:
        """Return where rows of this table land, or None when they only come through writers."""
        return self.landing.spec() if self.landing else None

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
                raise InvalidInput(f"{name!r} cannot name a column: it is blank, unprintable or starts with `_`")
            other = seen.setdefault(name.casefold(), name)
            if other is not name:
                raise InvalidInput(f"the columns {other!r} and {name!r} differ only in case; rename one")
        return columns

    @field_validator("time_column")
    @classmethod
    def _time_column_is_a_timestamp(cls, name: str | None, info: ValidationInfo) -> str | None:
        columns = info.data.get("columns")
        if name is not None and columns is not None:
            require_columns([name], columns)
            if columns[name].type not in ("timestamp", "timestamp_ntz"):
                raise InvalidInput(f"column {name!r} is a {columns[name].type}; a time column must be a timestamp")
        return name

    @field_validator("primary_key", "partition_by", mode="before")
    @classmethod
    def _one_needs_no_list(cls, given: object) -> object:
        return [given] if isinstance(given, str) else given

    @field_validator("primary_key")
    @classmethod
    def _key_columns_exist(cls, key: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        columns = info.data.get("columns")
        require_columns(key, columns)
        if maps := [name for name in key if columns is not None and columns[name].is_map]:
            raise InvalidInput(f"{maps[0]!r} is a map; maps have no order, so none can be part of the key")
        return TableConfig(primary_key=key).primary_key

    @field_validator("sort_schema")
    @classmethod
    def _sort_schema_fits_the_columns(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is None or not {"columns", "time_column", "primary_key"} <= info.data.keys():
            return text
        spelled_out = cls.model_construct(**info.data, sort_schema=text)
        bind(spelled_out.config(), spelled_out.schema())
        return sort_schemas.parse(text, info.data["time_column"]).text

    @field_validator("backfill_job")
    @classmethod
    def _only_windows_are_backfilled(cls, value: object, info: ValidationInfo) -> object:
        if value and "window" in info.data and info.data["window"] is None:
            raise InvalidInput("a table without windows has nothing to backfill; leave backfill_job out")
        return value

    @field_validator("window", mode="before")
    @classmethod
    def _window_is_a_duration(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str | int):
            return value
        return windows.validate_duration(windows.parse_duration(value), coarse=bool(info.data.get("coarse_window")))

    @field_validator("window")
    @classmethod
    def _window_has_a_time_column(cls, seconds: int | None, info: ValidationInfo) -> int | None:
        time_column, key = info.data.get("time_column"), info.data.get("primary_key", ())
        if seconds is not None and "time_column" in info.data:
            if time_column is None:
                raise InvalidInput("a windowed table needs a time_column")
            if key and time_column not in key:
                raise InvalidInput(f"a keyed table may be windowed only if {time_column!r} is part of its primary_key")
        return seconds

    @field_validator("map_columns")
    @classmethod
    def _modes_are_of_maps(cls, modes: dict[str, MapMode], info: ValidationInfo) -> dict[str, MapMode]:
        if {"columns", "time_column", "primary_key"} <= info.data.keys():
            check_maps(cls.model_construct(**info.data).schema(), TableConfig(map_columns=modes))
        return modes

    @field_validator("regions")
    @classmethod
    def _regions_divide_the_key(
        cls, regions: tuple[dict[str, str | tuple[str, ...]], ...], info: ValidationInfo
    ) -> tuple[dict[str, str | tuple[str, ...]], ...]:
        if {"columns", "time_column", "primary_key"} <= info.data.keys():
            schema = cls.model_construct(**info.data).schema()
            check_spec(first_specs(regions, schema)[-1], schema, info.data["primary_key"])
        return regions

    @field_validator("indexes")
    @classmethod
    def _index_columns_exist(
        cls, indexes: tuple[IndexDeclaration, ...], info: ValidationInfo
    ) -> tuple[IndexDeclaration, ...]:
        settled = TableConfig(indexes=tuple(index.definition() for index in indexes))
        for index in settled.indexes:
            require_columns(index.columns, info.data.get("columns"))
            index.require_key(info.data.get("primary_key", index.columns))
            if {"columns", "time_column", "primary_key"} <= info.data.keys():
                validate_index(index, cls.model_construct(**info.data).schema())
        return indexes

    @field_validator("maintained_indexes")
    @classmethod
    def _maintained_indexes_exist(cls, names: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if {"indexes", "primary_key"} <= info.data.keys():
            definitions = tuple(index.definition() for index in info.data["indexes"])
            key = info.data["primary_key"]
            check_maintained(TableConfig(primary_key=key, indexes=definitions, maintained_indexes=names))
        return names

    @field_validator("bloom_filters")
    @classmethod
    def _bloom_filters_are_of_columns(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if {"columns", "time_column", "primary_key"} <= info.data.keys():
            schema = cls.model_construct(**info.data).schema()
            check_bloom_filters(schema, TableConfig(bloom_filters=names))
        return names

    @field_validator("partition_by")
    @classmethod
    def _partitions_are_of_columns(cls, texts: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if {"columns", "time_column", "primary_key"} <= info.data.keys():
            schema = cls.model_construct(**info.data).schema()
            check_partitions(TableConfig(partition_by=texts).partition_fields, schema, info.data["primary_key"])
        return texts

    @field_validator("landing")
    @classmethod
    def _landed_files_fill_the_columns(
        cls, landing: LandingDeclaration | None, info: ValidationInfo
    ) -> LandingDeclaration | None:
        if landing is None or not {"columns", "time_column", "primary_key"} <= info.data.keys():
            return landing
        if info.data["primary_key"] and landing.format != "delta":
            raise InvalidInput("landed files are ingested into append tables; write a keyed table with Table.writer()")
        if info.data["primary_key"] and landing.changes not in (None, "apply"):
            raise InvalidInput(f"a keyed table follows every change by key; leave `changes: {landing.changes}` out")
        if landing.time_format is not None and info.data["time_column"] is None:
            raise InvalidInput("time_format is the format of the time column. Declare a time_column, or leave it out")
        if "uri" in info.data and written_alike(info.data["uri"], landing.uri):
            reject_overlap(landing.uri, info.data["uri"], "the table")
        maps = [name for name, column in info.data["columns"].items() if column.is_map]
        if maps and landing.format not in ("parquet", "delta"):
            raise InvalidInput(f"column {maps[0]!r} is a map, which has no text form; land the files as parquet")
        if landing.pattern is not None:
            captured = captured_columns(landing.pattern)
            require_columns(captured, info.data["columns"])
            lost = [each.name for each in cls.model_construct(**info.data).schema() if not each.nullable]
            if missing := sorted(set(lost) - set(captured)):
                raise InvalidInput(f"the pattern captures no group for the required columns {', '.join(missing)}")
        return landing

    @field_validator("raw_logs")
    @classmethod
    def _raw_logs_lie_apart(cls, raw_logs: RawLogs, info: ValidationInfo) -> RawLogs:
        landing: LandingDeclaration | None = info.data.get("landing")
        if landing is None:
            return raw_logs
        for each in raw_logs:
            for store in (*each.stores, *each.optional):
                if written_alike(store, landing.uri):
                    reject_overlap(landing.uri, store, f"the raw log {each.name!r}")
        return raw_logs

    @field_validator("late_data")
    @classmethod
    def _late_data_has_a_time_column(cls, late: LateDeclaration | None, info: ValidationInfo) -> LateDeclaration | None:
        if late is not None and "time_column" in info.data and info.data["time_column"] is None:
            raise InvalidInput("late data needs a time_column: without one no row is late")
        return late

    @field_validator("retention")
    @classmethod
    def _retention_is_by_windows(cls, retention_ms: int | None, info: ValidationInfo) -> int | None:
        if "window" in info.data:
            TableConfig(window_seconds=info.data["window"], retention_ms=retention_ms)
        return retention_ms

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
    """Return the table declared in one file. Raises what `declaration_file.load_as` raises."""
    return load_as(TableDeclaration, path)
