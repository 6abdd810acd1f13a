"""A real code server, database or daemon process dies while runs are queued or executing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil  # type: ignore[import-untyped]
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
from pipelines.processes.programs import BACKFILLS_WAIT
from tests.support.postgres import Postgres
from tidemark import Table

pytestmark = [
    pytest.mark.dagster,
    pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning"),  # Dagster's own call
]

LOG = logging.getLogger(__name__)
T = TypeVar("T")

DELAY_SECONDS = yaml.safe_load(SETTINGS.read_text())["run_queue"]["user_code_failure_retry_delay"]
WAITING = 2

CODE = """
import os
import time
from pathlib import Path

import pyarrow
from dagster import Definitions, StaticPartitionsDefinition, asset, define_asset_job, in_process_executor, job, op
from tidemark.dagster import TidemarkIOManager

@op
def speak():
    print("here")

@job
def short():
    speak()

@asset(partitions_def=StaticPartitionsDefinition(["a", "b"]))
def parted():
    pass

@asset(pool="counted", io_manager_key="tables", metadata={"tidemark/create": {}, "tidemark/mode": "append"})
def counted(context) -> pyarrow.Table:
    Path(f"began-{context.run_id}").write_text(str(os.getpid()))
    while not Path("go").exists():
        time.sleep(0.05)
    return pyarrow.table({"run": [context.run.root_run_id or context.run_id]})

tables = TidemarkIOManager(root="warehouse")
jobs = [short, define_asset_job("counts", [counted])]
defs = Definitions(assets=[parted, counted], jobs=jobs, resources={"tables": tables}, executor=in_process_executor)
"""


@contextmanager
def code_server(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a code server in its own process, and enter the block when the server answers."""
    where = ["--python-file", "short_jobs.py", "--port", str(port), "--log-level", "error"]
    with subprocess.Popen([sys.executable, "-m", "dagster", "api", "grpc", *where]) as process:
        try:
            wait_for_grpc_server(process, DagsterGrpcClient(port=port), where)
            yield process
        finally:
            process.kill()


@pytest.fixture
def folder(tmp_path: Path, history: object, monkeypatch: pytest.MonkeyPatch) -> Path:
    del history  # the environment contains the location
    settled = home(tmp_path)
    (tmp_path / "short_jobs.py").write_text(CODE)
    monkeypatch.setenv("DAGSTER_HOME", str(settled))
    monkeypatch.chdir(tmp_path)
    return settled


def request_backfill(workspace: WorkspaceProcessContext) -> str:
    """Request a backfill of an asset and return its id."""
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
            """Let the queue work as if the given number of seconds had passed."""
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


@contextmanager
def daemon(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start Dagster's daemon in its own process. The daemon monitors runs every second."""
    settings = folder / SETTINGS.name
    quick = {"poll_interval_seconds": 1, "free_slots_after_run_end_seconds": 1}
    monitored = yaml.safe_load(settings.read_text())
    settings.write_text(yaml.safe_dump({**monitored, "run_monitoring": {**monitored["run_monitoring"], **quick}}))
    workspace = folder / "workspace.yaml"
    workspace.write_text(f"load_from: [{{grpc_server: {{host: localhost, port: {port}}}}}]")
    command = [sys.executable, "-m", "dagster._daemon", "run", "--workspace", str(workspace), "--log-level", "error"]
    with subprocess.Popen(
        command, env={**os.environ, "DAGSTER_DAEMON_CORE_LOOP_EXCEPTION_SLEEP_INTERVAL": "1"}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(found: Callable[[], T | None]) -> T:
    """Wait until `find` returns something, and return it."""
    while (here := found()) is None:
        time.sleep(0.1)
    return here


def worker(folder: Path, number: int) -> psutil.Process | None:
    """Return the process of the run with this number. Runs are numbered from 0 in the order of their start times."""
    began = [each.read_text() for each in sorted(folder.glob("began-*"), key=lambda each: each.stat().st_mtime)]
    return psutil.Process(int(began[number])) if len(began) > number and began[number] else None


@pytest.mark.parametrize("history", ["postgresql"], indirect=True)
def test_a_run_whose_database_or_daemon_is_killed_ends_well_or_is_tried_again_and_stores_once(
    folder: Path, postgres: Postgres, free_port: int
) -> None:
    place, go = folder.parent, folder.parent / "go"
    with code_server(free_port), DagsterInstance.from_config(str(folder)) as instance:

        def looked() -> str | None:
            """Return the id of the daemon that last monitored the runs."""
            found = instance.get_daemon_heartbeats().get("MONITORING")
            return found.daemon_id if found else None

        job_cli.main(["launch", "-j", "counts", "--grpc-port", str(free_port)], standalone_mode=False)
        with daemon(folder, free_port) as killed:
            process = wait_for(lambda: worker(place, 0))
            postgres.kill()
            go.touch()
            process.wait()  # the exit code of the process is not available
            go.unlink()
            postgres.start()
            process = wait_for(lambda: worker(place, 1))  # the first run's slot in the pool is free
            before = looked()
            killed.kill()
        with daemon(folder, free_port):
            wait_for(lambda: looked() != before or None)
            go.touch()
            process.wait()
        runs = instance.get_runs()
        assert [run.status.value for run in runs] == ["SUCCESS", "FAILURE"]
        stored = Table.open("warehouse/counted").scan().to_arrow()["run"].to_pylist()
        assert stored == [runs[-1].run_id]
