"""What a repair gave back and what it could not, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from storage_core.fsck.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """An object that was damaged or lost and that the new location has again, and where from."""

    key: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What the new location lacks, and why. `rows` is None where no row went with it, or an unknown number did.

    `is_uncounted` tells that rows of an unknown number are lost.
    """

    key: str
    reason: str
    rows: int | None = None
    is_uncounted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A repair, done or (`status` is `planned`) only looked into.

    `first_version` and `version` are the oldest and the newest version that open in the new location; of a log that
    had to be made again they are 0 and 1. `splits`, `rows` and `bytes` are of the new base, `records` those that are
    not merged into it. `unproven` are live splits of which nothing says that they were ever committed. `check` is a
    deep check of the new location, None in a plan.
    """

    source: str
    target: str
    status: Literal["repaired", "planned"]
    first_version: int
    version: int
    splits: int
    rows: int
    bytes: int
    records: int
    recovered: tuple[Recovered, ...]
    lost: tuple[Lost, ...]
    unproven: tuple[str, ...]
    check: Report | None

    @property
    def rows_lost(self) -> int:
        """Rows that are known to be lost; objects whose rows nobody counted add nothing: see `uncounted`."""
        return sum(each.rows or 0 for each in self.lost)

    @property
    def uncounted(self) -> int:
        """How many objects are lost with an unknown number of rows."""
        return sum(each.is_uncounted for each in self.lost)
