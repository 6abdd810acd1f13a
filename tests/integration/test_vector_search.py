"""Vector searches of tables: results, refusals, and recall."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from pipelines.cli import main
from storage_core.base.errors import InvalidInput, NotFound
from storage_core.change.declaration import load
from storage_core.data.rows.vectors import Floats, column_of, vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import CatchUp
from storage_core.index import catch_up
from storage_core.log.job_run import run as run_step
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.read.answers import HeldRows
from storage_core.read.scan import wanted_filter
from storage_core.read.search.plan import covered
from storage_core.store.memory import MemoryStore
from storage_core.table import Table
from storage_core.write.region.records import WriterOptions
from tests.support import upkeep
from tests.support.brute_force import nearest
from tests.support.damage import Damage, damage
from tests.support.indexed_table import IndexedTable
from tests.support.keyed_table import KeyedTable
from tests.support.searching import recall, search

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("v", vector_type(4))])
NEAR = {"name": "near", "kind": "vector", "columns": ["v"], "metric": "cosine"}
WORDS = {"name": "words", "kind": "fulltext", "columns": ["text"]}
DIMENSIONS = 64
Ids = npt.NDArray[np.int64]
MANY = pa.schema([("id", pa.int64()), ("v", vector_type(DIMENSIONS))])


def made(rows: int, dimensions: int = 4, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, dimensions)).astype(np.float32)


def rows_of(vectors: Floats, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": first + number, "text": f"row {number}", "v": each.tolist()} for number, each in enumerate(vectors)]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Make a table with two splits: thirty rows with an embedding, and one row without."""
    created = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[NEAR, WORDS])
    created.append(rows_of(made(20)))
    created.append([*rows_of(made(10, seed=2), 20), {"id": 30, "text": "none", "v": None}])
    return created


# Answers.


def test_an_answer_has_the_columns_the_score_and_the_distance_and_is_what_a_scan_returns(table: Table) -> None:
    query = made(1, seed=3)[0]
    found = table.search(vector=query, limit=5)
    assert isinstance(found, HeldRows)
    assert found.column_names == ["id", "text", "v", "score", "distance"]
    expected = nearest(
        table.scan().to_arrow().to_pylist(), query.tolist(), "cosine", column="v", order=lambda row: row["id"]
    )
    assert found.to_pandas()["id"].tolist() == [row["id"] for _, row in expected[:5]]
    assert found.column("distance").to_pylist() == [away for away, _ in expected[:5]]
    assert found.column("score").to_pylist() == [1 - away for away, _ in expected[:5]]
    assert table.search(vector=query.tolist(), columns=["id"], limit=5).column_names == ["id", "score", "distance"]
    assert len(table.search(vector=query, limit=100)) == 30, "a row without a vector is never found"
    assert isinstance(table.search("row", index="words"), HeldRows)


def test_names_that_the_table_has_are_left_to_it(tmp_path: Path) -> None:
    schema = pa.schema([("score", pa.int64()), ("distance", pa.int64()), ("v", vector_type(2))])
    table = Table.create(str(tmp_path / "t"), schema, indexes=[{**NEAR, "metric": "dot"}])
    table.append([{"score": 1, "distance": 2, "v": [1.0, 2.0]}])
    (row,) = table.search(vector=[3, 4]).to_pylist()
    assert row == {"score": 1, "distance": 2, "v": [1.0, 2.0], "_score": 11.0, "_distance": -11.0}


def test_the_only_index_that_fits_need_not_be_named(table: Table, tmp_path: Path) -> None:
    assert table.search("none").to_pylist()[0]["id"] == 30
    assert len(table.search(vector=made(1)[0])) == 10
    bare = Table.create(str(tmp_path / "bare"), SCHEMA)
    with pytest.raises(InvalidInput, match=r"the table has no vector index\. Declare an index in `indexes`"):
        bare.search(vector=[1, 2, 3, 4])
    several = Table.create(str(tmp_path / "two"), SCHEMA, indexes=[NEAR, {**NEAR, "name": "far"}, WORDS])
    with pytest.raises(InvalidInput, match=r"the vector indexes far, near\. Name one"):
        several.search(vector=[1, 2, 3, 4])


@pytest.mark.parametrize(
    "given",
    [
        *([1.0, 2.0], [], [[1.0, 2.0, 3.0, 4.0]], [1.0, 2.0, 3.0, float("nan")], [1.0, 2.0, 3.0, float("inf")]),
        *([1.0, 2.0, 3.0, 1e300], [0.0] * 4, "abcd", ["a", "b", "c", "d"], [1.0, None, 2.0, 3.0], [[1], 2, 3, 4], 7),
        *(b"abcd", {"a": 1}, [True, True, False, True], [10**400, 1, 1, 1], object()),
    ],
)
def test_what_is_no_vector_of_the_index_is_refused(table: Table, given: object) -> None:
    with pytest.raises(InvalidInput):
        table.search(vector=given, index="near")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"query": "row", "index": "near"}, "takes a vector"),
        ({"index": "near"}, "takes a vector"),
        ({"vector": [1, 2, 3, 4], "index": "words"}, "takes a query, not a vector"),
        (
            {"query": "row", "vector": [1, 2, 3, 4], "index": "near"},
            "a query is given, but none of the indexes near takes a query",
        ),
        ({"vector": [1, 2, 3, 4], "nprobe": 0}, "nprobe is 0"),
        ({"vector": [1, 2, 3, 4], "nprobe": "all"}, "nprobe is 'all'"),
        ({"query": "row", "nprobe": 4}, "nprobe is for searches by vector"),
        ({"vector": [1, 2, 3, 4], "index": 7}, "index is 7. Give a text, a list of names or None"),
        ({"vector": [1, 2, 3, 4], "filter": "nope > 1"}, "nope"),
        ({"vector": [1, 2, 3, 4], "limit": 0}, "limit is 0"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(table: Table, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        table.search(**asked)
    with pytest.raises(NotFound, match="unknown index 'x'"):
        table.search(vector=[1, 2, 3, 4], index="x")


# Maintenance.


def caught_up(table: IndexedTable) -> Snapshot:
    return table.catch_up("near")


def indexed(vectors: Floats, splits: int = 1, **options: str) -> IndexedTable:
    index = IndexDefinition("near", "vector", ("v",), options)
    table = IndexedTable(MemoryStore(f"vectors-{splits}-{options}"), TableConfig(indexes=(index,)), schema=MANY)
    first = 0
    for part in np.array_split(vectors, splits):
        table.add(pa.Table.from_arrays([pa.array(range(first, first + len(part))), column_of(part)], schema=MANY))
        first += len(part)
    return table


def test_what_segments_cover_is_said_and_a_damaged_one_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    vectors = made(300, DIMENSIONS)
    table = indexed(vectors, 3)
    before = search(table.store, table.snapshot, vector=vectors[5])
    assert covered(table.snapshot, index="near")["scanned"] == sorted(table.snapshot.splits)
    after = caught_up(table)
    plan = covered(after, index="near")
    assert (plan["kind"], plan["scanned"], plan["watermark"]) == ("vector", [], after.version)
    assert catch_up.plan(after, "near").empty
    assert search(table.store, after, vector=vectors[5]).equals(before)
    path = min(after.segments)
    damage(table.store, path, Damage.BIT_FLIP)
    with caplog.at_level(logging.WARNING):
        assert search(table.store, after, vector=vectors[5]).equals(before)
    assert path in caplog.text


def test_segments_of_vectors_are_checked_kept_and_replaced_as_all_others_are() -> None:
    vectors = made(200, DIMENSIONS)
    table = indexed(vectors, 2)
    segments = sorted(caught_up(table).segments)
    assert fsck(table.store, clock=table.clock, deep=True).clean
    for _ in range(2):
        table.clock.sleep_ms(10**9)
        collect(table.store, table.log, clock=table.clock)
    assert {info.key for info in table.store.list("_indices/")} >= {*segments}
    damage(table.store, segments[0], Damage.BIT_FLIP)
    assert segments[0] in {each.key for each in fsck(table.store, clock=table.clock, deep=True).findings}


def test_a_generation_brings_its_segment_of_vectors() -> None:
    index = IndexDefinition("near", "vector", ("v",))
    store = MemoryStore("generation-of-vectors")
    table = KeyedTable(store).create(SCHEMA, TableConfig(primary_key=("id",), indexes=(index,)))
    with table.writer(WriterOptions(segment_rows=1)) as writer:
        for row in rows_of(made(20)):
            writer.put(row)
        writer.flush()
    assert [info.key for info in store.list("_indices/near/")]
    table.merge()
    assert covered(table.snapshot, index="near")["scanned"] == []
    assert catch_up.plan(table.snapshot, "near").empty


def test_the_codes_of_many_rows_name_nearly_all_of_the_nearest() -> None:
    vectors = made(20_000, DIMENSIONS)
    for options in ({}, {"metric": "cosine"}, {"metric": "dot", "quantization": "scalar"}):
        table = indexed(vectors, 3, **options)
        found = recall(table.store, caught_up(table), queries=50)
        assert found.recall >= 0.99
        assert (found.queries, found.rows, found.k) == (50, 20_000, 10)
        assert found.candidates < 50 * 200


def test_a_plan_of_a_segment_without_codes_says_that_no_row_was_ranked_by_the_table() -> None:
    uri = "memory://vectors-without-codes"
    table = Table.create(uri, SCHEMA, indexes=[{**NEAR, "quantization": "none"}])
    table.append(rows_of(made(30)))
    upkeep.catch_up(table)
    line = str(table.refresh().explain_search(vector=[1, 2, 3, 4], analyze=True))
    assert "by its segment, all of it (0 rows by vectors of the table)" in line


@pytest.mark.parametrize(("quantization", "ranked"), [(None, 3 * 500), ("none", 0)])
def test_candidates_of_recall_are_the_rows_that_vectors_of_the_table_ranked(
    quantization: str | None, ranked: int
) -> None:
    vectors = made(500, DIMENSIONS)
    table = indexed(vectors, 1) if quantization is None else indexed(vectors, 1, quantization=quantization)
    snapshot = table.snapshot if quantization is None else caught_up(table)
    assert recall(table.store, snapshot, queries=3).candidates == ranked


# Recall.


@pytest.fixture(scope="module")
def clustered() -> tuple[IndexedTable, Floats]:
    """Make a table with a clustered segment of 17 MiB without codes. The embeddings form no natural clusters."""
    vectors = made(70_000, DIMENSIONS)
    table = indexed(vectors, quantization="none")
    caught_up(table)
    return table, vectors


def own_recall(table: IndexedTable, vectors: Floats, queries: Floats, allowed: Ids, **asked: Any) -> float:
    hits = 0
    for query in queries:
        wide = vectors[allowed].astype(np.float64)
        truth = np.sort(np.sqrt(np.square(wide - query.astype(np.float64)).sum(axis=1)))[9]
        found = search(table.store, table.snapshot, vector=query, columns=["id"], **asked)
        assert {*found.column("id").to_pylist()} <= {*allowed.tolist()}
        assert found.num_rows == 10, "never fewer than there are"
        hits += int((found.column("distance").to_numpy() <= truth).sum())
    return hits / (10 * len(queries))


def test_measured_recall_is_what_numpy_says(clustered: tuple[IndexedTable, Floats]) -> None:
    table, vectors = clustered
    queries, every = made(8, DIMENSIONS, seed=9), np.arange(len(vectors))
    for nprobe, least, most in ((1, 0.0, 0.7), (None, 0.3, 1.0), (10_000, 1.0, 1.0)):
        found = recall(table.store, table.snapshot, queries=queries, nprobe=nprobe)
        assert found.recall == own_recall(table, vectors, queries, every, nprobe=nprobe)
        assert least <= found.recall <= most


def test_groups_of_equal_vectors_do_not_hide_the_nearest_rows(tmp_path: Path) -> None:
    chance, dimensions = np.random.default_rng(4), 32
    points = made(60, dimensions, seed=2) + 3 * made(1, dimensions, seed=3)
    groups = chance.integers(0, len(points), 30_000)
    schema = pa.schema([("id", pa.int64()), ("v", vector_type(dimensions))])
    near = {"name": "near", "kind": "vector", "columns": ["v"], "metric": "l2"}
    table = Table.create(str(tmp_path / "alike"), schema, indexes=[near])
    table.append(pa.table({"id": np.arange(len(groups)), "v": column_of(points[groups])}, schema=schema))
    upkeep.catch_up(table)
    for number, point in enumerate(points):
        found = table.refresh().search(vector=point, columns=["id"], limit=20)
        assert {int(groups[row]) for row in found.column("id").to_pylist()} == {number}
    between = (points[:20] + points[20:40]) / 2
    assert table.recall("near", queries=between).recall == 1.0


def test_what_is_in_memory_is_searched_without_a_folder_and_a_known_filter_without_its_rows(
    table: Table, tmp_path: Path
) -> None:
    upkeep.catch_up(table)
    table.refresh()
    cache, query = tmp_path / "cache", made(1, seed=3)[0]
    first = table.search(vector=query, cache_dir=cache)
    shutil.rmtree(cache)
    assert table.search(vector=query, cache_dir=cache).equals(first)
    few = table.search(vector=query, cache_dir=cache, filter="id < 16")
    assert max(few.column("id").to_pylist()) < 16
    assert not cache.exists()
    told = table.explain_search(vector=query, filter="id < 16", analyze=True)
    assert told.filter is not None
    assert told.filter.rows_read == 0
    assert (told.indexes[0].judged, told.indexes[0].met) == (20, 16)


@pytest.mark.parametrize("share", [2, 40, 4000])
def test_a_filter_leaves_recall_as_it_is_and_never_finds_fewer(
    clustered: tuple[IndexedTable, Floats], share: int
) -> None:
    table, vectors = clustered
    queries, allowed = made(3, DIMENSIONS, seed=9), np.arange(0, len(vectors), share)
    wanted = wanted_filter(f"id % {share} = 0")
    found = recall(table.store, table.snapshot, queries=queries, filter=wanted, nprobe=4)
    assert found.rows == len(allowed)
    assert found.recall == own_recall(table, vectors, queries, allowed, filter=wanted, nprobe=4)
    assert share == 2 or found.recall == 1.0, "few rows are scored exactly"


def test_a_table_without_rows_answers_with_none(tmp_path: Path) -> None:
    empty = Table.create(str(tmp_path / "empty"), SCHEMA, indexes=[NEAR])
    found = empty.search(vector=[1, 2, 3, 4])
    assert (found.num_rows, found.column_names) == (0, ["id", "text", "v", "score", "distance"])
    for queries in (None, [[1, 2, 3, 4]]):
        assert (empty.recall(queries=queries).recall, empty.recall(queries=queries).rows) == (1.0, 0)


def test_recall_of_rows_drawn_from_the_table_is_the_same_for_a_seed(table: Table) -> None:
    found = table.recall()
    assert (found.index, found.recall, found.queries, found.k, found.rows) == ("near", 1.0, 30, 10, 30)
    assert table.recall("near", 5, 3, "id < 20", seed=1) == table.recall("near", 5, 3, "id < 20", seed=1)
    assert table.recall("near", 5, 3, "id < 20").rows == 20
    nothing = table.recall("near", filter="id > 100")
    assert (nothing.recall, nothing.queries, nothing.rows) == (1.0, 0, 0)
    for queries in (0, -1, True, "abcd", [], np.array(5), np.zeros((0, 4)), [[1.0]], [[float("nan")] * 4]):
        with pytest.raises(InvalidInput):
            table.recall("near", queries)
    with pytest.raises(InvalidInput, match="k is 0"):
        table.recall("near", k=0)
    for seed in (-1, "a", True):
        with pytest.raises(InvalidInput, match="seed is"):
            table.recall("near", seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", [{"metrics": "cosine"}, {"nprobes": 3}, {"tokenizer": "raw"}], ids=str)
@pytest.mark.parametrize("kind", [("near", "vector", "v"), ("words", "fulltext", "text")], ids=str)
def test_an_entry_of_an_index_that_nobody_reads_is_refused(
    entry: dict[str, object], kind: tuple[str, str, str], tmp_path: Path
) -> None:
    name, of, column = kind
    with pytest.raises(InvalidInput, match=f"unknown entry '{next(iter(entry))}'"):
        Table.create(str(tmp_path / "t"), SCHEMA, indexes=[{"name": name, "kind": of, "columns": [column], **entry}])


# The command line and the job.

DECLARATION = """\
name: notes
uri: notes
columns: {id: long!, text: string, v: vector(4)}
indexes:
  - {name: near, kind: vector, columns: [v], metric: l2}
"""


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        return (code, *capfd.readouterr())

    return call


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "notes.yaml"
    path.write_text(DECLARATION)
    table = Table.declare(load(path))
    table.append(rows_of(made(20)))
    return table


def test_the_command_line_searches_by_vector(notes: Table, run: Callable[..., Any], tmp_path: Path) -> None:
    query = made(20)[7]
    np.save(tmp_path / "q.npy", query)
    ids = [row["id"] for row in notes.search(vector=query, limit=3).to_pylist()]
    for given in ("@q.npy", json.dumps(query.tolist())):
        asked = ("search", "notes", "--vector", given, "--index", "near", "--nprobe", "2", "--limit", "3", "--json")
        code, out, _ = run(*asked)
        rows = [json.loads(line) for line in out.splitlines()]
        assert (code, [row["id"] for row in rows]) == (0, ids)
        assert (rows[0]["distance"], rows[0]["score"]) == (0.0, 0.0)
    code, out, _ = run("search", "notes", "--vector", "@q.npy", "--columns", "id,distance", "--json")
    assert (code, json.loads(out.splitlines()[0])) == (0, {"id": ids[0], "distance": 0.0})
    for wrong in ("@nowhere.npy", "[1,", "[1,2]", "{}", "text", "@tables/notes.yaml"):
        code, _, error = run("search", "notes", "--vector", wrong)
        assert code != 0
        assert "Traceback" not in error


@pytest.mark.usefixtures("notes")
def test_the_command_line_measures_recall_and_says_what_is_covered(run: Callable[..., Any], tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", made(20)[7])
    code, out, _ = run("recall", "notes", "--index", "near", "--queries", "5", "--json")
    assert code == 0
    assert json.loads(out) == {
        "index": "near",
        "k": 10,
        "recall": 1.0,
        "queries": 5,
        "rows": 20,
        "candidates": json.loads(out)["candidates"],
    }
    assert "recall@10 1.0000 over 5 queries" in run("recall", "notes", "--queries", "5")[1]
    assert "Read and scored exactly: 1" in run("search", "notes", "--vector", "@q.npy", "--explain")[1]
    (described,) = json.loads(run("describe", "notes", "--json")[1])["indexes"]
    assert (described["kind"], described["covered_splits"], described["recall"]) == ("vector", 0, None)
    (measured,) = json.loads(run("describe", "notes", "--recall", "--json")[1])["indexes"]
    assert measured == {**described, "recall": 1.0}
    assert "recall" in run("describe", "notes", "--recall")[1]


@pytest.mark.spark
def test_the_job_catches_up_on_spark(notes: Table, spark: Spark) -> None:
    query = made(1, seed=5)[0]
    before = notes.search(vector=query)
    report = run_step(CatchUp(table_uri=notes.uri), spark)
    assert (report.status, report.details) == ("committed", {"segments_built": {"near": 1}})
    after = Table.open(notes.uri)
    assert after.explain_search(index="near").indexes[0].scanned == []
    assert after.search(vector=query).equals(before)
