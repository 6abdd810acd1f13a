"""Table settings, and their lossless form in `metaData.configuration`.

Settings travel with the table, so that every process that opens it agrees on windows, order, keys and indexes. Only
values that differ from the default are stored. This module knows no schema and no storage: whether a column exists or
a sort schema parses is decided where they are bound (`rows.sort_order`, `rows.windows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from storage_core.clock import HOUR_MS
from storage_core.errors import InvalidInput
from storage_core.repeated import repeated
from storage_core.settings.compaction import COMPACTION_KEY, CompactionSettings
from storage_core.settings.index import INDEX_PREFIX, IndexDefinition
from storage_core.settings.json_text import (
    column_names,
    json_object,
    json_text,
    json_value,
    whole_number,
    whole_numbers,
)
from storage_core.settings.late_data import LATE_DATA_KEY, LateData
from storage_core.settings.partition_fields import PARTITION_BY_KEY, PartitionField, partition_fields
from storage_core.settings.publish import PUBLISH_KEY, Publish
from storage_core.settings.raw_logs import RAW_LOGS_KEY, FeedingRawLog
from storage_core.settings.raw_logs import from_text as raw_logs_from_text
from storage_core.settings.raw_logs import to_text as raw_logs_to_text
from storage_core.settings.region_fields import (
    HAND_REGIONS_KEY,
    REGIONS_KEY,
    WHOLE_TABLE,
    RegionSpec,
    check_specs,
    specs_from_text,
    specs_to_text,
)
from storage_core.settings.retention import check_retention
from storage_core.settings.split_codec import SplitCodec, SplitCompression

SPLIT_METADATA_KEY = "tidemark.splitMetadata"
FORMER_WINDOWS_KEY = "tidemark.formerWindows"
MOST_MANIFEST_ENTRIES = 50_000
"""What the format of manifests admits."""

TableKind = Literal["append", "keyed"]
MapMode = Literal["replace", "merge"]
CheckpointFormat = Literal["avro", "json", "json-multipart"]
SplitMetadata = Literal["plain", "packed"]
CheckpointCompression = Literal["zstd", "snappy", "none"]


@dataclass(frozen=True, slots=True)
class _Form:
    """How values of a setting become text and come back; `read` gets the key, too, for its error."""

    write: Callable[[Any], str]
    read: Callable[[str, str], Any]


_TEXT = _Form(str, lambda _, text: text)
_NUMBER = _Form(str, whole_number)
_NUMBERS = _Form(lambda numbers: json_text(list(numbers)), whole_numbers)
_FLAG = _Form(lambda _: "true", lambda _, text: text == "true")
_NAMES = _Form(lambda names: json_text(list(names)), lambda key, text: column_names(key, json_value(key, text)))
_MODES = _Form(lambda modes: json_text(dict(sorted(modes.items()))), json_object)
_LATE = _Form(LateData.to_text, lambda _, text: LateData.from_text(text))
_COMPACTION = _Form(CompactionSettings.to_text, lambda _, text: CompactionSettings.from_text(text))
_REGIONS = _Form(specs_to_text, lambda _, text: specs_from_text(text))
_PUBLISH = _Form(Publish.to_text, lambda _, text: Publish.from_text(text))
_RAW_LOGS = _Form(raw_logs_to_text, lambda _, text: raw_logs_from_text(text))


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where and in which form a setting is stored, its bounds, and whether a commit may change it."""

    key: str
    form: _Form = _TEXT
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    changeable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """What a table is: time column, order, windows, key, indexes, and the settings of its upkeep.

    `window_seconds` is None for a table without windows; `coarse_window` admits more than an hour, our extension.
    `former_windows` are the durations before, each once, that of the new table first (decision 0136).
    `sort_schema` is the canonical text of `rows.sort_schema`. Sizes are in bytes, durations in the unit of their name;
    `checkpoint_interval` counts commits, 0 switches checkpoints after commits off. Without `late_data` no row is late.
    Windows that ended `retention_ms` ago leave the table; without it none does. It is about rows, unlike
    `version_retention_ms`, which says how long versions can be read.
    A merge flushes the rows of a region whose writer was silent for `idle_after_ms` (`region.idle`).
    `map_columns` says what a patch does to a map column: `replace` it, as where nothing is said, or `merge` its keys
    (`rows.fold`). `partition_by` are texts of `settings.partition_fields`, in their canonical form. Splits have a
    Parquet Bloom filter of each of the `bloom_filters` columns. `region_specs` are all there ever were, the current one
    last; with `regions_by_hand` callers may make more, by a name (decision 0150). A checkpoint aims at
    `manifest_entries` splits in a manifest, and the newest `retained_states` stay whatever their age. Bounds of strings
    in the log are cut after `string_cut` code points. `maintained_indexes` names the indexes of which generations get
    segments; None are all of them. Of `raw_logs` readers at `latest` see the rows that are not distributed yet
    (decision 0144). Of mirrors in other formats `publish` says how (decision 0155).
    """

    time_column: Annotated[str | None, _Stored("tidemark.timeColumn")] = None
    sort_schema: Annotated[str | None, _Stored("tidemark.sortSchema", changeable=True)] = None
    checkpoint_format: Annotated[
        CheckpointFormat, _Stored("tidemark.checkpointFormat", choices=get_args(CheckpointFormat), changeable=True)
    ] = "avro"
    checkpoint_compression: Annotated[
        CheckpointCompression,
        _Stored("tidemark.checkpointCompression", choices=get_args(CheckpointCompression), changeable=True),
    ] = "zstd"
    window_seconds: Annotated[int | None, _Stored("tidemark.windowSeconds", _NUMBER, least=1, changeable=True)] = None
    former_windows: Annotated[tuple[int, ...], _Stored(FORMER_WINDOWS_KEY, _NUMBERS)] = ()
    target_split_bytes: Annotated[int, _Stored("tidemark.targetSplitBytes", _NUMBER, least=1, changeable=True)] = (
        256 * 2**20
    )
    checkpoint_interval: Annotated[int, _Stored("tidemark.checkpointInterval", _NUMBER, least=0, changeable=True)] = 10
    manifest_entries: Annotated[
        int, _Stored("tidemark.manifestEntries", _NUMBER, least=1, most=MOST_MANIFEST_ENTRIES, changeable=True)
    ] = 20_000
    retained_states: Annotated[
        int, _Stored("tidemark.retainedStates", _NUMBER, least=2, most=1_000_000, changeable=True)
    ] = 2
    split_compression: Annotated[
        SplitCompression, _Stored("tidemark.splitCompression", choices=get_args(SplitCompression), changeable=True)
    ] = "zstd"
    split_compression_level: Annotated[
        int | None, _Stored("tidemark.splitCompressionLevel", _NUMBER, least=1, changeable=True)
    ] = None
    split_metadata: Annotated[
        SplitMetadata, _Stored(SPLIT_METADATA_KEY, choices=get_args(SplitMetadata), changeable=True)
    ] = "plain"
    string_cut: Annotated[int, _Stored("tidemark.stringCut", _NUMBER, least=1, most=1024, changeable=True)] = 32
    gc_horizon_ms: Annotated[int, _Stored("tidemark.gcHorizonMs", _NUMBER, least=0, changeable=True)] = 24 * HOUR_MS
    version_retention_ms: Annotated[int, _Stored("tidemark.versionRetentionMs", _NUMBER, least=0, changeable=True)] = (
        30 * 24 * HOUR_MS
    )
    # With a retention of 0, rows would be gone as soon as their window ends.
    retention_ms: Annotated[int | None, _Stored("tidemark.retentionMs", _NUMBER, least=1, changeable=True)] = None
    idle_after_ms: Annotated[int, _Stored("tidemark.idleAfterMs", _NUMBER, least=0, changeable=True)] = 300_000
    coarse_window: Annotated[bool, _Stored("tidemark.coarseWindow", _FLAG, changeable=True)] = False
    primary_key: Annotated[tuple[str, ...], _Stored("tidemark.primaryKey", _NAMES)] = ()
    partition_by: Annotated[tuple[str, ...], _Stored(PARTITION_BY_KEY, _NAMES)] = ()
    bloom_filters: Annotated[tuple[str, ...], _Stored("tidemark.bloomFilters", _NAMES, changeable=True)] = ()
    late_data: Annotated[LateData | None, _Stored(LATE_DATA_KEY, _LATE, changeable=True)] = None
    compaction: Annotated[CompactionSettings, _Stored(COMPACTION_KEY, _COMPACTION, changeable=True)] = field(
        default_factory=CompactionSettings
    )
    region_specs: Annotated[tuple[RegionSpec, ...], _Stored(REGIONS_KEY, _REGIONS)] = (WHOLE_TABLE,)
    regions_by_hand: Annotated[bool, _Stored(HAND_REGIONS_KEY, _FLAG, changeable=True)] = False
    maintained_indexes: Annotated[
        tuple[str, ...] | None, _Stored("tidemark.maintainedIndexes", _NAMES, changeable=True)
    ] = None
    raw_logs: Annotated[tuple[FeedingRawLog, ...], _Stored(RAW_LOGS_KEY, _RAW_LOGS, changeable=True)] = ()
    publish: Annotated[Publish, _Stored(PUBLISH_KEY, _PUBLISH, changeable=True)] = field(default_factory=Publish)
    map_columns: Annotated[Mapping[str, MapMode], _Stored("tidemark.mapColumns", _MODES)] = field(default_factory=dict)
    indexes: tuple[IndexDefinition, ...] = ()

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant, doubled key columns, and two indexes of one name."""
        for name, stored in _STORED.items():
            value = getattr(self, name)
            if stored.least is not None and value is not None and value < stored.least:
                raise InvalidInput(f"{name} is {value}; it must be at least {stored.least}")
            if stored.most is not None and value is not None and value > stored.most:
                raise InvalidInput(f"{name} is {value}; it must be at most {stored.most}")
            if stored.choices and value not in stored.choices:
                raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(stored.choices)}")
        for name, mode in self.map_columns.items():
            if mode not in get_args(MapMode):
                raise InvalidInput(f"map column {name!r}: {mode!r} is not one of {', '.join(get_args(MapMode))}")
        if self.retention_ms is not None:
            check_retention(self.retention_ms, self.window_seconds)
        coarse = self.compaction.coarsen_to
        if coarse is not None and (self.window_seconds is None or coarse % self.window_seconds):
            has = "none" if self.window_seconds is None else f"windows of {self.window_seconds} s"
            raise InvalidInput(
                f"compaction.coarsen_to is {coarse} s, no multiple of the windows of the table: it has {has}"
            )
        _distinct("former window", tuple(map(str, self.former_windows)))
        if self.partition_by:
            object.__setattr__(self, "partition_by", tuple(each.text for each in partition_fields(self.partition_by)))
        SplitCodec(self.split_compression, self.split_compression_level)
        check_specs(self.region_specs)
        _distinct("primary key column", self.primary_key)
        _distinct("bloom filter column", self.bloom_filters)
        _distinct("index", tuple(index.name for index in self.indexes))
        _distinct("maintained index", self.maintained_indexes or ())

    @property
    def kind(self) -> TableKind:
        """`keyed` when rows have a primary key, else `append`."""
        return "keyed" if self.primary_key else "append"

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        """What the table is partitioned by."""
        return partition_fields(self.partition_by)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The fields that are columns of the table as they are: those that `metaData` names."""
        return tuple(each.name for each in self.partition_fields if each.name == each.column)

    @property
    def region_spec(self) -> RegionSpec:
        """The region spec that writers follow."""
        return self.region_specs[-1]

    @property
    def dividing(self) -> tuple[int, bool]:
        """What says which regions there are: what was captured of them under another is captured again."""
        return self.region_spec.id, self.regions_by_hand

    @property
    def split_codec(self) -> SplitCodec:
        """How new splits are compressed."""
        return SplitCodec(self.split_compression, self.split_compression_level)

    @property
    def other_windows(self) -> tuple[int, ...]:
        """Durations that windows of splits may have beside the table's own."""
        coarse = self.compaction.coarsen_to
        return self.former_windows if coarse is None else (*self.former_windows, coarse)

    @property
    def merged_maps(self) -> tuple[str, ...]:
        """The map columns whose keys a patch merges, by name."""
        return tuple(sorted(name for name, mode in self.map_columns.items() if mode == "merge"))

    @property
    def maintained(self) -> tuple[IndexDefinition, ...]:
        """The indexes of which generations get segments."""
        names = self.maintained_indexes
        return self.indexes if names is None else tuple(each for each in self.indexes if each.name in names)

    @property
    def nonzero_vectors(self) -> frozenset[str]:
        """The vector columns whose values have a direction: those that an index compares by cosine."""
        by_angle = (each for each in self.indexes if each.kind == "vector" and each.options.get("metric") == "cosine")
        return frozenset(name for each in by_angle for name in each.columns)

    def index(self, name: str) -> IndexDefinition | None:
        """Return the definition of the index of this name, or None."""
        return next((each for each in self.indexes if each.name == name), None)

    def to_configuration(self) -> dict[str, str]:
        """Return the settings that differ from their defaults as `tidemark.*` text values, in a fixed order."""
        found = {
            stored.key: stored.form.write(getattr(self, name))
            for name, stored in _STORED.items()
            if getattr(self, name) != getattr(_DEFAULT, name)
        }
        return found | {index.key: index.to_text() for index in self.indexes}

    @staticmethod
    def owns(key: str) -> bool:
        """Return whether a configuration key is one of those that `to_configuration` writes."""
        return key.startswith(INDEX_PREFIX) or any(key == stored.key for stored in _STORED.values())

    @staticmethod
    def from_configuration(configuration: Mapping[str, str]) -> TableConfig:
        """Return the settings stored in `configuration`; keys that this release does not know are left alone.

        Raises `InvalidInput` naming the key whose value cannot be read.
        """
        found = {
            name: stored.form.read(stored.key, configuration[stored.key])
            for name, stored in _STORED.items()
            if stored.key in configuration
        }
        indexes = tuple(
            IndexDefinition.from_text(key, value)
            for key, value in configuration.items()
            if key.startswith(INDEX_PREFIX)
        )
        return TableConfig(**found, indexes=indexes)


def _distinct(what: str, names: tuple[str, ...]) -> None:
    if doubled := sorted(repeated(names)):
        raise InvalidInput(f"{what} named twice: {', '.join(doubled)}")


_STORED: Mapping[str, _Stored] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(TableConfig, include_extras=True).items()
    if get_origin(hint) is Annotated
}
_DEFAULT = TableConfig()
CHANGEABLE = frozenset({"indexes", *(name for name, stored in _STORED.items() if stored.changeable)})
"""Settings that a commit may change; the next run of each job follows them, and so do new splits."""
