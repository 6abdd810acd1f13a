"""The recipe of docs/operations.md for the rows of a writer that ended without a flush, as it is written there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.read.unmerged_metrics import unmerged_metrics
from storage_core.region.spec import DeclaredField
from tidemark import Table

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([pa.field("tailnum", pa.string(), nullable=False), ("year", pa.int64())])
REGIONS: Sequence[DeclaredField] = [{"transform": "identity", "source": "tailnum"}]


@pytest.fixture
def recipe() -> str:
    """The program, as the page shows it."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.split("### Rows of a keyed table are not in `sql`\n")[1].split("\n### ")[0]
    (program,) = re.findall(r'^\.venv/bin/python -c "\n(.*?)"$', section, re.MULTILINE | re.DOTALL)
    return str(program)


def abandoned(folder: Path, regions: Sequence[DeclaredField]) -> Table:
    """A table whose only row is acknowledged and in no generation."""
    table = Table.create(str(folder / "warehouse" / "planes"), SCHEMA, primary_key="tailnum", regions=regions)
    with table.writer() as writer:
        writer.put({"tailnum": "N1", "year": 2004})
    return table.refresh()


def follow(recipe: str, folder: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{recipe}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.strip()


def waiting(table: Table) -> tuple[int, int]:
    """Records in generations, and in WAL entries alone."""
    metrics = unmerged_metrics(table.store, table.snapshot)
    return sum(each.generation_records for each in metrics), sum(each.wal_records for each in metrics)


def test_the_recipe_flushes_the_rows_of_an_ended_writer_and_says_so(tmp_path: Path, recipe: str) -> None:
    table = abandoned(tmp_path, [])
    assert waiting(table) == (0, 1)
    assert int(follow(recipe, tmp_path)) > 0
    assert waiting(table) == (1, 0)
    assert follow(recipe, tmp_path) == "None"


def test_on_a_table_with_regions_it_says_that_it_flushed_nothing_and_the_next_writer_of_the_region_does(
    tmp_path: Path, recipe: str
) -> None:
    table = abandoned(tmp_path, REGIONS)
    assert follow(recipe, tmp_path) == "{}"
    assert waiting(table) == (0, 1)
    assert table.get("N1") == {"tailnum": "N1", "year": 2004}
    with table.writer() as writer:
        writer.put({"tailnum": "N1", "year": 2005})
        writer.flush()
    assert waiting(table)[1] == 0
    assert table.get("N1") == {"tailnum": "N1", "year": 2005}
