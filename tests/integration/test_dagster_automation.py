"""One switch per table for the sensor and the schedules.

The switch selects the tables that the sensor and the schedules maintain. The switch also decides whether the sensor and
the schedules are on by default.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    Definitions,
    MetadataValue,
    RepositoryDefinition,
    build_schedule_context,
    build_sensor_context,
)

from assets.launcher import PipesLauncher
from assets.metadata import AUTOMATION_TAG, code_version
from pipelines.catalog import build_definitions
from pipelines.housekeeping import DEAD_RUNS
from pipelines.report import REPORT_PATH
from pipelines.tables import read_raw_logs, read_tables
from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import load
from tests.support.many_tables import declare_tables, land_line
from tidemark import Table
from tidemark.dagster import TableComponent, component_definitions

pytestmark = pytest.mark.dagster

ROOT = Path(__file__).resolve().parents[2]
EVERY = {
    "upkeep_sensor",
    "alerts_failed_runs",
    "alerts_late_tables",
    *(f"{each}_schedule" for each in ("collect", "check", "purge_history", "report", "catalog_refresh")),
}
HALF_PAST_THREE = dt.datetime(2030, 1, 1, 3, 30, tzinfo=dt.UTC)


@pytest.fixture
def instance(kept_instance: DagsterInstance) -> DagsterInstance:
    return kept_instance


def declared(root: Path, *said: str) -> Path:
    """Declare one table per text in `said`. A declaration ends with its text. Each table has one landed file."""
    folder = declare_tables(root, len(said) + 1)
    (folder / "t000.yaml").unlink()  # the table is keyed, so no file lands there
    for number, text in enumerate(said, 1):
        file = folder / f"t{number:03}.yaml"
        file.write_text(f"{file.read_text()}{text}\n")
        table = load(file).below(root)
        land_line(table)
        Table.declare(table)
    return folder


def definitions(folder: Path, *, others: bool = False) -> Definitions:
    """Return the definitions. If `others` is True, add the report, SQL catalog and alerts."""
    raw_logs, report = read_raw_logs(folder), REPORT_PATH if others else None
    return build_definitions(
        read_tables(folder), PipesLauncher(), raw_logs=raw_logs, report=report, catalog=others, alerts=others
    )


def started(repository: RepositoryDefinition) -> set[str]:
    """Return the sensors and schedules that are on by default, except the sensor `DEAD_RUNS`, which is always on."""
    schedules = {each.name for each in repository.schedule_defs if each.default_status is DefaultScheduleStatus.RUNNING}
    sensors = {each.name for each in repository.sensor_defs if each.default_status is DefaultSensorStatus.RUNNING}
    return schedules | sensors - {DEAD_RUNS}


def asked(repository: RepositoryDefinition, instance: DagsterInstance) -> list[str]:
    """Return the sorted names of the tables that the sensor and the collection schedule request."""
    with build_sensor_context(instance, repository_def=repository, sensor_name="upkeep_sensor") as context:
        found = repository.get_sensor_def("upkeep_sensor").evaluate_tick(context).run_requests or []
    with build_schedule_context(instance, repository_def=repository, scheduled_execution_time=HALF_PAST_THREE) as at:
        collected = repository.get_schedule_def("collect_schedule").evaluate_tick(at).run_requests or []
    names = [
        sorted({key.path[0] for each in requests for key in each.asset_selection or ()})
        for requests in (found, collected)
    ]
    assert names[0] == names[1]
    return names[0]


def shown(repository: RepositoryDefinition) -> dict[str, set[str]]:
    graph = repository.asset_graph
    keys = [key for key in graph.get_all_asset_keys() if key.path[0].startswith("t0")]
    return {
        key.path[0]: {graph.get(each).tags[AUTOMATION_TAG] for each in keys if each.path[0] == key.path[0]}
        for key in keys
    }


@pytest.mark.parametrize(
    ("said", "of_all", "runs", "looked_after", "words"),
    [
        (("", "", "automation: off"), None, False, ["t001", "t002"], ["when_started", "when_started", "off"]),
        (("automation: on", "", "automation: off"), None, True, ["t001"], ["on", "off", "off"]),
        (("", "", "automation: off"), "default: on", True, ["t001", "t002"], ["on", "on", "off"]),
        (("", "automation: on", ""), "default: off", True, ["t002"], ["off", "on", "off"]),
        (("", "", ""), "default: off", False, [], ["off", "off", "off"]),
    ],
)
def test_what_is_on_starts_by_itself_what_is_off_never_and_the_rest_when_somebody_starts_it(
    tmp_path: Path,
    instance: DagsterInstance,
    said: tuple[str, ...],
    of_all: str | None,
    runs: bool,  # a case
    looked_after: list[str],
    words: list[str],
) -> None:
    if of_all:
        (tmp_path / "automation.yaml").write_text(of_all)
    repository = definitions(declared(tmp_path, *said), others=True).get_repository_def()
    assert started(repository) == (EVERY if runs else set())
    assert shown(repository) == {f"t{number:03}": {word} for number, word in enumerate(words, 1)}
    assert asked(repository, instance) == looked_after


def test_a_raw_log_is_looked_after_where_a_table_is_that_it_feeds(tmp_path: Path, instance: DagsterInstance) -> None:
    folder = declared(tmp_path, "automation: on", "")
    (tmp_path / "raw_logs").mkdir()
    for name, table in (("first", "t001"), ("second", "t002")):
        text = f"name: {name}\nstores: [raw/{name}, other/{name}]\ntables: [{table}]\n"
        (tmp_path / "raw_logs" / f"{name}.yaml").write_text(text)
    repository = definitions(folder).get_repository_def()
    assert {"distribute_schedule", "heal_raw_schedule", "collect_raw_schedule"} < started(repository)
    at = dt.datetime(2030, 1, 1, 3, 40, tzinfo=dt.UTC)
    with build_schedule_context(instance, repository_def=repository, scheduled_execution_time=at) as context:
        found = repository.get_schedule_def("heal_raw_schedule").evaluate_tick(context).run_requests or []
    assert [each.asset_selection for each in found] == [[AssetKey(["first", "raw_healed"])]]


def test_the_interval_of_the_sensor_is_declared_and_a_file_that_is_not_sound_is_shown(tmp_path: Path) -> None:
    folder = declared(tmp_path, "")
    for text, seconds, description in (
        ("interval: 5m", 300, ""),
        ("default: off", 30, " Automation is off for 1 table."),
    ):
        (tmp_path / "automation.yaml").write_text(text)
        sensor = definitions(folder).get_repository_def().get_sensor_def("upkeep_sensor")
        assert sensor.minimum_interval_seconds == seconds
        assert str(sensor.description).endswith(f"the most urgent first.{description}")
    (tmp_path / "automation.yaml").write_text("interval: 0s\n")
    repository = definitions(folder).get_repository_def()
    left_out = repository.asset_graph.get(AssetKey(["invalid_declarations", "automation"]))
    assert "automation.yaml:1: field `interval`" in str(left_out.description)
    assert not started(repository)
    (folder / "t001.yaml").write_text((folder / "t001.yaml").read_text() + "automation: perhaps\n")
    with pytest.raises(InvalidInput, match="field `automation`"):
        load(folder / "t001.yaml")


def test_the_switch_of_a_component_is_on_where_yaml_makes_a_boolean_of_it() -> None:
    fields = {"name": "events", "uri": "warehouse/events", "columns": {"n": "int!"}, "automation": True}
    assert "tidemark_upkeep_sensor" in started(component_definitions(TableComponent(**fields)).get_repository_def())


def test_every_asset_of_a_table_shows_what_its_declaration_says_of_it(tmp_path: Path) -> None:
    folder = declared(tmp_path, "owners: ['team:web']\ntags: {tier: '1'}\nfreshness: 1h")
    graph = definitions(folder, others=True).get_repository_def().asset_graph
    declaration = load(folder / "t001.yaml").below(tmp_path)
    keys = [key for key in graph.get_all_asset_keys() if key.path[0] == "t001"]
    assert {key.path[1] for key in keys} == {"ingested", "retried", "compacted", "checkpointed", "collected"}
    for key in keys:
        node = graph.get(key)
        assert ([*node.owners], node.tags["tier"], node.code_version) == (["team:web"], "1", code_version(declaration))
        assert node.metadata["dagster/uri"] == declaration.uri
        assert node.metadata["dagster/table_name"] == "t001"
        assert node.metadata["report"] == MetadataValue.url("/tidemark/report#table-t001")
        assert node.metadata["operations"] == MetadataValue.path(str(ROOT / "docs" / "operations.md"))
        assert (node.freshness_policy is not None) == (key.path[1] == "ingested")
    others: dict[str, dict[str, object]] = {
        "more rows a split": {"sort_schema": "message|timestamp/V2"},
        "nothing of the rows": {"owners": (), "automation": "on", "freshness": None},
    }
    changed = {why: code_version(declaration.model_copy(update=each)) for why, each in others.items()}
    assert [each == code_version(declaration) for each in changed.values()] == [False, True]


def test_what_needs_no_run_counts_as_materialized_once(tmp_path: Path, instance: DagsterInstance) -> None:
    folder = declared(tmp_path, "automation: on\nretention: 36500d")
    table = load(folder / "t001.yaml").below(tmp_path)
    hours = [dt.datetime(2026, 3, 1, hour, tzinfo=dt.UTC) for hour in (10, 12)]
    Table.open(table.uri).append([{"timestamp": hour, "message": "m"} for hour in hours])

    def events() -> dict[str, int]:
        keys = [AssetKey(["t001", each]) for each in ("expired", "compacted", "ingested")]
        return {key.path[1]: len(instance.fetch_materializations(key, limit=100).records) for key in keys}

    repository = definitions(folder).get_repository_def()
    asked(repository, instance)
    found = instance.get_materialized_partitions(AssetKey(["t001", "compacted"]))
    assert found == {"2026-03-01T10:00", "2026-03-01T12:00"}
    assert events() == {"expired": 1, "compacted": 2, "ingested": 0}, "a file waits to be ingested"
    asked(repository, instance)
    asked(definitions(folder).get_repository_def(), instance)  # new definitions, as after a restart of the daemon
    assert events() == {"expired": 1, "compacted": 2, "ingested": 0}


def test_a_declared_cron_line_schedules_the_retry_of_the_quarantine(tmp_path: Path) -> None:
    folder = declared(tmp_path, 'schedule: {retry_quarantine: "0 5 * * *"}')
    schedules = {each.name: each for each in definitions(folder, others=True).get_repository_def().schedule_defs}
    assert schedules["retry_quarantine_schedule"].cron_schedule in ("0 5 * * *", ["0 5 * * *"])
