"""Compaction policy. This module decides which splits are merged, and when.

The policy is a pure function of columns (docs/architecture/compaction.md, "Policy").

A *group* contains the splits that may be merged with each other: the splits of one scope and one window. Inside a
group, the write amplification is constant per merge level. The merge level is the number of merges that a split went
through. Ten splits of one level become one split, and the oldest splits are merged first. A row is therefore rewritten
at most once per merge level.

A mature split is not merged. A split is mature if one of these is true:

- The split has half the target size.
- The split has half the rows that one merge may read.
- The split has the last merge level.

A split that is older than two days is merged only with other splits older than two days.

A group of a cold window is *finalized* if too many files are outside its sorted run. A group of a cold window is also
finalized if more than a tenth of its bytes are outside its sorted run. A finalization merges the whole group into one
run, which is a sequence of splits that do not overlap. Each split of the run stores a number of merges that is greater
than every merge level (decision 0015). The run consists of the splits with the greatest number of merges in the group.
This number must be above `generations`. A split that is added after a finalization has a smaller number of merges than
the splits of the run. A merge by level that takes all splits of a group also finalizes the group.

A merge that is too large for one task is executed in parts (`execute.divide`). Each part reads every *run*. A run is a
single split. A run can also consist of all splits with the same number of merges, if this number is greater than every
merge level. If a group has more runs than a part can read, its oldest splits are first merged into runs. Each of the
runs that these merges write has its own number of merges (decision 0015).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage_core.compact.work import NO_MERGES, REASONS, Bounds, Flags, Ints, Merges, Reason, in_order, ranges
from storage_core.data.settings.layout import MOST_GENERATIONS, MOST_RUN_INPUTS, CompactionSettings, Mode

FINALIZED = MOST_GENERATIONS + 1
"""The smallest number of merges of a split that belongs to a sorted run.

This number is above every merge level that can be configured.
"""

LATE_SHARE = 1 / 10
"""The maximum share of late bytes in a finalized group. Above this share of late bytes, the group is finalized again.

So a finalization rewrites at most ten bytes per late byte.
"""

MOST_RUNS = 256
"""Maximum number of runs that are merged in parts.

A run of several splits counts as two runs, because a part of the merge may read two splits of the run.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Arrays of metrics, with one element per split. The splits are ordered by group, then by age (oldest first).

    - `group`: the number of the group, from 0 without gaps.
    - `merges`: the number of merges that the split went through.
    - `bytes`: the size without deleted rows.
    - `rows`: the number of rows without deleted rows.
    - `added_ms`: the time when the split became live.
    - `high_delete_ratio`: whether too many rows of the split are deleted.
    - `skipped`: whether merges skip the split for now.
    - `cold`: for each group, whether the window of the group is cold.
    """

    group: Ints
    merges: Ints
    bytes: Ints
    rows: Ints
    added_ms: Ints
    high_delete_ratio: Flags
    skipped: Flags
    cold: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of a table, its target size in bytes, and the time (ms) of the evaluation."""

    settings: CompactionSettings
    target_bytes: int
    now_ms: int
    mode: Mode

    @property
    def bounds(self) -> Bounds:
        """The limits of one merge."""
        return Bounds.of(self.settings, self.target_bytes)


def choose(splits: Splits, rules: Rules) -> Merges:
    """Return the pending merges, ordered by group. No split is in two merges.

    For equal input columns, the function returns equal merges. The Python code takes one step per merge. The Python
    code does not loop over splits or groups that need no merge. If plans and merges are repeated, every group reaches a
    state without further merges (`pipelines.commands.policy_simulation.simulate`).
    """
    if not len(splits.group):
        return NO_MERGES
    groups = _metrics(splits, rules)
    free = ~splits.skipped
    found: list[Merges] = []
    for step in (_finalized, _in_parts, _by_generation, _many_small_files, _into_runs):
        merges = step(splits, groups, free, rules)
        free[merges.rows] = False
        found.append(merges)
    return in_order([*found, _high_delete_ratio(splits, free)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Metrics per group. Only `top` includes skipped splits. `small` has one element per row.

    `top` is the greatest number of merges that a split of the group has stored. `outside` counts the splits that are
    not in the sorted run.
    """

    count: Ints
    bytes: Ints
    rows: Ints
    top: Ints
    outside: Ints
    outside_bytes: Ints
    small_count: Ints
    small: Flags

    def is_whole(self, rules: Rules) -> Flags:
        """Return, for each group, whether one merge may read all of it."""
        return rules.bounds.holds(self.rows, self.bytes, self.count)

    def is_late(self) -> Flags:
        return self.outside_bytes > LATE_SHARE * self.bytes

    def run_number(self) -> Ints:
        """Return the number of merges that the output splits store if a merge reads a whole group."""
        return np.maximum(FINALIZED, self.top + 1)

    def number(self, group: Ints, count: Ints, otherwise: Ints) -> Ints:
        """Return the number of merges that each output split stores. Each merge reads `count` splits of its `group`.

        A merge of a whole group makes one sorted run.
        """
        return np.where(count == self.count[group], self.run_number()[group], otherwise)


def _metrics(splits: Splits, rules: Rules) -> _Groups:
    first = np.flatnonzero(np.diff(splits.group, prepend=-1))
    top = np.maximum.reduceat(splits.merges, first)
    run = np.where(top >= FINALIZED, top, -1)
    here = ~splits.skipped
    outside = here & (splits.merges != run[splits.group])
    small = here & (splits.bytes < rules.target_bytes / 2) & (splits.rows < rules.settings.run_rows / 2)

    def total(values: Flags | Ints) -> Ints:
        return np.add.reduceat(values, first, dtype=np.int64)

    return _Groups(
        count=total(here),
        bytes=total(splits.bytes * here),
        rows=total(splits.rows * here),
        top=top,
        outside=total(outside),
        outside_bytes=total(splits.bytes * outside),
        small_count=total(small),
        small=small,
    )


def _finalized(splits: Splits, groups: _Groups, free: Flags, rules: Rules) -> Merges:
    """Return one merge for each group that must become one sorted run."""
    many, late = groups.outside > rules.settings.most_files, groups.is_late()
    wanted = groups.is_whole(rules) & (groups.count > 1) & (groups.outside > 0) & (late | many)
    if rules.mode is Mode.POLICY:
        wanted &= splits.cold
    chosen = np.flatnonzero(wanted)
    reason = np.where(late[chosen], _requested(rules, Reason.LATE), _requested(rules, Reason.FILES))
    return Merges(
        rows=np.flatnonzero(wanted[splits.group] & free),
        count=groups.count[chosen],
        group=chosen,
        merges=groups.run_number()[chosen],
        reason=reason,
    )


def _in_parts(splits: Splits, groups: _Groups, free: Flags, rules: Rules) -> Merges:
    """Return one merge for each group that becomes one run but is too large for one task.

    Each merge has several parts.
    """
    large = _large(splits, groups, rules)
    wanted = large & (_runs(splits, large) <= MOST_RUNS)
    chosen = np.flatnonzero(wanted)
    return Merges(
        rows=np.flatnonzero(wanted[splits.group] & free),
        count=groups.count[chosen],
        group=chosen,
        merges=groups.run_number()[chosen],
        reason=np.full(len(chosen), _requested(rules, Reason.LATE)),
    )


def _into_runs(splits: Splits, groups: _Groups, free: Flags, rules: Rules) -> Merges:
    """For each group with too many runs, return merges of its oldest splits.

    The function returns as few merges as needed, and only for groups in which no other merge is chosen.
    """
    large = _large(splits, groups, rules)
    large[splits.group[~free & ~splits.skipped]] = False
    excess = _runs(splits, large) - MOST_RUNS
    rows: list[Ints] = []
    numbers: list[int] = []
    for group in np.flatnonzero(excess > 0):
        begin, end = np.searchsorted(splits.group, [group, group + 1])
        single = begin + np.flatnonzero((free & (splits.merges < FINALIZED))[begin:end])
        # Each merge replaces 256 runs by an output that counts as two runs. A merge therefore reduces the number of
        # runs by `fewer`.
        fewer = MOST_RUN_INPUTS - 2
        taken = single[: excess[group] + 2 * -(-excess[group] // fewer)]
        found = [part for part in np.split(taken, range(MOST_RUN_INPUTS, len(taken), MOST_RUN_INPUTS)) if len(part) > 2]
        rows += found
        numbers += [int(groups.run_number()[group]) + place for place in range(len(found))]
    if not rows:
        return NO_MERGES
    return Merges(
        rows=np.concatenate(rows),
        count=np.array([len(part) for part in rows], np.int64),
        group=splits.group[[part[0] for part in rows]],
        merges=np.array(numbers, np.int64),
        reason=np.full(len(rows), _requested(rules, Reason.LATE)),
    )


def _large(splits: Splits, groups: _Groups, rules: Rules) -> Flags:
    """Return the groups that must become one run but are too large for one task."""
    wanted = ~groups.is_whole(rules) & (groups.count > 1) & (groups.outside > 0) & groups.is_late()
    return wanted & splits.cold if rules.mode is Mode.POLICY else wanted


def _runs(splits: Splits, wanted: Flags) -> Ints:
    """Return the number of runs in each wanted group, and 0 for the other groups."""
    rows = np.flatnonzero(wanted[splits.group] & ~splits.skipped)
    group, number = splits.group[rows], splits.merges[rows]
    in_run = number >= FINALIZED
    runs, count = np.unique(np.stack([group[in_run], number[in_run]]), axis=1, return_counts=True)
    found = np.bincount(group[~in_run], minlength=len(wanted))
    np.add.at(found, runs[0], np.minimum(count, 2))
    return found.astype(np.int64)


def _by_generation(splits: Splits, groups: _Groups, free: Flags, rules: Rules) -> Merges:
    """Return merges of splits with the same merge level. A row is rewritten about once per merge level.

    The rows of one lane have the same group, merge level and age class.
    """
    if rules.mode is Mode.FINALIZE:
        return NO_MERGES
    settings = rules.settings
    rows = np.flatnonzero(groups.small & free & (splits.merges < settings.generations))
    old = splits.added_ms[rows] <= rules.now_ms - settings.mature_after_ms
    lane = (splits.group[rows] * settings.generations + splits.merges[rows]) * 2 + old
    order = np.argsort(lane, kind="stable")  # A stable sort keeps the order within a lane.
    rows, lane = rows[order], lane[order]
    ready = _ready(lane, splits.bytes[rows], rules)
    rows, lane = rows[ready], lane[ready]
    parts = _parts(splits, rows, lane, rules, most=settings.most_inputs, to_target=True)
    parts = parts.only(parts.is_full | (parts.count >= settings.factor))
    oldest = rows[parts.first]
    group = splits.group[oldest]
    return Merges(
        rows=rows[ranges(parts.first, parts.count)],
        count=parts.count,
        group=group,
        merges=groups.number(group, parts.count, splits.merges[oldest] + 1),
        reason=np.where(parts.is_large, _place(Reason.SIZE), _place(Reason.COUNT)),
    )


def _ready(lane: Ints, bytes_: Ints, rules: Rules) -> Flags:
    """Return, for each split, whether its lane (group, level, age) has enough splits or bytes for a merge."""
    first = np.flatnonzero(np.diff(lane, prepend=-1))
    count = np.diff(first, append=len(lane))
    enough = np.add.reduceat(bytes_, first) >= rules.target_bytes if len(first) else first > 0
    return np.repeat((count >= rules.settings.factor) | (enough & (count > 1)), count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Slices of lanes. A slice is full if it ends at a limit. `is_large` marks slices of the target size."""

    first: Ints
    count: Ints
    is_full: Flags
    is_large: Flags

    def only(self, kept: Flags) -> _Parts:
        return _Parts(
            first=self.first[kept], count=self.count[kept], is_full=self.is_full[kept], is_large=self.is_large[kept]
        )


def _parts(splits: Splits, rows: Ints, lane: Ints, rules: Rules, *, most: int, to_target: bool = False) -> _Parts:
    """Divide the splits of each lane into parts that are small enough for one merge. A part has at most `most` splits.

    A lane is a set of splits that one merge may combine. The first part of a lane begins at the oldest split of the
    lane. A split that is too large for a merge forms a part alone. With `to_target`, parts end at the target size.
    `lane` is ascending.
    """
    place, end, size = np.arange(len(lane)), np.searchsorted(lane, lane, side="right"), splits.bytes[rows]
    stop = np.minimum(place + most, end)
    np.minimum(stop, _room(splits.rows[rows], rules.settings.run_rows), out=stop)
    np.minimum(stop, _room(size, rules.bounds.bytes), out=stop)
    if to_target:
        np.minimum(stop, np.maximum(_room(size, rules.target_bytes - 1) + 1, place + 2), out=stop)
    first = _hops(stop)
    count = np.diff(first, append=len(lane))  # a part begins where the part before ends
    large = np.add.reduceat(size, first) >= rules.target_bytes if len(first) else first > 0
    return _Parts(
        first=first,
        count=count,
        is_full=(count == most) | (large & to_target) | (stop[first] < end[first]),
        is_large=large,
    )


def _room(values: Ints, most: int) -> Ints:
    """Return, for each position, the end of the longest slice that starts at this position.

    The sum of the values in a slice is at most `most`.

    A slice has at least one element, even if this element is greater than `most`.
    """
    total = np.cumsum(values)
    return np.maximum(np.searchsorted(total, total - values + most, side="right"), np.arange(1, len(values) + 1))


def _hops(following: Ints) -> Ints:
    """Return the positions in the chain 0, `following[0]`, and so on.

    The function takes one Python step per position.
    """
    steps, place, found = following.data, 0, []
    while place < len(steps):
        found.append(place)
        place = steps[place]
    return np.array(found, np.int64)


def _many_small_files(splits: Splits, groups: _Groups, free: Flags, rules: Rules) -> Merges:
    """Return merges of small splits, for groups that cannot be merged into one run.

    These groups are too large, have too many splits, or have too few late bytes.
    """
    chosen = groups.small & free
    if rules.mode is Mode.FINALIZE:
        wanted = groups.small_count > 1
        chosen |= splits.high_delete_ratio & free
    else:
        wanted = splits.cold & ~groups.is_whole(rules) & (groups.small_count > rules.settings.most_files)
    wanted &= groups.outside > 0
    wanted[splits.group[~free & ~splits.skipped]] = False  # other merges of this plan come first
    rows = np.flatnonzero(chosen & wanted[splits.group])
    parts = _parts(splits, rows, splits.group[rows], rules, most=MOST_RUN_INPUTS)
    parts = parts.only(parts.count > 1)
    group = splits.group[rows[parts.first]]
    taken = rows[ranges(parts.first, parts.count)]
    number = np.maximum.reduceat(splits.merges[taken], np.cumsum(parts.count) - parts.count) if len(group) else group
    number = np.minimum(number + 1, rules.settings.generations)
    return Merges(
        rows=taken,
        count=parts.count,
        group=group,
        merges=groups.number(group, parts.count, number),
        reason=np.full(len(group), _requested(rules, Reason.FILES)),
    )


def _high_delete_ratio(splits: Splits, free: Flags) -> Merges:
    """Return one merge for each split with a high delete ratio that no other merge reads.

    The merge does not increase the split's number of merges, because the rows stay in one split.
    """
    rows = np.flatnonzero(splits.high_delete_ratio & free)
    return Merges(
        rows=rows,
        count=np.ones(len(rows), np.int64),
        group=splits.group[rows],
        merges=splits.merges[rows],
        reason=np.full(len(rows), _place(Reason.HIGH_DELETE_RATIO)),
    )


def _requested(rules: Rules, reason: Reason) -> int:
    return _place(Reason.REQUESTED if rules.mode is Mode.FINALIZE else reason)


def _place(reason: Reason) -> int:
    return REASONS.index(reason)
