"""What the next run of a compaction does, planned by one rule for the run, for who asks for it, and for the debt.

It is made of pieces. A piece is a merge, or splits that are written in windows of another duration. What was granted to
a run is what it reads, because both choose pieces here (decision 0169).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from storage_core.compaction import planner, rewindow
from storage_core.compaction.merges import MOST_INPUTS
from storage_core.compaction.planner import Chosen
from storage_core.compaction.policy import Mode
from storage_core.compaction.rewindow import RewindowTask
from storage_core.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Pieces:
    """Splits that runs of a mode write in other windows or another order, and merges of windows without such."""

    mode: Mode
    rewindowed: Sequence[RewindowTask]
    merges: Chosen

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rewindowed) + len(self.merges)

    @property
    def splits(self) -> int:
        """How many splits they read."""
        return len(self.merges.merges.rows) + sum(len(task.inputs) for task in self.rewindowed)

    @property
    def bytes(self) -> tuple[int, ...]:
        """The bytes that each of them reads, the newest first: merges, then what is written in other windows."""
        joined = [sum(add.size for add in task.inputs) for task in self.rewindowed]
        return (*_sizes(self.merges)[::-1], *joined[::-1])

    @property
    def newest(self) -> int | None:
        """The start of the last window that they read of; None where none has a start."""
        starts = {add.windowStart for task in self.rewindowed for add in task.inputs}
        starts |= {self.merges.found.window(group) for group in set(self.merges.merges.group.tolist())}
        return max((start for start in starts if start is not None), default=None)

    def first(self) -> Pieces:
        """Return those that one run does at most; `REWINDOW` and `RESORT` write all splits that have to be."""
        tasks = self.rewindowed if not self.mode.merges else rewindow.bounded(self.rewindowed, MOST_INPUTS)
        return replace(self, rewindowed=tasks, merges=self.merges.first(MOST_INPUTS))

    def within(self, most_bytes: int | None) -> Pieces:
        """Return those that a run takes which may read so much (None: all there are), in their order."""
        if most_bytes is None:
            return self
        sizes, merges = self.bytes, len(self.merges)
        taken = within(sizes, most_bytes)
        merged = np.array(sorted(merges - 1 - place for place in taken if place < merges), np.int64)
        joined = sorted(len(sizes) - 1 - place for place in taken if place >= merges)
        chosen = replace(self.merges, merges=self.merges.merges.take(merged))
        return replace(self, rewindowed=[self.rewindowed[place] for place in joined], merges=chosen)


def owed(
    snapshot: Snapshot,
    *,
    now_ms: int,
    mode: Mode,
    windows: Collection[int | None] | None = None,
    retry_skipped: bool = False,
) -> Pieces:
    """Return all that compactions of this mode have to do, with that of which splits are written in other windows.

    With `windows` only in those that start there, and with `retry_skipped` merges of skipped splits too, as for
    `planner.choose`. No request but for unread manifests.
    """
    tasks = list[RewindowTask]()
    if mode is Mode.RESORT:
        tasks = rewindow.plan_resort(snapshot, windows=windows, now_ms=now_ms)
    elif mode is not Mode.FINALIZE:
        tasks = rewindow.plan(snapshot, windows=windows, now_ms=now_ms, joined_only=mode is Mode.POLICY)
    begun = {add.windowStart for task in tasks for add in task.inputs}
    others: Collection[int | None] | None = windows if mode.merges else ()
    if begun and mode.merges:
        others = (window_starts(snapshot) if windows is None else {*windows}) - begun
    chosen = planner.choose(snapshot, windows=others, now_ms=now_ms, mode=mode, retry_skipped=retry_skipped)
    return Pieces(mode, tasks, chosen)


def window_starts(snapshot: Snapshot) -> set[int | None]:
    """Return where the windows of the live splits start, None among them for splits without a window."""
    return set(snapshot.splits.table().column("windowStart").unique().to_pylist())


def within(sizes: Sequence[int], most_bytes: int) -> list[int]:
    """Return the places of the pieces that a run takes which may read so much, in its order, given the first first.

    Those that fit. One that needs more than half of it goes before smaller ones, which would keep it waiting for ever.
    """
    large = [place for place, size in enumerate(sizes) if most_bytes < 2 * size <= 2 * most_bytes][:1]
    taken, left = list[int](), most_bytes
    for place in [*large, *(place for place in range(len(sizes)) if place not in large)]:
        if sizes[place] <= left:
            taken.append(place)
            left -= sizes[place]
    return taken


def _sizes(chosen: Chosen) -> list[int]:
    """The bytes that each merge reads, in their order: by window, the oldest first."""
    merges = chosen.merges
    if not len(merges):
        return []
    sizes = chosen.files.column("size").to_numpy()[chosen.found.place[merges.rows]]
    found: list[int] = np.add.reduceat(sizes, merges.first).tolist()
    return found
