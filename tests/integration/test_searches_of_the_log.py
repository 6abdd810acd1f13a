"""A search of unflushed rows indexes only new rows, and does not depend on old results."""

from __future__ import annotations

import itertools
import logging
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from storage_core.base.errors import InvalidInput
from storage_core.read.unmerged_records import LEAST_RATIO, LoggedRows, LogRuns
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.router import TableWriter
from tests.support import upkeep
from tidemark import Table

PLACE = pa.field("place", pa.list_(pa.float32(), 2))
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("tag", pa.string()), PLACE])
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["text"]},
    {"name": "tags", "kind": "bitmap", "columns": ["tag"]},
    {"name": "near", "kind": "vector", "columns": ["place"], "quantization": "none"},
]


EVERY_GENERATION = WriterOptions(segment_rows=1)


def rows_of(first: int, count: int, text: str = "ebb") -> list[dict[str, object]]:
    return [
        {"id": each, "text": f"{text} tide", "tag": text, "place": [each / 100, 1.0]}
        for each in range(first, first + count)
    ]


def table_at(path: Path) -> Table:
    return Table.create(str(path / "t"), SCHEMA, primary_key="id", indexes=INDEXES)


def ids(table: Table, query: object = "ebb", *, index: str = "words", consistency: str = "latest") -> list[int]:
    found = table.search(query, index=index, limit=10_000, consistency=consistency)
    return sorted(row["id"] for row in found.to_arrow().to_pylist())


def scored(table: Table, query: str) -> pa.Table:
    return table.search(query, index="words", limit=100, consistency="latest").to_arrow()


def indexed(caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of rows that were indexed since the last call."""
    said = [each for each in caplog.records if each.message.startswith("indexed ")]
    caplog.clear()
    return sum(int(each.message.split()[1]) for each in said)


def test_a_second_search_indexes_only_the_rows_that_were_written_since(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_at(tmp_path)
    caplog.set_level(logging.DEBUG, "storage_core.index.segments")
    with table.writer() as writer:
        for index, query in (("words", "ebb"), ("tags", "ebb")):
            first = len(ids(table))
            caplog.clear()
            writer.put(rows_of(first, 1_000))
            assert len(ids(table, query, index=index)) == first + 1_000
            assert indexed(caplog) == first + 1_000
            writer.put(rows_of(first + 1_000, 7))
            assert len(ids(table, query, index=index)) == first + 1_007
            assert indexed(caplog) == 7
            assert len(ids(table, query, index=index)) == first + 1_007
            assert indexed(caplog) == 0
        ids(table)
        caplog.clear()
        writer.delete([3])
        writer.put(rows_of(4, 1, "flood"))
        assert 3 not in ids(table)
        assert ids(table, "flood") == [4]
        assert indexed(caplog) <= 7 + 1  # the search indexes the new row, and at most the previous run of 7 rows again
        near = table.search(vector=[0.0, 1.0], limit=4, consistency="latest").to_arrow().to_pylist()
        assert [row["id"] for row in near] == [0, 1, 2, 4]
        assert indexed(caplog) == 0, "vectors are compared as they are"


def test_counts_and_orders_index_only_the_rows_that_were_written_since(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_at(tmp_path)
    caplog.set_level(logging.DEBUG, "storage_core.index.segments")
    with table.writer() as writer:
        writer.put(rows_of(0, 1_000))
        assert table.search_count("ebb", index="words", consistency="latest") == 1_000
        caplog.clear()
        writer.put(rows_of(1_000, 7))
        newest = table.search("ebb", index="words", order_by="id", limit=1, consistency="latest")
        assert newest.to_arrow().column("id").to_pylist() == [1_006]
        assert indexed(caplog) == 7
        assert table.search_count("ebb", index="words", consistency="latest") == 1_007
        assert len(ids(table)) == 1_007
        assert indexed(caplog) == 0, "all kinds of searches share what is indexed"


def test_a_search_by_several_indexes_indexes_what_was_written_since_once_for_each_that_needs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_at(tmp_path)
    caplog.set_level(logging.DEBUG, "storage_core.index.segments")

    def both() -> list[int]:
        found = table.search("ebb", vector=[0.0, 1.0], index=["words", "near"], limit=5, consistency="latest")
        return sorted(found.to_arrow().column("id").to_pylist())

    with table.writer() as writer:
        writer.put(rows_of(0, 300))
        assert both() == [*range(5)]
        assert indexed(caplog) == 300
        writer.put(rows_of(0, 3, "flood"))
        writer.delete([4])
        found = both()
        assert (len(found), 4 in found) == (5, False)
        assert indexed(caplog) == 3


def test_answers_and_scores_do_not_depend_on_what_was_searched_before(tmp_path: Path) -> None:
    table, random = table_at(tmp_path), np.random.default_rng(5)
    with table.writer(options=EVERY_GENERATION) as writer:
        for step in range(14):
            keys = random.choice(60, 6, replace=False).tolist()
            writer.put([row for key in keys[:4] for row in rows_of(key, 1, ("ebb", "flood")[key % 2])])
            writer.patch([{"id": key, "text": "patched ebb"} for key in keys[4:5]])
            writer.delete(keys[5:])
            if step % 5 == 4:
                writer.flush()
            for query in ("ebb", "NOT tide"):
                found, anew = scored(table, query), scored(Table.open(table.uri), query)
                assert found.equals(anew), (step, query)
                assert len(set(found.column("id").to_pylist())) == found.num_rows


def test_what_the_log_had_is_not_searched_once_more_when_a_generation_has_it(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    with table.writer(options=EVERY_GENERATION) as writer:
        for first in range(0, 50, 10):
            writer.put(rows_of(first, 10))
            assert len(ids(table)) == first + 10
        writer.put(rows_of(0, 5, "flood"))
        assert ids(table) == [*range(5, 50)]
        writer.flush()
        assert (ids(table), ids(table, "flood")) == ([*range(5, 50)], [*range(5)])
        writer.put(rows_of(5, 5, "flood"))
        assert (ids(table), ids(table, "flood")) == ([*range(10, 50)], [*range(10)])


def test_each_level_finds_what_it_says_and_no_row_twice(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    with table.writer() as writer:
        writer.put(rows_of(0, 2))
        writer.flush()
        upkeep.merge(Table.open(table.uri))
        table.refresh()
        writer.put(rows_of(1, 2))
        writer.flush()
        writer.put(rows_of(2, 2))
        levels = {each: ids(table, consistency=each) for each in ("snapshot", "committed", "latest")}
        assert levels == {"snapshot": [0, 1], "committed": [0, 1, 2], "latest": [0, 1, 2, 3]}
        with pytest.raises(InvalidInput, match="a read of an older version"):
            table.search("ebb", index="words", at=0, consistency="latest")


def test_rows_that_unmerged_records_hide_are_hidden_only_at_the_levels_that_read_these_records(tmp_path: Path) -> None:
    """The segment covers splits that a compaction replaced. One open table serves all consistency levels."""
    table = table_at(tmp_path)
    with table.writer() as writer:
        for first in (0, 10):
            writer.put(rows_of(first, 10))
            writer.flush()
            upkeep.merge(Table.open(table.uri))
        upkeep.catch_up(table.refresh())
        for deleted in (3, 4):
            writer.delete([deleted])
            writer.flush()
            upkeep.merge(Table.open(table.uri))
            upkeep.compact(table.refresh())
        table.refresh()
        merged = [each for each in range(20) if each not in (3, 4)]
        writer.put(rows_of(5, 1, "flood"))
        writer.delete([7])
        for _ in range(2):
            assert ids(table) == [each for each in merged if each not in (5, 7)]
            assert ids(table, "flood") == [5]
            assert ids(table, consistency="snapshot") == merged
        writer.put(rows_of(9, 1, "flood"))
        assert ids(table) == [each for each in merged if each not in (5, 7, 9)]


def test_rows_given_without_waiting_are_found_once_they_are_durable_also_by_the_process_that_wrote_them(
    tmp_path: Path,
) -> None:
    table = table_at(tmp_path)
    with table.writer() as writer:
        writer.put(rows_of(0, 5))
        writer.flush()
        upkeep.merge(Table.open(table.uri))
        writer.put(rows_of(5, 5), durable=False)
        writer.patch([{"id": 1, "text": "patched"}, {"id": 6, "text": "patched"}], durable=False)
        assert {*ids(table)} <= {*range(10)}  # some rows may already be durable, and no row occurs twice
        writer.sync()
        assert ids(table) == [0, 2, 3, 4, 5, 7, 8, 9]
        assert ids(table, "patched") == [1, 6]
        assert ids(table, index="tags") == [*range(10)]  # a patch leaves this column unchanged
        near = table.search(vector=[0.01, 1.0], limit=3, consistency="latest").to_arrow().to_pylist()
        assert [(row["id"], row["text"]) for row in near] == [(1, "patched"), (0, "ebb tide"), (2, "ebb tide")]


def test_pages_of_equal_scores_are_complete(tmp_path: Path) -> None:
    """The searches use words, values, an embedding, or words together with an embedding.

    The rows are in the log, in generations and in the base, with segments and without.
    """
    table, count, page = table_at(tmp_path), 30, 7
    rows = [{**row, "place": [0.0, 1.0]} for row in rows_of(0, count)]
    searches: list[dict[str, Any]] = [
        {"query": "ebb", "index": "words"},
        {"query": "ebb", "index": "tags"},
        {"vector": [1.0, 1.0]},
        {"query": "ebb", "vector": [1.0, 1.0]},
    ]

    def require_complete() -> None:
        for asked in searches:
            found = [
                row["id"]
                for offset in range(0, count, page)
                for row in table.search(**asked, limit=page, offset=offset, consistency="latest").to_pylist()
            ]
            assert found == [*range(count)], asked

    with table.writer(options=EVERY_GENERATION) as writer:
        writer.put(rows[: count // 2])
        writer.flush()
        writer.put(rows[count // 2 :])
        require_complete()
        writer.flush()
        require_complete()
        upkeep.merge(Table.open(table.uri))
        require_complete()
    upkeep.catch_up(table)
    require_complete()


def test_concurrent_upserts_leave_no_duplicate_in_a_search(tmp_path: Path) -> None:
    table, keys, rounds = table_at(tmp_path), 20, 6

    def write(writer: TableWriter, text: str) -> None:
        for each in range(rounds):
            writer.put([{**row, "text": f"ebb {text}{each}"} for row in rows_of(0, keys)])
            if each == 3:
                writer.flush()

    with table.writer(options=EVERY_GENERATION) as writer:
        writer.put(rows_of(0, keys))
        writers = [threading.Thread(target=write, args=(writer, text)) for text in "ab"]
        merging = threading.Thread(target=lambda: [upkeep.merge(Table.open(table.uri)) for _ in range(3)])
        for each in (*writers, merging):
            each.start()
        searched = 0
        while searched < 3 or any(each.is_alive() for each in writers):
            for index, query in (("words", "ebb"), ("tags", "ebb")):
                assert ids(table, query, index=index) == [*range(keys)]
            near = table.search(vector=[0.0, 1.0], limit=100, consistency="latest").to_arrow()
            assert sorted(near.column("id").to_pylist()) == [*range(keys)]
            searched += 1
        merging.join()
        last = table.search("ebb", index="words", limit=100, consistency="latest").to_arrow().to_pylist()
        assert {row["text"] for row in last} <= {f"ebb {text}{rounds - 1}" for text in "ab"}


@pytest.mark.parametrize("size", [1, 5])
def test_there_are_few_runs_and_a_row_is_seldom_indexed_again(size: int) -> None:
    runs, known, made, entries = LogRuns(), set[str](), 0, np.zeros(0, np.int64)
    nothing = LoggedRows(region="r", entries=entries, rows=pa.table({"place": entries}), deleted=BitMap())
    for entry in range(1, 400):
        entries = np.append(entries, np.full(size + entry % 3, entry))
        rows = pa.table({"place": np.arange(len(entries))})
        logged = LoggedRows(region="r", entries=entries, rows=rows, deleted=BitMap(range(0, len(entries), 2)))
        found = runs.divided(logged)
        assert pa.concat_tables([each.rows for each in found]).equals(rows)
        assert sum(len(each.deleted) for each in found) == len(logged.deleted)
        assert all(one.entries[-1] < other.entries[0] for one, other in itertools.pairwise(found))
        sizes = [each.rows.num_rows for each in found]
        assert all(one >= LEAST_RATIO * other for one, other in itertools.pairwise(sizes))
        made += sum(each.rows.num_rows for each in found if each.name not in known)
        known |= {each.name for each in found}
    assert made <= len(entries) * math.log(len(entries), 1.5)
    assert runs.divided(nothing) == []
