"""Pending compaction and expiry per window: the tasks, their reasons, and the cost of the next run.

The pending work of a table is computed from the plans that the jobs themselves would execute:

- what a compaction would do (`NextRun`)
- what the retention would remove (`planner.plan_expiry`)
- the splits that made a merge fail, and that a compaction skips for some time (`mergeskip`)

Three parts of the program need a plan of the next run: the run itself, the checks for pending work, and the measurement
of pending work. The run, the checks and the measurement all use the same rule. A run consists of pieces. A piece is a
merge, or a set of splits to rewrite in windows of another duration. This module selects the pieces both for the run and
for the budget of the run. A run therefore reads exactly the bytes that the budget grants (decision 0037).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

import numpy as np

from storage_core.compact import planner, rewindow
from storage_core.compact.planner import Chosen
from storage_core.compact.rewindow import RewindowTask
from storage_core.compact.work import MOST_INPUTS, REASONS, Reason, active_skips, outputs_of
from storage_core.data.rows.windows import by_start
from storage_core.data.settings.layout import Mode
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of one run.

    A piece is a merge, or a set of splits to rewrite in other windows or in another order. If a run rewrites splits of
    a window, the same run does not merge this window.
    """

    mode: Mode
    rewindowed: Sequence[RewindowTask]
    merges: Chosen

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.rewindowed) + len(self.merges)

    @property
    def splits(self) -> int:
        """The number of splits that the pieces read."""
        return len(self.merges.merges.rows) + sum(len(task.inputs) for task in self.rewindowed)

    @property
    def bytes(self) -> tuple[int, ...]:
        """The bytes that the run reads per piece. Merges come before rewrites, and newer pieces before older pieces."""
        joined = [sum(add.size for add in task.inputs) for task in self.rewindowed]
        return (*_sizes(self.merges)[::-1], *joined[::-1])

    @property
    def newest(self) -> int | None:
        """The start of the latest window that the pieces read, or None if there is no such start."""
        starts = {add.windowStart for task in self.rewindowed for add in task.inputs}
        starts |= {self.merges.found.window(group) for group in set(self.merges.merges.group.tolist())}
        return max((start for start in starts if start is not None), default=None)

    def first(self) -> Pieces:
        """Return the pieces of one run. A run in the mode `REWINDOW` or `RESORT` does all rewrites."""
        tasks = self.rewindowed if not self.mode.merges else rewindow.bounded(self.rewindowed, MOST_INPUTS)
        return replace(self, rewindowed=tasks, merges=self.merges.first(MOST_INPUTS))

    def within(self, most_bytes: int | None) -> Pieces:
        """Return the pieces of a run that may read `most_bytes`, in the same order. None means all pieces."""
        if most_bytes is None:
            return self
        sizes, merges = self.bytes, len(self.merges)
        taken = within(sizes, most_bytes)
        merged = np.array(sorted(merges - 1 - place for place in taken if place < merges), np.int64)
        joined = sorted(len(sizes) - 1 - place for place in taken if place >= merges)
        chosen = replace(self.merges, merges=self.merges.merges.take(merged))
        return replace(self, rewindowed=[self.rewindowed[place] for place in joined], merges=chosen)


def find_pieces(
    snapshot: Snapshot,
    *,
    now_ms: int,
    mode: Mode,
    windows: Collection[int | None] | None = None,
    retry_skipped: bool = False,
) -> Pieces:
    """Return all pieces of compactions of this mode.

    The only requests are for manifests that were not read yet.

    Args:
        windows: the starts of the windows. None means all windows.
        retry_skipped: whether to include merges of skipped splits, as in `planner.choose`.
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
    """Return the starts of the windows of the live splits.

    The result contains None if there are splits without a window.
    """
    return set(snapshot.splits.table().column("windowStart").unique().to_pylist())


def within(sizes: Sequence[int], most_bytes: int) -> list[int]:
    """Return the positions of the pieces that a run with this byte limit takes, in the order of the run.

    `sizes` has the most important piece first. A piece is taken if it still fits into the limit. The first piece that
    needs more than half of the limit is taken before smaller pieces. Otherwise smaller pieces could delay the large
    piece forever.
    """
    large = [place for place, size in enumerate(sizes) if most_bytes < 2 * size <= 2 * most_bytes][:1]
    taken, left = list[int](), most_bytes
    for place in [*large, *(place for place in range(len(sizes)) if place not in large)]:
        if sizes[place] <= left:
            taken.append(place)
            left -= sizes[place]
    return taken


def _sizes(chosen: Chosen) -> list[int]:
    """Return the bytes that each merge reads. The merges are sorted by window, oldest first."""
    merges = chosen.merges
    if not len(merges):
        return []
    sizes = chosen.files.column("size").to_numpy()[chosen.found.place[merges.rows]]
    found: list[int] = np.add.reduceat(sizes, merges.first).tolist()
    return found


COARSEN = "coarsen"
SORT_SCHEMA = "sort_schema"
RETENTION = "retention"
SKIPPED = "skipped"


class Task(StrEnum):
    """The task for a window: rewrite its splits, remove it, or wait until skipped splits are tried again.

    `RESORT` is the task of `compact --resort`. No scheduled run does this task.
    """

    COMPACT = "compact"
    EXPIRE = "expire"
    WAIT = "wait"
    RESORT = "resort"


@dataclass(frozen=True, slots=True)
class PendingCompaction:
    """The pending compaction of one window: its input, the number of its `merges`, and its reasons.

    The compaction reads `bytes` and writes about `live_bytes`. The compaction needs at least one GET per split in
    `splits`. The compaction writes about `outputs` splits with one PUT each, and at most one more split per merge.
    """

    window_start: int | None
    splits: int
    rows: int
    bytes: int
    live_bytes: int
    merges: int
    outputs: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A split that compactions skip: the reason, the number of failures so far, and the end of the skip.

    `until` is in ms since the epoch. If `until` is None, compactions skip the split forever.
    """

    path: str
    reason: str
    count: int
    until: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """The work of the task's next run in the window, except the commit.

    Sizes are in bytes. Writes are estimates. The run needs at least one GET per split in `splits`, and one PUT per
    object in `outputs`.
    """

    splits: int = 0
    outputs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWindow:
    """The pending task of one window. `reasons` contains reasons from the compaction policy or from this module.

    `splits`, visible `rows` and `bytes` are the input of the task: the splits to merge, to remove, or to wait for. If
    there are very many `merges`, the `next_run` does only a part of the merges. `skipped` lists further splits of the
    window that compactions skip.
    """

    window_start: int | None
    task: Task
    reasons: tuple[str, ...]
    splits: int
    rows: int
    bytes: int
    merges: int = 0
    outputs: int = 0
    next_run: NextRun = NextRun()
    skipped: tuple[Skipped, ...] = ()


def find_pending_windows(snapshot: Snapshot, *, now_ms: int, mode: Mode = Mode.FINALIZE) -> list[PendingWindow]:
    """Return the windows that have a task at `now_ms`, in ascending order. The null window is last.

    An expired window is listed only for its expiry, because compactions do not read expired windows. A window is also
    listed for `RESORT` if some of its splits have another sort schema than the table. The only requests are for
    manifests that were not read yet.

    Args:
        mode: the mode of the compaction.
    """
    leaving = planner.plan_expiry(snapshot, retention_ms=snapshot.config.retention_ms, now_ms=now_ms)
    skipped = _skipped(snapshot, now_ms)
    pieces = find_pieces(snapshot, now_ms=now_ms, mode=mode)
    runs = next_runs(pieces.first())
    compacted = [
        PendingWindow(
            window_start=each.window_start,
            task=Task.COMPACT,
            reasons=each.reasons,
            splits=each.splits,
            rows=each.rows,
            bytes=each.bytes,
            merges=each.merges,
            outputs=each.outputs,
            next_run=runs.get(each.window_start, NextRun()),
            skipped=tuple(about for _, about in skipped.get(each.window_start, ())),
        )
        for each in _by_window(pieces)
    ]
    deleted = {each.window_start for each in leaving.windows}
    seen = deleted | {each.window_start for each in compacted}
    waiting = [_waiting(window, found) for window, found in skipped.items() if window not in seen]
    found = [*map(_expired, leaving.windows), *compacted, *waiting, *_resorted(snapshot, now_ms)]
    return sorted(found, key=lambda each: by_start(each.window_start))


def group_by_window(chosen: Chosen) -> list[PendingCompaction]:
    """Return the windows of the selected merges, with the bytes that the merges read and write.

    The order stays the same.

    The merges of a window are adjacent, even if the window has several scopes.
    """
    if not len(chosen.merges):
        return []
    merges, found = chosen.merges, chosen.found
    window = found.windows[merges.group]
    first = np.flatnonzero(np.append(True, window[1:] != window[:-1]))
    size = chosen.files.column("size").to_numpy()[found.place[merges.rows]]
    visible = np.add.reduceat(found.splits.bytes[merges.rows], merges.first)
    of_merges = (merges.count, outputs_of(visible, chosen.target_bytes), visible)
    splits, outputs, live_bytes = (np.add.reduceat(each, first).tolist() for each in of_merges)
    of_splits = (found.splits.rows[merges.rows], size)
    rows, bytes_ = (np.add.reduceat(each, merges.first[first]).tolist() for each in of_splits)
    reasons = np.bitwise_or.reduceat(1 << merges.reason, first).tolist()
    named = {mask: _reasons(mask) for mask in set(reasons)}
    counts = np.diff(first, append=len(merges)).tolist()
    windows = [found.window(group) for group in merges.group[first].tolist()]
    why = [named[mask] for mask in reasons]
    columns = (windows, splits, rows, bytes_, live_bytes, counts, outputs, why)
    return [PendingCompaction(*each) for each in zip(*columns, strict=True)]


def next_runs(pieces: Pieces) -> dict[int | None, NextRun]:
    """Return, for each window, the amount of work that one run does if it processes these pieces."""
    return {
        each.window_start: NextRun(
            splits=each.splits, outputs=each.outputs, read_bytes=each.bytes, written_bytes=each.live_bytes
        )
        for each in _by_window(pieces)
    }


def together(runs: Iterable[NextRun]) -> NextRun:
    """Return the total of several runs."""
    known = list(runs)
    return NextRun(**{each.name: sum(getattr(run, each.name) for run in known) for each in fields(NextRun)})


def _reasons(mask: int) -> tuple[Reason, ...]:
    return tuple(sorted(reason for place, reason in enumerate(REASONS) if mask >> place & 1))


_Found = Sequence[tuple[Add, Skipped]]


def _skipped(snapshot: Snapshot, now_ms: int) -> Mapping[int | None, _Found]:
    """Return the live splits that compactions skip now, by window. Only these skipped splits become Python objects."""
    found: defaultdict[int | None, list[tuple[Add, Skipped]]] = defaultdict(list)
    for path in sorted(active_skips(snapshot.mergeskips.values(), now_ms)):
        add, skip = snapshot.splits.get(path), snapshot.mergeskips[path]
        if add is not None:
            about = Skipped(path=path, reason=skip.reason, count=skip.skipCount, until=skip.retryAfter)
            found[add.windowStart].append((add, about))
    return found


def _by_window(pieces: Pieces) -> list[PendingCompaction]:
    reason = SORT_SCHEMA if pieces.mode is Mode.RESORT else COARSEN
    return [*group_by_window(pieces.merges), *_rewindowed(pieces.rewindowed, reason)]


def _resorted(snapshot: Snapshot, now_ms: int) -> Iterator[PendingWindow]:
    for each in _by_window(find_pieces(snapshot, now_ms=now_ms, mode=Mode.RESORT)):
        yield PendingWindow(
            window_start=each.window_start,
            task=Task.RESORT,
            reasons=each.reasons,
            splits=each.splits,
            rows=each.rows,
            bytes=each.bytes,
            outputs=each.outputs,
        )


def _rewindowed(tasks: Sequence[RewindowTask], reason: str) -> Iterator[PendingCompaction]:
    """Yield the pending rewrites into windows of another duration (decision 0006).

    There is one entry per current window.

    If a rewrite combines several windows into one longer window, the output splits are counted only for the first of
    the combined windows.
    """
    inputs: defaultdict[int | None, list[Add]] = defaultdict(list)
    outputs = Counter[int | None]()
    written: set[tuple[int, int]] = set()
    for number, task in enumerate(tasks):
        for add in task.inputs:
            inputs[add.windowStart].append(add)
            target = (number, (add.windowStart or 0) // (task.context.window_seconds or 1))
            outputs[add.windowStart] += target not in written
            written.add(target)
    for window, adds in inputs.items():
        rows, size = sum(add.visible_rows for add in adds), sum(add.size for add in adds)
        yield PendingCompaction(
            window_start=window,
            splits=len(adds),
            rows=rows,
            bytes=size,
            live_bytes=size,
            merges=0,
            outputs=outputs[window],
            reasons=(reason,),
        )


def _expired(window: planner.ExpiredWindow) -> PendingWindow:
    """Return the debt of an expired window. The removal of a window writes only a commit."""
    return PendingWindow(
        window_start=window.window_start,
        task=Task.EXPIRE,
        reasons=(RETENTION,),
        splits=window.splits,
        rows=window.rows,
        bytes=window.bytes,
    )


def _waiting(window: int | None, found: _Found) -> PendingWindow:
    return PendingWindow(
        window_start=window,
        task=Task.WAIT,
        reasons=(SKIPPED,),
        splits=len(found),
        rows=sum(add.visible_rows for add, _ in found),
        bytes=sum(add.size for add, _ in found),
        skipped=tuple(about for _, about in found),
    )
