"""Real runs of the assets on a real instance, with the jobs in this process on one Spark session."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    RunRequest,
    build_schedule_context,
    build_sensor_context,
)

from assets.factory import COMPACT_STATE, MODE_TAG, STATE_TAG
from assets.index_health import INDEX_METADATA
from assets.launcher import InProcessLauncher, PipesLauncher
from assets.metadata import METADATA, PARTITION_METADATA
from jobs.spark.spark import Spark
from pipelines.backfill import backfill
from pipelines.catalog import build_definitions
from pipelines.run_requests import RANGE_END, RANGE_START
from pipelines.tables import load_tables
from storage_core.declaration import load
from storage_core.formats.keys import version_key
from tidemark import Table
from tidemark.io_manager.metadata import TABLE_METADATA

pytestmark = [pytest.mark.dagster, pytest.mark.spark]

Land = Callable[..., Path]

LINES = 300
QUIET = {"telemetry": {"enabled": False}}
HOURS = {RANGE_START: "2015-05-17T10:00", RANGE_END: "2015-05-17T13:00"}


@pytest.fixture
def defs(checkout: Path, spark: Spark) -> Definitions:
    return build_definitions(load_tables(checkout / "tables"), InProcessLauncher(spark))


@pytest.fixture
def instance(checkout: Path, history: Mapping[str, object]) -> Iterator[DagsterInstance]:
    folder = checkout / "history"
    folder.mkdir()
    with DagsterInstance.local_temp(str(folder), overrides={**QUIET, **history}) as opened:
        yield opened


@pytest.fixture
def landed(land: Land) -> None:
    """300 real lines in two files, the second one with a line that is none; all in the hours from 10 to 13."""
    land("a.log", 0, 200)
    land("b.log", 200, LINES, more=("no log line",))


def run(
    defs: Definitions, instance: DagsterInstance, job: str, *, tags: dict[str, str] | None = None, ok: bool = True
) -> ExecuteInProcessResult:
    result = defs.resolve_job_def(job).execute_in_process(instance=instance, tags=tags, raise_on_error=False)
    assert result.success is ok
    return result


def metrics(result: ExecuteInProcessResult, asset: str) -> dict[str, object]:
    """Of all partitions of the run together."""
    (event,) = result.asset_observations_for_node(asset.replace("/", "__"))
    return {name: value.value for name, value in event.metadata.items()}


def metrics_by_partition(result: ExecuteInProcessResult, asset: str) -> dict[str | None, dict[str, object]]:
    events = result.asset_materializations_for_node(asset.replace("/", "__"))
    return {event.partition: {name: value.value for name, value in event.metadata.items()} for event in events}


def failures(result: ExecuteInProcessResult) -> list[str]:
    data = [event.step_failure_data.user_failure_data for event in result.get_step_failure_events()]
    return [str(each.description) for each in data if each]


def execute(defs: Definitions, instance: DagsterInstance, request: RunRequest) -> None:
    assert request.job_name is not None
    result = defs.resolve_job_def(request.job_name).execute_in_process(
        instance=instance,
        tags=dict(request.tags),
        partition_key=request.partition_key,
        asset_selection=request.asset_selection,
    )
    assert result.success


def schedule_requests(defs: Definitions, instance: DagsterInstance, name: str) -> list[RunRequest]:
    repository = defs.get_repository_def()
    with build_schedule_context(instance=instance, repository_def=repository) as context:
        answer = repository.get_schedule_def(name).evaluate_tick(context)
    requests = list(answer.run_requests or [])
    assert bool(requests) is not (answer.skip_message or "").startswith("nothing to do")
    job = name.removesuffix("_schedule")
    # The tick itself names no job: the schedule does.
    return [each if each.job_name else each.with_replaced_attrs(job_name=job) for each in requests]


@pytest.mark.usefixtures("landed")
@pytest.mark.parametrize("history", ["sqlite", "postgresql"], indirect=True)
def test_a_ranged_run_ingests_and_compacts_with_all_metrics(defs: Definitions, instance: DagsterInstance) -> None:
    result = run(defs, instance, "access_log_backfill", tags=HOURS)

    ingested, compacted = metrics(result, "access_log/ingested"), metrics(result, "access_log/compacted")
    assert ingested.keys() == compacted.keys() == METADATA | TABLE_METADATA
    assert (ingested["dagster/row_count"], ingested["dagster/table_name"]) == (LINES, "access_log")
    assert (ingested["rows_in"], ingested["rows_out"], ingested["status"]) == (LINES + 1, LINES, "committed")
    assert (compacted["rows_in"], compacted["debt_left"]) == (compacted["rows_out"], 0)
    assert compacted["splits_in"] == 2
    assert compacted["splits_out"] == 1
    assert compacted["version"] == Table.open("warehouse/access_log").version == 2
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    audited = dict.fromkeys(("tw_windows", "cs_scopes", "mc_merges", "ss_splits"), True)
    assert checks == {"no_rejected_lines": False, **audited}
    keys = instance.get_materialized_partitions(AssetKey(["access_log", "compacted"]))
    assert keys == {f"2015-05-17T{hour}:00" for hour in (10, 11, 12, 13)}


@pytest.mark.usefixtures("landed")
def test_a_partition_of_a_ranged_run_shows_its_own_metrics(defs: Definitions, instance: DagsterInstance) -> None:
    result = run(defs, instance, "access_log_backfill", tags=HOURS)

    rows = dict(
        Counter(Table.open("warehouse/access_log").scan().to_arrow()["timestamp"].cast("timestamp[us]").to_pylist())
    )
    by_hour = Counter(dict[str, int]())
    for instant, count in rows.items():
        by_hour[f"{instant:%Y-%m-%dT%H}:00"] += count
    ingested, compacted = (metrics_by_partition(result, f"access_log/{each}") for each in ("ingested", "compacted"))
    hours = [f"2015-05-17T{hour}:00" for hour in (10, 11, 12, 13)]
    assert list(ingested) == list(compacted) == hours
    assert {frozenset(each) for each in [*ingested.values(), *compacted.values()]} == {PARTITION_METADATA}
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
    def ingest(hour: str) -> tuple[object, bool, object]:
        result = defs.resolve_job_def("access_log_ingest").execute_in_process(instance=instance, partition_key=hour)
        (check,) = result.get_asset_check_evaluations()
        (event,) = result.asset_materializations_for_node("access_log__ingested")
        details = event.metadata["details"].value
        rejected = details["rejected"] if isinstance(details, dict) and "rejected" in details else 0
        return rejected, check.passed, check.metadata["in_quarantine"].value

    assert ingest("2015-05-17T10:00") == (1, False, 1)
    for hour in ("11", "12", "12"):
        assert ingest(f"2015-05-17T{hour}:00") == (0, False, 1)
    shutil.rmtree("warehouse/access_log/quarantine")
    assert ingest("2015-05-17T12:00") == (0, True, 0)


def test_every_asset_can_be_materialized_from_nothing(defs: Definitions, instance: DagsterInstance) -> None:
    graph = defs.get_repository_def().asset_graph
    for table, tags in (("access_log", HOURS), ("planes", {}), ("departures", {}), ("words", {})):
        run(defs, instance, f"{table}_upkeep", tags=tags)
    for key in graph.get_all_asset_keys():
        event = instance.get_latest_materialization_event(key)
        assert event is not None
        assert event.asset_materialization is not None
        is_keyed = key.path[0] == "planes"
        of_table = METADATA | TABLE_METADATA - ({"dagster/row_count"} if is_keyed else set())
        expected_keys = PARTITION_METADATA if event.asset_materialization.partition else of_table
        if key.path[-1].startswith("index_"):
            of_vectors = {"index_imbalance"}
            expected_keys |= INDEX_METADATA - (set() if key.path[-1] == "index_meaning" else of_vectors)
        assert event.asset_materialization.metadata.keys() == expected_keys
        expected = "committed" if key.path[-1] == "checkpointed" else "nothing_to_do"
        assert event.asset_materialization.metadata["status"].value == expected


@pytest.mark.usefixtures("landed")
def test_schedules_ask_until_there_is_nothing_left_to_do(defs: Definitions, instance: DagsterInstance) -> None:
    with Table.declare(load("tables/planes.yaml")).writer() as writer:
        writer.put([{"tailnum": f"N{number}", "seats": number} for number in range(20)])
        writer.flush()
    names = sorted(schedule.name for schedule in defs.get_repository_def().schedule_defs)
    requested: list[set[str]] = []
    while not requested or requested[-1]:
        requested.append(set())
        for name in names:
            for request in schedule_requests(defs, instance, name):
                execute(defs, instance, request)
                requested[-1].add(name)
        assert len(requested) < 6, f"the schedules never come to rest: {requested}"

    assert {"access_log_ingest_schedule", "planes_merge_schedule"} <= requested[0]
    empty = {f"departures_{each}_schedule" for each in ("compact", "checkpoint", "check")}
    empty |= {f"words_{each}_schedule" for each in ("compact", "checkpoint", "check", "catch_up")}
    idle = {f"{each}_schedule" for each in ("planes_compact", "planes_sort", "purge_history")}
    idle |= {*empty, *idle_collectors(names)}
    assert set.union(*requested) == set(names) - idle
    assert Table.open("warehouse/access_log").snapshot.rows == LINES
    assert Table.open("warehouse/planes").snapshot.rows == 20
    run(defs, instance, "access_log_check")
    repository = defs.get_repository_def()
    for sensor in repository.sensor_defs:
        with build_sensor_context(instance=instance, repository_def=repository, sensor_name=sensor.name) as context:
            answer = sensor.evaluate_tick(context)
        assert (answer.run_requests or [], answer.skip_message) == ([], "nothing to do")


def idle_collectors(names: list[str]) -> set[str]:
    """Collectors may find nothing: what compaction removed is still needed by retained versions."""
    return {name for name in names if name.endswith("_collect_schedule")}


def test_the_sensor_asks_for_compaction_where_storage_shows_debt(
    defs: Definitions, instance: DagsterInstance, land: Land
) -> None:
    land("a.log", 0, 200)
    run(defs, instance, "access_log_ingest", tags=HOURS)
    land("late.log", 0, 50)
    run(defs, instance, "access_log_ingest", tags=HOURS)
    repository = defs.get_repository_def()
    sensor = repository.get_sensor_def("access_log_compact_sensor")

    def tick() -> list[RunRequest]:
        with build_sensor_context(instance=instance, repository_def=repository, sensor_name=sensor.name) as context:
            return list(sensor.evaluate_tick(context).run_requests or [])

    requests = tick()
    assert [each.partition_key for each in requests] == ["2015-05-17T10:00"]
    assert [each.run_key for each in requests] == ["access_log compact 2015-05-17T10:00...2015-05-17T10:00 v2"]
    assert [each.run_key for each in tick()] == [each.run_key for each in requests]
    for request in requests:
        execute(defs, instance, request.with_replaced_attrs(job_name="access_log_compact"))
    assert tick() == []


def test_a_run_with_the_tag_compacts_the_state(defs: Definitions, instance: DagsterInstance, land: Land) -> None:
    for number in range(3):
        land(f"{number}.log", 50 * number, 50 * number + 50)
        run(defs, instance, "access_log_ingest", tags=HOURS)
        run(defs, instance, "access_log_checkpoint")
    assert Table.open("warehouse/access_log").describe_state()["compact"] is False
    run(defs, instance, "access_log_checkpoint", tags={STATE_TAG: COMPACT_STATE})
    assert Table.open("warehouse/access_log").describe_state()["compact"] is True


def test_a_change_of_the_window_begins_new_partitions_and_every_row_is_there_once(
    checkout: Path, defs: Definitions, instance: DagsterInstance, land: Land, spark: Spark
) -> None:
    land("a.log", 0, 200)
    run(defs, instance, "access_log_ingest", tags={RANGE_START: "2015-05-17T11:00", RANGE_END: "2015-05-17T11:00"})
    file = checkout / "tables" / "access_log.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("window: 1h", "window: 15m"), encoding="utf-8")
    changed = build_definitions(load_tables(checkout / "tables"), InProcessLauncher(spark))
    quarters = {RANGE_START: "2015-05-17T10:00", RANGE_END: "2015-05-17T13:45"}
    run(changed, instance, "access_log_ingest", tags=quarters)
    table = Table.open("warehouse/access_log")
    assert table.snapshot.rows == 200
    assert {add.windowSeconds for add in table.snapshot.splits.values()} == {900, 3600}
    result = run(changed, instance, "access_log_compact", tags={**quarters, MODE_TAG: "rewindow"})
    assert metrics(result, "access_log/compacted")["status"] == "committed"
    assert {add.windowSeconds for add in table.refresh().snapshot.splits.values()} == {900}
    assert table.snapshot.rows == 200


@pytest.mark.usefixtures("landed")
def test_losing_the_storage_of_dagster_loses_history_and_nothing_else(
    checkout: Path, defs: Definitions, instance: DagsterInstance
) -> None:
    run(defs, instance, "access_log_backfill", tags=HOURS)
    version = Table.open("warehouse/access_log").version
    shutil.rmtree(checkout / "history")
    (checkout / "second").mkdir()

    with DagsterInstance.local_temp(str(checkout / "second"), overrides=QUIET) as fresh:
        result = run(defs, fresh, "access_log_backfill", tags=HOURS)

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

    result = run(defs, instance, "planes_compact", ok=False)

    assert len(failures(result)) == 1
    assert failures(result)[0].startswith("corrupt: ")
    assert version_key(0) in failures(result)[0]


def test_a_job_that_fails_in_a_subprocess_says_why(checkout: Path, instance: DagsterInstance) -> None:
    defs = build_definitions(load_tables(checkout / "tables"), PipesLauncher(checkout))
    file = checkout / "tables" / "access_log.yaml"  # edited after Dagster loaded it
    file.write_text(file.read_text(encoding="utf-8").replace("window: 1h", "window: 7m"), encoding="utf-8")

    result = run(defs, instance, "access_log_ingest", tags=HOURS, ok=False)

    assert len(failures(result)) == 1
    assert failures(result)[0].startswith("invalid_input: ")
    assert "access_log.yaml:20: field `window`" in failures(result)[0]
