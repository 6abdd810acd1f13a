"""The work of a simulated writer: every kind of commit that changes a log, planned on the snapshot of the writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from storage_core.compact.work import SKIP_OPERATION
from storage_core.log.actions import (
    Action,
    Add,
    Fence,
    IndexSegment,
    MergedGenerations,
    MergeSkip,
    Protocol,
    Remove,
    RemoveIndexSegment,
    Txn,
)
from storage_core.log.conflicts import MergeProgress, Requirement
from storage_core.log.deletion_vector import inline
from storage_core.log.snapshot import Snapshot
from tests.support.clock import START_MS
from tests.support.log_oracle import State
from tests.support.log_tables import INDEX, segment, split


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work to commit, and the commit ID. If the ID is None, the log chooses it."""

    kind: str
    planned: Snapshot
    actions: tuple[Action, ...]
    requirements: tuple[Requirement, ...] = ()
    commit_id: str | None = None

    def relies_on(self) -> list[str]:
        """Return the live splits that the work removes or changes."""
        return [
            action.path
            for action in self.actions
            if isinstance(action, Remove) or (isinstance(action, Add) and action.deletionVector is not None)
        ]

    def is_outdated(self, head: State) -> bool:
        """Return True if a split of the work was removed or lost rows after the work was planned."""
        planned = self.planned.splits
        return any(
            head["live"].get(path) is None or head["live"][path] != planned.get(path) for path in self.relies_on()
        )

    def check(self, actions: Sequence[Action]) -> None:
        """Assert that a version contains exactly the actions of the work.

        A protocol action may be added, and a segment may be missing.
        """
        found = [action for action in actions if not isinstance(action, Protocol)]
        requested = [action for action in self.actions if not isinstance(action, IndexSegment)]
        assert [action for action in found if not isinstance(action, IndexSegment)] == requested
        assert all(action in self.actions for action in found)


Planner = Callable[[Random, str, Snapshot], Work | None]
"""Function that plans work from a `Random`, a unique name and a snapshot. The result is None without work."""


def append(random: Random, name: str, snapshot: Snapshot) -> Work:
    """Add one to three splits."""
    adds = tuple(split(f"{name}-{number}") for number in range(random.randint(1, 3)))
    return Work(kind="APPEND", planned=snapshot, actions=adds)


def compact(random: Random, name: str, snapshot: Snapshot) -> Work | None:
    """Replace up to two splits by a new split."""
    deleted = _some_live(random, snapshot, 2)
    actions: tuple[Action, ...] = (*deleted, replace(split(name), dataChange=False))
    return Work(kind="COMPACT", planned=snapshot, actions=actions) if deleted else None


def remove(random: Random, _name: str, snapshot: Snapshot) -> Work | None:
    """Remove a split."""
    deleted = _some_live(random, snapshot, 1)
    return Work(kind="REMOVE", planned=snapshot, actions=deleted) if deleted else None


def delete_rows(random: Random, _name: str, snapshot: Snapshot) -> Work | None:
    """Add a deletion vector for the only row of a split. Splits that have a deletion vector are skipped."""
    whole = sorted(path for path, add in snapshot.splits.items() if add.deletionVector is None)
    if not whole:
        return None
    action = replace(snapshot.splits[random.choice(whole)], deletionVector=inline((0,)))
    return Work(kind="DELETE", planned=snapshot, actions=(action,))


def change(_random: Random, name: str, snapshot: Snapshot) -> Work:
    """Change the metadata."""
    return Work(kind="CHANGE", planned=snapshot, actions=(replace(snapshot.metadata, description=name),))


def transact(random: Random, name: str, snapshot: Snapshot) -> Work:
    """Record a work unit of a batch job, sometimes a unit that is already recorded."""
    app = random.choice("aaab")
    number = snapshot.txns.get(app, 0) + random.randint(0, 1)
    return Work(kind="TRANSACT", planned=snapshot, actions=(split(name), Txn(appId=app, version=number)))


def merge(random: Random, name: str, snapshot: Snapshot) -> Work:
    """Add the next generation of a region, with its rows and the fence of the merger."""
    region = random.choice("xy")
    after = snapshot.merged_generations.get(region, 0)
    actions = (
        split(name),
        MergedGenerations(region=region, generation=after + 1),
        Fence(resource=region, token=snapshot.fences.get(region, 1) + random.choice((0, 0, 1, -1))),
    )
    return Work(kind="MERGE", planned=snapshot, actions=actions, requirements=(MergeProgress(region, after),))


def index(random: Random, name: str, snapshot: Snapshot) -> Work | None:
    """Add a segment for a split without a segment."""
    covered = {path for each in snapshot.segments.values() for path in each.covers}
    bare = sorted(set(snapshot.splits) - covered)
    if not bare:
        return None
    return Work(kind="INDEX", planned=snapshot, actions=(replace(segment(name), covers=(random.choice(bare),)),))


def drop_segment(random: Random, _name: str, snapshot: Snapshot) -> Work | None:
    """Remove a segment."""
    if not snapshot.segments:
        return None
    path = random.choice(sorted(snapshot.segments))
    return Work(kind="DROP", planned=snapshot, actions=(RemoveIndexSegment(index=INDEX.name, path=path),))


def skip(random: Random, name: str, snapshot: Snapshot) -> Work | None:
    """Record that a step skips a split for a while."""
    if not snapshot.splits:
        return None
    path = random.choice(sorted(snapshot.splits))
    action = MergeSkip(path=path, skipTimestamp=START_MS, reason=name, operation=SKIP_OPERATION)
    return Work(kind="SKIP", planned=snapshot, actions=(action,))


PLANNERS: tuple[tuple[Planner, int], ...] = (
    (append, 4),
    (compact, 2),
    (remove, 1),
    (delete_rows, 1),
    (change, 1),
    (transact, 2),
    (merge, 2),
    (index, 2),
    (drop_segment, 1),
    (skip, 1),
)
"""Every kind of work, and its relative frequency."""


def _some_live(random: Random, snapshot: Snapshot, count: int) -> tuple[Remove, ...]:
    live = sorted(snapshot.splits)
    chosen = random.sample(live, min(count, len(live)))
    return tuple(Remove(path=path, deletionTimestamp=START_MS) for path in chosen)
