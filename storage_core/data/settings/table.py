"""The settings of a table: each setting is one field of `TableConfig`.

The settings are stored with the table, so every process that opens the table uses the same windows, order, keys and
indexes. The log stores only the values that differ from the default, in `metaData.configuration`.

The entries of the fields determine the following: `Table.create`, `Table.alter`, declarations, `describe`, the JSON
schema for editors, and pages of the docs. This module does not read columns or storage. The module `definition` checks
the settings against the columns.

Each of four settings has its own class. The class defines the text of the setting in `metaData.configuration`:

- `SplitCodec`: the compression of the pages of new splits. Every common reader of Parquet has these codecs.
- `LateData`: the policy for late rows (docs/architecture/ingestion.md).
- `Publish`: the other table formats in which the table is published (decision 0032).
- `FeedingRawLog`: a raw log that feeds the table (decision 0027).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, cast, get_args

from storage_core.base.arguments import checked_fields
from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import InvalidInput
from storage_core.base.text import choice_of, did_you_mean, names_of, quoted, repeated
from storage_core.data.settings.index import INDEX_PREFIX, INDEXES, IndexDefinition
from storage_core.data.settings.layout import (
    REGIONS,
    REGIONS_KEY,
    WHOLE_TABLE,
    CompactionSettings,
    PartitionField,
    RegionSpec,
    check_specs,
    partition_fields,
)
from storage_core.data.settings.setting import (
    COLUMNS,
    COUNT,
    DURATION_SCHEMA,
    FLAG,
    MILLISECONDS,
    NAMES,
    NAMES_SCHEMA,
    NUMBERS,
    SECONDS,
    SHARE,
    SIZE,
    TEXT,
    Change,
    Form,
    Setting,
    check_bounds,
    each_of,
    from_json,
    json_object,
    json_text,
    json_value,
    milliseconds_text,
    parse_milliseconds,
    setting,
    settings_of,
)

# Compression of splits.

SplitCompression = Literal["zstd", "gzip", "snappy", "none"]

ZSTD_LEVEL: Final = 3
_THOROUGH_LEVEL: Final = 9
"""The zstd level of `SplitCodec.thorough`.

For pages of a hundred rows, level 9 needs 5 % fewer bytes than the default level of zstd. With level 9, each merge
takes 7 % longer than with the default level (docs/architecture/compaction.md).
"""
_USUAL_LEVELS: Final[Mapping[str, int]] = {"zstd": ZSTD_LEVEL, "gzip": 6}
_MOST_LEVELS: Final[Mapping[str, int]] = {"zstd": 22, "gzip": 9}


@dataclass(frozen=True, slots=True)
class SplitCodec:
    """A codec of Parquet pages and its level.

    The level is from 1 to the highest level of the codec. None means the default level of the codec.
    """

    name: SplitCompression = "zstd"
    level: int | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for a level that the codec does not have."""
        most = _MOST_LEVELS.get(self.name, 0)
        if self.level is not None and not 1 <= self.level <= most:
            has = (
                f"has only levels from 1 to {most}. Give one of these levels"
                if most
                else "has no levels. Leave the level out"
            )
            raise InvalidInput(f"split_compression_level is {self.level}, but {self.name} {has}")

    @property
    def effective_level(self) -> int | None:
        """The level of the codec in new splits. None for a codec without levels."""
        return _USUAL_LEVELS.get(self.name) if self.level is None else self.level

    @property
    def thorough(self) -> SplitCodec:
        """The codec for a few rows that no merge rewrites.

        This is zstd with a higher level, unless the settings contain another codec or a level.
        """
        return replace(self, level=_THOROUGH_LEVEL) if self.name == "zstd" and self.level is None else self


USUAL_CODEC: Final = SplitCodec()


# Late rows.

LATE_DATA_KEY = "tidemark.lateData"
LONGEST_ACCEPTANCE_MS = 999_999_999 * HOUR_MS
"""The longest acceptance window that the text form can contain. If a table has this window, no row is late.

With a setting of more than twice this acceptance window, times in microseconds since the epoch would overflow 64 bits.
"""

LatePolicy = Literal["accept", "quarantine", "drop"]


@checked_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class LateData:
    """The policy for rows that arrive later than `acceptance_ms` after their event time.

    - `policy`: the treatment of late rows in a table with `late_data`
    - `acceptance_ms`: the maximum time from the event time of a row to its arrival. A row that arrives later is late
    """

    policy: LatePolicy = setting("quarantine", TEXT, choices=get_args(LatePolicy))
    acceptance_ms: int = setting(HOUR_MS, MILLISECONDS, name="acceptance_window", least=0, most=LONGEST_ACCEPTANCE_MS)

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for an unknown policy and for a window out of bounds."""
        check_bounds(self, "late_data")

    def to_text(self) -> str:
        """Return the value of the entry `LATE_DATA_KEY`."""
        return json_text({"policy": self.policy, "acceptanceWindowMs": self.acceptance_ms})

    @staticmethod
    def from_text(text: str) -> LateData:
        """Return the settings that `to_text` wrote. Raises `InvalidInput`."""
        value = json_value(LATE_DATA_KEY, text)
        window = value.get("acceptanceWindowMs") if isinstance(value, dict) else None
        if not isinstance(value, dict) or type(window) is not int:
            raise InvalidInput(
                f"table configuration {LATE_DATA_KEY!r}: expected policy and acceptanceWindowMs, found {quoted(text)}",
                key=LATE_DATA_KEY,
            )
        return LateData(policy=cast("LatePolicy", value.get("policy")), acceptance_ms=window)


# Mirrors in other formats.

PUBLISH_KEY: Final = "tidemark.publish"

ShownVectors = Literal["inline", "none"]
PublishFormat = Literal["delta", "iceberg"]
FORMATS: Final[tuple[PublishFormat, ...]] = get_args(PublishFormat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """The mirrors of a table in other formats.

    Attributes:
        delta: How the Delta mirror shows deleted rows. `inline` writes deletion vectors. `none` waits until a
            compaction has removed the rows. None if the table declares no Delta mirror.
        iceberg: Whether the table declares an Iceberg mirror.
    """

    delta: ShownVectors | None = None
    iceberg: bool = False

    @staticmethod
    def of(given: object) -> Publish:
        """Return the mirrors that a declaration or a command gives.

        Args:
            given: `delta`, `iceberg`, `{"delta": {"vectors": "none"}}`, a list of these, or JSON text.

        Raises:
            InvalidInput: The value has another form, an unknown format or an unknown option.
        """
        wanted = _by_format(given)
        if unknown := sorted(set(wanted) - {*FORMATS}):
            raise InvalidInput(choice_of("publish", unknown[0], FORMATS))
        if options := wanted.get("iceberg"):
            raise InvalidInput(f"iceberg has no options, found {quoted(options)}. Leave them out")
        return Publish(delta=_vectors(wanted["delta"]) if "delta" in wanted else None, iceberg="iceberg" in wanted)

    @property
    def formats(self) -> tuple[PublishFormat, ...]:
        """The formats that the table declares."""
        return tuple(each for each in FORMATS if getattr(self, each))

    @property
    def published(self) -> tuple[PublishFormat, ...]:
        """The formats that a publication writes if the caller gives no formats.

        These are the declared formats, or Delta if no format is declared.
        """
        return self.formats or FORMATS[:1]

    def shown(self) -> object:
        """Return plain data that `of` accepts."""
        if self.delta == "none":
            return self._in_full()
        return self.formats[0] if len(self.formats) == 1 else [*self.formats]

    def to_text(self) -> str:
        """Return the value of the entry `PUBLISH_KEY`."""
        return json_text(self._in_full())

    def _in_full(self) -> dict[str, object]:
        delta = {} if self.delta is None else {"delta": {"vectors": self.delta}}
        return {**delta, "iceberg": {}} if self.iceberg else {**delta}

    @staticmethod
    def from_text(text: str) -> Publish:
        """Return the mirrors that `to_text` wrote. Raises `InvalidInput`."""
        try:
            return Publish.of(text)
        except InvalidInput as error:
            raise InvalidInput(f"table configuration {PUBLISH_KEY!r}: {error}", key=PUBLISH_KEY) from error


def _by_format(given: object) -> dict[str, object]:
    if isinstance(given, str) and given.lstrip().startswith(("{", "[")):
        given = from_json(given, "Write delta or iceberg, or a JSON object from a format to its options")
    if isinstance(given, str):
        return {given: None}
    if isinstance(given, Mapping) and all(isinstance(each, str) for each in given):
        return dict(given)
    if isinstance(given, list | tuple):
        return {name: options for each in given for name, options in _by_format(each).items()}
    raise InvalidInput(
        f"{quoted(given)} is not a format. Write delta or iceberg, or a mapping from a format to its options"
    )


def _vectors(options: object) -> ShownVectors:
    match options or {"vectors": "inline"}:
        case {"vectors": "inline", **rest} if not rest:
            return "inline"
        case {"vectors": "none", **rest} if not rest:
            return "none"
        case _:
            raise InvalidInput(
                f"the options of delta are {quoted(options)}. The only option is `vectors`, with inline or none"
            )


_MIRRORS: Final = {
    "type": "object",
    "properties": {
        "delta": {"type": ["object", "null"], "properties": {"vectors": {"enum": list(get_args(ShownVectors))}}},
        "iceberg": {"type": ["object", "null"], "maxProperties": 0},
    },
    "additionalProperties": False,
}
_MIRROR: Final = {"anyOf": [{"enum": list(FORMATS)}, _MIRRORS]}
PUBLISH: Final = Form(
    lambda given: given if isinstance(given, Publish) else Publish.of(given),
    Publish.shown,
    Publish.to_text,
    lambda _, text: Publish.from_text(text),
    {"anyOf": [*_MIRROR["anyOf"], {"type": "array", "items": _MIRROR}]},
)


# Raw logs.

RAW_LOGS_KEY: Final = "tidemark.rawLogs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingRawLog:
    """One raw log that feeds the table. Readers use this record to find the raw log.

    Attributes:
        name: The name of the raw log.
        table: The name of this table in the records of the raw log.
        stores: The locations of the mandatory stores. Each of them has every acknowledged chunk.
        optional: The locations of the other stores.
        unique_for_ms: Records with the same unique id are one record if their segments began at most this many ms
            apart. None is the default.
        closed_after_ms: A segment counts as closed this many ms after it began. None is the default.
    """

    name: str
    table: str
    stores: tuple[str, ...]
    optional: tuple[str, ...] = ()
    unique_for_ms: int | None = None
    closed_after_ms: int | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidInput` if a raw log has no store, or if a field has a value of the wrong type."""
        texts = (self.name, self.table, *self.stores, *self.optional)
        if not self.stores or not all(each and type(each) is str for each in texts):
            raise InvalidInput(f"a raw log needs the texts name, table and stores. Correct {self}")
        for ms in (self.unique_for_ms, self.closed_after_ms):
            if ms is not None and (type(ms) is not int or ms < 0):
                raise InvalidInput(f"raw log {self.name!r}: {ms!r} is not a number of milliseconds")

    @classmethod
    def of(cls, given: object) -> FeedingRawLog:
        """Return the raw log with these fields. Raises `InvalidInput` for any other value."""
        known = {each.name for each in fields(cls)}
        if not isinstance(given, Mapping) or not {"name", "table", "stores"} <= given.keys() <= known:
            raise InvalidInput(_lacking(given, known))
        return cls(**{**given, **{name: _texts(name, given.get(name, ())) for name in ("stores", "optional")}})

    def moved(self, move: Callable[[str], str]) -> FeedingRawLog:
        """Return the raw log with `move` applied to the location of each store."""
        return replace(self, stores=tuple(map(move, self.stores)), optional=tuple(map(move, self.optional)))

    def shown(self) -> dict[str, Any]:
        """Return plain data that `of` accepts. Fields with default values are left out."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _listed(value) for name, value in found.items() if value not in (None, ())}


def _given(given: object) -> FeedingRawLog:
    """Return the raw log of a mapping that a user wrote. The durations in the mapping are texts such as `24h`."""
    if isinstance(given, FeedingRawLog) or not isinstance(given, Mapping):
        return given if isinstance(given, FeedingRawLog) else FeedingRawLog.of(given)
    return FeedingRawLog.of(
        {_MS.get(name, name): parse_milliseconds(value) if name in _MS else value for name, value in given.items()}
    )


def _shown(raw_log: FeedingRawLog) -> dict[str, object]:
    found = raw_log.shown()
    return found | {name: milliseconds_text(found.pop(field)) for name, field in _MS.items() if field in found}


def raw_logs_of(given: object, read: Callable[[object], FeedingRawLog] = FeedingRawLog.of) -> tuple[FeedingRawLog, ...]:
    """Return the raw logs in a list, each read by `read`. Raises `InvalidInput`."""
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"raw_logs is {quoted(given)}. Write a list of mappings with name, table and stores")
    found = tuple(each_of(read, given))
    if twice := repeated(each.name for each in found):
        raise InvalidInput(f"raw log {twice[0]!r} is given twice. Give each once")
    return found


def _read_raw_logs(given: object) -> tuple[FeedingRawLog, ...]:
    return raw_logs_of(from_json(given, "Give a JSON list of objects with name, table and stores"), _given)


def _load(key: str, text: str) -> tuple[FeedingRawLog, ...]:
    try:
        return raw_logs_of(json_value(key, text))
    except InvalidInput as error:
        raise InvalidInput(f"table configuration {key!r}: {error}", key=key) from error


def _lacking(given: object, known: Collection[str]) -> str:
    """Return the error message about a value that is not a raw log."""
    if not isinstance(given, Mapping):
        return f"a raw log is {quoted(given)}. Write a mapping with name, table and stores"
    if lacks := [name for name in ("name", "table", "stores") if name not in given]:
        return f"the raw log lacks {' and '.join(lacks)}. Give name, table and stores"
    unknown = next(str(name) for name in given if name not in known)
    return f"a raw log has no field {quoted(unknown)}{did_you_mean(unknown, known) or '. Leave it out'}"


def _texts(name: str, given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"{name} of a raw log is {quoted(given)}. Write a list of locations")
    return tuple(given)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


_MS: Final = {"unique_for": "unique_for_ms", "closed_after": "closed_after_ms"}
_TEXT: Final = {"type": "string"}
_FIELDS: Final = {
    **dict.fromkeys(("name", "table"), _TEXT),
    **dict.fromkeys(("stores", "optional"), NAMES_SCHEMA),
    **dict.fromkeys(_MS, DURATION_SCHEMA),
}
RAW_LOGS: Final = Form(
    _read_raw_logs,
    lambda found: [_shown(each) for each in found],
    lambda found: json_text([each.shown() for each in found]),
    _load,
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": _FIELDS,
            "required": ["name", "table", "stores"],
            "additionalProperties": False,
        },
    },
)


# The table of settings.

SPLIT_METADATA_KEY = "tidemark.splitMetadata"
FORMER_WINDOWS_KEY = "tidemark.formerWindows"
MOST_MANIFEST_ENTRIES = 50_000
"""The largest number of entries that the format of manifests allows."""

TableKind = Literal["append", "keyed"]
MapMode = Literal["replace", "merge"]
CheckpointFormat = Literal["avro", "json", "json-multipart"]
SplitMetadata = Literal["plain", "packed"]
CheckpointCompression = Literal["zstd", "snappy", "none"]


def _read_modes(given: object) -> Mapping[str, str]:
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{given!r} is not a mapping of columns, such as {{attrs: merge}}. Write a mapping")
    for name, mode in given.items():
        if mode not in get_args(MapMode):
            raise InvalidInput(choice_of(f"map column {name!r}", mode, get_args(MapMode)), at=(name,))
    return dict(given)


def _record(kind: Any) -> Form:
    """Return the form of a record. A declaration contains the parts of the record, and not the whole record."""
    return Form(_refused, _refused, kind.to_text, lambda _, text: kind.from_text(text), {"type": "object"})


def _refused(given: object) -> object:
    raise InvalidInput(f"{given!r} is one value for a group of settings. Give a mapping")


_MODES: Final = Form(
    _read_modes,
    dict,
    lambda modes: json_text(dict(sorted(modes.items()))),
    json_object,
    {"type": "object", "additionalProperties": {"enum": list(get_args(MapMode))}},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """The definition of a table: time column, order, windows, key, indexes, and the settings of its maintenance.

    Each field is one entry in the table of settings. The fields have the order of the entries in the log. Sizes are in
    bytes. Durations are in the unit that the field's name contains.

    The text of `sort_schema` has the canonical form of `data.rows.sort_order`. The texts of `partition_by` have the
    canonical form of `data.settings.layout`. `region_specs` contains every spec that the table has had, with the
    current spec last. `retention_ms` limits the age of rows, and `version_retention_ms` limits the age of versions.

    - `time_column`: the timestamp column for windows, late rows and retention
    - `sort_schema`: the order of rows in a split, such as `visitor|url|timestamp/V2`. `timestamp` is the time column
    - `checkpoint_format`: the format of checkpoints
    - `checkpoint_compression`: the compression of checkpoints in Avro
    - `window_seconds`: the duration of a window, such as `15m` or `1h`. A split contains the rows of one window. A
      keyed table may have windows only if its time column is part of the key
    - `former_windows`: the durations that windows had before a change
    - `target_split_bytes`: the target size of new splits
    - `checkpoint_interval`: the number of versions after which a checkpoint is written. 0: only its job
    - `manifest_entries`: the target for the number of splits in a manifest of a checkpoint
    - `retained_states`: the number of newest checkpoints that stay regardless of their age
    - `split_compression`: the codec of new splits
    - `split_compression_level`: the level of the codec: 1 to 22 for zstd, 1 to 9 for gzip
    - `split_metadata`: the form of metadata in new splits (`packed` makes small splits smaller)
    - `string_cut`: the number of characters of a string bound that the log keeps
    - `gc_horizon_ms`: the time for which unreferenced objects stay
    - `version_retention_ms`: the time for which a version can be read after a newer version replaced it
    - `retention_ms`: the time from the end of a window until the window is dropped. Needs a `window`
    - `idle_after_ms`: the time without activity of a region's writer after which a merge takes over the region
    - `coarse_window`: allows windows above an hour
    - `primary_key`: the columns of the key. These columns make the table a keyed table. If the table has windows, the
      time column must be one of these columns
    - `partition_by`: columns or transforms of columns, such as `[tenant, day(ts)]`. The transforms are `year`, `month`,
      `day`, `hour`, `bucket[16]` and `truncate[4]`. A keyed table is partitioned by columns of its key
    - `bloom_filters`: columns with Parquet Bloom filters, for readers that look for single values
    - `late_data`: what happens to late rows
    - `max_rejected`: the largest share of rejected rows in a day, from 0 to 1. If the share of rejected rows is larger
      than this limit, `tidemark status` reports that the table is rejecting
    - `compaction`: when splits are compacted
    - `region_specs`: how keys are divided among writers
    - `regions_by_hand`: writers name their region
    - `maintained_indexes`: the indexes for which generations have segments
    - `raw_logs`: the raw logs that feed the table, such as `[{name: raw, table: clicks, stores: [s3://here/raw]}]`.
      Reads at `latest` return rows before they are distributed
    - `publish`: the mirrors for readers of other formats: `delta`, `iceberg` or both
    - `map_columns`: the effect of patches on maps, such as `{attrs: merge}`. With `merge`, patches merge the entries of
      a map
    - `indexes`: the indexes of the table, such as `[{name: urls, kind: fulltext, columns: [url]}]`. Kinds: `fulltext`,
      `bitmap`, `vector`, `primary_key`
    """

    time_column: str | None = setting(None, TEXT, change=Change.NEVER)
    sort_schema: str | None = setting(None, TEXT, usual="by time")
    checkpoint_format: CheckpointFormat = setting(
        "avro", TEXT, name="checkpoint.format", choices=get_args(CheckpointFormat)
    )
    checkpoint_compression: CheckpointCompression = setting(
        "zstd", TEXT, name="checkpoint.compression", choices=get_args(CheckpointCompression)
    )
    window_seconds: int | None = setting(None, SECONDS, name="window", least=1)
    former_windows: tuple[int, ...] = setting((), NUMBERS, change=Change.WINDOW, feature="windowChanges")
    target_split_bytes: int = setting(256 * 2**20, SIZE, name="splits.target_size", least=1)
    checkpoint_interval: int = setting(10, COUNT, name="checkpoint.interval", least=0)
    manifest_entries: int = setting(
        20_000, COUNT, name="checkpoint.manifest_entries", least=1, most=MOST_MANIFEST_ENTRIES
    )
    retained_states: int = setting(2, COUNT, name="gc.states", least=2, most=1_000_000)
    split_compression: SplitCompression = setting(
        "zstd", TEXT, name="splits.compression", choices=get_args(SplitCompression)
    )
    split_compression_level: int | None = setting(
        None, COUNT, name="splits.compression_level", usual="3 for zstd, 6 for gzip", least=1
    )
    split_metadata: SplitMetadata = setting("plain", TEXT, name="splits.metadata", choices=get_args(SplitMetadata))
    string_cut: int = setting(32, COUNT, name="splits.string_cut", least=1, most=1024)
    gc_horizon_ms: int = setting(24 * HOUR_MS, MILLISECONDS, name="gc.horizon", least=0)
    version_retention_ms: int = setting(30 * 24 * HOUR_MS, MILLISECONDS, name="gc.retention", least=0)
    # If the retention were 0, rows would disappear as soon as their window ends.
    retention_ms: int | None = setting(None, MILLISECONDS, usual="rows stay", least=1, most=LONGEST_ACCEPTANCE_MS)
    idle_after_ms: int = setting(300_000, MILLISECONDS, least=0)
    coarse_window: bool = setting(False, FLAG)
    primary_key: tuple[str, ...] = setting((), COLUMNS, change=Change.NEVER)
    partition_by: tuple[str, ...] = setting((), COLUMNS, change=Change.NEVER, feature="partitions")
    bloom_filters: tuple[str, ...] = setting((), NAMES)
    late_data: LateData | None = setting(None, _record(LateData), usual="no row is late")
    max_rejected: float = setting(0.01, SHARE, name="landing.max_rejected", least=0, most=1)
    compaction: CompactionSettings = setting(CompactionSettings(), _record(CompactionSettings))
    region_specs: tuple[RegionSpec, ...] = setting(
        (WHOLE_TABLE,),
        REGIONS,
        name="regions",
        key=REGIONS_KEY,
        usual="one region",
        change=Change.REGIONS,
        feature="regionSpecs",
    )
    regions_by_hand: bool = setting(False, FLAG, feature="regionsByHand")
    maintained_indexes: tuple[str, ...] | None = setting(None, NAMES, usual="all")
    raw_logs: tuple[FeedingRawLog, ...] = setting((), RAW_LOGS)
    publish: Publish = setting(Publish(), PUBLISH)
    map_columns: Mapping[str, MapMode] = setting({}, _MODES, usual="replaced", change=Change.NEVER)
    indexes: tuple[IndexDefinition, ...] = setting((), INDEXES)

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for contradictory settings and for repeated names."""
        check_bounds(self)
        _read_modes(self.map_columns)
        if self.retention_ms is not None and self.window_seconds is None:
            raise InvalidInput(
                "retention removes whole windows, but this table has no windows. Declare a time_column and a window, "
                "or leave retention out"
            )
        coarse = self.compaction.coarsen_to
        if coarse is not None and (self.window_seconds is None or coarse % self.window_seconds):
            has = "no windows" if self.window_seconds is None else f"windows of {self.window_seconds} s"
            raise InvalidInput(
                f"compaction.coarsen_to is {coarse} s, and the table has {has}. Give a multiple of the window"
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
        """`keyed` if rows have a primary key, else `append`."""
        return "keyed" if self.primary_key else "append"

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        """The partition fields of the table."""
        return partition_fields(self.partition_by)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The partition fields that are columns of the table without a transform. `metaData` names these."""
        return tuple(each.name for each in self.partition_fields if each.name == each.column)

    @property
    def region_spec(self) -> RegionSpec:
        """The region spec that writers use."""
        return self.region_specs[-1]

    @property
    def dividing(self) -> tuple[int, bool]:
        """The settings that determine the regions.

        A capture of the regions is not reused if these settings have other values.
        """
        return self.region_spec.id, self.regions_by_hand

    @property
    def split_codec(self) -> SplitCodec:
        """The codec and level of new splits."""
        return SplitCodec(self.split_compression, self.split_compression_level)

    @property
    def other_windows(self) -> tuple[int, ...]:
        """Window durations, in seconds, that splits may have in addition to the table's current window duration.

        The result does not include the current window duration of the table.
        """
        coarse = self.compaction.coarsen_to
        return self.former_windows if coarse is None else (*self.former_windows, coarse)

    @property
    def merged_maps(self) -> tuple[str, ...]:
        """The sorted names of the map columns whose entries a patch merges."""
        return tuple(sorted(name for name, mode in self.map_columns.items() if mode == "merge"))

    @property
    def maintained(self) -> tuple[IndexDefinition, ...]:
        """The indexes for which generations get segments."""
        names = self.maintained_indexes
        return self.indexes if names is None else tuple(each for each in self.indexes if each.name in names)

    @property
    def nonzero_vectors(self) -> frozenset[str]:
        """The vector columns that an index compares by cosine.

        Their values must not be zero, because a zero embedding has no direction.
        """
        by_angle = (each for each in self.indexes if each.kind == "vector" and each.options.get("metric") == "cosine")
        return frozenset(name for each in by_angle for name in each.columns)

    def index(self, name: str) -> IndexDefinition | None:
        """Return the definition of the index with this name, or None."""
        return next((each for each in self.indexes if each.name == name), None)

    def to_configuration(self) -> dict[str, str]:
        """Return the settings that differ from their defaults as `tidemark.*` text values, in a fixed order."""
        found = {
            entry.key: entry.form.store(getattr(self, field))
            for field, entry in _STORED.items()
            if getattr(self, field) != entry.default
        }
        return found | {index.key: index.to_text() for index in self.indexes}

    @staticmethod
    def owns(key: str) -> bool:
        """Return whether `to_configuration` writes this configuration key."""
        return key.startswith(INDEX_PREFIX) or any(key == entry.key for entry in _STORED.values())

    @staticmethod
    def from_configuration(configuration: Mapping[str, str]) -> TableConfig:
        """Return the settings stored in `configuration`. Keys that this release does not know are ignored.

        Raises:
            InvalidInput: A value cannot be read. The error names the key.
        """
        found = {
            field: entry.form.load(entry.key, configuration[entry.key])
            for field, entry in _STORED.items()
            if entry.key in configuration
        }
        indexes = tuple(
            IndexDefinition.from_text(key, value)
            for key, value in configuration.items()
            if key.startswith(INDEX_PREFIX)
        )
        return TableConfig(**found, indexes=indexes)


def _distinct(what: str, names: tuple[str, ...]) -> None:
    if doubled := sorted(repeated(names)):
        raise InvalidInput(f"the {what} {names_of(doubled)} is declared twice. Declare each {what} once")


_ENTRIES: Final = settings_of(TableConfig)
_STORED: Final = {field: entry for field, entry in _ENTRIES.items() if field != "indexes"}
"""The settings by field. `indexes` is left out, because each index is an entry of its own in the log."""
_RECORDS: Final[Mapping[str, Any]] = {"late_data": LateData(), "compaction": CompactionSettings()}
"""The records of settings, each with the default values of its parts."""

GROUPS: Final[Mapping[str, str]] = {
    "splits": "how new splits are written",
    "checkpoint": "when a checkpoint is written, and how",
    "gc": "how long unreferenced objects and old versions stay (`retention` of the table is about rows)",
    **{name: _ENTRIES[name].about for name in _RECORDS},
}
"""The description of each group of settings that have a common prefix in their names."""
LANDING_GROUP: Final = "landing"
"""The prefix of the settings that belong to the group `landing` of a declaration.

The landing location belongs to the group `landing`, but the landing location is not a setting.
"""


def _by_name() -> dict[str, Setting]:
    single = [entry for field, entry in _ENTRIES.items() if field not in _RECORDS]
    parts = [
        replace(entry, name=f"{record}.{entry.name}", key="", record=record)
        for record, usual in _RECORDS.items()
        for entry in settings_of(type(usual)).values()
    ]
    order = ["", LANDING_GROUP, *GROUPS]
    return {each.name: each for each in sorted(single + parts, key=lambda each: order.index(_group(each.name)))}


def _group(name: str) -> str:
    return name.rpartition(".")[0]


SETTINGS: Final[Mapping[str, Setting]] = _by_name()
"""Every setting by its name. The settings of one group are consecutive entries."""
ALTERABLE: Final = {name: each for name, each in SETTINGS.items() if each.change is Change.ALTER}
"""The settings that a commit may change. The next run of each job and new splits use the new values."""
FIXED: Final = tuple(field for field, entry in _ENTRIES.items() if entry.change is not Change.ALTER)
"""The fields of `TableConfig` that `Table.alter` does not change."""
_ELSEWHERE: Final[Mapping[str, str]] = {
    LANDING_GROUP: "cannot be changed this way. Change the landing location in tables/NAME.yaml",
    "columns": "cannot be changed this way. Use methods such as `Table.add_column`, or `tidemark alter URI add-column`",
}


# Changes of settings.


def shown(config: TableConfig) -> dict[str, object]:
    """Return the value of every alterable setting by its name, in the form that `changed` accepts.

    None means that the setting has no value.
    """
    return {name: each.form.shown(each.of(config)) for name, each in ALTERABLE.items()}


def changed(config: TableConfig, given: Mapping[str, object]) -> TableConfig:
    """Return the settings after a change.

    Args:
        config: The settings before the change.
        given: New values by name, flat or nested as in declarations. None sets a setting back to its default.

    Raises:
        InvalidInput: A setting is unknown, cannot be changed, or its value is invalid. The error names the setting.
    """
    values = {name: _read(name, value) for name, value in _flat(given)}
    try:
        return with_values(config, values)
    except InvalidInput as error:
        is_named = any(error.found.startswith(f"{name} is ") for name in values)
        where = "" if is_named else f"{', '.join(values)}: "
        raise InvalidInput(f"{where}{error}", settings=sorted(values)) from error


def with_values(config: TableConfig, values: Mapping[str, object]) -> TableConfig:
    """Return the settings with these values, by name. For a part of a record, None means the default of this part."""
    wanted = {SETTINGS[name].field: value for name, value in values.items() if not SETTINGS[name].record}
    for record, usual in _RECORDS.items():
        parts = {SETTINGS[name].field: value for name, value in values.items() if SETTINGS[name].record == record}
        if parts:
            wanted[record] = _with_parts(getattr(config, record), usual, parts)
    return replace(config, **wanted)  # type: ignore[arg-type]  # read by the form of each


def _with_parts(record: Any, usual: Any, parts: Mapping[str, object]) -> object:
    """Return the record with these parts. Return None if every part of an optional record is reset to its default."""
    if isinstance(usual, LateData) and len(parts) == len(fields(usual)) and set(parts.values()) == {None}:
        return None
    back = {name: getattr(usual, name) if value is None else value for name, value in parts.items()}
    return replace(usual if record is None else record, **back)


def check_names(names: Iterable[str]) -> None:
    """Raise `InvalidInput` if a name is neither a setting, nor a group of settings, nor a part of a declaration."""
    known = {*SETTINGS, *map(_group, SETTINGS), *_ELSEWHERE}
    for name in names:
        if name not in known:
            raise InvalidInput(_refusal(name, []), setting=name)


def _read(name: str, value: object) -> object:
    entry = ALTERABLE[name]
    return None if value is None and entry.record else entry.read(value)


def _flat(given: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in given.items():
        path = f"{above}{name}"
        inner = [each for each in ALTERABLE if _group(each) == path]
        if inner and value is None and path not in _ELSEWHERE:
            yield from ((each, None) for each in inner)
        elif inner and isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        elif path in ALTERABLE:
            yield path, value
        else:
            raise InvalidInput(_refusal(path, inner), setting=path)


def _refusal(path: str, inner: list[str]) -> str:
    if inner and path not in _ELSEWHERE:
        return f"{path} is a group of settings. Set {', '.join(inner)}, or give a mapping"
    declared = LANDING_GROUP if _group(path) == LANDING_GROUP else path
    if declared in _ELSEWHERE or path in SETTINGS:
        return f"{path} {_ELSEWHERE.get(declared) or SETTINGS[path].change}"
    return f"unknown setting {path!r}{did_you_mean(path, ALTERABLE) or '.'} The settings are {', '.join(ALTERABLE)}"
