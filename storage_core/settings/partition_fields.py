"""What a table is partitioned by: texts of a declaration such as `tenant`, `day(ts)` and `bucket[16](user_id)`.

The transforms are those of Iceberg: `identity`, `bucket[n]`, `truncate[w]`, `year`, `month`, `day` and `hour`. This
module knows no schema: what values a field has is decided in `rows.partitions`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

PARTITION_BY_KEY = "tidemark.partitionBy"
SOURCE_COLUMN = "source_id"
"""The column whose value is the source of a split (`add.sourceId`) where a table is partitioned by it."""
MOST_FIELDS = 4
"""A key has at most 1,024 bytes, and each field is a folder in it."""
LONGEST_TEXT = 1024
"""Code points of a partition's text; longer texts share the partition of their first 1,024."""

_TEXT = re.compile(r"([a-z]+)(?:\[(-?[0-9]+)\])?\((.+)\)", re.ASCII | re.DOTALL)
_MOST_PARAMETER = 2**31 - 1
_MOST_DIGITS = 10


class PartitionTransform(StrEnum):
    """The transforms by name."""

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
    """One field: a transform of a column; `parameter` is the number of buckets or the width, 0 for the others."""

    column: str
    transform: PartitionTransform = PartitionTransform.IDENTITY
    parameter: int = 0

    @property
    def name(self) -> str:
        """What folders and `partitionValues` call the field: its column, or that with the transform, as in `ts_day`."""
        return self.column + _SUFFIXES.get(self.transform, f"_{self.transform}")

    @property
    def text(self) -> str:
        """The canonical text of the field."""
        if self.transform is PartitionTransform.IDENTITY and not _TEXT.fullmatch(self.column):
            return self.column
        return f"{self.transform}{f'[{self.parameter}]' if self.parameter else ''}({self.column})"

    @property
    def is_source(self) -> bool:
        """Whether the field says which source a split is of."""
        return self.transform is PartitionTransform.IDENTITY and self.column == SOURCE_COLUMN


def partition_field(text: str) -> PartitionField:
    """Return the field of a text. Raises `InvalidInput` naming the transforms there are."""
    found = _TEXT.fullmatch(text)
    if found is None and text:
        return PartitionField(text)
    if found is not None and found[1] in set(PartitionTransform):
        transform, parameter = PartitionTransform(found[1]), _number(found[2] or "0")
        if (transform in _WITH_PARAMETER) == (parameter != 0) and 0 <= parameter <= _MOST_PARAMETER:
            return PartitionField(found[3], transform, parameter)
    known = ", ".join(f"{each}[n](column)" if each in _WITH_PARAMETER else f"{each}(column)" for each in _others())
    raise InvalidInput(
        f"partition_by has {quoted(text)}; expected the name of a column, or one of {known}, n from 1 to 2**31 - 1",
        field=text,
    )


def _number(digits: str) -> int:
    """The number of a parameter; one of too many digits to be any is too great."""
    return int(digits) if len(digits) <= _MOST_DIGITS else _MOST_PARAMETER + 1


def _others() -> list[PartitionTransform]:
    return [each for each in PartitionTransform if each is not PartitionTransform.IDENTITY]


def partition_fields(texts: Sequence[str]) -> tuple[PartitionField, ...]:
    """Return the fields of a table. Raises `InvalidInput` for one that is none, too many, or two of one name."""
    fields = tuple(partition_field(text) for text in texts)
    names = [each.name for each in fields]
    if len(fields) > MOST_FIELDS:
        raise InvalidInput(f"partition_by has {len(fields)} fields {names}; a table has at most {MOST_FIELDS}")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidInput(f"partition_by names {doubled[0]!r} twice; name each field once", field=doubled[0])
    return fields
