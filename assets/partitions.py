"""The windows of a table as Dagster partitions: one per window, named by its start, `2015-05-17T10:00` (UTC)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dagster import AssetExecutionContext, TimeWindowPartitionsDefinition

from assets.run_tags import ALL_WINDOWS, WINDOWS_TAG
from jobs.requests.window_range import EVERY_WINDOW, WindowRange
from storage_core.clock import Clock, SystemClock
from storage_core.declaration import TableDeclaration
from storage_core.declaration_parts import MOST_PARTITIONS, PARTITION_FORMAT

DAY_SECONDS = 86_400
FEWEST_PER_RUN = 30
_MINUTE, _HOUR = 60, 3600


@dataclass(frozen=True, slots=True)
class Span:
    """The windows that have a partition: those that start in [first, end), in seconds since the epoch.

    `end` is the end of the declared range, or else of the window that `now` lies in, so rows of today have a partition.
    """

    first: int
    end: int
    window_seconds: int
    ends: bool

    def holds(self, window: int | None) -> bool:
        """Return whether the window has a partition."""
        return window is not None and self.first <= window < self.end

    def partition_of(self, window: int | None) -> int | None:
        """Return the start of the partition that a window begins in, whatever its duration; None for none."""
        if window is None or not self.holds(window):
            return None
        return window - window % self.window_seconds

    @property
    def newest(self) -> int:
        """The start of the last window."""
        return self.end - self.window_seconds


def span_of(declaration: TableDeclaration, clock: Clock | None = None) -> Span | None:
    """Return the windows of a table that are partitions, None for a table without windows.

    At most 40,000: of a longer range the oldest days are left out, so the range moves on with time. Without a declared
    start, it begins that many windows ago.
    """
    seconds = declaration.window
    if seconds is None:
        return None
    declared = declaration.partitions
    now = (clock or SystemClock()).now_ms() // 1000
    open_end = now - now % seconds + seconds
    declared_end = int(declared.end.timestamp()) if declared and declared.end else None
    end = open_end if declared_end is None else min(declared_end, open_end)
    oldest = end - MOST_PARTITIONS * seconds
    oldest += -oldest % DAY_SECONDS  # the start moves by days, so that it is one start all day long
    first = max(int(declared.start.timestamp()), oldest) if declared else oldest
    # A range that lies in the future has one window, so that it can be shown and asked for.
    return Span(first, max(end, first + seconds), seconds, ends=declared_end is not None and declared_end <= open_end)


def partitions_of(span: Span) -> TimeWindowPartitionsDefinition:
    """Return Dagster's definition of these windows; one object per table serves all of its assets."""
    return TimeWindowPartitionsDefinition(
        start=partition_key(span.first),
        end=partition_key(span.end) if span.ends else None,
        fmt=PARTITION_FORMAT,
        cron_schedule=_cron(span.window_seconds),
        timezone="UTC",
        end_offset=0 if span.ends else 1,  # the window that is open now
    )


def windows_per_run(span: Span) -> int:
    """Return how many windows one run of Dagster's own backfills takes: those of a day, and never fewer than 30.

    So a long backfill shows its progress by runs, and each run's events stay few.
    """
    return max(FEWEST_PER_RUN, DAY_SECONDS // span.window_seconds)


def partition_key(window: int) -> str:
    """Return the name of the partition of a window."""
    return dt.datetime.fromtimestamp(window, dt.UTC).strftime(PARTITION_FORMAT)


def is_of_all_windows(context: AssetExecutionContext) -> bool:
    """Return whether a run is about all windows, whatever partitions it has."""
    has_partitions = context.has_partition_key or context.has_partition_key_range
    return not has_partitions or context.run.tags.get(WINDOWS_TAG) == ALL_WINDOWS


def windows_of(context: AssetExecutionContext) -> WindowRange:
    """Return the windows that a run of one partition, or of a range, is about; else all of them."""
    if is_of_all_windows(context):
        return EVERY_WINDOW
    window = context.partition_time_window
    return WindowRange(int(window.start.timestamp()), int(window.end.timestamp()))


def contiguous(windows: Iterable[int], window_seconds: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last window of every run of neighbouring windows, ascending, cut at midnight (UTC).

    A ranged run costs Dagster some rows per partition, so no run is longer than a day.
    """
    group: list[int] = []
    for window in sorted(set(windows)):
        if group and (window - group[-1] > window_seconds or window % DAY_SECONDS == 0):
            yield group[0], group[-1]
            group = []
        group.append(window)
    if group:
        yield group[0], group[-1]


def _cron(window_seconds: int) -> str:
    if window_seconds < _HOUR:
        return f"*/{window_seconds // _MINUTE} * * * *"
    if window_seconds < DAY_SECONDS:
        hours = window_seconds // _HOUR
        return "0 * * * *" if hours == 1 else f"0 */{hours} * * *"
    return "0 0 * * *"
