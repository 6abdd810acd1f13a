"""A table accepts a record with a producer's id once, even if several writers append the record repeatedly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitUnknown, Corrupt, InvalidInput, Unavailable
from storage_core.data.formats import keys, raw_chunk
from storage_core.data.formats.keys import IDS_PREFIX, ChunkKey, IdsKey, raw_ids_key
from storage_core.data.formats.raw_chunk import (
    FEW,
    ID_COLUMNS,
    LogRecord,
    RawChunk,
    RecordIds,
    decode_chunk,
    decode_columns,
    encode_chunk,
)
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.history import RawStore, union
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region.manifest import read_latest, region_of
from tests.support.clock import START_MS, ManualClock
from tests.support.distribution import Board, TasksMeanwhile
from tests.support.fault_store import Crash, CrashFault, FaultStore, GetFault, ListFault, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.raw_collection import DAY_MS, collect, produce, raw_board

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
WRITER = "3b9f1c1e-0d6a-4f6e-9a53-0f4f6c1d2e3a"
CHUNK = RawChunk(
    key=ChunkKey(segment_ms=1_700_000_000_000, writer=WRITER, number=7),
    first=41,
    records=(
        LogRecord(timestamp_ms=1, table="users", operation="put", fields='{"id":1}', unique_id="Ä-1"),
        LogRecord(timestamp_ms=2, table="clicks", operation="delete", fields='{"id":2}', key="k"),
    ),
)


def given(*, stores: int = 1) -> Board:
    return Board([MemoryStore(f"raw-{n}") for n in range(stores)], {"events": MemoryStore("events")}).create()


def write(places: list[ObjectStore], *numbers: int, seed: int, at: int = START_MS, table: str = "events") -> None:
    """Append one chunk for each number. The chunk has one record, and the record's id is the number."""
    clock = ManualClock(at)
    with RawLog(places, clock=clock, ids=SeededIds(seed), limits=RawLimits(segment_ms=1)) as log:
        for n in numbers:
            log.append_many([RawRecord(table=table, fields={"n": n}, id=str(n))])
            clock.now += 1


def test_one_id_is_one_row_within_a_chunk_a_writer_and_a_round_and_in_later_rounds() -> None:
    board = given()
    with RawLog(board.stores, clock=ManualClock(), ids=SeededIds(1)) as log:
        log.append("events", [{"n": 1}, {"n": 2}, {"n": 1}], unique_by="n")
        log.append("events", pa.table({"n": [2, 3]}), unique_by="n")
        log.append("events", [{"n": 1}, {"n": 1}])
    done = board.distribute(Terms(work_bytes=1))
    assert board.numbers("events") == [1, 1, 1, 2, 3], "records without an id are all different"
    assert done.duplicates == {"events": 2}
    produce(board, 9, seed=2, ids=True)
    write(list(board.stores), 3, 4, 1, seed=3)
    assert board.distribute().duplicates == {"events": 2}
    assert board.numbers("events") == [1, 1, 1, 2, 3, 4, 9]


@pytest.mark.parametrize("works", [Terms(work_bytes=1), Terms(), Terms(round_bytes=1)])
def test_two_writers_in_two_stores_make_one_row_of_an_id(works: Terms) -> None:
    board = given(stores=2)
    write([board.stores[0]], 1, 2, 3, seed=1)
    write([board.stores[1]], 3, 2, 4, seed=2)
    board.distribute(works)
    assert board.numbers("events") == [1, 2, 3, 4]


def test_a_retry_after_an_unknown_outcome_doubles_nothing_whatever_became_of_the_first() -> None:
    for fault in (PutFault.APPLIED_THEN_UNKNOWN, PutFault.DROPPED_THEN_UNKNOWN):
        board = given(stores=2)
        losing = FaultStore(board.stores[1])
        losing.on_put("live/", *[fault] * 8)
        losing.on("get", "live/", *[GetFault.REFUSED] * 8)
        with pytest.raises(CommitUnknown):
            write([board.stores[0], losing], 1, seed=1)
        write(list(board.stores), 1, seed=2)
        board.distribute()
        assert board.numbers("events") == [1]


def test_the_same_id_in_two_tables_is_two_records_and_a_table_that_lags_gets_its_own() -> None:
    board = given()
    write(list(board.stores), 1, seed=1)
    board.distribute()
    board.tables = {**board.tables, "later": MemoryStore("later")}
    Board(board.stores, {"later": board.tables["later"]}).create()
    write(list(board.stores), 1, 2, seed=2)
    write(list(board.stores), 1, 1, 2, seed=3, table="later")
    board.distribute()
    assert (board.numbers("events"), board.numbers("later")) == ([1, 2], [1, 2])


def test_ids_are_known_after_their_chunks_were_collected_for_as_long_as_the_raw_log_says() -> None:
    board = raw_board("raw")
    write(list(board.stores), 1, seed=1)
    board.distribute()
    collect(board, now_ms=START_MS + DAY_MS // 2, retention_ms=0)
    assert union(list(board.stores)).chunks == []
    write(list(board.stores), 1, 2, seed=2, at=START_MS + DAY_MS - 2)
    board.clock.now += DAY_MS
    board.distribute()
    assert board.numbers("events") == [1, 2]
    write(list(board.stores), 1, seed=3, at=START_MS + 3 * DAY_MS)
    board.clock.now += 3 * DAY_MS
    board.distribute()
    assert board.numbers("events") == [1, 1, 2], "longer ago than a day"


def test_the_notes_of_ids_go_when_no_record_can_be_compared_with_them_any_more() -> None:
    board = raw_board("raw")
    write(list(board.stores), 1, seed=1)
    board.distribute()
    write(list(board.stores), 2, seed=2, at=START_MS + DAY_MS)
    assert [info.key for info in board.stores[0].list(IDS_PREFIX)] != []
    collect(board, now_ms=START_MS + 9 * DAY_MS)
    assert [info.key for info in board.stores[0].list(IDS_PREFIX)] != [], "a chunk waits that may have such an id"
    board.clock.now = START_MS + 9 * DAY_MS
    board.distribute()
    collect(board, now_ms=START_MS + 9 * DAY_MS)
    assert [info.key for info in board.stores[0].list(IDS_PREFIX)] == []


def test_ids_are_noted_in_every_mandatory_store_before_an_offset_passes_them() -> None:
    board = given(stores=2)
    write(list(board.stores), 1, seed=1)
    silent = FaultStore(board.stores[1])
    silent.on_put(IDS_PREFIX, PutFault.REFUSED)
    with pytest.raises((Unavailable, CommitUnknown)):
        Board([board.stores[0], silent], board.tables, seed=7).distribute()
    assert board.numbers("events") == []
    board.distribute()
    assert [len([*store.list(IDS_PREFIX)]) for store in board.stores] == [1, 1]
    write([board.stores[0]], 1, seed=2)
    away = FaultStore(board.stores[0])
    away.on("list", IDS_PREFIX, ListFault.REFUSED)
    Board([away, board.stores[1]], board.tables, seed=8).distribute()
    assert board.numbers("events") == [1]


def test_what_was_noted_and_is_damaged_is_read_from_another_store_and_nothing_is_guessed() -> None:
    board = given(stores=2)
    write(list(board.stores), 1, seed=1)
    board.distribute()
    (key,) = [info.key for info in board.stores[0].list(IDS_PREFIX)]
    board.stores[0].put(key, b"torn", Overwrite())
    write(list(board.stores), 1, seed=2)
    board.distribute()
    assert board.numbers("events") == [1]
    board.stores[1].put(key, b"torn", Overwrite())
    write(list(board.stores), 1, seed=3)
    with pytest.raises(Unavailable, match="no store has a complete copy"):
        board.distribute()
    assert board.numbers("events") == [1]


def test_a_gap_holds_an_id_until_its_record_comes_and_then_it_is_the_duplicate() -> None:
    board = given()
    write(list(board.stores), 1, 2, 3, seed=1)
    first, second, _ = union(list(board.stores)).chunks
    data = board.stores[0].get(second.keys[0]).data
    board.stores[0].delete([second.keys[0]])
    write(list(board.stores), 3, 2, seed=2, at=START_MS + 10)
    board.distribute()
    assert board.numbers("events") == [1, 2, 3]
    board.stores[0].put(second.keys[0], data, Overwrite())
    board.distribute()
    assert board.numbers("events") == [1, 2, 3]
    assert first.number == 1


def test_a_damaged_chunk_takes_no_record_with_it() -> None:
    board = given()
    write(list(board.stores), 1, 2, seed=1)
    board.stores[0].put(union(list(board.stores)).chunks[0].keys[0], b"torn", Overwrite())
    write(list(board.stores), 2, 1, seed=2, at=START_MS + 10)
    for terms in (Terms(work_bytes=1), Terms()):
        board.distribute(terms)
        assert board.numbers("events") == [1, 2]


def test_a_record_that_comes_again_never_undoes_a_newer_one() -> None:
    board = Board([MemoryStore("raw")], {"users": MemoryStore("users")}).create(users="n")
    with RawLog(board.stores, clock=ManualClock(), ids=SeededIds(1)) as log:
        log.append_many([RawRecord(table="users", fields={"n": 1, "text": "old"}, id="a")])
    board.distribute()
    with RawLog(board.stores, clock=ManualClock(START_MS + 5), ids=SeededIds(2)) as log:
        log.append_many([RawRecord(table="users", fields={"n": 1, "text": "new"}, id="b")])
        log.append_many([RawRecord(table="users", fields={"n": 1, "text": "old"}, id="a")])
    board.distribute()
    assert board.rows("users")[1]["text"] == "new"


@pytest.mark.parametrize("name", ["events", "users"])
def test_two_distributors_that_see_different_writers_take_an_id_once(name: str) -> None:
    tables = {"events": MemoryStore("events"), "users": MemoryStore("users")}
    board = Board([MemoryStore("main"), MemoryStore("copy")], tables).create(users="n")
    main, copy = board.stores
    write([copy], 1, seed=1, table=name)
    first = board.distributor()
    first.source = replace(first.source, mandatory=1)
    write([main], 1, seed=2, table=name)
    second = Board([main], tables, seed=9).distributor()
    first.tasks = TasksMeanwhile(first.tasks, lambda: second.distribute(Terms()))
    assert first.distribute(Terms()).duplicates == {name: 1}
    if name == "events":
        assert board.numbers("events") == [1]
    else:
        manifest = read_latest(tables["users"], region_of(KeyedTable(tables["users"]).snapshot.table_id))
        assert manifest is not None
        assert len(manifest.flushed_generations) == 1
    board.distribute()


def test_a_record_that_a_region_has_goes_before_an_earlier_one_that_came_since() -> None:
    board = Board([MemoryStore("raw")], {"users": MemoryStore("users")}).create(users="n")
    write(list(board.stores), 1, seed=1, at=START_MS + 10, table="users")
    refusing = FaultStore(board.tables["users"])
    refusing.on_put("_transaction_log/00000000000000000001", CrashFault.BEFORE)
    with pytest.raises(Crash):
        Board(board.stores, {"users": refusing}, seed=50).distribute()
    write(list(board.stores), 1, seed=2, at=START_MS, table="users")
    assert [each.segment_ms for each in union(list(board.stores)).chunks] == [START_MS, START_MS + 10]
    board.distribute()
    manifest = read_latest(board.tables["users"], region_of(KeyedTable(board.tables["users"]).snapshot.table_id))
    assert manifest is not None
    assert len(manifest.flushed_generations) == 1
    assert [*board.rows("users")] == [1]


@pytest.mark.parametrize("bad", ["", "x" * 257, "\ud800"])
def test_an_id_is_valid_text_of_at_most_256_bytes(bad: str) -> None:
    with RawLog([MemoryStore("raw")], clock=ManualClock(), ids=SeededIds(1)) as log:
        with pytest.raises(InvalidInput, match="Give a valid text of 1 to"):
            log.append_many([RawRecord(table="t", fields={}, id=bad)])
        with pytest.raises(InvalidInput, match=r"id field .n. is 1\.5"):
            log.append("t", [{"n": 1.5}], unique_by="n")
        with pytest.raises(InvalidInput):
            log.append("t", pa.table({"n": ["x" * 257]}), unique_by="n")
        assert log.append("t", pa.table({"n": ["x" * 256]}), unique_by="n").count == 1


def test_ids_of_chunks_in_a_store_that_is_silent_now_are_known() -> None:
    board = given(stores=2)
    write([board.stores[1]], 1, seed=1)
    board.distribute()
    silent = FaultStore(board.stores[1])
    for prefix in ("live/", IDS_PREFIX):
        silent.on("list", prefix, *[ListFault.REFUSED] * 3)
    write([board.stores[0]], 1, seed=2)
    distributor = Board([board.stores[0], silent], board.tables, seed=9).distributor()
    assert distributor.history.unreachable == (silent.uri,)
    distributor.source = replace(distributor.source, mandatory=1)
    distributor.distribute(Terms())
    assert board.numbers("events") == [1]


def test_an_optional_store_need_not_have_the_ids() -> None:
    board = given(stores=2)
    clock = ManualClock()
    with RawLog([board.stores[0], RawStore(board.stores[1], mandatory=False)], clock=clock, ids=SeededIds(1)) as log:
        log.append("events", {"n": 1}, unique_by="n")
        assert log.drain(10_000)
    distributor = board.distributor()
    distributor.source = replace(distributor.source, mandatory=1)
    distributor.distribute(Terms())
    assert [len([*store.list(IDS_PREFIX)]) for store in board.stores] == [1, 0]


# Bytes.


def test_a_chunk_with_ids_is_format_2_and_one_without_stays_as_it_was() -> None:
    assert encode_chunk(CHUNK) == (GOLDEN / "raw-chunk-2.avro").read_bytes()
    assert decode_chunk(encode_chunk(CHUNK), "here") == CHUNK
    assert b"tidemark.format\x022" in encode_chunk(CHUNK)
    many = RawChunk(key=CHUNK.key, first=1, records=CHUNK.records * (FEW // 2))
    found = decode_columns(encode_chunk(many), "here")
    assert found.unique_ids is not None
    assert found.unique_ids.to_pylist() == ["Ä-1", None] * (FEW // 2)


def test_record_ids_come_back_and_are_those_that_the_first_release_wrote() -> None:
    entries = pa.table({"chunk": [0, 1], "table": [1, 0], "position": [3, 0], "id": ["a", "Ä"]}, ID_COLUMNS)
    other = ChunkKey(segment_ms=5, writer=WRITER, number=8)
    found = RecordIds(chunks=(CHUNK.key, other), tables=("t", "u"), entries=entries)
    key, data = raw_chunk.encode_ids(found)
    parsed = keys.parse_raw(key)
    assert isinstance(parsed, IdsKey)
    assert (parsed.first_ms, parsed.last_ms, raw_ids_key(parsed)) == (5, CHUNK.key.segment_ms, key)
    assert raw_chunk.decode_ids(data, parsed) == found
    golden = next(GOLDEN.glob("raw-ids-1.*.arrow"))
    kept = IdsKey(first_ms=5, last_ms=CHUNK.key.segment_ms, checksum=golden.suffixes[-2][1:])
    assert raw_chunk.decode_ids(golden.read_bytes(), kept) == found


@pytest.mark.parametrize(
    "key", ["ids/5-4.0123456789abcdef.arrow", "ids/05-6.0123456789abcdef.arrow", "ids/5-6.0123.arrow", "ids/x"]
)
def test_other_names_are_not_ours(key: str) -> None:
    assert keys.parse_raw(key) is None


def test_what_is_no_object_of_record_ids_is_refused() -> None:
    def damaged(found: RecordIds) -> IdsKey:
        key, data = raw_chunk.encode_ids(found)
        parsed = keys.parse_raw(key)
        assert isinstance(parsed, IdsKey)
        raw_chunk.decode_ids(data, parsed)
        return parsed

    beyond = pa.table({"chunk": [1], "table": [0], "position": [0], "id": ["a"]}, ID_COLUMNS)
    for chunks, tables in (((CHUNK.key,), ("t",)), ((CHUNK.key, CHUNK.key), ())):
        with pytest.raises(Corrupt):
            damaged(RecordIds(chunks=chunks, tables=tables, entries=beyond))
    with pytest.raises(InvalidInput):
        raw_ids_key(IdsKey(first_ms=6, last_ms=5, checksum="0" * 16))
