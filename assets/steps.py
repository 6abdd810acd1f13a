"""The assets of one table and their partitions.

A table has one asset per step (`storage_core.data.steps`), and one asset per index. Each partition is a window. The
name of a partition is the start of its window, such as `2015-05-17T10:00` (UTC).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from dagster import AssetExecutionContext, AssetKey, TimeWindowPartitionsDefinition

from assets.run_tags import ALL_WINDOWS, WINDOWS_TAG
from storage_core.base.clock import Clock, SystemClock
from storage_core.change.declaration import TableDeclaration
from storage_core.change.declaration_parts import MOST_PARTITIONS, PARTITION_FORMAT
from storage_core.data.rows.window_range import EVERY_WINDOW, WindowRange
from storage_core.data.steps import STEPS, TABLE_STEPS, RunOptions, Step, options_for


@dataclass(frozen=True, kw_only=True)
class TableStep:
    """One asset of a table: the step, the index if there is one, the guarantee, and the preceding assets."""

    declaration: TableDeclaration
    step: Step
    name: str
    promise: str
    after: tuple[str, ...] = ()
    index: str | None = None

    @property
    def job(self) -> str:
        """The name of the step."""
        return self.step.name

    @cached_property
    def windowed(self) -> bool:
        """Whether the asset has a partition per window."""
        return self.step.is_windowed(self.declaration)

    def options(self, **of_run: object) -> RunOptions:
        """Return the options of a run. Ignore values for options that the step does not have."""
        return options_for(self.job, table_uri=self.declaration.uri, index=self.index, **of_run)


def asset_key(table: str, name: str) -> AssetKey:
    """Return the key of one asset of a table."""
    return AssetKey([table, name])


def index_asset(index: str) -> str:
    """Return the name of the asset of an index."""
    return STEPS["catch_up"].asset.format(index=index)


def steps_of(declaration: TableDeclaration) -> list[TableStep]:
    """Return the assets of a table.

    If the declaration does not need a step (landing, key, indexes, retention), the step has no asset.
    """
    has = [step for step in TABLE_STEPS if step.is_of(declaration)]
    names = {step.name: [name for name, _, _ in _assets(step, declaration)] for step in has}
    return [
        TableStep(
            declaration=declaration,
            step=step,
            name=name,
            promise=promise,
            after=tuple(each for followed in step.follows for each in names.get(followed, ())),
            index=index,
        )
        for step in has
        for name, promise, index in _assets(step, declaration)
    ]


def _assets(step: Step, declaration: TableDeclaration) -> Iterator[tuple[str, str, str | None]]:
    """Yield, for each asset of the step, its name, the text of its guarantee, and the name of its index."""
    if "{index}" not in step.asset:
        yield step.asset, step.promise, None
        return
    for each in declaration.indexes:
        about: Mapping[str, str] = {"kind": each.kind, "columns": ", ".join(each.columns)}
        yield step.asset.format(index=each.name), step.promise.format(**about), each.name


# Partitions.


DAY_SECONDS = 86_400
FEWEST_PER_RUN = 30
_MINUTE, _HOUR = 60, 3600


@dataclass(frozen=True, slots=True)
class Span:
    """The windows that are partitions, with starts in [first, end), in seconds since the epoch.

    `end` is the end of the declared range, or the end of the window that contains `now`. Rows of the current day
    therefore have a partition.
    """

    first: int
    end: int
    window_seconds: int
    ends: bool

    def holds(self, window: int | None) -> bool:
        """Return whether the window has a partition."""
        return window is not None and self.first <= window < self.end

    def partition_of(self, window: int | None) -> int | None:
        """Return the start of the partition in which a window begins, or None. The window can have any length."""
        if window is None or not self.holds(window):
            return None
        return window - window % self.window_seconds

    @property
    def newest(self) -> int:
        """The start of the newest window."""
        return self.end - self.window_seconds


def span_of(declaration: TableDeclaration, clock: Clock | None = None) -> Span | None:
    """Return the windows of a table that are partitions. Return None for a table without windows.

    There are at most 40,000 partitions. If the range is longer, the oldest days have no partitions. The range therefore
    moves forward with time. Without a declared start, the range begins 40,000 windows ago.
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
    oldest += -oldest % DAY_SECONDS  # the start moves by whole days, so it does not change during a day
    first = max(int(declared.start.timestamp()), oldest) if declared else oldest
    # If a range begins in the future, it has one partition. Dagster can then show and request the asset.
    return Span(first, max(end, first + seconds), seconds, ends=declared_end is not None and declared_end <= open_end)


def partitions_of(span: Span) -> TimeWindowPartitionsDefinition:
    """Return Dagster's definition of these windows. All assets of a table share this one object."""
    return TimeWindowPartitionsDefinition(
        start=partition_key(span.first),
        end=partition_key(span.end) if span.ends else None,
        fmt=PARTITION_FORMAT,
        cron_schedule=_cron(span.window_seconds),
        timezone="UTC",
        end_offset=0 if span.ends else 1,  # includes the current window
    )


def windows_per_run(span: Span) -> int:
    """Return the number of windows in one run of Dagster's own backfills: one day, but at least 30 windows.

    A long backfill therefore consists of several runs, which show its progress. Each run has few events.
    """
    return max(FEWEST_PER_RUN, DAY_SECONDS // span.window_seconds)


def partition_key(window: int) -> str:
    """Return the name of the partition of a window."""
    return dt.datetime.fromtimestamp(window, dt.UTC).strftime(PARTITION_FORMAT)


def is_of_all_windows(context: AssetExecutionContext) -> bool:
    """Return whether a run processes all windows, regardless of its partitions."""
    has_partitions = context.has_partition_key or context.has_partition_key_range
    return not has_partitions or context.run.tags.get(WINDOWS_TAG) == ALL_WINDOWS


def windows_of(context: AssetExecutionContext) -> WindowRange:
    """Return the windows of a run with one partition or a range of partitions.

    If the run has no partitions, return all windows.
    """
    if is_of_all_windows(context):
        return EVERY_WINDOW
    window = context.partition_time_window
    return WindowRange(int(window.start.timestamp()), int(window.end.timestamp()))


def contiguous(windows: Iterable[int], window_seconds: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last window of each group of adjacent windows, ascending. A group ends at midnight (UTC).

    Dagster stores several rows per partition of a ranged run, so a run covers at most one day.
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
