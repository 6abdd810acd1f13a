"""Components of projects made with `dg`: a `defs.yaml` has the same effect as a file in `tables/` or `raw_logs/`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from dagster import (
    DagsterInstance,
    DefaultSensorStatus,
    Definitions,
    JobDefinition,
    ScheduleDefinition,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    build_defs_for_component,
    build_sensor_context,
    job,
    op,
)
from dagster.components.core.package_entry import discover_entry_point_package_objects
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # gRPC has no types

from assets.launcher import PipesLauncher
from jobs.command import from_arguments, to_arguments
from jobs.spark.spark import Spark
from pipelines.catalog import build_definitions
from pipelines.tables import read_raw_logs, read_tables
from storage_core.base.errors import InvalidInput
from storage_core.data.steps import Distribute
from storage_core.log.job_run import run
from storage_core.write.raw_log.records import RawLimits
from tidemark import RawLog, RawStore, Table
from tidemark.dagster import RawLogComponent, TableComponent, component_definitions

# The function that Dagster calls to read a `defs.yaml`.
pytestmark = [pytest.mark.dagster, pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated:DeprecationWarning")]

ROOT = Path(__file__).resolve().parents[2]

EVENTS: dict[str, Any] = {"name": "events", "uri": "warehouse/events", "columns": {"n": "int!"}}
LANDED: dict[str, Any] = {**EVENTS, "landing": {"uri": "landing", "format": "ndjson"}}
RAW: dict[str, Any] = {"name": "landing", "stores": ["raw/main"], "tables": ["events"], "closed_after": "0s"}


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as made:
        yield made


def declare(sandbox: DefsFolderSandbox, kind: str, name: str, attributes: object) -> Path:
    """Write the `defs.yaml` of a Tidemark component."""
    folder = sandbox.defs_folder_path / name
    folder.mkdir()
    (folder / "defs.yaml").write_text(yaml.safe_dump({"type": f"tidemark.dagster.{kind}", "attributes": attributes}))
    return folder


def names_in(defs: Definitions) -> dict[str, list[str]]:
    """Return the names of all definitions in Dagster, by kind."""
    repository = defs.get_repository_def()
    graph = repository.asset_graph
    return {
        "assets": sorted(key.to_user_string() for key in graph.get_all_asset_keys()),
        "edges": sorted(
            f"{up.to_user_string()} > {key.to_user_string()}"
            for key in graph.get_all_asset_keys()
            for up in graph.get(key).parent_keys
        ),
        "checks": sorted(map(str, graph.asset_check_keys)),
        "jobs": sorted(repository.job_names),
        "schedules": sorted(f"{each.name} {each.cron_schedule}" for each in repository.schedule_defs),
        "sensors": sorted(each.name for each in repository.sensor_defs),
    }


def test_components_make_what_the_files_of_tables_and_raw_logs_make(sandbox: DefsFolderSandbox) -> None:
    for folder, kind in (("tables", "TableComponent"), ("raw_logs", "RawLogComponent")):
        for file in (ROOT / folder).glob("*.yaml"):
            declare(sandbox, kind, f"{folder}_{file.stem}", yaml.safe_load(file.read_text()))
    tables = read_tables(ROOT / "tables")
    files = build_definitions(tables, PipesLauncher(), raw_logs=read_raw_logs(ROOT / "tables"), alerts=True)
    of_files = names_in(files)
    for kind in ("jobs", "schedules", "sensors"):
        of_files[kind] = [f"tidemark_{each}" for each in of_files[kind] if not each.startswith("__")]
    with sandbox.build_all_defs() as defs:
        found = names_in(defs)
        found["jobs"] = [each for each in found["jobs"] if not each.startswith("__")]
        assert found == of_files


def test_a_project_may_have_jobs_schedules_and_sensors_with_the_names_of_our_steps() -> None:
    raw = RawLogComponent(**RAW, retention="1d")
    ours = component_definitions(TableComponent(**LANDED), raw)
    names = names_in(ours)
    jobs = [_job(each.removeprefix("tidemark_")) for each in names["jobs"] if not each.startswith("__")]
    assert {"ingest", "compact", "distribute", "forget", "purge_history", "check"} <= {each.name for each in jobs}
    schedules = [f"{each.name}_schedule" for each in jobs]
    own = Definitions(
        jobs=jobs,
        schedules=[ScheduleDefinition(name=f"{each.name}_schedule", job=each, cron_schedule="@daily") for each in jobs],
        sensors=[SensorDefinition(name=each, evaluation_fn=_idle) for each in ("upkeep_sensor", "dead_runs_sensor")],
    )
    both = Definitions.merge(ours, own)
    Definitions.validate_loadable(both)
    assert len(names_in(both)["schedules"]) == len(names["schedules"]) + len(schedules)


@op(name="purge_runs")
def _work() -> None: ...


def _job(name: str) -> JobDefinition:
    @job(name=name)
    def made() -> None:
        _work()

    return made


def _idle(_: SensorEvaluationContext) -> SkipReason:
    return SkipReason("nothing to do")


def test_the_sensor_of_components_asks_for_runs_of_their_jobs(tmp_path: Path, instance: DagsterInstance) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "a.ndjson").write_text('{"n": 1}\n')
    repository = component_definitions(TableComponent(**LANDED), root=tmp_path).get_repository_def()
    with build_sensor_context(instance, repository_def=repository, sensor_name="tidemark_upkeep_sensor") as context:
        requests = repository.get_sensor_def("tidemark_upkeep_sensor").evaluate_tick(context).run_requests or []
    assert [each.job_name for each in requests] == ["tidemark_ingest"]
    assert repository.get_job("tidemark_ingest").name == "tidemark_ingest"


def test_components_have_the_sensors_of_alerts_which_start_with_their_automation(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    heard = tmp_path / "heard"
    (tmp_path / "alerts.yaml").write_text(f"receivers: [{{command: [touch, {heard}]}}]\n")
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "warehouse" / "events").write_text("not a table")
    late = TableComponent(**EVENTS, freshness="1h", automation="on")
    repository = component_definitions(late, root=tmp_path).get_repository_def()
    sensors = {each.name: each for each in repository.sensor_defs}
    assert sensors["tidemark_alerts_failed_runs"].default_status is DefaultSensorStatus.RUNNING
    assert sensors["tidemark_alerts_late_tables"].default_status is DefaultSensorStatus.RUNNING
    name = "tidemark_alerts_late_tables"
    with build_sensor_context(instance, repository_def=repository, sensor_name=name) as context:
        skipped = sensors[name].evaluate_tick(context)
    assert skipped.skip_message == "1 table late, unreadable or with too many rejected rows. 1 alert sent"
    assert heard.exists()


def test_a_template_is_filled_in_and_what_is_none_stays_text(
    sandbox: DefsFolderSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAREHOUSE", "s3://bucket/w")
    pattern = "^(?P<n>[0-9]{3}) (?P<at>.*)$"
    attributes = {
        "name": "log",
        "uri": "{{ env.WAREHOUSE }}/log",
        "columns": {"at": {"type": "timestamp", "nullable": False}, "n": "int"},
        "time_column": "at",
        "window": 3600,
        "gc": {"retention": 86400},
        "landing": {"uri": "landing", "format": "pattern", "pattern": pattern, "null_values": ["1", "-"]},
    }
    path = declare(sandbox, "TableComponent", "log", attributes)
    with sandbox.load_component_and_build_defs(path) as (loaded, defs):
        component = getattr(loaded, "components", [loaded])[0]
        declaration = component.declaration
        assert declaration.uri == "s3://bucket/w/log"
        assert declaration.landing.null_values == ("1", "-")
        assert declaration.landing.pattern == pattern
        # The retention 86400 is in seconds, as in a declaration file. `version_retention_ms` is in milliseconds.
        assert (declaration.window, declaration.config().version_retention_ms) == (3600, 86_400_000)
        places = {str(each.metadata["dagster/uri"]) for each in defs.resolve_all_asset_specs()}
        assert places == {"s3://bucket/w/log"}


def test_a_relative_place_is_one_of_the_project(sandbox: DefsFolderSandbox) -> None:
    path = declare(sandbox, "TableComponent", "events", EVENTS)
    with sandbox.load_component_and_build_defs(path) as (_, defs):
        places = {str(each.metadata["dagster/uri"]) for each in defs.resolve_all_asset_specs()}
        assert places == {str(sandbox.project_root / "warehouse" / "events")}


def test_assets_have_the_owners_and_tags_of_their_declaration() -> None:
    given = {"owners": ["team:web"], "tags": {"tier": "1"}}
    made = component_definitions(TableComponent(**EVENTS | given), RawLogComponent(**RAW | given))
    specs = made.resolve_all_asset_specs()
    assert {(*each.owners, each.tags["tier"]) for each in specs} == {("team:web", "1")}
    of_table = [each.metadata for each in specs if each.key.path[0] == "events"]
    assert {str(each["dagster/table_name"]) for each in of_table} == {"events"}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"window": "1h"}, "field `window`: window needs a time_column"),
        ({"sort_shema": "n"}, "unknown field `sort_shema`. Did you mean 'sort_schema'?"),
        ({"columns": None}, "field `columns` is missing. Add it"),
        (
            {"columns": {True: "int"}, "primary_key": "on"},
            "field `primary_key`: unknown column 'on'. The table has True",
        ),
        ({"uri": object()}, "a declaration has text, numbers, lists and mappings"),
    ],
)
def test_a_wrong_attribute_is_named_as_in_a_file(fields: dict[str, object], found: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        TableComponent(**{**EVENTS, **fields})
    assert found in str(raised.value)


@pytest.mark.parametrize(("other", "found"), [({"name": "other"}, "uri"), ({"uri": "warehouse/other"}, "name")])
def test_two_tables_of_one_name_or_place_are_refused(
    sandbox: DefsFolderSandbox, other: dict[str, object], found: str
) -> None:
    with pytest.raises(InvalidInput, match=f"two TableComponents have the same {found}"):
        component_definitions(TableComponent(**EVENTS), TableComponent(**EVENTS | other))
    declare(sandbox, "TableComponent", "one", EVENTS)
    declare(sandbox, "TableComponent", "two", EVENTS | other)
    with pytest.raises(Exception, match="Error while building definitions") as raised, sandbox.build_all_defs():
        pass
    assert f"two TableComponents have the same {found}" in str(raised.value.__cause__)


def test_a_project_without_dg_loads_components_too() -> None:
    alone = build_defs_for_component(TableComponent(**EVENTS))
    assert "events/compacted" in names_in(alone)["assets"]
    both = names_in(component_definitions(TableComponent(**EVENTS), RawLogComponent(**RAW)))
    assert "landing/distributed > events/compacted" in both["edges"]
    with pytest.raises(InvalidInput, match=r"no TableComponent declares events\. Add the table to the project"):
        build_defs_for_component(RawLogComponent(**RAW))


def test_dg_lists_the_components_with_the_schema_of_their_fields() -> None:
    found = {key.to_typename(): each for key, each in discover_entry_point_package_objects().items()}
    assert (
        found.items()
        >= {f"tidemark.dagster.{each.__name__}": each for each in (TableComponent, RawLogComponent)}.items()
    )
    for kind, field in ((TableComponent, "sort_schema"), (RawLogComponent, "closed_after")):
        model = kind.get_model_cls()
        assert field in model.model_json_schema()["properties"]
        assert "asset" in kind.get_spec().produces


def test_the_schema_of_a_component_takes_what_people_write_and_no_other_field() -> None:
    """`dg check yaml` validates a `defs.yaml` with this schema before it loads the component."""
    of_table, of_raw_log = (
        Draft202012Validator(each.get_model_cls().model_json_schema()) for each in (TableComponent, RawLogComponent)
    )
    for folder, judge in (("tables", of_table), ("raw_logs", of_raw_log)):
        for file in (ROOT / folder).glob("*.yaml"):
            judge.validate(yaml.safe_load(file.read_text()))
    index = {"name": "meaning", "kind": "vector", "columns": ["n"], "nprobe": 4}
    short = {**LANDED, "window": "1h", "primary_key": "n", "publish": "delta", "automation": True, "indexes": [index]}
    of_table.validate({**short, "columns": {"n": "int!", "t": {"type": "timestamp", "nullable": False}}})
    of_table.validate({**short, "upkeep": {"priority": "{{ env.PRIORITY }}"}, "gc": {"retention": "30d"}})
    of_raw_log.validate({**RAW, "stores": ["raw/main", {"uri": "raw/copy", "mandatory": False}]})
    faults: list[dict[str, Any]] = [
        {"indexes": [{**index, "clusters": 4}]},
        {"colums": {}},
        {"landing": {"url": "landing"}},
        {"columns": {"n": {"typ": "int"}}},
    ]
    for wrong in faults:
        assert not of_table.is_valid({**LANDED, **wrong}), wrong


@pytest.mark.spark
def test_a_job_takes_what_components_declare_in_the_place_of_files(tmp_path: Path, spark: Spark) -> None:
    raw, table = RawLogComponent(**RAW), TableComponent(**EVENTS)
    repository = component_definitions(raw, table, root=tmp_path).get_repository_def()
    assert repository.get_schedule_def("tidemark_distribute_schedule").cron_schedule == "*/15 * * * *"
    request = Distribute(raw_log=raw.text, tables=(table.text,), root=str(tmp_path))
    assert from_arguments("distribute", to_arguments(request)) == request
    with RawLog([RawStore(str(tmp_path / "raw" / "main"))], limits=RawLimits(segment_ms=1)) as log:
        for first in (0, 10):
            log.append("events", pa.table({"n": pa.array(range(first, first + 10), pa.int32())}))
    run(request, spark)
    assert Table.open(str(tmp_path / "warehouse" / "events")).snapshot.rows == 20


# A program that blocks unneeded libraries. The program runs in a project whose modules have the same names as packages
# of Tidemark.
PROJECT = """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("pandas", "polars", "pyspark"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Finder())
import assets, duckdb, pyarrow as pa
from dagster import AssetIn, Failure, asset, materialize
from tidemark.dagster import TidemarkIOManager

@asset(metadata={"tidemark/create": {}})
def numbers() -> pa.Table:
    return pa.table({"n": [1, 2]})

@asset
def counted(numbers: duckdb.DuckDBPyRelation) -> None:
    print("counted", numbers.aggregate("count(*)").fetchall()[0][0])

@asset(ins={"numbers": AssetIn()})
def anything(numbers) -> None:
    pass

assert materialize([numbers, counted], resources={"io_manager": TidemarkIOManager(root="warehouse")}).success
for kind in ("polars", "pandas", "spark"):
    given = {"io_manager": TidemarkIOManager(root="warehouse", default_type=kind)}
    try:
        materialize([numbers, anything], selection=[anything], resources=given)
    except Failure as error:
        print(kind, error.description)
try:
    from tidemark.dagster import TableComponent
except ValueError as error:
    print(error)
import tidemark.dagster
print(dir(tidemark.dagster))
"""


def test_the_rest_works_without_libraries_that_are_missing_and_says_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "assets.py").write_text("mine = True\n")
    (tmp_path / "project.py").write_text(PROJECT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "project.py"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    counted, polars, pandas, spark, hidden, names = ended.stdout.splitlines()
    assert counted == "counted 2"
    for line, name, extra in (
        (polars, "polars", "polars"),
        (pandas, "pandas", "pipeline"),
        (spark, "spark", "pipeline"),
    ):
        assert line.startswith(f"{name} unavailable: ")
        assert f"pip install '.[{extra}]'" in line
    assert hidden.startswith(f"this project has a module 'assets' ({tmp_path / 'assets.py'}) of its own")
    assert names == "['TidemarkIOManager']"
