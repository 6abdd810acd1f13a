"""Dagster's own backfill of many short windows runs once per day. One damaged window fails and is repeated alone.

The test executes the ticks of Dagster's daemon in this process. Runs and jobs have their own processes. The table has
one day of 15-minute windows and one more window. `TIDEMARK_SCALE` sets the number of days.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.backfill import execute_backfill_iteration

from assets.steps import asset_key, partition_key, partitions_of, span_of
from storage_core.change.declaration import TableDeclaration, load
from tests.integration.halved_split import halve_split, repair
from tests.support.scale import scaled
from tidemark import Table

PER_RUN = 96
WINDOWS = max(PER_RUN, scaled(PER_RUN)) + 1
RUNS = -(-WINDOWS // PER_RUN)

# The test starts Python processes for a code server, two runs and their jobs. These starts take minutes on a busy
# machine.
pytestmark = [
    pytest.mark.dagster,
    pytest.mark.spark,
    pytest.mark.timeout(900 + 100 * RUNS),
    pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning"),  # Dagster's own call
]

LOG = logging.getLogger(__name__)

START = dt.datetime(2015, 5, 1, tzinfo=dt.UTC)
BAD = int(START.timestamp()) + 29 * 900
COMPACTED = asset_key("ticks", "compacted")

DECLARATION = f"""
name: ticks
uri: warehouse/ticks
columns: {{timestamp: timestamp!, value: int!}}
time_column: timestamp
window: 15m
sort_schema: value|timestamp/V2
partitions: {{start: {START:%Y-%m-%dT%H:%M}, end: {START + dt.timedelta(days=RUNS):%Y-%m-%dT%H:%M}}}
"""


@pytest.fixture
def declaration(checkout: Path) -> TableDeclaration:
    for file in (checkout / "tables").glob("*.yaml"):
        file.unlink()
    file = checkout / "tables" / "ticks.yaml"
    file.write_text(DECLARATION, encoding="utf-8")
    return load(file)


@pytest.fixture
def names() -> list[str]:
    return [partition_key(int(START.timestamp()) + 900 * number) for number in range(WINDOWS)]


@pytest.fixture
def table(declaration: TableDeclaration) -> Table:
    """Make a table with two splits of one row in each window."""
    created = Table.declare(declaration)
    for batch in range(2):
        created.append(
            [
                {"timestamp": START + dt.timedelta(minutes=15 * number, seconds=batch), "value": number}
                for number in range(WINDOWS)
            ]
        )
    return Table.open(created.uri)


@pytest.fixture
def workspace(checkout: Path, history: Mapping[str, object]) -> Iterator[WorkspaceProcessContext]:
    (checkout / "history").mkdir()
    coordinator = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}  # no queue of runs
    settings = {"telemetry": {"enabled": False}, "run_coordinator": coordinator, **history}
    target = ModuleTarget("pipelines.definitions", None, str(checkout), "pipelines.definitions")
    with (
        DagsterInstance.local_temp(str(checkout / "history"), overrides=settings) as instance,
        WorkspaceProcessContext(instance, target) as opened,
    ):
        yield opened


def fill(workspace: WorkspaceProcessContext, name: str, partitions: Sequence[str]) -> str:
    """Launch a backfill, tick until it has ended, and return its status."""
    instance = workspace.instance
    instance.add_backfill(
        PartitionBackfill.from_asset_partitions(
            backfill_id=name,
            asset_graph=workspace.create_request_context().asset_graph,
            partition_names=partitions,
            asset_selection=[COMPACTED],
            backfill_timestamp=time.time(),
            tags={},
            dynamic_partitions_store=instance,
            all_partitions=False,
            title=None,
            description=None,
            run_config=None,
        )
    )
    while True:
        assert not [error for error in execute_backfill_iteration(workspace, LOG) if error]
        backfill = instance.get_backfill(name)
        if backfill is not None and backfill.status.value not in ("REQUESTED", "FAILING", "CANCELING"):
            return backfill.status.value
        time.sleep(1)


def failed(declaration: TableDeclaration, instance: DagsterInstance, names: Sequence[str]) -> list[str]:
    span = span_of(declaration)
    assert span is not None
    found = instance.get_status_by_partition(COMPACTED, names, partitions_of(span)) or {}
    assert {status.value for status in found.values() if status} <= {"FAILED", "MATERIALIZED"}
    assert None not in found.values()
    return [name for name, status in found.items() if status and status.value == "FAILED"]


def test_the_runs_are_by_day_and_only_the_damaged_window_is_failed_and_done_again(
    declaration: TableDeclaration, table: Table, workspace: WorkspaceProcessContext, names: list[str]
) -> None:
    file = halve_split(table, BAD)
    instance = workspace.instance

    assert fill(workspace, "first", names) == "COMPLETED_FAILED"

    assert instance.get_runs_count() == RUNS
    bad = failed(declaration, instance, names)
    assert bad == [partition_key(BAD)]
    assert len(Table.open(table.uri).snapshot.splits) == WINDOWS + 1

    repair(file)
    assert fill(workspace, "again", bad) == "COMPLETED_SUCCESS"

    assert instance.get_runs_count() == RUNS + 1
    assert failed(declaration, instance, names) == []
    assert len(Table.open(table.uri).snapshot.splits) == WINDOWS
    assert Table.open(table.uri).snapshot.rows == 2 * WINDOWS
