"""Distribution of a raw log into tables: once, in order, without a gap, and independently per table."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from storage_core.base.errors import CommitConflict, Fenced, Unavailable
from storage_core.log.actions import Txn
from storage_core.log.conflicts import TxnProgress
from storage_core.log.lease import acquire, break_lease
from storage_core.log.log import TransactionLog
from storage_core.log.versions import entries
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.rounds import HeldChunks, cut_into_works
from storage_core.write.distribution.work import Terms, read_offsets
from storage_core.write.raw_log.history import RawChunkRef, RawSegment
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region import generation
from storage_core.write.region.manifest import read_latest, region_of
from tests.support.clock import ManualClock
from tests.support.copies import contents, copy_of
from tests.support.distribution import LATER_MS, Board, Step, TasksMeanwhile
from tests.support.fault_store import FaultStore, Interruption
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.rejected_lines import rejected_lines

SECOND = 1_000


def raw(*stores: ObjectStore, seed: int = 1, clock: ManualClock | None = None) -> RawLog:
    """Return a writer whose segments close after one second. Only the test advances the clock of the writer."""
    return RawLog(stores, clock=clock or ManualClock(), ids=SeededIds(seed), limits=RawLimits(segment_ms=SECOND))


def board(*names: str, keyed: str | None = None) -> Board:
    tables = {name: MemoryStore(name) for name in names}
    return Board([MemoryStore("raw")], tables).create(**({keyed: "n"} if keyed else {}))


def puts(table: str, numbers: Iterable[int]) -> list[RawRecord]:
    return [RawRecord(table=table, fields={"n": n}) for n in numbers]


def chunk_keys(store: ObjectStore) -> list[str]:
    return sorted(info.key for info in store.list("live/"))


# One run distributes the rows of all tables.


def test_every_table_gets_its_rows_and_a_second_run_does_nothing() -> None:
    given = board("a", "b", "users", keyed="users")
    with raw(*given.stores) as log:
        log.append_many([*puts("a", range(3)), *puts("b", range(10, 12)), *puts("users", [7])])
        log.append_many(puts("a", range(3, 5)))
        log.append("users", {"n": 7, "text": "later"})
    done = given.distribute()
    assert (given.numbers("a"), given.numbers("b")) == ([0, 1, 2, 3, 4], [10, 11])
    assert given.rows("users") == {7: {"n": 7, "text": "later"}}
    assert {name: each.rows for name, each in done.tables.items()} == {"a": 5, "b": 2, "users": 2}
    assert (done.records, done.failures, done.held) == (9, {}, ())
    before = {name: contents(store) for name, store in given.tables.items()}
    again = given.distribute()
    assert (again.records, {name: contents(store) for name, store in given.tables.items()}) == (0, before)


def test_many_small_rounds_and_works_distribute_what_one_distributes() -> None:
    given = board("a", "users", keyed="users")
    clock = ManualClock()
    for seed in (1, 2):
        with raw(*given.stores, seed=seed, clock=clock) as log:
            for n in range(6):
                clock.now += SECOND // 2
                log.append_many(
                    [*puts("a", [100 * seed + n]), RawRecord(table="users", fields={"n": 1, "text": f"{seed} {n}"})]
                )
    done = given.distribute(Terms(round_bytes=1500, work_bytes=1))
    assert given.numbers("a") == [100, 101, 102, 103, 104, 105, 200, 201, 202, 203, 204, 205]
    assert given.rows("users") == {1: {"n": 1, "text": "2 5"}}
    assert done.tables["users"].generations > 1
    assert done.tables["users"].rows == 12


@pytest.mark.parametrize(
    ("terms", "works"),
    [
        (Terms(), [21, 19]),
        (Terms(slots=2), [21, 19]),
        (Terms(slots=4), [11, 11, 11, 7]),
        (Terms(slots=1_000), [4] * 10),
        (Terms(slots=2, work_bytes=15 * 2**20), [11, 11, 11, 7]),
        (Terms(slots=2, work_bytes=2**20), [1] * 40),
    ],
    ids=["one at a time", "two", "four", "none too small", "none too large, a multiple of two", "one chunk at least"],
)
def test_a_round_is_cut_into_as_many_works_as_run_at_a_time(terms: Terms, works: list[int]) -> None:
    chunks = [RawChunkRef(writer="w", number=n, segment_ms=1, keys=(str(n),)) for n in range(1, 41)]
    segment = RawSegment(
        writer="w", segment_ms=1, first_number=1, last_number=40, chunks=40, bytes=40 * 2**20, copies={}
    )
    found = [*cut_into_works(chunks, [segment], terms)]
    assert [len(each) for each in found] == works
    assert [ref for each in found for ref in each] == chunks


def test_only_closed_segments_are_distributed() -> None:
    given = board("a")
    clock = ManualClock()
    given.clock.now = clock.now
    log = raw(*given.stores, clock=clock)
    log.append_many(puts("a", [1]))
    assert (given.distribute().records, given.numbers("a")) == (0, [])
    clock.now += SECOND
    log.append_many(puts("a", [2]))
    given.distribute()
    assert given.numbers("a") == [1]
    given.clock.now = LATER_MS
    given.distribute()
    assert given.numbers("a") == [1, 2]


def test_a_table_that_comes_later_gets_the_whole_history_and_an_idle_one_is_not_read_for_again() -> None:
    given = board("a", "idle")
    with raw(*given.stores) as log:
        log.append_many(puts("a", [1, 2]))
    given.distribute()
    snapshot = TransactionLog(given.tables["idle"]).snapshot()
    assert read_offsets(given.tables["idle"], snapshot).log == {log.writer_id: 1}
    late = Board(given.stores, {"a": MemoryStore("late")}, seed=5).create()
    assert late.distribute().tables["a"].rows == 2


def test_patches_deletes_and_resets_across_chunks_end_in_the_fold() -> None:
    given = board("users", keyed="users")
    clock = ManualClock()
    with raw(*given.stores, clock=clock) as log:
        log.append("users", [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}, {"n": 3, "text": "c"}])
        clock.now += SECOND
        log.append("users", {"n": 1, "text": "patched"}, operation="patch")
        log.append("users", {"n": 2}, operation="delete")
        log.append("users", {"n": 3}, operation="reset")
        clock.now += SECOND
        log.append("users", {"n": 4, "text": "made"}, operation="patch")
        log.append("users", {"n": 2, "text": "back"})
        log.append("users", {"n": 4}, operation="delete")
    given.distribute(Terms(work_bytes=1))
    expected = {1: "patched", 2: "back", 3: None}
    assert {key: row["text"] for key, row in given.rows("users").items()} == expected
    assert KeyedTable(given.tables["users"]).merge() is not None
    assert {key: row["text"] for key, row in given.rows("users").items()} == expected


# Records that no table accepts.


def test_what_fits_no_table_is_quarantined_with_its_reason_and_once() -> None:
    given = board("a", "users", keyed="users")
    with raw(*given.stores) as log:
        log.append_many(
            [
                *puts("a", [1]),
                RawRecord(table="a", fields={"n": "one"}),
                RawRecord(table="a", fields={"n": 2}, operation="delete"),
                RawRecord(table="a", fields={"n": 3, "size": 1}),
                RawRecord(table="nobody", fields={"n": 1}, key="k"),
                RawRecord(table="users", fields={"text": "no key"}),
                *puts("users", [5]),
            ]
        )
    done = given.distribute()
    assert (given.numbers("a"), list(given.rows("users"))) == ([1], [5])
    assert sum(done.tables["a"].rejected.values()) == 3
    for name, counts in {"a": (4, 1, 3), "users": (2, 1, 1)}.items():
        store = given.tables[name]
        metrics = next(entries(store, TransactionLog(store).snapshot().version)).metrics
        assert (metrics["rows_in"], metrics["rows_out"], metrics["rows_rejected"]) == counts
        assert "rejected" not in metrics
    assert dict(done.unknown) == {"nobody": 1}
    source = f"events/{log.writer_id}/1"
    found = {each["line"]: each for each in rejected_lines(given.tables["a"])}
    assert {each["source"] for each in found.values()} == {source}
    assert "does not fit the type int64" in found[2]["reason"]
    assert "the operation 'delete' needs a primary key" in found[3]["reason"]
    assert "'size': not a column" in found[4]["reason"]
    (stranger,) = rejected_lines(given.stores[0])
    assert (stranger["source"], stranger["line"]) == (source, 5)
    assert stranger["reason"] == "'nobody' is not a table of this raw log"
    assert json.loads(stranger["text"])["key"] == "k"
    (keyless,) = rejected_lines(given.tables["users"])
    assert "'n': a value is required" in keyless["reason"]
    newcomer = Board(given.stores, {**given.tables, "new": MemoryStore("new")}, seed=9)
    KeyedTable(newcomer.tables["new"], ids=SeededIds(77)).create()
    newcomer.distribute()  # reads every chunk again
    assert len(list(rejected_lines(given.stores[0]))) == 1


def test_a_table_that_cannot_be_opened_or_written_stops_no_other() -> None:
    down = MemoryStore("down")
    tables: dict[str, ObjectStore] = {"a": MemoryStore("a"), "full": down, "lost": MemoryStore("lost")}
    given = Board([MemoryStore("raw")], tables).create()
    with raw(*given.stores) as log:
        log.append_many([*puts("a", [1]), *puts("full", [2]), *puts("lost", [3])])
    refusing = FaultStore(down, watch=Interruption(0, lambda kind, key: kind == "put" and key.startswith("splits/")))
    broken = Board(given.stores, {**tables, "full": refusing, "lost": MemoryStore("empty")})
    done = broken.distribute()
    assert {name: type(error).__name__ for name, error in done.failures.items()} == {
        "full": "CommitUnknown",
        "lost": "NotFound",
    }
    assert given.numbers("a") == [1]
    assert given.distribute().failures == {}
    assert [given.numbers(name) for name in tables] == [[1], [2], [3]]


# Gaps.


def gapped() -> tuple[Board, str, list[str]]:
    """Make a raw log of two writers. The first writer has five segments with one chunk of one row each."""
    given = board("a", "users", keyed="users")
    clock = ManualClock()
    with raw(*given.stores, clock=clock) as log:
        for n in range(1, 6):
            log.append_many([*puts("a", [n]), *puts("users", [n])])
            clock.now += SECOND
    with raw(*given.stores, seed=2) as other:
        other.append_many(puts("a", [100]))
    return given, log.writer_id, [key for key in chunk_keys(given.stores[0]) if log.writer_id in key]


def test_behind_a_gap_a_writer_waits_and_others_go_on_until_it_is_restored_or_given_up() -> None:
    given, writer, keys = gapped()
    lost = given.stores[0].get(keys[2]).data
    given.stores[0].delete([keys[2]])
    done = given.distribute()
    assert done.held == (HeldChunks(writer=writer, first=3, last=3, tables=("a", "users")),)
    assert (given.numbers("a"), list(given.rows("users"))) == ([1, 2, 100], [1, 2])
    restored = Board(
        [copy_of(given.stores[0], "raw")], {name: copy_of(each, name) for name, each in given.tables.items()}
    )
    restored.stores[0].put(keys[2], lost, Overwrite())
    assert restored.distribute().held == ()
    assert restored.numbers("a") == [1, 2, 3, 4, 5, 100]
    assert given.distribute(Terms(give_up_to={writer: 2})).held == done.held, "only what is named is given up"
    passed = given.distribute(Terms(give_up_to={writer: 3}))
    assert (passed.held, passed.given_up) == ((), list(done.held))
    assert (given.numbers("a"), list(given.rows("users"))) == ([1, 2, 4, 5, 100], [1, 2, 4, 5])
    given.stores[0].put(keys[2], lost, Overwrite())
    given.distribute()
    assert given.numbers("a") == [1, 2, 4, 5, 100], "what was given up stays out: newer rows are in"


@pytest.mark.parametrize("work_bytes", [1, 10**9], ids=["seen by another task", "seen by the same task"])
def test_a_chunk_that_is_damaged_everywhere_is_a_gap(work_bytes: int) -> None:
    given, writer, keys = gapped()
    sound = given.stores[0].get(keys[3]).data
    given.stores[0].put(keys[3], sound[:50], Overwrite())
    terms = Terms(work_bytes=work_bytes)
    done = given.distribute(terms)
    assert done.held == (HeldChunks(writer=writer, first=4, last=4, tables=("a", "users")),)
    assert list(done.damaged) == [(writer, 4)]
    assert (given.numbers("a"), list(given.rows("users"))) == ([1, 2, 3, 100], [1, 2, 3])
    given.stores[0].put(keys[3], sound, Overwrite())
    assert given.distribute(terms).held == ()
    assert (given.numbers("a"), list(given.rows("users"))) == ([1, 2, 3, 4, 5, 100], [1, 2, 3, 4, 5])


def test_a_torn_end_can_be_given_up_for_good() -> None:
    given, writer, keys = gapped()
    given.stores[0].put(keys[4], b"Obj", Overwrite())
    assert given.distribute().held == (HeldChunks(writer=writer, first=5, last=5, tables=("a", "users")),)
    given.distribute(Terms(give_up_to={writer: 5}))
    after = given.distribute()
    assert (after.held, after.damaged, after.records) == ((), {}, 0)
    assert given.numbers("a") == [1, 2, 3, 4, 100]


def test_nothing_is_given_up_while_a_store_that_may_have_it_is_silent() -> None:
    given, writer, keys = gapped()
    silent = FaultStore(copy_of(given.stores[0], "other"), watch=Interruption(0))
    given.stores[0].delete([keys[2]])
    both = Board([*given.stores, silent], given.tables)
    with pytest.raises(Unavailable, match="may have the missing chunks"):
        both.distribute(Terms(give_up_to={writer: 3}))


def test_two_stores_of_which_one_is_lost_half_way_distribute_as_one() -> None:
    given = board("a")
    second = MemoryStore("second")
    clock = ManualClock()
    with raw(*given.stores, second, clock=clock) as log:
        for n in range(4):
            log.append_many(puts("a", [n]))
            clock.now += SECOND
    keys = chunk_keys(second)
    given.stores[0].delete([keys[1], keys[2]])
    second.delete([keys[0], keys[3]])
    both = Board([*given.stores, second], given.tables)
    assert both.distribute().held == ()
    assert given.numbers("a") == [0, 1, 2, 3]


# Races.


def racing() -> tuple[Board, str]:
    given = board("a", "users", keyed="users")
    with raw(*given.stores) as log:
        log.append_many([*puts("a", [1]), *puts("users", [1])])
    return given, log.writer_id


def test_of_two_distributors_that_planned_alike_one_distributes() -> None:
    given, _ = racing()
    late = given.distributor()
    late.tasks = TasksMeanwhile(late.tasks, given.distribute)
    done = late.distribute(Terms())
    assert done.failures == {}
    assert {name: each.rows for name, each in done.tables.items()} == {"a": 0, "users": 0}
    assert (given.numbers("a"), given.rows("users")) == ([1], {1: {"n": 1, "text": None}})
    assert _records_in_generations(given.tables["users"]) == 1


@pytest.mark.parametrize("step", ["divide", "fill"])
def test_a_distributor_that_is_overtaken_by_one_that_sees_more_distributes_nothing_twice(step: Step) -> None:
    given, _ = racing()
    late = given.distributor()

    def more() -> None:
        with raw(*given.stores, seed=2) as log:
            log.append_many([*puts("a", [2]), *puts("users", [2])])
        given.distribute()

    late.tasks = TasksMeanwhile(late.tasks, more, before=step)
    assert late.distribute(Terms()).failures == {}
    given.distribute()
    assert (given.numbers("a"), list(given.rows("users"))) == ([1, 2], [1, 2])
    assert _records_in_generations(given.tables["users"]) == 2


def test_a_plan_that_reaches_further_than_what_landed_meanwhile_conflicts() -> None:
    given, writer = racing()
    log = TransactionLog(given.tables["a"], clock=given.clock, ids=SeededIds(3))
    planned = log.snapshot()
    given.distribute()
    further = [Txn(appId=f"raw:{writer}", version=2)]
    with pytest.raises(CommitConflict, match="version 1 records 1, but this commit was planned after 0"):
        log.commit(planned, further, operation="DISTRIBUTE", requirements=[TxnProgress(f"raw:{writer}", 0)])


def _records_in_generations(store: ObjectStore) -> int:
    manifest = read_latest(store, region_of(TransactionLog(store).snapshot().table_id))
    assert manifest is not None
    return sum(generation.read(store, manifest.region_id, each).records for each in manifest.flushed_generations)


def test_a_distributor_whose_lease_was_broken_commits_nothing() -> None:
    given, _ = racing()
    log = given.distributor().logs["a"]
    lease = acquire(log, log.snapshot(), "distribute.events", "one")
    late = given.distributor()
    late.guards = {"a": lease.requirement}
    late.tasks = TasksMeanwhile(late.tasks, lambda: break_lease(log, "distribute.events", "two"))
    assert isinstance(late.distribute(Terms()).failures["a"], Fenced)
    assert given.numbers("a") == []
    given.distribute()
    assert given.numbers("a") == [1]
