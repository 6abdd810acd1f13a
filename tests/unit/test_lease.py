"""Leases: one holder at a time, growing tokens, and commits that do not depend on a clock.

See lessons 01, 05 and 07 to 10.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from storage_core.base.errors import CommitUnknown, Corrupt, Fenced, Held, NotFound, Unavailable, Unsupported
from storage_core.data.formats.documents import LeaseRecord, decode_lease, encode_lease
from storage_core.data.formats.keys import lock_key
from storage_core.log.actions import Action, Fence
from storage_core.log.lease import (
    BEYOND_LOST,
    INTERVAL_MS,
    TTL_MS,
    Heartbeat,
    Lease,
    acquire,
    break_lease,
    stored_leases,
)
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import collect
from storage_core.store.contract import IfAbsent, ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import START_MS, ManualClock
from tests.support.fault_store import FaultStore, GetFault, PutFault
from tests.support.ids import SeededIds
from tests.support.log_tables import log_on, metadata, removal, split

RESOURCE = "merge"
KEY = lock_key(RESOURCE)
MINUTES = 60_000


@pytest.fixture
def store() -> MemoryStore:
    """Make a table at version 1 with one split."""
    created = MemoryStore("table", clock=ManualClock())
    log = log_on(created, seed=1)
    log.commit(log.create(metadata()), [split("a")], operation="FIRST")
    return created


class Maintainer:
    """A process with its own clock, ids and view of the store."""

    def __init__(self, store: ObjectStore, number: int, *, ahead_ms: int = 0) -> None:
        self.clock = ManualClock(START_MS + ahead_ms)
        self.log: TransactionLog = log_on(store, clock=self.clock, seed=100 + number)
        self.name = f"run-{number}"
        self.planned: Snapshot = self.log.snapshot()

    def acquire(self, is_dead: Callable[[str], bool] | None = None) -> Lease:
        self.planned = self.log.snapshot()
        return acquire(self.log, self.planned, RESOURCE, self.name, is_dead=is_dead)

    def commit(self, lease: Lease, name: str) -> int:
        """Replace split a by the split `name`. In these tests, all processes make this commit."""
        actions: list[Action] = [removal("a"), split(name), lease.fence]
        done = self.log.commit(self.planned, actions, operation="M", requirements=[lease.requirement])
        return done.version


def record_in(store: ObjectStore) -> LeaseRecord:
    return decode_lease(store.get(KEY).data, KEY)


# One holder at a time.


def test_a_first_lease_has_token_one_and_says_who_holds_what_until_when(store: MemoryStore) -> None:
    Maintainer(store, 1).acquire()
    body = json.loads(store.get("_locks/merge.json").data)
    nonce = body.pop("nonce")
    assert body == {
        "format": 1,
        "resource": "merge",
        "holder": "run-1",
        "fencing_token": 1,
        "acquired_at": START_MS,
        "expires_at": START_MS + TTL_MS,
    }
    assert nonce.endswith(".00")


def test_a_live_lease_is_held_also_against_a_second_start_of_the_same_run(store: MemoryStore) -> None:
    first, again = Maintainer(store, 1), Maintainer(store, 1)
    lease = first.acquire()
    with pytest.raises(Held, match=r"merge of .* is held by run-1 \(token 1\), for 300 s more") as refused:
        again.acquire()
    assert refused.value.exit_code == 3
    again.clock.now += TTL_MS - 1
    with pytest.raises(Held):
        again.acquire()
    again.clock.now += 1
    assert again.acquire().token == 2
    with pytest.raises(Fenced, match="the lease with token 1 is lost, because run-1 has token 2"):
        lease.require_held()


def test_a_holder_that_is_known_to_be_dead_is_not_waited_for(store: MemoryStore) -> None:
    Maintainer(store, 1).acquire()
    with pytest.raises(Held):
        Maintainer(store, 2).acquire(lambda holder: holder == "run-9")
    assert Maintainer(store, 2).acquire(lambda holder: holder == "run-1").token == 2


def test_a_lease_of_a_clock_that_was_ahead_runs_out_by_the_store_s_clock() -> None:
    clock = ManualClock()
    store = MemoryStore("table", clock=clock)
    log_on(store, seed=1).create(metadata())
    Maintainer(store, 1, ahead_ms=365 * 24 * 60 * MINUTES).acquire()
    other = Maintainer(store, 2)
    clock.now += TTL_MS - 1
    with pytest.raises(Held):
        other.acquire()
    clock.now += 1
    assert other.acquire().token == 2


@pytest.mark.parametrize("ahead_ms", [-10 * MINUTES, 0, 10 * MINUTES])
def test_a_released_lease_is_free_at_once_for_every_clock_and_keeps_its_token(
    store: MemoryStore, ahead_ms: int
) -> None:
    Maintainer(store, 1, ahead_ms=ahead_ms).acquire().release()
    assert record_in(store).fencing_token == 1
    assert Maintainer(store, 2).acquire().token == 2


def test_a_lease_is_renewed_for_its_full_time_also_late_but_not_once_it_is_taken_over(store: MemoryStore) -> None:
    holder = Maintainer(store, 1)
    lease = holder.acquire()
    holder.clock.now += TTL_MS + 7
    lease.renew()
    assert record_in(store).expires_at_ms == START_MS + 2 * TTL_MS + 7
    other = Maintainer(store, 2, ahead_ms=2 * TTL_MS + 7)
    taken = other.acquire()
    before = store.get(KEY)
    for _ in range(2):
        with pytest.raises(Fenced):
            lease.renew()
    with pytest.raises(Fenced):
        lease.require_held()
    lease.release()
    assert store.get(KEY) == before, "who lost a lease changes nothing any more (lesson 07)"
    taken.require_held()


def test_requests_are_pinned(store: MemoryStore) -> None:
    metered = MeteredStore(store)
    maintainer = Maintainer(store, 1)
    head, log = maintainer.planned, TransactionLog(metered, clock=maintainer.clock, ids=SeededIds(7))
    spent: list[tuple[int, int]] = []

    def count(act: Callable[[], object]) -> None:
        before = metered.requests
        act()
        after = metered.requests
        assert sum(after.values()) - sum(before.values()) == sum(after[k] - before[k] for k in ("get", "put"))
        spent.append((after["get"] - before["get"], after["put"] - before["put"]))

    held: list[Lease] = []
    count(lambda: held.append(acquire(log, head, RESOURCE, "run")))
    count(held[0].renew)
    count(held[0].require_held)
    count(held[0].release)
    count(lambda: held.append(acquire(log, head, RESOURCE, "run")))
    assert spent == [(1, 1), (0, 1), (1, 0), (0, 1), (1, 1)]


# Replies of a store.


@pytest.mark.parametrize("fault", [each for each in PutFault if each is not PutFault.DELAYED_THEN_UNKNOWN])
@pytest.mark.parametrize("act", ["acquire", "take over", "renew", "release"])
def test_a_put_that_fails_or_whose_reply_is_lost_takes_effect_once(
    store: MemoryStore, fault: PutFault, act: str
) -> None:
    faulty = FaultStore(store)
    holder = Maintainer(faulty, 1)
    if act == "take over":
        Maintainer(store, 2, ahead_ms=-TTL_MS).acquire()
    lease = None if act in ("acquire", "take over") else holder.acquire()
    faulty.on_put(KEY, fault)
    match lease, act:
        case None, _:
            lease = holder.acquire()
        case _, "renew":
            holder.clock.now += 1000
            lease.renew()
        case _:
            lease.release()
    found = record_in(store)
    assert [each.step for each in faulty.trace if each.step] == [f"PutFault.{fault.name}"]
    assert found.fencing_token == lease.token == (2 if act == "take over" else 1)
    assert found.is_live(holder.clock.now) == (act != "release")
    if act != "release":
        lease.require_held()
        lease.renew()
    assert Maintainer(store, 3, ahead_ms=2 * TTL_MS).acquire().token == lease.token + 1


@pytest.mark.parametrize("act", ["acquire", "renew", "release"])
@pytest.mark.parametrize("others_first", [False, True])
def test_a_put_applied_after_its_client_gave_up_never_brings_an_old_lease_back(
    store: MemoryStore, act: str, *, others_first: bool
) -> None:
    faulty = FaultStore(store)
    holder = Maintainer(faulty, 1)
    lease = None if act == "acquire" else holder.acquire()
    faulty.on_put(KEY, *[PutFault.DELAYED_THEN_UNKNOWN] * 4)
    if act == "release":
        assert lease
        lease.release()
    else:
        with pytest.raises(CommitUnknown, match=r"_locks/merge\.json: the store did not say whether the lease"):
            holder.acquire() if lease is None else lease.renew()
    other = None
    if others_first:
        other = Maintainer(store, 2, ahead_ms=10 * MINUTES).acquire()
        expected = 1 if act == "acquire" else 2
        assert other.token == expected
    before = store.get(KEY) if others_first else None
    faulty.deliver()
    if other is not None:
        assert store.get(KEY) == before
        other.require_held()
    elif act == "renew":
        assert lease
        lease.renew()  # the holder accepts its own put that arrived late
        lease.require_held()
    assert record_in(store).fencing_token >= 1
    assert Maintainer(store, 3, ahead_ms=30 * MINUTES).acquire().token == (3 if other and act != "acquire" else 2)


@pytest.mark.parametrize("fault", [PutFault.APPLIED_THEN_UNKNOWN, PutFault.DELAYED_THEN_UNKNOWN, PutFault.REFUSED])
@pytest.mark.parametrize("after", [Lease.renew, Lease.release, Lease.advance])
def test_no_write_lowers_a_token_that_may_have_been_written(
    store: MemoryStore, fault: PutFault, after: Callable[[Lease], None]
) -> None:
    faulty = FaultStore(store)
    holder = Maintainer(faulty, 1)
    lease = holder.acquire()
    faulty.on_put(KEY, fault, *[PutFault.REFUSED] * 3)
    faulty.on("get", KEY, *[GetFault.REFUSED] * 4)
    with pytest.raises(CommitUnknown):
        lease.advance()
    written = 2 if fault is PutFault.APPLIED_THEN_UNKNOWN else 1
    assert (record_in(store).fencing_token, lease.token) == (written, 1)
    after(lease)
    faulty.deliver()
    assert record_in(store).fencing_token == lease.token == 2
    assert Maintainer(store, 2, ahead_ms=2 * TTL_MS).acquire().token == 3


def test_equal_leases_never_have_equal_bytes(store: MemoryStore) -> None:
    holder = Maintainer(store, 1)
    lease = holder.acquire()
    bodies = {store.get(KEY).data}
    for _ in range(3):
        lease.renew()
        bodies.add(store.get(KEY).data)
    assert len(bodies) == 4, "a clock that stands still would bring a stale ETag back (lesson 09)"


def test_a_store_that_cannot_say_whether_the_lease_is_held_stops_the_commit(store: MemoryStore) -> None:
    faulty = FaultStore(store)
    lease = Maintainer(faulty, 1).acquire()
    faulty.on("get", KEY, GetFault.REFUSED)
    with pytest.raises(Unavailable):
        lease.require_held()
    lease.require_held()


# Lost and damaged lease objects.


def test_a_token_is_higher_than_every_recorded_one_and_jumps_where_the_last_one_is_lost(store: MemoryStore) -> None:
    first = Maintainer(store, 1)
    first.commit(first.acquire(), "b")
    later = Maintainer(store, 2, ahead_ms=TTL_MS)
    lost = later.acquire()
    assert lost.token == 2
    store.delete([KEY])
    found = Maintainer(store, 3).acquire()
    assert found.token == 1 + BEYOND_LOST > lost.token
    with pytest.raises(Fenced):
        lost.require_held()


def test_of_two_holders_of_one_token_only_one_commits(store: MemoryStore) -> None:
    first, second = Maintainer(store, 1), Maintainer(store, 2)
    one = first.acquire()
    store.delete([KEY])
    other = second.acquire()
    assert one.token == other.token == 1, "nothing was recorded, so nothing can tell"
    assert second.commit(other, "b") == 2
    with pytest.raises(
        Fenced,
        match=r"merge: another process owns the resource\. The other process committed with token 1, and this process "
        r"has token 1",
    ):
        first.commit(one, "c")


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:40],
        lambda _: b"[]",
        lambda data: data.replace(b'"fencing_token":1', b'"fencing_token":-1'),
        lambda data: data.replace(b'"fencing_token":1', b'"fencing_token":true'),
        lambda data: data.replace(b'"merge"', b'"compact.all"'),
        lambda _: b"[" * 100_000,
    ],
)
def test_what_is_no_lease_is_taken_over_by_nobody_until_it_is_broken(
    store: MemoryStore, damage: Callable[[bytes], bytes]
) -> None:
    holder = Maintainer(store, 1)
    lease = holder.acquire()
    store.put(KEY, damage(store.get(KEY).data), Overwrite())
    with pytest.raises(Corrupt, match=r"_locks/merge\.json: not a lease"):
        Maintainer(store, 2, ahead_ms=TTL_MS).acquire()
    assert [each.record for each in stored_leases(store)] == [None]
    with pytest.raises(Fenced):
        lease.require_held()
    token = break_lease(Maintainer(store, 3).log, RESOURCE, "somebody")
    assert token >= BEYOND_LOST
    with pytest.raises(Fenced):
        holder.commit(lease, "z")
    assert Maintainer(store, 2).acquire().token == token + 1


def test_the_lease_of_a_newer_release_is_left_alone(store: MemoryStore) -> None:
    Maintainer(store, 1).acquire()
    store.put(KEY, store.get(KEY).data.replace(b'"format":1', b'"format":2'), Overwrite())
    before = store.get(KEY)
    for act in (Maintainer(store, 2).acquire, lambda: break_lease(Maintainer(store, 2).log, RESOURCE, "x")):
        with pytest.raises(Unsupported, match=r"lease of format 2, .* Upgrade"):
            act()
    assert store.get(KEY) == before


def test_a_lease_is_read_as_it_was_written() -> None:
    record = LeaseRecord(
        resource="catch_up.ü", holder='a"b', fencing_token=2**62, acquired_at_ms=1, expires_at_ms=0, nonce="n.1"
    )
    assert decode_lease(encode_lease(record), lock_key("catch_up.ü")) == record


def test_the_collector_keeps_leases(store: MemoryStore) -> None:
    lease = Maintainer(store, 1).acquire()
    log = log_on(store, clock=ManualClock(START_MS + 400 * 24 * 60 * MINUTES))
    store.put(split("orphan").path, b"rows", IfAbsent())
    done = collect(store, log, clock=log.clock, horizon_ms=0)
    assert (done.unknown_keys, lock_key(RESOURCE) in done.deleted) == ((), False)
    lease.require_held()


# Broken leases.


def test_a_broken_lease_is_free_and_its_holder_commits_nothing_more(store: MemoryStore) -> None:
    holder, operator = Maintainer(store, 1), Maintainer(store, 2)
    lease = holder.acquire()
    assert break_lease(operator.log, RESOURCE, "operator") == 2
    head = operator.log.snapshot()
    assert (head.version, dict(head.fences)) == (2, {RESOURCE: 2})
    with pytest.raises(Fenced):
        holder.commit(lease, "b")  # the holder checked the lease before the operator broke the lease, and not again
    with pytest.raises(Fenced):
        lease.require_held()
    assert Maintainer(store, 3).acquire().token == 3


def test_only_a_lease_that_exists_can_be_broken(store: MemoryStore) -> None:
    maintainer = Maintainer(store, 1)
    maintainer.acquire()
    with pytest.raises(NotFound, match=r"unknown lease 'mreg'. The table has merge. Did you mean 'merge'"):
        break_lease(maintainer.log, "mreg", "operator")


# Two layers.


# Each case has the clock offsets of the lease holder and of its successor. The third value is added to the clock of the
# lease holder while the holder is stalled.
CLOCKS: dict[str, tuple[int, int, int]] = {
    "in step": (0, TTL_MS, 0),
    "the other ten minutes ahead": (0, 10 * MINUTES, 0),
    "holder ten minutes behind": (-10 * MINUTES, 0, 0),
    "holder ten minutes ahead": (10 * MINUTES, 10 * MINUTES + TTL_MS, 0),
    "holder jumps back by an hour": (0, TTL_MS, -60 * MINUTES),
    "holder jumps ahead by an hour": (0, TTL_MS, 60 * MINUTES),
}


@pytest.mark.parametrize("clocks", CLOCKS.values(), ids=CLOCKS)
@pytest.mark.parametrize("renews", [False, True])
def test_whoever_was_overtaken_is_fenced_whatever_the_clocks_say(
    store: MemoryStore, clocks: tuple[int, int, int], *, renews: bool
) -> None:
    ahead_ms, other_ahead_ms, jump_ms = clocks
    stalled = Maintainer(store, 1, ahead_ms=ahead_ms)
    lease = stalled.acquire()  # from here on, the clock of `stalled` does not advance
    other = Maintainer(store, 2, ahead_ms=other_ahead_ms)
    taken = other.acquire()
    assert taken.token == 2
    stalled.clock.now += jump_ms
    if renews:
        with pytest.raises(Fenced):
            lease.renew()
    with pytest.raises(Fenced):
        lease.require_held()
    taken.require_held()
    assert other.commit(taken, "b") == 2
    with pytest.raises(
        Fenced,
        match=r"merge: another process owns the resource\. The other process committed with token 2, and this process "
        r"has token 1",
    ):
        stalled.commit(lease, "c")
    assert stalled.log.snapshot().version == 2


@pytest.mark.parametrize("instant", range(2))
def test_a_pause_at_any_request_of_the_commit_ends_fenced_when_another_commits_meanwhile(
    store: MemoryStore, instant: int
) -> None:
    faulty = FaultStore(store)
    stalled, other = Maintainer(faulty, 1), Maintainer(store, 2, ahead_ms=TTL_MS)
    lease = stalled.acquire()
    lease.require_held()
    faulty.at(len(faulty.trace) + instant, lambda: other.commit(other.acquire(), "b"))
    with pytest.raises(
        Fenced,
        match=r"merge: another process owns the resource\. The other process committed with token 2, and this process "
        r"has token 1",
    ):
        stalled.commit(lease, "c")
    assert sorted(stalled.log.snapshot().splits) == [split("b").path]


def test_a_lease_is_good_for_one_commit(store: MemoryStore) -> None:
    holder = Maintainer(store, 1)
    lease = holder.acquire()
    holder.commit(lease, "b")
    holder.planned = holder.log.snapshot()
    with pytest.raises(Fenced):
        holder.log.commit(holder.planned, [split("c"), lease.fence], operation="M", requirements=[lease.requirement])


def test_a_commit_whose_reply_was_lost_is_not_taken_for_that_of_another_holder(store: MemoryStore) -> None:
    faulty = FaultStore(store)
    holder = Maintainer(faulty, 1)
    lease = holder.acquire()
    faulty.on_put("_transaction_log/", PutFault.APPLIED_THEN_UNKNOWN)
    assert holder.commit(lease, "b") == 2
    assert dict(holder.log.snapshot().fences) == {RESOURCE: 1}


def test_tokens_survive_a_checkpoint(store: MemoryStore) -> None:
    holder = Maintainer(store, 1)
    holder.commit(holder.acquire(), "b")
    holder.log.checkpoint(holder.log.snapshot())
    store.delete([KEY])
    assert log_on(store).snapshot().checkpoint_version == 2
    assert Maintainer(store, 2).acquire().token == 1 + BEYOND_LOST
    late = Fence(resource=RESOURCE, token=0)
    with pytest.raises(Fenced):
        holder.log.commit(holder.log.snapshot(), [split("d"), late], operation="M")


# Heartbeat.


class ScriptedStopEvent:
    """A stop event for tests.

    Each call of `wait` runs the next function of `acts` and times out. After the last function, `wait` returns True.
    """

    def __init__(self, *acts: Callable[[], object]) -> None:
        self._acts = list(acts)
        self.waits: list[float] = []
        self.was_set = False

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        if not self._acts:
            return True
        self._acts.pop(0)()
        return False

    def set(self) -> None:
        self.was_set = True


def nothing() -> None:
    return None


def test_a_heartbeat_renews_at_a_third_of_the_time_until_its_block_ends(store: MemoryStore) -> None:
    holder = Maintainer(store, 1)
    lease = holder.acquire()

    def later() -> None:
        holder.clock.now += INTERVAL_MS

    stop = ScriptedStopEvent(later, later, later, later)
    with Heartbeat([lease], stop):
        pass  # the exit waits for the thread, which ends when the event is set
    assert stop.waits == [100.0] * 5
    assert stop.was_set
    assert record_in(store).expires_at_ms == START_MS + 4 * INTERVAL_MS + TTL_MS


def test_a_beat_that_fails_is_made_up_for_by_the_next_one(store: MemoryStore) -> None:
    faulty = FaultStore(store)
    lease = Maintainer(faulty, 1).acquire()
    faulty.on_put(KEY, *[PutFault.REFUSED] * 4)
    faulty.on("get", KEY, *[GetFault.REFUSED] * 4)
    before = record_in(store)
    with Heartbeat([lease], ScriptedStopEvent(nothing)):
        pass
    assert record_in(store) == before
    with Heartbeat([lease], ScriptedStopEvent(nothing)):
        pass
    assert record_in(store).nonce != before.nonce


def test_a_heartbeat_ends_with_the_last_lease_that_is_lost(store: MemoryStore) -> None:
    lease = Maintainer(store, 1).acquire()
    stop = ScriptedStopEvent(lambda: Maintainer(store, 2, ahead_ms=TTL_MS).acquire(), nothing, nothing)
    with Heartbeat([lease], stop):
        pass
    assert len(stop.waits) == 1
    with pytest.raises(Fenced):
        lease.require_held()
