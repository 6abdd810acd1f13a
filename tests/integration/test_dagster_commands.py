"""Dagster's own commands and daemon, started from the repository root, with jobs in subprocesses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance

from pipelines.instance import home, open_instance
from tidemark import Table

# The tests start Python processes for a daemon, its code server, a run and its job. These starts take minutes on a busy
# machine.
pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.timeout(1200)]

Land = Callable[..., Path]

END_SECONDS = 60
HOURS = tuple(f"2015-05-17T{hour}:00" for hour in (10, 11, 12))

BACKFILL = """
mutation($keys: [String!]) {
  launchPartitionBackfill(
    backfillParams: {assetSelection: [{path: ["access_log", "ingested"]}], partitionNames: $keys}
  ) { __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } }
}
"""


@pytest.fixture
def environment(checkout: Path, history: object) -> dict[str, str]:
    del history  # the environment contains the location
    return {**os.environ, "DAGSTER_HOME": str(home(checkout))}


def dagster(program: str, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / program), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@contextmanager
def daemon(environment: dict[str, str], output: Path) -> Iterator[None]:
    command = [str(Path(sys.executable).parent / "dagster-daemon"), "run"]
    with output.open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            with suppress(ProcessLookupError):  # the remaining processes: daemon, code server, a run
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_backfill(instance: DagsterInstance, backfill_id: str) -> str:
    while True:
        backfill = instance.get_backfill(backfill_id)
        if backfill is not None and backfill.status.value not in ("REQUESTED", "CANCELING", "FAILING"):
            return backfill.status.value
        time.sleep(1)


def test_one_window_is_materialized_by_command(checkout: Path, land: Land, environment: dict[str, str]) -> None:
    land("a.log", 0, 300)

    shown = dagster(
        "dagster",
        *("asset", "materialize", "--select", "access_log/ingested"),
        *("--partition", "2015-05-17T10:00", "-m", "pipelines.definitions"),
        environment=environment,
    )

    assert "access_log/ingested: committed at version" in shown.stderr
    assert not [line for line in shown.stderr.splitlines() if "DEBUG" in line or "PreviewWarning" in line]
    windows = {add.windowStart for add in Table.open("warehouse/access_log").snapshot.splits.values()}
    assert windows == {1431856800}
    with open_instance(checkout / ".dagster") as instance:
        event = instance.get_latest_materialization_event(AssetKey(["access_log", "ingested"]))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.partition == "2015-05-17T10:00"
    assert event.asset_materialization.metadata["status"].value == "committed"


def test_a_backfill_of_dagster_fills_a_range_through_the_daemon(
    checkout: Path, land: Land, environment: dict[str, str]
) -> None:
    land("a.log", 0, 300)
    output = checkout / "daemon.log"
    variables = json.dumps({"keys": list(HOURS)})

    answer = dagster("dagster-graphql", "-t", BACKFILL, "-v", variables, environment=environment).stdout
    body = next(line for line in answer.splitlines() if line.startswith("{"))
    launched = json.loads(body)["data"]["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    with daemon(environment, output), open_instance(checkout / ".dagster") as instance:
        status = wait_for_backfill(instance, launched["backfillId"])
        filled = instance.get_materialized_partitions(AssetKey(["access_log", "ingested"]))
        runs = instance.get_runs_count()

    assert status == "COMPLETED_SUCCESS", output.read_text()[-3000:]
    assert filled == set(HOURS)
    assert runs == 1
    assert Table.open("warehouse/access_log").snapshot.rows == 300


def test_a_backfill_of_a_job_makes_one_run_per_window_whatever_its_assets_take_at_once(
    checkout: Path, environment: dict[str, str]
) -> None:
    dagster(
        "dagster",
        *("job", "backfill", "-w", "workspace.yaml", "-j", "access_log_backfill", "--noprompt"),
        *("--from", HOURS[0], "--to", HOURS[-1]),
        environment=environment,
    )
    with open_instance(checkout / ".dagster") as instance:
        runs = instance.get_runs()
    assert sorted(run.tags["dagster/partition"] for run in runs) == sorted(HOURS)
    assert {run.status.value for run in runs} == {"QUEUED"}  # there is no daemon that could start these runs
