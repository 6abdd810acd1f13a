"""Group commit: calls of many threads share one WAL entry.

The tests also cover rows that no call must wait for to be durable, and size limits with and without a waiting call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest

from storage_core.base.errors import CommitUnknown, InvalidInput, Overloaded, TidemarkError, Unavailable, WriterFenced
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region import wal
from storage_core.write.region.manifest import region_of
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.spec import list_regions
from storage_core.write.region.writer import RegionWriter
from tests.support.fault_store import Crash, FaultStore, PutFault
from tests.support.keyed_table import KeyedTable

WAL = "/wal/"
LATER = WriterOptions(durable=False, linger_ms=3_600_000)
"""No entry is written before a call requests the write."""


class Gate:
    """Blocks the puts of WAL entries. The test releases the blocked puts one by one or all together."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()

    def __call__(self, kind: str, key: str) -> None:
        if kind == "put" and WAL in key:
            self.arrived.release()
            self._open.wait()

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()


class Callers:
    """Starts calls in separate threads. A call begins only when the previous call is already waiting."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.pool = ThreadPoolExecutor(max_workers=20)

    def start(self, call: Callable[[], object]) -> Future[object]:
        """Start a call, and return when the put of this call is blocked."""
        future = self.pool.submit(call)
        self.gate.arrived.acquire()
        return future

    def join(self, call: Callable[[], object], writer: RegionWriter) -> Future[object]:
        """Start a call, and return when the call waits for the blocked put of an earlier call."""
        before = waiting(writer)
        future = self.pool.submit(call)
        until(lambda: waiting(writer) > before)
        return future


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def callers(gate: Gate) -> Iterator[Callers]:
    with ThreadPoolExecutor(max_workers=20) as pool:
        made = Callers(gate)
        made.pool = pool
        yield made


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    yield
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "tidemark-writer"])


def test_calls_that_come_while_a_put_is_on_its_way_go_together_in_the_next_one(gate: Gate, callers: Callers) -> None:
    table, _ = gated(gate)
    with table.writer() as writer:
        gate.arrived.acquire()  # the sentinel
        with gate.closed():
            calls = [callers.start(lambda: writer.put(plane("first")))]
            calls += [callers.join(partial(writer.put, plane(f"N{number}")), writer) for number in range(5)]
        for call in calls:
            call.result()
        assert entries(table) == [["first"], [f"N{number}" for number in range(5)]]


def test_sixteen_threads_share_their_puts() -> None:
    at_work: set[int] = set()

    def until_all_have_come(kind: str, _key: str) -> None:
        """Delay a put until the calls of all threads wait for the writer, even on a busy machine."""
        if kind == "put" and at_work:
            until(lambda: waiting(writer) >= len(at_work))

    store = MeteredStore(FaultStore(MemoryStore("planes"), watch=until_all_have_come))
    table = KeyedTable(store).create()
    with table.writer() as writer:
        before = store.meter.requests["put"]
        at_work.update(range(16))

        def append(thread: int) -> None:
            for number in range(50):
                writer.put(plane(f"T{thread}", seats=number))
            at_work.discard(thread)

        with ThreadPoolExecutor(max_workers=16) as pool:
            list(pool.map(append, range(16)))
        puts = store.meter.requests["put"] - before
        records = writer.unflushed()
    assert puts < 200, "800 calls of 16 threads: about two puts for 16 calls"
    for thread in range(16):
        of_thread = [row["seats"] for row in records.to_pylist() if row["tailnum"] == f"T{thread}"]
        assert of_thread == list(range(50)), "a thread's calls stay in their order"


def test_a_call_whose_rows_do_not_fit_fails_alone(gate: Gate, callers: Callers) -> None:
    table, _ = gated(gate)
    with table.writer() as writer:
        gate.arrived.acquire()
        with gate.closed():
            first = callers.start(lambda: writer.put(plane("a")))
            good = callers.join(lambda: writer.put(plane("b")), writer)
            with pytest.raises(InvalidInput, match="'seats'"):
                writer.put({"tailnum": "c", "seats": "many"})
        first.result(), good.result()
    assert set(table.rows()) == {"a", "b"}


def test_every_call_of_an_entry_learns_that_the_writer_is_fenced(gate: Gate, callers: Callers) -> None:
    table, _ = gated(gate)
    writer = table.writer()
    gate.arrived.acquire()
    with gate.closed():
        calls = [callers.start(lambda: writer.put(plane("a")))]
        calls += [callers.join(partial(writer.put, plane(name)), writer) for name in "bc"]
        KeyedTable(table.store._store).writer()  # type: ignore[attr-defined]  # claims past the gate
    for call in calls:
        with pytest.raises(WriterFenced, match="Another writer claimed"):
            call.result()
    assert table.rows() == {}


def test_every_call_of_an_entry_learns_that_its_outcome_is_unknown(gate: Gate, callers: Callers) -> None:
    table, store = gated(gate)
    writer = table.writer()
    gate.arrived.acquire()
    with gate.closed():
        calls = [callers.start(lambda: writer.put(plane("a")))]
        calls += [callers.join(partial(writer.put, plane(name)), writer) for name in "bc"]
        # The store applies a fault to the blocked put only after the put is released, so the test can still set the
        # fault here.
        store.on_put(WAL, *[PutFault.DELAYED_THEN_UNKNOWN] * 4)
    for call in calls:
        with pytest.raises(CommitUnknown):
            call.result()
    with pytest.raises(CommitUnknown, match="Open a new writer"):
        writer.put(plane("d"))
    store.deliver()
    assert set(table.rows()) == {"a"}, "the others were never sent"


def test_a_process_that_ends_while_it_writes_for_others_leaves_nobody_waiting(gate: Gate, callers: Callers) -> None:
    table, store = gated(gate)
    writer = table.writer()
    gate.arrived.acquire()
    with gate.closed():
        leader = callers.start(lambda: writer.put(plane("a")))
        follower = callers.join(lambda: writer.put(plane("b")), writer)
        store.on_put(WAL, crash)
    with pytest.raises(Crash):
        leader.result()
    with pytest.raises(CommitUnknown):
        follower.result()


def test_rows_that_are_not_durable_are_seen_by_their_writer_only(gate: Gate) -> None:
    table, store = gated(gate)
    with table.writer(LATER) as writer:
        writer.put([plane("a"), plane("b")])
        writer.patch({"tailnum": "a", "model": "X"})
        writer.delete("b")
        assert wal_puts(store) == 1, "the sentinel"
        assert table.rows() == {}
        assert writer.unflushed().num_rows == 0
        assert seen(writer) == {"a": (0, 1, "X"), "b": (2, None, None)}
        assert writer.get("a").to_pylist()[0]["model"] == "X"
        assert writer.get("nobody").num_rows == 0
        writer.sync()
        assert wal_puts(store) == 2
        assert set(table.rows()) == {"a"}
        writer.put(plane("a", seats=9))
        assert writer.get(["a", "b"]).column("seats").to_pylist() == [9, None]
    assert table.rows()["a"]["seats"] == 9, "closing writes what was given"


def test_a_durable_call_comes_behind_those_before_it(gate: Gate) -> None:
    table, store = gated(gate)
    with table.writer(LATER) as writer:
        writer.put(plane("a", seats=1))
        writer.put(plane("a", seats=2), durable=True)
        assert wal_puts(store) == 2
        assert table.rows()["a"]["seats"] == 2
        writer.put(plane("a", seats=3))
        assert writer.flush() == 1
        assert table.rows()["a"]["seats"] == 3
        assert seen(writer) == {}


def test_rows_are_written_when_there_are_enough_of_them(gate: Gate) -> None:
    table, _ = gated(gate)
    with table.writer(WriterOptions(durable=False, linger_ms=3_600_000, entry_bytes=2_000)) as writer:
        for number in range(100):
            writer.put(plane(f"N{number}"))
        until(lambda: len(table.rows()) > 60)
    assert len(table.rows()) == 100
    assert 1 < len(entries(table)) < 50


def test_rows_are_written_when_the_oldest_has_waited_long_enough_by_the_clock() -> None:
    written_at: list[int] = []

    def note(kind: str, key: str) -> None:
        if kind == "put" and WAL in key:
            written_at.append(table.clock.now)

    table = KeyedTable(FaultStore(MemoryStore("planes"), watch=note)).create()
    with table.writer(WriterOptions(durable=False, linger_ms=20)) as writer:
        given = table.clock.now  # every reading advances the clock by a millisecond
        writer.put(plane("a"))
        until(lambda: set(table.rows()) == {"a"})
    assert written_at[1] > given + 20


def test_an_old_memtable_is_flushed_without_a_call(gate: Gate) -> None:
    table, _ = gated(gate)
    with table.writer(WriterOptions(flush_age_ms=50)) as writer:
        writer.put(plane("a"))
        table.clock.now += 50
        until(lambda: [each.current_generation for each in list_regions(table.store, table.snapshot)] == [2])
        until(lambda: writer.unflushed().num_rows == 0)  # the manifest exists before the memtable is replaced
        writer.put(plane("b"))
    with table.writer(WriterOptions(flush_age_ms=50)) as reopened:
        table.clock.now += 50
        until(lambda: reopened.unflushed().num_rows == 0)
    assert set(table.rows()) == {"a", "b"}


@pytest.mark.parametrize("call", ["put", "sync", "flush"])
def test_a_put_that_fails_behind_the_callers_back_is_told_with_what_is_lost(gate: Gate, call: str) -> None:
    table, _ = gated(gate)
    writer = table.writer(WriterOptions(durable=False, linger_ms=20))
    table.clock.__init__()  # type: ignore[misc]  # stands still: nothing is due before the last of these rows is given
    with table.writer():
        writer.put(plane("durable or not"), durable=False)
        writer.put([plane("x"), plane("y")])
        table.clock.now += 20
        until(lambda: failing(writer.sync) is not None)
        error = failing({"put": lambda: writer.put(plane("z")), "sync": writer.sync, "flush": writer.flush}[call])
        assert isinstance(error, WriterFenced)
        assert (error.context["lost_rows"], error.context["lost_calls"]) == (3, (1, 2))
        assert "3 rows given with durable=False: not written (2 calls from 1 to 2 of this writer)" in str(error)
    with pytest.raises(WriterFenced, match="3 rows"):
        writer.close()
    writer.close()


def test_an_unknown_outcome_says_that_the_rows_may_be_there(gate: Gate) -> None:
    table, store = gated(gate)
    writer = table.writer(LATER)
    store.on_put(WAL, *[PutFault.DELAYED_THEN_UNKNOWN] * 4)
    writer.put(plane("a"))
    with pytest.raises(CommitUnknown, match="1 row given with durable=False: perhaps not written"):
        writer.sync()
    with pytest.raises(CommitUnknown, match="perhaps not written"):
        writer.close()
    store.deliver()
    assert set(table.rows()) == {"a"}


def test_an_error_of_the_block_is_not_hidden_by_what_closing_finds(gate: Gate) -> None:
    table, _ = gated(gate)

    def fenced_then_wrong() -> None:
        with table.writer(LATER) as writer:
            writer.put(plane("a"))
            table.writer().close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fenced_then_wrong()
    assert ["1 row given with durable=False: not written" in note for note in caught.value.__notes__] == [True]


def test_rows_wait_for_another_try_when_the_flush_before_them_fails(gate: Gate) -> None:
    table, store = gated(gate)
    with table.writer(WriterOptions(durable=False, linger_ms=3_600_000, flush_rows=1)) as writer:
        writer.put(plane("a"), durable=True)
        store.on_put("_gen_", *[PutFault.REFUSED] * 4)
        writer.put(plane("b"))
        with pytest.raises((Unavailable, CommitUnknown)):
            writer.sync()
        assert set(seen(writer)) == {"a", "b"}
        store.clear_script()
        writer.sync()
    assert set(table.rows()) == {"a", "b"}


def test_calls_wait_above_the_first_bound_until_there_is_room(gate: Gate, callers: Callers) -> None:
    table, _ = gated(gate)
    with table.writer(WriterOptions(wait_rows=2, refuse_rows=10)) as writer:
        gate.arrived.acquire()
        with gate.closed():
            calls = [callers.start(lambda: writer.put(plane("a")))]
            calls += [callers.join(lambda: writer.put(plane("b")), writer)]
            calls += [callers.pool.submit(lambda: writer.put([plane("c"), plane("d")]))]
            until(lambda: len(writer._group._backlog.asking) == 1)
            assert waiting(writer) == 2
        for call in calls:
            call.result()
    assert set(table.rows()) == {"a", "b", "c", "d"}


def test_rows_that_nobody_waits_for_make_room_for_a_call_that_waits(gate: Gate) -> None:
    table, _ = gated(gate)
    with table.writer(WriterOptions(durable=False, linger_ms=3_600_000, wait_rows=2, refuse_rows=10)) as writer:
        for number in range(7):
            writer.put(plane(f"N{number}"))
        assert waiting(writer) <= 2
    assert len(table.rows()) == 7


@pytest.mark.parametrize("bound", ["rows", "bytes"])
def test_a_call_above_the_second_bound_is_refused_and_nothing_of_it_is_written(
    gate: Gate, callers: Callers, bound: str
) -> None:
    table, _ = gated(gate)
    size = WriterOptions(wait_rows=3, refuse_rows=3) if bound == "rows" else WriterOptions(wait_bytes=9, refuse_bytes=9)
    with table.writer(size) as writer:
        gate.arrived.acquire()
        with gate.closed():
            first = callers.start(lambda: writer.put([plane("a"), plane("b"), plane("c")]))
            with pytest.raises(Overloaded, match=rf"row.* of this call were not written.*refuse_{bound}=") as caught:
                writer.put(plane("d"))
        first.result()
        assert caught.value.context["bound"] == "refuse"
        writer.put([plane(name) for name in "efghij"])
    assert set(table.rows()) == set("abcefghij")


def test_a_call_that_waited_too_long_is_refused_and_the_next_one_is_not(gate: Gate, callers: Callers) -> None:
    table, _ = gated(gate)
    with table.writer(WriterOptions(wait_rows=1, wait_ms=30)) as writer:
        gate.arrived.acquire()
        with gate.closed():
            first = callers.start(lambda: writer.put(plane("a")))
            late = callers.pool.submit(lambda: writer.put(plane("b")))
            until(lambda: len(writer._group._backlog.asking) == 1)
            table.clock.now += 1_000
            with pytest.raises(Overloaded, match=r"wait_rows=1.*wait_ms=30"):
                late.result()
        first.result()
        writer.put(plane("c"))
    assert set(table.rows()) == {"a", "c"}


def test_a_closed_writer_takes_nothing_and_closes_twice(gate: Gate) -> None:
    table, _ = gated(gate)
    writer = table.writer(LATER)
    writer.put(plane("a"))
    writer.close()
    writer.close()
    for call in (lambda: writer.put(plane("b")), writer.sync, writer.flush):
        with pytest.raises(InvalidInput, match="closed"):
            call()
    assert set(table.rows()) == {"a"}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"linger_ms": -1}, "linger_ms is -1"),
        ({"wait_rows": 5, "refuse_rows": 4}, "refuse_bytes is less than wait_rows"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(metrics: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        WriterOptions(**metrics)  # type: ignore[arg-type]


def plane(name: str, *, seats: int = 1) -> dict[str, object]:
    return {"tailnum": name, "seats": seats}


def gated(gate: Gate) -> tuple[KeyedTable, FaultStore]:
    store = FaultStore(MemoryStore("planes"), watch=gate)
    return KeyedTable(store).create(), store


def crash() -> None:
    raise Crash


def entries(table: KeyedTable) -> list[list[object]]:
    store: ObjectStore = table.store
    found = wal.read_tail(store, region_of(table.snapshot.table_id), after=0)
    return [each.entry.records.column("tailnum").to_pylist() for each in found]


def wal_puts(store: FaultStore) -> int:
    return sum(each.request.kind == "put" and WAL in each.request.key for each in store.trace)


def waiting(writer: RegionWriter) -> int:
    """Return the number of rows that are not durable yet."""
    return writer._group.read_unflushed(lambda tables: sum(int(each.num_rows) for each in tables))


def seen(writer: RegionWriter) -> dict[object, tuple[object, ...]]:
    return {row["tailnum"]: (row["_op"], row["seats"], row["model"]) for row in writer.scan().to_pylist()}


def failing(call: Callable[[], object]) -> TidemarkError | None:
    try:
        call()
    except TidemarkError as error:
        return error
    return None


def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds. The time limit of the test ends an endless wait."""
    while not condition():
        time.sleep(0.002)
