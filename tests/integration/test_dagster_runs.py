"""Real runs of the assets on a real instance, with the jobs in this process on one Spark session."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    JobDefinition,
    RunRequest,
    build_schedule_context,
    build_sensor_context,
)

from assets.checks import INDEX_METADATA
from assets.failures import TABLE_METADATA
from assets.launcher import MOST_DEATHS, InProcessLauncher, PipesLauncher
from assets.metadata import METADATA, PARTITION_METADATA, PREDICTED, PREDICTED_BYTES, PREDICTED_OF_PARTITION
from assets.run_tags import ALL_WINDOWS, COMPACT_STATE, MODE_TAG, RANGE_END, RANGE_START, STATE_TAG, WINDOWS_TAG
from jobs.spark.spark import Spark
from pipelines.backfill import backfill
from pipelines.catalog import build_definitions
from pipelines.tables import load_tables
from storage_core.base.clock import SystemClock
from storage_core.change.declaration import load
from storage_core.data.formats.keys import version_key
from tests.support.batches import one_file_per_batch
from tidemark import Table

pytestmark = [pytest.mark.dagster, pytest.mark.spark]

Land = Callable[..., Path]

LINES = 300
HOURS = {RANGE_START: "2015-05-17T10:00", RANGE_END: "2015-05-17T13:00"}


@pytest.fixture(autouse=True)
def _several_splits_per_window() -> Iterator[None]:
    with one_file_per_batch():
        yield


@pytest.fixture
def defs(checkout: Path, spark: Spark) -> Definitions:
    return build_definitions(load_tables(checkout / "tables"), InProcessLauncher(spark))


@pytest.fixture
def landed(land: Land) -> None:
    """Land 300 real lines in two files, all between 10:00 and 13:59. The second file has one invalid line."""
    land("a.log", 0, 200)
    land("b.log", 200, LINES, more=("no log line",))


def of_table(job: JobDefinition, table: str) -> JobDefinition:
    return job.get_subset(
        asset_selection={key for key in job.asset_layer.executable_asset_keys if key.path[0] == table}
    )


def run(
    defs: Definitions,
    instance: DagsterInstance,
    job: str,
    *,
    table: str = "access_log",
    tags: dict[str, str] | None = None,
    partition: str | None = None,
    ok: bool = True,
) -> ExecuteInProcessResult:
    result = of_table(defs.resolve_job_def(job), table).execute_in_process(
        instance=instance, tags=tags, partition_key=partition, raise_on_error=False
    )
    assert result.success is ok
    return result


def metrics(result: ExecuteInProcessResult, asset: str) -> dict[str, object]:
    """Return the metrics of the asset over all partitions of the run."""
    (event,) = result.asset_observations_for_node(asset.replace("/", "__"))
    return {name: value.value for name, value in event.metadata.items()}


def metrics_by_partition(result: ExecuteInProcessResult, asset: str) -> dict[str | None, dict[str, object]]:
    events = result.asset_materializations_for_node(asset.replace("/", "__"))
    return {event.partition: {name: value.value for name, value in event.metadata.items()} for event in events}


def failures(result: ExecuteInProcessResult) -> list[str]:
    data = [event.step_failure_data.user_failure_data for event in result.get_step_failure_events()]
    return [str(each.description) for each in data if each]


def execute(defs: Definitions, instance: DagsterInstance, request: RunRequest) -> ExecuteInProcessResult:
    assert request.job_name is not None
    job = defs.resolve_job_def(request.job_name)
    checks, assets = request.asset_check_keys, request.asset_selection
    chosen = job.get_subset(
        asset_selection=set(assets) if assets else None, asset_check_selection=set(checks) if checks else None
    )
    result = chosen.execute_in_process(instance=instance, tags=dict(request.tags))
    assert result.success
    return result


def asked(request: RunRequest) -> list[str]:
    """Return the tables for which the run request contains the step."""
    keys = [*(request.asset_selection or ()), *(each.asset_key for each in request.asset_check_keys or ())]
    return [f"{name} {request.job_name}" for name in dict.fromkeys(key.path[0] for key in keys)]


class Hours:
    """A clock that the test advances by hours, so that each cron line of steps becomes due."""

    def __init__(self) -> None:
        self.hours = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.hours * 3_600_000

    def sleep_ms(self, duration_ms: float) -> None:
        raise AssertionError(f"nothing here sleeps {duration_ms} ms")


def tick(defs: Definitions, instance: DagsterInstance) -> list[RunRequest]:
    """Evaluate one tick of the sensor and of the schedules at 3:30 and 3:45."""
    repository = defs.get_repository_def()
    sensor = repository.get_sensor_def("upkeep_sensor")
    with build_sensor_context(instance=instance, repository_def=repository, sensor_name=sensor.name) as context:
        requests = list(sensor.evaluate_tick(context).run_requests or [])
    for name, minute in (("collect_schedule", 30), ("check_schedule", 45)):
        at = dt.datetime(2030, 1, 1, 3, minute, tzinfo=dt.UTC)
        schedule = repository.get_schedule_def(name)
        with build_schedule_context(instance, repository_def=repository, scheduled_execution_time=at) as of_schedule:
            found = schedule.evaluate_tick(of_schedule).run_requests or []
        requests += [each.with_replaced_attrs(job_name=schedule.job_name) for each in found]
    return requests


@pytest.mark.usefixtures("landed")
@pytest.mark.parametrize("history", ["sqlite", "postgresql"], indirect=True)
def test_a_ranged_run_ingests_and_compacts_with_all_metrics(defs: Definitions, kept_instance: DagsterInstance) -> None:
    result = run(defs, kept_instance, "backfill", tags=HOURS)

    ingested, compacted = metrics(result, "access_log/ingested"), metrics(result, "access_log/compacted")
    of_whole = METADATA | TABLE_METADATA | PREDICTED
    assert ingested.keys() - PREDICTED_BYTES == of_whole
    assert compacted.keys() == of_whole | PREDICTED_BYTES
    assert (ingested["dagster/row_count"], ingested["dagster/table_name"]) == (LINES, "access_log")
    assert (ingested["rows_in"], ingested["rows_out"], ingested["status"]) == (LINES + 1, LINES, "committed")
    assert (compacted["rows_in"], compacted["debt_left"]) == (compacted["rows_out"], 0)
    assert compacted["splits_in"] == 2
    assert compacted["splits_out"] == 1
    assert compacted["version"] == Table.open("warehouse/access_log").version == 2
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    audited = dict.fromkeys(("tw_windows", "cs_scopes", "mc_merges", "ss_splits"), True)
    assert checks == {"no_rejected_lines": False, **audited}
    keys = kept_instance.get_materialized_partitions(AssetKey(["access_log", "compacted"]))
    assert keys == {f"2015-05-17T{hour}:00" for hour in (10, 11, 12, 13)}


@pytest.mark.usefixtures("landed")
def test_a_partition_of_a_ranged_run_shows_its_own_metrics(defs: Definitions, instance: DagsterInstance) -> None:
    result = run(defs, instance, "backfill", tags=HOURS)

    rows = dict(
        Counter(Table.open("warehouse/access_log").scan().to_arrow()["timestamp"].cast("timestamp[us]").to_pylist())
    )
    by_hour = Counter(dict[str, int]())
    for instant, count in rows.items():
        by_hour[f"{instant:%Y-%m-%dT%H}:00"] += count
    ingested, compacted = (metrics_by_partition(result, f"access_log/{each}") for each in ("ingested", "compacted"))
    hours = [f"2015-05-17T{hour}:00" for hour in (10, 11, 12, 13)]
    assert list(ingested) == list(compacted) == hours
    assert {frozenset(each) for each in ingested.values()} == {PARTITION_METADATA}
    assert {frozenset(each) for each in compacted.values()} == {PARTITION_METADATA | PREDICTED_OF_PARTITION}
    for each in compacted.values():
        assert (each["predicted_bytes_in"], each["predicted_benefit"]) == (each["bytes_in"], each["benefit"])
    assert {hour: ingested[hour]["rows_out"] for hour in hours} == {hour: by_hour[hour] for hour in hours}
    assert sum(by_hour.values()) == metrics(result, "access_log/ingested")["rows_out"] == LINES
    assert (ingested[hours[-1]]["status"], ingested[hours[-1]]["commit_id"]) == ("nothing_to_do", "")
    rewritten = [hour for hour in hours if compacted[hour]["status"] == "committed"]
    assert [(compacted[hour]["splits_in"], compacted[hour]["rows_out"]) for hour in rewritten] == [
        (2, by_hour[hour]) for hour in rewritten
    ]
    assert len(rewritten) == metrics(result, "access_log/compacted")["splits_out"] == 1


@pytest.mark.usefixtures("landed")
def test_rejected_lines_count_once_and_keep_their_check_red_until_they_are_removed(
    defs: Definitions, instance: DagsterInstance
) -> None:
    node = "access_log__ingested"

    def ingest(hour: str) -> tuple[object, bool, object]:
        result = run(defs, instance, "ingest", partition=hour)
        (check,) = result.get_asset_check_evaluations()
        shown = [each.metadata for each in result.asset_materializations_for_node(node)]
        shown += [each.metadata for each in result.asset_observations_for_node(node)]
        (metadata,) = shown
        details = metadata["details"].value
        rejected = details["rejected"] if isinstance(details, dict) and "rejected" in details else 0
        assert (check.description or "").endswith(
            "" if check.passed else "Show the lines with: tidemark quarantine access_log"
        )
        return rejected, check.passed, check.metadata["in_quarantine"].value

    assert ingest("2015-05-17T10:00") == (1, False, 1)
    for hour in ("11", "12", "12"):
        assert ingest(f"2015-05-17T{hour}:00") == (0, False, 1)
    shutil.rmtree("warehouse/access_log/quarantine")
    assert ingest("2015-05-17T12:00") == (0, True, 0)


def test_every_asset_can_be_materialized_from_nothing(defs: Definitions, instance: DagsterInstance) -> None:
    graph = defs.get_repository_def().asset_graph
    everything = defs.resolve_implicit_global_asset_job_def()
    for table, tags in (("access_log", HOURS), ("planes", {}), ("departures", {}), ("words", {})):
        assert of_table(everything, table).execute_in_process(instance=instance, tags=tags).success
    for key in graph.get_all_asset_keys():
        event = instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        is_keyed = key.path[0] == "planes"
        of_whole = METADATA | PREDICTED | TABLE_METADATA - ({"dagster/row_count"} if is_keyed else set())
        expected_keys = PARTITION_METADATA if event.asset_materialization.partition else of_whole
        if key.path[-1].startswith("index_"):
            of_vectors = {"index_imbalance"}
            expected_keys |= INDEX_METADATA - (set() if key.path[-1] == "index_meaning" else of_vectors)
        assert event.asset_materialization.metadata.keys() - PREDICTED_BYTES == expected_keys
        expected = "committed" if key.path[-1] == "checkpointed" else "nothing_to_do"
        assert event.asset_materialization.metadata["status"].value == expected


@pytest.mark.usefixtures("landed")
def test_a_run_with_nothing_to_do_leaves_the_metrics_of_the_one_that_did_it(
    defs: Definitions, instance: DagsterInstance
) -> None:
    def metrics_of(asset: str) -> dict[str | None, object]:
        records = instance.fetch_materializations(AssetKey(["access_log", asset]), limit=100).records
        made = [each.asset_materialization for each in reversed(records) if each.asset_materialization]
        return {each.partition: each.metadata["rows_out"].value for each in made}

    run(defs, instance, "backfill", tags=HOURS)
    run(defs, instance, "checkpoint")
    before = {asset: metrics_of(asset) for asset in ("ingested", "compacted", "checkpointed")}
    assert sum(map(int, map(str, before["ingested"].values()))) == LINES
    again = run(defs, instance, "backfill", tags=HOURS)  # an idle step does not block the next step, so both run
    assert [metrics(again, f"access_log/{each}")["status"] for each in ("ingested", "compacted")] == [
        "nothing_to_do"
    ] * 2
    run(defs, instance, "compact", partition="2015-05-17T10:00")
    run(defs, instance, "ingest")
    idle = run(defs, instance, "checkpoint")
    assert metrics(idle, "access_log/checkpointed")["status"] == "nothing_to_do"
    assert {asset: metrics_of(asset) for asset in before} == before

    # Dagster's own backfills succeed only if their runs materialize everything that was requested.
    of_backfill = {"dagster/backfill": "again"}
    filled = run(defs, instance, "backfill", tags={**HOURS, **of_backfill})
    for asset in ("ingested", "compacted"):
        shown = metrics_by_partition(filled, f"access_log/{asset}")
        assert {hour: each["rows_out"] for hour, each in shown.items()} == before[asset]
    one = run(defs, instance, "compact", partition="2015-05-17T10:00", tags=of_backfill)
    assert list(metrics_by_partition(one, "access_log/compacted")) == ["2015-05-17T10:00"]
    whole = run(defs, instance, "checkpoint", tags=of_backfill)
    assert list(metrics_by_partition(whole, "access_log/checkpointed")) == [None]
    assert {asset: metrics_of(asset) for asset in before} == before


@pytest.mark.usefixtures("landed")
def test_storage_is_asked_until_there_is_nothing_left_to_do(
    checkout: Path, spark: Spark, kept_instance: DagsterInstance
) -> None:
    clock = Hours()
    defs = build_definitions(load_tables(checkout / "tables"), InProcessLauncher(spark), clock)
    with Table.declare(load("tables/planes.yaml")).writer() as writer:
        writer.put([{"tailnum": f"N{number}", "seats": number} for number in range(20)])
        writer.flush()
    requested: list[set[str]] = []
    while not requested or requested[-1] - {f"{name} collect" for name in ("access_log", "planes")}:
        clock.hours += 2
        requests = tick(defs, kept_instance)
        every = [each for request in requests for each in asked(request)]
        requested.append(set(every))
        assert len(every) == len(requested[-1]), "one trigger per step"
        for request in requests:
            execute(defs, kept_instance, request)
        assert len(requested) < 8, f"it never comes to rest: {requested}"

    assert {"access_log ingest", "planes merge"} <= requested[0]
    assert set.union(*requested) == {
        *(f"access_log {job}" for job in ("ingest", "compact", "catch_up", "checkpoint", "collect", "check")),
        *(f"planes {job}" for job in ("merge", "catch_up", "checkpoint", "collect", "check")),
    }
    assert Table.open("warehouse/access_log").snapshot.rows == LINES
    assert Table.open("warehouse/planes").snapshot.rows == 20


def test_late_rows_are_settled_by_the_run_that_brings_the_fresh_ones_and_their_files_are_read_once(
    checkout: Path, spark: Spark, kept_instance: DagsterInstance, land: Land
) -> None:
    file = checkout / "tables" / "access_log.yaml"
    text = file.read_text(encoding="utf-8") + "\nlate_data: {policy: quarantine, acceptance_window: 1h}\n"
    text = text.replace("  end: 2015-05-21T00:00\n", "")
    file.write_text(text, encoding="utf-8")
    now = dt.datetime.now(dt.UTC)
    old = [now - dt.timedelta(days=5 * number) for number in range(1, 31)]
    for number in range(3):
        rows = [
            f'10.0.0.{number} - - [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET / HTTP/1.1" 200 5 "-" "t"' for at in [*old, now]
        ]
        land(f"{number}.log", more=tuple(rows))
    defs = build_definitions(load_tables(checkout / "tables"), InProcessLauncher(spark))

    (request,) = [each for each in tick(defs, kept_instance) if each.job_name == "ingest"]
    result = execute(defs, kept_instance, request)

    done = metrics(result, "access_log/ingested")
    assert (done["rows_in"], done["rows_out"], done["rows_late_quarantined"]) == (93, 3, 90)
    assert len(metrics_by_partition(result, "access_log/ingested")) == 1
    assert [each for each in tick(defs, kept_instance) if each.job_name == "ingest"] == []


def test_what_waits_is_not_asked_for_again_nor_what_failed_a_moment_ago(
    defs: Definitions, kept_instance: DagsterInstance, land: Land
) -> None:
    land("a.log", 0, 200)
    (request,) = tick(defs, kept_instance)
    assert (asked(request), request.run_key, request.partition_key) == (["access_log ingest"], None, None)
    assert request.tags["dagster/priority"] == "10"
    job = defs.resolve_job_def("ingest")
    waiting = kept_instance.create_run_for_job(job, asset_selection=frozenset(request.asset_selection or ()))
    land("b.log", 200, 210)
    assert tick(defs, kept_instance) == []
    kept_instance.report_run_failed(waiting)
    assert tick(defs, kept_instance) == []
    kept_instance.delete_run(waiting.run_id)
    assert [asked(each) for each in tick(defs, kept_instance)] == [["access_log ingest"]]


def test_the_sensor_asks_for_compaction_where_storage_shows_debt(
    defs: Definitions, kept_instance: DagsterInstance, land: Land
) -> None:
    for name, last in (("a.log", 200), ("late.log", 50)):
        land(name, 0, last)
        run(defs, kept_instance, "ingest", tags=HOURS)

    def compactions() -> list[RunRequest]:
        return [each for each in tick(defs, kept_instance) if each.job_name == "compact"]

    (request,) = compactions()
    assert request.tags["tidemark/reason"] == "2 splits to compact"
    result = execute(defs, kept_instance, request)
    assert list(metrics_by_partition(result, "access_log/compacted")) == ["2015-05-17T10:00"]
    assert compactions() == []


def test_a_window_that_needs_no_compaction_counts_as_materialized_and_is_backfilled_again(
    defs: Definitions, instance: DagsterInstance, land: Land
) -> None:
    compacted = AssetKey(["access_log", "compacted"])
    hours = {f"2015-05-17T{hour}:00" for hour in (10, 11, 12)}
    land("a.log", 0, LINES)
    land("late.log", 0, 50)
    run(defs, instance, "ingest", tags=HOURS)
    land("later.log", 0, 50)
    run(defs, instance, "ingest", tags=HOURS)
    assert instance.get_materialized_partitions(compacted) == hours - {"2015-05-17T10:00"}
    run(defs, instance, "compact", partition="2015-05-17T10:00", tags={WINDOWS_TAG: ALL_WINDOWS})
    assert instance.get_materialized_partitions(compacted) == hours
    again = run(defs, instance, "compact", tags={**HOURS, "dagster/backfill": "again"})
    assert set(metrics_by_partition(again, "access_log/compacted")) == hours | {"2015-05-17T13:00"}


def test_a_run_with_the_tag_compacts_the_state(defs: Definitions, instance: DagsterInstance, land: Land) -> None:
    for number in range(3):
        land(f"{number}.log", 50 * number, 50 * number + 50)
        run(defs, instance, "ingest", tags=HOURS)
        run(defs, instance, "checkpoint")
    assert Table.open("warehouse/access_log").describe_state()["compact"] is False
    run(defs, instance, "checkpoint", tags={STATE_TAG: COMPACT_STATE})
    assert Table.open("warehouse/access_log").describe_state()["compact"] is True


def test_a_change_of_the_window_begins_new_partitions_and_every_row_is_there_once(
    checkout: Path, defs: Definitions, instance: DagsterInstance, land: Land, spark: Spark
) -> None:
    land("a.log", 0, 200)
    run(defs, instance, "ingest", tags={RANGE_START: "2015-05-17T11:00", RANGE_END: "2015-05-17T11:00"})
    file = checkout / "tables" / "access_log.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("window: 1h", "window: 15m"), encoding="utf-8")
    changed = build_definitions(load_tables(checkout / "tables"), InProcessLauncher(spark))
    quarters = {RANGE_START: "2015-05-17T10:00", RANGE_END: "2015-05-17T13:45"}
    run(changed, instance, "ingest", tags=quarters)
    table = Table.open("warehouse/access_log")
    assert table.snapshot.rows == 200
    assert {add.windowSeconds for add in table.snapshot.splits.values()} == {900, 3600}
    result = run(changed, instance, "compact", tags={**quarters, MODE_TAG: "rewindow"})
    assert metrics(result, "access_log/compacted")["status"] == "committed"
    assert {add.windowSeconds for add in table.refresh().snapshot.splits.values()} == {900}
    assert table.snapshot.rows == 200


@pytest.mark.usefixtures("landed")
def test_losing_the_storage_of_dagster_loses_history_and_nothing_else(
    checkout: Path, defs: Definitions, kept_instance: DagsterInstance
) -> None:
    run(defs, kept_instance, "backfill", tags=HOURS)
    version = Table.open("warehouse/access_log").version
    shutil.rmtree(checkout / "history")

    with DagsterInstance.ephemeral() as fresh:
        result = run(defs, fresh, "backfill", tags=HOURS)

    assert metrics(result, "access_log/ingested")["status"] == "nothing_to_do"
    assert metrics(result, "access_log/compacted")["status"] == "nothing_to_do"
    assert Table.open("warehouse/access_log").version == version
    assert Table.open("warehouse/access_log").snapshot.rows == LINES


def test_a_backfill_runs_one_ranged_run_per_chunk(
    checkout: Path, spark: Spark, instance: DagsterInstance, land: Land
) -> None:
    land("two_days.log", 1500, 2000)
    declaration = load(checkout / "tables" / "access_log.yaml")

    def fill() -> list[tuple[str, str | None]]:
        done = backfill(
            declaration, "2015-05-17T00:00", "2015-05-19T00:00", instance=instance, launcher=InProcessLauncher(spark)
        )
        return [(each.chunk.first, each.error) for each in done]

    assert fill() == [("2015-05-17T00:00", None), ("2015-05-18T00:00", None)]
    version = Table.open("warehouse/access_log").version
    assert Table.open("warehouse/access_log").snapshot.rows == 500
    assert fill() == [("2015-05-17T00:00", None), ("2015-05-18T00:00", None)]
    assert Table.open("warehouse/access_log").version == version
    assert instance.get_runs_count() == 4


def test_a_failed_job_fails_the_step_with_its_kind_and_message(defs: Definitions, instance: DagsterInstance) -> None:
    table = Table.declare(load("tables/planes.yaml"))
    path = table.store.local_path(version_key(0))
    assert path is not None
    path.write_bytes(b"not a version")

    result = run(defs, instance, "compact", table="planes", ok=False)

    assert len(failures(result)) == 1
    assert failures(result)[0].startswith("corrupt: ")
    assert version_key(0) in failures(result)[0]


def test_a_job_that_fails_in_a_subprocess_says_why(checkout: Path, instance: DagsterInstance) -> None:
    defs = build_definitions(load_tables(checkout / "tables"), PipesLauncher(checkout))
    file = checkout / "tables" / "access_log.yaml"  # edited after Dagster loaded the file
    file.write_text(file.read_text(encoding="utf-8").replace("window: 1h", "window: 7m"), encoding="utf-8")

    result = run(defs, instance, "ingest", tags=HOURS, ok=False)

    assert len(failures(result)) == 1
    assert failures(result)[0].startswith("invalid_input: ")
    assert "access_log.yaml:21: field `window`" in failures(result)[0]


def kill_jobs(count: int) -> None:
    """Kill the next job processes that this process starts, one after another. Stop after this number of kills."""
    killed: set[str] = set()
    while len(killed) < count:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
        for process, parent, command in (line.split(maxsplit=2) for line in listed.stdout.splitlines()):
            if parent == str(os.getpid()) and "-m jobs" in command and process not in killed:
                killed.add(process)
                os.kill(int(process), signal.SIGKILL)
        time.sleep(0.02)


@pytest.mark.parametrize(("kills", "ok"), [(1, True), (1 + MOST_DEATHS, False)])
def test_a_job_that_is_killed_is_started_again_a_few_times(
    checkout: Path, instance: DagsterInstance, *, kills: int, ok: bool
) -> None:
    defs = build_definitions(load_tables(checkout / "tables"), PipesLauncher(checkout))
    Table.declare(load("tables/planes.yaml"))
    with ThreadPoolExecutor() as killer:
        killed = killer.submit(kill_jobs, kills)
        result = run(defs, instance, "checkpoint", table="planes", ok=ok)
        killed.result()

    kinds = Counter(each.event_type_value for each in result.all_events)
    assert (kinds["STEP_RESTARTED"], kinds["STEP_FAILURE"]) == (min(kills, MOST_DEATHS), int(not ok))


def test_the_launcher_of_a_run_says_where_small_work_is_executed(
    checkout: Path, instance: DagsterInstance, land: Land, monkeypatch: pytest.MonkeyPatch
) -> None:
    land("a.log", 0, 10)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    defs = build_definitions(load_tables(checkout / "tables"), PipesLauncher(checkout))
    job = of_table(defs.resolve_job_def("ingest"), "access_log")
    chosen = {"resources": {"launcher": {"config": {"spark": "always"}}}}

    refused = job.execute_in_process(instance=instance, tags=HOURS, run_config=chosen, raise_on_error=False)
    assert failures(refused)[0].startswith("unavailable: Spark needs Java 17 or newer")

    assert metrics(run(defs, instance, "ingest", tags=HOURS), "access_log/ingested")["ran"] == "driver"
