"""Appends to a raw log: acknowledgements and their stores, chunks and segments, and the end of a writer."""

from __future__ import annotations

import ctypes
import datetime as dt
import logging
import threading
from collections import deque
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitUnknown, Fenced, InvalidInput, NotWritten, Unavailable
from storage_core.data.formats.keys import ChunkKey, raw_chunk_key
from storage_core.data.formats.raw_chunk import RawColumns
from storage_core.data.formats.raw_fields import decode_fields
from storage_core.store.contract import IfAbsent, ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.raw_log.history import RawStore, union
from storage_core.write.raw_log.records import MAX_RECORD_BYTES, RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import START_MS, ManualClock
from tests.support.fault_store import FaultStore, PutFault
from tests.support.ids import SeededIds

WAIT_MS = 120_000


def store(name: str = "a") -> MemoryStore:
    return MemoryStore(name)


def raw_log(*stores: ObjectStore | RawStore, clock: ManualClock | None = None, seed: int = 1, **limits: int) -> RawLog:
    return RawLog(stores, clock=clock or ManualClock(), ids=SeededIds(seed), limits=RawLimits(**limits))


def keys(of: ObjectStore) -> list[str]:
    return sorted(info.key for info in of.list(""))


def rows(*stores: ObjectStore) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the table, operation and fields of every record of the union."""
    return [
        (record["table"], record["operation"], decode_fields(record["fields"]))
        for chunk in union(stores).read()
        if isinstance(chunk, RawColumns)
        for record in chunk.records.to_pylist()
    ]


def test_what_is_appended_is_in_every_store_under_one_name_with_the_same_bytes() -> None:
    a, b = store("a"), store("b")
    log = raw_log(a, b)
    done = log.append("users", {"id": 1, "name": "Ada"})
    key = raw_chunk_key(ChunkKey(segment_ms=START_MS, writer=log.writer_id, number=1))
    assert keys(a) == keys(b) == [key]
    assert a.get(key).data == b.get(key).data
    assert done.ids == [f"{log.writer_id}:1"]
    assert rows(a) == rows(b) == rows(a, b) == [("users", "put", {"id": 1, "name": "Ada"})]


def test_records_of_many_tables_keep_their_order_types_and_operations() -> None:
    a = store()
    log = raw_log(a)
    instant = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    given = [
        RawRecord(table="t", fields={"n": 2**62, "at": instant, "price": Decimal("1.50"), "blob": b"\x00"}),
        RawRecord(table="u", fields={"id": 1}, operation="delete", key="1"),
        RawRecord(table="t", fields={"n": 1, "x": None}, operation="patch"),
        RawRecord(table="t", fields={}, operation="reset"),
    ]
    assert log.append_many(given).count == 4
    assert rows(a) == [(each.table, each.operation, dict(each.fields)) for each in given]


def test_arrow_rows_are_rows() -> None:
    a = store()
    table = pa.table({"id": [1, 2], "tags": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))})
    raw_log(a).append("t", table)
    assert [each for _, _, each in rows(a)] == [{"id": 1, "tags": [("a", 1)]}, {"id": 2, "tags": None}]


def test_the_key_of_a_record_comes_from_the_field_that_is_named() -> None:
    a = store()
    raw_log(a).append("t", [{"id": 7}, {"id": "x"}], key="id")
    (chunk,) = union([a]).read()
    assert isinstance(chunk, RawColumns)
    assert chunk.records.column("key").to_pylist() == ["7", "x"]


def test_appending_nothing_writes_nothing() -> None:
    a = store()
    assert raw_log(a).append("t", []).ids == []
    assert keys(a) == []


@pytest.mark.parametrize(
    ("table", "row", "more"),
    [
        ("No Table", {"id": 1}, {}),
        ("t", {"id": object()}, {}),
        ("t", {"id": 2**64}, {}),
        ("t", {"id": 1}, {"operation": "upsert"}),
        ("t", {"id": 1.5}, {"key": "id"}),
        ("t", {"id": True}, {"key": "id"}),
        ("t", {"id": "\ud800"}, {"key": "id"}),
        ("t", {"id": "x" * MAX_RECORD_BYTES}, {}),
        ("t", "row", {}),
    ],
)
def test_a_call_that_no_table_could_take_writes_nothing_and_leaves_the_writer_usable(
    table: str, row: Any, more: dict[str, Any]
) -> None:
    a = store()
    log = raw_log(a)
    with pytest.raises(InvalidInput):
        log.append(table, [{"id": 0}, row], **more)
    assert keys(a) == []
    log.append("t", {"id": 1})
    assert len(rows(a)) == 1


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_stores_are_given_once_and_at_least_one(names: list[str]) -> None:
    with pytest.raises(InvalidInput):
        RawLog([f"memory://twice-{each}" for each in names])


def test_a_log_without_a_mandatory_store_is_refused() -> None:
    with pytest.raises(InvalidInput, match="mandatory"):
        raw_log(RawStore(store(), mandatory=False))


@pytest.mark.parametrize("limits", [{"segment_bytes": 0}, {"segment_ms": -1}, {"chunk_bytes": 2**30}])
def test_limits_out_of_range_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        RawLimits(**limits)


# Segments and chunks.


def test_a_segment_ends_by_size_and_the_numbers_go_on() -> None:
    a = store()
    log = raw_log(a, segment_bytes=3_000)
    for number in range(6):
        log.append("t", {"id": number, "noise": SeededIds(number).uuid() * 4})
    found = union([a]).segments()
    assert [each.bytes <= 3_000 for each in found] == [True] * len(found)
    assert len(found) > 1
    assert [each.segment_ms for each in found] == [START_MS + index for index in range(len(found))]
    assert [number for each in found for number in range(each.first_number, each.last_number + 1)] == [*range(1, 7)]


def test_a_segment_ends_by_age_also_when_the_clock_stands_still_or_steps_back() -> None:
    a, clock = store(), ManualClock()
    log = raw_log(a, clock=clock, segment_ms=1_000)
    for step in (0, 999, 1, -5_000, 0, 10_000):
        clock.now += step
        log.append("t", {"id": 1})
    starts = [each.segment_ms - START_MS for each in union([a]).segments()]
    assert starts == [0, 1_000, 6_000]


def test_more_than_a_chunk_holds_becomes_several_in_order() -> None:
    a = store()
    log = raw_log(a, chunk_bytes=1_000)
    done = log.append("t", [{"id": number, "text": "x" * 200} for number in range(20)])
    assert done.ids == [f"{log.writer_id}:{number}" for number in range(1, 21)]
    assert len(keys(a)) > 4
    assert [fields["id"] for _, _, fields in rows(a)] == [*range(20)]


def test_concurrent_appends_share_a_chunk() -> None:
    inner, gate, entered = store(), threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert gate.wait(WAIT_MS / 1000)

    held = FaultStore(inner)
    held.on_put("live/", hold)
    log = raw_log(held)
    threads = [threading.Thread(target=log.append, args=("t", {"id": 0}))]
    threads[0].start()
    assert entered.wait(WAIT_MS / 1000)
    threads += [threading.Thread(target=log.append, args=("t", {"id": number})) for number in range(1, 9)]
    for each in threads[1:]:
        each.start()
    while len(log._writer._queue) < 8:
        gate.wait(0.01)
    gate.set()
    for each in threads:
        each.join()
    assert len(keys(inner)) == 2
    assert sorted(fields["id"] for _, _, fields in rows(inner)) == [*range(9)]


def test_threads_that_append_at_once_each_find_their_records_in_their_order() -> None:
    stores = [store("a"), store("b")]
    log = raw_log(*stores, chunk_bytes=600, segment_bytes=5_000)

    def append(thread: int) -> None:
        for number in range(20):
            done = log.append("t", [{"thread": thread, "number": 2 * number + each} for each in range(2)])
            assert done.count == 2

    threads = [threading.Thread(target=append, args=(thread,)) for thread in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = [fields for _, _, fields in rows(stores[1])]
    for thread in range(8):
        assert [each["number"] for each in found if each["thread"] == thread] == [*range(40)]
    assert union(stores).verify().gaps == ()


def test_two_writers_never_have_the_same_id_or_key() -> None:
    a = store()
    logs = [RawLog([a]) for _ in range(2)]
    for log in logs:
        log.append("t", {"id": 1})
    assert logs[0].writer_id != logs[1].writer_id
    assert len(rows(a)) == 2


# Mandatory stores.


@pytest.mark.parametrize(
    "fault",
    [
        PutFault.APPLIED_THEN_CONFLICT,
        PutFault.APPLIED_THEN_UNKNOWN,
        PutFault.APPLIED_THEN_UNAVAILABLE,
        PutFault.REFUSED,
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_lost_reply_of_a_mandatory_store_is_settled_and_the_record_is_there_once(fault: PutFault, at: int) -> None:
    inner = [store("a"), store("b")]
    stores = [FaultStore(each) for each in inner]
    log = raw_log(*stores)
    stores[at].on_put("live/", fault)
    log.append("t", {"id": 1})
    log.append("t", {"id": 2})
    for each in inner:
        assert [fields["id"] for _, _, fields in rows(each)] == [1, 2]


@pytest.mark.parametrize("at", [0, 1])
def test_after_an_unknown_outcome_the_writer_is_done_and_another_goes_on(at: int) -> None:
    inner = [store("a"), store("b")]
    stores = [FaultStore(each) for each in inner]
    log = raw_log(*stores)
    log.append("t", {"id": 1})
    stores[at].on_put("live/", *[PutFault.DROPPED_THEN_UNKNOWN] * 4)
    with pytest.raises(CommitUnknown, match="Open another RawLog"):
        log.append("t", {"id": 2})
    with pytest.raises(Unavailable, match="None of these records was written"):
        log.append("t", {"id": 3})
    raw_log(*stores, seed=2).append("t", {"id": 4})
    # One of the two stores has a chunk although the caller got `CommitUnknown` for this chunk. Readers treat a chunk
    # with an unknown outcome as written.
    assert sorted(fields["id"] for _, _, fields in rows(*inner)) == [1, 2, 4]
    assert not union(inner).verify().gaps


def test_a_chunk_that_arrives_late_is_read_as_written() -> None:
    inner = store()
    faulty = FaultStore(inner)
    log = raw_log(faulty)
    faulty.on_put("live/", *[PutFault.DELAYED_THEN_UNKNOWN] * 4)
    with pytest.raises(CommitUnknown):
        log.append("t", {"id": 1})
    assert rows(inner) == []
    faulty.deliver()
    assert [fields["id"] for _, _, fields in rows(inner)] == [1]


def test_a_writer_id_that_is_used_twice_stops_the_second_writer() -> None:
    a = store()
    raw_log(a).append("t", {"id": 1})
    twin = raw_log(a)
    with pytest.raises(Fenced, match="a chunk of another writer with the same id"):
        twin.append("t", {"id": 2})
    assert [fields["id"] for _, _, fields in rows(a)] == [1]


def test_a_store_that_refuses_the_name_leaves_the_outcome_open_for_the_caller() -> None:
    a, b = store("a"), FaultStore(store("b"))
    log = raw_log(a, b)
    b.on_put("live/", InvalidInput("no such name"))
    with pytest.raises(CommitUnknown, match="no such name"):
        log.append("t", {"id": 1})


def test_whoever_waits_when_the_writer_ends_learns_whether_its_records_were_sent() -> None:
    gate, entered = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert gate.wait(WAIT_MS / 1000)

    faulty = FaultStore(store())
    faulty.on_put("live/", hold, *[PutFault.DROPPED_THEN_UNKNOWN] * 3)
    faulty.on("get", "live/", Unavailable("gone"))
    faulty.on_put("live/", *[PutFault.DROPPED_THEN_UNKNOWN] * 4)
    log = raw_log(faulty, chunk_bytes=1)
    found: list[BaseException | None] = [None] * 3

    def append(index: int) -> None:
        try:
            log.append("t", {"id": index})
        except (CommitUnknown, Unavailable) as error:
            found[index] = error

    threads = [threading.Thread(target=append, args=(index,)) for index in range(3)]
    threads[0].start()
    assert entered.wait(WAIT_MS / 1000)
    for index in (1, 2):
        threads[index].start()
        while len(log._writer._queue) < index:
            gate.wait(0.01)
    gate.set()
    for each in threads:
        each.join()
    assert found[0] is None  # the put of the first call had succeeded
    assert {type(each) for each in found[1:]} == {CommitUnknown, Unavailable}


def test_an_interrupted_call_that_waits_is_taken_back_and_holds_nobody_up() -> None:
    inner, gate, entered = store(), threading.Event(), threading.Event()
    held = FaultStore(inner)

    def hold() -> None:
        entered.set()
        assert gate.wait(WAIT_MS / 1000)

    held.on_put("live/", hold)
    log = raw_log(held)
    ended: list[str] = []

    def append() -> None:
        try:
            log.append("t", {"id": 2})
        except KeyboardInterrupt:
            ended.append("interrupted")

    first, second = threading.Thread(target=log.append, args=("t", {"id": 1})), threading.Thread(target=append)
    first.start()
    assert entered.wait(WAIT_MS / 1000)
    second.start()
    while not log._writer._queue:
        gate.wait(0.01)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(second.ident or 0), ctypes.py_object(KeyboardInterrupt))
    gate.set()
    first.join()
    second.join()
    log.close()
    assert ended == ["interrupted"]
    assert [fields["id"] for _, _, fields in rows(inner)] == [1]


def test_a_call_that_is_interrupted_as_it_has_queued_its_records_is_taken_back() -> None:
    class Interrupted(deque[Any]):
        def extend(self, more: Iterable[Any]) -> None:
            super().extend(more)
            raise KeyboardInterrupt

    a = store()
    with raw_log(a) as log:
        log._writer._queue = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            log.append("t", {"id": 1})
        log._writer._queue = deque(log._writer._queue)
        log.append("t", {"id": 2})
    assert [fields["id"] for _, _, fields in rows(a)] == [2]


def test_a_closed_writer_takes_nothing() -> None:
    a = store()
    with raw_log(a) as log:
        log.append("t", {"id": 1})
    with pytest.raises(InvalidInput, match="closed"):
        log.append("t", {"id": 2})
    log.close()
    assert len(rows(a)) == 1


# Optional stores.


def test_an_optional_store_gets_everything_too() -> None:
    a, b = store("a"), store("b")
    with raw_log(a, RawStore(b, mandatory=False)) as log:
        for number in range(5):
            log.append("t", {"id": number})
        assert log.drain(WAIT_MS)
        assert [(each.uri, each.mandatory, each.acknowledged, each.failed) for each in log.report()] == [
            ("memory://a", True, 5, 0),
            ("memory://b", False, 5, 0),
        ]
    assert rows(a) == rows(b)


def test_an_optional_store_may_fail_and_is_reported_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    a, b = store("a"), FaultStore(store("b"))
    b.on_put("live/", *[PutFault.REFUSED] * 12)
    log = raw_log(a, RawStore(b, mandatory=False))
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            log.append("t", {"id": number})
            assert log.drain(WAIT_MS)
    optional = log.report()[1]
    assert (optional.acknowledged, optional.failed, optional.pending, optional.last_error) == (1, 3, 0, None)
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert [fields["id"] for _, _, fields in rows(a, b)] == [0, 1, 2, 3]


def test_a_slow_optional_store_holds_nobody_up_and_its_backlog_is_bounded() -> None:
    a, inner, gate = store("a"), store("b"), threading.Event()
    slow = FaultStore(inner)
    slow.on_put("live/", lambda: gate.wait(WAIT_MS / 1000))
    log = raw_log(a, RawStore(slow, mandatory=False), backlog_bytes=3_000)
    for number in range(10):
        log.append("t", {"id": number})
    optional = log.report()[1]
    assert optional.acknowledged == 0
    assert 1 <= optional.pending <= 4
    assert optional.pending + optional.failed == 10
    gate.set()
    assert log.drain(WAIT_MS)
    assert log.report()[1].acknowledged == optional.pending
    assert [fields["id"] for _, _, fields in rows(inner, a)] == [*range(10)]


def test_closing_waits_for_an_optional_store_only_so_long() -> None:
    a, slow, gate = store("a"), FaultStore(store("b")), threading.Event()
    slow.on_put("live/", lambda: gate.wait(WAIT_MS / 1000))
    log = raw_log(a, RawStore(slow, mandatory=False), close_wait_ms=50)
    log.append("t", {"id": 1})
    log.close()
    assert log.report()[1].pending == 1
    gate.set()


# Requests and readers.


def test_an_append_is_one_put_per_store_and_reading_a_list_per_store_and_a_get_per_chunk() -> None:
    stores = [MeteredStore(store("a")), MeteredStore(store("b"))]
    log = raw_log(*stores)
    for number in range(3):
        log.append("t", [{"id": number}] * 100)
    nothing = {"get": 0, "put": 0, "list": 0, "head": 0, "delete": 0}
    assert [each.meter.requests for each in stores] == [{**nothing, "put": 3}] * 2
    assert union(stores).verify().records == 300
    assert stores[0].meter.requests == {**nothing, "put": 3, "list": 1, "get": 3}
    assert stores[1].meter.requests == {**nothing, "put": 3, "list": 1}


def test_what_is_no_chunk_by_its_name_is_left_alone() -> None:
    a = store()
    raw_log(a).append("t", {"id": 1})
    a.put("live/.DS_Store", b"", IfAbsent())
    a.put("notes.txt", b"", IfAbsent())
    assert len(rows(a)) == 1


FULL = NotWritten("k: nothing was written: No space left on device")


def test_records_that_every_store_refuses_are_not_written_and_the_writer_goes_on() -> None:
    full = [FaultStore(store(name)) for name in "ab"]
    log = raw_log(*full)
    for each in full:
        each.on("put", "", FULL)
    with pytest.raises(NotWritten, match="No space left"):
        log.append("t", [{"n": 1}])
    log.append("t", [{"n": 2}])
    assert [row["n"] for _, _, row in rows(*full)] == [2]


def test_records_that_one_store_refuses_and_another_may_have_are_unknown() -> None:
    one, other = FaultStore(store("a")), store("b")
    one.on("put", "", FULL)
    log = raw_log(one, other)
    with pytest.raises(CommitUnknown, match="Another store may have the chunk"):
        log.append("t", [{"n": 1}])
    with pytest.raises(Unavailable, match="None of these records was written"):
        log.append("t", [{"n": 2}])


def test_a_call_of_several_chunks_that_is_refused_in_the_middle_is_not_said_to_be_unwritten() -> None:
    full = FaultStore(store())
    log = raw_log(full, chunk_bytes=1024)
    full.on("put", "", list, FULL)
    with pytest.raises(CommitUnknown, match="records are stored"):
        log.append("t", [{"n": each, "text": "x" * 1000} for each in range(3)])
    assert [row["n"] for _, _, row in rows(full)] == [0]
