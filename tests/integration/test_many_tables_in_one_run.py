"""One run does a step for many small tables with few processes.

Tables fail separately, and a retry repeats only the failed tables.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import boto3
import pyarrow as pa
import pytest
from dagster import (
    AssetKey,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    JobDefinition,
    ReexecutionOptions,
    RunRequest,
    build_sensor_context,
    execute_job,
    reconstructable,
)
from dagster._core.storage.partition_status_cache import AssetPartitionStatus

from assets.launcher import MOST_DEATHS, PipesLauncher
from assets.run_tags import TABLES
from assets.steps import partitions_of, span_of
from jobs.command import to_arguments
from pipelines.alerts.sensors import failure_alert
from pipelines.catalog import build_definitions
from pipelines.jobs import assets_of_jobs
from pipelines.last_failures import last_failures_in, said_by
from pipelines.maintenance.due_runs import DeclaredNow
from pipelines.maintenance.sensor import PendingWorkFinder
from pipelines.runs import ActiveRuns, assets_of
from pipelines.tables import read_tables
from storage_core.base.clock import SystemClock
from storage_core.change.declaration import TableDeclaration
from storage_core.data.steps import Checkpoint
from tests.support.many_tables import declare_tables
from tests.support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, S3Server, Seen, Step
from tests.support.scale import scaled
from tidemark import Table

pytestmark = [pytest.mark.dagster, pytest.mark.spark]

MANY = min(100, scaled(12))
AT = dt.datetime(2026, 2, 1, tzinfo=dt.UTC)
BUCKET = "soon-gone"
NOWHERE: Mapping[str, str] = {}


@pytest.fixture
def instance(tmp_path: Path, kept_instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> DagsterInstance:
    monkeypatch.chdir(tmp_path)
    return kept_instance


def compact_job() -> JobDefinition:
    return build_definitions(read_tables(Path("tables")), PipesLauncher()).resolve_job_def("compact")


def declared(count: int, elsewhere: Mapping[str, str] = NOWHERE) -> list[TableDeclaration]:
    """Declare this number of tables with windows. Some tables are outside `warehouse`."""
    declare_tables(Path(), count + 2 + count // 9)  # every tenth table has no windows
    files = [each.file for each in read_tables(Path("tables")).tables if each.file and each.declaration.window]
    for file in Path("tables").iterdir():
        if file not in files[:count]:
            file.unlink()
        elif uri := elsewhere.get(file.stem):
            file.write_text(file.read_text().replace(f"warehouse/{file.stem}", uri))
    return [each.declaration for each in read_tables(Path("tables")).tables]


def owe_a_compaction(tables: Sequence[TableDeclaration]) -> None:
    for each in tables:
        table = Table.declare(each)
        for status in range(2):
            table.append([{"timestamp": AT, "status": status, "message": "m"}])


def compactions(
    instance: DagsterInstance, tables: Sequence[TableDeclaration], now: DeclaredNow | None = None
) -> list[RunRequest]:
    """Return the run requests of a tick."""
    with build_sensor_context(instance) as context:
        found = PendingWorkFinder(tables, assets_of_jobs(tables), declared_now=now).tick(context).run_requests or []
    return [each for each in found if each.job_name == "compact"]


def execute(instance: DagsterInstance, request: RunRequest) -> DagsterRun:
    job, tags = reconstructable(compact_job), dict(request.tags)
    with execute_job(job, instance, asset_selection=request.asset_selection, tags=tags) as result:
        return result.dagster_run


def events(instance: DagsterInstance, run: DagsterRun, kind: DagsterEventType) -> list[DagsterEvent]:
    return [each.dagster_event for each in instance.all_logs(run.run_id, of_type=kind) if each.dagster_event]


def started(instance: DagsterInstance, run: DagsterRun) -> tuple[int, int]:
    """Return the number of job processes of the run, and how many of them started Spark and its JVM."""
    said = [each.user_message for each in instance.all_logs(run.run_id)]
    processes = {
        found[1] for each in said if (found := re.match(r"the job \w+ in the process (\d+) of this run", each))
    }
    return len(processes), sum(each.lower().startswith("started spark") for each in said)


def tables_of(requests: Sequence[RunRequest]) -> list[set[str]]:
    return [{key.path[0] for key in each.asset_selection or ()} for each in requests]


def test_of_many_tables_in_one_run_two_fail_with_a_line_each_and_a_retry_is_of_these_two(
    instance: DagsterInstance, s3_server: S3Server
) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    tables = declared(MANY, {"t005": s3_server.uri("t005").replace(s3_server.bucket, BUCKET)})
    names = [each.name for each in tables]
    owe_a_compaction(tables)
    (request,) = compactions(instance, tables)
    assert (len(names), request.tags[TABLES], "tidemark/table" in request.tags) == (MANY, str(MANY), False)
    next(Path("warehouse/t003").rglob("*.parquet")).write_bytes(b"torn")
    for each in client.list_objects_v2(Bucket=BUCKET)["Contents"]:
        client.delete_object(Bucket=BUCKET, Key=each["Key"])
    client.delete_bucket(Bucket=BUCKET)

    run = execute(instance, request)

    processes, sessions = started(instance, run)
    assert (processes, sessions <= 1) == (1, True)
    failed = ["t003", "t005"]
    failures = events(instance, run, DagsterEventType.STEP_FAILURE)
    lines = {each.step_key: said_by(each) for each in failures}
    assert list(lines) == [f"{each}__compacted" for each in failed]
    assert "corrupt: " in lines["t003__compacted"]
    assert "tidemark fsck" in lines["t003__compacted"]
    assert BUCKET in lines["t005__compacted"]
    assert {name: len(Table.open(f"warehouse/{name}").snapshot.splits) for name in names if name not in failed} == (
        dict.fromkeys([each for each in names if each not in failed], 1)
    )
    assert set(last_failures_in(instance, names)) == set(failed)
    alert = failure_alert(run, failures, names, at=0)
    assert (set(alert.tables), len(alert.text.splitlines())) == (set(failed), 3)
    shown = {each.name: partition_of(instance, each, request) for each in tables}
    assert {name for name, status in shown.items() if status == AssetPartitionStatus.FAILED} == set(failed)
    assert {name for name, status in shown.items() if status is None} == set()

    again = ReexecutionOptions.from_failure(run.run_id, instance)
    job, tags = reconstructable(compact_job), dict(request.tags)
    with execute_job(job, instance, reexecution_options=again, tags=tags) as result:
        retry = result.dagster_run
    tried = {str(each.step_key) for each in events(instance, retry, DagsterEventType.STEP_START)}
    assert {each for each in tried if each.endswith("__compacted")} == {f"{each}__compacted" for each in failed}
    assert {each[:4] for each in tried} == {key.path[0] for key in assets_of(retry)} == set(failed)

    owe_a_compaction([each for each in tables if each.name in ("t001", "t002")])
    assert tables_of(compactions(instance, tables)) == [{"t001", "t002"}]


def partition_of(
    instance: DagsterInstance, table: TableDeclaration, request: RunRequest
) -> AssetPartitionStatus | None:
    """Return the status that Dagster shows for the partition of the run."""
    key, name = AssetKey([table.name, "compacted"]), request.tags["dagster/partition"]
    span = span_of(table)
    assert span is not None
    return (instance.get_status_by_partition(key, [name], partitions_of(span)) or {}).get(name)


def test_a_job_that_is_killed_is_started_again_in_a_new_process(
    instance: DagsterInstance, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, request = three_owing(instance, s3_server)
    killed = kill_jobs(s3_server, monkeypatch, 1)

    run = execute(instance, request)

    assert len(killed) == 1
    assert instance.get_runs()[0].is_success
    assert len(events(instance, run, DagsterEventType.STEP_RESTARTED)) == 1
    assert [len(Table.open(each.uri).snapshot.splits) for each in tables] == [1, 1, 1]


def test_a_job_that_is_killed_each_time_fails_its_own_step_and_the_others_go_on_in_a_new_process(
    instance: DagsterInstance, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, request = three_owing(instance, s3_server)
    killed = kill_jobs(s3_server, monkeypatch, 1 + MOST_DEATHS)

    run = execute(instance, request)

    (failure,) = events(instance, run, DagsterEventType.STEP_FAILURE)
    assert failure.step_key == "t001__compacted"
    assert said_by(failure).startswith(f"unavailable: the process of the job compact on {tables[0].uri} was ended by")
    assert "signal 9 (SIGKILL)" in said_by(failure)
    assert [len(Table.open(each.uri).snapshot.splits) for each in tables] == [2, 1, 1]
    processes, sessions = started(instance, run)
    assert (processes, sessions <= 1) == (len(killed), True)
    assert len(killed) == 1 + MOST_DEATHS
    at_work = ActiveRuns.of(instance, assets_of_jobs(tables), now_ms=SystemClock().now_ms())
    assert not at_work.busy
    assert at_work.resting == {AssetKey(["t001", "compacted"])}


def test_a_run_that_is_cancelled_stops_the_job_with_its_process(
    instance: DagsterInstance, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, request = three_owing(instance, s3_server)
    others, seen = processes_of_jobs(), set[int]()

    def cancel() -> None:
        seen.update(processes_of_jobs() - others)
        instance.report_run_canceling(instance.get_runs()[0])
        os.kill(os.getpid(), signal.SIGINT)

    as_the_job_takes_its_lease(s3_server, monkeypatch, cancel)

    execute(instance, request)

    assert [each.status for each in instance.get_runs()] == [DagsterRunStatus.CANCELED]
    assert [len(Table.open(each.uri).snapshot.splits) for each in tables] == [2, 2, 2]
    assert [Path(f"/proc/{each}").exists() for each in seen] == [False]


def test_the_process_of_jobs_answers_line_by_line_and_ends_when_it_is_asked_for_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    table = Table.create(str(tmp_path / "table"), pa.schema([("n", pa.int64())]))
    lines = [{"job": "checkpoint", "argv": to_arguments(Checkpoint(table_uri=uri))} for uri in ("no table", table.uri)]
    program = [sys.executable, "-m", "jobs.job_server", str(writing), "0.2"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=[writing], text=True) as process:
        os.close(writing)
        assert process.stdin is not None
        ended: list[dict[str, object]] = []
        with os.fdopen(reading) as answers:
            for line in lines:
                process.stdin.write(json.dumps(line) + "\n")
                process.stdin.flush()
                ended.append(next(each["ended"] for each in map(json.loads, answers) if "ended" in each))
            assert answers.read() == ""
        assert process.wait() == 0
    assert [(each["job"], each["status"], each.get("error")) for each in ended] == [
        ("checkpoint", "failed", "not_found"),
        ("checkpoint", "committed", None),
    ]


def three_owing(instance: DagsterInstance, s3_server: S3Server) -> tuple[list[TableDeclaration], RunRequest]:
    """Make three tables to compact in one run, the first on S3."""
    tables = declared(3, {"t001": s3_server.uri(f"t001-{uuid4()}")})
    owe_a_compaction(tables)
    (request,) = compactions(instance, tables)
    return tables, request


def kill_jobs(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Kill the job process `times` times. Return the list of killed processes, which grows during the run."""
    others, killed = processes_of_jobs(), list[int]()

    def kill() -> None:
        (started_here,) = processes_of_jobs() - others - {*killed}
        os.kill(started_here, signal.SIGKILL)
        killed.append(started_here)

    as_the_job_takes_its_lease(s3_server, monkeypatch, kill, times)
    return killed


def as_the_job_takes_its_lease(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], times: int = 1
) -> None:
    """While the job on the S3 table waits for its lease, call `act` once per lease request, at most `times` times."""
    answer, first = s3_server.front.next_step, iter([True] * times)

    def next_step(seen: Seen) -> Step | None:
        if seen.kind == "put" and "_locks" in seen.target and next(first, False):
            act()
        return answer(seen)

    monkeypatch.setattr(s3_server.front, "next_step", next_step)


def processes_of_jobs() -> set[int]:
    """Return the job processes that this process started.

    A job process of an ended run stays idle for a while.
    """
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    children = [child for each in tasks for child in read(each).split()]
    return {int(each) for each in children if "jobs.job_server" in read(Path(f"/proc/{each}/cmdline"))}


def read(file: Path) -> str:
    """Return the content of a file of `/proc`, empty if its process or thread has ended."""
    with suppress(OSError):
        return file.read_text()
    return ""


def test_a_file_that_is_changed_or_gone_while_a_code_server_runs_holds_back_no_other_table(
    instance: DagsterInstance,
) -> None:
    tables = declared(5)
    names = [each.name for each in tables]
    owe_a_compaction(tables)
    now = DeclaredNow(Path("tables"))
    files = [Path("tables", f"{name}.yaml") for name in names]
    files[0].write_text("# what is declared is the same\n" + files[0].read_text())
    assert tables_of(compactions(instance, tables, now)) == [set(names)]
    files[1].unlink()
    files[2].write_text(files[2].read_text().replace("window:", "windw:"))
    files[3].write_text(files[3].read_text() + "indexes: [{name: words, kind: fulltext, columns: [message]}]\n")

    requests = compactions(instance, tables, now)

    assert sorted(tables_of(requests), key=len) == [{names[3]}, {names[0], names[4]}]
    assert [execute(instance, each).status for each in requests] == [DagsterRunStatus.SUCCESS] * 2
    with build_sensor_context(instance) as context:
        said = PendingWorkFinder(tables[1:3], {}, declared_now=now).tick(context).skip_reason
    why = "no valid file declares the table any more. Correct the file, or reload the definitions"
    assert said is not None
    assert str(said.skip_message).endswith(f"; {names[1]}, {names[2]}: {why}")
