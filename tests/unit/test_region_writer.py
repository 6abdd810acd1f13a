"""The region writer: an acknowledged row is durable and belongs to this writer (lessons 01, 02, 05, 08, 20, 21)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitUnknown, Corrupt, InvalidInput, Unavailable, WriterFenced
from storage_core.data.formats import arrow_files, keys
from storage_core.data.formats.key_hashes import key_hashes
from storage_core.data.formats.region_manifest import MANIFEST_FILE
from storage_core.data.rows import fold
from storage_core.data.settings.table import TableConfig
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.local import LocalStore
from storage_core.store.memory import MemoryStore
from storage_core.write.region import captured_regions, generation, wal
from storage_core.write.region import writer as claiming
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.spec import list_regions
from storage_core.write.region.writer import RegionWriter
from tests.support.fault_store import FaultStore, PutFault
from tests.support.keyed_table import PLANES, KeyedTable, seats

WAL = "/wal/"


def _table(store: ObjectStore | None = None) -> KeyedTable:
    return KeyedTable(store or MemoryStore("planes")).create()


@pytest.fixture(params=["memory", "local"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> KeyedTable:
    return _table(LocalStore(tmp_path) if request.param == "local" else MemoryStore("planes"))


def test_an_acknowledged_row_is_there_for_everybody_at_once(table: KeyedTable) -> None:
    with table.writer() as planes:
        planes.put({"tailnum": "N1", "seats": 4, "model": "A"})
        assert table.rows() == {"N1": {"tailnum": "N1", "seats": 4, "model": "A"}}


def test_rows_come_as_a_dictionary_a_list_or_an_arrow_table(table: KeyedTable) -> None:
    with table.writer() as planes:
        planes.put({"tailnum": "N1", "seats": 1})
        planes.put([{"tailnum": "N2", "seats": 2}, {"tailnum": "N3", "model": "B"}])
        planes.put(pa.table({"seats": pa.array([4], pa.int32()), "tailnum": ["N4"]}))
        planes.put(pa.record_batch({"tailnum": ["N5"]}))
        planes.put([])
    assert seats(table) == {"N1": 1, "N2": 2, "N3": None, "N4": 4, "N5": None}


def test_a_patch_changes_the_fields_it_names_and_no_others(table: KeyedTable) -> None:
    with table.writer() as planes:
        planes.put([{"tailnum": "N1", "seats": 1, "model": "A"}, {"tailnum": "N2", "seats": 2, "model": "B"}])
        planes.patch(
            [{"tailnum": "N1", "seats": 10}, {"tailnum": "N2", "model": None}, {"tailnum": "N3", "model": "C"}]
        )
        planes.patch(pa.table({"tailnum": ["N3"], "seats": [3]}))
    assert table.rows() == {
        "N1": {"tailnum": "N1", "seats": 10, "model": "A"},
        "N2": {"tailnum": "N2", "seats": 2, "model": None},
        "N3": {"tailnum": "N3", "seats": 3, "model": "C"},
    }


def test_keys_to_delete_come_in_any_form(table: KeyedTable) -> None:
    with table.writer() as planes:
        planes.put([{"tailnum": f"N{number}"} for number in range(7)])
        planes.delete("N0")
        planes.delete(["N1", "N2"])
        planes.delete({"tailnum": "N3"})
        planes.delete([("N4",), {"tailnum": "N5"}])
        planes.delete(pa.table({"tailnum": ["nobody"]}))
    assert set(table.rows()) == {"N6"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda planes: planes.put({"seats": 1}), "tailnum"),
        (lambda planes: planes.put([{"tailnum": "a"}, {"tailnum": None}]), "row 1"),
        (lambda planes: planes.put({"tailnum": "a", "wings": 2}), "unknown column 'wings'"),
        (lambda planes: planes.put({"tailnum": "a", "seats": "many"}), "'seats'"),
        (lambda planes: planes.put({"tailnum": "a", "seats": 2**63}), "'seats'"),
        (lambda planes: planes.put({"tailnum": "\ud800"}), "'tailnum'"),
        (lambda planes: planes.put(pa.table({"tailnum": ["a"], "seats": [1.5]})), "'seats'"),
        (lambda planes: planes.patch({"seats": 1}), "patch needs the key columns"),
        (lambda planes: planes.delete({"tailnum": "a", "seats": 1}), "key columns"),
        (lambda planes: planes.delete(("a", "b")), "does not have one value"),
        (lambda planes: planes.delete(None), "tailnum"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_of_the_call_is_written(call: object, message: str) -> None:
    table = _table()
    assert callable(call)
    with table.writer() as planes:
        with pytest.raises(InvalidInput, match=message):
            call(planes)
        assert table.rows() == {}
        planes.put({"tailnum": "still usable"})
    assert set(table.rows()) == {"still usable"}


def test_a_patch_has_to_give_the_required_columns_because_it_may_create_the_row() -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string(), nullable=False)])
    table = KeyedTable(MemoryStore("t")).create(schema, TableConfig(primary_key=("k",)))
    with table.writer() as rows, pytest.raises(InvalidInput, match=r"required columns \['v'\]"):
        rows.patch({"k": 1})


def test_a_table_without_a_key_has_no_region_writer() -> None:
    table = KeyedTable(MemoryStore("t")).create(PLANES, TableConfig())
    with pytest.raises(InvalidInput, match="primary key"):
        table.writer()


def test_a_second_claim_fences_the_first_and_none_of_its_later_rows_is_visible(table: KeyedTable) -> None:
    first = table.writer()
    first.put({"tailnum": "before"})
    second = table.writer()
    for _ in range(2):
        with pytest.raises(WriterFenced, match="Another writer claimed the region"):
            first.put({"tailnum": "after"})
    with pytest.raises(WriterFenced):
        first.flush()
    second.put({"tailnum": "new"})
    assert (first.epoch, second.epoch) == (1, 2)
    assert set(table.rows()) == {"before", "new"}
    second.flush()
    table.merge()
    assert {row["tailnum"] for row in table.base_rows()} == {"before", "new"}


def test_a_fenced_writer_cannot_flush_what_it_has_in_memory() -> None:
    table = _table()
    first = table.writer()
    first.put({"tailnum": "before"})
    with table.writer() as second:
        with pytest.raises(WriterFenced):
            first.flush()
        assert second.flush() == 1
    manifest = read_latest(table.store, second.region_id)
    assert manifest is not None
    assert [each.generation for each in manifest.flushed_generations] == [1]
    assert set(table.rows()) == {"before"}


def test_the_claim_leaves_a_sentinel_without_rows_at_the_tail() -> None:
    table = _table()
    first = table.writer()
    first.put({"tailnum": "a"})
    table.writer()
    entries = [
        arrow_files.decode_wal_entry(table.store.get(keys.wal_entry_key(first.region_id, entry)).data, "entry")
        for entry in (1, 2, 3)
    ]
    assert [(each.writer_epoch, each.is_sentinel) for each in entries] == [(1, True), (1, False), (2, True)]


def test_a_put_that_sleeps_from_before_a_claim_until_after_it_is_not_applied() -> None:
    store = FaultStore(MemoryStore("planes"))
    table = _table(store)
    first = table.writer()
    store.on_put(WAL, *[PutFault.DELAYED_THEN_UNKNOWN] * 10)
    with pytest.raises(CommitUnknown):
        first.put({"tailnum": "zombie"})
    store.clear_script()
    with table.writer() as second:
        store.deliver()
        second.put({"tailnum": "new"})
    assert set(table.rows()) == {"new"}


def test_a_claim_that_slept_while_another_was_made_learns_it_before_it_acknowledges_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = _table()
    newer: list[RegionWriter] = []
    real = claiming._raise_epoch

    def slow(*args: object, **kwargs: object) -> object:
        claimed = real(*args, **kwargs)  # type: ignore[arg-type]  # passed through unchanged
        if not newer:
            newer.append(None)  # type: ignore[arg-type]  # marks that the inner claim is under way
            newer[0] = table.writer()
            newer[0].put({"tailnum": "newer"})
        return claimed

    monkeypatch.setattr(claiming, "_raise_epoch", slow)
    with pytest.raises(WriterFenced):
        table.writer()
    newer[0].put({"tailnum": "newer still"})
    newer[0].flush()
    assert set(table.rows()) == {"newer", "newer still"}


@pytest.mark.parametrize(
    "fault",
    [PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_CONFLICT, PutFault.DROPPED_THEN_UNKNOWN, PutFault.REFUSED],
)
def test_a_lost_reply_on_a_wal_put_is_acknowledged_exactly_once(fault: PutFault) -> None:
    store = FaultStore(MemoryStore("planes"))
    table = _table(store)
    with table.writer() as planes:
        planes.put({"tailnum": "a"})
        store.on_put(WAL, fault)
        planes.put({"tailnum": "b"})
        planes.put({"tailnum": "c"})
        assert planes.unflushed().column("tailnum").to_pylist() == ["a", "b", "c"]
    records = captured_regions.capture(store, table.snapshot, include_wal=True).above(table.snapshot)
    assert records.column("tailnum").to_pylist() == ["a", "b", "c"]


def test_a_lost_reply_of_a_fenced_writer_never_becomes_a_lost_row() -> None:
    store = FaultStore(MemoryStore("planes"))
    table = _table(store)
    first = table.writer()
    store.on_put(WAL, PutFault.APPLIED_THEN_UNKNOWN)
    first.put({"tailnum": "acknowledged"})
    table.writer()
    assert set(table.rows()) == {"acknowledged"}


def test_after_an_unknown_outcome_the_writer_refuses_everything_and_a_new_one_finds_out() -> None:
    store = FaultStore(MemoryStore("planes"))
    table = _table(store)
    planes = table.writer()
    planes.put({"tailnum": "a"})
    store.on_put(WAL, *[PutFault.DELAYED_THEN_UNKNOWN] * 4)
    with pytest.raises(CommitUnknown, match="may still take effect"):
        planes.put({"tailnum": "b"})
    with pytest.raises(CommitUnknown, match="Open a new writer"):
        planes.put({"tailnum": "c"})
    with pytest.raises(CommitUnknown, match="Open a new writer"):
        planes.flush()
    store.deliver()
    with table.writer() as reopened:
        assert reopened.unflushed().column("tailnum").to_pylist() == ["a", "b"]


def test_a_closed_writer_says_so_and_its_rows_stay() -> None:
    table = _table()
    with table.writer() as planes:
        planes.put({"tailnum": "a"})
    with pytest.raises(InvalidInput, match="closed"):
        planes.put({"tailnum": "b"})
    assert set(table.rows()) == {"a"}


def test_replay_starts_behind_what_is_flushed_and_not_at_the_hint() -> None:
    table = _table()
    planes = table.writer()
    planes.put({"tailnum": "a"})
    assert planes.flush() == 1
    planes.put({"tailnum": "b"})
    planes.put({"tailnum": "c"})
    manifest = read_latest(table.store, planes.region_id)
    assert manifest is not None
    assert manifest.replay_after_wal_id == 2
    with table.writer() as reopened:
        assert reopened.unflushed().column("tailnum").to_pylist() == ["b", "c"]
        assert reopened.flush() == 2
    assert set(table.rows()) == {"a", "b", "c"}


@pytest.mark.parametrize("damage", ["torn", "flipped", "absent"])
@pytest.mark.parametrize("entry", [2, 3])
def test_a_damaged_entry_is_a_typed_error_that_names_it(damage: str, entry: int) -> None:
    table = _table()
    planes = table.writer()
    planes.put({"tailnum": "a"})
    planes.put({"tailnum": "b"})
    planes.put({"tailnum": "c"})
    key = keys.wal_entry_key(planes.region_id, entry)
    data = table.store.get(key).data
    if damage == "absent":
        table.store.delete([key])
    else:
        table.store.put(key, data[:-1] if damage == "torn" else bytes([data[0] ^ 1]) + data[1:], Overwrite())
    manifest = read_latest(table.store, planes.region_id)
    assert manifest is not None
    with pytest.raises(Corrupt, match=key):
        list(wal.replay(table.store, planes.region_id, after=manifest.replay_after_wal_id, before=5))
    if damage != "absent":
        with pytest.raises(Corrupt, match=key):
            table.writer()
        with pytest.raises(Corrupt, match=key):
            table.rows()


def test_a_flush_that_fails_loses_nothing_and_the_next_one_takes_it_all_in_order() -> None:
    store = FaultStore(MemoryStore("planes"))
    table = _table(store)
    with table.writer() as planes:
        planes.put({"tailnum": "a"})
        store.on_put("_gen_", *[PutFault.REFUSED] * 4)
        with pytest.raises((Unavailable, CommitUnknown)):
            planes.flush()
        planes.put({"tailnum": "b"})
        assert planes.flush() == 1
        assert planes.flush() is None
        planes.put({"tailnum": "c"})
        assert planes.flush() == 2
    manifest = read_latest(store, planes.region_id)
    assert manifest is not None
    assert [each.generation for each in manifest.flushed_generations] == [1, 2]
    first, second = (generation.read(store, planes.region_id, each) for each in manifest.flushed_generations)
    assert (first.entries, first.records, second.entries) == ((2, 3), 2, (4,))
    assert set(table.rows()) == {"a", "b", "c"}


def _flush_requests() -> list[tuple[str, str]]:
    store = FaultStore(MemoryStore("planes"))
    with _table(store).writer() as planes:
        planes.put({"tailnum": "a"})
        before = len(store.trace)
        planes.flush()
        return [(each.request.kind, each.request.key) for each in store.trace[before:]]


@pytest.mark.parametrize("number", range(len(_flush_requests())))
@pytest.mark.parametrize("times", [1, 5], ids=["once", "until it gives up"])
def test_whichever_request_of_a_flush_is_refused_nothing_is_lost_and_the_next_flush_makes_it(
    number: int, times: int
) -> None:
    kind, key = _flush_requests()[number]
    store = FaultStore(MemoryStore("planes"))
    table = _table(store)
    planes = table.writer()
    planes.put({"tailnum": "a"})
    part = "_gen_" + key.partition("_gen_")[2] if "_gen_" in key else key.rsplit("/", 1)[1]
    store.on(kind, part, *[Unavailable("refused")] * times)  # type: ignore[arg-type]  # kinds of requests are text
    try:
        planes.flush()
    except (Unavailable, CommitUnknown):
        store.clear_script()
        assert set(table.rows()) == {"a"}
    store.clear_script()
    try:
        planes.put({"tailnum": "b"})
    except CommitUnknown:  # the flush did not know if its manifest was written
        planes = table.writer()
        planes.put({"tailnum": "b"})
    planes.flush()
    manifest = read_latest(store, planes.region_id)
    assert manifest is not None
    found = [generation.read(store, planes.region_id, each) for each in manifest.flushed_generations]
    assert [each.generation for each in found] == list(range(1, len(found) + 1))
    assert [entry for each in found for entry in each.entries] == sorted(
        {entry for each in found for entry in each.entries}
    )
    assert sum(each.records for each in found) == 2
    assert set(table.rows()) == {"a", "b"}


@pytest.mark.parametrize(
    "fault", [PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_CONFLICT, PutFault.DROPPED_THEN_UNKNOWN]
)
@pytest.mark.parametrize("key", ["_manifest.json", "bloom_filter", "key_index", ".binpb"])
def test_a_lost_reply_during_a_flush_makes_one_generation(fault: PutFault, key: str) -> None:
    store = FaultStore(MemoryStore("planes"))
    table = _table(store)
    with table.writer() as planes:
        planes.put({"tailnum": "a"})
        store.on_put(key, fault)
        assert planes.flush() == 1
        assert planes.flush() is None
    assert set(table.rows()) == {"a"}


def test_a_flush_whose_commit_is_unknown_stops_the_writer_and_loses_nothing() -> None:
    store = FaultStore(MemoryStore("planes"))
    table = _table(store)
    planes = table.writer()
    planes.put({"tailnum": "a"})
    store.on_put(".binpb", *[PutFault.DELAYED_THEN_UNKNOWN] * 4)
    with pytest.raises(CommitUnknown):
        planes.flush()
    with pytest.raises(CommitUnknown):
        planes.put({"tailnum": "b"})
    store.deliver()
    with table.writer() as reopened:
        assert reopened.unflushed().num_rows == 0
        reopened.put({"tailnum": "c"})
        assert reopened.flush() == 2
    assert set(table.rows()) == {"a", "c"}


def test_a_full_memtable_is_flushed_before_the_next_append() -> None:
    table = _table()
    with table.writer(WriterOptions(flush_rows=3)) as planes:
        for number in range(8):
            planes.put({"tailnum": f"N{number}"})
        assert planes.unflushed().num_rows == 2
    assert [each.current_generation for each in list_regions(table.store, table.snapshot)] == [3]
    assert len(table.rows()) == 8


def test_the_bloom_filter_of_a_generation_skips_keys_it_does_not_hold_and_no_others() -> None:
    table = _table()
    with table.writer() as planes:
        planes.put([{"tailnum": f"N{number}"} for number in range(500)])
        planes.delete("gone")
        planes.flush()
    manifest = read_latest(table.store, planes.region_id)
    assert manifest is not None
    flushed = generation.read(table.store, planes.region_id, manifest.flushed_generations[0])
    held = pa.table({"tailnum": [f"N{number}" for number in range(500)] + ["gone"]})
    others = pa.table({"tailnum": [f"X{number}" for number in range(500)]})
    found = generation.read_filter(table.store, flushed)
    assert found.may_contain(key_hashes(held, ["tailnum"])).all()
    assert found.may_contain(key_hashes(others, ["tailnum"])).sum() < 10
    assert (flushed.min_key, flushed.max_key) == ({"tailnum": "N0"}, {"tailnum": "gone"})


def test_a_generation_whose_manifest_is_damaged_is_corrupt() -> None:
    table = _table()
    with table.writer() as planes:
        planes.put({"tailnum": "a"})
        planes.flush()
    manifest = read_latest(table.store, planes.region_id)
    assert manifest is not None
    path = manifest.flushed_generations[0].path
    key = keys.generation_file_key(planes.region_id, path, MANIFEST_FILE)
    table.store.put(key, table.store.get(key).data.replace(b"[2]", b"[1]"), Overwrite())
    with pytest.raises(Corrupt, match="damaged generation manifest"):
        table.merge()
    assert len(table.rows()) == 1, "reads use the copy in the region's manifest"


@pytest.mark.parametrize("flushes", [False, True])
def test_what_its_process_sees_is_one_moment_also_while_another_thread_writes_and_flushes(
    table: KeyedTable, *, flushes: bool
) -> None:
    views = 0
    with table.writer() as planes:
        planes.put({"tailnum": "N1", "seats": 1})

        def view() -> list[dict[str, object]]:
            nonlocal views
            views += 1
            seen = list(table.rows().values())
            if views == 1:  # these writes simulate another thread, and the view does not contain them
                planes.put({"tailnum": "N1", "seats": 2})
                planes.put({"tailnum": "N2", "seats": 3}, durable=False)
                if flushes:
                    planes.flush()
            return seen

        seen, records = planes.over(view)
    rows = fold.apply(pa.Table.from_pylist(seen, schema=PLANES), records, ["tailnum"]).to_pylist()
    assert {row["tailnum"]: row["seats"] for row in rows} == {"N1": 2, "N2": 3}
    assert views == 1 + flushes


def test_a_value_that_another_thread_wrote_before_the_view_is_not_hidden_by_an_older_one(table: KeyedTable) -> None:
    with table.writer() as planes:
        planes.put({"tailnum": "N1", "seats": 1})

        def view() -> list[dict[str, object]]:
            planes.put({"tailnum": "N1", "seats": 2})
            return list(table.rows().values())

        seen, records = planes.over(view)
    (row,) = fold.apply(pa.Table.from_pylist(seen, schema=PLANES), records, ["tailnum"]).to_pylist()
    assert row["seats"] == 2
