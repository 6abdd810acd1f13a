"""The purge of Dagster's history removes and keeps the right records.

Runs whose process was killed are marked as failed.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    RunsFilter,
    StaticPartitionsDefinition,
    asset,
    build_sensor_context,
    materialize,
)
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.utils import make_new_run_id

from assets.run_tags import PROCESS
from pipelines.automation import Automation
from pipelines.housekeeping import DEAD_RUNS, build_housekeeping, build_purge_job
from pipelines.last_failures import said_by
from pipelines.runs import ActiveRuns
from storage_core.base.process import holder_of

pytestmark = [pytest.mark.dagster, pytest.mark.parametrize("history", ["sqlite", "postgresql"], indirect=True)]


DYING = (
    "import sys; sys.path[:0] = [sys.argv[1]]; from storage_core.base.process import holder_of; print(holder_of(None))"
)


@asset
def whole() -> None:
    pass


@asset(partitions_def=StaticPartitionsDefinition(["a", "b"]))
def parted() -> None:
    pass


@pytest.fixture
def instance(kept_instance: DagsterInstance) -> DagsterInstance:
    return kept_instance


def made(instance: DagsterInstance, name: str, partition: str | None = None) -> str:
    """Add a run that materialized an asset and wrote logs."""
    found = {"whole": whole, "parted": parted}[name]
    return materialize([found], instance=instance, partition_key=partition).run_id


def logs_of(tmp_path: Path) -> set[str]:
    return {each.name for each in (tmp_path / "history" / "storage").iterdir()}


def test_old_runs_leave_with_their_events_and_logs_but_for_what_an_asset_shows(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    first = made(instance, "whole")
    ended = [made(instance, "parted", name) for name in ("a", "a", "b")]
    last = made(instance, "whole")
    running = instance.add_run(DagsterRun("other", run_id=make_new_run_id(), status=DagsterRunStatus.STARTED)).run_id

    def purged(older_than: str) -> Mapping[str, object]:
        result = build_purge_job().execute_in_process(
            instance=instance, run_config={"ops": {"purge_runs": {"config": {"older_than": older_than}}}}
        )
        (output,) = [each for each in result.all_node_events if each.event_type_value == "STEP_OUTPUT"]
        instance.delete_run(result.run_id)
        return {name: value.value for name, value in output.step_output_data.metadata.items()}

    assert purged("1d") == {"deleted": 0, "kept": 0}
    assert purged("0s") == {"deleted": 2, "kept": 3}
    assert purged("0s") == {"deleted": 0, "kept": 3}

    kept = {ended[1], ended[2], last}
    assert {run.run_id for run in instance.get_runs(RunsFilter(statuses=list(FINISHED_STATUSES)))} == kept
    assert instance.get_run_by_id(running) is not None
    assert instance.get_materialized_partitions(parted.key) == {"a", "b"}
    assert instance.all_logs(first) == []
    assert not logs_of(tmp_path) & {first, ended[0]}
    assert kept <= logs_of(tmp_path)


def test_the_runs_of_a_killed_process_are_ended_and_no_others(instance: DagsterInstance) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", DYING, str(Path(__file__).parents[2])], capture_output=True, text=True, check=True
    ).stdout.strip()

    def started(tags: Mapping[str, str], parent: str | None = None) -> str:
        run = DagsterRun(
            "a_job",
            run_id=make_new_run_id(),
            status=DagsterRunStatus.STARTED,
            tags=tags,
            parent_run_id=parent,
            root_run_id=parent,
        )
        return instance.add_run(run).run_id

    lost, alive, elsewhere = started({PROCESS: dead}), started({PROCESS: holder_of(None)}), started({})
    retry = started({PROCESS: dead}, parent=lost)  # the retry has the tags of the run that is retried
    repository = Definitions.merge(build_housekeeping(Automation())).get_repository_def()
    sensor = repository.get_sensor_def(DEAD_RUNS)

    def tick() -> str | None:
        with build_sensor_context(instance=instance, repository_def=repository, sensor_name=DEAD_RUNS) as context:
            return sensor.evaluate_tick(context).skip_message

    at_work = ActiveRuns.of(instance, {}, now_ms=round(time.time() * 1000))
    assert lost in {each.run_id for each in at_work.working}, "nothing is asked for beside the retry that will come"
    assert tick() == f"1 dead run ended: {lost}"
    (failure,) = instance.all_logs(lost, of_type=DagsterEventType.RUN_FAILURE)
    assert f"process {dead.split('/')[-2]} on {socket.gethostname()}, which worked on this run, was" in str(failure)
    assert tick() == "nothing to do"
    statuses = {run.run_id: run.status.value for run in instance.get_runs()}
    assert statuses == {lost: "FAILURE", alive: "STARTED", elsewhere: "STARTED", retry: "STARTED"}
    (ended,) = instance.get_records_for_run(lost, of_type=DagsterEventType.RUN_FAILURE).records
    event = ended.event_log_entry.dagster_event
    assert event is not None
    assert "Committed work is kept, and the next run does the rest" in said_by(event)
