"""After the loss of any part, repair copies everything that is still readable into a valid table in a new location."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitUnknown, Corrupt, InvalidInput, NotFound, Unavailable, Unsupported
from storage_core.compact import execute as compaction
from storage_core.data.formats import arrow_files
from storage_core.data.formats.keys import parse, tags_key, version_key, wal_entry_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.rows.schema import to_schema_string
from storage_core.log import deletion_vector
from storage_core.log.actions import Add, CommitInfo, Metadata, Remove, RemoveTxn, Txn
from storage_core.log.codec import decode_version, encode_version
from storage_core.log.conflicts import pruning
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Kind
from storage_core.maintain.history import RENUMBERED_UP_TO, restore
from storage_core.maintain.log_check import check_log
from storage_core.maintain.repair import Outcome, repair
from storage_core.maintain.table_objects import list_table
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.local import LocalStore
from storage_core.store.memory import MemoryStore
from storage_core.write.region import merge, wal
from tests.support.blind_listing import BlindListing
from tests.support.clock import ManualClock
from tests.support.copies import contents, copy_of
from tests.support.damage import Damage, damage
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, events
from tests.support.every_kind import EveryKind, answers, every_kind
from tests.support.fault_store import FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.invalid_values import text_of, with_offsets
from tests.support.keyed_table import PLANES, KeyedTable
from tests.support.merge_plan import plan as plan_compaction
from tests.support.scale import scaled


@cache
def original() -> EveryKind:
    return every_kind()


@pytest.fixture
def whole() -> EveryKind:
    table = original()
    return EveryKind(copy_of(table.store, "damaged", table.clock), table.clock, table.older)


def repaired(table: EveryKind) -> tuple[MemoryStore, Outcome]:
    target = MemoryStore("repaired", clock=table.clock)
    before = contents(table.store)
    outcome = repair(table.store, target, clock=table.clock, ids=SeededIds(7))
    assert contents(table.store) == before, "the damaged table is only read"
    assert outcome.check is not None
    assert outcome.check.clean, outcome.check.findings
    return target, outcome


def lose(store: ObjectStore, *kinds: KeyKind) -> list[str]:
    deleted = [key for key in contents(store) if (parsed := parse(key)) is not None and parsed.kind in kinds]
    store.delete(deleted)
    return deleted


def answered(store: ObjectStore, *names: str) -> dict[str, object]:
    table = original()
    found = answers(store, table.clock, table.older)
    return {name: found[name] for name in names or found}


LOG = (KeyKind.VERSION, KeyKind.STATE, KeyKind.MANIFEST, KeyKind.JSON_CHECKPOINT, KeyKind.LAST_CHECKPOINT)


# Remaining parts of the log.


def test_a_sound_table_is_the_same_table_afterwards(whole: EveryKind) -> None:
    target, outcome = repaired(whole)
    assert answered(target) == answered(whole.store)
    assert outcome.lost == ()


def test_lost_states_and_hint_are_written_again(whole: EveryKind) -> None:
    store = MemoryStore("young", clock=whole.clock)
    table = KeyedTable(store, clock=whole.clock).create()
    for name in ("a", "b", "c"):
        with table.writer() as writer:
            writer.put({"tailnum": name, "seats": 1})
            writer.flush()
        table.merge()
        table.log.checkpoint(table.snapshot)
    lose(table.store, KeyKind.STATE, KeyKind.MANIFEST, KeyKind.LAST_CHECKPOINT)
    target, outcome = repaired(EveryKind(store, whole.clock, 0))
    assert (outcome.first_version, outcome.version) == (0, table.snapshot.version)
    assert KeyedTable(target, clock=whole.clock).rows() == table.rows()


def test_a_lost_version_before_a_sound_state_costs_history_only(whole: EveryKind) -> None:
    versions = sorted(_number(key) for key in contents(whole.store) if _is_version(key))
    whole.store.put(version_key(versions[1]), b"", Overwrite())
    target, outcome = repaired(whole)
    assert answered(target, "scan", "latest", "get", "search") == answered(
        original().store, "scan", "latest", "get", "search"
    )
    assert outcome.first_version > versions[1]
    assert version_key(versions[1]) in {each.key for each in outcome.lost}


def test_any_one_version_may_be_lost_and_every_row_is_there(whole: EveryKind) -> None:
    expected = answered(whole.store, "scan", "latest", "get")
    for key in [key for key in contents(whole.store) if _is_version(key)]:
        damaged = EveryKind(copy_of(whole.store, "one version less", whole.clock), whole.clock, whole.older)
        damaged.store.put(key, b"\x1f\x8bnot any more", Overwrite())
        target, outcome = repaired(damaged)
        # A version file that records a merge may be lost while the records of the merged generations still exist. Then
        # the merge is repeated, and `latest` returns the same rows.
        assert answered(target, "latest", "get") == {name: expected[name] for name in ("latest", "get")}, key
        number = _number(key)
        # A version with its own valid state opens without its version file.
        assert (key in {each.key for each in outcome.lost}) != (outcome.first_version == number)


def test_without_any_log_the_splits_and_the_region_say_what_the_table_is(whole: EveryKind) -> None:
    expected = answered(whole.store, "latest", "get")
    lose(whole.store, *LOG, KeyKind.JSON_CHECKPOINT_PART)
    target, outcome = repaired(whole)
    assert answered(target, "latest", "get") == expected
    assert (outcome.first_version, outcome.version) == (0, 1)
    before, after = original().store, target
    for name in ("schema", "config", "table_id"):
        assert getattr(_snapshot(after), name) == getattr(_snapshot(before), name)


@pytest.mark.parametrize("numbered", [True, False])
def test_two_version_files_that_changed_places_are_told_by_their_numbers_or_times(
    whole: EveryKind, numbered: bool
) -> None:
    *_, first, second = sorted(key for key in contents(whole.store) if _is_version(key))
    data = {key: contents(whole.store)[key] for key in (first, second)}
    if not numbered:  # early 0.1 wrote versions without numbers
        data = {key: _without_number(each, key) for key, each in data.items()}
    whole.store.put(first, data[second], Overwrite())
    whole.store.put(second, data[first], Overwrite())
    wrong = Kind.VERSION_DAMAGED if numbered else Kind.TIME_GOES_BACK
    findings = fsck(whole.store, clock=whole.clock).findings
    assert {each.key for each in findings if each.kind is wrong} == {first, second}
    target, _ = repaired(whole)
    assert answered(target, "latest", "get") == answered(original().store, "latest", "get")


def test_while_every_commit_reads_an_orphan_stays_outside_wherever_the_files_lie(
    windowed: tuple[MemoryStore, TransactionLog],
) -> None:
    store, log = windowed
    rows = events([{"at": 7200, "service": "s", "host": "h", "count": 9, "value": 1.0}])
    sort_and_write(store, rows, context=context_of(log.snapshot()), ids=log.ids, now_ms=1)
    for count in (1, 2, 3):
        _append(log, count)
    second, third = (store.get(version_key(version)).data for version in (2, 3))
    store.put(version_key(2), third, Overwrite())
    store.put(version_key(3), second, Overwrite())
    target, _ = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert _counts(target) == [1, 2, 3]


def test_a_restore_behind_a_lost_compaction_keeps_what_it_brought_back(
    windowed: tuple[MemoryStore, TransactionLog],
) -> None:
    store, log = windowed
    _append(log, 1)
    _append(log, 2)
    snapshot = log.snapshot()
    (operation,) = plan_compaction(snapshot)
    done = compaction.execute(store, operation, ids=log.ids, now_ms=1)
    log.commit(snapshot, done.actions, operation="COMPACT")
    restore(log, log.snapshot(version=1))
    store.put(version_key(3), b"damaged", Overwrite())
    target, _ = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert 1 in _counts(target)
    assert len(set(_counts(target))) == len(_counts(target))


def test_a_compaction_that_a_lost_restore_undid_is_not_live_beside_the_next_one(
    windowed: tuple[MemoryStore, TransactionLog],
) -> None:
    store, log = windowed
    _append(log, 1)
    _append(log, 2)
    for _ in range(2):
        snapshot = log.snapshot()
        (operation,) = plan_compaction(snapshot)
        done = compaction.execute(store, operation, ids=log.ids, now_ms=1)
        log.commit(snapshot, done.actions, operation="COMPACT")
        if snapshot.version == 2:
            restore(log, log.snapshot(version=2))
            _append(log, 3)
    store.put(version_key(4), b"damaged", Overwrite())
    target, _ = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert _counts(target) == [1, 2, 3]


# Data that is not in the log.


def test_after_a_repair_the_next_writer_and_the_next_merge_go_on(whole: EveryKind) -> None:
    lose(whole.store, *LOG, KeyKind.JSON_CHECKPOINT_PART)
    target, _ = repaired(whole)
    table = KeyedTable(target, clock=whole.clock)
    before = table.rows()
    with table.writer() as writer:
        writer.put({"id": "after", "status": 1, "text": "repaired"})
        writer.flush()
    table.merge_all()
    assert table.rows() == {**before, "after": {"id": "after", "status": 1, "text": "repaired"}}
    assert len(table.base_rows()) == len(table.rows())


def test_every_lost_region_manifest_leaves_every_acknowledged_row(whole: EveryKind) -> None:
    lose(whole.store, KeyKind.REGION_MANIFEST, KeyKind.REGION_HINT, KeyKind.GENERATION_FILE)
    target, _ = repaired(whole)
    assert answered(target, "scan", "latest", "get") == answered(original().store, "scan", "latest", "get")


def _with_an_entry_of(models: pa.Array) -> tuple[MemoryStore, str]:
    """Make a keyed table whose newest WAL entry has these values.

    Releases without the check could write such an entry.
    """
    clock = ManualClock(step_ms=1)
    store = MemoryStore("planes", clock=clock)
    model = PLANES.get_field_index("model")
    table = KeyedTable(store, clock=clock).create(PLANES.set(model, pa.field("model", models.type)))
    with table.writer() as writer:
        writer.put({"tailnum": "before", "seats": 1})
        writer.put([{"tailnum": f"N{number}", "seats": number} for number in range(len(models))])
        region = writer.region_id
        (number,) = (max(each.entry or 0 for each in list_table(table.store).of(KeyKind.WAL_ENTRY)),)
    held = wal.read(table.store, region, number)
    rows = held.entry.records
    broken = rows.set_column(rows.schema.get_field_index("model"), "model", models)
    key = wal_entry_key(region, number)
    table.store.put(key, arrow_files.encode_wal_entry(replace(held.entry, records=broken)), Overwrite())
    return store, key


def test_of_a_wal_entry_with_a_value_that_is_not_valid_the_other_rows_are_kept_and_that_one_is_counted() -> None:
    store, key = _with_an_entry_of(text_of([b"m", b"m\xff", b"z"]))
    with pytest.raises(Corrupt):
        KeyedTable(store).rows()
    target, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert [(each.key, each.rows, each.is_uncounted) for each in outcome.lost] == [(key, 1, False)]
    assert (outcome.rows_lost, outcome.uncounted) == (1, 0)
    assert {*KeyedTable(target).rows()} == {"N0", "N2", "before"}


def test_of_a_wal_entry_with_invalid_bytes_that_no_row_has_every_row_is_kept() -> None:
    below_a_null = pa.StructArray.from_arrays(
        [text_of([b"m", b"m\xff", b"z"])], ["name"], mask=pa.array([False, True, False])
    )
    store, _ = _with_an_entry_of(below_a_null)
    target, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert outcome.lost == ()
    rows = KeyedTable(target).rows()
    assert {key: row.get("model") for key, row in rows.items()} == {
        "before": None,
        "N0": {"name": "m"},
        "N1": None,
        "N2": {"name": "z"},
    }


def test_of_a_wal_entry_of_which_no_value_can_be_told_every_row_is_counted() -> None:
    store, key = _with_an_entry_of(with_offsets([0, 2, 1, 3]))
    target, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert [(each.key, each.rows) for each in outcome.lost] == [(key, 3)]
    assert {*KeyedTable(target).rows()} == {"before"}


@pytest.mark.parametrize("kind", [Damage.BIT_FLIP, Damage.MISSING])
def test_a_wal_entry_that_is_damaged_counts_as_an_unknown_number_of_rows(kind: Damage) -> None:
    store, key = _with_an_entry_of(text_of([b"m"]))
    if kind is Damage.MISSING:  # only a later entry shows that an entry is missing
        with KeyedTable(store, ids=SeededIds(9)).writer() as writer:
            writer.put({"tailnum": "after"})
    damage(store, key, kind, seed=1)
    _, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert [(each.key, each.rows, each.is_uncounted) for each in outcome.lost] == [(key, None, True)]
    assert (outcome.rows_lost, outcome.uncounted) == (0, 1)


def test_a_split_that_nothing_can_replace_is_listed_with_its_rows(whole: EveryKind) -> None:
    (last,) = [add for add in _snapshot(whole.store).splits.values() if "last-0" in str(add.minValues)]
    whole.store.delete([last.path])
    target, outcome = repaired(whole)
    assert [(each.key, each.rows) for each in outcome.lost] == [(last.path, last.visible_rows)]
    expected, found = answered(original().store, "scan")["scan"], answered(target, "scan")["scan"]
    assert isinstance(expected, list)
    assert isinstance(found, list)
    assert set(found) < set(expected)
    assert len(expected) - len(found) == last.visible_rows < (last.numRecords or 0)


# Splits of a lost log.


@pytest.fixture
def windowed() -> tuple[MemoryStore, TransactionLog]:
    clock = ManualClock(step_ms=1)
    store = MemoryStore("windowed", clock=clock)
    log = TransactionLog(store, clock=clock, ids=SeededIds(3))
    log.create(Metadata(id=TABLE_ID, schemaString=to_schema_string(SCHEMA), configuration=CONFIG.to_configuration()))
    return store, log


def _append(log: TransactionLog, *counts: int) -> list[Add]:
    snapshot = log.snapshot()
    rows = events({"at": 7200 + count, "service": "s", "host": "h", "count": count, "value": 1.0} for count in counts)
    adds = sort_and_write(log.store, rows, context=context_of(snapshot), ids=log.ids, now_ms=1)
    log.commit(snapshot, adds, operation="APPEND")
    return adds


def _counts(store: ObjectStore) -> list[int]:
    splits = _snapshot(store).splits.values()
    return sorted(count for add in splits for count in read_split(store, add).column("count").to_pylist())


def _rebuilt(store: MemoryStore) -> tuple[MemoryStore, Outcome]:
    lose(store, *LOG)
    return repaired(EveryKind(store, ManualClock(step_ms=1), 0))


def test_inputs_of_a_compaction_do_not_come_back_as_doubles(windowed: tuple[MemoryStore, TransactionLog]) -> None:
    store, log = windowed
    _append(log, 1, 2)
    _append(log, 3)
    snapshot = log.snapshot()
    (operation,) = plan_compaction(snapshot)
    killed = compaction.execute(store, operation, ids=log.ids, now_ms=1)
    done = compaction.execute(store, operation, ids=log.ids, now_ms=1)
    log.commit(snapshot, done.actions, operation="COMPACT")
    _append(log, 4)
    assert len(killed.adds) == 1
    target, outcome = _rebuilt(store)
    assert _counts(target) == [1, 2, 3, 4]
    assert outcome.splits == 2


def test_deletion_vectors_of_a_log_that_reads_are_kept(windowed: tuple[MemoryStore, TransactionLog]) -> None:
    store, log = windowed
    (add,) = _append(log, 1, 2)
    (other,) = _append(log, 3)
    vector = deletion_vector.inline([0])
    log.commit(log.snapshot(), [replace(add, deletionVector=vector)], operation="DELETE")
    store.delete([other.path])
    target, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert {path: each.deletionVector for path, each in _snapshot(target).splits.items()} == {add.path: vector}
    assert [each.key for each in outcome.lost] == [other.path]


def test_an_append_that_was_never_committed_is_kept_and_called_unproven(
    windowed: tuple[MemoryStore, TransactionLog],
) -> None:
    store, log = windowed
    rows = events([{"at": 7200, "service": "s", "host": "h", "count": 9, "value": 1.0}])
    (orphan,) = sort_and_write(store, rows, context=context_of(log.snapshot()), ids=log.ids, now_ms=1)
    (committed,) = _append(log, 1)
    target, outcome = _rebuilt(store)
    assert _counts(target) == [1, 9]
    assert set(outcome.unproven) == {orphan.path, committed.path}


def test_newest_versions_that_are_lost_are_told_by_the_splits_that_were_planned_on_them(
    windowed: tuple[MemoryStore, TransactionLog],
) -> None:
    store, log = windowed
    for number in range(1, 7):
        _append(log, number)
    assert log.snapshot().version == 6
    store.delete([version_key(version) for version in (3, 4, 5, 6)])
    assert _counts(store) == [1, 2]
    report = fsck(store, clock=ManualClock())
    assert not report.clean
    assert [(each.key, each.found) for each in report.findings] == [(version_key(3), "versions up to 5 are missing")]
    target, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert _counts(target) == [1, 2, 3, 4, 5, 6]
    assert len(outcome.unproven) == 4
    assert [(each.key, each.reason) for each in outcome.lost] == [
        (version_key(3), "this version and all versions up to 5 cannot be opened in the repaired table")
    ]


def test_a_repaired_table_that_numbers_its_versions_anew_stays_sound_when_splits_leave_it(
    windowed: tuple[MemoryStore, TransactionLog],
) -> None:
    store, log = windowed
    for number in range(20):
        log.commit(log.snapshot(), [Txn(appId="x", version=number)], operation="TXN")
    _append(log, 1)
    _append(log, 2)
    _append(log, 3)
    lose(store, KeyKind.STATE, KeyKind.LAST_CHECKPOINT)
    store.delete([version_key(5)])
    clock = ManualClock(step_ms=1)
    target, outcome = repaired(EveryKind(store, clock, 0))
    assert outcome.version < 20
    head = _snapshot(target)
    assert head.metadata.configuration[RENUMBERED_UP_TO] == "22"
    moved = TransactionLog(target, clock=clock, ids=SeededIds(9))
    path = max(head.splits)
    moved.commit(head, [Remove(path=path, deletionTimestamp=1)], operation="DELETE")
    for number in range(2):
        moved.commit(moved.snapshot(), [Txn(appId="y", version=number)], operation="TXN")
        moved.checkpoint(moved.snapshot())
    target.delete([version_key(version) for version in range(moved.snapshot().version)])
    assert not [each for each in fsck(target, clock=clock).findings if each.kind is Kind.VERSION_MISSING]
    again, _ = repaired(EveryKind(copy_of(target, "damaged again", clock), clock, 0))
    assert _snapshot(again).metadata.configuration[RENUMBERED_UP_TO] == "22"
    restored = restore(moved, head).snapshot
    assert restored.metadata.configuration[RENUMBERED_UP_TO] == "22"


def test_fences_of_versions_that_a_repair_numbers_anew_stop_nobody(
    windowed: tuple[MemoryStore, TransactionLog],
) -> None:
    store, log = windowed
    for number in range(10):
        log.commit(log.snapshot(), [Txn(appId=f"x{number}", version=1)], operation="TXN")
    head = log.snapshot()
    log.commit(head, [RemoveTxn(appId="x3"), RemoveTxn(appId="x9"), pruning(head)], operation="PRUNE FILES")
    lose(store, KeyKind.STATE, KeyKind.LAST_CHECKPOINT)
    store.delete([version_key(6)])
    target, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert outcome.version < head.version
    moved = TransactionLog(target, clock=ManualClock(), ids=SeededIds(9))
    assert set(moved.snapshot().txns) == {f"x{number}" for number in (0, 1, 2, 4, 6, 7, 8)}
    assert moved.commit(moved.snapshot(), [Txn(appId="y", version=1)], operation="TXN").version == outcome.version + 1


def test_a_split_of_another_table_says_nothing_of_this_one(windowed: tuple[MemoryStore, TransactionLog]) -> None:
    store, log = windowed
    _append(log, 1)
    context = replace(context_of(log.snapshot()), planned_version=40, table_id="9" * 8 + TABLE_ID[8:])
    rows = events([{"at": 7200, "service": "s", "host": "h", "count": 9, "value": 1.0}])
    sort_and_write(store, rows, context=context, ids=log.ids, now_ms=1)
    assert fsck(store, clock=ManualClock()).clean


def test_a_check_beside_a_running_writer_calls_nothing_lost(windowed: tuple[MemoryStore, TransactionLog]) -> None:
    store, log = windowed
    _append(log, 1)
    rows = events([{"at": 7200, "service": "s", "host": "h", "count": 9, "value": 1.0}])
    _append(log, 2)
    sort_and_write(store, rows, context=context_of(log.snapshot()), ids=log.ids, now_ms=1)
    inventory = list_table(BlindListing(store, lambda key: key == version_key(2)))
    found = check_log(store, inventory)
    assert found.head is not None
    assert (found.head.version, [each for each in found.findings if each.kind is Kind.VERSION_MISSING]) == (2, [])


@pytest.mark.parametrize("planned", [10**15, 2**63, 10**30])
def test_however_late_a_split_says_it_was_planned_the_check_and_the_repair_end(
    windowed: tuple[MemoryStore, TransactionLog], planned: int
) -> None:
    store, log = windowed
    _append(log, 1)
    context = replace(context_of(log.snapshot()), planned_version=planned)
    rows = events([{"at": 7200, "service": "s", "host": "h", "count": 9, "value": 1.0}])
    sort_and_write(store, rows, context=context, ids=log.ids, now_ms=1)
    store.put(version_key(10**18), b"", Overwrite())
    missing = [each for each in fsck(store, clock=ManualClock()).findings if each.kind is Kind.VERSION_MISSING]
    assert [(each.key, each.found) for each in missing] == [
        (version_key(2), f"versions up to {10**18 - 1} are missing")
    ]
    _, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert [each.key for each in outcome.lost] == [version_key(2), version_key(10**18)]


def test_while_the_log_reads_an_orphan_stays_outside(windowed: tuple[MemoryStore, TransactionLog]) -> None:
    store, log = windowed
    rows = events([{"at": 7200, "service": "s", "host": "h", "count": 9, "value": 1.0}])
    sort_and_write(store, rows, context=context_of(log.snapshot()), ids=log.ids, now_ms=1)
    _append(log, 1)
    target, _ = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert _counts(target) == [1]


def test_a_flipped_bit_anywhere_in_a_split_never_gives_wrong_rows(windowed: tuple[MemoryStore, TransactionLog]) -> None:
    """Without a log, only the file itself can show that its bytes are damaged."""
    store, log = windowed
    (add,) = _append(log, *range(20))
    lose(store, *LOG)
    data = store.get(add.path).data
    for bit in range(0, len(data) * 8, 97):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        store.put(add.path, bytes(damaged), Overwrite())
        target = MemoryStore("target")
        with suppress(Corrupt, Unsupported):
            repair(store, target, clock=ManualClock(), ids=SeededIds(1))
            assert _counts(target) == list(range(20))


def test_a_merge_and_its_deletes_survive_the_loss_of_the_log() -> None:
    store = MemoryStore("deletes", clock=ManualClock(step_ms=1))
    table = KeyedTable(store).create()
    with table.writer() as writer:
        writer.put([{"tailnum": name, "seats": 1} for name in ("a", "b")])
        writer.flush()
    table.merge()
    with table.writer() as writer:
        writer.delete(["a", "b"])
        writer.put({"tailnum": "c", "seats": 2})
        writer.flush()
    table.merge()
    rows = table.rows()
    lose(table.store, *LOG, KeyKind.WAL_ENTRY, KeyKind.GENERATION_FILE)
    target, _ = repaired(EveryKind(store, table.clock, 0))
    assert KeyedTable(target, clock=table.clock).rows() == rows == {"c": {"tailnum": "c", "seats": 2, "model": None}}


def test_a_merge_that_was_never_committed_is_not_counted_beside_the_one_that_was() -> None:
    store = MemoryStore("twice", clock=ManualClock(step_ms=1))
    table = KeyedTable(store).create()
    with table.writer() as writer:
        writer.put([{"tailnum": name, "seats": 1} for name in ("a", "b")])
        writer.flush()
    snapshot = table.snapshot
    (work,) = merge.plan(table.store, snapshot)
    table.execute(work)
    table.commit(snapshot, work, table.execute(work))
    rows = table.rows()
    lose(table.store, *LOG)
    target, _ = repaired(EveryKind(store, table.clock, 0))
    assert KeyedTable(target, clock=table.clock).rows() == rows


def test_a_split_that_a_compaction_wrote_comes_back_from_what_it_replaced(
    windowed: tuple[MemoryStore, TransactionLog],
) -> None:
    store, log = windowed
    _append(log, 1, 2)
    _append(log, 3)
    snapshot = log.snapshot()
    (operation,) = plan_compaction(snapshot)
    done = compaction.execute(store, operation, ids=log.ids, now_ms=1)
    log.commit(snapshot, done.actions, operation="COMPACT")
    _append(log, 4)
    store.delete([done.adds[0].path])
    target, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert _counts(target) == [1, 2, 3, 4]
    assert [each.key for each in outcome.recovered] == [done.adds[0].path]
    assert (outcome.lost, outcome.rows_lost) == ((), 0)


def test_inputs_of_a_compaction_whose_vectors_hide_no_row_come_back_as_well(
    windowed: tuple[MemoryStore, TransactionLog],
) -> None:
    store, log = windowed
    rows = events([{"at": 7200, "service": "s", "host": "h", "count": 1, "value": 1.0}])
    (written,) = sort_and_write(store, rows, context=context_of(log.snapshot()), ids=log.ids, now_ms=1)
    log.commit(log.snapshot(), [replace(written, deletionVector=deletion_vector.inline(()))], operation="RESTORE")
    _append(log, 2)
    snapshot = log.snapshot()
    (operation,) = plan_compaction(snapshot)
    done = compaction.execute(store, operation, ids=log.ids, now_ms=1)
    log.commit(snapshot, done.actions, operation="COMPACT")
    store.delete([done.adds[0].path])
    target, outcome = repaired(EveryKind(store, ManualClock(step_ms=1), 0))
    assert _counts(target) == [1, 2]
    assert outcome.lost == ()


# The location of the repaired table.


def test_a_location_that_is_not_empty_is_refused(whole: EveryKind) -> None:
    target = MemoryStore("taken")
    target.put("anything", b"x", Overwrite())
    with pytest.raises(InvalidInput, match="not empty"):
        repair(whole.store, target, clock=whole.clock, ids=SeededIds(1))
    assert contents(target) == {"anything": b"x"}


def test_a_location_within_the_damaged_table_is_refused(tmp_path: Path, whole: EveryKind) -> None:
    source = LocalStore(tmp_path / "table")
    for key, data in contents(whole.store).items():
        source.put(key, data, Overwrite())
    for place in (tmp_path / "table", tmp_path / "table" / "repaired", tmp_path):
        with pytest.raises(InvalidInput, match="apart from"):
            repair(source, LocalStore(place), clock=whole.clock, ids=SeededIds(1))
    assert contents(source) == contents(whole.store)


def test_nothing_is_repaired_into_nothing() -> None:
    with pytest.raises(NotFound, match="no object of a table"):
        repair(MemoryStore("empty"), MemoryStore("target"), clock=ManualClock(), ids=SeededIds(1))


def test_a_dry_run_writes_nothing_and_says_the_same(whole: EveryKind) -> None:
    lose(whole.store, KeyKind.LAST_CHECKPOINT, KeyKind.SEGMENT)
    target = MemoryStore("dry")
    planned = repair(whole.store, target, clock=whole.clock, ids=SeededIds(1), dry_run=True)
    assert contents(target) == {}
    _, done = repaired(whole)
    assert (planned.status, planned.check) == ("planned", None)
    for name in ("version", "first_version", "splits", "rows", "bytes", "records", "lost", "recovered"):
        assert getattr(planned, name) == getattr(done, name), name


def test_a_repair_that_is_killed_leaves_no_table(whole: EveryKind) -> None:
    target = MemoryStore("killed", clock=whole.clock)
    dying = FaultStore(target)
    dying.on("put", "_transaction_log/0", _killed)
    with pytest.raises(KeyboardInterrupt):
        repair(whole.store, dying, clock=whole.clock, ids=SeededIds(1))
    versions = [key for key in contents(target) if _is_version(key)]
    assert versions == []


def test_a_tag_of_which_the_store_does_not_tell_is_not_called_lost(whole: EveryKind) -> None:
    mute = FaultStore(MemoryStore("mute", clock=whole.clock))
    mute.on_put(tags_key(), *[PutFault.DROPPED_THEN_UNKNOWN] * 20)
    with pytest.raises(CommitUnknown, match=r"_tags\.json"):
        repair(whole.store, mute, clock=whole.clock, ids=SeededIds(1))


def test_a_check_of_a_store_that_breaks_off_reports_no_damage(whole: EveryKind) -> None:
    """In each run, a different request of the store fails.

    If an object is unreadable for a short time, this is not a finding.
    """
    calm = FaultStore(whole.store)
    report = fsck(calm, clock=whole.clock, deep=True)
    assert report.clean
    for number in range(0, len(calm.trace), max(1, 17 // scaled(1))):
        broken = FaultStore(whole.store)
        broken.at(number, Unavailable("gone for a moment"))
        with pytest.raises(Unavailable, match="gone for a moment"):
            fsck(broken, clock=whole.clock, deep=True)


def test_files_of_a_newer_release_are_not_taken_for_damage(whole: EveryKind) -> None:
    newest = max(key for key in contents(whole.store) if _is_version(key))
    whole.store.put(newest, b'{"newAction":{}}\n', Overwrite())
    assert Kind.NEWER_FORMAT in {each.kind for each in fsck(whole.store, clock=whole.clock).findings}
    with pytest.raises(Unsupported, match="newAction"):
        repair(whole.store, MemoryStore("target"), clock=whole.clock, ids=SeededIds(1))


def _killed() -> None:
    raise KeyboardInterrupt


def _without_number(data: bytes, key: str) -> bytes:
    info, *rest = decode_version(data, key)
    assert isinstance(info, CommitInfo)
    return encode_version([replace(info, version=None), *rest])


def _is_version(key: str) -> bool:
    parsed = parse(key)
    return parsed is not None and parsed.kind is KeyKind.VERSION


def _number(key: str) -> int:
    parsed = parse(key)
    assert parsed is not None
    assert parsed.version is not None
    return parsed.version


def _snapshot(store: ObjectStore) -> Snapshot:
    return TransactionLog(store).snapshot()
