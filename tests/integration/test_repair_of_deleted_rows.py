"""Deleted rows do not come back when the log is lost. A repair reports the cases that it cannot decide."""

from __future__ import annotations

import pytest

from storage_core.data.formats.keys import parse, version_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Kind
from storage_core.maintain.repair import Outcome, repair
from storage_core.split.deletion_vectors import INLINE_BYTES
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.region import merge
from storage_core.write.region.repartition import change_regions
from storage_core.write.region.spec import declared_fields
from tests.support.deleted_rows import delete_places
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable, Row, base_seats

LOG = frozenset({KeyKind.VERSION, KeyKind.STATE, KeyKind.MANIFEST, KeyKind.JSON_CHECKPOINT, KeyKind.LAST_CHECKPOINT})
RECORDS = frozenset({KeyKind.WAL_ENTRY, KeyKind.GENERATION_FILE, KeyKind.REGION_MANIFEST, KeyKind.REGION_HINT})


def _lose(store: ObjectStore, kinds: frozenset[KeyKind]) -> None:
    keys = [info.key for info in store.list("")]
    store.delete([key for key in keys if (parsed := parse(key)) is not None and parsed.kind in kinds])


def _repaired(table: KeyedTable) -> tuple[KeyedTable, Outcome]:
    target = MemoryStore("repaired", clock=table.clock)
    outcome = repair(table.store, target, clock=table.clock, ids=SeededIds(7))
    assert outcome.check is not None
    assert outcome.check.clean, outcome.check.findings
    return KeyedTable(target, clock=table.clock), outcome


@pytest.fixture
def planes() -> KeyedTable:
    """Write ten rows. Put some rows again, patch one row, and delete and put one row again. Delete `t9` last."""
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as writer:
        writer.put([_plane(n, 1) for n in range(10)])
        writer.flush()
        table.merge()
        writer.put([_plane(n, 2) for n in (0, 1)])
        writer.patch({"tailnum": "t2", "seats": 2})
        writer.delete("t3")
        writer.flush()
        table.merge()
        writer.put([_plane(3, 3)])
        writer.put([_plane(0, 3)])
        writer.flush()
        table.merge()
        writer.delete("t9")
        writer.flush()
        table.merge()
    return table


def _plane(n: int, seats: int) -> Row:
    return {"tailnum": f"t{n}", "seats": seats, "model": f"m{n}"}


def test_while_the_records_are_there_a_lost_log_brings_no_deleted_row_back(planes: KeyedTable) -> None:
    expected = planes.rows()
    _lose(planes.store, LOG)
    target, _ = _repaired(planes)
    assert target.rows() == expected
    target.merge()
    assert {row["tailnum"]: row for row in target.base_rows()} == expected


def test_without_records_the_row_that_was_planned_later_is_live_and_the_repair_says_what_may_be_back(
    planes: KeyedTable,
) -> None:
    expected = base_seats(planes)
    _lose(planes.store, LOG | RECORDS)
    target, outcome = _repaired(planes)
    assert base_seats(target) == expected | {"t9": 1}
    (said,) = [each for each in outcome.lost if each.key.startswith("_mem_wal/")]
    assert "Deleted rows may be live again in 2 splits" in said.reason


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_versions_lost_at_the_end_hide_nothing_that_was_live_and_show_nothing_that_was_not(
    planes: KeyedTable, lost: int
) -> None:
    expected = planes.rows()
    newest = planes.snapshot.version
    planes.store.delete([version_key(version) for version in range(newest - lost + 1, newest + 1)])
    target, _ = _repaired(planes)
    assert target.rows() == expected
    target.merge()
    assert {row["tailnum"]: row for row in target.base_rows()} == expected


def _with_stored_vector() -> tuple[KeyedTable, str, str]:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as writer:
        writer.put([_plane(n, 1) for n in range(4_000)])
        writer.flush()
    table.merge()
    (path,) = table.snapshot.splits
    places = [place * place % 3_989 for place in range(2_000)]
    delete_places(table.log, {path: places})
    vector = table.snapshot.splits[path].deletionVector
    assert vector is not None
    assert vector.path is not None
    assert vector.size > INLINE_BYTES
    return table, path, vector.path


def test_a_stored_vector_is_brought_over_with_its_split() -> None:
    table, _, key = _with_stored_vector()
    assert fsck(table.store, clock=table.clock, deep=True).clean
    target, outcome = _repaired(table)
    assert outcome.lost == ()
    assert base_seats(target) == base_seats(table)
    assert target.store.get(key).data == table.store.get(key).data


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_a_split_whose_vector_is_lost_is_found_and_not_brought_back_with_its_deleted_rows(damage: str) -> None:
    table, path, key = _with_stored_vector()
    data = table.store.get(key).data
    match damage:
        case "gone":
            table.store.delete([key])
        case "short":
            table.store.put(key, data[:-1], Overwrite())
        case _:
            table.store.put(key, data[:-1] + bytes([data[-1] ^ 1]), Overwrite())
    findings = fsck(table.store, clock=table.clock, deep=True).findings
    kind = Kind.VECTOR_MISSING if damage == "gone" else Kind.VECTOR_DAMAGED
    assert {(each.kind, each.key) for each in findings} == {(kind, key)}
    shallow = fsck(table.store, clock=table.clock).findings
    assert [each.key for each in shallow] == ([] if damage == "flipped" else [key])
    target, outcome = _repaired(table)
    assert target.base_rows() == []
    (lost,) = outcome.lost
    assert (lost.key, lost.rows) == (path, table.snapshot.splits[path].visible_rows)
    assert "so the deleted rows are not known" in lost.reason


def _emptied_by_two_regions() -> KeyedTable:
    """Make a split whose rows are all hidden. Puts and deletes in each of two regions hide a part of the rows."""
    table = _one_split_before_two_regions()
    (path,) = table.snapshot.splits
    with table.routing_writer() as writer:
        writer.put([_plane(n, 2) for n in range(6)])
        for n in range(6, 10):
            writer.delete(f"t{n}")
        writer.flush()
    _merge_both(table)
    assert path not in table.snapshot.splits
    return table


def _one_split_before_two_regions() -> KeyedTable:
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as single:
        single.put([_plane(n, 1) for n in range(10)])
    change_regions(table.log, declared_fields([{"transform": "bucket", "source": "tailnum", "n": 2}], PLANES))
    assert len(table.snapshot.splits) == 1
    return table


def _merge_both(table: KeyedTable) -> None:
    assert len(merge.plan(table.store, table.snapshot)) == 2
    table.merge()


def test_rows_of_regions_before_a_change_stay_when_the_log_is_lost() -> None:
    table = _one_split_before_two_regions()
    with table.routing_writer() as writer:
        writer.put([_plane(n, 2) for n in range(3)])
        writer.delete("t9")
        writer.flush()
    _merge_both(table)
    expected = table.rows()
    _lose(table.store, LOG)
    target, _ = _repaired(table)
    assert target.rows() == expected


def test_a_split_that_only_several_regions_together_emptied_stays_gone_when_the_log_is_lost() -> None:
    table = _emptied_by_two_regions()
    expected = table.rows()
    _lose(table.store, LOG)
    target, _ = _repaired(table)
    assert target.rows() == expected


def test_without_records_what_several_regions_together_deleted_is_said_to_be_back() -> None:
    table = _emptied_by_two_regions()
    _lose(table.store, LOG | RECORDS)
    target, outcome = _repaired(table)
    assert base_seats(target) == {f"t{n}": 2 if n < 6 else 1 for n in range(10)}
    said = [each for each in outcome.lost if each.key.startswith("_mem_wal/")]
    assert len(said) == 2
    assert all("Deleted rows may be live again in 1 splits" in each.reason for each in said)


@pytest.mark.parametrize("lost", range(1, 5))
def test_a_lost_version_around_a_change_of_regions_loses_no_row(lost: int) -> None:
    table = _one_split_before_two_regions()
    with table.routing_writer() as writer:
        writer.put([_plane(n, 2) for n in range(3)])
        writer.delete("t9")
        writer.flush()
        _merge_both(table)
        writer.put(_plane(0, 3))
        writer.flush()
        table.merge()
        writer.put(_plane(1, 3))
    expected = table.rows()
    assert [each.operation for each in table.log.history()][::-1][1:] == ["MERGE", "CONFIGURE", "MERGE", "MERGE"]
    table.store.delete([version_key(lost)])
    target, _ = _repaired(table)
    assert target.rows() == expected


def test_records_of_regions_that_nothing_describes_any_more_are_said_to_be_lost() -> None:
    table = _one_split_before_two_regions()
    with table.routing_writer() as writer:
        writer.put([_plane(n, 2) for n in range(3)])
    table.store.delete([version_key(table.snapshot.version)])
    target, outcome = _repaired(table)
    assert target.rows() == {f"t{n}": _plane(n, 1) for n in range(10)}
    lost = [each for each in outcome.lost if each.key.startswith("_mem_wal/")]
    assert sum(each.rows or 0 for each in lost) == 3
    assert all("belong to region spec 2, whose description is lost" in each.reason for each in lost)


def test_regions_whose_manifests_are_lost_are_read_again_by_the_spec_of_the_table() -> None:
    table = _one_split_before_two_regions()
    with table.routing_writer() as writer:
        writer.put([_plane(n, 2) for n in range(3)])
    expected = table.rows()
    _lose(table.store, frozenset({KeyKind.REGION_MANIFEST, KeyKind.REGION_HINT}))
    target, _ = _repaired(table)
    assert target.rows() == expected


@pytest.mark.parametrize("kinds", [LOG, LOG | RECORDS], ids=["with records", "without"])
def test_of_a_compaction_and_a_merge_that_it_carried_over_the_rows_of_the_merge_are_newer(
    kinds: frozenset[KeyKind],
) -> None:
    """The compaction and the merge were planned on the same version.

    The repair can derive the order of the rows from the files, because compaction does not change the age of a row.
    """
    table = KeyedTable(MemoryStore("planes")).create()
    with table.writer() as writer:
        for first in (0, 5):
            writer.put([_plane(n, 1) for n in range(first, first + 5)])
            writer.flush()
            table.merge()
        writer.put([_plane(n, 2) for n in (0, 7)])
        writer.flush()
    assert table.compact(table.merge) is not None
    expected = table.rows()
    assert [each for each in table.snapshot.splits.values() if each.deleted_rows], "carried over"
    _lose(table.store, kinds)
    target, _ = _repaired(table)
    assert target.rows() == expected
    target.merge()
    assert {row["tailnum"]: row for row in target.base_rows()} == expected
