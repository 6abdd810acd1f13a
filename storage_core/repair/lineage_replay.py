"""Which splits are live when no log says so: the order of rewrites, replayed from what the files name.

A rewrite and what it replaced lie side by side for weeks, and a rewrite that was killed lies beside its own second run.
So a split that another one replaces is not live, a rewrite counts once, and one of which nothing proves that it was
committed counts only where that changes no row: a compaction that is complete, or a merge whose records are gone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from storage_core.repair.found_split import FoundSplit
from storage_core.split.lineage import MergedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known from elsewhere: splits that the readable log has live or gone, merge progress, generations.

    `ranges` are the generations that readable commits merged: another commit that took one of them lost the race.
    `generations` are, per region, those whose records are all there, so that they can be merged again. `added_at` is
    the version that added a live split: what a rewrite that was planned before then replaced has been restored since.
    """

    live: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    merged: Mapping[str, int] = field(default_factory=dict)
    ranges: tuple[MergedRange, ...] = ()
    generations: Mapping[str, frozenset[int]] = field(default_factory=dict)
    added_at: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The found splits that are live, those that are not with the reason, and what the live ones took the place of.

    `replaced` are splits that `Evidence.live` names and that have left since. `unproven` are live splits of which
    nothing says that they were committed. `merged` is the merge progress of every region.
    """

    live: Mapping[str, FoundSplit]
    left_out: Mapping[str, str]
    replaced: frozenset[str]
    unproven: tuple[str, ...]
    merged: Mapping[str, int]


def choose(found: Sequence[FoundSplit], evidence: Evidence) -> Choice:
    """Return which of the found splits are live. Pure: the same files give the same answer in any order."""
    floor = dict(evidence.merged)
    while True:
        replay = _Replay(found, evidence, floor)
        replay.run()
        if replay.merged == floor:  # else a merge that was put off lies below one that could not be
            return replay.choice()
        floor = dict(replay.merged)


@dataclass(slots=True)
class _Group:
    """The outputs of one operation, which were committed together or not at all."""

    name: str
    members: list[FoundSplit]

    @property
    def inputs(self) -> dict[str, int]:
        """Everything that the operation replaces, with its rows."""
        return {path: rows for each in self.members for path, rows in each.lineage.replaces.items()}

    @property
    def merged(self) -> MergedRange | None:
        """The generations that it took."""
        return self.members[0].lineage.merged

    @property
    def order(self) -> tuple[int, str]:
        """Older plans first."""
        return self.members[0].origin.planned_version, self.name

    @property
    def is_complete(self) -> bool:
        """Whether a compaction's outputs hold as many rows as its inputs did."""
        return sum(each.add.numRecords or 0 for each in self.members) == sum(self.inputs.values())


class _Replay:
    def __init__(self, found: Sequence[FoundSplit], evidence: Evidence, floor: Mapping[str, int]) -> None:
        self._found = {each.path: each for each in sorted(found, key=lambda each: each.path)}
        self._evidence, self._floor = evidence, floor
        self._named = {path for each in found for path in each.lineage.replaces}
        self._live = set(evidence.live)
        self._consumed = set(evidence.deleted)
        self._ranges = list(evidence.ranges)
        self._unproven: list[str] = []
        self._left_out: dict[str, str] = {}
        self.merged = dict(floor)

    def run(self) -> None:
        groups = _groups(self._found.values())
        for each in self._found.values():
            if each.lineage.operation_id is None:
                self._take([each], proven=self._is_proven([each]))
        for group in _in_order(groups, self._is_proven):
            reason = self._objection(group)
            if reason is not None:
                self._left_out |= {each.path: reason for each in group.members}
                continue
            planned, _ = group.order
            inputs = {path for path in group.inputs if self._evidence.added_at.get(path, -1) <= planned}
            self._consumed |= inputs
            self._live -= inputs
            self._take(group.members, proven=self._is_proven(group.members))
            if group.merged is not None:
                self._ranges.append(group.merged)
                before = self.merged.get(group.merged.region, 0)
                self.merged[group.merged.region] = max(before, group.merged.generation)

    def choice(self) -> Choice:
        live = self._live - self._evidence.deleted
        deleted = dict.fromkeys(self._found.keys() & self._consumed, "another split replaced it")
        deleted |= dict.fromkeys(self._found.keys() & self._evidence.deleted, "a later version removed it")
        return Choice(
            live={path: each for path, each in self._found.items() if path in live},
            left_out=self._left_out | deleted,
            replaced=frozenset(self._evidence.live & self._consumed),
            unproven=tuple(path for path in self._unproven if path in live),
            merged=self.merged,
        )

    def _take(self, members: Iterable[FoundSplit], *, proven: bool) -> None:
        for each in members:
            if each.path not in self._consumed:
                self._live.add(each.path)
                if not proven:
                    self._unproven.append(each.path)

    def _is_proven(self, members: Iterable[FoundSplit]) -> bool:
        """A plan reads live splits only: whatever was planned to be replaced, or is known to be gone, was committed."""
        return any(each.path in self._named or each.path in self._evidence.deleted for each in members)

    def _objection(self, group: _Group) -> str | None:
        if self._is_proven(group.members):
            return None
        if group.inputs.keys() & self._consumed:
            return "another rewrite of the same splits was committed"
        intact = group.inputs.keys() <= self._live
        merged = group.merged
        if merged is None:
            wanting = intact and not group.is_complete
            return "its compaction is not complete, and what it replaces is there" if wanting else None
        if any(each.region == merged.region and _overlap(each, merged) for each in self._ranges):
            return "another merge took the same generations"
        at_hand = self._evidence.generations.get(merged.region, frozenset())
        again = set(range(merged.after + 1, merged.generation + 1)) <= at_hand
        if intact and again and merged.generation > self._floor.get(merged.region, 0):
            return "the generations that it merged are there, and are merged again"
        return None


def _groups(found: Iterable[FoundSplit]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for each in found:
        if each.lineage.operation_id is not None:
            groups.setdefault(each.lineage.operation_id, _Group(each.lineage.operation_id, [])).members.append(each)
    return sorted(groups.values(), key=lambda group: group.order)


def _in_order(groups: Sequence[_Group], is_proven: Callable[[Iterable[FoundSplit]], bool]) -> Iterator[_Group]:
    """Yield a group after those that made its inputs, and of several that are ready the proven ones first."""
    maker = {each.path: group.name for group in groups for each in group.members}
    by_name = {group.name: group for group in groups}
    waiting = {group.name: {maker[path] for path in group.inputs if path in maker} - {group.name} for group in groups}
    followers: dict[str, list[str]] = {}
    for name, needed in waiting.items():
        for other in needed:
            followers.setdefault(other, []).append(name)
    ready = [(not is_proven(group.members), group.order) for group in groups if not waiting[group.name]]
    heapq.heapify(ready)
    while ready:
        _, (_, name) = heapq.heappop(ready)
        yield by_name.pop(name)
        for follower in followers.get(name, ()):
            waiting[follower].discard(name)
            if not waiting[follower]:
                heapq.heappush(ready, (not is_proven(by_name[follower].members), by_name[follower].order))
    # Names are fresh, so no operation replaces its own future; files that say so are taken as they come.
    yield from by_name.values()


def _overlap(one: MergedRange, other: MergedRange) -> bool:
    return one.after < other.generation and other.after < one.generation
