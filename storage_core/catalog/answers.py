"""Results of the catalog, as records and pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from storage_core.base.errors import NotFound, TidemarkError

_Row = TypeVar("_Row")
_Position = TypeVar("_Position")


@dataclass(frozen=True, slots=True)
class Page(Generic[_Row, _Position]):
    """A page of rows at one version of the table. `after` is the start of the next page, or None on the last page."""

    rows: tuple[_Row, ...]
    after: _Position | None
    version: int


Place = tuple[int | None, str]
"""The position of a split in a page of results: the start of its window (or the time of the split), and its path.

A split without a window or time has None.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCandidate:
    """A live split that a compaction can merge with another split of the same compatibility scope and window.

    Times are in seconds, and sizes are in bytes.
    """

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
    """A live split that may contain rows that match the query.

    The bounds of the split are strings. The keys of the bounds are stored column names, as in the log.
    """

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
    """A window that is older than the retention of its table, and the number of its live splits."""

    table: str
    window_start: int
    window_end: int
    splits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitChange:
    """A split that a version added or removed.

    If the deleted rows of a split change, the split is removed and added.
    """

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
    """The outcome of a refresh.

    `versions` is the number of versions that were applied one by one. If the whole table was loaded instead, `reason`
    explains why.
    """

    name: str
    uri: str
    table_id: str
    outcome: Outcome
    version: int
    versions: int
    reason: str = ""


def record(kind: type[_Row], row: Mapping[str, Any], **more: object) -> _Row:
    """Create a record of the class `kind`, with fields from `more` and from the equally named columns of `row`."""
    names: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]  # every record here has slots
    return kind(**{name: row[name] for name in names if name not in more}, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRefreshed:
    """A table that was not refreshed, and the error. If the table does not exist yet, `is_failure` is False."""

    name: str
    uri: str
    error: TidemarkError

    @property
    def is_failure(self) -> bool:
        """Whether a person must act on the error."""
        return not isinstance(self.error, NotFound)
