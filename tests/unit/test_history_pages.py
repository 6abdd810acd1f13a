"""A table read in pages: of any size, from any position, by any process, at one version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import pyarrow as pa
import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import Corrupt, InvalidInput, SnapshotExpired
from storage_core.compact import execute as compaction
from storage_core.data.formats import arrow_files, keys
from storage_core.data.formats.arrow_files import WalEntry
from storage_core.data.formats.history_token import InBase, InGenerations, InTail, decode
from storage_core.data.rows.fold import FIELDS, OPERATION, record_schema
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import collect
from storage_core.maintain.history import set_tag
from storage_core.read.history import HistoryPage, ReadPosition, read_pages
from storage_core.store.contract import IfAbsent, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.write.region.manifest import read_latest, region_of
from storage_core.write.region.spec import first_specs
from storage_core.write.region.writer import RegionWriter
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable
from tests.support.meanwhile import Meanwhile
from tests.support.merge_plan import plan as plan_compaction
from tests.support.paged_history import WHOLE, folded, page_of, pages_of, view_of
from tidemark import Table

CONFIG = TableConfig(
    primary_key=("tailnum",), checkpoint_interval=0, version_retention_ms=HOUR_MS, gc_horizon_ms=HOUR_MS
)


def row(name: str, seats: int) -> dict[str, object]:
    return {"tailnum": name, "seats": seats, "model": f"model {seats}"}


def make(config: TableConfig = CONFIG) -> KeyedTable:
    clock = ManualClock(step_ms=1)
    return KeyedTable(MeteredStore(MemoryStore("pages", clock=clock)), clock=clock).create(config=config)


def filled(config: TableConfig = CONFIG) -> KeyedTable:
    """Make two splits, one with a deletion vector, two generations of several entries, and a log tail of two claims."""
    table = make(config)
    with table.writer() if len(config.region_specs) == 0 else table.routing_writer() as writer:
        for first in (0, 5):
            writer.put([row(f"N{each}", each) for each in range(first, first + 6)])
            writer.flush()
            table.merge()
        for seats in (20, 30):
            writer.put([row("N3", seats), row(f"G{seats}", seats)])
            writer.patch({"tailnum": "N4", "seats": seats})
            writer.delete("N7")
            writer.flush()
        writer.put(row("T1", 1))
        writer.patch({"tailnum": "N1", "seats": 99})
    with table.writer() if len(config.region_specs) == 0 else table.routing_writer() as writer:
        writer.reset(row("N2", 98))
        writer.delete("N0")
    return table


def values(pages: Iterator[HistoryPage]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = pa.concat_tables([page.records for page in pages]).to_pylist()
    return found


def compact(table: KeyedTable) -> None:
    for operation in plan_compaction(table.snapshot):
        result = compaction.execute(table.store, operation, ids=table.ids, now_ms=table.clock.now_ms())
        table.log.commit(table.snapshot, result.actions, operation="COMPACT")


def collect_all(table: KeyedTable) -> None:
    """Collect everything that only an older version needs, including numbered objects."""
    table.log.checkpoint(table.snapshot)
    for _ in range(3):
        table.clock.sleep_ms(2 * HOUR_MS)
        collect(table.store, table.log, clock=table.clock, horizon_ms=0)


def merge_and_collect(table: KeyedTable) -> None:
    with table.writer() as writer:
        writer.put(row("Z", 1))
        writer.flush()
    table.merge_all()
    compact(table)
    collect_all(table)


def test_the_pages_of_every_size_are_one_after_the_other_the_one_page_that_holds_all() -> None:
    table = filled()
    whole = page_of(table.log)
    assert whole.token is None
    assert whole.records.schema == record_schema(PLANES)
    assert any(add.deletionVector is not None for add in table.snapshot.splits.values())
    for page_bytes in (1, 50, 51, 80, 100, 333, 1000, 5000):
        pages = [*pages_of(table.log, page_bytes=page_bytes)]
        assert pa.concat_tables([page.records for page in pages]).equals(whole.records)
        assert all(page.records.num_rows for page in pages)
        assert all(page.records.nbytes <= page_bytes or page.records.num_rows == 1 for page in pages)
        assert not any(page.restarted for page in pages)
    assert [*read_pages(view_of(table.log), page_bytes=100)] == [*pages_of(table.log, page_bytes=100)]


def test_a_record_that_is_larger_than_a_page_is_one_and_the_next_ones_share_the_next() -> None:
    table = make()
    with table.writer() as writer:
        writer.put([row("a", 1), {**row("b", 2), "model": "x" * 1000}, row("c", 3), row("d", 4)])
    assert [page.records.num_rows for page in pages_of(table.log, page_bytes=200)] == [1, 1, 2]


def test_the_records_fold_to_the_rows_and_come_in_the_order_base_generations_tail() -> None:
    table = filled()
    records = page_of(table.log).records
    assert folded(records, table.snapshot) == table.rows()
    # The history has the live rows of both splits, four records from each of two generations, and two WAL records from
    # each of two writers.
    base = [row["tailnum"] for row in table.base_rows()]
    names = records.column("tailnum").to_pylist()
    assert sorted(names[: len(base)], key=str) == sorted(base, key=str)
    flushed = ["N3", "G20", "N4", "N7", "N3", "G30", "N4", "N7"]
    assert names[len(base) :] == [*flushed, "T1", "N1", "N2", "N0"]


def test_a_history_goes_on_from_every_record_in_every_kind_of_place() -> None:
    table = filled()
    whole = page_of(table.log).records
    kinds = set()
    for done, page in enumerate(pages_of(table.log, page_bytes=1), start=1):
        if page.token is not None:
            kinds.add(type(decode(page.token).place))
            for _ in range(2):  # a token can be used repeatedly
                assert page_of(table.log, page.token).records.equals(whole.slice(done))
    assert kinds == {InBase, InGenerations, InTail}


def test_of_several_regions_every_record_comes_once_and_those_of_a_key_in_order() -> None:
    specs = first_specs([{"transform": "bucket(3)", "source": "tailnum"}], PLANES)
    table = filled(replace(CONFIG, region_specs=specs))
    assert len(decode(page_of(table.log, page_bytes=1).token or "").regions) > 1
    pages = [*pages_of(table.log, page_bytes=1)]
    records = pa.concat_tables([page.records for page in pages])
    assert records.equals(page_of(table.log).records)
    assert folded(records, table.snapshot) == table.rows()


def test_a_history_sees_as_much_as_it_is_asked_for() -> None:
    table = filled()
    seen = {level: page_of(table.log, consistency=level).records for level in ("snapshot", "committed", "latest")}
    assert [each.num_rows for each in seen.values()] == [11, 19, 23]
    assert folded(seen["snapshot"], table.snapshot) == {each["tailnum"]: each for each in table.base_rows()}
    for level, records in seen.items():
        token = page_of(table.log, page_bytes=1, consistency=level).token
        assert page_of(table.log, token, consistency=level).records.num_rows == records.num_rows - 1
        assert page_of(table.log, token).records.num_rows == records.num_rows - 1


def test_what_is_written_flushed_merged_and_compacted_later_is_not_in_it() -> None:
    table = filled()
    whole = page_of(table.log).records
    pages = list(islice(pages_of(table.log, page_bytes=1), 1))
    with table.writer() as writer:
        writer.put([row("N5", 500), row("later", 1)])
        writer.flush()
        writer.delete("N6")
    assert table.merge()
    compact(table)
    pages += pages_of(table.log, pages[-1].token, page_bytes=300)
    assert pa.concat_tables([page.records for page in pages]).equals(whole)
    assert not any(page.restarted for page in pages)


def test_what_is_flushed_and_merged_while_the_moment_is_captured_is_read_once_and_never_older() -> None:
    for position in range(40):
        table = make()
        writer = table.writer()
        writer.put([row("a", 1), row("b", 1)])
        writer.flush()
        writer.put([row("a", 2), row("c", 2)])
        before = table.rows()
        meanwhile = Meanwhile(position, partial(write_flush_and_merge, table, writer))
        log = TransactionLog(FaultStore(table.store, watch=meanwhile), clock=table.clock, ids=table.ids)
        page = page_of(log)
        after = table.rows()
        assert folded(page.records, table.snapshot) in (before, after)
        if not meanwhile.acted:
            return
        if page.version == table.snapshot.version:
            assert folded(page.records, table.snapshot) == after
    raise AssertionError("a history of this table takes fewer requests")


def write_flush_and_merge(table: KeyedTable, writer: RegionWriter) -> None:
    writer.put([row("a", 3)])
    writer.delete("c")
    writer.flush()
    table.merge_all()


def test_when_what_comes_next_is_collected_the_history_begins_anew_once() -> None:
    table = filled()
    places = [page.token for page in pages_of(table.log, page_bytes=1) if page.token is not None]
    merge_and_collect(table)
    whole = page_of(table.log)
    assert folded(whole.records, table.snapshot) == table.rows()
    for token in places:
        pages = [*pages_of(table.log, token, page_bytes=700)]
        assert [page.restarted for page in pages] == [True] + [False] * (len(pages) - 1)
        assert pa.concat_tables([page.records for page in pages]).equals(whole.records)
    again = page_of(table.log, places[0], page_bytes=1)
    assert again.restarted
    assert again.version == table.snapshot.version
    merge_and_collect(table)
    with pytest.raises(SnapshotExpired, match=r"`gc_horizon_ms`.*begin without a token"):
        page_of(table.log, again.token)
    assert folded(page_of(table.log).records, table.snapshot) == table.rows()


def test_a_stream_of_pages_goes_on_where_a_collection_begins_it_anew() -> None:
    table = filled()
    pages = read_pages(view_of(table.log), page_bytes=100)
    before = [next(pages), next(pages)]
    merge_and_collect(table)
    after = [*pages]
    assert [page.restarted for page in (*before, *after)].count(True) == 1
    start = next(at for at, page in enumerate(after) if page.restarted)
    assert pa.concat_tables([page.records for page in after[start:]]).equals(page_of(table.log).records)


def test_a_table_that_was_opened_long_ago_reads_the_newest_rows_when_its_own_are_collected() -> None:
    table = filled()
    old = view_of(table.log)
    merge_and_collect(table)
    for consistency in ("snapshot", "latest"):
        (page,) = read_pages(old, page_bytes=WHOLE, consistency=consistency)
        assert folded(page.records, table.snapshot) == table.rows()


def test_what_a_merge_took_and_the_collector_has_not_yet_is_still_read() -> None:
    table = filled()
    whole = page_of(table.log).records
    token = page_of(table.log, page_bytes=1).token
    table.merge_all()
    table.log.checkpoint(table.snapshot)
    collect(table.store, table.log, clock=table.clock, horizon_ms=0)
    page = page_of(table.log, token)
    assert not page.restarted
    assert page.records.equals(whole.slice(1))


def test_the_loss_of_what_no_merge_took_is_corrupt_and_no_new_beginning() -> None:
    for kind in ("generation", "entry of a generation", "tail"):
        table = filled()
        manifest = read_latest(table.store, region_of(table.snapshot.table_id))
        assert manifest is not None
        lost = {
            "generation": keys.generation_file_key(
                manifest.region_id, manifest.flushed_generations[-1].path, "_manifest.json"
            ),
            "entry of a generation": keys.wal_entry_key(manifest.region_id, manifest.replay_after_wal_id),
            "tail": keys.wal_entry_key(manifest.region_id, manifest.replay_after_wal_id + 2),
        }[kind]
        token = page_of(table.log, page_bytes=1).token
        table.store.delete([lost])
        with pytest.raises(Corrupt, match=lost):
            page_of(table.log, token)


def test_a_torn_entry_is_corrupt_also_when_it_is_the_last() -> None:
    table = filled()
    token = page_of(table.log, page_bytes=1).token
    region = region_of(table.snapshot.table_id)
    mark = decode(token or "").regions[0]
    key = keys.wal_entry_key(region, mark.last)
    table.store.put(key, table.store.get(key).data[:-5], Overwrite())
    with pytest.raises(Corrupt, match="torn WAL entry"):
        page_of(table.log, token)


def test_entries_that_were_never_acknowledged_are_left_out_wherever_the_history_goes_on() -> None:
    table = filled()
    whole = page_of(table.log).records
    region = region_of(table.snapshot.table_id)
    last = decode(page_of(table.log, page_bytes=1).token or "").regions[0].last
    # A fenced writer writes this entry after the sentinel of the writer that took the region.
    stray = WalEntry(writer_epoch=1, generation=5, writer_id="w", seq=1, records=whole.slice(0, 1), number=last + 1)
    table.store.put(keys.wal_entry_key(region, last + 1), arrow_files.encode_wal_entry(stray), IfAbsent())
    pages = [*pages_of(table.log, page_bytes=1)]
    assert pa.concat_tables([page.records for page in pages]).equals(whole)


def test_large_splits_are_read_by_ranges_and_give_the_same_records_from_any_row() -> None:
    table = make()
    with table.writer() as writer:
        writer.put([row(f"N{each:05}", each) for each in range(20_000)])
        writer.flush()
        table.merge()
        writer.put([row(f"N{each:05}", -each) for each in range(0, 20_000, 3)])
        writer.flush()
        table.merge()
    snapshot = table.snapshot
    whole = records_from(table, snapshot, InBase("", 0), ranges=False)
    assert whole.num_rows == 20_000
    path = min(snapshot.splits)
    for place in (0, 1, 8191, 8192, 8193, 16_500, 19_999):
        by_range = records_from(table, snapshot, InBase(path, place), ranges=True)
        assert by_range.equals(records_from(table, snapshot, InBase(path, place), ranges=False))
        assert by_range.equals(whole.slice(whole.num_rows - by_range.num_rows))


def test_sorted_generations_are_read_chunk_by_chunk_and_go_on_in_any_of_them() -> None:
    table = make()
    with table.writer() as writer:
        for first in (0, 1):
            writer.put([row(f"N{each:05}", each) for each in range(first, 20_000, 2)])
            writer.flush()
        table.sort()
        writer.put(row("N00000", -1))
        writer.flush()
    whole = page_of(table.log).records
    assert whole.column("tailnum").to_pylist() == [*(f"N{each:05}" for each in range(20_000)), "N00000"]
    pages = [*pages_of(table.log, page_bytes=300_000)]
    assert pa.concat_tables([page.records for page in pages]).equals(whole)
    places = [decode(page.token).place for page in pages if page.token is not None]
    assert {place.part for place in places if isinstance(place, InGenerations) and place.generation == 2} == {0, 1, 2}


def test_a_sort_takes_nothing_away_before_the_collector_does_and_then_the_history_begins_anew() -> None:
    table = filled()
    whole = page_of(table.log)
    first = page_of(table.log, page_bytes=1)
    table.sort()
    rest = page_of(table.log, first.token)
    assert not rest.restarted
    assert rest.records.equals(whole.records.slice(1))
    collect_all(table)
    again = page_of(table.log, first.token)
    assert again.restarted
    assert again.records.num_rows < whole.records.num_rows
    assert folded(again.records, table.snapshot) == table.rows()


def test_the_collectors_horizon_keeps_what_a_sort_replaced_and_neither_retention_nor_a_tag_does() -> None:
    table = filled(replace(CONFIG, version_retention_ms=1000 * HOUR_MS, gc_horizon_ms=20 * HOUR_MS))
    set_tag(table.log, "reading", table.snapshot)
    whole = page_of(table.log)
    first = page_of(table.log, page_bytes=1)
    table.sort()
    for _ in range(3):
        table.clock.sleep_ms(5 * HOUR_MS)
        collect(table.store, table.log, clock=table.clock)
    rest = page_of(table.log, first.token)
    assert not rest.restarted
    assert rest.records.equals(whole.records.slice(1))
    for _ in range(3):
        table.clock.sleep_ms(25 * HOUR_MS)
        collect(table.store, table.log, clock=table.clock)
    assert page_of(table.log, first.token).restarted


def records_from(table: KeyedTable, snapshot: Snapshot, place: InBase, *, ranges: bool) -> pa.Table:
    position = ReadPosition(store=table.store, snapshot=snapshot, regions=(), whole_split_bytes=0 if ranges else WHOLE)
    return pa.concat_tables([piece.records for piece in position.pieces(place)])


def test_a_page_costs_what_it_reads_and_nothing_of_what_was_read_before() -> None:
    table = filled()
    requested = view_of(table.log)
    meter = table.store
    assert isinstance(meter, MeteredStore)
    spent: list[dict[str, int]] = []
    kinds: list[str] = []
    token = None
    while True:
        before = meter.requests
        kinds.append("InBase" if token is None else type(decode(token).place).__name__)
        page = next(read_pages(requested, token=token, page_bytes=1))
        spent.append({kind: count - before[kind] for kind, count in meter.requests.items() if count > before[kind]})
        token = page.token
        if token is None:
            break
    # The requests for the first page read the hint and the manifest of the region, and the first split. Other requests
    # search the end of the region's WAL with HEADs, and search a newer version of the table with two GETs.
    assert spent[0] == {"get": 5, "head": 6}
    assert all(set(each) == {"get"} for each in spent[1:])
    gets = {kind: [each["get"] for at, each in zip(kinds, spent, strict=True) if at == kind] for kind in set(kinds)}
    assert gets == {
        # To return a page of the base, the call reads the split. To detect the last row, the call also reads the next
        # split, or the manifest, the generation and the entry.
        "InBase": [5, 1, 1, 1, 1, 2, 1, 1, 1, 1, 4],
        # For a page of a generation, the call reads the manifest, the generation and the entry. To detect the last
        # record, the call also reads the next entry of the generation. If the next entry is in another generation, the
        # call also reads the other generation.
        "InGenerations": [3, 4, 4, 5, 3, 4, 4, 4],
        # For a page of the log, the call reads the entry and the next entry. One page needs a third request, because
        # the sentinel of the second claim is between its two entries.
        "InTail": [2, 3, 2, 1],
    }


def test_a_page_size_and_a_consistency_that_are_none_are_refused() -> None:
    table = make()
    with pytest.raises(InvalidInput, match="page_bytes"):
        page_of(table.log, page_bytes=0)
    with pytest.raises(InvalidInput, match="eventual"):
        page_of(table.log, consistency="eventual")
    token = None
    with table.writer() as writer:
        writer.put([row("a", 1), row("b", 2)])
        token = page_of(table.log, page_bytes=1).token
    with pytest.raises(InvalidInput, match="began with consistency 'latest'"):
        page_of(table.log, token, consistency="snapshot")
    other = KeyedTable(MemoryStore("other"), ids=SeededIds(2)).create()
    with pytest.raises(InvalidInput, match=f"of table {table.snapshot.table_id}"):
        page_of(other.log, token)


def test_an_empty_table_has_one_empty_page() -> None:
    page = page_of(make().log)
    assert (page.records.num_rows, page.token) == (0, None)
    assert page.records.schema == record_schema(PLANES)


def test_an_append_table_is_read_in_pages_by_the_table_itself() -> None:
    uri = "memory://history-of-an-append-table"
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    table = Table.create(uri, schema)
    for first in (0, 50):
        table.append([{"n": each, "text": "t" * each} for each in range(first, first + 50)])
    page = Table.open(uri).read_history(page_bytes=1000)
    found = [page.records]
    table.append([{"n": 100, "text": "later"}])
    while page.token is not None:
        page = Table.open(uri).read_history(token=page.token, page_bytes=1000)
        found.append(page.records)
    records = pa.concat_tables(found)
    assert sorted(records.column("n").to_pylist()) == [*range(100)]
    assert set(records.column(OPERATION).to_pylist()) == {0}
    assert records.column(FIELDS).null_count == 100
    assert sum(each.records.num_rows for each in table.read_history_pages()) == 101
    assert Table.open(uri, at=1).read_history().records.num_rows == 50
    older = Table.open(uri, at=1).read_history(page_bytes=1000)
    assert older.version == 1
    assert Table.open(uri).read_history(token=older.token).records.num_rows == 50 - older.records.num_rows
    latest = table.read_history(page_bytes=1000).token
    with pytest.raises(InvalidInput, match="cannot continue with 'snapshot'"):
        Table.open(uri, at=1).read_history(token=latest)


def test_a_stream_of_pages_refuses_what_is_wrong_before_its_first_page() -> None:
    uri = "memory://history-that-is-refused"
    table = Table.create(uri, PLANES, primary_key="tailnum")
    with pytest.raises(InvalidInput, match="not a history token"):
        table.read_history_pages(token="nonsense")  # noqa: S106
