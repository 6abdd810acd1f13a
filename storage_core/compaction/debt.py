"""Debt: what there is to do in each window, why, and what the next run costs (design page 04; decision 0074).

It is made of what the jobs themselves plan: a compaction (`planner`), the retention (`expiry`), and what a compaction
leaves out for a while because it failed (`mergeskip`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from storage_core.compaction import expiry, planner
from storage_core.compaction.merges import MOST_INPUTS
from storage_core.compaction.planner import WindowDebt, active_skips
from storage_core.compaction.policy import Mode
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot

RETENTION = "retention"
SKIPPED = "skipped"


class Task(StrEnum):
    """What is to be done with a window: rewrite its splits, take it out, or wait until skipped ones are tried again."""

    COMPACT = "compact"
    EXPIRE = "expire"
    WAIT = "wait"


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
    """What is to be done in one window, and why: `reasons` are those of the policy, `retention` or `skipped`.

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
    """
    leaving = expiry.plan(snapshot, retention_ms=snapshot.config.retention_ms, now_ms=now_ms)
    skipped = _skipped(snapshot, now_ms)
    compacted = _compacted(snapshot, now_ms, mode, skipped)
    gone = {each.window_start for each in leaving.windows}
    seen = gone | {each.window_start for each in compacted}
    waiting = [_waiting(window, found) for window, found in skipped.items() if window not in seen]
    found = [*map(_expired, leaving.windows), *compacted, *waiting]
    return sorted(found, key=lambda each: (each.window_start is None, each.window_start or 0))


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


def _compacted(snapshot: Snapshot, now_ms: int, mode: Mode, skipped: Mapping[int | None, _Found]) -> list[Debt]:
    owed = planner.debt(snapshot, now_ms=now_ms, mode=mode)
    now = owed
    if sum(each.splits for each in owed) > MOST_INPUTS:
        now = planner.debt(snapshot, now_ms=now_ms, mode=mode, most_inputs=MOST_INPUTS)
    next_run = {each.window_start: each for each in now}
    return [
        Debt(
            window_start=each.window_start,
            task=Task.COMPACT,
            reasons=each.reasons,
            splits=each.splits,
            rows=each.rows,
            bytes=each.bytes,
            merges=each.merges,
            outputs=each.outputs,
            next_run=_cost(next_run.get(each.window_start)),
            skipped=tuple(about for _, about in skipped.get(each.window_start, ())),
        )
        for each in owed
    ]


def _cost(found: WindowDebt | None) -> NextRun:
    if found is None:
        return NextRun()
    return NextRun(splits=found.splits, outputs=found.outputs, read_bytes=found.bytes, written_bytes=found.live_bytes)


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
