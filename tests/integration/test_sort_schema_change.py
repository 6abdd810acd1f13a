"""A changed sort schema applies only to new splits. No merge mixes splits of different sort schemas (SS-4)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from pipelines.commands.overview import record_of
from pipelines.status import StatusTarget, collect_all_statuses, held_back, metrics_text
from storage_core.base.clock import SystemIds
from storage_core.base.errors import CommitConflict, InvalidInput
from storage_core.change.declaration import load
from storage_core.compact.execute import execute
from storage_core.compact.pending_work import Task
from storage_core.data.rows.window_range import EVERY_WINDOW, WindowRange
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import Compact
from storage_core.log.job_run import JobReport, run
from storage_core.maintain.audit import audit
from storage_core.maintain.status import PendingWork
from storage_core.split.read import read_split
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


def resort(table: Table, windows: WindowRange = EVERY_WINDOW, *, dry_run: bool = False) -> JobReport:
    request = Compact(table_uri=table.uri, mode=Mode.RESORT, windows=windows, dry_run=dry_run)
    return run(request, Spark())


def resort_debt(table: Table) -> dict[int | None, int]:
    found = table.refresh().debt()
    return {each.window_start: each.splits for each in found if each.task is Task.RESORT}


def test_a_resort_writes_the_splits_of_another_sort_schema_window_by_window(tmp_path: Path) -> None:
    table = declare(tmp_path, "service|host|timestamp/V2")
    for hour in range(3):
        moved = [row | {"timestamp": START + dt.timedelta(hours=hour)} for row in rows(12 * hour)]
        table.append(moved)
    new = "host|service|timestamp/V2"
    table = declare(tmp_path, new)
    table.append(rows(36))
    first = int(START.timestamp())
    starts = [first + 3600 * hour for hour in range(3)]
    assert resort_debt(table) == dict.fromkeys(starts, 1)
    followed = [(each["sort_schema"], each["splits"], each["rows"]) for each in described(table)]
    assert followed == [(new, 1, 12), ("service|host|timestamp/V2", 3, 36)]

    assert resort(table, dry_run=True).details["windows"] == starts
    one = resort(table, WindowRange(starts[1], starts[1] + 900))
    assert (one.status, one.metrics.rows_in, one.metrics.splits_in) == ("committed", 12, 1)
    assert resort_debt(table) == {starts[0]: 1, starts[2]: 1}
    assert resort(table).metrics.splits_in == 2
    assert resort(table).status == "nothing_to_do"
    after = Table.open(table.uri)
    assert (orders(after), resort_debt(after)) == ([new] * 4, {})
    assert [(each["sort_schema"], each["splits"]) for each in described(after)] == [(new, 4)]
    for add in after.snapshot.splits.values():
        hosts = read_split(after.store, add, ["host"]).column("host").to_pylist()
        assert hosts == sorted(hosts, key=lambda host: (host is None, host or ""))
    assert sorted(after.scan(["status"]).to_arrow().column("status").to_pylist()) == list(range(48))
    assert audit(after.store, after.snapshot).violations == ()
    assert {each.operation for each in after.history()} >= {"RESORT"}


def test_an_owed_resort_is_in_the_status_and_no_sensor_is_missed_for_it(tmp_path: Path) -> None:
    table = declare(tmp_path, "service|host|timestamp/V2")
    table.append(rows(0))
    size = sum(add.size for add in table.refresh().snapshot.splits.values())
    declare(tmp_path, "host|service|timestamp/V2")
    declaration = load(tmp_path / "logs.yaml")
    found = list(collect_all_statuses([StatusTarget.of(declaration)]))
    [looked] = found
    assert looked.status is not None
    assert looked.status.pending == {"resort": PendingWork(count=1, unit="windows", bytes=size)}
    assert record_of(looked, None)["pending"] == {"resort": {"count": 1, "unit": "windows", "bytes": size}}
    assert 'tidemark_pending{table="logs",step="resort",unit="windows"} 1' in metrics_text(found, {})
    assert held_back(found, [declaration], tmp_path, now_ms=0) == {}

    assert resort(table.refresh()).status == "committed"
    [looked] = collect_all_statuses([StatusTarget.of(declaration)])
    assert looked.status is not None
    assert looked.status.pending == {}


def described(table: Table) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", table.refresh().describe()["sort_schemas"])


def test_a_resort_keeps_deletes_and_former_windows_and_merges_nothing(tmp_path: Path) -> None:
    table = declare(tmp_path, "service|host|timestamp/V2")
    table.append(rows(0))
    table.append(rows(12))
    table.delete("status < 6")
    table = declare(tmp_path, "status|timestamp/V2")
    table.alter({"window": "1h"})
    done = resort(table)
    assert (done.metrics.rows_in, done.metrics.splits_in, done.metrics.splits_out) == (18, 2, 1)
    after = Table.open(table.uri)
    assert {add.windowSeconds for add in after.snapshot.splits.values()} == {900}
    assert sorted(after.scan(["status"]).to_arrow().column("status").to_pylist()) == list(range(6, 24))
    assert audit(after.store, after.snapshot).violations == ()


def test_a_table_without_windows_is_resorted(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("a", pa.int64()), ("b", pa.int64())])
    table = Table.create(str(tmp_path / "t"), schema, time_column="at", sort_schema="a|timestamp/V2", window=None)
    table.append([{"at": START, "a": number, "b": -number} for number in range(5)])
    table = table.alter({"sort_schema": "b|timestamp/V2"})
    assert resort(table).metrics.rows_in == 5
    [add] = Table.open(table.uri).snapshot.splits.values()
    assert read_split(table.store, add, ["b"]).column("b").to_pylist() == [-4, -3, -2, -1, 0]
