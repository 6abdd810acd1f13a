"""What a catalogue answers, as records and pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

_Row = TypeVar("_Row")
_Position = TypeVar("_Position")


@dataclass(frozen=True, slots=True)
class Page(Generic[_Row, _Position]):
    """Rows as of a version of the table, and where the next page begins: None where there is none."""

    rows: tuple[_Row, ...]
    after: _Position | None
    version: int


Place = tuple[int | None, str]
"""A window or a time, None for splits without one, and a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCandidate:
    """A live split that another of its scope and window may be compacted with. Times in seconds, sizes in bytes."""

    split_id: str
    window_start: int | None
    window_seconds: int | None
    sort_schema: str
    source_id: str
    partition_id: str
    schema_ref: str
    rows: int | None
    deleted_rows: int
    bytes: int | None
    merge_ops: int | None
    added_version: int
    added_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSplit:
    """A live split that may hold a row that was asked for. Bounds are the texts of the log, by stored column."""

    split_id: str
    window_start: int | None
    rows: int | None
    deleted_rows: int
    bytes: int | None
    min_time_us: int | None
    max_time_us: int | None
    min_values: Mapping[str, str]
    max_values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredWindow:
    """A window that has left its table by the table's retention, and how many live splits it has."""

    table: str
    window_start: int
    window_end: int
    splits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitChange:
    """A split that joined or left with a version. One whose deleted rows change leaves and joins."""

    version: int
    change: Literal["removed", "added"]
    split_id: str
    window_start: int | None
    rows: int | None
    deleted_rows: int
    bytes: int | None


Outcome = Literal["current", "refreshed", "loaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """One table after its refresh. `versions` were applied one by one; `reason` says why it was loaded whole."""

    name: str
    uri: str
    table_id: str
    outcome: Outcome
    version: int
    versions: int
    reason: str = ""


def record(kind: type[_Row], row: Mapping[str, Any], **more: object) -> _Row:
    """Return a record of the columns that it names."""
    names: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]  # every record here has slots
    return kind(**{name: row[name] for name in names if name not in more}, **more)
