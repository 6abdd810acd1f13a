"""Simulation of the compaction policy for one day of ingestion, with numbers of splits and bytes, without storage.

The simulation calls the same functions as a real run. `policy.choose` selects the merges, and `work.bounded` limits
their number. A simulated merge writes as many bytes as it reads, in files of the target size. A real table becomes
smaller than the simulated table, because sorted data compresses better. See docs/architecture/compaction.md, "Policy".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from storage_core.compact.policy import FINALIZED, LATE_SHARE, Rules, Splits, choose
from storage_core.compact.work import MOST_INPUTS, Flags, Ints, Merges, bounded, outputs_of, ranges
from storage_core.data.settings.layout import CompactionSettings, Mode

MINUTE_MS = 60_000
MINUTES_PER_DAY = 1440
MOST_ROUNDS = 1_000
"""The largest number of simulated rounds after the last split has arrived and every window has become cold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingestion:
    """Arriving splits, and the settings of their compaction.

    Attributes:
        rates: The number of splits that arrive in each minute.
        split_bytes: The size of a split in bytes.
        split_rows: The number of rows of a split.
        window_seconds: The length of a window in seconds.
        target_bytes: The size of an output file of a merge in bytes.
        late_share: The share of late splits. A late split belongs to the window that was current `late_minutes`
            earlier.
        late_minutes: The lateness of the late splits in minutes.
        every_minutes: The time between two compactions in minutes.
        plan_inputs: The approximate maximum number of splits that one compaction replaces.
        settings: The settings of the policy.
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
    """One compaction: its time, the live splits before and after it, its merges and its written bytes."""

    minute: int
    live_before: int
    live_after: int
    most_in_window: int
    merges: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All rounds of a simulation, until a round had no work.

    The fields `…_per_window` have one element per window, in the order of the windows. `finalized_windows` is the
    number of windows with almost all bytes in their sorted run. A window with a single split counts as finalized.
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
        """The number of written bytes per ingested byte, including the first write."""
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
        """Return the splits at the given positions in this order, or the splits whose flag is true."""
        columns = (self.window, self.merges, self.bytes, self.rows, self.added_ms)
        return _Live(*(column[places] for column in columns))


def simulate(load: Ingestion) -> Simulation:
    """Return the result of the simulation, round by round. Equal loads give equal results.

    After the last arrival, rounds continue until every window is cold and one round has no work. The policy has then
    converged. If the policy needs more than `MOST_ROUNDS` further rounds, it has not converged.
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
    """Return for each window the number of bytes that are not in its sorted run."""
    top = np.full(windows, FINALIZED, np.int64)
    np.maximum.at(top, group, live.merges)
    outside = live.bytes * (live.merges != top[group])
    return np.bincount(group, outside, minlength=windows).astype(np.int64)


def _still_minute(load: Ingestion) -> int:
    """Return the first minute after which no split arrives and every window is cold."""
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
    """Return the outputs of all merges.

    File sizes are rounded as in `split.writer.RollingWriter`.
    """
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
    """Return the splits that arrive in these minutes.

    Late splits are evenly mixed with the other splits, so the result does not depend on random numbers.
    """
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
