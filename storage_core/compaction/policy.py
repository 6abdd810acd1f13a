"""Which splits are merged with each other, and when: a pure function of columns (docs/architecture/compaction.md,
"Policy").

A *group* is what may be merged at all: the splits of one scope and one window. Inside it write amplification is
constant per generation: ten splits that went through the same number of merges become one, oldest first, so a row is
rewritten at most once per generation. A split of half the target size, of half the rows that one merge may read, or of
the last generation is mature and left alone; one that waited for two days is merged with such as waited as long, never
with younger ones.

A group of a cold window is *finalized* when more than a tenth of its bytes, or too many of its files, lie outside its
sorted run: all of it becomes one run of splits that do not overlap. Such a group is *finalized*, which its splits say
by a number of merges above every generation (decision 0069): the members of the run are the splits with the greatest
number in the group, if that is above `generations`. Splits that arrive later have a smaller one.

A merge of the generations that happens to take all of a group finalizes it as well. What is too much for one task is
merged in parts (`ranges`), which reads every *run* at once: a split, or all splits of one number above the generations.
Of a group with more runs than that, the oldest splits become runs first, each with such a number of its own (decision
0147).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from storage_core.compaction.merges import NO_MERGES, REASONS, Flags, Ints, Merges, Reason, in_order, ranges
from storage_core.compaction.work import Bounds
from storage_core.settings.compaction import MOST_GENERATIONS, MOST_RUN_INPUTS, CompactionSettings

FINALIZED = MOST_GENERATIONS + 1
"""The least number of merges that says "one sorted run": above every number of generations that can be set."""

LATE_SHARE = 1 / 10
"""For what is late, a finalized group is finalized again when that rewrites at most ten bytes per late one."""

MOST_RUNS = 256
"""The most runs that are merged in parts. A run of several splits counts twice: a part may have two of them."""


class Mode(StrEnum):
    """`POLICY` merges what pays now; `FINALIZE` leaves every window with one run, cold or not.

    `REWINDOW` merges nothing: a job of this mode writes splits of former windows anew (`compaction.rewindow`), as one
    of `POLICY` does with those of cold windows that are joined. `RESORT` does that with splits of another sort schema.
    """

    POLICY = "policy"
    FINALIZE = "finalize"
    REWINDOW = "rewindow"
    RESORT = "resort"

    @property
    def merges(self) -> bool:
        """Whether compactions of this mode merge splits."""
        return self in (Mode.POLICY, Mode.FINALIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Splits as columns, one row each, ordered by group and inside it by age, the oldest first.

    `group` counts from 0 without a gap. `merges` is the number of merges a split went through, `bytes` what it would
    take without its deleted rows, `rows` how many others it has, `added_ms` when it became live, `high_delete_ratio`
    that too many of its rows are deleted. One that is `skipped` takes no part for now. `cold` has one element per
    group.
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
    """The settings of a table, its target size in bytes, and the moment (ms) at which they are applied."""

    settings: CompactionSettings
    target_bytes: int
    now_ms: int
    mode: Mode

    @property
    def bounds(self) -> Bounds:
        """What one merge may read."""
        return Bounds.of(self.settings, self.target_bytes)


def choose(splits: Splits, rules: Rules) -> Merges:
    """Return the merges worth doing, no split in two of them, ordered by group; equal columns, equal merges.

    A merge costs one Python step, a split or a group in which there is nothing to do none. Repeating plan and merge
    comes to an end in every group (`simulate`).
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
    """Metrics per group, skipped splits left out but for `top`; `small` is per row.

    `top` is the greatest number of merges, `outside` counts splits that are not in the sorted run.
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
        """Tell of each group whether one merge may take all of it."""
        return rules.bounds.holds(self.rows, self.bytes, self.count)

    def is_late(self) -> Flags:
        return self.outside_bytes > LATE_SHARE * self.bytes

    def run_number(self) -> Ints:
        """The number of merges that says "in the sorted run" after a merge of all of the group."""
        return np.maximum(FINALIZED, self.top + 1)

    def number(self, group: Ints, count: Ints, otherwise: Ints) -> Ints:
        """What merges of so many splits of these groups record: what takes all of a group makes it one run."""
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
    """One merge per group that becomes one run."""
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
    """One merge, of several parts, per group that is too large for one task and becomes one run."""
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
    """Merges of the oldest splits of groups with too many runs: as few as it takes, and where nothing else is to do."""
    large = _large(splits, groups, rules)
    large[splits.group[~free & ~splits.skipped]] = False
    excess = _runs(splits, large) - MOST_RUNS
    rows: list[Ints] = []
    numbers: list[int] = []
    for group in np.flatnonzero(excess > 0):
        begin, end = np.searchsorted(splits.group, [group, group + 1])
        single = begin + np.flatnonzero((free & (splits.merges < FINALIZED))[begin:end])
        fewer = MOST_RUN_INPUTS - 2  # by so many runs, for what comes of 256 splits counts as two
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
    """The groups that are to become one run and are too large for one task."""
    wanted = ~groups.is_whole(rules) & (groups.count > 1) & (groups.outside > 0) & groups.is_late()
    return wanted & splits.cold if rules.mode is Mode.POLICY else wanted


def _runs(splits: Splits, wanted: Flags) -> Ints:
    """How many runs the splits of each of the wanted groups are; 0 of the others."""
    rows = np.flatnonzero(wanted[splits.group] & ~splits.skipped)
    group, number = splits.group[rows], splits.merges[rows]
    in_run = number >= FINALIZED
    runs, count = np.unique(np.stack([group[in_run], number[in_run]]), axis=1, return_counts=True)
    found = np.bincount(group[~in_run], minlength=len(wanted))
    np.add.at(found, runs[0], np.minimum(count, 2))
    return found.astype(np.int64)


def _by_generation(splits: Splits, groups: _Groups, free: Flags, rules: Rules) -> Merges:
    """The merges of constant write amplification: rows of one lane are of one group, generation and age."""
    if rules.mode is Mode.FINALIZE:
        return NO_MERGES
    settings = rules.settings
    rows = np.flatnonzero(groups.small & free & (splits.merges < settings.generations))
    old = splits.added_ms[rows] <= rules.now_ms - settings.mature_after_ms
    lane = (splits.group[rows] * settings.generations + splits.merges[rows]) * 2 + old
    order = np.argsort(lane, kind="stable")  # rows of a lane stay in their order
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
    """Tell of each row whether its lane has splits enough, or bytes."""
    first = np.flatnonzero(np.diff(lane, prepend=-1))
    count = np.diff(first, append=len(lane))
    enough = np.add.reduceat(bytes_, first) >= rules.target_bytes if len(first) else first > 0
    return np.repeat((count >= rules.settings.factor) | (enough & (count > 1)), count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Slices of lanes. One that is full ends where no more may be read, `is_large` where it has the target size."""

    first: Ints
    count: Ints
    is_full: Flags
    is_large: Flags

    def only(self, kept: Flags) -> _Parts:
        return _Parts(
            first=self.first[kept], count=self.count[kept], is_full=self.is_full[kept], is_large=self.is_large[kept]
        )


def _parts(splits: Splits, rows: Ints, lane: Ints, rules: Rules, *, most: int, to_target: bool = False) -> _Parts:
    """Cut every lane of these rows from its oldest split on: parts of at most `most` splits, which one merge may read.

    A split that is too much for that is a part alone. Parts end with the target size if so asked. `lane` is ascending.
    """
    place, end, size = np.arange(len(lane)), np.searchsorted(lane, lane, side="right"), splits.bytes[rows]
    stop = np.minimum(place + most, end)
    np.minimum(stop, _room(splits.rows[rows], rules.settings.run_rows), out=stop)
    np.minimum(stop, _room(size, rules.bounds.bytes), out=stop)
    if to_target:
        np.minimum(stop, np.maximum(_room(size, rules.target_bytes - 1) + 1, place + 2), out=stop)
    first = _hops(stop)
    count = np.diff(first, append=len(lane))  # a part begins where the one before ends
    large = np.add.reduceat(size, first) >= rules.target_bytes if len(first) else first > 0
    return _Parts(
        first=first,
        count=count,
        is_full=(count == most) | (large & to_target) | (stop[first] < end[first]),
        is_large=large,
    )


def _room(values: Ints, most: int) -> Ints:
    """Up to where one may go from each place on until the values are more than `most`; one place at least."""
    total = np.cumsum(values)
    return np.maximum(np.searchsorted(total, total - values + most, side="right"), np.arange(1, len(values) + 1))


def _hops(following: Ints) -> Ints:
    """Where one gets from place 0 on when each tells the following one: a Python step per hop, and no list of all."""
    steps, place, found = following.data, 0, []
    while place < len(steps):
        found.append(place)
        place = steps[place]
    return np.array(found, np.int64)


def _many_small_files(splits: Splits, groups: _Groups, free: Flags, rules: Rules) -> Merges:
    """Merges of the small splits of groups that do not become one run: too large, too many splits, or hardly late."""
    chosen = groups.small & free
    if rules.mode is Mode.FINALIZE:
        wanted = groups.small_count > 1
        chosen |= splits.high_delete_ratio & free
    else:
        wanted = splits.cold & ~groups.is_whole(rules) & (groups.small_count > rules.settings.most_files)
    wanted &= groups.outside > 0
    wanted[splits.group[~free & ~splits.skipped]] = False  # merges of this plan come first
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
    """Every other high_delete_ratio split alone, which keeps its number: what is left of it lies where it lay."""
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
