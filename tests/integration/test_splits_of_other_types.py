"""The column types of a split differ from the table's types, for example after a copy of files or a lost log.

No call of Tidemark writes this split, and a read refuses it. Without this refusal, DuckDB would cast every row to the
type of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import InvalidInput
from storage_core.log.actions import Add
from storage_core.maintain.audit import audit
from storage_core.maintain.repair import repair
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write
from storage_core.store.resolve import open_store
from tidemark import Table

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
ROWS = pa.table({"n": [1, 2], "text": ["a", "b"]}, SCHEMA)
OTHERS = {
    "text for a number": pa.table({"n": ["7", "x"], "text": ["c", "d"]}),
    "a number for text": pa.table({"n": [3, 4], "text": [5, 6]}),
    "a narrower number": pa.table({"n": pa.array([3, 4], pa.int32()), "text": ["c", "d"]}),
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(str(tmp_path / "table"), SCHEMA)
    table.append(ROWS)
    return table


def written(table: Table, rows: pa.Table) -> Add:
    """Write a valid, checksummed split of this table with other column types. No version refers to this split."""
    (add,) = sort_and_write(
        table.store, rows, context=context_of(table.log.snapshot()), ids=SystemIds(), now_ms=SystemClock().now_ms()
    )
    return add


@pytest.mark.parametrize("rows", OTHERS.values(), ids=OTHERS.keys())
def test_a_repair_without_a_log_leaves_it_out_and_says_why(table: Table, tmp_path: Path, rows: pa.Table) -> None:
    other = written(table, rows)
    rmtree(tmp_path / "table" / "_transaction_log")

    outcome = repair(table.store, open_store(str(tmp_path / "repaired")), clock=SystemClock(), ids=SystemIds())

    assert [(each.key, "in the split and" in each.reason) for each in outcome.lost] == [(other.path, True)]
    assert Table.open(str(tmp_path / "repaired")).scan().to_arrow().equals(ROWS)


@pytest.mark.parametrize("rows", OTHERS.values(), ids=OTHERS.keys())
def test_an_audit_of_a_log_that_names_it_finds_it(table: Table, rows: pa.Table) -> None:
    other = written(table, rows)
    head = table.log.commit(table.log.snapshot(), [other], operation="APPEND").snapshot

    (found,) = audit(table.store, head).violations

    assert (found.invariant, found.path) == ("SS-5", other.path)
    assert "in the file and" in found.message


@pytest.mark.parametrize(
    "read",
    [lambda table: table.sql("select n from t"), lambda table: table.scan().to_arrow()],
    ids=["sql", "scan"],
)
def test_a_read_that_would_cast_the_rows_of_the_table_is_refused_by_name(
    table: Table, read: Callable[[Table], object]
) -> None:
    other = written(table, OTHERS["text for a number"])
    table.log.commit(table.log.snapshot(), [other], operation="APPEND")

    with pytest.raises(InvalidInput, match="column 'n' is string in the split and int64 in the table") as error:
        read(Table.open(table.uri))

    assert str(error.value).startswith(f"{other.path}: ")
