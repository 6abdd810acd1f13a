"""Indexes of a real table: catch-up, watermark, and searches that return the same as a scan in plain Python."""

from __future__ import annotations

import datetime as dt
import gzip
import itertools
import json
import math
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tantivy

from storage_core.base.clock import SystemClock
from storage_core.base.errors import CommitConflict, Corrupt, InvalidInput, NotFound
from storage_core.compact import execute as compaction
from storage_core.data.formats import keys
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up, fulltext, segments
from storage_core.index.catch_up import CatchUpWork, measure_backlog
from storage_core.index.row_positions import SegmentCache, open_cache
from storage_core.index.text_files import compose
from storage_core.log.actions import Action, IndexSegment, Metadata, Remove
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.read.search.plan import covered
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.store.pieces import BoundedFolder
from tests.support import merge_plan
from tests.support.ids import SeededIds
from tests.support.searching import search
from tests.support.words import words as default_words

ACCESS_LOG = Path(__file__).parents[2] / "examples" / "data" / "apache_access.log.gz"
LINE = re.compile(r'^(\S+) \S+ \S+ \[([^\]]+)\] "([^"]*)" (\d+) (\S+) "[^"]*" "([^"]*)')
LINES = 1200

SCHEMA = pa.schema([
    pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
    ("line", pa.int64()),
    ("request", pa.string()),
    ("agent", pa.string()),
    ("status", pa.int32()),
])  # fmt: skip
TEXT = IndexDefinition("text", "fulltext", ("request", "agent"))
STATUS = IndexDefinition("by_status", "bitmap", ("status",))
CONFIG = TableConfig(time_column="time", sort_schema="status|timestamp/V2", window_seconds=7200, indexes=(TEXT, STATUS))
Row = Mapping[str, Any]
_names = itertools.count()


class IndexedTable:
    """A table in memory whose pipeline steps the test calls."""

    def __init__(self, config: TableConfig = CONFIG, schema: pa.Schema = SCHEMA) -> None:
        self.store = MeteredStore(MemoryStore(f"index-search-{next(_names)}"))
        self.ids = SeededIds(11)
        self.log = TransactionLog(self.store, clock=SystemClock(), ids=self.ids)
        metadata = Metadata(
            id=self.ids.uuid(), schemaString=to_schema_string(schema), configuration=config.to_configuration()
        )
        self.snapshot = self.log.create(metadata)

    def append(self, rows: list[Row], schema: pa.Schema = SCHEMA) -> None:
        table = pa.Table.from_pylist(rows, schema=schema)
        adds = sort_and_write(self.store, table, context=context_of(self.snapshot), ids=self.ids, now_ms=1)
        self.snapshot = self.log.commit(self.snapshot, adds, operation="WRITE").snapshot

    def compact(self) -> None:
        actions: list[Action] = []
        for operation in merge_plan.plan(self.snapshot):
            result = compaction.execute(self.store, operation, ids=self.ids, now_ms=2)
            actions += result.actions
        assert actions
        self.snapshot = self.log.commit(self.snapshot, actions, operation="COMPACT").snapshot

    def catch_up(self, index: str, splits: slice = slice(None)) -> None:
        plan = catch_up.plan(self.snapshot, index)
        items = [CatchUpWork.from_json(work.to_json()) for work in plan.work[splits]]
        built = [catch_up.execute(self.store, item, ids=self.ids) for item in items]
        if actions := plan.actions(built):
            self.snapshot = self.log.commit(self.snapshot, actions, operation="CATCH UP").snapshot

    def search(self, query: object, index: str, limit: int = 100_000) -> pa.Table:
        return search(self.store, self.snapshot, query, index=index, limit=limit)

    def lines(self, query: object, index: str) -> list[int]:
        return sorted(self.search(query, index).column("line").to_pylist())


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    parsed: list[Row] = []
    with gzip.open(ACCESS_LOG, "rt", encoding="utf-8") as lines:
        for number, text in enumerate(itertools.islice(lines, LINES)):
            found = LINE.match(text)
            assert found is not None
            _, time, request, status, _, agent = found.groups()
            parsed.append({
                "time": dt.datetime.strptime(time, "%d/%b/%Y:%H:%M:%S %z"),
                "line": number,
                "request": request,
                "agent": None if agent == "-" else agent,
                "status": None if number % 50 == 0 else int(status),
            })  # fmt: skip
    return parsed


def words(text: object) -> set[str]:
    """Return the tokens of a text under the `default` tokenizer, in plain Python."""
    return set() if text is None else {*default_words("default", str(text))}


def has(row: Row, word: str) -> bool:
    return word in words(row["request"]) | words(row["agent"])


TEXT_QUERIES: list[tuple[str, Callable[[Row], bool]]] = [
    ("kibana", lambda row: has(row, "kibana")),
    ("request:kibana", lambda row: "kibana" in words(row["request"])),
    ("agent:kibana", lambda row: "kibana" in words(row["agent"])),
    ("googlebot puppet", lambda row: has(row, "googlebot") or has(row, "puppet")),
    ("+googlebot +puppet", lambda row: has(row, "googlebot") and has(row, "puppet")),
    ("get -mozilla", lambda row: has(row, "get") and not has(row, "mozilla")),
    ("* -mozilla", lambda row: not has(row, "mozilla")),
    ("nowhere", lambda row: has(row, "nowhere")),
]
STATUS_QUERIES: list[tuple[object, set[int]]] = [
    ("200", {200}),
    ("404", {404}),
    (404, {404}),
    ("404,500", {404, 500}),
    ([304, 206, 999], {304, 206}),
    ("-1", set()),
]


def absent(table: IndexedTable) -> None:
    """Leave the table without segments."""


def partly(table: IndexedTable) -> None:
    table.catch_up("text", slice(0, None, 2))
    table.catch_up("by_status", slice(0, None, 3))


def caught_up(table: IndexedTable) -> None:
    table.catch_up("text")
    table.catch_up("by_status")


def compacted_after_catch_up(table: IndexedTable) -> None:
    caught_up(table)
    table.compact()


def compacted_and_caught_up_again(table: IndexedTable) -> None:
    compacted_after_catch_up(table)
    caught_up(table)


STATES = [absent, partly, caught_up, compacted_after_catch_up, compacted_and_caught_up_again]


@pytest.fixture(scope="module", params=STATES, ids=lambda state: state.__name__)
def table(request: pytest.FixtureRequest, rows: list[Row]) -> IndexedTable:
    table = IndexedTable()
    table.append(rows[:700])
    table.append(rows[700:])
    table.append(rows[:5])  # late rows: two splits in one window, and documents that occur twice
    request.param(table)
    return table


@pytest.mark.parametrize(("query", "condition"), TEXT_QUERIES, ids=[query for query, _ in TEXT_QUERIES])
def test_full_text_finds_the_rows_that_a_scan_finds(
    table: IndexedTable, rows: list[Row], query: str, condition: Callable[[Row], bool]
) -> None:
    assert table.lines(query, "text") == sorted(row["line"] for row in [*rows, *rows[:5]] if condition(row))


@pytest.mark.parametrize(("query", "values"), STATUS_QUERIES, ids=[str(query) for query, _ in STATUS_QUERIES])
def test_a_bitmap_finds_the_rows_that_a_scan_finds_and_no_nulls(
    table: IndexedTable, rows: list[Row], query: object, values: set[int]
) -> None:
    assert table.lines(query, "by_status") == sorted(
        row["line"] for row in [*rows, *rows[:5]] if row["status"] in values
    )


def test_found_rows_are_whole_and_best_first(table: IndexedTable, rows: list[Row]) -> None:
    found = table.search("googlebot puppet", "text")
    assert found.schema.names == [*SCHEMA.names, "score"]
    scores = found.column("score").to_pylist()
    assert scores == sorted(scores, reverse=True)
    for row in found.drop_columns("score").to_pylist():
        assert row == rows[row["line"]]


def test_a_limit_takes_the_first_of_all_results(table: IndexedTable) -> None:
    everything = {"text": table.search("get mozilla", "text"), "by_status": table.search("200,304", "by_status")}
    for limit in (1, 10, 333):
        assert table.search("get mozilla", "text", limit).equals(everything["text"].slice(0, limit))
        assert table.search("200,304", "by_status", limit).equals(everything["by_status"].slice(0, limit))


def test_rows_scores_and_order_do_not_depend_on_how_far_the_index_lags(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:300])
    table.append(rows[300:400])
    before = [table.search(query, "text") for query, _ in TEXT_QUERIES]
    statuses = [table.search(query, "by_status") for query, _ in STATUS_QUERIES]
    for state in (partly, caught_up):
        state(table)
        assert [table.search(query, "text") for query, _ in TEXT_QUERIES] == before
        assert [table.search(query, "by_status") for query, _ in STATUS_QUERIES] == statuses


def test_scores_do_not_depend_on_compaction(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:300:2])
    table.append(rows[1:300:2])
    before = table.search("googlebot puppet", "text")
    table.compact()
    after = table.search("googlebot puppet", "text")
    assert dict(zip(*columns(before), strict=True)) == pytest.approx(dict(zip(*columns(after), strict=True)))


def test_pages_do_not_change_over_a_compaction(rows: list[Row]) -> None:
    table = IndexedTable()
    for start in range(5):
        table.append(rows[start:400:5][::-1])
    requested: list[tuple[object, str]] = [(query, "text") for query, _ in TEXT_QUERIES]
    requested += [("* -nowhere", "text"), ("request:[a TO *]", "text")]
    requested += [(query, "by_status") for query, _ in STATUS_QUERIES]
    limits = (1, 10, 100)
    caught_up(table)
    before = [[table.search(query, index, limit) for limit in limits] for query, index in requested]
    table.compact()
    caught_up(table)
    for (query, index), pages in zip(requested, before, strict=True):
        for limit, page in zip(limits, pages, strict=True):
            after = table.search(query, index, limit)
            assert after.column("line") == page.column("line"), (query, limit)
            assert after.column("score").to_pylist() == pytest.approx(page.column("score").to_pylist())
            assert page.num_rows < limit or page == pages[-1].slice(0, limit)


def test_of_equal_scores_the_first_in_time_come_first_and_splits_behind_them_stay_closed(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[::-1])
    absent(table)
    windows = len(table.snapshot.splits)
    assert windows > 5
    for query, index in (("200", "by_status"), ("*", "text")):
        requests = table.store.requests["get"]
        found = table.search(query, index, 10).drop_columns("score").to_pylist()
        expected = [row for row in rows if index == "text" or row["status"] == 200]
        expected.sort(key=lambda row: (row["time"], row["line"]))
        assert found == expected[:10]
        # A full-text search reads the statistics of all splits. A bitmap search reads the index of the first split
        # only. Each search reads the rows of one split.
        assert table.store.requests["get"] - requests <= (windows if index == "text" else 1) + 2


def test_rows_with_values_that_have_no_order_keep_theirs_over_a_compaction() -> None:
    schema = pa.schema([
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        ("body", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("weight", pa.float64()),
    ])  # fmt: skip
    config = TableConfig(
        time_column="time", window_seconds=7200, indexes=(IndexDefinition("b", "fulltext", ("body",)),)
    )
    table = IndexedTable(config, schema)
    for tags in (["z"], None, ["a", "b"], [], ["a"]):
        for weight in (None, math.nan, 2.0, -math.inf):
            row = {"time": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "body": "ebb", "tags": tags, "weight": weight}
            table.append([row], schema)
    before = [repr(table.search("ebb", "b", limit).to_pylist()) for limit in (1, 3, 11, 20)]
    table.compact()
    assert [repr(table.search("ebb", "b", limit).to_pylist()) for limit in (1, 3, 11, 20)] == before


def columns(found: pa.Table) -> tuple[list[int], list[float]]:
    return found.column("line").to_pylist(), found.column("score").to_pylist()


def test_a_second_catch_up_has_nothing_to_do(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:100])
    table.catch_up("text")
    again = catch_up.plan(table.snapshot, "text")
    assert again.empty
    assert again.actions([]) == []
    assert not catch_up.plan(table.snapshot, "by_status").empty


def test_the_watermark_follows_the_oldest_split_that_is_not_covered(rows: list[Row]) -> None:
    table = IndexedTable()
    assert catch_up.watermark(table.snapshot, "text") == 0
    table.append(rows[:50])
    table.append(rows[50:100])
    assert (table.snapshot.version, catch_up.watermark(table.snapshot, "text")) == (2, 0)
    table.catch_up("text")
    assert (table.snapshot.version, catch_up.watermark(table.snapshot, "text")) == (3, 3)
    assert catch_up.watermark(table.snapshot, "by_status") == 0
    table.append(rows[1000:1010])
    assert (table.snapshot.version, catch_up.watermark(table.snapshot, "text")) == (4, 3)
    table.compact()  # the window of the last rows has one split, so it is not compacted
    assert (table.snapshot.version, catch_up.watermark(table.snapshot, "text")) == (5, 3)
    table.catch_up("text")
    assert catch_up.watermark(table.snapshot, "text") == table.snapshot.version == 6


def test_catch_up_removes_the_segments_whose_rows_left_the_table(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:50])
    table.append(rows[50:100])
    table.catch_up("text")
    before = dict(table.snapshot.segments)
    (gone,) = {each.covers[0] for each in list(before.values())[:1]}
    table.snapshot = table.log.commit(table.snapshot, [Remove(path=gone)], operation="EXPIRE").snapshot
    deleted = {path for path, segment in before.items() if segment.covers[0] == gone}
    assert set(catch_up.plan(table.snapshot, "text").stale) == deleted
    table.catch_up("text")
    assert catch_up.plan(table.snapshot, "text").empty
    assert not deleted & table.snapshot.segments.keys()
    assert {each.covers[0] for each in table.snapshot.segments.values()} == set(table.snapshot.splits)


def test_segments_of_a_former_definition_are_not_used_and_are_replaced(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:50])
    table.catch_up("text")
    redefined = replace(CONFIG, indexes=(replace(TEXT, options={"tokenizer": "whitespace"}), STATUS))
    metadata = replace(table.snapshot.metadata, configuration=redefined.to_configuration())
    table.snapshot = table.log.commit(table.snapshot, [metadata], operation="SET INDEXES").snapshot
    assert table.lines("get", "text") == []
    assert len(table.lines("request:GET", "text")) > 10
    assert catch_up.watermark(table.snapshot, "text") == 0
    plan = catch_up.plan(table.snapshot, "text")
    assert (len(plan.work), len(plan.stale)) == (len(table.snapshot.splits), len(table.snapshot.segments))
    table.catch_up("text")
    assert catch_up.plan(table.snapshot, "text").empty
    assert table.lines("get", "text") == []


def _with_the_words_of_early_releases(table: IndexedTable, folder: Path) -> list[IndexSegment]:
    """Replace the segments with those of early 0.1, whose tantivy tokenizers omit long words."""
    found: list[IndexSegment] = []
    for add in table.snapshot.splits.values():
        own = read_split(table.store, add)
        plain = folder / str(len(found))
        plain.mkdir(parents=True)
        schema = fulltext.tantivy_schema(TEXT)
        writer = tantivy.Index(schema, path=str(plain)).writer(heap_size=50_000_000, num_threads=1)
        for number, row in enumerate(own.select(["request", "agent"]).to_pylist()):
            fields = {name: value for name, value in row.items() if value is not None}
            writer.add_document(tantivy.Document.from_dict({**fields, "_row": number}, schema))
        writer.commit()
        writer.wait_merging_threads()
        whole = plain / "whole"
        compose([plain], whole, TEXT)
        files = {each.name: each.read_bytes() for each in whole.iterdir()}
        written = segments.write(table.store, files, definition=TEXT, covers=add.path, rows=own.num_rows, ids=table.ids)
        early = '{"columns":["request","agent"],"kind":"fulltext","options":{}}'
        found.append(replace(written, details={segments.DEFINITION: early}))
    return found


def test_segments_of_early_releases_lack_long_words_so_they_are_a_debt_and_built_again(tmp_path: Path) -> None:
    sha = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    table = IndexedTable()
    time = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    texts = [f"pull {sha} done", "pull nothing", "हिन्दी"]
    table.append([{"time": time, "line": number, "request": text} for number, text in enumerate(texts)])
    early = _with_the_words_of_early_releases(table, tmp_path)
    table.snapshot = table.log.commit(table.snapshot, early, operation="CATCH UP").snapshot
    found = fsck(table.store, clock=SystemClock(), deep=True).findings
    assert not {each.key for each in found} & {each.path for each in early}

    def judge() -> None:
        assert (
            table.lines(sha, "text")
            == table.lines(f"pull AND {sha}", "text")
            == table.lines(f"{sha[:50]}*", "text")
            == [0]
        )
        assert table.lines(f"pull -{sha}", "text") == table.lines(f"NOT ({sha} OR हिन्*)", "text") == [1]

    judge()
    assert measure_backlog(table.snapshot, "text").uncovered_rows == len(texts)
    assert catch_up.watermark(table.snapshot, "text") == 0
    table.catch_up("text")
    assert measure_backlog(table.snapshot, "text").uncovered_rows == 0
    assert not {each.path for each in early} & table.snapshot.segments.keys()
    judge()


def test_two_catch_ups_of_one_plan_commit_once(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:50])
    plan = catch_up.plan(table.snapshot, "text")
    first, second = ([catch_up.execute(table.store, work, ids=table.ids) for work in plan.work] for _ in range(2))
    table.log.commit(table.snapshot, plan.actions(first), operation="CATCH UP")
    with pytest.raises(CommitConflict, match="already covers the split"):
        table.log.commit(table.snapshot, plan.actions(second), operation="CATCH UP")


def test_explain_says_which_splits_come_from_segments_and_which_are_scanned(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:100])
    table.catch_up("text")
    answered = sorted(table.snapshot.splits)
    table.append(rows[100:200])
    requests = table.store.requests
    plan = covered(table.snapshot, index="text")
    assert table.store.requests == requests
    assert sorted(plan) == ["index", "kind", "scanned", "segments", "version", "watermark"]
    assert plan["segments"] == {s.covers[0]: [s.path] for s in table.snapshot.segments.values()}
    assert sorted(plan["segments"]) == answered
    assert plan["scanned"] == sorted(set(table.snapshot.splits) - set(answered))
    assert (plan["version"], plan["watermark"]) == (3, 2)
    assert json.loads(json.dumps(plan)) == plan


def test_a_column_that_older_splits_lack_is_null_there(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:50])
    wider = SCHEMA.append(pa.field("label", pa.string()))
    config = replace(CONFIG, indexes=(IndexDefinition("labels", "fulltext", ("label",)),))
    metadata = replace(
        table.snapshot.metadata, schemaString=to_schema_string(wider), configuration=config.to_configuration()
    )
    table.snapshot = table.log.commit(table.snapshot, [metadata], operation="EVOLVE").snapshot
    table.append([{**row, "label": "blue"} for row in rows[50:60]], wider)
    for _ in range(2):
        assert table.lines("blue", "labels") == list(range(50, 60))
        assert len(table.lines("*", "labels")) == 60
        if not catch_up.plan(table.snapshot, "labels").empty:
            table.catch_up("labels")


@pytest.mark.parametrize(
    "definition", [IndexDefinition("i", "fulltext", ("nope",)), IndexDefinition("i", "bitmap", ("status", "nope"))]
)
def test_an_index_of_a_column_that_does_not_exist_is_refused(definition: IndexDefinition) -> None:
    table = IndexedTable(replace(CONFIG, indexes=(definition,)))
    for ask in (
        lambda: catch_up.plan(table.snapshot, "i"),
        lambda: table.search("x", "i"),
        lambda: catch_up.watermark(table.snapshot, "i"),
    ):
        with pytest.raises(InvalidInput, match=r"unknown column 'nope'. The table has time, line"):
            ask()


def test_an_unknown_index_is_not_found_and_the_error_lists_the_defined_ones() -> None:
    table = IndexedTable()
    with pytest.raises(NotFound, match=r"unknown index 'txet'. The table has .*Did you mean 'text'"):
        table.search("get", "txet")


@pytest.mark.parametrize(
    ("query", "index"), [("k " * 40_000, "text"), (404, "text"), ("abc", "by_status"), (None, "text")]
)
def test_a_query_that_does_not_parse_is_refused_before_any_request(query: object, index: str) -> None:
    table = IndexedTable()
    requests = table.store.requests
    with pytest.raises(InvalidInput):
        table.search(query, index)
    with pytest.raises(InvalidInput, match="limit is 0"):
        table.search("404", "by_status", 0)
    assert table.store.requests == requests


def test_an_empty_table_answers_with_no_rows_of_the_full_schema() -> None:
    table = IndexedTable()
    for query, index in (("get", "text"), ("404", "by_status")):
        found = table.search(query, index)
        assert found.schema.names == [*SCHEMA.names, "score"]
        assert found.num_rows == 0


def test_the_score_of_a_table_with_a_score_column_has_a_name_of_its_own() -> None:
    schema = pa.schema([("score", pa.int64()), ("body", pa.string())])
    table = IndexedTable(TableConfig(indexes=(IndexDefinition("text", "fulltext", ("body",)),)), schema)
    table.append([{"score": 7, "body": "a b"}], schema)
    assert table.search("a", "text").to_pylist() == [{"score": 7, "body": "a b", "_score": pytest.approx(0.2876820)}]


@pytest.mark.parametrize("index", ["text", "by_status"])
def test_a_damaged_segment_is_named_and_the_answer_is_exact_without_it(
    rows: list[Row], index: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = IndexedTable()
    table.append(rows[:50])
    table.catch_up(index)
    query = {"text": "get", "by_status": "200"}[index]
    expected = table.search(query, index)
    assert expected.num_rows > 0
    paths = sorted(table.snapshot.segments)
    originals = {path: table.store.get(path).data for path in paths}
    other = next(iter(originals.values()))
    flipped = bytearray(other)
    flipped[len(flipped) // 2] ^= 1
    for damaged in (bytes(flipped), other[:-1], b"", next(iter(reversed(originals.values()))) + b"x"):
        table.store.put(paths[0], damaged, Overwrite())
        caplog.clear()
        assert table.search(query, index) == expected
        assert paths[0] in caplog.text
    table.store.delete(paths)
    caplog.clear()
    assert table.search(query, index) == expected
    assert all(path in caplog.text for path in paths)


def test_a_segment_swapped_with_another_is_not_used(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:100])
    table.append(rows[100:200])
    table.catch_up("text")
    expected = table.search("get", "text")
    first, second = sorted(table.snapshot.segments)[:2]
    data = {path: table.store.get(path).data for path in (first, second)}
    table.store.put(first, data[second], Overwrite())
    table.store.put(second, data[first], Overwrite())
    assert table.search("get", "text") == expected


def test_a_segment_path_that_is_not_one_is_corrupt(rows: list[Row], tmp_path: Path) -> None:
    table = IndexedTable()
    table.append(rows[:10])
    work = catch_up.plan(table.snapshot, "text").work[0]
    segment = catch_up.execute(table.store, work, ids=table.ids)
    foreign = replace(segment, path="_indices/text/../../escape.seg")
    with pytest.raises(Corrupt, match="not the key of a segment"):
        SegmentCache(tmp_path, None).segment(table.store, foreign)


def with_one_segment(rows: list[Row]) -> tuple[IndexedTable, IndexSegment]:
    table = IndexedTable()
    table.append(rows[:10])
    table.catch_up("text")
    return table, next(iter(table.snapshot.segments.values()))


def gets(table: IndexedTable) -> int:
    return table.store.requests.get("get", 0)


def files_of(directory: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in directory.iterdir()}


def test_a_cached_segment_is_fetched_once(rows: list[Row], tmp_path: Path) -> None:
    table, segment = with_one_segment(rows)
    before = gets(table)
    expected = {name: bytes(data) for name, data in segments.load(table.store, segment).items()}
    for _ in range(2):
        with open_cache(tmp_path / "cache") as cache:
            assert files_of(cache.segment(table.store, segment)) == expected
    assert gets(table) == before + 2


def linked(file: Path) -> None:
    mine = file.rename(file.parents[1] / "mine")
    file.symlink_to(mine)


def piped(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit is another": lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]),
    "cut": lambda file: os.truncate(file, file.stat().st_size - 1),
    "empty": lambda file: file.write_bytes(b""),
    "gone": lambda file: file.unlink(),
    "a link": linked,
    "a pipe": piped,
    "not alone": lambda file: file.with_name("another").write_bytes(b"?"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_fetched_again(rows: list[Row], tmp_path: Path, damage: str) -> None:
    table, segment = with_one_segment(rows)
    place = tmp_path / "cache"
    with open_cache(place) as cache:
        expected = files_of(cache.segment(table.store, segment))
    (entry,) = place.iterdir()
    for name in ("meta.json", ".checksums.json"):
        DAMAGES[damage](entry / name)
        for fetched in (1, 0):
            before = gets(table)
            with open_cache(place) as cache:
                assert files_of(cache.segment(table.store, segment)) == expected
            assert gets(table) == before + fetched
        (place / "mine").unlink(missing_ok=True)
        assert [each.name for each in place.iterdir()] == [entry.name]


def test_an_entry_in_the_place_of_another_is_none(rows: list[Row], tmp_path: Path) -> None:
    table, first = with_one_segment(rows)
    table.append(rows[10:30])
    table.catch_up("text")
    (second,) = (each for each in table.snapshot.segments.values() if each != first)
    with open_cache(tmp_path) as cache:
        expected = files_of(cache.segment(table.store, second))
        (place,) = tmp_path.glob(f"*-{second.xxh3}")
        shutil.rmtree(place)
        cache.segment(table.store, first)
        (other,) = tmp_path.glob(f"*-{first.xxh3}")
        other.rename(place)
        assert files_of(cache.segment(table.store, second)) == expected


def test_what_is_removed_from_a_cache_is_whole_for_who_uses_it(rows: list[Row], tmp_path: Path) -> None:
    table, segment = with_one_segment(rows)
    for attempt in range(2):  # the first attempt fills the cache, the second finds it
        with open_cache(tmp_path) as cache:
            directory = cache.segment(table.store, segment)
            expected = files_of(directory)
            assert sum(each.size_bytes for each in BoundedFolder(tmp_path, 1).entries()) >= sum(
                map(len, expected.values())
            )
            if attempt:
                BoundedFolder(tmp_path, 1).clear()
            assert files_of(directory) == expected != {}
    assert list(tmp_path.iterdir()) == []


def test_segments_stay_below_the_bound(rows: list[Row], tmp_path: Path) -> None:
    table, segment = with_one_segment(rows)
    bound = 2**20
    for number in range(100):
        with tempfile.TemporaryDirectory() as root:
            cache = SegmentCache(Path(root), BoundedFolder(tmp_path, bound))
            assert (
                len(files_of(cache.built(f"gap-{number}", "source", lambda: segments.load(table.store, segment)))) > 1
            )
    taken = sum(each.lstat().st_blocks * 512 for each in tmp_path.rglob("*"))
    assert bound // 2 < taken <= bound


def test_concurrent_searches_may_share_a_cache(rows: list[Row], tmp_path: Path) -> None:
    table = IndexedTable()
    table.append(rows[:100])
    table.catch_up("text", slice(0, None, 2))
    expected = table.search("get", "text")
    answers: list[pa.Table] = []

    def one_search() -> None:
        answers.append(search(table.store, table.snapshot, "get", index="text", limit=100_000, cache_dir=tmp_path))

    threads = [threading.Thread(target=one_search) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 8
    assert not [each.name for each in tmp_path.iterdir() if each.name.startswith("tidemark-tmp-")]


def test_a_cached_gap_is_built_once(rows: list[Row], tmp_path: Path) -> None:
    table = IndexedTable()
    table.append(rows[:20])
    before = gets(table)
    for _ in range(2):
        search(table.store, table.snapshot, "nowhere", index="text", cache_dir=tmp_path)
    assert gets(table) == before + len(table.snapshot.splits)


def test_a_search_at_an_older_version_sees_the_rows_of_that_version(rows: list[Row]) -> None:
    table = IndexedTable()
    table.append(rows[:50])
    old: Snapshot = table.snapshot
    table.append(rows[50:100])
    table.compact()
    table.catch_up("by_status")
    found = search(table.store, old, "200", index="by_status", limit=1000)
    assert sorted(found.column("line").to_pylist()) == [row["line"] for row in rows[:50] if row["status"] == 200]


def test_a_segment_key_is_one_of_the_closed_grammar(rows: list[Row]) -> None:
    _, segment = with_one_segment(rows)
    parsed = keys.parse(segment.path)
    assert parsed is not None
    assert (parsed.kind, parsed.index, parsed.id) == (keys.KeyKind.SEGMENT, "text", segments.segment_id(segment))
