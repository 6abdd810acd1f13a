"""A step of a table that could run now, and how it compares with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster import AssetKey

from assets.due_runs import DueRun
from assets.launcher import JobName
from assets.partitions import partition_key, span_of
from storage_core.declaration import TableDeclaration

LATE_SECONDS = 3600
"""Work that has waited so long goes with fresh data."""

# What a run costs beside what it reads: so many bytes could be read while it starts.
_START_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A step of a table that could run now, and how many bytes a budget grants it; None where there is no budget.

    One that `is_alone` shares its run with no other table.
    """

    declaration: TableDeclaration
    job: JobName
    due: DueRun
    assets: Sequence[AssetKey]
    late_seconds: float
    granted_bytes: int | None = None
    is_alone: bool = False

    @property
    def is_fresh_data(self) -> bool:
        """Whether it makes new rows visible."""
        return self.job in ("ingest", "merge")

    @property
    def is_late(self) -> bool:
        """Whether it has waited too long."""
        return self.late_seconds >= LATE_SECONDS

    @property
    def is_urgent(self) -> bool:
        """Whether it goes before the rest: fresh data, and what is late."""
        return self.is_late or self.is_fresh_data

    @property
    def rank(self) -> tuple[int, int, float]:
        """What sorts the most urgent first: fresh data and what is late, by priority, by gain per cost and lateness."""
        gain = self.due.items / (_START_BYTES + self.due.bytes) * (1 + self.late_seconds / LATE_SECONDS)
        return (-int(self.is_urgent), -self.declaration.upkeep.priority, -gain)

    @property
    def partition(self) -> str | None:
        """The partition that Dagster wants to know of a run of all windows: the newest that it is about."""
        span = span_of(self.declaration) if self.job == "compact" else None
        window = None if span is None else span.partition_of(self.due.newest)
        return None if span is None else partition_key(span.newest if window is None else window)
