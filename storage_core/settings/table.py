"""Table settings, and their lossless form in `metaData.configuration`.

Settings travel with the table, so that every process that opens it agrees on windows, order, keys and indexes. Only
values that differ from the default are stored. This module knows no schema and no storage: whether a column exists or
a sort schema parses is decided where they are bound (`rows.sort_order`, `rows.windows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast, get_args

from storage_core.clock import HOUR_MS
from storage_core.errors import InvalidInput
from storage_core.settings.compaction import COMPACTION_KEY, CompactionSettings
from storage_core.settings.index import INDEX_PREFIX, IndexDefinition
from storage_core.settings.json_text import column_names, json_object, json_text, json_value, whole_number
from storage_core.settings.late_data import LATE_DATA_KEY, LONGEST_ACCEPTANCE_MS, LateData
from storage_core.settings.region_fields import (
    REGIONS_KEY,
    WHOLE_TABLE,
    RegionSpec,
    check_specs,
    specs_from_text,
    specs_to_text,
)

PREFIX = "tidemark."
LONGEST_RETENTION_MS = LONGEST_ACCEPTANCE_MS

TableKind = Literal["append", "keyed"]
MapMode = Literal["replace", "merge"]
CheckpointFormat = Literal["avro", "json", "json-multipart"]
CheckpointCompression = Literal["zstd", "snappy", "none"]

_TEXT_KEYS = {
    "time_column": "timeColumn",
    "sort_schema": "sortSchema",
    "checkpoint_format": "checkpointFormat",
    "checkpoint_compression": "checkpointCompression",
}
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "checkpoint_format": get_args(CheckpointFormat),
    "checkpoint_compression": get_args(CheckpointCompression),
}
_NUMBER_KEYS = {
    "window_seconds": "windowSeconds",
    "target_split_bytes": "targetSplitBytes",
    "checkpoint_interval": "checkpointInterval",
    "gc_horizon_ms": "gcHorizonMs",
    "version_retention_ms": "versionRetentionMs",
    "retention_ms": "retentionMs",
}
_PRIMARY_KEY = PREFIX + "primaryKey"
_COARSE_WINDOW = PREFIX + "coarseWindow"
_MAP_COLUMNS = PREFIX + "mapColumns"
_BLOOM_FILTERS = PREFIX + "bloomFilters"
_OWN_KEYS = {PREFIX + key for key in (_TEXT_KEYS | _NUMBER_KEYS).values()}
_OWN_KEYS |= {_PRIMARY_KEY, _COARSE_WINDOW, LATE_DATA_KEY, _MAP_COLUMNS, _BLOOM_FILTERS}
_OWN_KEYS |= {REGIONS_KEY, COMPACTION_KEY}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """What a table is: time column, order, windows, key, indexes, and the settings of its upkeep.

    `window_seconds` is None for a table without windows; `coarse_window` admits more than an hour, our extension.
    `sort_schema` is the canonical text of `rows.sort_schema`. Sizes are in bytes, durations in the unit of their name;
    `checkpoint_interval` counts commits, 0 switches checkpoints after commits off. Without `late_data` no row is late.
    Windows that ended `retention_ms` ago leave the table; without it none does. It is about rows, unlike
    `version_retention_ms`, which says how long versions can be read.
    `map_columns` says what a patch does to a map column: `replace` it, as where nothing is said, or `merge` its keys
    (`rows.fold`). Splits have a Parquet Bloom filter of each of the `bloom_filters` columns. `region_specs` are all
    there ever were, the current one last.
    """

    time_column: str | None = None
    sort_schema: str | None = None
    window_seconds: int | None = None
    coarse_window: bool = False
    primary_key: tuple[str, ...] = ()
    indexes: tuple[IndexDefinition, ...] = ()
    region_specs: tuple[RegionSpec, ...] = (WHOLE_TABLE,)
    map_columns: Mapping[str, MapMode] = field(default_factory=dict)
    bloom_filters: tuple[str, ...] = ()
    target_split_bytes: int = 256 * 2**20
    checkpoint_interval: int = 10
    checkpoint_format: CheckpointFormat = "avro"
    checkpoint_compression: CheckpointCompression = "zstd"
    gc_horizon_ms: int = 24 * HOUR_MS
    version_retention_ms: int = 30 * 24 * HOUR_MS
    retention_ms: int | None = None
    late_data: LateData | None = None
    compaction: CompactionSettings = field(default_factory=CompactionSettings)

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant, doubled key columns, and two indexes of one name."""
        for name, least in (("target_split_bytes", 1), ("checkpoint_interval", 0), ("gc_horizon_ms", 0)):
            _at_least(name, getattr(self, name), least)
        _at_least("version_retention_ms", self.version_retention_ms, 0)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        for name, mode in self.map_columns.items():
            if mode not in get_args(MapMode):
                raise InvalidInput(f"map column {name!r}: {mode!r} is not one of {', '.join(get_args(MapMode))}")
        if self.window_seconds is not None:
            _at_least("window_seconds", self.window_seconds, 1)
        if self.retention_ms is not None:
            _check_retention(self.retention_ms, self.window_seconds)
        check_specs(self.region_specs)
        _distinct("primary key column", self.primary_key)
        _distinct("bloom filter column", self.bloom_filters)
        _distinct("index", tuple(index.name for index in self.indexes))

    @property
    def kind(self) -> TableKind:
        """`keyed` when rows have a primary key, else `append`."""
        return "keyed" if self.primary_key else "append"

    @property
    def region_spec(self) -> RegionSpec:
        """The region spec that writers follow."""
        return self.region_specs[-1]

    @property
    def merged_maps(self) -> tuple[str, ...]:
        """The map columns whose keys a patch merges, by name."""
        return tuple(sorted(name for name, mode in self.map_columns.items() if mode == "merge"))

    def index(self, name: str) -> IndexDefinition | None:
        """Return the definition of the index of this name, or None."""
        return next((each for each in self.indexes if each.name == name), None)

    def to_configuration(self) -> dict[str, str]:
        """Return the settings that differ from their defaults as `tidemark.*` text values, in a fixed order."""
        defaults = {each.name: each.default for each in fields(TableConfig)}
        found = {
            PREFIX + key: str(getattr(self, name))
            for name, key in (_TEXT_KEYS | _NUMBER_KEYS).items()
            if getattr(self, name) != defaults[name]
        }
        if self.coarse_window:
            found[_COARSE_WINDOW] = "true"
        if self.primary_key:
            found[_PRIMARY_KEY] = json_text(list(self.primary_key))
        if self.bloom_filters:
            found[_BLOOM_FILTERS] = json_text(list(self.bloom_filters))
        if self.late_data is not None:
            found[LATE_DATA_KEY] = self.late_data.to_text()
        if self.compaction != CompactionSettings():
            found[COMPACTION_KEY] = self.compaction.to_text()
        if self.region_specs != (WHOLE_TABLE,):
            found[REGIONS_KEY] = specs_to_text(self.region_specs)
        if self.map_columns:
            found[_MAP_COLUMNS] = json_text(dict(sorted(self.map_columns.items())))
        found |= {index.key: index.to_text() for index in self.indexes}
        return found

    @staticmethod
    def owns(key: str) -> bool:
        """Return whether a configuration key is one of those that `to_configuration` writes."""
        return key in _OWN_KEYS or key.startswith(INDEX_PREFIX)

    @staticmethod
    def from_configuration(configuration: Mapping[str, str]) -> TableConfig:
        """Return the settings stored in `configuration`; keys that this release does not know are left alone.

        Raises `InvalidInput` naming the key whose value cannot be read.
        """
        text: dict[str, Any] = {
            name: configuration[PREFIX + key] for name, key in _TEXT_KEYS.items() if PREFIX + key in configuration
        }
        numbers: dict[str, Any] = {
            name: whole_number(PREFIX + key, configuration[PREFIX + key])
            for name, key in _NUMBER_KEYS.items()
            if PREFIX + key in configuration
        }
        indexes = tuple(
            IndexDefinition.from_text(key, value)
            for key, value in configuration.items()
            if key.startswith(INDEX_PREFIX)
        )
        late = configuration.get(LATE_DATA_KEY)
        return TableConfig(
            coarse_window=configuration.get(_COARSE_WINDOW) == "true",
            primary_key=_names(configuration, _PRIMARY_KEY),
            bloom_filters=_names(configuration, _BLOOM_FILTERS),
            indexes=indexes,
            late_data=None if late is None else LateData.from_text(late),
            compaction=CompactionSettings.from_text(configuration.get(COMPACTION_KEY, "{}")),
            region_specs=_region_specs(configuration),
            map_columns=_map_modes(configuration.get(_MAP_COLUMNS, "{}")),
            **text,
            **numbers,
        )


def _names(configuration: Mapping[str, str], key: str) -> tuple[str, ...]:
    return column_names(key, json_value(key, configuration.get(key, "[]")))


def _region_specs(configuration: Mapping[str, str]) -> tuple[RegionSpec, ...]:
    text = configuration.get(REGIONS_KEY)
    return (WHOLE_TABLE,) if text is None else specs_from_text(text)


def _map_modes(text: str) -> Mapping[str, MapMode]:
    return cast("Mapping[str, MapMode]", json_object(_MAP_COLUMNS, text))


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidInput(f"{name} is {value}; it must be at least {least}")


def _check_retention(retention_ms: int, window_seconds: int | None) -> None:
    _at_least("retention_ms", retention_ms, 1)  # with none, rows would be gone as soon as their window ends
    if retention_ms > LONGEST_RETENTION_MS:
        raise InvalidInput(f"retention_ms is {retention_ms}; it must be at most {LONGEST_RETENTION_MS} (999999999h)")
    if window_seconds is None:
        raise InvalidInput(
            "retention is by whole windows, and this table has none; declare a time_column and a window, or leave "
            "retention out"
        )


def _distinct(what: str, names: tuple[str, ...]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidInput(f"{what} named twice: {', '.join(doubled)}")
