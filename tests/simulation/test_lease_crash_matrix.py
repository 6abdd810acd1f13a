"""Kill a maintainer at each request of its lease calls and commits, before or after the request takes effect.

The lease calls are acquire, take over, renew, look (check that the lease is held), release and break. After the lease
expires, the next maintainer always gets the resource with a higher token, and its commit succeeds. The work of the dead
maintainer is in the log exactly if its version file exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from storage_core.base.errors import Fenced, Held
from storage_core.data.formats.keys import lock_key, version_key
from storage_core.log.actions import Action
from storage_core.log.lease import TTL_MS, Lease, acquire, break_lease, read_lease
from storage_core.log.log import TransactionLog
from storage_core.store.contract import ObjectStore, exists
from storage_core.store.memory import MemoryStore
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.log_oracle import LogOracle
from tests.support.log_tables import log_on, metadata, removal, split

RESOURCE = "merge"
KEY = lock_key(RESOURCE)

Step = Callable[[TransactionLog, Lease], object]


@dataclass(frozen=True, slots=True)
class Case:
    """A call that a crash of the process interrupts: `run`, or the acquisition of the lease if `run` is None."""

    name: str
    run: Step | None
    before: Callable[[MemoryStore], object] = lambda _: None


def taken(store: ObjectStore, seed: int, now_ms: int = START_MS) -> tuple[TransactionLog, Lease]:
    log = log_on(store, clock=ManualClock(now_ms), seed=seed)
    return log, acquire(log, log.snapshot(), RESOURCE, f"run-{seed}")


def commits(log: TransactionLog, lease: Lease, name: str = "mine") -> None:
    actions: list[Action] = [removal("a"), split(name), lease.fence]
    log.commit(log.snapshot(version=1), actions, operation="M", requirements=[lease.requirement])


def works(log: TransactionLog, lease: Lease) -> None:
    """Do all that a job does under its lease."""
    lease.renew()
    lease.require_held()
    commits(log, lease)
    lease.release()


CASES = (
    Case("acquire", None),
    Case("acquire what was released", None, lambda store: taken(store, 5)[1].release()),
    Case("take over what ran out", None, lambda store: taken(store, 5, START_MS - TTL_MS)),
    Case("renew", lambda _, lease: lease.renew()),
    Case("look", lambda _, lease: lease.require_held()),
    Case("release", lambda _, lease: lease.release()),
    Case("renew, look, commit, release", works),
    Case("break", lambda log, _: break_lease(log, RESOURCE, "operator")),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_maintainer_may_end_at_any_request_and_the_next_one_goes_on(case: Case) -> None:
    start = MemoryStore("table", clock=ManualClock())
    log = log_on(start, seed=1)
    log.commit(log.create(metadata()), [split("a")], operation="FIRST")
    case.before(start)
    whole = ended(case, copy_of(start), None)
    requests = len(whole.trace) - whole.first
    assert requests
    for number in range(requests):
        for side in CrashFault:
            objects = copy_of(start)
            the_next_one_goes_on(objects, ended(case, objects, (number, side)))


@dataclass(frozen=True, slots=True)
class Ended:
    """A dead process.

    `first` is the index in `trace` of the first request of the case. `lease` is the lease of the dead process, or None
    if the process got no lease.
    """

    trace: list[str]
    first: int
    lease: Lease | None


def ended(case: Case, objects: MemoryStore, point: tuple[int, CrashFault] | None) -> Ended:
    """Run the case on `objects` until the process ends at `point`. If `point` is None, run the whole case."""
    store = FaultStore(objects)
    log = log_on(store, clock=ManualClock(), seed=2)
    head = log.snapshot()
    lease = None if case.run is None else acquire(log, head, RESOURCE, "ended")
    first = len(store.trace)
    if point is not None:
        store.at(first + point[0], point[1])
    try:
        if case.run is None or lease is None:
            lease = acquire(log, head, RESOURCE, "ended")
        else:
            case.run(log, lease)
        assert point is None
    except Crash:
        assert point is not None
    return Ended([f"{each.request.kind} {each.request.key}" for each in store.trace], first, lease)


def the_next_one_goes_on(objects: MemoryStore, before: Ended) -> None:
    left = read_lease(objects, KEY)
    last = left.record.fencing_token if left and left.record else 0
    landed = exists(objects, version_key(2))
    if left and left.record and left.record.is_live(START_MS):
        with pytest.raises(Held):
            taken(objects, 7)
    log, lease = taken(objects, 8, START_MS + TTL_MS)
    assert lease.token == last + 1
    head = log.snapshot()
    assert head.version == (2 if landed else 1)
    deleted = [removal(path.rpartition("/")[2].removesuffix(".parquet")) for path in head.splits]
    log.commit(head, [*deleted, split("next"), lease.fence], operation="M", requirements=[lease.requirement])
    if before.lease is not None:  # the ended process commits late, as if it had only been paused
        with pytest.raises(Fenced):
            commits(log_on(objects, seed=9), before.lease, "late")
    lease.release()
    oracle = LogOracle(objects)
    oracle.check_versions()
    assert set(oracle.read()[-1].state["live"]) == {split("next").path}
    assert taken(objects, 10)[1].token == last + 2
