"""A code server dies while runs wait for it: a real one behind a socket, and the queue of Dagster's daemon."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from dagster import AssetKey, DagsterInstance, DagsterRunStatus
from dagster._cli.job import job_cli
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import GrpcServerTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._daemon.run_coordinator import QueuedRunCoordinatorDaemon
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.server import wait_for_grpc_server

from pipelines.instance import SETTINGS, home
from pipelines.services import BACKFILLS_WAIT

pytestmark = [
    pytest.mark.dagster,
    pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning"),  # Dagster's own call
]

LOG = logging.getLogger(__name__)

DELAY_SECONDS = yaml.safe_load(SETTINGS.read_text())["run_queue"]["user_code_failure_retry_delay"]
WAITING = 2

CODE = """
from dagster import Definitions, StaticPartitionsDefinition, asset, job, op

@op
def speak():
    print("here")

@job
def short():
    speak()

@asset(partitions_def=StaticPartitionsDefinition(["a", "b"]))
def parted():
    pass

defs = Definitions(assets=[parted], jobs=[short])
"""


@contextmanager
def code_server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A code server in its own process, which answers when the block begins."""
    where = ["--python-file", "short_jobs.py", "--port", str(port), "--log-level", "error"]
    with subprocess.Popen([sys.executable, "-m", "dagster", "api", "grpc", *where]) as process:
        try:
            wait_for_grpc_server(process, DagsterGrpcClient(port=port), where)
            yield process
        finally:
            process.kill()


@pytest.fixture
def folder(tmp_path: Path, history: object, monkeypatch: pytest.MonkeyPatch) -> Path:
    del history  # the environment says where it is
    settled = home(tmp_path)
    (tmp_path / "short_jobs.py").write_text(CODE)
    monkeypatch.setenv("DAGSTER_HOME", str(settled))
    monkeypatch.chdir(tmp_path)
    return settled


def request_backfill(workspace: WorkspaceProcessContext) -> str:
    """Request one of an asset and return its id."""
    backfill = PartitionBackfill.from_asset_partitions(
        backfill_id="of_parted",
        asset_graph=workspace.create_request_context().asset_graph,
        partition_names=["a", "b"],
        asset_selection=[AssetKey("parted")],
        backfill_timestamp=time.time(),
        tags={},
        dynamic_partitions_store=workspace.instance,
        all_partitions=False,
        title=None,
        description=None,
        run_config=None,
    )
    workspace.instance.add_backfill(backfill)
    return backfill.backfill_id


def statuses(instance: DagsterInstance) -> list[DagsterRunStatus]:
    return [run.status for run in instance.get_runs()]


@pytest.mark.parametrize("history", ["postgresql"], indirect=True)
def test_runs_and_backfills_wait_for_a_killed_code_server_and_go_on_when_it_is_back(
    folder: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in BACKFILLS_WAIT.items():
        monkeypatch.setenv(name, value)
    target = GrpcServerTarget(host="localhost", port=free_port, socket=None, location_name=None)
    with (
        DagsterInstance.from_config(str(folder)) as instance,
        QueuedRunCoordinatorDaemon(interval_seconds=1) as queue,
    ):

        def tick(seconds: float, workspace: WorkspaceProcessContext) -> None:
            """Let the queue work as it does this long after now."""
            assert not [
                each for each in queue.run_iteration(workspace, fixed_iteration_time=time.time() + seconds) if each
            ]

        with code_server(free_port) as server, WorkspaceProcessContext(instance, target) as workspace:
            for _ in range(WAITING):
                job_cli.main(["launch", "-j", "short", "--grpc-port", str(free_port)], standalone_mode=False)
            backfill_id = request_backfill(workspace)
            server.kill()
            server.wait()
            for attempt in range(2):
                tick(attempt * (DELAY_SECONDS + 1), workspace)
                assert statuses(instance) == [DagsterRunStatus.QUEUED] * WAITING
            with pytest.warns(UserWarning, match="Error loading repository location"):
                workspace.refresh_workspace()
            assert not [each for each in execute_backfill_iteration(workspace, LOG) if each]

        with code_server(free_port), WorkspaceProcessContext(instance, target) as workspace:
            tick(2 * (DELAY_SECONDS + 1), workspace)
            while not all(run.is_finished for run in instance.get_runs()):
                time.sleep(0.1)

            assert statuses(instance) == [DagsterRunStatus.SUCCESS] * WAITING
            assert not [each for each in execute_backfill_iteration(workspace, LOG) if each]

        backfill = instance.get_backfill(backfill_id)
        assert backfill is not None
        assert (backfill.status.value, instance.get_runs_count()) == ("REQUESTED", WAITING + 2)
