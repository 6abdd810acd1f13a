"""`tidemark status`: one line per table, the last failure from Dagster's history, and the exit code."""

from __future__ import annotations

import datetime as dt
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckKey,
    AssetCheckResult,
    AssetKey,
    AssetObservation,
    AssetsDefinition,
    AssetSelection,
    DagsterEvent,
    DagsterEventType,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    DagsterRun,
    Definitions,
    MaterializeResult,
    asset,
    asset_check,
    define_asset_job,
    job,
    materialize,
)
from dagster._core.events import EngineEventData
from dagster._core.execution.plan.objects import StepSuccessData
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType
from dagster_shared.error import SerializableErrorInfo

from assets.checks import CHECK_NAMES
from assets.factory import freshness_policy
from assets.launcher import PipesLauncher
from assets.run_tags import TABLE, bytes_tag
from pipelines.alerts.sensors import failure_alert
from pipelines.automation import Automation
from pipelines.catalog import build_definitions
from pipelines.cli import main
from pipelines.history import history_folder
from pipelines.housekeeping import WRITTEN, build_report
from pipelines.instance import home, open_instance
from pipelines.last_failures import last_failures, last_failures_in
from pipelines.report import REPORT, REPORT_PATH, report_file
from pipelines.runs import run_request
from pipelines.tables import read_tables
from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import TableDeclaration, load
from storage_core.data.formats import keys
from storage_core.store.contract import Overwrite
from storage_core.table import Table

pytestmark = pytest.mark.dagster

ROOT = Path(__file__).resolve().parents[2]
EVENTS = "name: events\nuri: warehouse/events\ncolumns: {time: timestamp!, n: long}\ntime_column: time\nwindow: 1h\n"
LANDED = 'freshness: 1h\nlanding: {uri: landing, format: ndjson}\npartitions: {start: "2026-01-01T00:00"}\n'
PEOPLE = "name: web-people\nuri: warehouse/people\ncolumns: {id: long!}\nprimary_key: id\nfreshness: 30d\n"
LATER = "name: later\nuri: warehouse/later\ncolumns: {n: long}\n"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@job
def short() -> None:
    """Do nothing. The queued run of the test uses this job."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with three declared tables, and make this folder the working directory.

    Only two of the tables exist.
    """
    (tmp_path / "tables").mkdir()
    for name, text in (("events", EVENTS + LANDED), ("web-people", PEOPLE), ("later", LATER)):
        (tmp_path / "tables" / f"{name}.yaml").write_text(text)
    (tmp_path / "automation.yaml").write_text("default: on\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    for name in ("events", "web-people"):
        assert main(["init", name, "--json"]) == 0
    Table.open("warehouse/events").append({"time": NOON, "n": 1})
    Table.open("warehouse/people").append({"id": 1})
    return tmp_path


def looked(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
    capfd.readouterr()
    assert main(["status", *arguments, "--json"]) == code, capfd.readouterr()
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    return {each["name"]: each for each in lines if "name" in each}


def sensor_state(name: str, status: InstigatorStatus) -> InstigatorState:
    """Return the state that Dagster stores when a user switches a sensor on or off."""
    repository = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin(host="here", port=1), "__repository__")
    return InstigatorState(RemoteInstigatorOrigin(repository, name), InstigatorType.SENSOR, status)


def declared(text: str) -> TableDeclaration:
    Path("one.yaml").write_text(text)
    return load("one.yaml")


@pytest.mark.usefixtures("place")
def test_every_declared_table_is_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    found = looked(capfd)
    assert {name: each["status"] for name, each in found.items()} == {
        "events": "ok",
        "later": "not_made",
        "web-people": "ok",
    }
    assert (found["events"]["rows"], found["events"]["freshness_ms"]) == (1, 3_600_000)
    assert found["web-people"]["pending"]["merge"] == {"count": 1, "unit": "generations", "bytes": None}
    assert set(looked(capfd, "warehouse/events", "web-people")) == {"events", "web-people"}
    assert main(["status"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 6
    assert any("quarantine entries" in line for line in lines)
    assert "merge 1" in lines[-1]
    assert "not made" in lines[-2]


def test_landed_files_of_a_table_that_is_not_made_yet_are_owed(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = place / "tables" / "later.yaml"
    file.write_text(LATER + "landing: {uri: drop, format: ndjson}\n")
    assert looked(capfd)["later"] | {"requests": {}} == {
        "name": "later",
        "uri": "warehouse/later",
        "status": "not_made",
        "last_failure": None,
        "requests": {},
        "pending": {},
        "unknown": {},
        "upkeep_waits_for": None,
    }
    (place / "drop").mkdir()
    for number in range(2):
        (place / "drop" / f"{number}.ndjson").write_text('{"n": 1}\n')
    found = looked(capfd)["later"]
    assert (found["status"], found["requests"]) == ("not_made", {"list": 1})
    assert found["pending"] == {"ingest": {"count": 2, "unit": "files", "bytes": 18}}
    assert main(["status"]) == 0
    (line,) = [each for each in capfd.readouterr().out.splitlines() if each.startswith(" later")]
    assert "ingest 2" in line
    assert main(["metrics"]) == 0
    assert 'tidemark_pending{table="later",step="ingest",unit="files"} 2' in capfd.readouterr().out
    assert main(["report"]) == 0
    assert "ingest 2 files" in (place / "report.html").read_text()

    file.write_text(LATER + "landing: {uri: warehouse/events, format: ndjson}\n")
    (place / "tables" / "events.yaml").unlink()
    assert "contains a table" in looked(capfd, "later")["later"]["unknown"]["ingest"]
    assert main(["ingest", "later"]) == 2


def test_what_upkeep_waits_for_is_said(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_core.base.clock.SystemClock.now_ms", lambda _: round(NOON.timestamp() * 1000))
    file = place / "tables" / "events.yaml"
    file.write_text(f"{file.read_text()}upkeep: {{quiet_hours: '08:00-18:00'}}\n")
    (place / "landing").mkdir()
    (place / "landing" / "1.ndjson").write_text(json.dumps({"time": NOON.isoformat(), "n": 1}))
    found = looked(capfd, "events")
    assert "ingest" in found["events"]["pending"]
    assert found["events"]["upkeep_waits_for"] is None, "nothing holds fresh data back"
    events = Table.open("warehouse/events")
    for number in range(10):
        events.append({"time": NOON - dt.timedelta(days=1), "n": number})
    found = looked(capfd, "events", "web-people")
    assert found["events"]["upkeep_waits_for"] == "quiet_hours 08:00-18:00 of events"
    assert found["web-people"]["upkeep_waits_for"] is None
    file.write_text(file.read_text().replace("quiet_hours: '08:00-18:00'", "priority: 9"))
    (place / "upkeep.yaml").write_text("bytes_per_hour: 10KB\n")
    with open_instance(home(place, {})) as instance:
        tags = bytes_tag({"web-people": 9_500})
        instance.create_run_for_job(Definitions(jobs=[short]).resolve_job_def("short"), tags=tags)
    assert main(["status"]) == 0
    assert "\nevents: upkeep waits: bytes_per_hour of all tables, 9.3 KiB of 9.8 KiB used\n" in capfd.readouterr().out
    (place / "upkeep.yaml").write_text("bytes_per_day: 10KB\n")
    for command in (["status"], ["status", "events"], ["tables"]):
        assert main(command) == 2
        said = capfd.readouterr()
        assert "\n events " in said.out
        assert "upkeep.yaml:1: unknown field `bytes_per_day`" in said.err
    assert main(["metrics"]) == 2
    assert "upkeep.yaml:1: unknown field `bytes_per_day`" in capfd.readouterr().err
    for name in ("upkeep.yaml", "automation.yaml", "alerts.yaml"):
        (place / name).write_text("# nothing yet\n\n")
    assert main(["status"]) == 0, "a file that says nothing is none"


def test_that_nothing_starts_what_is_owed_is_said_with_what_to_do(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    not_on = "the sensor that starts the step is stopped. Switch on upkeep_sensor in `tidemark ui`"
    or_declare = f"{not_on}, or declare `automation: on` and reload the definitions"
    off = "automation is off, so no sensor starts the step. Declare `automation: on` and reload the definitions"

    def said(of_all: str = "") -> list[str | None]:
        (place / "automation.yaml").write_text(of_all)
        found = looked(capfd)
        return [found[name]["upkeep_waits_for"] for name in ("events", "web-people")]

    assert [said(), said("default: on"), said("default: off")] == [[None, or_declare], [None, None], [None, off]]
    with open_instance(home(place, {})) as instance:
        assert [said(), said("default: on")] == [[None, or_declare], [None, None]]
        state = sensor_state("upkeep_sensor", InstigatorStatus.RUNNING)
        instance.add_instigator_state(state)
        assert [said(), said("default: off")] == [[None, None], [None, off]]
        instance.update_instigator_state(state.with_status(InstigatorStatus.STOPPED))
        assert [said(), said("default: on")] == [[None, or_declare], [None, not_on]]
    Table.open("warehouse/events").append({"time": NOON, "n": 2})
    (place / "landing").mkdir()
    (place / "landing" / "1.ndjson").write_text(json.dumps({"time": NOON.isoformat(), "n": 1}))
    (place / "automation.yaml").unlink()
    assert main(["status"]) == 0
    assert f"\nevents, web-people: upkeep waits: {or_declare}\n" in capfd.readouterr().out


@pytest.mark.usefixtures("place")
def test_a_narrow_terminal_leaves_columns_out_and_says_which(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.commands.output._terminal_width", lambda: 80)
    assert main(["status"]) == 0
    *lines, left = capfd.readouterr().out.splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= 80
    assert left.startswith("more columns in a wider terminal: ")
    assert "next compaction" in left


@pytest.mark.usefixtures("place")
def test_a_table_that_is_behind_ends_with_seven_and_one_that_fails_as_its_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = "storage_core.base.clock.SystemClock.now_ms"
    now_ms = Table.open("warehouse/events").snapshot.timestamp + 3_600_001
    with monkeypatch.context() as patched:
        patched.setattr(later, lambda _: now_ms)
        assert looked(capfd, code=7)["events"]["behind"] == ["newest_rows"]
    events = Table.open("warehouse/events")
    events.store.put(keys.version_key(1), b"{", Overwrite())
    found = looked(capfd, code=4)
    assert (found["events"]["status"], found["events"]["error"]) == ("failed", "corrupt")
    assert found["web-people"]["status"] == "ok"
    assert main(["status"]) == 4
    said = capfd.readouterr()
    assert "\nevents: corrupt: " in said.out
    assert "tidemark: corrupt: events: " in said.err
    assert main(["status", "nowhere"]) == 2


def test_a_declaration_that_is_not_sound_silences_no_other_table(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "tables" / "bad.yaml").write_text(LATER.replace("later", "bad") + "window: soon\n")
    problem = "tables/bad.yaml:4: field `window`"
    metrics, report = place / "all.prom", place / "report.html"
    assert set(looked(capfd, code=2)) == {"events", "later", "web-people"}
    assert set(looked(capfd, "events")) == {"events"}
    for command in (
        ["status"],
        ["metrics"],
        ["metrics", "--output", str(metrics)],
        ["report", "--output", str(report)],
    ):
        capfd.readouterr()
        assert main(command) == 2
        assert problem in capfd.readouterr().err
        assert main([*command, "--json"]) == 2
        *_, last = capfd.readouterr().out.splitlines()
        assert json.loads(last)["status"] == "failed"
        assert problem in json.loads(last)["message"]
    assert main(["status"]) == 2
    assert "web-people" in capfd.readouterr().out
    assert all("web-people" in each.read_text() for each in (metrics, report))
    for each in (place / "tables").glob("[!b]*.yaml"):
        each.unlink()
    report.unlink()
    assert main(["report", "--output", str(report)]) == 2
    assert not report.exists()  # nothing is written for a missing table


@pytest.mark.usefixtures("place")
def test_without_a_history_of_dagster_dagster_is_not_loaded(place: Path) -> None:
    code = "import sys; from pipelines.cli import main; assert main(['status']) == 0; print('dagster' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=place,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert ended.stdout.splitlines()[-1] == "False"
    assert not (place / ".dagster").exists()


def test_the_last_failure_of_a_table_is_in_its_line_until_the_asset_was_materialized(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fails = [True]

    @asset(key=AssetKey(["web-people", "merged"]))
    def merged() -> MaterializeResult[Any]:
        if fails[0]:
            raise InvalidInput("no\nsuch\x1b[31m column")
        return MaterializeResult()

    folder = home(place, {})
    with open_instance(folder) as instance:
        failed = materialize([merged], instance=instance, raise_on_error=False)
    assert history_folder(place, {}) == folder
    line = looked(capfd)["web-people"]["last_failure"]
    assert (line["run_id"], line["is_over"]) == (failed.run_id, False)
    assert "no such\\x1b[31m column" in line["message"]
    assert main(["status"]) == 0
    assert "web_people__merged failed: " in capfd.readouterr().out
    fails.clear()
    fails.append(False)
    with open_instance(folder) as instance:
        assert materialize([merged], instance=instance).success
    assert last_failures(folder, ["events", "web-people"])["web-people"].is_over
    assert main(["status"]) == 0
    assert "merged failed" not in capfd.readouterr().out
    (folder / "dagster.yaml").unlink()
    (folder / "dagster.yaml").write_text("storage: {nothing: 1}")
    assert looked(capfd)["web-people"]["last_failure"] is None


def test_an_interrupted_run_says_what_happened_and_what_comes_next(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    @asset(key=AssetKey(["web-people", "merged"]))
    def merged() -> None:
        signal.raise_signal(signal.SIGINT)

    with open_instance(home(place, {})) as instance, pytest.raises(DagsterExecutionInterruptedError):
        materialize([merged], instance=instance)
    assert main(["status"]) == 0
    said = (
        "web_people__merged failed: the work was interrupted, for example because the UI or the machine was stopped. "
    )
    shown = capfd.readouterr().out
    assert re.search(r"^ *web-people +failing ", shown, re.MULTILINE)
    assert f"{said}Committed work is kept, and the next run does the rest\n" in shown
    assert "Dagster" not in shown


def test_a_run_that_fails_before_a_step_is_of_the_table_it_was_asked_for_until_its_assets_were_looked_at(
    place: Path,
) -> None:
    key = AssetKey(["web-people", "merged"])
    request = run_request("merge", "web-people", [key], "two generations")
    job = Definitions(assets=[asset(key=key)(lambda: 1)], jobs=[define_asset_job("merge")]).resolve_job_def("merge")
    folder = home(place, {})
    with open_instance(folder) as instance:
        run = instance.create_run_for_job(job, asset_selection=frozenset([key]), tags=request.tags)
        instance.report_run_failed(run, "its worker died")
        (failure,) = instance.get_records_for_run(run.run_id, of_type=DagsterEventType.RUN_FAILURE).records
        event = failure.event_log_entry.dagster_event
        assert event is not None
        assert failure_alert(run, [event], ["web", "web-people"], at=0).tables == ("web-people",)
        found = last_failures_in(instance, ["web", "web-people"])
        assert [*found] == ["web-people"]
        assert (found["web-people"].step, found["web-people"].is_over) == ("merge", False)
        instance.report_runless_asset_event(AssetObservation(key))
        assert last_failures_in(instance, ["web-people"])["web-people"].is_over


def test_a_failed_step_of_a_run_of_many_tables_is_told_of_its_own_table_alone(instance: DagsterInstance) -> None:
    names = ["web", "web__errors", "web-people"]

    def compacted(name: str) -> AssetsDefinition:
        @asset(key=AssetKey([name, "compacted"]))
        def made() -> MaterializeResult[Any]:
            if name == "web__errors":
                raise InvalidInput("no such column")
            return MaterializeResult()

        return made

    assets = [compacted(name) for name in names]
    assert not materialize(assets, instance=instance, raise_on_error=False).success
    selected = Definitions(assets=assets, jobs=[define_asset_job("compact")]).resolve_job_def("compact")
    keys = [each.key for each in assets]
    assert not selected.execute_in_process(instance=instance, asset_selection=keys, raise_on_error=False).success

    assert {*last_failures_in(instance, names)} == {"web__errors"}
    for name in names:
        assert {*last_failures_in(instance, [name])} == {name} & {"web__errors"}


def test_a_run_that_fails_without_a_step_is_told_of_the_tables_that_it_did_not_do(instance: DagsterInstance) -> None:
    names = ["done", "left"]
    assets = [asset(key=AssetKey([name, "compacted"]))(lambda: 1) for name in names]
    job = Definitions(assets=assets, jobs=[define_asset_job("compact")]).resolve_job_def("compact")
    run = instance.create_run_for_job(job, asset_selection=frozenset(each.key for each in assets))
    ended = DagsterEvent(
        DagsterEventType.STEP_SUCCESS.value,
        "compact",
        step_key="done__compacted",
        event_specific_data=StepSuccessData(duration_ms=1.0),  # type: ignore[no-untyped-call]  # of Dagster
    )
    instance.report_dagster_event(ended, run.run_id)
    instance.report_run_failed(run, "its worker died")
    for name in names:
        assert {*last_failures_in(instance, [name])} == {name} & {"left"}


def test_a_run_that_was_killed_in_its_checks_is_over_and_a_retry_of_these_alone_once_they_were_made(
    instance: DagsterInstance,
) -> None:
    key = AssetKey(["web", "compacted"])
    made = asset(key=key)(lambda: 1)
    check = AssetCheckKey(key, "tw_windows")

    @asset_check(asset=key, name=check.name)
    def checked() -> AssetCheckResult:
        return AssetCheckResult(passed=True)

    defs = Definitions(assets=[made], asset_checks=[checked], jobs=[define_asset_job("compact")])
    job = defs.resolve_job_def("compact")
    run = instance.create_run_for_job(job, asset_selection=frozenset([key]), tags={TABLE: "web"})
    done = StepSuccessData(duration_ms=1.0)  # type: ignore[no-untyped-call]  # of Dagster
    step = DagsterEventType.STEP_SUCCESS.value
    event = DagsterEvent(step, "compact", step_key="web__compacted", event_specific_data=done)
    instance.report_dagster_event(event, run.run_id)
    instance.report_run_failed(run)
    assert last_failures_in(instance, ["web"])["web"].is_over
    steps = ["web__compacted_tw_windows"]
    only_checks = DagsterRun(
        "compact", asset_selection=frozenset([key]), step_keys_to_execute=steps, tags={TABLE: "web"}
    )
    instance.add_run(only_checks)
    instance.report_run_failed(only_checks)
    instance.create_run_for_job(job, asset_selection=frozenset([key]))  # the checks are planned, but have not run
    assert not last_failures_in(instance, ["web"])["web"].is_over
    assert job.execute_in_process(instance=instance).success
    assert last_failures_in(instance, ["web"])["web"].is_over


@pytest.mark.parametrize("name", CHECK_NAMES)
def test_a_run_of_a_check_that_never_began_is_over_once_the_check_was_made(
    instance: DagsterInstance, name: str
) -> None:
    key = AssetKey(["web", "merged"])

    @asset_check(asset=key, name=name)
    def checked() -> AssetCheckResult:
        return AssetCheckResult(passed=True)

    selection = AssetSelection.checks(AssetCheckKey(key, name))
    jobs = [define_asset_job("check", selection)]
    job = Definitions(assets=[asset(key=key)(lambda: 1)], asset_checks=[checked], jobs=jobs).resolve_job_def("check")
    run = DagsterRun("check", asset_check_selection=frozenset([AssetCheckKey(key, name)]), tags={TABLE: "web"})
    instance.add_run(run)
    instance.report_run_failed(run, "Run timed out due to taking longer than 180 seconds to start.")
    assert not last_failures_in(instance, ["web"])["web"].is_over
    assert job.execute_in_process(instance=instance).success
    assert last_failures_in(instance, ["web"])["web"].is_over


def test_of_a_run_that_was_not_started_the_cause_is_told_and_what_comes_next(instance: DagsterInstance) -> None:
    """If Dagster's queue or code server ends a run, the failure event does not contain the cause.

    An earlier event contains the cause.
    """
    key = AssetKey(["web", "compacted"])
    assets = [asset(key=key)(lambda: 1)]
    job = Definitions(assets=assets, jobs=[define_asset_job("compact")]).resolve_job_def("compact")

    def told(message: str, error: str | None) -> str:
        run = instance.create_run_for_job(job, asset_selection=frozenset([key]))
        instance.report_engine_event("Launching the run", run)
        data = EngineEventData.engine_error(SerializableErrorInfo(error, [], "Error")) if error else None
        instance.report_engine_event(message, run, data)
        if error:
            instance.report_engine_event("Process for run exited", run)
        instance.report_run_failed(run)
        instance.report_engine_event("a sensor acted on the failure of the run", run)
        return last_failures_in(instance, ["web"])["web"].message

    stay = ". Committed work is kept, and the next run does the rest"
    assert told("Caught an unrecoverable error", "the server\nends") == f"the server ends{stay}"
    assert told("the process exited with code -9", None) == f"the process exited with code -9{stay}"


@pytest.mark.usefixtures("place")
def test_a_declared_freshness_is_a_policy_on_the_asset_that_brings_rows() -> None:
    events, people = declared(EVENTS + LANDED), declared(PEOPLE)
    policy = freshness_policy(events, "ingested")
    assert policy is not None
    assert policy.fail_window.to_timedelta() == dt.timedelta(hours=1)  # type: ignore[attr-defined]  # of its subclass
    assert freshness_policy(events, "compacted") is None
    assert freshness_policy(people, "merged") is not None
    assert freshness_policy(declared(LATER), "compacted") is None
    with pytest.raises(InvalidInput, match="Dagster requires at least 1m"):
        declared(LATER + "freshness: 30s\n")


def test_the_report_of_all_tables_is_an_asset_with_a_link(place: Path) -> None:
    known = read_tables(place / "tables")
    made_of = Definitions.merge(build_definitions(known, PipesLauncher()), build_report(known, Automation()))
    job = made_of.resolve_job_def("report")
    with DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(instance=instance, asset_selection=[WRITTEN])
        (made,) = done.asset_materializations_for_node("report__written")
    file = report_file(place, {})
    assert (made.metadata["report"].value, made.metadata["path"].value) == (REPORT_PATH, str(file))
    assert made.metadata["bytes"].value == len(file.read_bytes())
    counts = {name: made.metadata[f"tables_{name}"].value for name in ("ok", "behind", "failing", "failed", "not_made")}
    assert counts == {"ok": 2, "behind": 0, "failing": 0, "failed": 0, "not_made": 1}
    assert report_file(place, {REPORT: "/srv/tidemark.html"}) == Path("/srv/tidemark.html")
