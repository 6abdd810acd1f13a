"""The settings of a table's physical layout: compaction, partitions and regions.

- **Compaction**: `CompactionSettings` contains the settings of the compaction policy. The class converts the settings
  to and from their form in `metaData.configuration` (docs/architecture/compaction.md, "Policy").
- **Partitions**: a declaration contains a list of texts such as `tenant`, `day(ts)` and `bucket[16](user_id)`.
  `PartitionField` is the parsed form of one text of this list. The transforms are those of Iceberg: `identity`,
  `bucket[n]`, `truncate[w]`, `year`, `month`, `day` and `hour`. This module does not read the schema.
  `data.rows.windows` computes the values of a field.
- **Regions**: `Region`, `RegionSpec` and `RegionField` are records. The module also contains the form of specs in
  `metaData.configuration` (docs/architecture/ingestion.md, "Regions"). `region.expressions` computes the value of a
  field. `region.spec` checks the sources of a field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import InvalidInput
from storage_core.base.text import quoted
from storage_core.data.settings.setting import (
    COUNT,
    INSTANT,
    MILLISECONDS,
    SECONDS,
    Form,
    check_bounds,
    json_object,
    json_text,
    json_value,
    setting,
    settings_of,
)

# Compaction.

COMPACTION_KEY = "tidemark.compaction"

MOST_GENERATIONS = 999_999
"""The largest valid value of `generations`.

The splits of a sorted run store a number of merges that is greater than this value (decision 0015).
"""

MOST_RUN_INPUTS = 256
"""The maximum number of splits that a merge reads. Each input needs an open file and a batch of rows in memory."""


MOST_COARSE_SECONDS = 366 * 86_400
"""The maximum duration of joined windows, in seconds. Cold windows are joined into longer windows."""


def is_coarse(seconds: int) -> bool:
    """Return whether windows of this duration may receive the splits of shorter windows."""
    return seconds % 3600 == 0 and 0 < seconds <= MOST_COARSE_SECONDS


class Mode(StrEnum):
    """The purpose of a compaction.

    - `POLICY` does the merges that are worth their cost now.
    - `FINALIZE` merges every window until it has one sorted run, even if the window is not cold.
    - `REWINDOW` merges nothing. A job of this mode rewrites splits of former windows (`compact.rewindow`). A job of
      `POLICY` also rewrites splits, if cold windows are joined.
    - `RESORT` merges nothing. A job of this mode rewrites splits that have another sort schema.
    """

    POLICY = "policy"
    FINALIZE = "finalize"
    REWINDOW = "rewindow"
    RESORT = "resort"

    @property
    def merges(self) -> bool:
        """Whether compactions of this mode merge splits."""
        return self in (Mode.POLICY, Mode.FINALIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """The conditions under which splits of a window are compacted (`compact.policy`). Durations are in ms.

    The merge level of a split is the number of compactions that its rows went through. A split of merge level
    `generations` is mature. A window becomes cold when `cold_after_ms` have passed since its end. A cold window is
    finalized when more than `most_files` of its splits are outside its sorted run.

    - `factor`: the number of splits of one window and one merge level that become one split
    - `most_inputs`: the maximum number of splits that one compaction reads, from `factor` to 256
    - `generations`: a split of this merge level waits until its window is cold. The merge level of a split is the
      number of compactions that its rows went through
    - `most_files`: the maximum number of files of a cold window that are not in the sorted run of the window. If more
      files than this maximum, or more than a tenth of the bytes, are outside the sorted run, a compaction merges the
      whole window into one run
    - `cold_after_ms`: the time from the end of a window until the window is cold
    - `mature_after_ms`: a split that is older than this age is compacted only with other splits that are older than
      this age. A bucket of null timestamps is cold if it gets no new split for a period of `mature_after`
    - `run_rows`: the maximum number of rows that one task of a compaction reads. Each row takes about 120 bytes of
      memory (decision 0015)
    - `coarsen_after_ms`: the time from the end of a longer window until the shorter windows inside it are joined
    - `coarsen_to`: the duration of the longer windows into which cold windows are joined. The duration must be in whole
      hours, and a multiple of `window`. Scheduled compactions and `tidemark compact NAME --policy` or `--rewindow` join
      cold windows (decision 0006)
    - `start`: windows that begin before this time (UTC) are never compacted, and `debt` contains no `compact` for them
    """

    factor: int = setting(10, COUNT, least=2)
    most_inputs: int = setting(12, COUNT, least=2, most=MOST_RUN_INPUTS)
    generations: int = setting(4, COUNT, least=1, most=MOST_GENERATIONS)
    most_files: int = setting(24, COUNT, least=1)
    cold_after_ms: int = setting(HOUR_MS, MILLISECONDS, least=0)
    mature_after_ms: int = setting(48 * HOUR_MS, MILLISECONDS, least=0)
    run_rows: int = setting(2**25, COUNT, least=1)
    coarsen_after_ms: int = setting(30 * 24 * HOUR_MS, MILLISECONDS, least=0)
    coarsen_to: int | None = setting(None, SECONDS)
    start: int | None = setting(None, INSTANT)

    def __post_init__(self) -> None:
        """Raise `InvalidInput` if the settings would prevent all merges, or allow endless or too large merges."""
        check_bounds(self, "compaction")
        if self.most_inputs < self.factor:
            raise InvalidInput(f"compaction.most_inputs is {self.most_inputs}. Give {self.factor} or more")
        if self.coarsen_to is not None and not is_coarse(self.coarsen_to):
            raise InvalidInput(
                f"compaction coarsen_to is {self.coarsen_to} s. Give whole hours, at most 366 days",
            )

    def to_text(self) -> str:
        """Return the settings that differ from their defaults as compact JSON with sorted keys."""
        own = {name: (getattr(self, name), each.default) for name, each in sorted(settings_of(type(self)).items())}
        return json_text({name: value for name, (value, default) in own.items() if value != default})

    @staticmethod
    def from_text(text: str) -> CompactionSettings:
        """Return the settings that `to_text` wrote.

        Raises:
            InvalidInput: A setting is unknown or not a whole number. An unknown setting cannot be ignored, because it
                would change what is merged.
        """
        body: dict[str, Any] = json_object(COMPACTION_KEY, text)
        known = settings_of(CompactionSettings).keys()
        if not known >= body.keys():
            raise InvalidInput(
                f"{COMPACTION_KEY}: {quoted(text)} has unknown settings. The settings are {', '.join(sorted(known))}",
                key=COMPACTION_KEY,
            )
        for name, value in body.items():
            if type(value) is not int:
                raise InvalidInput(f"{COMPACTION_KEY}: {name} is {value!r}, not a whole number", key=COMPACTION_KEY)
        return CompactionSettings(**body)


# Partitions.

PARTITION_BY_KEY = "tidemark.partitionBy"
SOURCE_COLUMN = "source_id"
"""The column that contains the source of a split.

If this column is a partition field, `add.sourceId` contains the value of the field.
"""
MOST_FIELDS = 4
"""The maximum number of partition fields. A key has at most 1,024 bytes, and each field is a folder in the key."""
LONGEST_TEXT = 1024
"""The maximum number of code points in the text of a partition. Longer texts share the partition of their first 1,024
code points.

"""

_TEXT = re.compile(r"([a-z]+)(?:\[(-?[0-9]+)\])?\((.+)\)", re.ASCII | re.DOTALL)
_MOST_PARAMETER = 2**31 - 1
_MOST_DIGITS = 10


class PartitionTransform(StrEnum):
    """The transforms of partition fields, by name."""

    IDENTITY = "identity"
    BUCKET = "bucket"
    TRUNCATE = "truncate"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"


_SUFFIXES = {PartitionTransform.IDENTITY: "", PartitionTransform.TRUNCATE: "_trunc"}
_WITH_PARAMETER = {PartitionTransform.BUCKET, PartitionTransform.TRUNCATE}


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One partition field: a transform of a column.

    `parameter` is the number of buckets or the width to truncate to. `parameter` is 0 for the other transforms.
    """

    column: str
    transform: PartitionTransform = PartitionTransform.IDENTITY
    parameter: int = 0

    @property
    def name(self) -> str:
        """The name of the field in folders and in `partitionValues`.

        The name is the column, or the column and the transform, as in `ts_day`.
        """
        return self.column + _SUFFIXES.get(self.transform, f"_{self.transform}")

    @property
    def text(self) -> str:
        """The canonical text of the field."""
        if self.transform is PartitionTransform.IDENTITY and not _TEXT.fullmatch(self.column):
            return self.column
        return f"{self.transform}{f'[{self.parameter}]' if self.parameter else ''}({self.column})"

    @property
    def is_source(self) -> bool:
        """True if the field is the source column without a transform."""
        return self.transform is PartitionTransform.IDENTITY and self.column == SOURCE_COLUMN


def partition_field(text: str) -> PartitionField:
    """Return the field for a text such as `day(ts)`. Raises `InvalidInput` with the valid transforms."""
    found = _TEXT.fullmatch(text)
    if found is None and text:
        return PartitionField(text)
    if found is not None and found[1] in set(PartitionTransform):
        transform, parameter = PartitionTransform(found[1]), _number(found[2] or "0")
        if (transform in _WITH_PARAMETER) == (parameter != 0) and 0 <= parameter <= _MOST_PARAMETER:
            return PartitionField(found[3], transform, parameter)
    known = ", ".join(f"{each}[n](column)" if each in _WITH_PARAMETER else f"{each}(column)" for each in _others())
    raise InvalidInput(
        f"partition_by has {quoted(text)}. Give the name of a column, or one of {known}, with n from 1 to 2**31 - 1",
        field=text,
    )


def _number(digits: str) -> int:
    """Return the number of a parameter. If the text has too many digits, return a number that is too large."""
    return int(digits) if len(digits) <= _MOST_DIGITS else _MOST_PARAMETER + 1


def _others() -> list[PartitionTransform]:
    return [each for each in PartitionTransform if each is not PartitionTransform.IDENTITY]


def partition_fields(texts: Sequence[str]) -> tuple[PartitionField, ...]:
    """Return the partition fields of a table. Raises `InvalidInput` for an invalid or repeated field.

    A table has at most `MOST_FIELDS` fields.
    """
    fields = tuple(partition_field(text) for text in texts)
    names = [each.name for each in fields]
    if len(fields) > MOST_FIELDS:
        raise InvalidInput(f"partition_by has {len(fields)} fields {names}. A table has at most {MOST_FIELDS}")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidInput(f"partition_by names {doubled[0]!r} twice. Name each field once", field=doubled[0])
    return fields


LANDING_KEY = "tidemark.landing"
"""The key of the landing location in the configuration of a table."""


# Regions.

REGIONS_KEY = "tidemark.regions"
HAND_REGIONS_KEY = "tidemark.regionsByHand"

WHOLE_TABLE_SPEC = 1
"""The region spec without fields. The only region of this spec contains every key of the table."""

BY_HAND_SPEC = 0
"""The spec id of a region that a caller created by name.

A region that a caller created by name belongs to no spec, and the value of the region is its name.
"""

Value: TypeAlias = bool | int | str | None
"""The value of a region field in its canonical form, as in the name of a region. See `region.spec.canonical`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionField:
    """One field of a region spec. The values of the fields determine the region of a row.

    Attributes:
        field_id: The id of the field.
        source_ids: The columns from which the value is computed, in order.
        result_type: The type of the value, as a Spark type of the schema.
        transform: A transform such as `bucket(4)`. None if there is an expression.
        expression: A SQL expression over `col0, col1…`. None if there is a transform.
    """

    field_id: str
    source_ids: tuple[str, ...]
    result_type: str
    transform: str | None = None
    expression: str | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless the field has a source and either a transform or an expression."""
        if (self.transform is None) == (self.expression is None):
            raise InvalidInput(f"region field {self.field_id!r}: give either a transform or an expression")
        if not self.source_ids or len(set(self.source_ids)) != len(self.source_ids):
            raise InvalidInput(f"region field {self.field_id!r}: name at least one source column, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """The rule that divides the rows of a table into regions.

    Ids count from 1 and are never reused. A spec without fields has one region. Spec 1 has no fields, and every table
    that was created without regions uses spec 1.
    """

    id: int = WHOLE_TABLE_SPEC
    fields: tuple[RegionField, ...] = ()

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for an invalid id, two fields with the same id, and fields in spec 1."""
        names = [each.field_id for each in self.fields]
        if not WHOLE_TABLE_SPEC <= self.id < 2**32 or (self.fields and self.id == WHOLE_TABLE_SPEC):
            raise InvalidInput(
                f"the id of a region spec is {self.id}. Give 2 to 2**32 - 1, or 1 for a spec without fields"
            )
        if len(set(names)) != len(names):
            raise InvalidInput(f"the region fields {names} have the same id. Give each field its own id")


WHOLE_TABLE = RegionSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region of a table: its UUID, the id of its spec, and the values of the spec's fields (`Value`).

    `values` is None if only the id is known.
    """

    id: str
    spec_id: int
    values: tuple[Value, ...] | None


def specs_to_text(specs: Sequence[RegionSpec]) -> str:
    """Return the value of the entry `REGIONS_KEY`: the specs in their order."""
    return json_text([_spec_body(each) for each in specs])


def specs_from_text(text: str) -> tuple[RegionSpec, ...]:
    """Return the specs that `specs_to_text` wrote. Raises `InvalidInput` with the name of the entry."""
    bodies = cast("list[dict[str, Any]]", json_value(REGIONS_KEY, text))  # the code below refuses any other type
    try:
        return check_specs(tuple(_spec(each) for each in bodies))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"table configuration {REGIONS_KEY!r}: not region specs ({error!r}): {quoted(text)}", key=REGIONS_KEY
        ) from error


def check_specs(specs: tuple[RegionSpec, ...]) -> tuple[RegionSpec, ...]:
    """Return the specs of a table.

    There must be at least one spec, and the ids must be ascending. Raises `InvalidInput`.
    """
    ids = [each.id for each in specs]
    if not ids or ids != sorted(set(ids)):
        raise InvalidInput(f"the region specs have the ids {ids}. The ids must ascend, with the current spec last")
    return specs


def _spec_body(spec: RegionSpec) -> dict[str, object]:
    return {"id": spec.id, "fields": [_field_body(each) for each in spec.fields]}


def _field_body(field: RegionField) -> dict[str, object]:
    computed = {"transform": field.transform} if field.transform is not None else {"expression": field.expression}
    return {
        "field_id": field.field_id,
        "source_ids": list(field.source_ids),
        **computed,
        "result_type": field.result_type,
    }


def _spec(body: dict[str, Any]) -> RegionSpec:
    return RegionSpec(id=int(body["id"]), fields=tuple(_field(each) for each in body["fields"]))


def _field(body: dict[str, Any]) -> RegionField:
    return RegionField(
        field_id=str(body["field_id"]),
        source_ids=tuple(str(each) for each in body["source_ids"]),
        result_type=str(body["result_type"]),
        transform=body.get("transform"),
        expression=body.get("expression"),
    )


_NAMES: Final = {"type": "array", "items": {"type": "string"}}
REGIONS: Final = Form(
    lambda given: given,  # `region.spec.first_specs` parses this setting, because the parser needs the table's columns
    lambda specs: [_field_body(each) for each in specs[-1].fields],
    specs_to_text,
    lambda _, text: specs_from_text(text),
    {
        "type": "array",
        "items": {"type": "object", "additionalProperties": {"anyOf": [{"type": ["string", "integer"]}, _NAMES]}},
    },
)
