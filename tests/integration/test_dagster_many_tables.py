"""Five hundred tables in Dagster: few definitions, few requests where nothing is to be done, and few runs elsewhere."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, RunRequest, build_schedule_context, build_sensor_context

from assets.launcher import InProcessLauncher, PipesLauncher
from jobs.spark.spark import Spark
from pipelines.at_work import AtWork
from pipelines.catalog import build_definitions
from pipelines.jobs import assets_of_jobs
from pipelines.schedules import CHECKED_AT_ONCE, build_schedules
from pipelines.tables import read_tables
from pipelines.upkeep import Bounds, Upkeep
from storage_core.clock import SystemClock
from storage_core.declaration import TableDeclaration, load
from storage_core.objectstore.local import LocalStore
from tests.support.many_tables import declare_tables, land_line
from tidemark import Table

pytestmark = pytest.mark.dagster

TABLES = 500
REQUESTS_OF_A_CHECK = 5
"""What opening a small table takes."""


class Hurried:
    """A clock that somebody moves on."""

    def __init__(self) -> None:
        self.added_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.added_ms

    def sleep_ms(self, duration_ms: float) -> None:
        raise AssertionError(f"nothing here sleeps {duration_ms} ms")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What local stores are asked, by place; everything is answered as ever."""
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
    """One sensor, tick after tick, each beginning where the last one ended."""

    def __init__(self, instance: DagsterInstance, tables: list[TableDeclaration], bounds: Bounds | None = None) -> None:
        self.clock = Hurried()
        self._instance = instance
        self._upkeep = Upkeep(tables, assets_of_jobs(tables), self.clock, bounds)
        self._cursor: str | None = None

    def tick(self) -> list[str]:
        """Return what was asked for, the most urgent first."""
        with build_sensor_context(self._instance, cursor=self._cursor) as context:
            found = self._upkeep.tick(context)
        self._cursor = found.cursor
        return [asked(each) for each in found.run_requests or []]


def asked(request: RunRequest) -> str:
    return f"{request.tags['tidemark/table']} {request.job_name}"


def test_five_hundred_tables_have_as_few_jobs_schedules_and_sensors_as_one(tmp_path: Path) -> None:
    found = build_definitions(read_tables(declare_tables(tmp_path, TABLES)), PipesLauncher())
    repository = found.get_repository_def()
    names = [name for name in repository.job_names if not name.startswith("__")]
    assert len(repository.asset_graph.get_all_asset_keys()) > 4 * TABLES
    assert (len(names), len(repository.schedule_defs), len(repository.sensor_defs)) == (10, 3, 2)
    compacted = repository.get_job("compact").asset_layer.executable_asset_keys  # of different partitions
    assert len(set(compacted)) == TABLES


def test_an_idle_table_costs_one_request_a_look_and_what_is_new_is_seen_within_three(
    tmp_path: Path, instance: DagsterInstance, requests: Counter[str]
) -> None:
    tables = declared(tmp_path, 20)
    for each in tables[:10]:
        Table.declare(each)
    ticks = Ticks(instance, tables)
    assert ticks.tick() == []  # what a new table has no state of waits for the time of checkpoints
    for _ in range(4):
        requests.clear()
        assert ticks.tick() == []
        assert sum(requests.values()) <= len(tables)
    landed = next(each for each in tables if each.landing)
    land_line(landed)
    keyed = next(each for each in tables if each.primary_key)
    with Table.open(keyed.uri).writer() as writer:
        writer.put([{"id": "a", "n": 1}])
        writer.flush()
    seen = {name for _ in range(3) for name in ticks.tick()}
    assert seen == {f"{landed.name} ingest", f"{keyed.name} merge"}


def test_a_tick_is_bounded_and_the_next_goes_on_with_the_tables_after_it(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    tables = declared(tmp_path, 12)
    landed = [each for each in tables if each.landing]
    for each in landed:
        land_line(each)
    few = Ticks(instance, tables, Bounds(requests=8))
    first, second = few.tick(), few.tick()
    assert 0 < len(first) < len(landed)
    assert second
    assert set(first).isdisjoint(second)
    queue = Ticks(instance, tables, Bounds(waiting=3))
    assert len(queue.tick()) == 3


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


def test_each_table_is_checked_once_a_night_and_no_tick_opens_more_than_it_has_time_for(
    tmp_path: Path, kept_instance: DagsterInstance, requests: Counter[str]
) -> None:
    tables = declared(tmp_path, 2 * CHECKED_AT_ONCE + 5)
    for each in tables[::4]:
        Table.declare(each)
    (schedule,) = (each for each in build_schedules(tables, [], {}) if each.name == "check_schedule")
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
    (schedule,) = (each for each in build_schedules(tables, [], {}) if each.name == "check_schedule")
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
    with Spark() as spark:  # which checkpoints do not start
        job = build_definitions(found, InProcessLauncher(spark)).resolve_job_def("checkpoint")
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    (failure,) = result.get_step_failure_events()
    shown = failure.step_failure_data.user_failure_data
    assert failure.step_key == f"{broken.uri.rpartition('/')[2]}__checkpointed"
    assert shown is not None
    assert str(shown.description).startswith("corrupt: ")
    assert "\n" not in str(shown.description)
    assert [Table.open(each.uri).snapshot.checkpoint_version for each in tables if each is not tables[2]] == [0] * 3
    at_work = AtWork.of(instance, assets_of_jobs(tables), now_ms=SystemClock().now_ms())
    assert not at_work.busy
    assert at_work.resting == {AssetKey(["t002", "checkpointed"])}
