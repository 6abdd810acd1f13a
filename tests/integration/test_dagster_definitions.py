"""The test covers the definitions that Dagster loads, and the runs that the state of storage requests.

The test runs no job.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from dagster import AssetKey, DagsterInstance, DagsterRun, Definitions
from dagster._core.instance import InstanceRef
from dagster._core.storage.tags import TagType, get_tag_type
from dagster._core.utils import make_new_run_id

from assets.launcher import PipesLauncher
from assets.run_tags import REASON
from assets.steps import contiguous, partition_key, partitions_of, span_of
from jobs.due_runs import TableInputs, due_run
from pipelines.backfill import Chunk, chunks
from pipelines.catalog import build_definitions
from pipelines.instance import SETTINGS, home, open_instance
from pipelines.runs import process_tags, reason_tags
from pipelines.tables import LOG_LEVEL, load_tables, tables_folder
from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import TableDeclaration, load
from storage_core.data.steps import OBSERVABLE
from storage_core.log.job_run import DueRun
from storage_core.write.region.generation_write import DEFAULT_TERMS
from tidemark import Table

pytestmark = pytest.mark.dagster

Land = Callable[..., Path]

HOUR = 3600
MIDNIGHT = 1431820800  # 2015-05-17T00:00Z


class FixedClock:
    def __init__(self, instant: dt.datetime) -> None:
        self.instant = instant

    def now_ms(self) -> int:
        return int(self.instant.timestamp() * 1000)

    def sleep_ms(self, duration_ms: float) -> None:
        raise AssertionError(f"nothing here sleeps {duration_ms} ms")


def definitions(folder: Path) -> Definitions:
    declared = load_tables(folder)
    return build_definitions(declared, PipesLauncher(declared.root))


def access_log(root: Path) -> TableDeclaration:
    return load(root / "tables" / "access_log.yaml")


def line_at(instant: dt.datetime) -> str:
    return f'10.0.0.1 - - [{instant:%d/%b/%Y:%H:%M:%S} +0000] "GET / HTTP/1.1" 200 5 "-" "test"'


# Definitions.


def test_every_table_has_its_assets_and_every_step_its_job(checkout: Path) -> None:
    repository = definitions(checkout / "tables").get_repository_def()

    assert sorted(key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()) == [
        "access_log/checkpointed",
        "access_log/collected",
        "access_log/compacted",
        "access_log/index_status",
        "access_log/index_text",
        "access_log/ingested",
        "access_log/retried",
        "departures/checkpointed",
        "departures/collected",
        "departures/compacted",
        "planes/checkpointed",
        "planes/collected",
        "planes/compacted",
        "planes/index_manufacturer",
        "planes/merged",
        "planes/sorted",
        *(f"words/{each}" for each in ("checkpointed", "collected", "compacted", "index_meaning", "index_spelling")),
    ]
    assert sorted(name for name in repository.job_names if not name.startswith("__")) == [
        *("access_log_backfill", "backfill", "catch_up", "check", "checkpoint", "collect", "compact", "forget"),
        *("ingest", "merge", "purge_history", "retry_quarantine", "sort"),
    ]
    assert sorted(schedule.name for schedule in repository.schedule_defs) == [
        *("check_schedule", "collect_schedule", "purge_history_schedule"),
    ]
    assert sorted(sensor.name for sensor in repository.sensor_defs) == ["dead_runs_sensor", "upkeep_sensor"]
    assert sorted(key.to_user_string() for key in repository.asset_graph.asset_check_keys) == [
        "access_log/compacted:cs_scopes",
        "access_log/compacted:mc_merges",
        "access_log/compacted:ss_splits",
        "access_log/compacted:tw_windows",
        "access_log/index_status:covers_every_split",
        "access_log/index_text:covers_every_split",
        "access_log/ingested:no_rejected_lines",
        "departures/compacted:cs_scopes",
        "departures/compacted:mc_merges",
        "departures/compacted:ss_splits",
        "departures/compacted:tw_windows",
        "planes/compacted:cs_scopes",
        "planes/compacted:mc_merges",
        "planes/compacted:ss_splits",
        "planes/compacted:tw_windows",
        "planes/index_manufacturer:covers_every_split",
        "planes/merged:no_generation_missing",
        "words/compacted:cs_scopes",
        "words/compacted:mc_merges",
        "words/compacted:ss_splits",
        "words/compacted:tw_windows",
        "words/index_meaning:covers_every_split",
        "words/index_spelling:covers_every_split",
    ]


def test_assets_follow_each_other_as_the_data_does(checkout: Path) -> None:
    graph = definitions(checkout / "tables").get_repository_def().asset_graph
    parents = {
        key.to_user_string(): sorted(each.to_user_string() for each in graph.get(key).parent_keys)
        for key in graph.get_all_asset_keys()
    }

    assert parents["access_log/ingested"] == []
    assert parents["access_log/retried"] == ["access_log/ingested"]
    assert parents["access_log/compacted"] == ["access_log/ingested"]
    assert parents["access_log/index_text"] == ["access_log/compacted"]
    assert parents["access_log/checkpointed"] == ["access_log/compacted"]
    assert parents["planes/compacted"] == ["planes/merged"]
    assert parents["planes/sorted"] == ["planes/merged"]
    assert parents["planes/collected"] == ["planes/checkpointed", "planes/index_manufacturer"]


def test_new_rows_wait_for_no_other_upkeep_of_their_table(checkout: Path) -> None:
    graph = definitions(checkout / "tables").get_repository_def().asset_graph
    pools = {key.to_user_string(): graph.get(key).pools for key in graph.get_all_asset_keys()}
    assert pools["access_log/ingested"] == {"tidemark_access_log_rows"}
    assert pools["planes/merged"] == pools["planes/sorted"] == {"tidemark_planes_rows"}
    rest = {name for name, of in pools.items() if of == {"tidemark_access_log"}}
    assert rest >= {"access_log/compacted", "access_log/checkpointed", "access_log/index_text", "access_log/collected"}


def test_dagster_validates_the_definitions_in_the_repository_root(checkout: Path) -> None:
    command = [str(Path(sys.executable).parent / "dagster"), "definitions", "validate"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Validation successful for code location tidemark" in done.stderr + done.stdout


def test_one_invalid_declaration_leaves_the_other_tables_working(checkout: Path) -> None:
    (checkout / "tables" / "broken.yaml").write_text("name: broken\nuri: warehouse/broken\ncolumns:\n  a: strin\n")

    shown = definitions(checkout / "tables")

    graph = shown.get_repository_def().asset_graph
    left_out = graph.get(AssetKey(["invalid_declarations", "broken"]))
    assert "tables/broken.yaml:4: field `columns.a" in str(left_out.description)
    assert not left_out.is_materializable
    assert len(graph.materializable_asset_keys) == 21


def test_a_second_table_of_the_same_name_is_left_out(checkout: Path) -> None:
    (checkout / "tables" / "zz.yaml").write_text("uri: warehouse/zz\nname: planes\ncolumns:\n  a: string\n")

    declared = load_tables(checkout / "tables")

    assert [table.declaration.name for table in declared.tables] == ["access_log", "departures", "planes", "words"]
    assert declared.problems[0].message.startswith("tables/zz.yaml:2: field `name`: the value 'planes' conflicts with")


def test_nothing_loads_when_every_declaration_is_invalid(checkout: Path) -> None:
    folder = checkout / "other" / "tables"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text("name: ../a\nuri: a\ncolumns:\n  a: string\n")

    with pytest.raises(InvalidInput, match=r"a\.yaml:1: field `name`"):
        load_tables(folder)


def test_places_are_relative_to_the_folder_that_holds_the_tables(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    folder = tables_folder({"TIDEMARK_TABLES": str(checkout / "tables")})

    table = load_tables(folder).tables[0].declaration

    assert table.uri == str(checkout / "warehouse" / "access_log")
    assert table.landing is not None
    assert table.landing.uri == str(checkout / "landing" / "access_log")


def test_the_instance_uses_the_settings_of_the_package_or_those_put_into_its_folder(checkout: Path) -> None:
    folder = home(checkout, {})
    settings = folder / "dagster.yaml"
    assert folder == checkout / ".dagster"
    assert settings.resolve() == SETTINGS
    settings.unlink()
    settings.symlink_to(Path("..") / "dagster.yaml")  # older checkouts of Tidemark have this symbolic link
    assert home(checkout, {}) == folder
    assert settings.resolve() == SETTINGS
    assert yaml.safe_load(settings.read_text())["python_logs"] == {"python_log_level": "INFO"}
    home(checkout, {LOG_LEVEL: "DEBUG"})  # `tidemark ui --verbose` sets this log level
    assert yaml.safe_load(settings.read_text())["python_logs"] == {"python_log_level": "DEBUG"}
    home(checkout, {})
    assert settings.resolve() == SETTINGS
    settings.unlink()
    settings.write_text("telemetry: {enabled: false}\n")
    assert home(checkout, {LOG_LEVEL: "DEBUG"}) == folder
    assert settings.read_text() == "telemetry: {enabled: false}\n"
    assert home(checkout, {"DAGSTER_HOME": str(checkout)}) == checkout


def test_dagster_in_the_root_and_our_commands_keep_one_history_by_equal_settings(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    places = ("storage", "local_artifact_storage", "compute_logs")
    of_root = yaml.safe_load((checkout / "dagster.yaml").read_text())
    assert {name: each for name, each in of_root.items() if name not in places} == yaml.safe_load(SETTINGS.read_text())
    assert of_root["telemetry"] == {"enabled": False}
    # `dagster dev` without DAGSTER_HOME makes a temporary folder with the settings of the current folder.
    reference = InstanceRef.from_dir(str(tmp_path_factory.mktemp("removed")), config_dir=str(checkout))
    run = DagsterRun(job_name="job", run_id=make_new_run_id())
    with DagsterInstance.from_ref(reference) as theirs:
        theirs.add_run(run)
        logs = theirs.compute_log_manager.get_captured_local_path  # type: ignore[attr-defined]  # of the local manager
        written = Path(logs(["a"], "out")).resolve()
    with open_instance(home(checkout, {})) as ours:
        assert [each.run_id for each in ours.get_runs()] == [run.run_id]
        logs = ours.compute_log_manager.get_captured_local_path  # type: ignore[attr-defined]
        assert Path(logs(["a"], "out")).resolve() == written


def test_the_tags_of_a_run_fit_the_list_of_runs() -> None:
    assert reason_tags("3 splits to compact") == {REASON: "3 splits to compact"}
    (long,) = reason_tags("; ".join(f"index_{number} lacks 2 splits" for number in range(50))).values()
    assert len(long) == 60
    shown = {key: value for key, value in process_tags().items() if get_tag_type(key) is not TagType.HIDDEN}  # type: ignore[no-untyped-call]
    assert shown == {}


def test_a_folder_for_the_instance_is_made_where_it_is_missing_or_refused_by_name(checkout: Path) -> None:
    missing = checkout / "not" / "yet"
    assert home(checkout, {"DAGSTER_HOME": str(missing)}) == missing
    assert missing.is_dir()
    file = checkout / "tables" / "access_log.yaml"
    with pytest.raises(InvalidInput, match=rf"{file}.* cannot contain the history of Dagster .* Set DAGSTER_HOME"):
        home(checkout, {"DAGSTER_HOME": str(file / "under a file")})


# Partitions.


def test_partitions_are_the_declared_windows(checkout: Path) -> None:
    span = span_of(access_log(checkout))
    assert span is not None
    keys = partitions_of(span).get_partition_keys()
    assert (len(keys), keys[0], keys[-1]) == (96, "2015-05-17T00:00", "2015-05-20T23:00")
    assert keys[-1] == partition_key(span.newest)


def test_the_window_that_is_open_now_has_a_partition(checkout: Path) -> None:
    declaration = access_log(checkout).model_copy(update={"partitions": None, "window": 900})
    now = dt.datetime.now(dt.UTC)

    span = span_of(declaration, FixedClock(now))
    assert span is not None
    keys = partitions_of(span).get_partition_keys(current_time=now)

    assert len(keys) <= 40_000
    assert len(keys) > 40_000 - 96  # the start is at midnight, so less than a day is lost
    assert keys[0].endswith("T00:00")
    assert keys[-1] == partition_key(int(now.timestamp()) // 900 * 900) == partition_key(span.newest)


def test_neighbouring_windows_make_one_range_up_to_midnight() -> None:
    windows = [hour * HOUR + MIDNIGHT for hour in (22, 23, 24, 25, 30)]
    found = [(first - MIDNIGHT, last - MIDNIGHT) for first, last in contiguous(reversed(windows), HOUR)]
    assert found == [(22 * HOUR, 23 * HOUR), (24 * HOUR, 25 * HOUR), (30 * HOUR, 30 * HOUR)]


def test_a_backfill_is_cut_into_chunks(checkout: Path) -> None:
    assert chunks(access_log(checkout), "2015-05-17T00:00", "2015-05-18T03:00") == [
        Chunk("2015-05-17T00:00", "2015-05-17T23:00", 24),
        Chunk("2015-05-18T00:00", "2015-05-18T02:00", 3),
    ]


@pytest.mark.parametrize(
    ("start", "end", "chunk", "message"),
    [
        ("2015-05-16T23:00", "2015-05-18T00:00", "1d", r"--from 2015-05-16T23:00 is .* Give 2015-05-17T00:00 or later"),
        ("2015-05-17T00:00", "2999-01-01T00:00", "1d", r"--to 2999-01-01T00:00 is .* Give \d{4}-\S+ or earlier"),
        ("2015-05-18T00:00", "2015-05-17T00:00", "1d", "--to 2015-05-17T00:00 is not after --from 2015-05-18T00:00"),
        ("2015-05-18T00:00", "2015-05-18T00:00", "1d", "--to 2015-05-18T00:00 is not after --from 2015-05-18T00:00"),
        ("2015-05-17T00:30", "2015-05-18T00:00", "1d", "not the start of a window of 3600 s"),
        ("2015-05-17T00:00", "2015-05-18T00:00", "30m", "not a multiple of the window of 3600 s"),
        ("2015-05-17T00:00", "2015-05-18T00:00", "much", "not a duration"),
        ("soon", "2015-05-18T00:00", "1d", "soon"),
    ],
)
def test_a_backfill_outside_the_partitions_is_refused(
    checkout: Path, start: str, end: str, chunk: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        chunks(access_log(checkout), start, end, chunk)


# Tests of Dagster run requests that depend on the stored state of a table.


def due(job: str, declaration: TableDeclaration) -> DueRun | None:
    return due_run(job, TableInputs.of(declaration))


def test_a_table_without_landed_files_asks_for_nothing(checkout: Path) -> None:
    for file in ("access_log", "planes"):
        inputs = TableInputs.of(load(checkout / "tables" / f"{file}.yaml"))
        assert [due_run(job, inputs) for job in sorted(OBSERVABLE)] == [None] * len(OBSERVABLE)
    assert not (checkout / "warehouse").exists()


def test_landed_files_ask_for_one_run_whatever_their_rows_and_windows_are(checkout: Path, land: Land) -> None:
    land("a.log", 0, 400)
    land("b.log", more=("no log line", line_at(dt.datetime(2016, 1, 1, tzinfo=dt.UTC))))
    size = sum(each.stat().st_size for each in (checkout / "landing" / "access_log").iterdir())
    assert due("ingest", access_log(checkout)) == DueRun(reason=f"2 landed files, {size:,} bytes", items=2, bytes=size)


def test_an_index_that_the_table_does_not_have_yet_is_asked_for(checkout: Path) -> None:
    file = checkout / "tables" / "access_log.yaml"
    declaration = load(file)
    fewer = declaration.model_copy(update={"indexes": declaration.indexes[:1]})
    other = declaration.indexes[1].name
    Table.declare(fewer)
    assert due("catch_up", fewer) is None

    found = due("catch_up", declaration)

    assert found is not None
    assert found.indexes == (other,)
    assert f"{other} is new" in found.reason
    Table.declare(declaration)  # the maintenance run also applies this declaration first
    assert due("catch_up", declaration) is None


def test_a_sort_is_asked_for_only_where_more_generations_wait_than_the_bound(checkout: Path) -> None:
    declaration = load(checkout / "tables" / "planes.yaml")
    bound = DEFAULT_TERMS.generations

    with Table.declare(declaration).writer() as writer:
        for number in range(bound):
            writer.put({"tailnum": f"N{number}"})
            writer.flush()
        assert due("sort", declaration) is None
        writer.put({"tailnum": "one more"})
        writer.flush()

    found = due("sort", declaration)
    assert found is not None
    assert found.reason == f"generations that wait unsorted: {bound + 1}"
