"""Searches of a table by several indexes: results, refusals, and data that a search reads only once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from pipelines.cli import main
from storage_core.base.errors import InvalidInput, NotFound
from storage_core.change.declaration import load
from storage_core.data.rows.vectors import vector_type
from storage_core.index import catch_up as indexing
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.read.answers import HeldRows
from storage_core.read.row_filter import RowFilter
from storage_core.read.unmerged_records import Overlay
from storage_core.store.contract import ObjectStore
from storage_core.table import Table
from tests.support.brute_fusion import by_prefixes, by_vector, fused
from tests.support.damage import Damage, damage
from tests.support.deleted_rows import delete_where
from tests.support.upkeep import catch_up

SCHEMA = pa.schema([
    pa.field("id", pa.int64(), nullable=False),
    ("title", pa.string()),
    ("body", pa.string()),
    ("v", vector_type(2)),
])  # fmt: skip
NEAR = {"name": "near", "kind": "vector", "columns": ["v"], "metric": "l2"}
WORDS = {"name": "words", "kind": "fulltext", "columns": ["body"]}
TITLES = {"name": "titles", "kind": "fulltext", "columns": ["title"]}
TAGS = {"name": "tags", "kind": "bitmap", "columns": ["title"]}
ORIGIN = [0.0, 0.0]


def rows_of(first: int, last: int) -> list[dict[str, Any]]:
    """Return rows in which every third row has the word. The row with the smallest id is nearest to the origin."""
    return [
        {"id": id_, "title": f"t{id_ % 2}", "body": "tide" if id_ % 3 == 0 else "ebb", "v": [float(id_), 1.0]}
        for id_ in range(first, last)
    ]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Make a table of thirty rows in two splits."""
    created = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[NEAR, WORDS])
    created.append(rows_of(0, 20))
    created.append(rows_of(20, 30))
    return created


def indexed(table: Table, index: str) -> None:
    """Catch up one index."""
    snapshot = table.log.snapshot()
    plan = indexing.plan(snapshot, index)
    built = [indexing.execute(table.log.store, work, ids=table.log.ids) for work in plan.work]
    table.log.commit(snapshot, plan.actions(built), operation="CATCH UP")


def brute(rows: list[dict[str, Any]], fusion: str = "rrf", **weights: float) -> list[dict[str, Any]]:
    rankings = {
        "words": by_prefixes(rows, ["tide"], column="body", order=lambda row: row["id"]),
        "near": by_vector(rows, ORIGIN, "l2", column="v", order=lambda row: row["id"]),
    }
    given = {"words": 1.0, "near": 1.0, **weights}
    return fused(rankings, given, fusion, order=lambda row: row["id"], window=100, growth=4)


# Answers.


def test_an_answer_has_the_fused_score_the_distance_and_what_each_index_says(table: Table) -> None:
    found = table.search("ti*", vector=ORIGIN, columns=["id"], limit=40)
    assert isinstance(found, HeldRows)
    added = ["score", "distance", "words_rank", "words_score", "near_rank", "near_score"]
    assert found.column_names == ["id", *added]
    expected = brute(table.scan().to_arrow().to_pylist())
    assert [{**row, "distance": None} for row in found.to_pylist()] == [
        {"id": row["id"], "distance": None, **{name: row[name] for name in added if name != "distance"}}
        for row in expected
    ]
    assert found.column("distance").to_pylist() == [0.0 - row["near_score"] for row in expected]
    assert str(found.schema.field("words_rank").type) == "int64"


def test_the_contract_of_a_search_by_vector_holds_for_both(table: Table) -> None:
    by_names = table.search("tide", vector=np.array(ORIGIN), index=["words", "near"], limit=5)
    assert by_names == table.search("tide", vector=ORIGIN, limit=5)
    assert by_names.column_names[:6] == ["id", "title", "body", "v", "score", "distance"]
    scores = by_names.column("score").to_pylist()
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("fusion", ["rrf", "linear"])
def test_weights_count_by_the_names_of_indexes(table: Table, fusion: str) -> None:
    rows = table.scan().to_arrow().to_pylist()
    for weights in ({"words": 3}, {"near": 0.25}, {"words": 0.5, "near": 2.0}):
        found = table.search("ti*", vector=ORIGIN, fusion=fusion, weights=weights, limit=40)
        expected = brute(rows, fusion, **weights)
        assert [(row["id"], row["score"]) for row in found.to_pylist()] == [(r["id"], r["score"]) for r in expected]


def test_names_that_the_table_has_are_left_to_it(tmp_path: Path) -> None:
    schema = pa.schema(
        [("score", pa.string()), ("words_rank", pa.int64()), ("split", pa.int64()), ("v", vector_type(2))]
    )
    indexes = [NEAR, {**WORDS, "columns": ["score"]}]
    table = Table.create(str(tmp_path / "t"), schema, indexes=indexes)
    table.append([{"score": "tide", "words_rank": 7, "split": 8, "v": [3.0, 4.0]}])
    (row,) = table.search("tide", vector=ORIGIN).to_pylist()
    assert (row["score"], row["words_rank"], row["split"], row["_words_rank"], row["distance"]) == (
        "tide",
        7,
        8,
        1,
        5.0,
    )
    assert row["_score"] == 1 / 61 + 1 / 61


def test_a_text_of_weight_nought_filters_all_rows_and_not_only_those_of_a_window(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.read.search.hybrid.FIRST_WINDOW", 2)
    found = table.search("tide", vector=[30.0, 1.0], weights={"words": 0}, limit=40)
    assert found.column("id").to_pylist() == list(range(27, -1, -3))
    assert found.column_names[4:] == ["score", "distance", "near_rank", "near_score"]
    assert table.search("flood", vector=ORIGIN, weights={"words": 0}).num_rows == 0
    filtered = table.search("tide", vector=[30.0, 1.0], weights={"words": 0}, filter="id < 20", limit=3)
    assert filtered.column("id").to_pylist() == [18, 15, 12]


def test_several_texts_are_fused_and_filter_each_other(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[WORDS, TITLES])
    table.append([
        {"id": 1, "title": "tide", "body": "ebb", "v": None},
        {"id": 2, "title": "tide", "body": "tide", "v": None},
        {"id": 3, "title": "ebb", "body": "tide", "v": None},
    ])  # fmt: skip
    found = table.search("tide", index=["titles", "words"], weights={"titles": 2})
    assert found.column("id").to_pylist() == [2, 1, 3]
    assert found.column_names[4:] == ["score", "titles_rank", "titles_score", "words_rank", "words_score"]
    filtered = table.search("tide", index=["titles", "words"], weights={"titles": 0})
    assert filtered.column("id").to_pylist() == [2, 3][: filtered.num_rows] == [2]
    boosted = table.search("tide", index=["titles", "words"], boosts={"title": 3.0}).to_pylist()
    assert boosted[0]["titles_score"] == pytest.approx(3 * found.to_pylist()[0]["titles_score"])


def test_a_table_without_rows_and_a_query_without_matches_answer(table: Table, tmp_path: Path) -> None:
    assert table.search("nothing", vector=ORIGIN, limit=3).column("id").to_pylist() == [0, 1, 2]
    assert table.search("tide", vector=ORIGIN, filter="id > 99").num_rows == 0
    bare = Table.create(str(tmp_path / "bare"), SCHEMA, indexes=[NEAR, WORDS])
    found = bare.search("tide", vector=ORIGIN)
    assert (found.num_rows, found.column_names[4]) == (0, "score")


def test_pages_beyond_a_window_neither_repeat_nor_lose_a_row(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[NEAR, WORDS])
    table.append(rows_of(0, 700))
    found = table.search("tide", vector=[350.0, 1.0], limit=1000, columns=["id"])
    assert sorted(found.column("id").to_pylist()) == list(range(700))
    pages = [table.search("tide", vector=[350.0, 1.0], limit=60, offset=at, columns=["id"]) for at in range(0, 720, 60)]
    assert pa.concat_tables([each.to_arrow() for each in pages]).equals(found.to_arrow())


def test_rows_that_are_equal_have_the_same_ranks_however_far_each_index_is(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA.remove(0), indexes=[NEAR, WORDS])
    for _ in range(3):
        table.append([{"title": "t", "body": "tide", "v": [1.0, 1.0]}] * 4)
    answers = []
    for index in (None, "near", "words"):
        if index is not None:
            indexed(table, index)
        answers.append(table.refresh().search("tide", vector=ORIGIN, limit=20).to_pylist())
    ranks = [(row["words_rank"], row["near_rank"]) for row in answers[0]]
    assert ranks == [(rank, rank) for rank in range(1, 13)]
    assert answers[0] == answers[1] == answers[2]


def test_records_that_are_not_merged_take_part_and_hide_what_they_supersede(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, primary_key="id", indexes=[NEAR, WORDS])
    rows = {row["id"]: row for row in rows_of(0, 12)}
    with table.writer() as writer:
        for row in rows.values():
            writer.put(row)
        writer.flush()
        committed = dict(rows)
        writer.patch({"id": 0, "body": "ebb"})
        writer.patch({"id": 1, "v": [40.0, 1.0]})
        writer.put({**rows[2], "id": 20, "body": "tide"})
        writer.delete((3,))
        rows[0], rows[1] = {**rows[0], "body": "ebb"}, {**rows[1], "v": [40.0, 1.0]}
        rows[20] = {**rows[2], "id": 20, "body": "tide"}
        del rows[3]
        for level, seen in (("snapshot", {}), ("committed", committed), ("latest", rows)):
            found = table.search("ti*", vector=ORIGIN, limit=40, consistency=level).to_pylist()
            expected = brute([*seen.values()])
            assert [(row["id"], row["score"]) for row in found] == [(row["id"], row["score"]) for row in expected]
            filtered = table.search("tide", vector=ORIGIN, weights={"words": 0}, limit=40, consistency=level)
            assert sorted(filtered.column("id").to_pylist()) == sorted(i for i in seen if seen[i]["body"] == "tide")


def test_deleted_rows_are_no_answers_and_a_damaged_segment_is_done_without(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    catch_up(table)
    delete_where(table.log, lambda row: row["id"] % 4 == 0)
    before = table.refresh().search("ti*", vector=ORIGIN, limit=40)
    assert sorted(before.column("id").to_pylist()) == [id_ for id_ in range(30) if id_ % 4]
    for path in table.snapshot.segments:
        damage(table.log.store, path, Damage.MISSING)
    with caplog.at_level(logging.WARNING):
        assert Table.open(table.uri).search("ti*", vector=ORIGIN, limit=40) == before
    assert "not usable" in caplog.text


# Work done once.


def test_a_filter_is_asked_of_each_row_once_and_not_again_by_the_next_search(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []
    mask = RowFilter.mask

    def counted(self: RowFilter, rows: pa.Table, count: int) -> Any:
        judged.append(count)
        return mask(self, rows, count)

    monkeypatch.setattr(RowFilter, "mask", counted)
    first = table.search("ti*", vector=ORIGIN, filter="id < 25")
    assert sum(judged) == 30
    assert table.search("ti*", vector=ORIGIN, filter="id < 25") == first
    assert table.search("ti*", index="words", filter="id < 25").num_rows == 9
    assert sum(judged) == 30
    table.search("ti*", vector=ORIGIN, filter="id + 0 < 25")  # not analysed, so the result may change at any time
    table.search("ti*", vector=ORIGIN, filter="id + 0 < 25")
    assert sum(judged) == 90
    table.search("ti*", vector=ORIGIN, filter="current_date > DATE '2026-01-01'")  # the result changes tomorrow
    table.search("ti*", vector=ORIGIN, filter="current_date > DATE '2026-01-01'")
    assert sum(judged) == 150
    table.append(rows_of(30, 31))
    assert table.search("ti*", vector=[30.0, 1.0], filter="id > 29").column("id").to_pylist() == [30]


def test_what_is_hidden_is_looked_up_once_for_all_indexes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    delete_where(table.log, lambda row: row["id"] % 4 == 0)
    looked_up: list[str] = []
    deleted = Overlay.hidden_rows

    def counted(self: Overlay, store: ObjectStore, snapshot: Snapshot, split: Add) -> BitMap:
        looked_up.append(split.path)
        return deleted(self, store, snapshot, split)

    monkeypatch.setattr(Overlay, "hidden_rows", counted)
    assert table.refresh().search("ti*", vector=ORIGIN, limit=40).num_rows == 22
    assert sorted(looked_up) == sorted(table.snapshot.splits)


# Refusals.


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"query": "tide", "vector": ORIGIN, "fusion": "max"}, "fusion is 'max'. Give rrf or linear"),
        ({"query": "tide", "vector": ORIGIN, "weights": {"words": -1}}, "the weight of 'words' is -1"),
        ({"query": "tide", "vector": ORIGIN, "weights": {"words": float("nan")}}, "the weight of 'words' is nan"),
        (
            {"query": "tide", "vector": ORIGIN, "weights": {"tags": 1}},
            "given for 'tags', but this search uses words, near",
        ),
        ({"query": "tide", "vector": ORIGIN, "weights": {"words": 0, "near": 0}}, "every weight is 0"),
        ({"query": "tide", "vector": ORIGIN, "weights": {"near": 0}}, "the weight of 'near' is 0"),
        (
            {"query": "tide", "weights": {"words": 1}, "index": "words"},
            "weights are only for a search by several indexes",
        ),
        ({"query": "tide", "fusion": "linear", "index": ["words"]}, "fusion 'linear' is only for a search by several"),
        (
            {"query": "tide", "vector": ORIGIN, "index": "words"},
            "a vector is given, but none of the indexes words takes a vector",
        ),
        (
            {"query": "tide", "vector": ORIGIN, "index": ["near"]},
            "a query is given, but none of the indexes near takes a query",
        ),
        (
            {"query": "tide", "index": ["words", "near"]},
            "index 'near' .vector. takes a vector, but the search has no vector",
        ),
        (
            {"vector": ORIGIN, "index": ["words", "near"]},
            "index 'words' .fulltext. takes a query, but the search has no query",
        ),
        ({"index": ["words", "near"]}, "neither a query nor a vector"),
        ({"query": "t0", "vector": ORIGIN, "index": ["tags", "near"]}, "index 'tags' does not rank rows"),
        ({"query": "tide", "vector": ORIGIN, "index": []}, "Give the name of one index, or a list"),
        ({"query": "tide", "vector": ORIGIN, "index": [1, "near"]}, "Give a text, a list of names or None"),
        ({"query": "tide", "vector": ORIGIN, "index": ["near", "near"]}, "Name each index once"),
        ({"query": "tide", "vector": ORIGIN, "index": {"near": 1}}, "Give a text, a list of names or None"),
        ({"query": 5, "vector": ORIGIN}, "needs a text, and the query is 5"),
        ({"query": "tide", "vector": [1.0]}, "has 1 numbers"),
        ({"query": "tide", "vector": ORIGIN, "nprobe": 0}, "nprobe is 0"),
        ({"query": "tide", "vector": ORIGIN, "boosts": {"title": 2}}, "a boost is given for 'title'"),
        ({"query": "tide", "vector": ORIGIN, "boosts": 2}, r"boosts is 2\. Give a mapping"),
        ({"query": "tide", "index": "words", "boosts": "body"}, r"boosts is 'body'\. Give a mapping"),
        ({"query": "tide", "vector": ORIGIN, "limit": 0}, "limit is 0"),
        ({"query": "tide", "vector": ORIGIN, "offset": -1}, "offset is -1"),
        ({"query": "tide", "vector": ORIGIN, "filter": "nope > 1"}, "nope"),
        ({"query": "tide", "vector": ORIGIN, "columns": ["score"]}, "unknown column 'score'"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[NEAR, WORDS, TAGS])
    with pytest.raises(InvalidInput, match=why):
        table.search(**given)


@pytest.mark.parametrize(
    "asked",
    [
        {"query": "tide"},
        {"query": "t0", "index": "tags"},
        {"query": "tide", "order_by": "id"},
        {"vector": ORIGIN},
        {"query": "tide", "vector": ORIGIN},
        {"query": "tide", "vector": ORIGIN, "fusion": "linear", "filter": "id >= 0"},
    ],
)
def test_a_page_may_end_or_begin_behind_every_row_that_a_table_could_have(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[NEAR, WORDS, TAGS])
    table.append(rows_of(0, 20))
    catch_up(table)
    table.append(rows_of(20, 30))
    asked = {"index": "words", **asked} if "vector" not in asked else asked
    whole = table.search(**asked, limit=30)
    assert whole.num_rows >= 10
    for far in (2**63 - 1, 2**63, 10**30):
        assert table.search(**asked, limit=far) == whole
        assert table.search(**asked, limit=far, offset=4) == whole.slice(4)
        assert table.search(**asked, offset=far).num_rows == 0


def test_facets_may_be_more_than_a_table_could_have(tmp_path: Path) -> None:
    facets = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[WORDS, TAGS])
    facets.append(rows_of(0, 20))
    few = facets.search_facets("tide", "title", index="words")
    assert few.num_rows == 2
    assert facets.search_facets("tide", "title", index="words", limit=2**63) == few


def test_an_unknown_index_is_not_found_and_several_that_fit_are_to_be_named(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[NEAR, WORDS, TITLES])
    with pytest.raises(NotFound, match="unknown index 'far'"):
        table.search("tide", vector=ORIGIN, index=["words", "far"])
    with pytest.raises(InvalidInput, match=r"the full-text indexes titles, words"):
        table.search("tide", vector=ORIGIN)
    with pytest.raises(InvalidInput, match="no vector index"):
        Table.create(str(tmp_path / "u"), SCHEMA, indexes=[WORDS]).search("tide", vector=ORIGIN)


# The command line.

DECLARATION = """\
name: notes
uri: warehouse/notes
columns: {id: int!, body: string, v: vector(2)}
indexes:
  - {name: near, kind: vector, columns: [v], metric: l2}
  - {name: words, kind: fulltext, columns: [body]}
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "notes.yaml"
    path.write_text(DECLARATION)
    table = Table.declare(load(path))
    table.append([{name: row[name] for name in ("id", "body", "v")} for row in rows_of(0, 20)])
    np.save(tmp_path / "q.npy", np.array(ORIGIN, np.float32))
    return table


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        return (code, *capfd.readouterr())

    return call


def test_the_command_line_fuses_words_and_a_vector(notes: Table, run: Callable[..., Any]) -> None:
    question = ("search", "notes", "tide", "--vector", "@q.npy", "--json")
    code, out, _ = run(*question, "--limit", "4")
    expected = notes.search("tide", vector=ORIGIN, limit=4).to_pylist()
    assert (code, [json.loads(line) for line in out.splitlines()]) == (0, expected)
    options = (
        "--index",
        "near",
        "--index",
        "words",
        "--fusion",
        "linear",
        "--weight",
        "words=0.5",
        "--boost",
        "body=2",
    )
    code, out, _ = run(*question, *options, "--filter", "id < 9", "--offset", "1", "--columns", "id,words_rank,score")
    expected = notes.search(
        "tide",
        vector=ORIGIN,
        index=["near", "words"],
        fusion="linear",
        weights={"words": 0.5},
        boosts={"body": 2.0},
        filter="id < 9",
        offset=1,
    ).to_pylist()
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, found) == (0, [{name: row[name] for name in ("id", "words_rank", "score")} for row in expected])
    twice = ["--weight", "words=1", "--weight", "words=2"]
    for option, value in (("weight", "words"), ("weight", "words=a"), ("weight", "=1"), ("weight", "words=nan")):
        assert run(*question, f"--{option}", value)[0] == 2, value
    for wrong in (twice, ["--boost", "title=1"], ["--fusion", "sum"]):
        code, _, error = run(*question, *wrong)
        assert (code, "Traceback" in error) == (2, False), wrong


@pytest.mark.usefixtures("notes")
def test_the_command_line_explains_each_index_of_a_search(run: Callable[..., Any]) -> None:
    asked = ("search", "notes", "tide", "--vector", "@q.npy", "--index", "words", "--index", "near", "--explain")
    plan = json.loads(run(*asked, "--json")[1])
    assert [(part["index"], part["kind"], len(part["scanned"])) for part in plan["parts"]] == [
        ("words", "fulltext", 1),
        ("near", "vector", 1),
    ]
    text = run(*asked)[1]
    assert ("index words (fulltext, weight 1)" in text, "Read and scored exactly: 1" in text) == (True, True)
