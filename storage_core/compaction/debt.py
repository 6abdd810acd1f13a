"""Debt: what there is to do in each window, why, and what the next run costs (decision 0074).

It is made of what the jobs themselves plan: a compaction (`next_run`), the retention (`expiry`), and what a compaction
leaves out for a while because it failed (`mergeskip`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np

from storage_core.compaction import expiry
from storage_core.compaction.merges import REASONS, Reason, outputs_of
from storage_core.compaction.next_run import Pieces, owed
from storage_core.compaction.planner import Chosen
from storage_core.compaction.policy import Mode
from storage_core.compaction.rewindow import RewindowTask
from storage_core.compaction.skips import active_skips
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.rows.windows import by_start

COARSEN = "coarsen"
SORT_SCHEMA = "sort_schema"
RETENTION = "retention"
SKIPPED = "skipped"


class Task(StrEnum):
    """What is to be done with a window: rewrite its splits, take it out, or wait until skipped ones are tried again.

    `RESORT` is what `compact --resort` would do: no scheduled run does that.
    """

    COMPACT = "compact"
    EXPIRE = "expire"
    WAIT = "wait"
    RESORT = "resort"


@dataclass(frozen=True, slots=True)
class WindowDebt:
    """What a compaction of one window would read now, in how many `merges`, and why.

    It reads `bytes` and writes about `live_bytes` of them, in `outputs` splits or one more per merge: so many PUTs for
    `splits` GETs at least.
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
    """A split that compactions leave out: why, how often so far, and until when (ms; None: for good)."""

    path: str
    reason: str
    count: int
    until: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """What the next run of the task does in the window, beside its commit. Sizes in bytes, writes are estimates.

    It GETs each of the `splits` at least once, and PUTs as many objects as `outputs`.
    """

    splits: int = 0
    outputs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Debt:
    """What is to be done in one window, and why: `reasons` are those of the policy or of the module.

    `splits`, visible `rows` and `bytes` are what the task is about: what merges read, what leaves, or what waits; the
    `next_run` does less than all `merges` where there are very many. `skipped` are splits of the window besides.
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


def debt(snapshot: Snapshot, *, now_ms: int, mode: Mode = Mode.FINALIZE) -> list[Debt]:
    """Return the windows with something to do at `now_ms`, ascending, the null window last. No request but for reads.

    `mode` is that of the compaction. A window that has left by the retention is not compacted, so it is listed once.
    A window with splits of another sort schema than the table's is listed for `RESORT` besides.
    """
    leaving = expiry.plan(snapshot, retention_ms=snapshot.config.retention_ms, now_ms=now_ms)
    skipped = _skipped(snapshot, now_ms)
    pieces = owed(snapshot, now_ms=now_ms, mode=mode)
    runs = next_runs(pieces.first())
    compacted = [
        Debt(
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


def window_debts(chosen: Chosen) -> list[WindowDebt]:
    """Return the windows of the chosen merges, in their order, with what these would read and write.

    The merges of a window follow one another even where it holds several scopes.
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
    return [WindowDebt(*each) for each in zip(*columns, strict=True)]


def next_runs(pieces: Pieces) -> dict[int | None, NextRun]:
    """Return what a run of these pieces does in each window."""
    return {
        each.window_start: NextRun(
            splits=each.splits, outputs=each.outputs, read_bytes=each.bytes, written_bytes=each.live_bytes
        )
        for each in _by_window(pieces)
    }


def together(runs: Iterable[NextRun]) -> NextRun:
    """Return what several runs do in all."""
    known = list(runs)
    return NextRun(**{each.name: sum(getattr(run, each.name) for run in known) for each in fields(NextRun)})


def _reasons(mask: int) -> tuple[Reason, ...]:
    return tuple(sorted(reason for place, reason in enumerate(REASONS) if mask >> place & 1))


_Found = Sequence[tuple[Add, Skipped]]


def _skipped(snapshot: Snapshot, now_ms: int) -> Mapping[int | None, _Found]:
    """The live splits that are left out now, by window; only they become records."""
    found: defaultdict[int | None, list[tuple[Add, Skipped]]] = defaultdict(list)
    for path in sorted(active_skips(snapshot.mergeskips.values(), now_ms)):
        add, skip = snapshot.splits.get(path), snapshot.mergeskips[path]
        if add is not None:
            about = Skipped(path=path, reason=skip.reason, count=skip.skipCount, until=skip.retryAfter)
            found[add.windowStart].append((add, about))
    return found


def _by_window(pieces: Pieces) -> list[WindowDebt]:
    reason = SORT_SCHEMA if pieces.mode is Mode.RESORT else COARSEN
    return [*window_debts(pieces.merges), *_rewindowed(pieces.rewindowed, reason)]


def _resorted(snapshot: Snapshot, now_ms: int) -> Iterator[Debt]:
    for each in _by_window(owed(snapshot, now_ms=now_ms, mode=Mode.RESORT)):
        yield Debt(
            window_start=each.window_start,
            task=Task.RESORT,
            reasons=each.reasons,
            splits=each.splits,
            rows=each.rows,
            bytes=each.bytes,
            outputs=each.outputs,
        )


def _rewindowed(tasks: Sequence[RewindowTask], reason: str) -> Iterator[WindowDebt]:
    """What is written in windows of another duration (decision 0148), by the windows that it is in now.

    What is written for a longer window is counted for the first window that joins it.
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
        yield WindowDebt(
            window_start=window,
            splits=len(adds),
            rows=rows,
            bytes=size,
            live_bytes=size,
            merges=0,
            outputs=outputs[window],
            reasons=(reason,),
        )


def _expired(window: expiry.ExpiredWindow) -> Debt:
    """Nothing is read or written for it but the commit."""
    return Debt(
        window_start=window.window_start,
        task=Task.EXPIRE,
        reasons=(RETENTION,),
        splits=window.splits,
        rows=window.rows,
        bytes=window.bytes,
    )


def _waiting(window: int | None, found: _Found) -> Debt:
    return Debt(
        window_start=window,
        task=Task.WAIT,
        reasons=(SKIPPED,),
        splits=len(found),
        rows=sum(add.visible_rows for add, _ in found),
        bytes=sum(add.size for add, _ in found),
        skipped=tuple(about for _, about in found),
    )
