"""What a lookup by key will ask, region by region and of the base, and what it did: the answer of `explain_get`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from storage_core.read.plan import Analysis, RawPart, TablePlan, Watched, analysis
from storage_core.wording import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """What is not merged of one region, and what of it may say what the row is.

    `manifest_version` is 0 where nobody wrote to the region yet. `log_entries` are those that are in no generation, all
    of which are read. Of the `generations`, each of which the base has not merged, some have bounds that admit the key,
    and of these some a Bloom filter that does too: those are read, from the newest on until one tells the whole row.
    `copied_filters` are the filters that the region's manifest carries.
    """

    region_id: str
    manifest_version: int
    log_entries: int
    generations: int
    copied_filters: int
    admitted_by_bounds: int
    admitted_by_filters: int

    def __str__(self) -> str:
        """Return it as two lines."""
        told = f"manifest {self.manifest_version:,}, {counted(self.log_entries, 'log entry', 'log entries')}"
        left = f"bounds admit the key in {self.admitted_by_bounds:,}, filters in {self.admitted_by_filters:,}"
        held = f"{counted(self.generations, 'generation')} not merged, {self.copied_filters:,} with a copied filter"
        return f"region {self.region_id}: {told}\n  {held}: {left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPlan:
    """What a lookup of a key will ask, and once it was run for that what it did.

    `unmerged_requests` are those for the table's newest version and for what of `regions` is newer than the base, where
    `base.newer_records` were found; `base` says what is read of the splits: nothing where those tell the whole row.
    Of the base, the requests and bytes are the most that it may take: where the keys of a row group do not have the
    key, its row is not fetched.
    """

    consistency: str
    unmerged_requests: int
    regions: tuple[RegionPlan, ...]
    base: TablePlan
    raw_logs: tuple[RawPart, ...] = ()
    analysis: Analysis | None = field(default=None)

    @property
    def requests(self) -> int:
        """How many requests the lookup is expected to make at most."""
        return self.unmerged_requests + self.base.requests

    def __str__(self) -> str:
        """Return it as lines of text: the regions, the base, and at the end a line of what the run did."""
        newer = f"{self.consistency}: {counted(self.unmerged_requests, 'request')} for what is newer than the base"
        done = [] if self.analysis is None else [str(self.analysis)]
        return "\n".join([newer, *map(str, self.regions), *map(str, self.raw_logs), str(self.base), *done])

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "consistency": self.consistency,
            "requests": self.requests,
            "unmerged_requests": self.unmerged_requests,
            "regions": [asdict(each) for each in self.regions],
            "raw_logs": [asdict(each) for each in self.raw_logs],
            "base": self.base.to_dict(),
            "analysis": None if self.analysis is None else asdict(self.analysis),
        }

    def analyzed(self, watched: Collection[Watched], read: Callable[[], int]) -> LookupPlan:
        """Return the plan with what reading did, which returns the number of rows."""
        return replace(self, analysis=analysis(watched, read))
