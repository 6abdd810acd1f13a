"""Reads at `latest` return the rows that a raw log has acknowledged and not distributed yet."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, InvalidInput, Unavailable
from storage_core.data.formats.history_token import RawRun, decode, encode
from storage_core.data.settings.table import FeedingRawLog
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.distribution.work import Terms
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import START_MS, ManualClock
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.ids import SeededIds
from tests.support.raw_collection import collect
from tests.support.raw_reads import RAW, READS, TABLES, RawReads, by_keys, by_scan, rows_of

EVENTS = {"n": 1, "text": "a row"}


def appended(reads: RawReads, *numbers: int, seed: int = 1, at: int = START_MS, ids: bool = False) -> None:
    """For each number in `numbers`, append a chunk in a separate segment. The chunk has one record for each table."""
    clock, limits = ManualClock(at), RawLimits(segment_ms=1)
    with RawLog([reads.stores[each] for each in RAW], clock=clock, ids=SeededIds(seed), limits=limits) as log:
        for n in numbers:
            fields = {"n": n, "text": f"row {seed}"}
            log.append_many([RawRecord(table=name, fields=fields, id=f"{n}" if ids else None) for name in TABLES])
            clock.now += 1


def silent(store: ObjectStore) -> FaultStore:
    def refuse(_kind: object, key: str) -> None:
        raise Unavailable(f"{key}: away", key=key)

    return FaultStore(store, watch=refuse)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("how", READS)
def test_every_read_at_latest_has_the_rows_and_no_other_level_has(name: str, how: str) -> None:
    reads = RawReads.create()
    appended(reads, 1, 2)
    assert READS[how](reads.table(name)).total() == 2
    assert reads.table(name).scan().to_arrow().num_rows == 0
    assert reads.table(name).scan(consistency="committed").to_arrow().num_rows == 0


@pytest.mark.parametrize("name", TABLES)
def test_a_read_lists_each_store_once_and_gets_the_chunks_that_wait_once(name: str) -> None:
    reads = RawReads.create()
    appended(reads, *range(20))
    reads.board().distribute(Terms(closed_after_ms=0))
    table, requests = counted(reads, name)
    assert by_scan(table).total() == 20
    assert requests() == {"list": 2}, "of the chunks that the table has, none is read"
    appended(reads, 100, 101, 102, seed=2)
    assert by_scan(table).total() == 23
    assert requests() == {"list": 2, "get": 3}
    assert by_scan(table).total() == 23
    assert requests() == {"list": 2}, "chunks are kept"
    assert table.scan(consistency="committed").to_arrow().num_rows == 20
    assert table.scan().to_arrow().num_rows == (20 if name == "events" else 0)
    assert requests() == {}


QUERIES = (
    "SELECT count(*) AS n FROM t",
    "SELECT min(n) AS low, max(n) AS high, count(text) AS texts FROM t",
    "SELECT n FROM t WHERE n > 3 ORDER BY n",
    "SELECT n, text FROM t ORDER BY n DESC LIMIT 2",
    "SELECT text, count(*) AS n FROM t WHERE n IN (2, 5, 6) GROUP BY text ORDER BY text",
    "SELECT a.n FROM t AS a JOIN t AS b ON a.n = b.n + 1 ORDER BY a.n",
)


@pytest.mark.parametrize("name", TABLES)
def test_queries_filters_and_searches_answer_as_they_do_after_distribution(name: str) -> None:
    reads = RawReads.create()
    appended(reads, 1, 2, 3, 4)
    reads.board().distribute(Terms(closed_after_ms=0))
    appended(reads, 4, 5, 6, seed=2, at=START_MS + 9)

    def answers() -> list[object]:
        table = reads.table(name)
        searched = table.search("row", index="words", filter="n > 2", order_by="n", limit=3, consistency="latest")
        return [
            *(table.sql(each, consistency="latest").to_arrow().to_pylist() for each in QUERIES),
            rows_of(table.scan(["n"], "n > 2 AND text = 'row 2'", consistency="latest").to_arrow().to_pylist()),
            searched.to_arrow().to_pylist(),
            table.search_count("1", index="words", filter="n < 5", consistency="latest"),
        ]

    waiting = answers()
    reads.board().distribute(Terms(closed_after_ms=0))
    assert answers() == waiting
    assert waiting[0] == [{"n": 7 if name == "events" else 6}]


def counted(reads: RawReads, name: str) -> tuple[Table, Callable[[], dict[str, int]]]:
    """Return a table, and a function that returns the requests to the raw log since its previous call."""
    raw = {each: MeteredStore(reads.stores[each]) for each in RAW}
    last: dict[str, int] = {}

    def requests() -> dict[str, int]:
        totals = {kind: sum(each.requests[kind] for each in raw.values()) for kind in raw["one"].requests}
        since = {kind: count - last.get(kind, 0) for kind, count in totals.items()}
        last.update(totals)
        return {kind: count for kind, count in since.items() if count}

    return reads.table(name, raw), requests


def test_a_table_that_takes_rows_of_no_raw_log_asks_none() -> None:
    reads = RawReads.create()
    appended(reads, 1)
    table, requests = counted(reads, "events")
    table.alter({"raw_logs": None})
    assert by_scan(table).total() == 0
    assert requests() == {}
    table.alter({"raw_logs": [{"name": "raw", "table": "events", "stores": ["memory://one", "memory://two"]}]})
    assert by_scan(table).total() == 1


def test_a_reader_that_opened_the_table_before_it_took_a_raw_log_sees_its_rows() -> None:
    for name in ("events", "users"):
        reads = RawReads.create()
        appended(reads, 1)
        raw_logs = [each.shown() for each in reads.table(name).config.raw_logs]
        reads.table(name).alter({"raw_logs": None})
        early = reads.table(name)
        reads.table(name).alter({"raw_logs": raw_logs})
        assert by_keys(early).total() == 1
        reads.table(name).alter({"raw_logs": None})
        assert by_keys(early).total() == 0


@pytest.mark.parametrize("lost", RAW)
def test_one_mandatory_store_that_answers_suffices(lost: str) -> None:
    reads = RawReads.create()
    appended(reads, 1, 2)
    assert by_scan(reads.table("users", {lost: silent(reads.stores[lost])})).total() == 2


def test_without_a_mandatory_store_which_rows_are_acknowledged_is_not_known() -> None:
    reads = RawReads.create()
    appended(reads, 1)
    over = {each: silent(reads.stores[each]) for each in RAW}
    for name in TABLES:
        table = reads.table(name, over)
        with pytest.raises(Unavailable, match="raw log"):
            by_scan(table)
        assert table.scan(consistency="committed").to_arrow().num_rows == 0
    optional = FeedingRawLog(name="raw", table="events", stores=("memory://one",), optional=("memory://two",))
    reads.table("events").alter({"raw_logs": [optional.shown()]})
    with pytest.raises(Unavailable, match="no mandatory store answers"):
        by_scan(reads.table("events", {"one": silent(reads.stores["one"])}))
    assert by_scan(reads.table("events", {"two": silent(reads.stores["two"])})).total() == 1


def test_a_chunk_that_no_store_has_is_named_until_it_is_given_up_or_comes_back() -> None:
    reads = RawReads.create()
    appended(reads, 1, 2, 3)
    second = sorted(info.key for info in reads.stores["one"].list("live/"))[1]
    copy = reads.stores["one"].get(second).data
    reads.stores["one"].delete([second])
    assert by_scan(reads.table("events")).total() == 3, "the other store has it"
    reads.stores["two"].delete([second])
    with pytest.raises(
        Corrupt,
        match=r"chunks 2 to 2 of writer .* --skip-gap .*:2. To read without these rows, use consistency='committed'",
    ):
        by_scan(reads.table("events"))
    with pytest.raises(Unavailable, match="may be in memory://two, which does not answer"):
        by_scan(reads.table("events", {"two": silent(reads.stores["two"])}))
    reads.stores["two"].put(second, b"torn", Overwrite())
    with pytest.raises(Corrupt, match="chunk 2 of writer"):
        by_keys(reads.table("users"))
    reads.stores["two"].put(second, copy, Overwrite())
    assert by_keys(reads.table("users")).total() == 3
    reads.stores["two"].delete([second])
    writer = second.split("/")[1].split(".")[1]
    reads.board().distribute(Terms(closed_after_ms=0, give_up_to={writer: 2}))
    for name in TABLES:
        assert by_scan(reads.table(name)).total() == 2


def test_one_id_is_one_row_through_two_producers_two_stores_a_retry_and_a_round() -> None:
    reads = RawReads.create()
    appended(reads, 1, 2, seed=1, ids=True)
    appended(reads, 2, 3, seed=2, at=START_MS + 1, ids=True)
    for name in TABLES:
        assert by_scan(reads.table(name)) == reads.expected(name)
        assert by_scan(reads.table(name)).total() == 3
    reads.board().distribute(Terms(closed_after_ms=0))
    appended(reads, 3, 4, seed=3, at=START_MS + 2, ids=True)
    for name in TABLES:
        assert by_scan(reads.table(name)) == reads.expected(name)
        assert by_scan(reads.table(name)).total() == 4


def test_rows_that_distribution_would_not_take_are_no_rows() -> None:
    reads = RawReads.create()
    with RawLog([reads.stores[each] for each in RAW], clock=ManualClock(), ids=SeededIds(1)) as log:
        log.append("events", [{"n": 1, "text": "row"}, {"n": "one"}, {"text": "no number"}, {"n": 2, "other": 1}])
        log.append("events", [{"n": 3}], operation="delete")
        log.append("elsewhere", [{"n": 4}])
    assert by_scan(reads.table("events")) == rows_of([{"n": 1, "text": "row"}])


def test_the_newest_is_what_distribution_would_make_the_newest() -> None:
    reads = RawReads.create()
    reads.table("users").append([{"n": 1, "text": "direct"}, {"n": 2, "text": "direct"}])
    with RawLog([reads.stores[each] for each in RAW], clock=reads.clock, ids=SeededIds(1)) as log:
        log.append("users", [{"n": 1, "text": "raw"}])
        log.append("users", [{"n": 2}], operation="delete")
        log.append("users", [{"n": 3, "text": "raw"}])
        log.append("users", [{"n": 3, "text": None}], operation="patch")
    reads.table("users").append([{"n": 1, "text": "later"}])
    table = reads.table("users")
    assert [table.get(n) for n in (1, 2, 3)] == [{"n": 1, "text": "raw"}, None, {"n": 3, "text": None}]
    assert by_scan(table) == reads.expected("users")


def test_of_closed_and_open_segments_the_closed_ones_come_first_as_in_distribution() -> None:
    reads = RawReads.create()
    stores = [reads.stores[each] for each in RAW]
    slow = RawLog(stores, clock=ManualClock(reads.clock.now), ids=SeededIds(1))
    slow.append("users", [{"n": 1, "text": "in the open segment"}])
    appended(reads, 1, 2, seed=2, at=reads.clock.now + 10)
    reads.clock.now += 100
    before = by_scan(reads.table("users"))
    assert before == reads.expected("users")
    assert reads.table("users").get(1) == {"n": 1, "text": "in the open segment"}
    reads.board().distribute()
    assert by_scan(reads.table("users")) == before


def test_late_rows_are_judged_by_when_they_were_written() -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False), ("n", pa.int64())])
    for policy, seen in (("accept", [1, 2]), ("quarantine", [1]), ("drop", [1])):
        place = f"memory://late-raw-{policy}"
        raw_logs = [{"name": "raw", "table": "t", "stores": [f"{place}-log"]}]
        late = {"policy": policy, "acceptance_window": "1h"}
        table = Table.create(place, schema, time_column="at", late_data=late, settings={"raw_logs": raw_logs})
        with RawLog([f"{place}-log"], clock=ManualClock()) as log:
            now = dt.datetime.fromtimestamp(START_MS / 1000, dt.UTC)
            log.append("t", [{"at": now, "n": 1}, {"at": now - dt.timedelta(hours=2), "n": 2}])
        assert table.scan(["n"], consistency="latest").to_arrow().column("n").to_pylist() == seen


def test_a_row_takes_the_columns_that_the_table_has_when_it_is_read() -> None:
    reads = RawReads.create()
    appended(reads, 1)
    table = reads.table("users").add_column("more", "bigint", default=7)
    with RawLog([reads.stores[each] for each in RAW], clock=ManualClock(START_MS + 9), ids=SeededIds(2)) as log:
        log.append("users", [{"n": 2, "more": 3}])
    assert by_scan(table) == reads.expected("users")
    assert table.get(2) == {"n": 2, "text": None, "more": 3}


def test_a_table_that_comes_later_begins_behind_what_was_collected() -> None:
    reads = RawReads.create()
    appended(reads, 1, 2)
    reads.board().distribute(Terms(closed_after_ms=0))
    board = reads.board()
    board.raw_clock = reads.clock
    for _ in range(2):
        collect(board, retention_ms=0)
    assert [info.key for info in reads.stores["one"].list("live/")] == ["live/collected.json"]
    fresh = MemoryStore("events")
    board = replace(reads.board(), tables={"events": fresh})
    board.create(events=reads.table("events").config)
    reads.stores["events"] = fresh
    appended(reads, 3, seed=5, at=START_MS + 50)
    assert by_scan(reads.table("events")) == rows_of([{"n": 3, "text": "row 5"}])


@pytest.mark.parametrize("ids", [False, True])
def test_rows_that_a_region_of_an_earlier_spec_has_do_not_come_back_over_newer_ones(ids: bool) -> None:
    reads = RawReads.create()
    appended(reads, 1, 2, ids=ids)
    ending = FaultStore(reads.stores["users"])
    ending.on_put("_transaction_log/", CrashFault.BEFORE)
    with pytest.raises(Crash):
        reads.board({"users": ending}).distribute(Terms(closed_after_ms=0))
    reads.table("users").set_regions([{"transform": "bucket", "source": "n", "n": 2}])
    reads.table("users").append([{"n": 1, "text": "later row"}])
    appended(reads, 2, 3, seed=2, at=START_MS + 9, ids=ids)
    expected = reads.expected("users")
    for how in READS.values():
        assert how(reads.table("users")) == expected
    assert reads.table("users").get(1) == {"n": 1, "text": "later row"}
    assert expected.total() == 3


def test_rows_of_several_raw_logs_come_in_the_order_in_which_the_table_names_them() -> None:
    places = ["memory://several-raw-1", "memory://several-raw-2"]
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])
    raw_logs = [{"name": each[-1], "table": "t", "stores": [each]} for each in places]
    table = Table.create("memory://several-raw", schema, primary_key="n", settings={"raw_logs": raw_logs})
    for each in reversed(places):
        with RawLog([each]) as log:
            log.append("t", [{"n": 1, "text": each}, {"n": int(each[-1]) + 1, "text": each}])
    assert table.get(1) == {"n": 1, "text": places[1]}
    assert table.scan(consistency="latest").to_arrow().num_rows == 3
    assert {row["n"] for row in table.read_history().records.to_pylist()} == {1, 2, 3}


def test_a_statement_on_rows_that_wait_is_refused_and_after_distribution_done() -> None:
    reads = RawReads.create()
    reads.table("users").append([{"n": 1, "text": "a"}, {"n": 2, "text": "a"}])
    appended(reads, 1)
    with pytest.raises(Unavailable, match=r"not distributed yet.* First run tidemark distribute raw"):
        reads.table("users").delete("n = 1")
    with pytest.raises(Unavailable, match="not distributed yet"):
        reads.table("users").update({"text": "b"}, "true")
    assert reads.table("users").delete("n = 2").rows == 1, "no record of that key waits"
    reads.board().distribute(Terms(closed_after_ms=0))
    assert reads.table("users").delete("n = 1").rows == 1
    assert by_scan(reads.table("users")).total() == 0


def test_explain_names_the_raw_log_and_what_is_read_of_it() -> None:
    reads = RawReads.create()
    reads.table("users").append([EVENTS])
    appended(reads, 1, 2)
    part = {"name": "raw", "chunks": 2, "records": 2}
    line = "raw log raw: 2 records of 2 chunks are also read"
    for name in TABLES:
        table = reads.table(name)
        query, search = (
            table.explain("SELECT * FROM t", consistency="latest"),
            table.explain_search("row", index="words", consistency="latest"),
        )
        for plan in (query, search, table.scan(consistency="latest").explain()):
            assert line in str(plan)
        assert query.to_dict()["tables"][0]["raw_logs"] == search.to_dict()["raw_logs"] == [part]
        assert "raw log" not in str(table.explain("SELECT * FROM t"))
    lookup = reads.table("users").explain_get(1)
    assert "raw log raw: 2 records of 2 chunks" in str(lookup)
    assert lookup.to_dict()["raw_logs"] == [part]


def test_a_history_goes_on_in_another_process_and_begins_anew_when_its_chunks_were_collected() -> None:
    reads = RawReads.create()
    appended(reads, 1, 2, 3)
    page = reads.table("events").read_history(page_bytes=1)
    appended(reads, 4, seed=2)
    rest = reads.table("events").read_history(token=page.token)
    assert [each["n"] for part in (page, rest) for each in part.records.to_pylist()] == [1, 2, 3]
    reads.board().distribute(Terms(closed_after_ms=0))
    assert reads.table("events").read_history(token=page.token).records.num_rows == 2, "as it was when it began"
    for _ in range(2):
        collect(reads.board(), retention_ms=0)
    anew = reads.table("events").read_history(token=page.token)
    assert anew.restarted
    assert anew.records.num_rows == 4


def test_a_token_of_a_raw_log_that_the_table_does_not_take_is_refused() -> None:
    reads = RawReads.create()
    appended(reads, 1, 2)
    token = decode(reads.table("events").read_history(page_bytes=1).token or "")
    for raw in (
        replace(token.raw[0], name="other"),
        replace(token.raw[0], rounds=((RawRun(writer="w", first=1, last=2**62),),)),
    ):
        with pytest.raises((InvalidInput, Corrupt), match="raw log"):
            reads.table("events").read_history(token=encode(replace(token, raw=(raw,))))


@pytest.mark.parametrize(
    "given",
    [
        "raw",
        {"name": "raw"},
        [{"name": "raw", "table": "t"}],
        [{"name": "raw", "table": "t", "stores": []}],
        [{"name": "raw", "table": "t", "stores": "memory://a"}],
        [{"name": "raw", "table": "t", "stores": ["memory://a"], "other": 1}],
        [{"name": "raw", "table": "t", "stores": ["memory://a"]}] * 2,
        [{"name": "raw", "table": "t", "stores": ["memory://a"], "unique_for": "soon"}],
        [{"name": "raw", "table": "t", "stores": ["s3://key:secret@bucket/raw"]}],
        [{"name": "raw", "table": "t", "stores": ["memory://a"], "optional": ["ftp://there"]}],
    ],
)
def test_what_is_no_raw_log_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match="raw_logs"):
        Table.create("memory://no-raw-log", pa.schema([("n", pa.int64())]), settings={"raw_logs": given})
