"""Merges of small index segments: the segments per search, the answers after a merge, and its reads and writes."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from jobs.due_runs import TableInputs, due_run
from pipelines.cli import main
from storage_core.base.errors import CommitConflict, Corrupt
from storage_core.change.declaration import TableDeclaration, load
from storage_core.data.rows.vectors import vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import catch_up, segment_merge, segments, vector
from storage_core.index.catch_up import measure_backlog
from storage_core.index.segment_merge import MergedSegments, SegmentMerge
from storage_core.index.segments import compute_coverage
from storage_core.index.vector import segment as training
from storage_core.log.actions import IndexSegment
from storage_core.log.coverage import GONE
from storage_core.log.job_run import DueRun
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import collect
from storage_core.maintain.history import restore
from storage_core.split.read import read_split
from storage_core.store.contract import Overwrite
from tests.support import upkeep
from tests.support.indexed_table import CONFIG, SCHEMA, TAG_VALUES, TAGS, TEXT, IndexedTable, watermarks
from tests.support.searching import search
from tidemark import Table

WORDS = ("ebb", "flood", "tide", "neap", "spring tide", None)
QUESTIONS = (("text", "tide"), ("text", "ebb flood"), ("text", '"spring tide"'), ("tags", "x"), ("tags", ["y", "z"]))


def appended(table: IndexedTable, splits: int, rows: int = 10, *, seed: int = 1) -> None:
    """Append and catch up after each append. Segments are merged only when a tier has `FACTOR` segments."""
    draw = random.Random(seed)
    for _ in range(splits):
        table.append([(0, draw.choice(TAG_VALUES), draw.choice(WORDS)) for _ in range(rows)])
        table.catch_up()


def answers(table: IndexedTable, snapshot: Snapshot) -> list[pa.Table]:
    return [search(table.store, snapshot, query, index=index, limit=1_000) for index, query in QUESTIONS]


def require_same(table: IndexedTable, found: Sequence[pa.Table], snapshot: Snapshot) -> None:
    """Check that rows, order and scores are the same."""
    for (index, query), before, after in zip(QUESTIONS, found, answers(table, snapshot), strict=True):
        assert before.num_rows
        assert before.equals(after), (index, query)


def require_as_built_anew(table: IndexedTable) -> None:
    head = table.snapshot
    require_same(table, answers(table, replace(head, segments={})), head)


def merged(snapshot: Snapshot, index: str = "text") -> list[IndexSegment]:
    return [each for each in snapshot.segments.values() if each.index == index and each.coveredRows]


def test_answers_scores_and_watermarks_are_those_of_before() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    before, table.retokenised = answers(table, table.snapshot), 0
    table.catch_up()
    assert [len(merged(table.snapshot, name)) for name in ("text", "tags")] == [1, 1]
    assert len(table.snapshot.segments) == 2
    assert table.retokenised == 0
    assert watermarks(table.snapshot) == dict.fromkeys(("text", "tags"), table.snapshot.version)
    require_same(table, before, table.snapshot)
    table.require_exact(table.snapshot)


def test_a_merge_reads_no_split_and_tokenises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    monkeypatch.setattr(segments, "indexed_rows", None)
    items = [item for name in ("text", "tags") for item in catch_up.plan(table.snapshot, name).merges]
    before = dict(table.store.requests)
    done = [segment_merge.execute(table.store, item, ids=table.ids) for item in items]
    assert [each.numRecords for each in done] == [80, 80]
    after = table.store.requests
    assert {kind: after[kind] - before[kind] for kind in ("get", "put")} == {
        "get": 2 * segment_merge.FACTOR,
        "put": 2,
    }


def test_segments_of_rows_that_moved_are_over_the_splits_where_these_are_now() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR - 1)
    table.compact()
    appended(table, 1)
    before = answers(table, table.snapshot)
    table.catch_up()
    head = table.snapshot
    assert {split for each in head.segments.values() for split in each.covers} == set(head.splits)
    require_same(table, before, head)
    table.catch_up()
    assert table.snapshot.translations == {}  # all translations are gone
    require_same(table, before, table.snapshot)


def test_one_segment_over_one_split_is_like_any_other() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    table.compact()
    before = answers(table, table.snapshot)
    table.catch_up()
    assert all(each.coveredRows is None and each.origins is None for each in table.snapshot.segments.values())
    assert len(table.snapshot.segments) == 2
    require_same(table, before, table.snapshot)


def test_rows_that_were_dropped_weigh_as_before_and_are_not_found() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    table.delete({path: [0] for path in table.snapshot.splits})
    table.compact()
    before = answers(table, table.snapshot)
    table.catch_up()
    (text,) = merged(table.snapshot)
    assert text.covers[-1].endswith(f"/{GONE}")
    assert text.coveredRows == (72, 8)
    require_same(table, before, table.snapshot)
    table.require_exact(table.snapshot)


def test_a_split_that_other_segments_answer_for_too_is_covered_in_part() -> None:
    table = IndexedTable()
    table.append([(0, TAG_VALUES[row % 4], WORDS[row % 6]) for row in range(1_000)])
    appended(table, segment_merge.FACTOR)
    table.compact()
    before, table.retokenised = answers(table, table.snapshot), 0
    table.catch_up()
    parts = [each for each in table.snapshot.segments.values() if each.origins is not None]
    assert {each.index: len(each.origins or ()) for each in parts} == {"text": 8, "tags": 8}
    assert len(table.snapshot.segments) == 4
    assert table.retokenised == 0
    require_same(table, before, table.snapshot)
    table.compact_alone()
    table.append([(0, "x", "ebb")])
    table.compact()
    table.catch_up()
    table.require_exact(table.snapshot)
    require_as_built_anew(table)


def test_interleaved_coverage_does_not_make_merges_a_no_op() -> None:
    table = IndexedTable()
    for number in range(2 * segment_merge.FACTOR):
        table.append([(0, TAG_VALUES[row % 4], WORDS[row % 6]) for row in range(20)])
        if number % 2:
            table.catch_up()  # sometimes two splits at once
        if number % 5 == 4:
            table.compact(target_bytes=2_000)
    for _ in range(4):
        table.catch_up()
    head = table.snapshot
    assert watermarks(head) == dict.fromkeys(("text", "tags"), head.version)
    assert all(len(compute_coverage(head, each).segments) < segment_merge.FACTOR for each in (TEXT, TAGS))
    table.require_exact(head)
    require_as_built_anew(table)


def test_a_merge_after_a_deferred_remap_drops_no_row() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR - 1)
    table.append([(0, "x", "tide ebb") for _ in range(7)])
    late = table.index("text")
    table.compact()
    table.commit_index(late)  # the rows of the late segment have already moved
    before = answers(table, table.snapshot)
    table.catch_up()
    require_same(table, before, table.snapshot)
    table.require_exact(table.snapshot)
    assert watermarks(table.snapshot)["text"] == table.snapshot.version


def test_a_new_delta_deletes_no_old_one() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    merge = table.index("text")
    table.append([(0, "x", "tide")])
    other = table.index("text")
    table.commit_index(replace(other, merged=()))
    before = answers(table, table.snapshot)
    table.commit_index(merge)
    assert len(compute_coverage(table.snapshot, TEXT).segments) == 2
    require_same(table, before, table.snapshot)


def test_options_of_the_index_are_passed_to_the_commit() -> None:
    stems = IndexDefinition("text", "fulltext", ("words",), {"tokenizer": "en_stem"})
    table = IndexedTable(config=replace(CONFIG, indexes=(stems,)))
    for number in range(segment_merge.FACTOR):
        table.append([(0, "x", ("flooding tides", "ebbed")[number % 2])])
        table.catch_up("text")
    before = search(table.store, table.snapshot, "flood tide", index="text")
    assert before.num_rows == segment_merge.FACTOR // 2
    table.catch_up("text")
    (segment,) = table.snapshot.segments.values()
    assert segment.details[segments.DEFINITION] == segments.fingerprint_of(stems)
    assert search(table.store, table.snapshot, "flood tide", index="text").equals(before)
    table.append([(0, "x", "floods")])
    table.catch_up("text")
    assert search(table.store, table.snapshot, "flood", index="text").num_rows == 1 + segment_merge.FACTOR // 2


def catch_up_due(declaration: TableDeclaration) -> DueRun | None:
    return due_run("catch_up", TableInputs.of(declaration))


def test_nobody_has_to_run_optimize(tmp_path: Path) -> None:
    file = tmp_path / "words.yaml"
    described = "indexes: [{name: tags, kind: bitmap, columns: [tag]}]"
    file.write_text(f"name: words\nuri: {tmp_path / 'table'}\ncolumns: {{tag: string}}\n{described}\n")
    declaration = load(file)
    table = Table.declare(declaration)
    for _ in range(segment_merge.FACTOR):
        table.append({"tag": "x"})
        assert catch_up_due(declaration) is not None
        plan = catch_up.plan(table.snapshot, "tags")
        built = [catch_up.execute(table.store, item, ids=table.log.ids) for item in plan.work]
        table.log.commit(table.snapshot, plan.actions(built), operation="CATCH UP")  # older releases never merged them
    due = catch_up_due(declaration)  # there is work although every split has a segment
    assert due is not None
    assert due.reason == "tags has 8 segments to merge"
    upkeep.catch_up(table)
    assert catch_up_due(declaration) is None
    assert len(table.refresh().snapshot.segments) == 1


def test_of_two_merges_of_one_segment_one_commits() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    first, second = table.index("text"), table.index("text")
    table.commit_index(first)
    with pytest.raises(CommitConflict, match=r"[Pp]lan again"):
        table.commit_index(second)
    table.catch_up()
    table.require_exact(table.snapshot)


@pytest.mark.parametrize("merge_first", [True, False])
def test_a_merge_of_segments_and_a_compaction_of_their_splits_both_commit(merge_first: bool) -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    before = answers(table, table.snapshot)
    merge, moving = table.index("text"), table.merge([sorted(table.snapshot.splits)])
    steps: list[Callable[[], Snapshot]] = [lambda: table.commit_index(merge), lambda: table.commit_merge(moving)]
    for step in steps if merge_first else reversed(steps):
        step()
    head = table.snapshot
    assert watermarks(head) == dict.fromkeys(("text", "tags"), head.version)
    require_same(table, before, head)
    assert len(compute_coverage(head, TEXT).segments) == 1


def test_older_versions_and_restored_ones_have_their_segments() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    older = table.snapshot
    before = answers(table, older)
    table.catch_up()
    table.delete({path: [1] for path in table.snapshot.splits})
    table.compact()
    table.catch_up()
    require_same(table, before, table.log.snapshot(version=older.version))
    restore(table.log, table.log.snapshot(version=older.version))
    head = table.snapshot
    require_same(table, before, head)
    table.catch_up()
    require_same(table, before, table.snapshot)
    table.require_exact(table.snapshot)


def test_the_collector_takes_segments_that_were_merged_and_keeps_the_merged_one() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    table.catch_up()
    for _ in range(3):
        table.clock.now += 10_000
        table.append([(5, "slack", "slack")])
        table.log.checkpoint(table.snapshot)
        collect(table.store, table.log, clock=table.clock)
    listed = {info.key for info in table.store.list("_indices/")}
    assert listed == set(table.snapshot.segments)
    table.require_exact(table.snapshot)
    require_as_built_anew(table)


def test_a_merged_segment_of_which_a_fifth_is_gone_is_built_anew() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    table.catch_up()
    gone = sorted(table.snapshot.splits)[:3]
    table.delete({path: range(10) for path in gone})
    table.compact()
    table.retokenised = 0
    table.catch_up()
    assert table.retokenised == 2 * 50
    table.require_exact(table.snapshot)
    require_as_built_anew(table)


VECTORS = IndexDefinition("near", "vector", ("vector",), {"metric": "l2"})
POINTS = pa.schema([*SCHEMA, ("vector", vector_type(16))])


def with_points(splits: int, rows: int, definition: IndexDefinition = VECTORS) -> IndexedTable:
    """Make a table of splits with embeddings and index each split at once. Every tenth row has no embedding."""
    table = IndexedTable(config=replace(CONFIG, indexes=(definition,)), schema=POINTS)
    draw = np.random.default_rng(5)
    for _ in range(splits):
        points = [None if row == 9 else draw.normal(size=16).tolist() for row in range(rows)]
        columns = {
            "at": pa.array([dt.datetime.fromtimestamp(row, dt.UTC) for row in range(rows)], SCHEMA.field("at").type),
            "id": pa.array(range(rows), pa.int64()),
            "tag": pa.array(["x"] * rows),
            "words": pa.nulls(rows, pa.string()),
            "vector": pa.array(points, POINTS.field("vector").type),
        }
        table.add(pa.table(columns, schema=POINTS))
        table.catch_up("near")
    return table


def nearest(table: IndexedTable, snapshot: Snapshot) -> pa.Table:
    point = np.random.default_rng(6).normal(size=16)
    return search(table.store, snapshot, vector=point, index="near", limit=5)


def test_vectors_of_merged_segments_are_encoded_together_from_those_of_the_table() -> None:
    table = with_points(segment_merge.FACTOR, 40)
    before = nearest(table, table.snapshot)
    table.catch_up("near")
    (segment,) = table.snapshot.segments.values()
    assert (segment.numRecords, segment.coveredRows) == (320, (40,) * 8)
    head = vector.Reader(vector.HeldFiles(segments.load(table.store, segment)), where=segment.path, rows=320).head
    assert (head.rows, head.of) == (8 * 39, 320)
    assert nearest(table, table.snapshot).equals(before)
    table.delete({path: [1, 2, 3] for path in table.snapshot.splits})
    expected = nearest(table, replace(table.snapshot, segments={}))
    assert nearest(table, table.snapshot).equals(expected)
    table.compact()
    assert nearest(table, table.snapshot).equals(expected)


def test_vectors_of_a_split_that_another_segment_answers_for_too_are_merged_in_part() -> None:
    table = with_points(segment_merge.FACTOR, 40)
    table.delete({path: [4] for path in table.snapshot.splits})
    large = with_points(1, 400)
    (found,) = [read_split(large.store, add) for add in large.snapshot.splits.values()]
    table.add(found)
    done = table.index("near")
    table.commit_index(replace(done, merged=()))
    table.compact()
    before = nearest(table, table.snapshot)
    table.catch_up("near")
    assert sorted(len(each.origins or ()) for each in table.snapshot.segments.values()) == [0, 8]
    assert nearest(table, table.snapshot).equals(before)
    assert before.equals(nearest(table, replace(table.snapshot, segments={})))


def trained(table: IndexedTable) -> list[vector.Training]:
    found = [vector.Training.of(each) for each in table.snapshot.segments.values()]
    return [each for each in found if each is not None]


def retrain(table: IndexedTable, *, every: bool) -> int:
    """Train the vector index again in the same way as a catch-up. Return the number of retrained segments."""
    head = table.snapshot
    plan = catch_up.plan(head, "near", retrain=every)
    items = [SegmentMerge.from_json(item.to_json()) for item in plan.merges]
    done = [MergedSegments(item, segment_merge.execute(table.store, item, ids=table.ids)) for item in items]
    before = nearest(table, table.snapshot)  # the old segments answer until the commit
    if done:
        table.log.commit(head, plan.actions((), done), operation="CATCH UP")
        assert nearest(table, table.snapshot).equals(before)
    return len(done)


def test_segments_of_vectors_are_trained_again_on_demand() -> None:
    table = with_points(3, 40)
    assert [each.again for each in trained(table)] == [False] * 3
    table.compact()
    paths = set(table.snapshot.segments)
    assert retrain(table, every=True) == 3
    assert paths.isdisjoint(table.snapshot.segments)
    assert [(each.again, each.rows) for each in trained(table)] == [(True, 39)] * 3
    assert catch_up.watermark(table.snapshot, "near") == table.snapshot.version
    assert retrain(table, every=False) == 0


def test_a_segment_whose_clusters_are_too_unlike_is_trained_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (training.train, vector.build):
        monkeypatch.setitem(function.__kwdefaults__ or {}, "flat_bytes", 2**8)
    definition = replace(VECTORS, options={**VECTORS.options, "retrain_imbalance_threshold": "1.1"})
    table = with_points(1, 400, definition)
    (before,) = trained(table)
    assert before.clusters > 10
    assert before.imbalance > 1.1
    assert retrain(table, every=False) == 1
    (after,) = trained(table)
    assert after.again
    assert after.clusters == before.clusters
    assert retrain(table, every=False) == 0  # training on unchanged rows forms similar clusters
    patient = replace(definition, options={**definition.options, "retrain_imbalance_threshold": "1000"})
    assert retrain(with_points(1, 400, patient), every=False) == 0


def test_an_index_without_vectors_has_nothing_to_train() -> None:
    table = IndexedTable()
    appended(table, 1)
    assert all(catch_up.plan(table.snapshot, name, retrain=True).empty for name in ("text", "tags"))


def test_a_merge_is_trained_on_all_of_its_rows() -> None:
    table = with_points(segment_merge.FACTOR, 40)
    table.catch_up("near")
    assert [each.rows for each in trained(table)] == [8 * 39]


def test_a_catch_up_merges_what_it_built_and_has_nothing_to_do_then(tmp_path: Path) -> None:
    file = tmp_path / "words.yaml"
    described = "indexes: [{name: tags, kind: bitmap, columns: [tag]}, {name: text, kind: fulltext, columns: [tag]}]"
    file.write_text(f"name: words\nuri: {tmp_path / 'table'}\ncolumns: {{tag: string}}\n{described}\n")
    declaration = load(file)
    table = Table.declare(declaration)
    for number in range(segment_merge.FACTOR**2):
        table.append({"tag": ("ebb", "tide")[number % 2]})
    before = table.search("tide", index="text", limit=100)
    upkeep.catch_up(table)
    assert catch_up_due(declaration) is None
    table = table.refresh()
    assert sorted(each.index for each in table.snapshot.segments.values()) == ["tags", "text"]
    assert table.search("tide", index="text", limit=100).to_arrow().equals(before.to_arrow())


@pytest.mark.spark
def test_merge_segments_merges_what_is_small_and_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = IndexDefinition("text", "fulltext", ("tag",))
    table = Table.create(str(tmp_path / "table"), pa.schema([("tag", pa.string())]), indexes=[text])
    count = segment_merge.FACTOR
    with monkeypatch.context() as patched:
        patched.setattr(segment_merge, "FACTOR", count**2)  # with this factor, a catch-up run merges no segments
        for number in range(count):
            table.append({"tag": ("ebb", "tide")[number % 2]})
            upkeep.catch_up(table)
    table.append({"tag": "tide"})
    before, small = table.search("tide", limit=100), table.refresh().snapshot.segments
    assert len(small) == count

    def merged() -> dict[str, Any]:
        assert main(["merge-segments", table.uri, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    report = merged()
    assert (report["status"], report["rows_in"], report["splits_in"]) == ("committed", 0, 0)
    assert report["details"]["segments_merged"] == {"text": count}
    (segment,) = table.refresh().snapshot.segments.values()
    assert (segment.numRecords, measure_backlog(table.snapshot, "text").uncovered_splits) == (count, 1)
    assert table.search("tide", limit=100).to_arrow().equals(before.to_arrow())
    assert merged()["status"] == "nothing_to_do"


@pytest.mark.parametrize("index", ["text", "tags"])
def test_a_damaged_merged_segment_is_a_warning_and_its_splits_are_read(
    index: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    before = answers(table, table.snapshot)
    table.catch_up()
    (segment,) = merged(table.snapshot, index)
    data = bytearray(table.store.get(segment.path).data)
    data[len(data) // 3] ^= 1
    table.store.put(segment.path, bytes(data), Overwrite())
    require_same(table, before, table.snapshot)
    assert segment.path in caplog.text


def test_a_merge_names_the_segment_that_is_damaged() -> None:
    table = IndexedTable()
    appended(table, segment_merge.FACTOR)
    path = min(table.snapshot.segments)
    table.store.put(path, table.store.get(path).data[:-1], Overwrite())
    with pytest.raises(Corrupt, match=path):
        table.index(table.snapshot.segments[path].index)
