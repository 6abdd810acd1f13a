"""A sort schema that changes: new splits follow it, old ones keep theirs, and the two never mix (SS-4)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from storage_core.audit.audit import audit
from storage_core.compaction.execute import execute
from storage_core.declaration import load
from storage_core.errors import CommitConflict, InvalidInput
from storage_core.ids import SystemIds
from storage_core.table import Table
from tests.support.merge_plan import plan

START = dt.datetime(2015, 5, 17, tzinfo=dt.UTC)
DECLARATION = """
name: logs
uri: {uri}
columns: {{timestamp: timestamp!, service: string, host: string, status: int}}
time_column: timestamp
window: 15m
sort_schema: "{order}"
"""


def declare(folder: Path, order: str) -> Table:
    path = folder / "logs.yaml"
    path.write_text(DECLARATION.format(uri=folder / "logs", order=order))
    return Table.declare(load(path))


def rows(first: int) -> list[dict[str, object]]:
    return [
        {
            "timestamp": START + dt.timedelta(seconds=number % 5),
            "service": f"s{number % 3}",
            "host": None if number % 4 == 0 else f"h{number % 4}",
            "status": number,
        }
        for number in range(first, first + 12)
    ]


def orders(table: Table) -> list[str]:
    return sorted(add.sortSchema or "" for add in table.snapshot.splits.values())


def test_new_splits_follow_a_changed_sort_schema_and_old_ones_keep_theirs(tmp_path: Path) -> None:
    table = declare(tmp_path, "service|host|timestamp/V2")
    table.append(rows(0))
    table.append(rows(12))
    changed = declare(tmp_path, "host:-|&service|timestamp/V2 nulls first")
    assert changed.history(limit=1)[0].operation == "CONFIGURE"
    changed.append(rows(24))
    changed.append(rows(36))
    old, new = "service|host|timestamp/V2", "host:-|&service|timestamp/V2 nulls first"
    assert orders(changed) == [new, new, old, old]

    operations = plan(changed.snapshot)
    assert len(operations) == 2
    for operation in operations:
        assert len({add.sortSchema for add in operation.inputs}) == 1
        result = execute(changed.store, operation, ids=SystemIds(), now_ms=1)
        changed.log.commit(changed.refresh().snapshot, result.actions, operation="COMPACT")
    after = Table.open(changed.uri)
    assert orders(after) == [new, old]
    assert plan(after.snapshot) == []
    assert audit(after.store, after.snapshot).violations == ()
    assert sorted(after.scan(["status"]).to_arrow().column("status").to_pylist()) == list(range(48))


@pytest.mark.parametrize("same", ["mine=service|host|timestamp/V2", "+service__s|host|timestamp-/V2 nulls last"])
def test_a_declaration_that_means_the_same_order_changes_nothing(tmp_path: Path, same: str) -> None:
    table = declare(tmp_path, "service|host|timestamp/V2")
    again = declare(tmp_path, same)
    assert again.version == table.version
    assert again.config.sort_schema == "service|host|timestamp/V2"


def test_a_sort_schema_that_does_not_fit_the_columns_changes_nothing(tmp_path: Path) -> None:
    table = declare(tmp_path, "service|timestamp/V2")
    with pytest.raises(InvalidInput, match="sort_schema"):
        declare(tmp_path, "nobody|timestamp/V2")
    assert Table.open(table.uri).version == table.version


def test_rows_that_were_sorted_by_the_order_before_are_refused_and_not_mixed_in(tmp_path: Path) -> None:
    stale = declare(tmp_path, "service|timestamp/V2")
    declare(tmp_path, "host|timestamp/V2")
    with pytest.raises(CommitConflict, match="sort schema"):
        stale.append(rows(0))
    stale.refresh().append(rows(0))
    assert orders(stale) == ["host|timestamp/V2"]


def test_the_time_column_under_its_own_name_changes_no_table(tmp_path: Path) -> None:
    file, text = tmp_path / "t.yaml", "name: t\ncolumns: {at: timestamp!, path: string}\ntime_column: at\n"
    declared = []
    for name in ("timestamp", "at"):
        file.write_text(f"{text}uri: {tmp_path / 't'}\nsort_schema: path|{name}/V2\n")
        declared.append(Table.declare(load(file)))
    assert [(table.version, table.config.sort_schema) for table in declared] == [(0, "path|timestamp/V2")] * 2
    made = Table.create(str(tmp_path / "u"), declared[0].schema, time_column="at", sort_schema="path|at/V2")
    assert made.config.sort_schema == "path|timestamp/V2"
