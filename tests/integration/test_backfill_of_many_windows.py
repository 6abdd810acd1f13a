"""A backfill of many short windows reports progress per chunk, and a second run repeats only the failed window.

If one window is damaged, the backfill still completes the other windows. The test uses two days of 15-minute windows.
`TIDEMARK_SCALE=15` runs the full proof: 30 days, which are 2,880 windows.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance

from assets.launcher import InProcessLauncher
from assets.steps import asset_key, partition_key, partitions_of, span_of
from jobs.spark.spark import Spark
from pipelines.backfill import ChunkDone, backfill
from storage_core.change.declaration import TableDeclaration, load
from tests.integration.halved_split import halve_split, repair
from tests.support.scale import scaled
from tidemark import Table

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.timeout(1800)]

LOG = logging.getLogger(__name__)

DAYS = scaled(2)
PER_DAY = 96
START = dt.datetime(2015, 5, 1, tzinfo=dt.UTC)
END = START + dt.timedelta(days=DAYS)
BAD = START + dt.timedelta(days=1, hours=7, minutes=15)
BAD_NAME = "2015-05-02T07:15"
COMPACTED: AssetKey = asset_key("ticks", "compacted")

DECLARATION = f"""
name: ticks
uri: warehouse/ticks
columns: {{timestamp: timestamp!, value: int!}}
time_column: timestamp
window: 15m
sort_schema: value|timestamp/V2
partitions: {{start: {START:%Y-%m-%dT%H:%M}, end: {END:%Y-%m-%dT%H:%M}}}
"""


@pytest.fixture
def declaration(checkout: Path) -> TableDeclaration:
    file = checkout / "tables" / "ticks.yaml"
    file.write_text(DECLARATION, encoding="utf-8")
    return load(file)


@pytest.fixture
def table(declaration: TableDeclaration) -> Table:
    """Make a table with two splits of four rows in each window."""
    created = Table.declare(declaration)
    for batch in range(2):
        instants = (START + dt.timedelta(minutes=15 * number, seconds=batch) for number in range(DAYS * PER_DAY))
        created.append(
            [
                {"timestamp": instant + dt.timedelta(minutes=minute), "value": minute * 7 % 4}
                for instant in instants
                for minute in range(4)
            ]
        )
    return Table.open(created.uri)


def statuses(declaration: TableDeclaration, instance: DagsterInstance) -> dict[str, str | None]:
    span = span_of(declaration)
    assert span is not None
    names = [partition_key(span.first + 900 * number) for number in range(DAYS * PER_DAY)]
    found = instance.get_status_by_partition(COMPACTED, names, partitions_of(span))
    assert found is not None
    return {name: status.value if status else None for name, status in found.items()}


def windows_with_two(uri: str) -> int:
    table = Table.open(uri)
    return len(table.snapshot.splits) - DAYS * PER_DAY


def test_a_damaged_window_fails_alone_and_the_second_run_does_only_that_one(
    declaration: TableDeclaration, table: Table, instance: DagsterInstance, spark: Spark
) -> None:
    file = halve_split(table, int(BAD.timestamp()))
    version = table.version

    def fill(*, only_failed: bool) -> list[ChunkDone]:
        started = time.perf_counter()
        start, end = (f"{each:%Y-%m-%dT%H:%M}" for each in (START, END))
        launcher = InProcessLauncher(spark)
        done = list(backfill(declaration, start, end, only_failed=only_failed, instance=instance, launcher=launcher))
        LOG.warning("%d chunks in %.1f s", len(done), time.perf_counter() - started)
        return done

    first = fill(only_failed=False)
    assert [(each.number, each.of, each.chunk.windows) for each in first] == [
        (number, DAYS, PER_DAY) for number in range(1, DAYS + 1)
    ]
    assert [(each.rows["compacted"], each.failed) for each in first] == [
        (8 * (PER_DAY - 1), (BAD_NAME,)) if number == 1 else (8 * PER_DAY, ()) for number in range(DAYS)
    ]
    assert [each.number for each in first if each.error] == [2]
    assert BAD_NAME in str(first[1].error)
    assert file.name in str(first[1].error)
    assert "Stack Trace" not in str(first[1].error)  # the run contains the trace, and users get a short text
    assert windows_with_two(table.uri) == 1
    assert Table.open(table.uri).version == version + DAYS
    found = statuses(declaration, instance)
    assert {name for name, status in found.items() if status == "FAILED"} == {BAD_NAME}
    assert {status for name, status in found.items() if name != BAD_NAME} == {"MATERIALIZED"}

    (again,) = fill(only_failed=True)
    assert (again.chunk.first, again.chunk.windows, bool(again.error)) == (BAD_NAME, 1, True)
    repair(file)
    (repaired,) = fill(only_failed=True)
    assert (repaired.chunk.first, repaired.rows, repaired.error) == (BAD_NAME, {"compacted": 8}, None)
    assert fill(only_failed=True) == []

    assert windows_with_two(table.uri) == 0
    assert set(statuses(declaration, instance).values()) == {"MATERIALIZED"}
    assert Table.open(table.uri).snapshot.rows == table.snapshot.rows == DAYS * PER_DAY * 8
    assert instance.get_runs_count() == DAYS + 2
