"""Which splits are merged with each other, and when: a pure function of columns (design page 04, "Policy").

A *group* is what may be merged at all: the splits of one scope and one window. Inside it write amplification is
constant per generation: ten splits that went through the same number of merges become one, oldest first, so a row is
rewritten at most once per generation. A split of half the target size, or of the last generation, is mature and left
alone; one that waited for two days is merged with such as waited as long, never with younger ones.

A group of a cold window is *finalized* when more than a tenth of its bytes, or too many of its files, lie outside its
sorted run: all of it becomes one run of splits that do not overlap. Such a group is *sealed*, which its splits say by
a number of merges above every generation (decision 0069): the members of the run are the splits with the greatest
number in the group, if that is above `generations`. Splits that arrive later have a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from storage_core.compaction_settings import CompactionSettings

SEALED = 1_000_000
"""The least number of merges that says "one sorted run": above every number of generations that can be set."""

LATE_SHARE = 1 / 10
"""A finalization rewrites at most ten bytes per late one."""

MOST_RUN_TARGETS = 16
"""A group of more bytes than so many target sizes never becomes one run: one merge would take too long."""

MOST_RUN_INPUTS = 256
"""The most splits that one merge reads, whatever it is for."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Mode(StrEnum):
    """`POLICY` merges what pays now; `FINALIZE` leaves every window with one run, cold or not."""

    POLICY = "policy"
    FINALIZE = "finalize"


class Reason(StrEnum):
    """Why splits are merged: many of one generation, or enough bytes of it; late data; too many files; deleted rows."""

    COUNT = "count"
    SIZE = "size"
    LATE = "late"
    FILES = "files"
    WORN = "worn"
    ASKED = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Splits as columns, one row each, ordered by group and inside it by age, the oldest first.

    `group` counts from 0 without a gap. `merges` is the number of merges a split went through, `bytes` what it would
    take without its deleted rows, `added_ms` when it became live, `worn` that too many of its rows are deleted. One
    that is `skipped` takes no part for now. `cold` has one element per group.
    """

    group: Ints
    merges: Ints
    bytes: Ints
    added_ms: Ints
    worn: Flags
    skipped: Flags
    cold: Flags


@dataclass(frozen=True, slots=True)
class Merge:
    """Rewrite these `rows` of the columns, oldest first, into splits that record `merges` as theirs."""

    rows: tuple[int, ...]
    group: int
    merges: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of a table, its target size in bytes, and the moment (ms) at which they are applied."""

    settings: CompactionSettings
    target_bytes: int
    now_ms: int
    mode: Mode


def choose(splits: Splits, rules: Rules) -> list[Merge]:
    """Return the merges worth doing, no split in two of them, ordered by group; equal columns, equal merges.

    Groups in which there is nothing to do cost no Python step. Repeating plan and merge comes to an end in every group
    (`simulate`).
    """
    if not len(splits.group):
        return []
    groups = _figures(splits, rules)
    taken = np.zeros(len(splits.group), np.bool_)
    found: list[Merge] = []
    for merges in (_finalized(splits, groups, rules), _by_generation(splits, groups, rules)):
        for merge in merges:
            if not taken[merge.rows[0]]:
                taken[list(merge.rows)] = True
                found.append(merge)
    for merge in _crowded(splits, groups, taken, rules):
        taken[list(merge.rows)] = True
        found.append(merge)
    found.extend(_worn(splits, groups, taken, rules))
    return sorted(found, key=lambda merge: (merge.group, merge.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Figures per group, skipped splits left out but for `top`; `first` and `stop` bound its rows, `small` is per row.

    `top` is the greatest number of merges, `outside` counts splits that are not in the sorted run.
    """

    first: Ints
    stop: Ints
    count: Ints
    bytes: Ints
    top: Ints
    outside: Ints
    outside_bytes: Ints
    small_count: Ints
    small: Flags

    def is_whole(self, rules: Rules) -> Flags:
        """Tell of each group whether one merge may take all of it."""
        return (self.bytes <= MOST_RUN_TARGETS * rules.target_bytes) & (self.count <= MOST_RUN_INPUTS)

    def is_late(self) -> Flags:
        return self.outside_bytes > LATE_SHARE * self.bytes


def _figures(splits: Splits, rules: Rules) -> _Groups:
    first = np.flatnonzero(np.diff(splits.group, prepend=-1))
    top = np.maximum.reduceat(splits.merges, first)
    run = np.where(top >= SEALED, top, -1)
    here = ~splits.skipped
    outside = here & (splits.merges != run[splits.group])
    small = here & (splits.bytes < rules.target_bytes / 2)

    def total(values: Flags | Ints) -> Ints:
        return np.add.reduceat(values.astype(np.int64), first)

    return _Groups(
        first=first,
        stop=np.append(first[1:], len(splits.group)),
        count=total(here),
        bytes=total(np.where(here, splits.bytes, 0)),
        top=top,
        outside=total(outside),
        outside_bytes=total(np.where(outside, splits.bytes, 0)),
        small_count=total(small),
        small=small,
    )


def _finalized(splits: Splits, groups: _Groups, rules: Rules) -> Iterator[Merge]:
    """One merge per group that becomes one run."""
    many, late = groups.outside > rules.settings.most_files, groups.is_late()
    wanted = groups.is_whole(rules) & (groups.count > 1) & (groups.outside > 0) & (late | many)
    if rules.mode is Mode.POLICY:
        wanted &= splits.cold
    for group in np.flatnonzero(wanted).tolist():
        rows = np.arange(groups.first[group], groups.stop[group])
        reason = Reason.LATE if late[group] else Reason.FILES
        yield _sealing(rows[~splits.skipped[rows]], group, groups, _asked(rules, reason))


def _by_generation(splits: Splits, groups: _Groups, rules: Rules) -> Iterator[Merge]:
    """The merges of constant write amplification: rows of one lane are of one group, generation and age."""
    if rules.mode is Mode.FINALIZE:
        return
    settings = rules.settings
    rows = np.flatnonzero(groups.small & (splits.merges < settings.generations))
    if not len(rows):
        return
    old = splits.added_ms[rows] <= rules.now_ms - settings.mature_after_ms
    lanes = (old, splits.merges[rows], splits.group[rows])
    order = np.lexsort(lanes)  # stable: rows of a lane stay in their order
    rows = rows[order]
    differs = np.any([np.diff(lane[order], prepend=-1) != 0 for lane in (each.astype(np.int64) for each in lanes)], 0)
    first = np.flatnonzero(differs)
    stop = np.append(first[1:], len(rows))
    enough = np.add.reduceat(splits.bytes[rows], first) >= rules.target_bytes
    ready = (stop - first >= settings.factor) | (enough & (stop - first > 1))
    for start, end in zip(first[ready].tolist(), stop[ready].tolist(), strict=True):
        lane = rows[start:end].tolist()
        merges = int(splits.merges[lane[0]]) + 1
        for part, reason in _packed(splits.bytes[lane].tolist(), rules):
            yield Merge(tuple(lane[part]), int(splits.group[lane[0]]), merges, reason)


def _packed(sizes: list[int], rules: Rules) -> Iterator[tuple[slice, Reason]]:
    """Cut a lane from its oldest split on: a part ends with the target size or the greatest number of inputs."""
    start, total = 0, 0
    for stop, size in enumerate(sizes, 1):
        total += size
        count = stop - start
        if count > 1 and (count == rules.settings.most_inputs or total >= rules.target_bytes):
            yield slice(start, stop), Reason.SIZE if total >= rules.target_bytes else Reason.COUNT
            start, total = stop, 0
    if len(sizes) - start >= rules.settings.factor:
        yield slice(start, len(sizes)), Reason.COUNT


def _crowded(splits: Splits, groups: _Groups, taken: Flags, rules: Rules) -> Iterator[Merge]:
    """Merges of the small splits of groups that do not become one run: too large, too many splits, or hardly late."""
    if rules.mode is Mode.FINALIZE:
        wanted = groups.small_count > 1
    else:
        wanted = splits.cold & ~groups.is_whole(rules) & (groups.small_count > rules.settings.most_files)
    busy = np.zeros(len(groups.first), np.bool_)
    busy[splits.group[taken]] = True
    for group in np.flatnonzero(wanted & ~busy & (groups.outside > 0)).tolist():
        rows = np.arange(groups.first[group], groups.stop[group])
        chosen = groups.small[rows]
        if rules.mode is Mode.FINALIZE:
            chosen |= splits.worn[rows] & ~splits.skipped[rows]
        rows = rows[chosen]
        for start in range(0, len(rows) - 1, MOST_RUN_INPUTS):
            part = rows[start : start + MOST_RUN_INPUTS]
            if len(part) == groups.count[group]:
                yield _sealing(part, group, groups, _asked(rules, Reason.FILES))
            elif len(part) > 1:
                merges = min(int(splits.merges[part].max()) + 1, rules.settings.generations)
                yield Merge(tuple(part.tolist()), group, merges, _asked(rules, Reason.FILES))


def _worn(splits: Splits, groups: _Groups, taken: Flags, rules: Rules) -> Iterator[Merge]:
    """Every other worn split alone: what is left of a member of a run stays in its place."""
    for row in np.flatnonzero(splits.worn & ~splits.skipped & ~taken).tolist():
        merges, group = int(splits.merges[row]), int(splits.group[row])
        in_run = merges >= SEALED and merges == groups.top[group]
        kept = merges if in_run else min(merges + 1, rules.settings.generations)
        yield Merge((row,), group, kept, Reason.WORN)


def _sealing(rows: Ints, group: int, groups: _Groups, reason: Reason) -> Merge:
    return Merge(tuple(rows.tolist()), group, max(SEALED, int(groups.top[group]) + 1), reason)


def _asked(rules: Rules, reason: Reason) -> Reason:
    return Reason.ASKED if rules.mode is Mode.FINALIZE else reason
