"""What the policy makes of a day of ingestion: splits and bytes as metrics, no storage
(docs/architecture/compaction.md, "Policy").

The same `policy.choose` decides as in a real run, and `merges.bounded` how much of it is done. A merge writes as many
bytes as it reads, in pieces of the target size; compression that gets better with sorting is left out, so a real table
is better off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from storage_core.compaction.merges import MOST_INPUTS, Flags, Ints, Merges, bounded, outputs_of, ranges
from storage_core.compaction.policy import FINALIZED, LATE_SHARE, Mode, Rules, Splits, choose
from storage_core.settings.compaction import CompactionSettings

MINUTE_MS = 60_000
MINUTES_PER_DAY = 1440
MOST_ROUNDS = 1_000
"""How many rounds there are when nothing arrives and no window gets cold any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """Splits that arrive, and what they are merged by. Sizes are in bytes; a split has `split_rows` rows.

    `rates` holds the number of splits that arrive in each minute. Of them `late_share` belong to the window of
    `late_minutes` ago. A compaction runs every `every_minutes` and replaces about `plan_inputs` splits at most.
    """

    rates: Sequence[int]
    split_bytes: int
    split_rows: int = 10_000
    window_seconds: int = 900
    target_bytes: int = 256 * 2**20
    late_share: float = 0.0
    late_minutes: int = 45
    every_minutes: int = 60
    plan_inputs: int = MOST_INPUTS
    settings: CompactionSettings = field(default_factory=CompactionSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One compaction: when, what it found live, and what it did. Bytes and splits."""

    minute: int
    live_before: int
    live_after: int
    most_in_window: int
    merges: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All rounds until nothing was left to do. What is `per_window` has an element per window, in their order.

    `finalized_windows` counts those that hardly have a byte outside their sorted run; one split alone is one.
    """

    rounds: tuple[Round, ...]
    bytes_ingested: int
    bytes_compacted: int
    splits_per_window: tuple[int, ...]
    bytes_per_window: tuple[int, ...]
    finalized_windows: int
    converged: bool

    @property
    def write_amplification(self) -> float:
        """Bytes written per byte that came in, the first writing included."""
        return 1 + self.bytes_compacted / self.bytes_ingested if self.bytes_ingested else 1.0


@dataclass(frozen=True, slots=True)
class _Live:
    """The live splits as columns, ordered by window and age."""

    window: Ints
    merges: Ints
    bytes: Ints
    rows: Ints
    added_ms: Ints

    def take(self, places: Ints | Flags) -> _Live:
        """The splits at these places, or those that are marked, in that order."""
        columns = (self.window, self.merges, self.bytes, self.rows, self.added_ms)
        return _Live(*(column[places] for column in columns))


def simulate(load: Ingestion) -> Simulation:
    """Return what becomes of the splits, round by round; equal loads, equal simulations.

    After the last arrival the rounds go on until every window is cold and one of them found nothing to do, which is
    convergence; a policy that does not get there in `MOST_ROUNDS` rounds from then on has not converged.
    """
    live, ingested = _nothing(), 0
    rounds: list[Round] = []
    still = -(-_still_minute(load) // load.every_minutes)
    converged = False
    while not converged and len(rounds) < still + MOST_ROUNDS:
        minute = (len(rounds) + 1) * load.every_minutes
        arrived = _arrivals(range(minute - load.every_minutes, min(minute, len(load.rates))), load)
        ingested += int(arrived.bytes.sum())
        live, done = _round(_together(live, arrived), minute, load)
        rounds.append(done)
        converged = len(rounds) >= still and not done.merges
    windows, group = np.unique(live.window, return_inverse=True)
    count, size = np.bincount(group), np.bincount(group, live.bytes).astype(np.int64)
    finalized = (_outside(live, group, len(windows)) <= LATE_SHARE * size) | (count == 1)
    return Simulation(
        rounds=tuple(rounds),
        bytes_ingested=ingested,
        bytes_compacted=sum(each.bytes_written for each in rounds),
        splits_per_window=tuple(count.tolist()),
        bytes_per_window=tuple(size.tolist()),
        finalized_windows=int(finalized.sum()),
        converged=converged,
    )


def _outside(live: _Live, group: Ints, windows: int) -> Ints:
    """The bytes of each window that are not in its sorted run."""
    top = np.full(windows, FINALIZED, np.int64)
    np.maximum.at(top, group, live.merges)
    outside = live.bytes * (live.merges != top[group])
    return np.bincount(group, outside, minlength=windows).astype(np.int64)


def _still_minute(load: Ingestion) -> int:
    """From when on nothing arrives and every window is cold."""
    last_end_ms = int(_starts(len(load.rates), load) + load.window_seconds) * 1000
    return max(len(load.rates), -(-(last_end_ms + load.settings.cold_after_ms) // MINUTE_MS))


def _round(live: _Live, minute: int, load: Ingestion) -> tuple[_Live, Round]:
    windows, group = np.unique(live.window, return_inverse=True)
    now_ms = minute * MINUTE_MS
    found = choose(
        Splits(
            group=group,
            merges=live.merges,
            bytes=live.bytes,
            rows=live.rows,
            added_ms=live.added_ms,
            high_delete_ratio=np.zeros(len(group), np.bool_),
            skipped=np.zeros(len(group), np.bool_),
            cold=(windows + load.window_seconds) * 1000 + load.settings.cold_after_ms <= now_ms,
        ),
        Rules(settings=load.settings, target_bytes=load.target_bytes, now_ms=now_ms, mode=Mode.POLICY),
    )
    merges = bounded(found, load.plan_inputs)
    kept: Flags = np.ones(len(group), np.bool_)
    kept[merges.rows] = False
    written = _written(live, merges, now_ms, load.target_bytes)
    after = _together(live.take(kept), written)
    return after, Round(
        minute=minute,
        live_before=len(group),
        live_after=len(after.window),
        most_in_window=int(np.bincount(group).max(initial=0)),
        merges=len(merges),
        bytes_written=int(written.bytes.sum()),
    )


def _written(live: _Live, merges: Merges, now_ms: int, target_bytes: int) -> _Live:
    """The outputs of all merges. Pieces are rounded as `split.rolling_writer.RollingWriter` does."""
    if not len(merges):
        return _nothing()
    size, rows = (np.add.reduceat(each[merges.rows], merges.first) for each in (live.bytes, live.rows))
    pieces = outputs_of(size, target_bytes)
    merge, piece = np.repeat(np.arange(len(merges)), pieces), ranges(np.zeros_like(pieces), pieces)

    def share(total: Ints) -> Ints:
        return total[merge] // pieces[merge] + (piece < (total % pieces)[merge])

    window = live.window[merges.rows[merges.first]][merge]
    return _Live(window, merges.merges[merge], share(size), share(rows), np.full(len(merge), now_ms))


def _arrivals(minutes: range, load: Ingestion) -> _Live:
    """Late splits are spread evenly over the others, so no random number decides."""
    rates = np.array([load.rates[minute] for minute in minutes], np.int64)
    minute = np.repeat(np.array(minutes, np.int64), rates)
    number = np.arange(len(minute))
    late = np.floor((number + 1) * load.late_share) > np.floor(number * load.late_share)
    event = np.where(late, minute - load.late_minutes, minute)
    none = np.zeros(len(minute), np.int64)
    start = _starts(event, load)
    return _Live(start, none, none + load.split_bytes, none + load.split_rows, minute * MINUTE_MS)


def _starts(minute: Ints | int, load: Ingestion) -> Ints:
    return np.asarray(minute, np.int64) * 60 // load.window_seconds * load.window_seconds


def _together(first: _Live, second: _Live) -> _Live:
    both = _Live(
        window=np.concatenate([first.window, second.window]),
        merges=np.concatenate([first.merges, second.merges]),
        bytes=np.concatenate([first.bytes, second.bytes]),
        rows=np.concatenate([first.rows, second.rows]),
        added_ms=np.concatenate([first.added_ms, second.added_ms]),
    )
    return both.take(np.lexsort((both.added_ms, both.window)))


def _nothing() -> _Live:
    none = np.zeros(0, np.int64)
    return _Live(none, none, none, none, none)
