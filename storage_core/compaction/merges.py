"""What the policy decides, as columns: a window of a million splits has eighty thousand merges.

Records are made of the few that are done now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_INPUTS = 80_000
"""How many splits one run replaces: an hourly one at 1,000 splits a minute needs 65,416 (`docs/compaction-policy.md`).

Its driver has a part of them as records and as JSON at a time (`planner.Chosen.parts`, decision 0068).
"""


class Reason(StrEnum):
    """Why splits are merged: many of one generation, or enough bytes of it; late data; too many files; deleted rows."""

    COUNT = "count"
    SIZE = "size"
    LATE = "late"
    FILES = "files"
    HIGH_DELETE_RATIO = "high_delete_ratio"
    REQUESTED = "requested"


REASONS = tuple(Reason)


@dataclass(frozen=True, slots=True)
class Merge:
    """Rewrite these `rows` of the columns, oldest first, into splits that record `merges` as theirs."""

    rows: tuple[int, ...]
    group: int
    merges: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merges:
    """Merges as columns. Merge i reads `count[i]` of `rows`, which has the inputs of one merge after the other.

    `rows` are places in the columns of the policy. `merges` is the number of merges that the outputs record, `reason`
    a place in `REASONS`.
    """

    rows: Ints
    count: Ints
    group: Ints
    merges: Ints
    reason: Ints

    def __len__(self) -> int:
        """Return the number of merges."""
        return len(self.count)

    @property
    def first(self) -> Ints:
        """Where the inputs of each merge begin in `rows`."""
        return np.cumsum(self.count) - self.count

    def take(self, places: Ints | Flags) -> Merges:
        """Return the merges at these places, or those that are marked, in that order."""
        first, count = self.first[places], self.count[places]
        return Merges(
            rows=self.rows[ranges(first, count)],
            count=count,
            group=self.group[places],
            merges=self.merges[places],
            reason=self.reason[places],
        )

    def records(self) -> list[Merge]:
        """Return a record per merge."""
        rows = self.rows.tolist()
        columns = (each.tolist() for each in (self.first, self.count, self.group, self.merges, self.reason))
        return [
            Merge(tuple(rows[first : first + count]), group, merges, REASONS[reason])
            for first, count, group, merges, reason in zip(*columns, strict=True)
        ]


NO_MERGES = Merges(**dict.fromkeys(("rows", "count", "group", "merges", "reason"), np.zeros(0, np.int64)))


def in_order(parts: Sequence[Merges]) -> Merges:
    """Return the merges of all parts by group, and in it by their oldest split; no split is in two of them."""
    whole = Merges(
        rows=np.concatenate([each.rows for each in parts]),
        count=np.concatenate([each.count for each in parts]),
        group=np.concatenate([each.group for each in parts]),
        merges=np.concatenate([each.merges for each in parts]),
        reason=np.concatenate([each.reason for each in parts]),
    )
    # Rows are ordered by group, so the oldest split tells the group as well.
    return whole.take(np.argsort(whole.rows[whole.first], kind="stable"))


def bounded(merges: Merges, most_inputs: int) -> Merges:
    """Return the merges that one run does, in the given order: up to the one by which it replaces `most_inputs` splits.

    Every group has its first merge before one has its second, so one with very many does not keep the others waiting.
    """
    turn = np.arange(len(merges)) - np.searchsorted(merges.group, merges.group)
    order = np.argsort(turn, kind="stable")
    read = np.cumsum(merges.count[order])
    return merges.take(np.sort(order[: int(np.searchsorted(read, most_inputs)) + 1]))


def ranges(first: Ints, count: Ints) -> Ints:
    """Return `count[i]` numbers from `first[i]` on, for one i after the other."""
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(int(count.sum()))


def outputs_of(bytes_: Ints, target_bytes: int) -> Ints:
    """Return how many splits each merge of so many bytes writes, as `split.rolling_writer` rounds; at least one."""
    return np.maximum(1, np.rint(bytes_ / target_bytes)).astype(np.int64)
