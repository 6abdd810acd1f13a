"""The report of `explain_search` before a search runs. Some values are known only after a run."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.cli import main
from storage_core.base.errors import InvalidInput, NotFound
from storage_core.engine.sandbox.process import end_all
from storage_core.index.vector import layout, segment
from storage_core.read.search import vectors
from storage_core.read.search.plan import FilterPlan, IndexPlan, SearchPlan, SourcePlan
from storage_core.store.meter import RequestMeter
from storage_core.table import Table
from tests.support.damage import Damage, damage
from tests.support.upkeep import catch_up, merge

NEAR = {"name": "near", "kind": "vector", "columns": ["v"], "metric": "l2"}
WORDS = {"name": "words", "kind": "fulltext", "columns": ["body"]}
TAGS = {"name": "tags", "kind": "bitmap", "columns": ["tag"]}
SCHEMA = pa.schema([
    pa.field("id", pa.int64(), nullable=False),
    ("tag", pa.string()),
    ("body", pa.string()),
    ("v", pa.list_(pa.float32(), 4)),
])  # fmt: skip
ORIGIN = [0.0, 0.0, 0.0, 0.0]
_names = itertools.count()


def rows_of(first: int, last: int) -> list[dict[str, Any]]:
    """Return rows where every second tag is "odd" and every third body is "tide".

    The row with the smallest id is the nearest to the origin.
    """
    return [
        {
            "id": id_,
            "tag": "odd" if id_ % 2 else "even",
            "body": "tide" if id_ % 3 == 0 else "ebb",
            "v": [float(id_), 1.0, 0.0, 0.0],
        }
        for id_ in range(first, last)
    ]


def indexed(counts: Sequence[int] = (20,), *, later: int = 10, **settings: Any) -> Table:
    """Return a table whose first splits have segments, with `later` rows without a segment."""
    uri = f"memory://explain-search-{next(_names)}"
    table = Table.create(uri, SCHEMA, indexes=[NEAR, WORDS, TAGS], **settings)
    ends = list(itertools.accumulate(counts))
    for first, last in zip([0, *ends], ends, strict=False):
        table.append(rows_of(first, last))
    catch_up(table)
    table.refresh()
    if later:
        table.append(rows_of(ends[-1], ends[-1] + later))
    return table


def ways(plan: SearchPlan) -> list[list[tuple[str, int, str]]]:
    """Return the sources of each index: location, number of rows, and method."""
    return [sorted((each.place, each.rows, each.how) for each in index.sources) for index in plan.indexes]


@pytest.mark.parametrize(
    ("asked", "gap"),
    [
        ({"query": "tide", "index": "words"}, "indexed"),
        ({"query": "odd", "index": "tags"}, "indexed"),
        ({"vector": ORIGIN}, "exact"),
    ],
)
def test_it_says_which_rows_segments_answer_and_what_becomes_of_the_others(asked: dict[str, Any], gap: str) -> None:
    table = indexed()
    plan = table.explain_search(**asked)
    assert ways(plan) == [[("base", 10, gap), ("base", 20, "segment")]]
    (index,) = plan.indexes
    answered = next(each for each in index.sources if each.how == "segment")
    assert answered.segment in table.snapshot.segments
    assert answered.segment_bytes == table.snapshot.segments[str(answered.segment)].size
    assert index.scanned == [each.name for each in index.sources if each.how == gap]
    assert index.watermark == table.version - 1
    assert (plan.filter, plan.analysis) == (None, None)


def test_nothing_is_read_before_it_is_run_and_a_run_tells_what_the_search_does() -> None:
    table, meter = indexed(), RequestMeter()
    with table.store.counted_by(meter):
        table.explain_search("tide", vector=ORIGIN)
    assert sum(meter.requests.values()) == 0
    done = table.explain_search("tide", vector=ORIGIN, limit=7, analyze=True).analysis
    assert done is not None
    assert (done.rows, sum(done.requests.values()) > 0) == (7, True)
    with Table.open(table.uri).store.counted_by(meter):
        assert table.search("tide", vector=ORIGIN, limit=7).to_arrow().num_rows == done.rows


def test_a_plan_starts_no_process_for_its_filter() -> None:
    table = indexed()
    end_all()

    def children() -> set[str]:
        return {found for path in Path("/proc/self/task").glob("*/children") for found in path.read_text().split()}

    before = children()
    assert table.explain_search(vector=ORIGIN, filter="id + 1 < 5").filter is not None
    assert children() <= before


def test_above_the_snapshot_it_names_generations_logs_and_records_over_the_base() -> None:
    table = Table.create(f"memory://explain-{next(_names)}", SCHEMA, indexes=[NEAR, WORDS, TAGS], primary_key="id")
    table.append(rows_of(0, 20))
    merge(table)
    catch_up(table)
    table.refresh()
    table.append(rows_of(20, 26))  # a generation
    with table.writer() as writer:
        writer.put(rows_of(30, 33))
        writer.patch({"id": 2, "tag": "patched"})
        plan = table.explain_search("tide", index="words", consistency="latest")
        assert ways(plan) == [
            [("base", 20, "segment"), ("generation", 6, "indexed"), ("log", 3, "indexed"), ("records", 1, "indexed")]
        ]
        found = table.search("tide", index="words", consistency="latest", limit=100).to_arrow()
        assert sorted(found.column("id").to_pylist()) == [0, 3, 6, 9, 12, 15, 18, 21, 24, 30]
        assert ways(table.explain_search(vector=ORIGIN, consistency="committed"))[0][1:] == [("generation", 6, "exact")]


def test_a_filter_is_planned_by_the_log_and_by_bitmap_indexes() -> None:
    table = indexed((20, 20), later=0)
    plan = table.explain_search(vector=ORIGIN, filter="tag = 'odd'")
    assert plan.filter is not None
    assert (plan.filter.bitmap_indexes, plan.filter.is_exact, plan.filter.rows_read) == (("tags",), True, None)
    assert all(each.exact_up_to == vectors.FEW_ROWS for each in plan.indexes[0].sources)
    done = table.explain_search(vector=ORIGIN, filter="tag = 'odd'", analyze=True)
    assert done.filter is not None
    assert (done.filter.told_splits, done.filter.rows_read) == (0, 40)
    assert done.filter.not_asked == {"the index would cost more than it saves": 2}
    assert (done.indexes[0].judged, done.indexes[0].met) == (40, 20)
    bounded = table.explain_search(vector=ORIGIN, filter="id < 5", analyze=True)
    assert bounded.filter is not None
    assert (bounded.filter.bitmap_indexes, bounded.filter.columns) == ((), ("id",))
    assert (bounded.filter.admitted_splits, bounded.filter.rows_read) == (1, 20)
    assert ways(bounded) == [[("base", 20, "exact"), ("base", 20, "left_out")]]
    assert "by the log, 1 of 2 splits may contain matching rows" in str(bounded)
    both = table.explain_search(vector=ORIGIN, filter="tag = 'odd' and id % 2 = 1").filter
    assert both is not None
    assert (both.bitmap_indexes, both.is_exact) == (("tags",), False)


def test_of_large_splits_bitmap_indexes_tell_which_rows_meet_a_filter(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, indexes=[NEAR, WORDS, TAGS])
    chance = np.random.default_rng(3)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(chance.random(400_000, np.float32)), 4)
    tags, words = chance.choice(["even", "odd"], 100_000), [f"{chance.bytes(6).hex()}" for _ in range(100_000)]
    table.append(pa.table([range(100_000), tags, words, vectors], schema=SCHEMA))
    catch_up(table)
    table.refresh()
    done = table.explain_search(vector=ORIGIN, filter="tag = 'odd' and body > 'f'", analyze=True).filter
    assert done is not None
    assert (done.told_splits, done.rows_read) == (1, int((tags == "odd").sum()))
    done = table.explain_search(vector=ORIGIN, filter="tag = 'even'", analyze=True).filter
    assert done is not None
    assert (done.is_exact, done.told_splits, done.rows_read) == (True, 1, 0)


def test_full_text_asks_the_filter_of_hits_only() -> None:
    table = indexed((30,), later=0)
    (index,) = table.explain_search("tide", index="words", filter="id > 3", analyze=True).indexes
    assert (index.judged, index.met) == (10, 8)
    assert [each.how for each in index.sources] == ["segment"]  # the statistics of the segment cover all rows


def clustered(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Make a table with a vector index segment that consists of clusters."""
    monkeypatch.setattr(layout, "FLAT_BYTES", 2**10)
    for defaults in (segment.train.__kwdefaults__, segment.build.__kwdefaults__):
        assert defaults
        monkeypatch.setitem(defaults, "flat_bytes", 2**10)
    monkeypatch.setattr(vectors, "FEW_ROWS", 100)
    points = np.random.default_rng(5).normal(size=(4_000, 4)).astype(np.float32)
    rows = [{**row, "v": place.tolist()} for row, place in zip(rows_of(0, 4_000), points, strict=True)]
    table = Table.create(f"memory://explain-{next(_names)}", SCHEMA, indexes=[NEAR, WORDS, TAGS])
    table.append(rows)
    catch_up(table)
    return table.refresh()


def test_by_selectivity_rows_are_scored_exactly_or_clusters_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    table = clustered(monkeypatch)

    def source(filter_: str | None, **asked: Any) -> SourcePlan:
        (index,) = table.explain_search(vector=[0.1] * 4, filter=filter_, **asked).indexes
        (found,) = index.sources
        return found

    before = source("id < 100")
    assert (before.how, before.exact_up_to, before.matching) == ("segment", 100, None)  # only `analyze` counts matches
    assert before.clusters is not None
    assert before.clusters > 32
    few = source("id < 100", analyze=True)
    assert (few.how, few.matching, few.ranked, few.probed) == ("exact", 100, 100, None)
    many = source("id < 101", analyze=True, nprobe=3)
    assert (many.how, many.matching) == ("segment", 101)
    assert many.probed is not None
    assert 3 < many.probed <= before.clusters  # the search reads clusters until it has 40 candidates per requested row
    assert many.ranked is not None
    assert 10 <= many.ranked < 101
    free = source(None, analyze=True, nprobe=before.clusters)
    assert (free.exact_up_to, free.matching, free.probed) == (None, 4_000, before.clusters)
    lines = str(table.explain_search(vector=[0.1] * 4, filter="id < 101", analyze=True))
    assert f" of {before.clusters} clusters" in lines
    assert "exactly, as the filter leaves at most 100" in str(few)
    windows = source(None, analyze=True, nprobe=before.clusters, limit=100)  # windows have 10, 40 and 160 rows
    assert windows.ranked == 40 + 160 + 640


def test_each_index_of_a_fusion_is_told_and_text_as_a_filter_decides_as_filters_do() -> None:
    table = indexed((30,), later=0)
    plan = table.explain_search("tide", vector=ORIGIN, weights={"words": 2})
    assert [(each.index, each.weight) for each in plan.indexes] == [("words", 2.0), ("near", 1.0)]
    asked: dict[str, Any] = {"vector": ORIGIN, "weights": {"words": 0}}
    filtering = table.explain_search("tide", **asked)
    assert [(each.index, each.weight) for each in filtering.indexes] == [("near", 1.0), ("words", 0.0)]
    near, _ = table.explain_search("tide", **asked, analyze=True).indexes
    (source,) = near.sources
    assert (source.how, source.matching, near.met) == ("exact", 10, 10)
    assert filtering.indexes[0].sources[0].exact_up_to == vectors.FEW_ROWS


def test_a_run_that_meets_damage_tells_of_the_attempt_that_answered(caplog: pytest.LogCaptureFixture) -> None:
    table = indexed((20,), later=0)
    table.append(rows_of(20, 40))
    catch_up(table)
    catch_up(table)
    table.refresh()
    path = next(each.path for each in table.snapshot.segments.values() if each.index == "near")
    damage(table.store, path, Damage.BIT_FLIP)
    with caplog.at_level(logging.WARNING):
        done = table.explain_search(vector=ORIGIN, analyze=True)
    assert done.analysis is not None
    assert done.analysis.rows == 10
    assert path in caplog.text


def test_what_search_refuses_is_refused() -> None:
    table = indexed(later=0)
    for analyze in (False, True):
        with pytest.raises(NotFound, match="nope"):
            table.explain_search("tide", index="nope", analyze=analyze)
        with pytest.raises(InvalidInput, match="nprobe"):
            table.explain_search("tide", index="words", nprobe=3, analyze=analyze)
        with pytest.raises(InvalidInput, match="Give 4"):
            table.explain_search(vector=[1.0], analyze=analyze)
        with pytest.raises(InvalidInput, match="colour"):
            table.explain_search("tide", index="words", columns=["colour"], analyze=analyze)
    with pytest.raises(InvalidInput, match="name of one index"):
        table.explain_search()


def test_the_command_prints_it_and_its_json_has_the_fields_of_the_specification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "0")
    uri = str(tmp_path / "t")
    table = Table.create(uri, SCHEMA, indexes=[NEAR, WORDS, TAGS])
    table.append(rows_of(0, 20))
    catch_up(table)
    np.save(tmp_path / "q.npy", np.array(ORIGIN, np.float32))

    def run(*arguments: str) -> str:
        assert main(["search", uri, *arguments]) == 0
        return capsys.readouterr().out

    asked = ("--text", "tide", "--vector", f"@{tmp_path / 'q.npy'}", "--filter", "tag = 'odd'")
    plan = json.loads(run(*asked, "--analyze", "--json"))
    assert plan.keys() == {"parts", "raw_logs", "filter", "analysis"}
    assert [set(part) for part in plan["parts"]] == [{each.name for each in fields(IndexPlan)}] * 2
    assert set(plan["parts"][0]["sources"][0]) == {each.name for each in fields(SourcePlan)}
    assert set(plan["filter"]) == {each.name for each in fields(FilterPlan)}
    assert plan["analysis"]["rows"] == 10
    alone = json.loads(run("tide", "--index", "words", "--explain", "--json"))
    assert {"index", "kind", "version", "watermark", "segments", "scanned", "sources"} <= alone.keys()
    text = run(*asked, "--explain")
    for expected in (
        "index words (fulltext, weight 1)",
        "index near (vector, weight 1)",
        "bitmap index tags answers the filter",
    ):
        assert expected in text
    assert " in 0." in run(*asked, "--analyze")


def test_the_search_of_the_command_line_is_hybrid_and_filtered_as_the_text_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, SCHEMA, indexes=[NEAR, WORDS, TAGS])
    table.append(rows_of(0, 20))
    np.save(tmp_path / "q.npy", np.array(ORIGIN, np.float32))
    vector = ("--vector", f"@{tmp_path / 'q.npy'}", "--filter", "tag = 'odd'", "--json")

    def lines(*arguments: str) -> list[dict[str, Any]]:
        assert main(["search", uri, *vector, *arguments]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    expected = table.search("tide", vector=ORIGIN, filter="tag = 'odd'").to_pylist()
    assert lines("--text", "tide") == lines("tide") == expected
    ids = lines("--text", "tide", "--columns", "id")
    names = ["id", "score", "distance", "words_rank", "words_score", "near_rank", "near_score"]
    assert [list(row) for row in ids] == [names] * len(expected)
    assert [list(row) for row in lines("--columns", "id")] == [["id", "score", "distance"]] * 10
    assert table.search(vector=ORIGIN, columns=["id"]).column_names == ["id", "score", "distance"]
    assert [list(row) for row in lines("--columns", "id,distance")] == [["id", "distance"]] * 10


def _pickled(path: Path) -> None:
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def _cut(path: Path) -> None:
    np.save(path, np.ones(4, np.float32))
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_text("junk"), "the file begins with b'junk'"),
        (lambda path: path.write_bytes(b""), "the file begins with b''"),
        (_pickled, "the file contains Python objects"),
        (_cut, "the file is truncated or damaged"),
        (lambda path: path.mkdir(), "cannot be read"),
    ],
    ids=["junk", "empty", "objects", "cut", "folder"],
)
def test_a_file_that_is_no_vector_is_refused_with_what_was_expected_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], object], message: str
) -> None:
    Table.create(str(tmp_path / "t"), SCHEMA, indexes=[NEAR])
    path = tmp_path / "q.npy"
    write(path)
    assert main(["search", str(tmp_path / "t"), "--vector", f"@{path}"]) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert message in error
    assert "Give a NumPy file (.npy) with one vector" in error
    assert "pickle" not in error
