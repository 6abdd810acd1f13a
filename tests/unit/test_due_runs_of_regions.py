"""A run request for unmerged generations contains the number of generations and the bytes to be read."""

from __future__ import annotations

from pathlib import Path

from jobs.due_runs import TableInputs, due_run
from storage_core.change.declaration import TableDeclaration
from storage_core.write.region import generation_write, merge
from tidemark import Table

FLUSHES = generation_write.DEFAULT_TERMS.generations + 1
ROWS = 100


def test_a_merge_and_a_sort_say_how_many_bytes_of_records_they_read(tmp_path: Path) -> None:
    declaration = TableDeclaration.model_validate(
        {
            "name": "planes",
            "uri": str(tmp_path / "planes"),
            "columns": {"tailnum": "string", "year": "long"},
            "primary_key": ["tailnum"],
        }
    )
    table = Table.declare(declaration)
    with table.writer() as writer:
        for year in range(FLUSHES):
            writer.put([{"tailnum": f"N{number}", "year": year} for number in range(ROWS)])
            writer.flush()
    inputs = TableInputs.of(declaration)
    assert inputs.table is not None
    works = merge.plan(inputs.table.store, inputs.table.snapshot)
    merges, sorts = due_run("merge", inputs), due_run("sort", inputs)
    assert merges is not None
    assert merges.items == FLUSHES
    assert merges.bytes == sum(each.size_bytes for each in works) > FLUSHES * ROWS * 8
    assert sorts is not None
    assert FLUSHES * ROWS * 8 < sorts.bytes <= merges.bytes
