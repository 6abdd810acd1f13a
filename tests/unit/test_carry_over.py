"""Rows deleted during a compaction stay deleted, and the compaction is not planned again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, CommitUnknown, Corrupt
from storage_core.compact import execute as compaction
from storage_core.compact.carry_over import CarryOver
from storage_core.data.formats.keys import version_key
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.layout import CompactionSettings
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import MergeSkip
from storage_core.log.commit import MAX_ATTEMPTS
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Kind
from storage_core.maintain.history import restore
from storage_core.read.changes import changes
from storage_core.split.read import read_split
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support import merge_plan
from tests.support.deleted_rows import delete_places, delete_where
from tests.support.fault_store import FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, Row, base_seats

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("host", pa.string()), ("n", pa.int64()), ("text", pa.string())])
START = dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC)
SETTINGS = TableConfig(
    time_column="at", window_seconds=900, sort_schema="host|timestamp/V2", checkpoint_interval=0, gc_horizon_ms=0
)
SEVERAL = replace(SETTINGS, target_split_bytes=4_000)
UNSORTED = TableConfig(checkpoint_interval=0)
PARTS = replace(SEVERAL, compaction=CompactionSettings(run_rows=300))
CONFIGS = {"sorted": SETTINGS, "several outputs": SEVERAL, "no order": UNSORTED, "in parts": PARTS}


def row(n: int) -> Row:
    """Return row number `n`. Many rows share a sort key or have a null host, but all rows differ in `n`."""
    host = None if n % 11 == 0 else f"h{n % 7}"
    return {"at": START + dt.timedelta(seconds=n * 7 % 600), "host": host, "n": n, "text": f"{n * n % 1_000_003:x}"}


def table_of(config: TableConfig, store: ObjectStore | None = None, *, rows: int = 2_000) -> KeyedTable:
    """Make a table with three splits of one window, the first of which already has deleted rows."""
    table = KeyedTable(MemoryStore("carry") if store is None else store).create(SCHEMA, config)
    for first in range(3):
        table.append([row(n) for n in range(first, rows, 3)])
    delete_where(table.log, lambda each: each["n"] % 30 == 0)
    return table


def numbers(table: KeyedTable) -> list[int]:
    return sorted(int(str(each["n"])) for each in table.base_rows())


def deletes(table: KeyedTable, deleted: Callable[[int], bool]) -> Callable[[], Snapshot]:
    return lambda: delete_where(table.log, lambda each: deleted(each["n"]))


def require_whole(table: KeyedTable) -> None:
    found = fsck(table.store, clock=table.clock, deep=True).findings
    assert [each for each in found if each.kind is not Kind.UNREFERENCED] == []


MISSING: Mapping[str, Callable[[int], bool]] = {
    "one row": lambda n: n == 1_234,
    "first and last of each host": lambda n: n in {1, 2, 3, 4, 5, 6, 7, 11, 1_991, 1_994, 1_996, 1_997, 1_998, 1_999},
    "scattered": lambda n: n % 7 == 3 or n % 30 == 0,
    "most": lambda n: n % 50 != 1,
}


@pytest.mark.parametrize("deleted", MISSING.values(), ids=MISSING)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_rows_deleted_while_it_runs_stay_deleted_and_no_others(
    config: TableConfig, deleted: Callable[[int], bool]
) -> None:
    table = table_of(config)
    before = table.snapshot
    done = table.compact(deletes(table, deleted))
    assert done is not None
    assert (done.version, done.attempts) == (before.version + 2, 2)
    assert numbers(table) == [n for n in range(2_000) if n % 30 and not deleted(n)]
    splits = list(done.snapshot.splits.values())
    assert not {add.path for add in splits} & before.splits.keys(), "every input is replaced"
    assert len(splits) > 1 if config in (SEVERAL, PARTS) and deleted is not MISSING["most"] else splits
    assert sum(add.visible_rows for add in splits) == len(numbers(table))
    assert changes(table.store, table.log.snapshot(version=done.version - 1), done.snapshot).read_all().num_rows == 0
    require_whole(table)


def test_an_output_of_which_no_row_is_left_does_not_join_the_table() -> None:
    table = table_of(SEVERAL)
    done = table.compact(deletes(table, lambda n: n % 11 != 0))  # nulls sort last
    assert done is not None
    assert numbers(table) == [n for n in range(0, 2_000, 11) if n % 30]
    undisturbed = table_of(SEVERAL)
    undisturbed.compact()
    assert 0 < len(done.snapshot.splits) < len(undisturbed.snapshot.splits)
    require_whole(table)


def test_a_delete_of_every_row_leaves_an_empty_table() -> None:
    table = table_of(SETTINGS)
    done = table.compact(deletes(table, lambda _: True))
    assert done is not None
    assert (numbers(table), list(done.snapshot.splits)) == ([], [])


def planes(*, names: str = "abcdef") -> KeyedTable:
    """Make a keyed table with one split per two names."""
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as writer:
        for first in range(0, len(names), 2):
            writer.put([{"tailnum": name, "seats": 1} for name in names[first : first + 2]])
            writer.flush()
            table.merge()
    return table


def merges(table: KeyedTable, *, put: str = "", deleted: str = "") -> Callable[[], object]:
    def act() -> None:
        with table.writer() as writer:
            if put:
                writer.put([{"tailnum": name, "seats": 2} for name in put])
            if deleted:
                writer.delete(list(deleted))
            writer.flush()
        assert table.merge() is not None

    return act


def test_an_input_that_a_merge_ended_does_not_stop_the_compaction_of_the_others() -> None:
    table = planes()
    inputs = set(table.snapshot.splits)
    done = table.compact(merges(table, put="ab", deleted="c"))
    assert done is not None
    assert base_seats(table) == {"a": 2, "b": 2, "d": 1, "e": 1, "f": 1}
    assert len(done.snapshot.splits) == 2
    assert inputs.isdisjoint(done.snapshot.splits)
    require_whole(table)


def test_when_merges_ended_every_input_there_is_nothing_to_commit() -> None:
    table = planes()
    with pytest.raises(CommitConflict, match="every row of the 3 splits to compact"):
        table.compact(merges(table, put="abcd", deleted="ef"))
    assert base_seats(table) == dict.fromkeys("abcd", 2)


def test_an_input_that_was_ended_and_restored_and_removed_by_another_compaction_is_a_conflict() -> None:
    table = planes()
    start = table.snapshot

    def others() -> None:
        merges(table, put="ab")()
        restore(table.log, start)
        assert KeyedTable(table.store, ids=SeededIds(9), clock=table.clock).compact() is not None

    with pytest.raises(CommitConflict, match="no longer live"):
        table.compact(others)
    assert base_seats(table) == dict.fromkeys("abcdef", 1)


def test_without_the_versions_since_the_plan_a_missing_input_is_a_conflict() -> None:
    table = planes()

    def others() -> None:
        merges(table, put="ab")()
        merges(table, put="cd")()
        table.log.checkpoint(table.snapshot)
        table.store.delete([version_key(table.snapshot.version - 1)])

    with pytest.raises(CommitConflict, match="no longer live"):
        _with_head(table, others)
    assert base_seats(table) == {**dict.fromkeys("abcd", 2), "e": 1, "f": 1}


def _with_head(table: KeyedTable, meanwhile: Callable[[], object]) -> None:
    """Compact, and delete the version file of the plan meanwhile. The log must then search for its newest version."""
    planned = version_key(table.snapshot.version)

    def act() -> None:
        meanwhile()
        table.store.delete([planned])

    table.compact(act)


def test_an_input_without_the_sort_column_and_one_without_any_are_followed_too() -> None:
    table = KeyedTable(MemoryStore("carry")).create(SCHEMA.remove(1), replace(SETTINGS, sort_schema=None))
    table.append([{key: value for key, value in row(n).items() if key != "host"} for n in range(0, 100, 2)])
    metadata = replace(
        table.snapshot.metadata,
        schemaString=to_schema_string(SCHEMA.remove(1).append(SCHEMA.field("host"))),
    )
    table.log.commit(table.snapshot, [metadata], operation="CONFIGURE")
    table.append([row(n) for n in range(1, 100, 2)])
    done = table.compact(deletes(table, lambda n: n % 3 == 0))
    assert done is not None
    assert len(done.snapshot.splits) == 1
    assert numbers(table) == [n for n in range(100) if n % 3]


class Disturbed:
    """A store where another row is deleted right before each of the first `times` puts of a version."""

    def __init__(self, times: int) -> None:
        self.objects = MemoryStore("carry")
        self.table = table_of(SETTINGS, self.objects)
        self.store = FaultStore(self.objects)
        self.version = self.table.snapshot.version
        for number in range(times):
            self.store.on_put(version_key(self.version + 1 + number), partial(self._delete, number))

    def _delete(self, number: int) -> None:
        delete_where(self.table.log, lambda each: each["n"] == 100 + number)

    def compact(self) -> KeyedTable:
        process = KeyedTable(self.store, ids=SeededIds(5), clock=self.table.clock)
        assert process.compact() is not None
        return process


def test_deletes_before_every_attempt_but_the_last_are_all_carried_over() -> None:
    disturbed = Disturbed(MAX_ATTEMPTS - 1)
    disturbed.compact()
    deleted = range(100, 100 + MAX_ATTEMPTS - 1)
    assert numbers(disturbed.table) == [n for n in range(2_000) if n % 30 and n not in deleted]
    assert len(disturbed.table.snapshot.splits) == 1


def test_the_attempts_are_bounded_and_then_nothing_is_committed() -> None:
    disturbed = Disturbed(MAX_ATTEMPTS)
    inputs = set(disturbed.table.snapshot.splits)
    with pytest.raises(CommitConflict, match="Plan again"):
        disturbed.compact()
    assert set(disturbed.table.snapshot.splits) == inputs
    assert disturbed.table.snapshot.version == disturbed.version + MAX_ATTEMPTS


def test_an_order_is_computed_once_however_many_deletes_are_carried_over() -> None:
    one, many = Disturbed(1), Disturbed(5)
    reads = []
    for each in (one, many):
        inputs = set(each.table.snapshot.splits)
        each.compact()
        reads.append(sum(happened.request.key in inputs for happened in each.store.trace))
    assert reads[1] - reads[0] <= 4, "of each later delete the row group of its row"


@pytest.mark.parametrize("fault", list(PutFault))
def test_a_lost_reply_while_deletes_land_leaves_one_compaction_or_none(fault: PutFault) -> None:
    disturbed = Disturbed(2)
    disturbed.store.on_put(version_key(disturbed.version + 3), fault)
    try:
        disturbed.compact()
    except CommitUnknown:
        assert fault is PutFault.APPLIED_THEN_UNKNOWN
    disturbed.store.deliver()
    assert numbers(disturbed.table) == [n for n in range(2_000) if n % 30 and n not in (100, 101)]
    compacted = [entry for entry in disturbed.table.log.history() if entry.operation == "COMPACT"]
    assert len(compacted) == 1
    require_whole(disturbed.table)


def test_rows_that_were_restored_meanwhile_are_not_lost() -> None:
    table = table_of(SETTINGS)
    start = table.snapshot.version

    def bring_back() -> None:
        restore(table.log, table.log.snapshot(version=start - 1))

    with pytest.raises(CommitConflict, match=r"restored between version 4 and 5. Plan again"):
        table.compact(bring_back)
    assert numbers(table) == list(range(2_000))


def test_rows_deleted_and_restored_meanwhile_are_nothing_to_carry_over() -> None:
    table = table_of(SETTINGS)
    start = table.snapshot

    def back_and_forth() -> None:
        delete_where(table.log, lambda each: each["n"] < 1_000)
        restore(table.log, start)

    done = table.compact(back_and_forth)
    assert done is not None
    assert not any(add.deleted_rows for add in done.snapshot.splits.values())
    assert numbers(table) == [n for n in range(2_000) if n % 30]


def test_an_input_that_left_the_table_is_a_conflict_also_beside_deletes() -> None:
    table = table_of(SETTINGS)

    def others() -> None:
        delete_where(table.log, lambda each: each["n"] == 1)
        KeyedTable(table.store, ids=SeededIds(9), clock=table.clock).compact()

    with pytest.raises(CommitConflict, match="no longer live"):
        table.compact(others)
    assert numbers(table) == [n for n in range(2_000) if n % 30 and n != 1]


def test_an_output_that_does_not_hold_the_rows_where_the_order_says_is_never_marked() -> None:
    table = table_of(SEVERAL)
    snapshot = table.snapshot
    (operation,) = merge_plan.plan(snapshot)
    result = compaction.execute(table.store, operation, ids=table.ids, now_ms=1)
    assert len(result.adds) > 1
    wrong = replace(result, adds=tuple(reversed(result.adds)))
    delete_places(table.log, {operation.inputs[1].path: [5]})
    carry = CarryOver(table.store, [(operation, wrong)], ids=table.ids)
    with pytest.raises(Corrupt, match="MC-2"):
        table.log.commit(snapshot, wrong.actions, operation="COMPACT", rebase=carry)
    (deleted,) = read_split(table.store, operation.inputs[1]).slice(5, 1).to_pylist()
    assert numbers(table) == [n for n in range(2_000) if n % 30 and n != deleted["n"]]


def test_outputs_of_other_rows_than_those_of_the_inputs_are_never_marked() -> None:
    table = table_of(SEVERAL)
    snapshot = table.snapshot
    (operation,) = merge_plan.plan(snapshot)
    result = compaction.execute(table.store, operation, ids=table.ids, now_ms=1)
    delete_places(table.log, {operation.inputs[1].path: [5]})
    carry = CarryOver(table.store, [(operation, replace(result, adds=result.adds[1:]))], ids=table.ids)
    with pytest.raises(Corrupt, match="MC-1"):
        carry(result.actions, table.snapshot)


def test_a_commit_of_skips_alone_is_as_it_was_on_any_head() -> None:
    table = table_of(SETTINGS)
    snapshot = table.snapshot
    (path, *_) = snapshot.splits
    skip = MergeSkip(path=path, skipTimestamp=1, reason="damaged", operation="compact")
    delete_where(table.log, lambda each: each["n"] == 1)
    carry = CarryOver(table.store, [], ids=table.ids)
    done = table.log.commit(snapshot, [skip], operation="COMPACT", rebase=carry)
    assert list(done.snapshot.mergeskips) == [path]


def test_a_commit_beside_nobody_or_an_append_costs_no_request_more() -> None:
    for append in (False, True):
        counts = []
        for with_rebase in (False, True):
            objects = MemoryStore("carry")
            table = table_of(SETTINGS, objects)
            store = FaultStore(objects)
            process = KeyedTable(store, ids=SeededIds(5), clock=table.clock)
            snapshot = process.snapshot
            (operation,) = merge_plan.plan(snapshot)
            result = compaction.execute(store, operation, ids=process.ids, now_ms=1)
            if append:
                table.append([row(5_000)])
            before = len(store.trace)
            rebase = CarryOver(store, [(operation, result)], ids=process.ids) if with_rebase else None
            process.log.commit(snapshot, result.actions, operation="COMPACT", rebase=rebase)
            counts.append(len(store.trace) - before)
        assert counts[1] == counts[0]
