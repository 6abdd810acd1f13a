"""Five hundred tables in Dagster: few definitions, few runs, and few requests for tables without pending work."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from dagster import (
    AssetKey,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunRequest,
    ScheduleDefinition,
    build_schedule_context,
    build_sensor_context,
)
from dagster._core.utils import make_new_run_id

from assets.launcher import InProcessLauncher, PipesLauncher
from assets.run_tags import granted_bytes
from jobs.spark.spark import Spark
from pipelines.automation import UPKEEP_SENSOR, Automation
from pipelines.catalog import build_definitions
from pipelines.jobs import assets_of_jobs
from pipelines.maintenance.due_runs import MOST_TABLES, SMALL_BYTES
from pipelines.maintenance.sensor import PendingWorkFinder, TickLimits
from pipelines.runs import ActiveRuns
from pipelines.schedules import CHECKED_AT_ONCE, build_schedules
from pipelines.tables import read_tables
from storage_core.base.clock import SystemClock
from storage_core.change.declaration import TableDeclaration, load
from storage_core.compact.pending_work import find_pieces
from storage_core.data.settings.layout import Mode
from storage_core.store.local import LocalStore
from tests.support.many_tables import declare_tables, land_line
from tests.support.old_regions import make_old
from tidemark import Table

pytestmark = pytest.mark.dagster

TABLES = 500
REQUESTS_OF_A_CHECK = 5
"""The number of requests that open a small table."""


class Hurried:
    """A clock that the test can advance."""

    def __init__(self) -> None:
        self.added_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.added_ms

    def sleep_ms(self, duration_ms: float) -> None:
        raise AssertionError(f"nothing here sleeps {duration_ms} ms")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests of local stores by location. The answers are unchanged."""
    found: Counter[str] = Counter()
    for name in ("get", "head", "list", "browse", "put"):
        asked = getattr(LocalStore, name)

        def counted(store: LocalStore, *given: object, asked: object = asked, **named: object) -> object:
            found[store.uri] += 1
            return asked(store, *given, **named)  # type: ignore[operator]

        monkeypatch.setattr(LocalStore, name, counted)
    return found


def declared(root: Path, count: int) -> list[TableDeclaration]:
    return [each.declaration for each in read_tables(declare_tables(root, count)).tables]


class Ticks:
    """One sensor with consecutive ticks. Each tick starts with the cursor of the previous tick."""

    def __init__(
        self,
        instance: DagsterInstance,
        tables: list[TableDeclaration],
        bounds: TickLimits | None = None,
        root: Path | None = None,
    ) -> None:
        self.clock = Hurried()
        self.requests: list[RunRequest] = []
        self.said = ""
        self._instance = instance
        self._upkeep = PendingWorkFinder(tables, assets_of_jobs(tables), self.clock, bounds, root=root)
        self._cursor: str | None = None

    def tick(self) -> list[str]:
        """Return the requested tables, the most urgent first."""
        return [each for request in self.runs() for each in asked(request)]

    def runs(self) -> list[RunRequest]:
        with build_sensor_context(self._instance, cursor=self._cursor) as context:
            found = self._upkeep.tick(context)
        self._cursor = found.cursor
        self.requests = [*(found.run_requests or ())]
        self.said = str(found.skip_reason.skip_message) if found.skip_reason else ""
        return self.requests


def asked(request: RunRequest) -> list[str]:
    return [f"{key.path[0]} {request.job_name}" for key in request.asset_selection or ()]


def test_five_hundred_tables_have_as_few_jobs_schedules_and_sensors_as_one(tmp_path: Path) -> None:
    found = build_definitions(read_tables(declare_tables(tmp_path, TABLES)), PipesLauncher())
    repository = found.get_repository_def()
    names = [name for name in repository.job_names if not name.startswith("__")]
    assert len(repository.asset_graph.get_all_asset_keys()) > 4 * TABLES
    assert (len(names), len(repository.schedule_defs), len(repository.sensor_defs)) == (11, 3, 2)
    compacted = repository.get_job("compact").asset_layer.executable_asset_keys  # each kind of table has its partitions
    assert len(set(compacted)) == TABLES


def test_an_idle_table_costs_one_request_a_look_and_what_is_new_is_seen_within_three(
    tmp_path: Path, instance: DagsterInstance, requests: Counter[str]
) -> None:
    tables = declared(tmp_path, 20)
    for each in tables[:10]:
        Table.declare(each)
    absent = len(tables[10:])
    ticks = Ticks(instance, tables)
    assert ticks.tick() == []  # a new table has no state yet and waits for its checkpoint time
    for _ in range(4):
        requests.clear()
        assert ticks.tick() == []
        # On a local disk, each absent table needs two more requests to detect that the table does not exist. The probes
        # list no folder of a log.
        assert sum(requests.values()) <= len(tables) + 2 * absent
    landed = next(each for each in tables if each.landing)
    land_line(landed)
    keyed = next(each for each in tables if each.primary_key)
    with Table.open(keyed.uri).writer() as writer:
        writer.put([{"id": "a", "n": 1}])
        writer.flush()
    seen = {name for _ in range(3) for name in ticks.tick()}
    assert seen == {f"{landed.name} ingest", f"{keyed.name} merge"}


def test_rows_of_a_silent_writer_are_merged_once_its_idle_time_is_over_and_no_look_before_asks_more(
    tmp_path: Path, instance: DagsterInstance, requests: Counter[str]
) -> None:
    keyed = next(each for each in declared(tmp_path, 1) if each.primary_key)
    table = Table.declare(keyed).checkpoint()  # otherwise, a checkpoint could become due when the clock advances
    with table.writer() as writer:
        writer.put([{"id": "a", "n": 1}])
    ticks = Ticks(instance, [keyed])
    assert ticks.tick() == []
    idle_ms = table.config.idle_after_ms
    make_old(table, idle_ms // 1000)
    ticks.clock.added_ms = idle_ms - 60_000
    for _ in range(3):
        requests.clear()
        assert ticks.tick() == []
        assert sum(requests.values()) == 1
    ticks.clock.added_ms = idle_ms
    assert f"{keyed.name} merge" in ticks.tick()


def test_a_tick_is_bounded_and_the_next_goes_on_with_the_tables_after_it(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    tables = declared(tmp_path, 12)
    landed = [each for each in tables if each.landing]
    for each in landed:
        land_line(each)
    few = Ticks(instance, tables, TickLimits(requests=8))
    first, second = few.tick(), few.tick()
    assert 0 < len(first) < len(landed)
    assert second
    assert set(first).isdisjoint(second)
    queue = Ticks(instance, tables, TickLimits(waiting=3, tables=2))
    assert [len(asked(each)) for each in queue.runs()] == [2, 2, 2]


def test_small_tables_share_a_run_of_a_step_and_what_is_large_or_urgent_waits_for_no_other(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    tables = [each for each in declared(tmp_path, 130) if each.landing]
    for each in tables:
        land_line(each)
    with (Path(str(tables[0].landing and tables[0].landing.uri)) / "large.ndjson").open("wb") as large:
        large.truncate(2 * SMALL_BYTES)
    Table.declare(tables[1]).append([{"timestamp": dt.datetime.now(dt.UTC), "status": 1, "message": "m"}])
    ticks = Ticks(instance, tables)
    ticks.clock.added_ms = 5_400_000  # the cron lines of the other steps are due now
    runs = ticks.runs()
    assert [(each.job_name, len(asked(each))) for each in runs] == [
        ("ingest", MOST_TABLES),
        ("ingest", len(tables) - 1 - MOST_TABLES),
        ("ingest", 1),
        ("checkpoint", 1),
    ]
    assert [each.tags.get("tidemark/tables") for each in runs] == ["100", "16", None, None]
    assert runs[2].tags["tidemark/table"] == tables[0].name


@pytest.mark.parametrize("in_debt", [20, 100])
def test_debt_in_many_tables_is_one_run(in_debt: int, tmp_path: Path, instance: DagsterInstance) -> None:
    tables = declared(tmp_path, 120)
    ticks = Ticks(instance, tables)
    ticks.runs()
    for each in [each for each in tables if each.landing][:in_debt]:
        land_line(each)
    found = ticks.runs() or ticks.runs()  # every second tick on an idle table checks its landing location
    assert [len(asked(each)) for each in found] == [in_debt]


def test_a_table_that_cannot_be_read_is_named_and_holds_no_other_back(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    tables = declared(tmp_path, 3)
    broken, landed = tables[0], tables[1]
    land_line(landed)
    Table.declare(broken)
    for file in Path(broken.uri).rglob("*"):
        if file.is_file():
            file.write_bytes(b"torn")
    assert Ticks(instance, tables).tick() == [f"{landed.name} ingest"]


def test_a_step_with_a_cron_line_is_asked_for_at_its_times_and_what_waits_for_long_goes_with_fresh_data(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    folder = declare_tables(tmp_path, 2)
    file = folder / "t001.yaml"
    file.write_text(file.read_text() + "schedule: {ingest: '0 0 1 1 *'}\n")
    timed, other = load(file).below(tmp_path), load(folder / "t000.yaml").below(tmp_path)
    land_line(timed)
    ticks = Ticks(instance, [timed, other])
    assert ticks.tick() == []
    ticks.clock.added_ms = 400 * 86_400_000
    assert ticks.tick() == ["t001 ingest"]


def test_budgets_hold_for_a_code_server_that_starts_anew_and_what_waits_is_said(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    tables = [each for each in declared(tmp_path, 4) if not each.primary_key]
    for each in tables:
        table = Table.declare(each)
        for number in range(10):
            table.append([{"timestamp": datetime(2026, 2, 1, tzinfo=UTC), "status": number, "message": "m"}])
    debts = {
        each.name: sum(
            find_pieces(Table.open(each.uri).snapshot, now_ms=SystemClock().now_ms(), mode=Mode.POLICY).first().bytes
        )
        for each in tables
    }
    bounds = tmp_path / "upkeep.yaml"
    bounds.write_text(f"bytes_per_hour: {max(debts.values()) * 3 // 2}\n")
    first = Ticks(instance, tables, root=tmp_path)
    (one,) = first.tick()
    name = one.removesuffix(" compact")
    tags, assets = first.requests[0].tags, first.requests[0].asset_selection
    assert granted_bytes(tags) == {name: debts[name] + debts[name] // 4}
    run = instance.add_run(
        DagsterRun(
            "compact", tags={**tags, "dagster/sensor_name": UPKEEP_SENSOR}, asset_selection=frozenset(assets or ())
        )
    )

    again = Ticks(instance, tables, root=tmp_path)
    assert again.tick() == []
    assert again.said.startswith("checked 3 of 3 tables: 0 steps requested, 2 steps waiting (")
    assert all(f"{other} compact" in again.said for other in debts if other != name)
    assert ": bytes_per_hour of all tables, " in again.said
    assert again.said.endswith(" used); 1 run waiting or running")
    bounds.write_text("runs_at_once: 2\n")
    assert (len(again.tick()), len(again.requests)) == (2, 1), "a change is in force at once"
    instance.delete_run(run.run_id)
    assert (len(again.tick()), len(again.requests)) == (3, 1)
    bounds.write_text("runs: 2\n")
    assert again.tick() == []
    assert again.said.startswith("nothing is asked for: invalid_input: ")
    assert "upkeep.yaml:1: unknown field `runs`" in again.said
    bounds.unlink()
    assert len(again.tick()) == 3, "it goes on where it was"


def check_schedule(tables: Sequence[TableDeclaration]) -> ScheduleDefinition:
    found = build_schedules(tables, [], {}, Automation(tables))
    return next(each for each in found if each.name == "check_schedule")


def test_each_table_is_checked_once_a_night_and_no_tick_opens_more_than_it_has_time_for(
    tmp_path: Path, kept_instance: DagsterInstance, requests: Counter[str]
) -> None:
    tables = declared(tmp_path, 2 * CHECKED_AT_ONCE + 5)
    for each in tables[::4]:
        Table.declare(each)
    schedule = check_schedule(tables)
    assert schedule.cron_schedule == ["45 3 * * *", "50 3 * * *", "55 3 * * *"]
    checked: list[str | None] = []
    for minute in range(45, 60, 5):
        requests.clear()
        at = dt.datetime(2030, 1, 1, 3, minute, tzinfo=dt.UTC)
        with build_schedule_context(kept_instance, scheduled_execution_time=at) as context:
            found = schedule.evaluate_tick(context).run_requests or []
        checked += [each.run_key for each in found]
        looked_at = tables[(minute - 45) // 5 * CHECKED_AT_ONCE :][:CHECKED_AT_ONCE]
        assert set(requests) == {Path(each.uri).as_uri() for each in looked_at}
        assert max(requests.values()) <= REQUESTS_OF_A_CHECK
    assert sorted(map(str, checked)) == [each.name for each in tables[::4]]


def test_as_many_cron_lines_of_checks_are_there_as_a_day_has_room_for(tmp_path: Path) -> None:
    (one,) = declared(tmp_path, 1)
    tables = [one] * (300 * CHECKED_AT_ONCE)
    schedule = check_schedule(tables)
    assert len(set(schedule.cron_schedule)) == len(schedule.cron_schedule) <= 24 * 12


def test_of_many_tables_in_one_run_one_fails_with_one_line_and_only_that_one_rests(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    found = read_tables(declare_tables(tmp_path, 4))
    tables = [each.declaration for each in found.tables]
    broken = Table.declare(tables[2])
    for each in tables:
        Table.declare(each)
    for file in Path(tables[2].uri).rglob("*"):
        if file.is_file():
            file.write_bytes(b"torn")
    with Spark() as spark:  # checkpoints do not start Spark
        job = build_definitions(found, InProcessLauncher(spark)).resolve_job_def("checkpoint")
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    (failure,) = result.get_step_failure_events()
    shown = failure.step_failure_data.user_failure_data
    assert failure.step_key == f"{broken.uri.rpartition('/')[2]}__checkpointed"
    assert shown is not None
    assert str(shown.description).startswith("corrupt: ")
    assert "\n" not in str(shown.description)
    assert [Table.open(each.uri).snapshot.checkpoint_version for each in tables if each is not tables[2]] == [0] * 3
    assert resting(instance, tables) == {AssetKey(["t002", "checkpointed"])}


def resting(
    instance: DagsterInstance, tables: Sequence[TableDeclaration] = (), later_ms: int = 0
) -> frozenset[AssetKey]:
    at_work = ActiveRuns.of(instance, assets_of_jobs(tables), now_ms=SystemClock().now_ms() + later_ms)
    assert not at_work.busy
    return at_work.resting


def test_a_step_rests_no_longer_when_a_later_run_has_done_it(instance: DagsterInstance) -> None:
    one, other = AssetKey(["a", "ingested"]), AssetKey(["b", "ingested"])
    for status, keys in (("FAILURE", {one, other}), ("SUCCESS", {one}), ("SUCCESS", {other}), ("CANCELED", {other})):
        run = DagsterRun("ingest", make_new_run_id(), status=DagsterRunStatus(status), asset_selection=keys)
        instance.add_run(run)
    assert resting(instance) == {other}


def test_a_run_that_failed_before_it_began_rests_for_a_minute_only(instance: DagsterInstance) -> None:
    never, began = AssetKey(["a", "ingested"]), AssetKey(["b", "ingested"])
    for key in (never, began):
        run = DagsterRun("ingest", make_new_run_id(), status=DagsterRunStatus.STARTING, asset_selection={key})
        instance.add_run(run)
        if key == began:
            instance.report_dagster_event(DagsterEvent(DagsterEventType.RUN_START.value, "ingest"), run.run_id)
        instance.report_run_failed(run)
    assert resting(instance) == {never, began}
    assert resting(instance, later_ms=61_000) == {began}
