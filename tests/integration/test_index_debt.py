"""Pending work of an index, computed from the log, and the checks that Dagster shows for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dagster import AssetCheckResult

from assets.checks import INDEX_COVERS_ALL, INDEX_METADATA, RECALL, build_table_checks, index_metadata
from storage_core.change.declaration import TableDeclaration, load
from storage_core.index import segment_merge
from storage_core.index.catch_up import measure_backlog
from storage_core.index.catch_up import plan as catch_up_plan
from storage_core.read.search.vectors import Recall
from storage_core.store.local import LocalStore
from tests.support.indexed_table import IndexedTable
from tests.support.upkeep import catch_up
from tidemark import Table

DECLARED = """
name: words
uri: {uri}
columns: {{id: long, vector: vector(8)}}
indexes: [{{name: near, kind: vector, columns: [vector], recall_floor: 0.9}}]
"""


def filled(*counts: int) -> IndexedTable:
    table = IndexedTable()
    for rows in counts:
        table.append([(0, "x", "tide")] * rows)
    return table


def test_rows_without_a_segment_are_counted_with_their_bytes() -> None:
    table = filled(10, 20)
    found = measure_backlog(table.snapshot, "text")
    assert (found.uncovered_splits, found.uncovered_rows, found.watermark) == (2, 30, 0)
    assert found.uncovered_bytes == sum(add.size for add in table.snapshot.splits.values())
    table.catch_up()
    found = measure_backlog(table.snapshot, "text")
    assert (found.uncovered_rows, found.uncovered_bytes, found.segments) == (0, 0, 2)
    assert found.watermark == table.snapshot.version
    assert found.imbalance is None


def test_of_a_split_that_is_covered_in_part_the_rows_count_that_are_not() -> None:
    table = filled(10, 30)
    table.catch_up()
    table.append([(0, "x", "tide")] * 40)
    head = table.compact()
    (split,) = head.splits.values()
    found = measure_backlog(head, "text")
    assert (found.uncovered_rows, found.uncovered_bytes) == (40, round(split.size / 2))
    assert (found.covered_splits, found.translation_depth) == (0, 1)


def test_dead_rows_moves_and_segments_that_wait_for_a_merge_are_told() -> None:
    table = filled(*[10] * segment_merge.FACTOR)
    table.catch_up()
    assert measure_backlog(table.snapshot, "tags").merges_due == segment_merge.FACTOR
    table.delete({path: [0] for path in table.snapshot.splits})
    table.compact()
    table.compact_alone()
    found = measure_backlog(table.snapshot, "tags")
    assert found.dead_share == pytest.approx(0.1)
    assert found.translation_depth == 2
    table.catch_up()
    found = measure_backlog(table.snapshot, "tags")
    assert (found.segments, found.merges_due, found.dead_share, found.translation_depth) == (1, 0, 0.0, 0)


@pytest.fixture
def declaration(tmp_path: Path) -> TableDeclaration:
    file = tmp_path / "words.yaml"
    file.write_text(DECLARED.format(uri=tmp_path / "table"))
    return load(file)


def near_table(declaration: TableDeclaration, rows: int = 60) -> Table:
    table = Table.declare(declaration)
    points = np.random.default_rng(1).normal(size=(rows, 8)).astype(np.float32)
    kind = table.schema.field("vector").type
    table.append(pa.table({"id": range(rows), "vector": pa.array(points.tolist(), kind)}, schema=table.schema))
    catch_up(table)
    return table.refresh()


def verdict(declaration: TableDeclaration, name: str) -> AssetCheckResult:
    found: Any = next(each for each in build_table_checks(declaration) if {k.name for k in each.check_keys} == {name})
    result = found.node_def.compute_fn.decorated_fn()
    assert isinstance(result, AssetCheckResult)
    return result


def test_dagster_shows_what_an_index_owes_as_numbers(declaration: TableDeclaration) -> None:
    table = near_table(declaration)
    shown = index_metadata(measure_backlog(table.snapshot, "near"))
    assert shown.keys() == INDEX_METADATA
    assert shown["index_uncovered_rows"].value == 0
    assert shown["index_imbalance"].value == 1.0
    covered = verdict(declaration, INDEX_COVERS_ALL)
    assert covered.passed
    assert covered.metadata.keys() == INDEX_METADATA
    table.append(table.scan().to_arrow())
    lacking = verdict(declaration, INDEX_COVERS_ALL)
    name = declaration.name
    assert lacking.description == f"near has no segment for 1 split. Run: tidemark catch-up {name} --index near"


def test_a_segment_that_is_only_due_to_be_rebuilt_is_no_lack(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    table = IndexedTable(LocalStore(tmp_path / "table"))
    for _ in range(2):
        table.append([(0, "x", "tide")] * 10)
    table.catch_up()
    table.delete({path: range(5) for path in table.snapshot.splits})
    head = table.compact()
    assert catch_up_plan(head, "tags").work
    file = tmp_path / "words.yaml"
    near, tags = "near, kind: vector, columns: [vector], recall_floor: 0.9", "tags, kind: bitmap, columns: [id]"
    file.write_text(DECLARED.format(uri=tmp_path / "table").replace(near, tags))
    declaration = load(file)
    result = verdict(declaration, INDEX_COVERS_ALL)
    assert result.passed
    table.append([(0, "x", "tide")])
    result = verdict(declaration, INDEX_COVERS_ALL)
    assert not result.passed
    assert result.metadata["index_uncovered_splits"].value == 1


def test_the_recall_of_an_index_is_held_above_its_floor(
    declaration: TableDeclaration, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdict(declaration, RECALL).passed  # no writer has written yet
    near_table(declaration)
    result = verdict(declaration, RECALL)
    assert result.passed
    assert result.metadata["recall"].value == 1.0
    poor = Recall(index="near", k=10, recall=0.8, queries=100, candidates=4_000, rows=60)
    monkeypatch.setattr(Table, "recall", lambda *_, **__: poor)
    result = verdict(declaration, RECALL)
    assert not result.passed
    assert "tidemark catch-up words --retrain --index near" in str(result.description)


def test_an_index_without_a_floor_has_no_check_of_it(tmp_path: Path) -> None:
    file = tmp_path / "words.yaml"
    file.write_text(DECLARED.format(uri=tmp_path / "table").replace(", recall_floor: 0.9", ""))
    names = {key.name for each in build_table_checks(load(file)) for key in each.check_keys}
    assert INDEX_COVERS_ALL in names
    assert RECALL not in names
