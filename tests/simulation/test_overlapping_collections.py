"""Two collections of a table overlap, and the first collection pauses. Each collection succeeds or conflicts.

The pause may have any length, so a paused collection may have lost its lease long ago. Another collection may have
removed objects that the paused collection had read. An object that another collection removed is not damage, so the
advice to run `fsck` would be wrong (`retry_if_collected`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import count
from random import Random

import pytest

from storage_core.base.errors import CommitConflict
from storage_core.data.formats.region_manifest import MANIFEST_FILE
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import read_tags
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import LOOKS, collect
from storage_core.maintain.history import set_tag
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import RequestKind
from tests.simulation.seeds import naming, seed_blocks
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.fault_store import FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, Row
from tests.support.meanwhile import Meanwhile, repeatable
from tests.support.scale import scaled

HORIZON_MS = 60_000
TAG = "kept"
LONGEST_BURST = 60
AHEAD_MS = 2 * START_MS
"""The modification time of all objects, later than all clocks. Identical runs therefore write identical bytes."""


def _plane(name: str, seats: int) -> Row:
    return {"tailnum": name, "seats": seats, "model": None}


def _process(store: ObjectStore, seed: int, clock: ManualClock | None = None) -> KeyedTable:
    return KeyedTable(store, SeededIds(seed), clock or ManualClock(step_ms=1))


def _collect(store: ObjectStore, seed: int, clock: ManualClock | None = None) -> None:
    # This clock is days ahead, so every commit of any process is older than the retention.
    table = _process(store, seed, clock or ManualClock(START_MS + 10**9, step_ms=1))
    collect(store, table.log, clock=table.clock)


def _merge(table: KeyedTable) -> None:
    table.merge_all()
    table.log.checkpoint(table.snapshot)


def _go_on(store: ObjectStore, seats: int, clock: ManualClock | None = None) -> None:
    """Write, merge and checkpoint, so that objects that a collector kept before are no longer needed."""
    table = _process(store, 100 + seats, clock)
    with table.writer() as writer:
        for name in ("a", "b"):
            writer.put(_plane(name, seats))
            writer.flush()
    table.sort()
    _merge(table)


@cache
def start(horizon_ms: int) -> MemoryStore:
    """Return a store with merged, sorted and waiting generations, and with a tagged version.

    The collector must keep some checkpoints and drop other checkpoints.
    """
    config = TableConfig(
        primary_key=("tailnum",), checkpoint_interval=0, version_retention_ms=0, gc_horizon_ms=horizon_ms
    )
    store = MemoryStore("planes")
    table = _process(store, 1).create(config=config)
    for seats in (1, 2):
        _go_on(store, seats)
        if seats == 1:
            set_tag(table.log, TAG, table.snapshot)
    with table.writer() as writer:
        for name in ("c", "d"):
            writer.put(_plane(name, 7))
            writer.flush()
        table.sort()
        writer.put(_plane("tail", 8))
    return store


def _rows(seats: int) -> dict[object, Row]:
    """Return the expected rows. The last write set the `seats` of `a` and `b` to this number."""
    return {name: _plane(name, n) for name, n in {"a": seats, "b": seats, "c": 7, "d": 7, "tail": 8}.items()}


TAGGED = [_plane("a", 1), _plane("b", 1)]


class Judge:
    """Checks each distinct table after a run. No needed object may be missing."""

    def __init__(self) -> None:
        self.seen: set[frozenset[str]] = set()

    def __call__(self, store: MemoryStore, seats: int) -> None:
        left = frozenset(info.key for info in store.list(""))
        if left in self.seen:
            return
        self.seen.add(left)
        table = _process(store, 4)
        for _ in range(2):
            assert table.rows() == _rows(seats)
            tagged = table.log.snapshot(version=read_tags(store).by_name[TAG].version)
            assert sorted(table.base_rows(tagged), key=lambda row: str(row["tailnum"])) == TAGGED
            assert fsck(store, clock=table.clock, deep=True).clean
            _collect(store, 5)


class Outcomes:
    """Counts the collections that succeed and the collections that conflict. Any other error fails the test."""

    def __init__(self) -> None:
        self.well = self.conflicts = 0

    def of(self, act: Callable[[], object]) -> None:
        try:
            act()
        except CommitConflict:
            self.conflicts += 1
        else:
            self.well += 1


def _collects(store: ObjectStore) -> int:
    _collect(store, 7)
    return 2


def _goes_on_and_collects(store: ObjectStore) -> int:
    """Remove the versions that the paused collection meant to keep."""
    for seats in (11, 12):
        _go_on(store, seats)
    _collect(store, 7)
    return 12


def _goes_on_and_collects_later(store: ObjectStore) -> int:
    """Collect with a later clock. The paused collection still retains a version whose generations are deleted.

    The paused collection retains this version because its clock is earlier than the commit of the next version.
    """
    for seats in (11, 12):
        _go_on(store, seats, ManualClock(START_MS + 2 * 10**9, step_ms=1))
    _collect(store, 7, ManualClock(START_MS + 3 * 10**9, step_ms=1))
    return 12


PAUSES = (_collects, _goes_on_and_collects, _goes_on_and_collects_later)


@pytest.mark.parametrize("act", PAUSES)
def test_a_collection_that_is_paused_at_any_request_ends_well_or_with_a_conflict(
    act: Callable[[ObjectStore], int],
) -> None:
    judge, outcomes, seats = Judge(), Outcomes(), [2]
    again = repeatable(act)  # a collection makes many reads before its first change
    step = 2 if scaled(1) == 1 else 1
    for instant in count(PAUSES.index(act) % step, step):
        objects = copy_of(start(0), clock=ManualClock(AHEAD_MS))
        meanwhile = Meanwhile(instant, lambda objects=objects: seats.append(again(objects)))  # type: ignore[misc]
        outcomes.of(lambda meanwhile=meanwhile, objects=objects: _collect(FaultStore(objects, watch=meanwhile), 2))  # type: ignore[misc]
        if not meanwhile.acted:
            break
        judge(objects, seats[-1])
    assert instant > 40
    assert outcomes.conflicts
    print(f"{instant} requests, {outcomes.conflicts} conflicts, {len(judge.seen)} different tables")  # noqa: T201 -- for `pytest -rA`


class EachLook:
    """A `watch` hook for the store of a collection.

    After each read of the waiting generations, the hook merges and collects these generations.

    The hook then adds new waiting generations, so that it can disturb the next read in the same way.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._listed = False
        self.acted = 0

    def __call__(self, _kind: RequestKind, key: str) -> None:
        if key.endswith("/" + MANIFEST_FILE) and self._listed:
            self.acted += 1
            self._act()
        self._listed = key.endswith(".binpb")

    def _act(self) -> None:
        table = _process(self._store, 200 + self.acted)
        _merge(table)
        _collect(self._store, 300 + self.acted)
        with table.writer() as writer:
            for name in ("c", "d"):
                writer.put(_plane(name, 7))
                writer.flush()


def test_a_collection_whose_every_look_is_disturbed_ends_with_a_conflict() -> None:
    objects = copy_of(start(0))
    watch = EachLook(objects)
    with pytest.raises(CommitConflict, match=r"lost its manifest.*another collection of memory://.*Run it again"):
        _collect(FaultStore(objects, watch=watch), 2)
    assert watch.acted == LOOKS
    Judge()(objects, 2)


class Turns:
    """Lets several processes make requests in turn. A seed decides the order and the number of requests per turn.

    A process whose turn has ended waits at its next request, so only one process runs at a time.
    """

    def __init__(self, seed: int, names: Sequence[str]) -> None:
        self._random = Random(seed)
        self._running = list(names)
        self._changed = threading.Condition()
        self._draw()

    def _draw(self) -> None:
        self._turn = self._random.choice(self._running) if self._running else ""
        self._left = self._random.randint(1, LONGEST_BURST)

    def of(self, name: str) -> Callable[[RequestKind, str], None]:
        """Return the `watch` of a process. Each request of the process waits until the process has its turn."""

        def wait(_kind: RequestKind, _key: str) -> None:
            with self._changed:
                if self._turn == name and self._left == 0:
                    self._draw()
                    self._changed.notify_all()
                self._changed.wait_for(lambda: self._turn == name)
                self._left -= 1

        return wait

    def ended(self, name: str) -> None:
        """Record that the process makes no more requests."""
        with self._changed:
            self._running.remove(name)
            self._draw()
            self._changed.notify_all()


def _overlap(seed: int) -> Outcomes:
    """Run two collectors and a process that writes and merges, in turns, on one table."""
    clock = ManualClock(step_ms=1)
    objects, outcomes = copy_of(start(HORIZON_MS), clock=clock), Outcomes()

    def go_on(store: ObjectStore) -> None:
        for seats in (11, 12, 13):
            _go_on(store, seats, clock)
            clock.sleep_ms(2 * HORIZON_MS)  # this process has no uncommitted upload now

    def collect_often(store: ObjectStore) -> None:
        for again in range(4):
            outcomes.of(partial(_collect, store, 31 + again, clock))

    acts = {"one": collect_often, "other": collect_often, "table": go_on}
    turns = Turns(seed, list(acts))

    def run(name: str) -> None:
        try:
            acts[name](FaultStore(objects, watch=turns.of(name)))
        finally:
            turns.ended(name)

    with ThreadPoolExecutor(len(acts)) as pool:
        list(pool.map(run, acts))
    Judge()(objects, 13)
    return outcomes


@seed_blocks(12)
def test_collections_that_overlap_anyhow_end_well_or_with_a_conflict(seeds: range) -> None:
    well = conflicts = 0
    for seed in seeds:
        with naming(seed):
            found = _overlap(seed)
            well, conflicts = well + found.well, conflicts + found.conflicts
    assert well
    print(f"{well} collections ended well, {conflicts} with a conflict")  # noqa: T201 -- for `pytest -rA`
