"""A state stores transactions in separate objects. Opening a table is cheap, and joining objects changes no answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats.avro_state import decode_state
from storage_core.data.formats.keys import last_checkpoint_key, parse, state_key, version_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.table import TableConfig
from storage_core.log import checkpoint_writing
from storage_core.log.actions import Txn
from storage_core.log.checkpoint import manifest_keys, named_keys, read_state
from storage_core.log.checkpoint_writing import write_checkpoint
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.transactions import Transactions
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.store.contract import IfAbsent, ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.copies import contents, copy_of
from tests.support.crashes import left_by_crashes
from tests.support.log_tables import log_on, metadata, split
from tests.support.steps import steps_of

FILES = 100_000


class Table:
    """A table whose log records only transactions and is checkpointed on request."""

    def __init__(self, checkpoint_format: str = "avro") -> None:
        self.store = MemoryStore("t")
        self.log = log_on(self.store)
        self.log.create(metadata(TableConfig(checkpoint_interval=0, checkpoint_format=checkpoint_format)))  # type: ignore[arg-type]

    def record(self, app_ids: Iterable[str], version: int = 1) -> Snapshot:
        txns = [Txn(appId=app_id, version=version, lastUpdated=7) for app_id in app_ids]
        return self.log.commit(self.log.snapshot(), txns, operation="X").snapshot

    def checkpoint(self, *, compact: bool = False) -> Snapshot:
        head = self.log.snapshot()
        if compact:
            return write_checkpoint(self.store, head, self.log.ids.uuid, compact=True).snapshot
        return self.log.checkpoint(head).snapshot

    def objects(self) -> list[str]:
        return [info.key for info in self.store.list("") if (parsed := parse(info.key)) and parsed.kind is PROGRESS]

    def replayed(self) -> Snapshot:
        bare = MemoryStore("bare")
        for version in range(self.log.snapshot().version + 1):
            bare.put(version_key(version), self.store.get(version_key(version)).data, IfAbsent())
        return log_on(bare).snapshot()


PROGRESS = KeyKind.PROGRESS


def progress_of(count: int) -> list[str]:
    """Return the application ids of `count` landed files and of `count` ended writers of raw logs."""
    files = [f"landed:2026/{number:08}.log" for number in range(count)]
    contents = [f"content:2026/{number:08}.log@{number:016x}" for number in range(count)]
    return [*files, *contents, *(f"raw:{Random(number).getrandbits(128):032x}" for number in range(count))]


def named_of(table: Table, snapshot: Snapshot) -> tuple[str, ...]:
    assert snapshot.checkpoint is not None
    return named_keys(table.store, snapshot.checkpoint)


def opened(count: int) -> tuple[dict[str, int], int, int, int]:
    """Open a table whose log has recorded `count` landed files and writers.

    Return the requests, bytes and steps of the opening, and the number of lines of the state's root.
    """
    table = Table()
    recorded = progress_of(count)
    every = Transactions(recent={app_id: Txn(appId=app_id, version=1) for app_id in recorded})
    write_checkpoint(table.store, replace(table.record(["x"]), txns=every), table.log.ids.uuid)
    for name in "ab":  # two commits that are newer than the state
        table.log.commit(table.log.snapshot(), [split(name)], operation="APPEND")
    metered = MeteredStore(table.store)
    found = log_on(metered).snapshot()
    lines = len(read_state(table.store, found.checkpoint_version or 0).actions)
    requests, bytes_read = metered.requests, metered.bytes_read
    assert found.txns.entries == len(recorded)
    assert found.txns.get(recorded[-1]) == 1
    return requests, bytes_read, steps_of(lambda: log_on(table.store).snapshot()).count, lines


def test_opening_costs_after_many_files_and_writers_what_it_costs_after_ten() -> None:
    requests, bytes_read, steps, _ = opened(10)
    many_requests, many_bytes, many_steps, many_lines = opened(FILES)
    assert many_requests == requests
    assert many_bytes <= 1.2 * bytes_read
    assert many_steps <= 1.2 * steps
    assert many_lines == 1, "the protocol"


def test_few_transactions_are_lines_of_a_state_that_every_release_reads() -> None:
    table = Table()
    table.record(f"app{number}" for number in range(checkpoint_writing.MOST_LINES))
    head = table.checkpoint()
    state = read_state(table.store, head.version)
    assert (len(state.actions), state.progress, table.objects()) == (1 + checkpoint_writing.MOST_LINES, (), [])
    table.record(["one more"])
    head = table.checkpoint()
    state = read_state(table.store, head.version)
    assert (len(state.actions), len(state.progress)) == (1, 1)
    assert set(table.objects()) <= set(named_of(table, head))


def test_a_release_that_knows_no_columns_refuses_a_state_with_them_and_reads_one_without() -> None:
    table = Table()
    table.record(["a"])
    assert b'"progress"' not in table.store.get(state_key(table.checkpoint().version)).data
    table.record(f"app{number}" for number in range(100))
    with_columns = table.store.get(state_key(table.checkpoint().version)).data
    # The number is the first field of the only record, as a zig-zag integer. Early releases of 0.1 compare this number
    # with 1.
    assert decode_state(with_columns, "state").progress
    assert b'"progress"' in with_columns


def test_commits_and_checkpoints_read_only_the_objects_that_may_hold_their_transactions() -> None:
    table = Table()
    table.record(f"landed:2025/{number:06}" for number in range(100))
    table.checkpoint()
    for number in range(3):
        table.record([f"raw:writer-{number}"])
        table.checkpoint()
    metered = MeteredStore(table.store)
    log = log_on(metered, seed=1)
    head = log.snapshot()
    before = metered.requests["get"]
    result = log.commit(head, [Txn(appId="landed:2026/1", version=1)], operation="X")
    assert metered.requests["get"] == before, "no object has a landed file as late as this"
    assert log.commit(result.snapshot, [Txn(appId="raw:writer-1", version=1)], operation="X").already_committed
    assert metered.requests["get"] - before <= 2, "the objects that may hold this writer, newest first"
    assert head.txns.every("raw").keys() == {f"raw:writer-{number}" for number in range(3)}


def test_a_repeated_transaction_is_a_no_op_and_a_later_one_a_commit_wherever_it_is_recorded() -> None:
    table = Table()
    for generation in range(30):
        table.record([f"app{number:03}" for number in range(generation, generation + 40)], version=generation + 1)
        table.checkpoint()
        fresh = table.log.snapshot()
        repeated = [Txn(appId=f"app{generation:03}", version=generation + 1)]
        assert table.log.commit(fresh, repeated, operation="X").already_committed
        assert fresh == table.replayed()


@pytest.mark.parametrize("seed", range(3))
def test_transactions_are_the_same_however_their_objects_are_joined(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writing, "ENTRIES_PER_OBJECT", 25)
    monkeypatch.setattr(checkpoint_writing, "MAX_SMALL_OBJECTS", 3)
    table, random = Table(), Random(seed)
    for version in range(1, 40):
        kinds = random.choice((["landed"], ["raw"], ["landed", "content", "raw"]))
        app_ids = {
            f"{random.choice(kinds)}:{random.randint(version, 3 * version)}" for _ in range(random.randint(1, 12))
        }
        table.record(app_ids, version=version)
        if random.random() < 0.6:
            table.checkpoint(compact=random.random() < 0.1)
        head = table.log.snapshot()
        replayed = table.replayed()
        assert head == replayed
        wanted = random.sample(sorted(replayed.txns), min(5, len(replayed.txns)))
        assert {app_id: table.log.snapshot().txns[app_id] for app_id in wanted} == {
            app_id: replayed.txns[app_id] for app_id in wanted
        }
        assert head.txns.every("raw").keys() == {each for each in replayed.txns if each.startswith("raw:")}
        if (listed := head.txns.listed) is not None:
            in_order = [part.info for part in listed.parts if part.info.in_order]
            assert all(one.greatest < next_.least for one, next_ in pairwise(in_order))
            assert sum(not part.info.in_order for part in listed.parts) < 3
    assert not fsck(table.store, clock=ManualClock(), deep=True).findings


def test_a_checkpoint_writes_what_is_new_and_not_what_ten_thousand_files_before_it_left() -> None:
    table = Table()
    table.record(f"landed:{number:06}" for number in range(10_000))
    table.checkpoint()
    written = []
    for number in range(60):
        table.record([f"landed:{number + 10_000:06}"])
        metered = MeteredStore(table.store)
        log = log_on(metered, seed=number)
        log.checkpoint(log.snapshot())
        written.append(metered.bytes_written)
    first = table.store.head(table.objects()[0]).size
    assert sum(written) / len(written) < 5_000 + first / 10


@pytest.mark.parametrize("damage", ["missing", "torn", "another"])
def test_a_damaged_object_costs_requests_and_no_answer(damage: str) -> None:
    table = Table()
    table.record(f"app{number}" for number in range(100))
    table.checkpoint()
    table.record(["app100"])
    head = table.checkpoint()
    key = table.objects()[0]
    if damage == "missing":
        table.store.delete([key])
    else:
        data = table.store.get(key).data
        table.store.put(key, data[:-9] if damage == "torn" else table.store.get(table.objects()[1]).data, Overwrite())
    assert table.log.snapshot().txns == {f"app{number}": 1 for number in range(101)}
    assert table.log.commit(head, [Txn(appId="app7", version=1)], operation="X").already_committed
    assert {each.key for each in fsck(table.store, clock=ManualClock()).findings if "progress" in each.key} == {key}
    table.record(["app101"])
    later = table.checkpoint()
    if damage == "missing":
        assert key not in named_of(table, later)
    assert dict(log_on(table.store).snapshot().txns) == {f"app{number}": 1 for number in range(102)}


def test_what_nothing_leads_to_any_more_is_corrupt_and_never_taken_for_absent() -> None:
    table = Table()
    table.record(f"app{number}" for number in range(100))
    head = table.checkpoint()
    table.store.delete([*table.objects(), *(version_key(version) for version in range(head.version + 1))])
    found = TransactionLog(table.store).snapshot()
    with pytest.raises(Corrupt, match="missing"):
        _ = found.txns.get("app7")
    with pytest.raises(Corrupt, match="missing"):
        table.log.commit(found, [Txn(appId="app7", version=1)], operation="X")


def test_a_checkpoint_that_ends_at_any_request_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed checkpoint leaves only complete transaction objects, and the next checkpoint can still join them."""
    monkeypatch.setattr(checkpoint_writing, "ENTRIES_PER_OBJECT", 25)
    monkeypatch.setattr(checkpoint_writing, "MAX_SMALL_OBJECTS", 2)
    table = Table()
    for start in range(0, 60, 20):
        table.record((f"app{number:03}" for number in range(start, start + 40)), version=1 + start)
        if start:
            table.checkpoint()
    table.record(["app005", "app070"], version=100)

    def run(store: ObjectStore) -> object:
        log = log_on(store, seed=5)
        return log.checkpoint(log.snapshot())

    left = left_by_crashes(copy_of(table.store), run)
    for store in left:
        found = log_on(store).snapshot()
        assert found == table.replayed()
        assert log_on(store, seed=6).commit(found, [Txn(appId="app033", version=2)], operation="X").already_committed
        log_on(store, seed=7).checkpoint(found)
        assert log_on(store).snapshot() == found
        assert not fsck(store, clock=ManualClock(), deep=True).findings
    assert len(left) >= 3, "nothing, an object of transactions, the state"


def test_objects_that_no_state_names_are_collected_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writing, "MAX_SMALL_OBJECTS", 3)
    clock = ManualClock(step_ms=1)
    store = MemoryStore("t", clock=clock)
    log = log_on(store, clock=clock)
    log.create(metadata(TableConfig(checkpoint_interval=1, version_retention_ms=10, gc_horizon_ms=10)))
    for number in range(12):
        txns = [Txn(appId=f"app{number}-{each}", version=1) for each in range(40)]
        log.commit(log.snapshot(), txns, operation="X")
        clock.now += 100
    expected = dict(log.snapshot().txns)
    written = sum(key.startswith("_transaction_log/progress/") for key in contents(store))
    for _ in range(5):  # the first runs delete states, and later runs delete objects that only these states used
        clock.now += 1_000
        collect(store, log, clock=clock)
    states = [parsed for key in contents(store) if (parsed := parse(key)) and parsed.kind is KeyKind.STATE]
    named = {key for each in states for key in manifest_keys(read_state(store, each.version or 0))}
    kept = {key for key in contents(store) if key.startswith("_transaction_log/progress/")}
    assert kept == {key for key in named if "progress" in key}
    assert len(kept) < written
    assert log_on(store).snapshot().txns == expected


def test_json_checkpoints_have_every_transaction_as_a_line_and_open_as_before() -> None:
    table = Table(checkpoint_format="json")
    table.record(f"app{number}" for number in range(100))
    table.checkpoint()
    table.store.delete([last_checkpoint_key()])
    assert log_on(table.store).snapshot() == table.replayed()
    assert table.objects() == []


def test_a_state_of_a_release_before_is_taken_over_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    with monkeypatch.context() as before:
        before.setattr(checkpoint_writing, "MOST_LINES", 10**6)
        without_times = [Txn(appId=f"app{number}", version=1) for number in range(100)]
        table.log.commit(table.log.snapshot(), without_times, operation="X")
        assert len(read_state(table.store, table.checkpoint().version).actions) == 101
    table.record(["app100"])
    head = table.checkpoint()
    assert len(read_state(table.store, head.version).actions) == 1
    found = table.log.snapshot()
    assert found == table.replayed()
    times = {txn.lastUpdated for txn in found.txns.every().values()}
    assert times == {7, head.timestamp}, "where a line tells no time, it was before the state"
