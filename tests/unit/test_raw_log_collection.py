"""Collection of a raw log removes exactly the chunks that are old and distributed to every table."""

from __future__ import annotations

import pytest

from storage_core.base.errors import CommitConflict, CommitUnknown, Corrupt, Unsupported
from storage_core.data.formats import documents
from storage_core.data.formats.documents import Collected
from storage_core.data.formats.keys import COLLECTED_KEY
from storage_core.maintain.collect import note_forgotten, read_plan
from storage_core.maintain.raw_logs import KEPT_MS
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.history import union
from tests.support.clock import START_MS, ManualClock
from tests.support.distribution import Board
from tests.support.fault_store import FaultStore, ListFault
from tests.support.ids import SeededIds
from tests.support.raw_collection import DAY_MS, LONG_AFTER, collect, collector, produce, raw_board
from tests.support.rejected_lines import rejected_lines


def given(*, copies: int = 2) -> Board:
    """Make a raw log in stores whose clock stands at `START_MS`, and an append table."""
    return raw_board(*(f"raw-{number}" for number in range(copies)))


def numbers(board: Board) -> list[int]:
    return [each.number for each in union(list(board.stores)).chunks]


def test_what_every_table_has_is_collected_in_every_store_and_is_no_gap() -> None:
    board = given()
    produce(board, 1, 2, 3)
    board.distribute()
    report = collect(board)
    assert [len(each) for each in report.deleted.values()] == [3, 3]
    assert (report.backlog.chunks, report.backlog.waiting_chunks, report.failed) == (3, 0, {})
    assert numbers(board) == []
    produce(board, 1, 2, 3, 4, seed=2)
    board.distribute()
    collect(board, now_ms=LONG_AFTER + 2 * DAY_MS)
    produce(board, 5, 6, seed=3)
    found = union(list(board.stores)).verify()
    assert (found.records, found.gaps, found.damaged) == (2, (), ())


def test_the_writer_goes_on_behind_what_was_collected_without_a_gap() -> None:
    board = given(copies=1)
    produce(board, 1, 2, 3, 4)
    chunks = {each.number: each.keys[0] for each in union(list(board.stores)).chunks}
    later = {key: board.stores[0].get(key).data for number, key in chunks.items() if number > 2}
    board.stores[0].delete([*later])
    board.distribute()
    assert collect(board).backlog.chunks == 2
    for key, data in later.items():
        board.stores[0].put(key, data, Overwrite())
    history = union(list(board.stores))
    assert (history.missing, history.verify().gaps) == ([], ())
    assert board.distribute().held == ()
    assert board.numbers("events") == [1, 2, 3, 4]


def test_a_table_that_lags_or_is_not_made_yet_protects_every_chunk_that_it_lacks() -> None:
    board = given()
    produce(board, 1, 2)
    board.distribute()
    produce(board, 3, seed=2)
    board.tables = {**board.tables, "later": MemoryStore("later")}
    assert collect(board).candidates == {each.uri: () for each in board.stores}
    board.tables = {"events": board.tables["events"]}
    report = collect(board)
    assert (report.backlog.tables, report.backlog.waiting_chunks) == ({"events": 1}, 1)
    assert report.backlog.oldest_waiting_ms == START_MS
    assert numbers(board) == [1]


def test_a_raw_log_without_tables_is_not_collected() -> None:
    board = given()
    produce(board, 1)
    board.distribute()
    board.tables = {}
    assert collect(board).deleted == {}


def test_a_table_that_comes_after_a_collection_begins_behind_it_and_the_report_says_so() -> None:
    board = given()
    produce(board, 1, 2, table="later")
    board.distribute()
    collect(board)
    produce(board, 3, table="later", seed=2)
    board.tables = {**board.tables, "later": MemoryStore("later")}
    Board(board.stores, {"later": board.tables["later"]}).create()
    assert collect(board).backlog.collected == {"later": 2}
    assert board.distribute().held == ()
    assert board.numbers("later") == [3]
    assert [each["text"] for each in rejected_lines(board.stores[0])], "the others are in quarantine"


def test_nothing_younger_than_the_retention_goes_whoever_wrote_the_copy_when() -> None:
    board = given()
    produce(board, 1)
    board.distribute()
    assert collect(board, now_ms=START_MS + DAY_MS - 1).candidates == {each.uri: () for each in board.stores}
    young = MemoryStore("healed", clock=ManualClock(LONG_AFTER))
    for chunk in union(list(board.stores)).chunks:
        young.put(chunk.keys[0], board.stores[0].get(chunk.keys[0]).data, Overwrite())
    board.stores = [*board.stores, young]
    assert sum(map(len, collect(board).deleted.values())) == 3, "a copy made later makes no chunk younger"


def test_a_chunk_is_in_the_plan_for_the_whole_horizon_and_old_by_the_earlier_clock() -> None:
    board = given(copies=1)
    produce(board, 1)
    board.distribute()
    clock, board.raw_clock = board.raw_clock, ManualClock()  # from here on the two clocks are independent
    assert collect(board).deleted == {}, "the store's clock stands: the chunk is young"
    clock.now = START_MS + DAY_MS
    assert collect(board, now_ms=LONG_AFTER + 9 * DAY_MS, horizon_ms=DAY_MS).deleted == {}
    clock.now = LONG_AFTER  # sets the store's clock to the time of the collector
    assert collect(board, now_ms=LONG_AFTER + 9 * DAY_MS, horizon_ms=DAY_MS).deleted.keys() == {"memory://raw-0"}


def test_a_dry_run_says_what_may_go_and_writes_nothing() -> None:
    board = given(copies=1)
    produce(board, 1)
    board.distribute()
    before = [each.key for each in board.stores[0].list("")]
    report = collector(board).collect(dry_run=True)
    assert [len(each) for each in report.candidates.values()] == [1]
    assert [each.key for each in board.stores[0].list("")] == before


def test_a_gap_protects_what_is_behind_it_and_what_was_given_up_is_not_brought_back() -> None:
    board = given(copies=1)
    produce(board, 1, 2, 3)
    chunks = union(list(board.stores)).chunks
    board.stores[0].delete([chunks[1].keys[0]])
    board.distribute()
    collect(board)
    assert numbers(board) == [3]
    board.distribute(Terms(give_up_to={chunks[0].writer: 2}))
    collect(board)
    assert numbers(board) == []


def test_a_chunk_that_no_store_has_whole_stays() -> None:
    board = given(copies=1)
    produce(board, 1, 2)
    board.distribute()
    board.stores[0].put(union(list(board.stores)).chunks[0].keys[0], b"torn", Overwrite())
    report = collect(board)
    assert (len(report.damaged), numbers(board)) == (1, [1])


def test_records_of_a_table_that_is_declared_no_more_are_in_quarantine_before_their_chunk_goes() -> None:
    board = given(copies=1)
    board.tables = {**board.tables, "gone": MemoryStore("gone")}
    Board(board.stores, {"gone": board.tables["gone"]}).create()
    produce(board, 1)
    produce(board, 7, table="gone", seed=2)
    events = {"events": board.tables["events"]}
    distributor = board.distributor()
    distributor.logs = {"events": distributor.logs["events"]}  # this distributor could not open the other table
    distributor.distribute(Terms())
    assert collect(board).candidates == {"memory://raw-0": ()}
    board.tables = events
    assert collect(board).unknown == {"gone": 1}
    assert ['"gone"' in each["text"] for each in rejected_lines(board.stores[0])] == [True]


def test_a_store_that_is_silent_keeps_its_copies_until_it_answers() -> None:
    board = given()
    produce(board, 1)
    board.distribute()
    silent = FaultStore(board.stores[1])
    silent.on("list", "live/", *[ListFault.REFUSED] * 2)
    first = Board([board.stores[0], silent], board.tables, raw_clock=board.raw_clock)
    report = collect(first)
    assert (report.unreachable, [*report.deleted]) == ((silent.uri,), [board.stores[0].uri])
    assert numbers(board) == [1]
    assert board.distribute().held == ()
    assert board.numbers("events") == [1]
    assert [*collect(board).deleted] == [board.stores[1].uri]


def test_two_collectors_never_delete_by_one_plan() -> None:
    board = given(copies=1)
    produce(board, 1)
    board.distribute()
    first = collector(board)
    reads: list[int] = []
    offsets = first.offsets

    def meanwhile() -> dict[str, dict[str, int]]:
        reads.append(1)
        if len(reads) == 2:
            collect(board, horizon_ms=DAY_MS, seed=10)
        return {name: dict(each) for name, each in offsets().items()}

    first.offsets = meanwhile
    with pytest.raises((CommitConflict, CommitUnknown)):
        first.collect()
    assert numbers(board) == [1]


def test_the_entry_of_a_writer_goes_long_after_its_last_chunk() -> None:
    board = given(copies=1)
    produce(board, 1)
    board.distribute()
    collect(board)
    produce(board, 2, seed=2)
    board.distribute()
    collect(board, now_ms=LONG_AFTER + KEPT_MS)
    found = documents.decode_collected(board.stores[0].get(COLLECTED_KEY).data)
    assert [each.at_ms for each in found.values()] == [LONG_AFTER + KEPT_MS]


def test_a_damaged_note_says_nothing_and_a_newer_one_is_refused() -> None:
    board = given()
    produce(board, 1, 2)
    board.distribute()
    collect(board)
    board.stores[0].put(COLLECTED_KEY, b"{", Overwrite())
    assert [each.number for each in union(list(board.stores)).collected.values()] == [2]
    with pytest.raises(Corrupt):
        documents.decode_collected(b'{"format":1,"writers":{"a":{"number":-1,"sequence":1,"at_ms":0}}}')
    with pytest.raises(Unsupported):
        documents.decode_collected(b'{"format":2}')


def test_the_bytes_of_the_note_are_those_of_the_first_release_that_wrote_it() -> None:
    writers = {"b" * 8: Collected(number=3, sequence=9, at_ms=5), "a": Collected(number=1, sequence=1, at_ms=4)}
    assert documents.encode_collected(writers, nonce="n") == (
        b'{"format":1,"nonce":"n","writers":{"a":{"number":1,"sequence":1,"at_ms":4},'
        b'"bbbbbbbb":{"number":3,"sequence":9,"at_ms":5}}}'
    )
    assert documents.decode_collected(documents.encode_collected(writers, nonce="n")) == writers


def _note(board: Board, *wanted: int, stores: int = 2) -> None:
    """Mark chunks as forgotten in the first `stores` stores."""
    keys = [each.keys[0] for each in union(list(board.stores)).chunks if each.number in wanted]
    for number, store in enumerate(board.stores[:stores]):
        note_forgotten(store, keys, ids=SeededIds(number), now_ms=LONG_AFTER)


def test_a_forgotten_chunk_goes_with_those_before_it_and_does_not_wait_for_the_retention() -> None:
    board = given()
    produce(board, 1, 2, 3)
    board.distribute()
    _note(board, 2)
    collect(board, retention_ms=2 * LONG_AFTER)
    assert numbers(board) == [3]
    assert union(list(board.stores)).missing == []


def test_a_forgotten_chunk_stays_noted_while_a_table_lacks_it() -> None:
    board = given()
    produce(board, 1, 2)
    _note(board, 1, 2)
    for _ in range(2):
        assert collect(board, retention_ms=2 * LONG_AFTER).deleted == {}
    board.distribute()
    collect(board, retention_ms=2 * LONG_AFTER)
    assert numbers(board) == []


def test_a_forgotten_chunk_goes_from_a_store_that_was_away() -> None:
    board = given()
    produce(board, 1, 2)
    board.distribute()
    _note(board, 1, stores=1)
    away = Board(board.stores[:1], board.tables, raw_clock=board.raw_clock)
    collect(away, retention_ms=2 * LONG_AFTER)
    assert numbers(board) == [1, 2]
    collect(board, retention_ms=2 * LONG_AFTER)
    assert numbers(board) == [2]


def test_noting_again_keeps_the_time_of_the_first_note() -> None:
    board = given(copies=1)
    produce(board, 1)
    _note(board, 1, stores=1)
    before = read_plan(board.stores[0])
    _note(board, 1, stores=1)
    assert read_plan(board.stores[0]) == before
