"""Runs of WAL entries, as searches index them: what was indexed stays good while others are added (decision 0126)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from storage_core.rows.positions import bitmap_of, positions

LEAST_RATIO = 2
"""A run has at least so many times the rows of the next one, so there are few, and a row is seldom indexed again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoggedRows:
    """The rows that WAL entries of a region give whole: each entry's ascending by key, those of `entries[i]` at i.

    `deleted` are the rows of which there is newer word.
    """

    region: str
    entries: npt.NDArray[np.int64]
    rows: pa.Table
    deleted: BitMap

    def part(self, begin: int, end: int) -> LoggedRows:
        """Return the rows from `begin` on and before `end`."""
        places = positions(self.deleted)
        own = places[(places >= begin) & (places < end)] - begin
        return LoggedRows(
            region=self.region,
            entries=self.entries[begin:end],
            rows=self.rows.slice(begin, end - begin),
            deleted=bitmap_of(own),
        )

    @property
    def name(self) -> str:
        """Text that fixes which rows these are: entries never change."""
        return f"log {self.region} {self.entries[0]} to {self.entries[-1]}, {len(self.entries)} rows"


class LogRuns:
    """Where runs end, by region. Threads may share one: at worst a run is indexed twice."""

    def __init__(self) -> None:
        self._ends: dict[str, frozenset[int]] = {}

    def divided(self, logged: LoggedRows) -> list[LoggedRows]:
        """Return the rows in runs of whole entries: those of before, as far as they are there, and one of new entries.

        The last run takes those before it that have less than `LEAST_RATIO` times its rows.
        """
        entries, known = logged.entries, self._ends.pop(logged.region, frozenset())
        if not len(entries):
            return []
        is_end = np.append(entries[1:] != entries[:-1], True) & np.isin(entries, list(known))
        ends = sorted({*(np.flatnonzero(is_end) + 1).tolist(), len(entries)})
        while len(ends) > 1 and _last_but_one(ends) < LEAST_RATIO * (ends[-1] - ends[-2]):
            del ends[-2]
        self._ends[logged.region] = frozenset(entries[[end - 1 for end in ends]].tolist())
        return [logged.part(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _last_but_one(ends: list[int]) -> int:
    return ends[-2] - (ends[-3] if len(ends) > 2 else 0)
