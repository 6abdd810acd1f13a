"""What a report says of one table: read from storage alone, the history from the log itself (decision 0165)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pipelines.status.table_status import Looked, Place, look_into
from storage_core.clock import Clock
from storage_core.errors import TidemarkError, as_tidemark_error
from storage_core.log.written import Written, written
from storage_core.read.describe import describe
from storage_core.table import Table

MOST_COMMITS = 500
"""So many of the newest commits are read unless more are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The live splits of one window: its start and length in seconds, None for what has no window."""

    start: int | None
    seconds: int | None
    splits: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What commits took at least: their own PUT and one per object that they wrote, a GET per split they replaced."""

    put: int
    get: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One table: the look at it, its windows, its commits, newest first, and the recall of indexes if measured.

    Of a table that is not made or cannot be read only the look says something.
    """

    looked: Looked
    windows: Sequence[Window] = ()
    commits: Sequence[Written] = ()
    recalls: Mapping[str, float] = field(default_factory=dict)

    @property
    def write_amplification(self) -> float | None:
        """Bytes that all commits wrote per byte of those that brought rows; None where none did."""
        brought = sum(each.bytes_added for each in self.commits if each.brings_rows)
        total = sum(each.bytes_added + each.segment_bytes for each in self.commits)
        return total / brought if brought else None

    @property
    def requests(self) -> Requests:
        """The requests of the commits, at least."""
        return Requests(
            put=sum(1 + each.splits_added + each.segments_added for each in self.commits),
            get=sum(each.splits_removed for each in self.commits),
        )

    def live_splits(self) -> Iterator[tuple[int, int]]:
        """Yield time (ms) and number of live splits after each commit, oldest first; reckoned back from the newest."""
        found = []
        live = 0 if self.looked.status is None else self.looked.status.splits
        for each in self.commits:
            found.append((each.timestamp, live))
            live += each.splits_removed - each.splits_added
        return reversed(found)


def content_of(place: Place, clock: Clock, *, most_commits: int = MOST_COMMITS, recall: bool = False) -> Content:
    """Return what there is to say of a table. Raises nothing for one that fails: its look says so.

    Requests: those of `read.status`, one GET per commit and, with `recall`, those of reading all vectors.
    """
    try:
        table = Table.open(place.uri)
        looked = look_into(table, place, clock)
        about = describe(table.store, table.snapshot, now_ms=clock.now_ms())
        commits = tuple(islice(written(table.store, table.version), most_commits))
        vectors = [each.name for each in table.config.indexes if recall and each.kind == "vector"]
        recalls = {name: table.recall(name).recall for name in vectors}
    except Exception as error:  # noqa: BLE001  # whatever it is, it is of this table alone
        return Content(looked=_failed(place, as_tidemark_error(error)))
    return Content(looked=looked, windows=_windows(about), commits=commits, recalls=recalls)


def _failed(place: Place, error: TidemarkError) -> Looked:
    is_missing = place.is_declared and error.kind == "not_found"
    return Looked(place=place, error=None if is_missing else error, requests={})


def _windows(about: Mapping[str, object]) -> list[Window]:
    listed = about["windows"]
    if not isinstance(listed, list):
        return []
    return [
        Window(
            start=each["window_start"],
            seconds=each["window_seconds"],
            splits=each["splits"],
            rows=each["rows"],
            bytes=each["bytes"],
        )
        for each in listed
    ]
