"""What the next scheduled compaction reads, piece by piece, and which of them a run takes that may read so much only.

A piece is a merge, or splits that are written in the longer window that they are joined to. Who asks for the run and
the run itself choose by the same rule, so that what was granted to a run is what it reads (decision 0169).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from storage_core.compaction import planner, rewindow
from storage_core.compaction.merges import MOST_INPUTS
from storage_core.compaction.planner import Chosen
from storage_core.compaction.policy import Mode
from storage_core.compaction.rewindow import RewindowTask
from storage_core.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPieces:
    """So many `splits` are read by pieces of so many `bytes`, the newest first; `newest` is the last of the windows."""

    splits: int
    bytes: tuple[int, ...]
    newest: int | None


def next_pieces(snapshot: Snapshot, *, now_ms: int) -> NextPieces:
    """Return what the next scheduled compaction of the table reads. No request but for unread manifests."""
    joined = rewindow.plan(snapshot, windows=None, now_ms=now_ms, joined_only=True)
    begun = {add.windowStart for task in joined for add in task.inputs}
    windows = _others(snapshot, begun) if begun else None
    chosen = planner.choose(snapshot, windows=windows, now_ms=now_ms, mode=Mode.POLICY).first(MOST_INPUTS)
    tasks = rewindow.bounded(joined, MOST_INPUTS)
    starts = [*begun, *(chosen.found.window(group) for group in set(chosen.merges.group.tolist()))]
    return NextPieces(
        splits=len(chosen.merges.rows) + sum(len(task.inputs) for task in tasks),
        bytes=(*_newest_first(_sizes(chosen)), *_newest_first(_sizes_of(tasks))),
        newest=max((start for start in starts if start is not None), default=None),
    )


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


def bounded(
    tasks: Sequence[RewindowTask], chosen: Chosen, most_bytes: int | None
) -> tuple[Sequence[RewindowTask], Chosen]:
    """Return those of the pieces that a run takes which may read so much (None: all there are), in their order."""
    if most_bytes is None:
        return tasks, chosen
    merged = _newest_first(_sizes(chosen))
    sizes = [*merged, *_newest_first(_sizes_of(tasks))]
    taken = within(sizes, most_bytes)
    merges = sorted(len(merged) - 1 - place for place in taken if place < len(merged))
    joined = sorted(len(sizes) - 1 - place for place in taken if place >= len(merged))
    merges_taken = chosen.merges.take(np.array(merges, np.int64))
    return [tasks[place] for place in joined], replace(chosen, merges=merges_taken)


def _sizes(chosen: Chosen) -> list[int]:
    """The bytes that each merge reads, in their order: by window, the oldest first."""
    merges = chosen.merges
    if not len(merges):
        return []
    sizes = chosen.files.column("size").to_numpy()[chosen.found.place[merges.rows]]
    found: list[int] = np.add.reduceat(sizes, merges.first).tolist()
    return found


def _sizes_of(tasks: Sequence[RewindowTask]) -> list[int]:
    return [sum(add.size for add in task.inputs) for task in tasks]


def _newest_first(sizes: list[int]) -> list[int]:
    return sizes[::-1]


def _others(snapshot: Snapshot, begun: set[int | None]) -> list[int | None]:
    starts: list[int | None] = snapshot.splits.table().column("windowStart").unique().to_pylist()
    return [start for start in starts if start not in begun]
