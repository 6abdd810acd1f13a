"""What became of distribution: the share of a table in one round, the tally of a table, and a run as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from storage_core.distribution.parts import Part
from storage_core.distribution.plan import HeldChunks
from storage_core.distribution.work import DivideResult
from storage_core.errors import TidemarkError, error_of
from storage_core.ingest.tally import tally
from storage_core.log.actions import Add
from storage_core.raw_log.chunks import Damage
from storage_core.rows.late import LateMetrics
from storage_core.settings.region_fields import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What tasks did for one table in one round."""

    rows: int = 0
    adds: tuple[Add, ...] = ()
    generations: int = 0
    parts: Mapping[Region, tuple[Part, ...]] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    late: LateMetrics = field(default_factory=LateMetrics)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was distributed into one table: rows, bytes of splits, splits, generations, rejected by reason, late ones.

    `version` is the table's version after it.
    """

    version: int = 0
    rows: int = 0
    bytes: int = 0
    splits: int = 0
    generations: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    late: LateMetrics = field(default_factory=LateMetrics)

    def add(self, share: Share) -> None:
        """Count what was committed."""
        self.rows += share.rows
        self.bytes += sum(each.size for each in share.adds)
        self.splits += len(share.adds)
        self.generations += share.generations
        self.rejected = tally(self.rejected, share.rejected)
        self.late += share.late


@dataclass(slots=True, kw_only=True)
class DistributionOutcome:
    """What a run of distribution did. `records` counts what was read, `unknown` records of no table, by table name.

    `duplicates` counts records by table whose id the table had already. `held` is what is missing at the end,
    `given_up` what nobody waits for any more. `failures` are the tables that did not get their rows, each with its
    error.
    """

    records: int = 0
    chunks: int = 0
    tables: dict[str, Tally] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    damaged: dict[tuple[str, int], Damage] = field(default_factory=dict)
    held: tuple[HeldChunks, ...] = ()
    given_up: list[HeldChunks] = field(default_factory=list)
    failures: dict[str, TidemarkError] = field(default_factory=dict)


def share_of(name: str, results: Iterable[DivideResult]) -> Share:
    """Return what all tasks did for one table. Raises what kept one of them from it."""
    found = [result.tables[name] for result in results if name in result.tables]
    for each in found:
        if each.failure is not None:
            raise error_of(*each.failure)
    parts: dict[Region, tuple[Part, ...]] = {}
    for each in found:
        for region, part in each.parts:
            parts[region] = (*parts.get(region, ()), part)
    return Share(
        rows=sum(each.rows for each in found),
        adds=tuple(add for each in found for add in each.adds),
        parts=parts,
        rejected=tally(*(each.rejected for each in found)),
        late=sum((each.late for each in found), LateMetrics()),
    )
