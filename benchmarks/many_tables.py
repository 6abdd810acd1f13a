"""The cost of hundreds of tables in Dagster: loading, validation, and ticks of the upkeep sensor.

All times are processor seconds. Requests are the storage requests that the sensor counts. The sensor requests runs, but
no run starts.
"""

from __future__ import annotations

import datetime as dt
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.metrics import Metric, command

if TYPE_CHECKING:
    from pipelines.maintenance.sensor import PendingWorkFinder
    from storage_core.change.declaration import TableDeclaration

FULL, SMALL = 500, 20
IN_DEBT = (20, 100)
PROCESSES_OF_A_RUN = 2  # the process of the run, and the process of its jobs
LOAD_AIM = 10.0
REPOSITORY = Path(__file__).resolve().parents[1]


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield seconds, requests, memory and counts. Each metric contains the number of tables."""
    began = time.process_time()
    from dagster import DagsterInstance, build_sensor_context  # Dagster is measured

    from assets.launcher import PipesLauncher
    from pipelines.catalog import build_definitions
    from pipelines.jobs import assets_of_jobs
    from pipelines.maintenance.sensor import PendingWorkFinder
    from pipelines.tables import read_tables
    from tests.support.many_tables import declare_tables, land_line

    count = SMALL if small else FULL
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder, DagsterInstance.ephemeral() as instance:
        declared = read_tables(declare_tables(Path(folder), count))
        repository = build_definitions(declared, PipesLauncher(declared.root)).get_repository_def()
        repository.load_all_definitions()
        load = time.process_time() - began
        yield Metric(name=f"{count} tables, load", value=load, unit="s", against="10 s", ratio=LOAD_AIM / load, aim=1.0)
        for what, found in (
            ("jobs", [name for name in repository.job_names if not name.startswith("__")]),
            ("schedules", repository.schedule_defs),
            ("sensors", repository.sensor_defs),
        ):
            yield Metric(name=f"{count} tables, {what}", value=len(found), unit="")
        yield Metric(name=f"{count} tables, validate", value=_validated(Path(folder)), unit="s")
        tables = [each.declaration for each in declared.tables]
        upkeep = PendingWorkFinder(tables, assets_of_jobs(tables))

        def tick() -> int:
            with build_sensor_context(instance) as context:
                return len(upkeep.tick(context).run_requests or [])

        tick()  # this tick checks all tables
        yield from _ticked(f"{count} tables, a tick with nothing to do", upkeep, tick)
        landing = [each for each in tables if each.landing]
        for in_debt in sorted({min(each, len(landing)) for each in IN_DEBT}):
            tick()  # this tick checks the logs, so that the next tick checks landing locations
            for each in landing[:in_debt]:
                land_line(each)
            yield from _ticked(f"{count} tables, a tick with debt in {in_debt}", upkeep, tick)
        yield from _checked(tables, Path(folder) / "history")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Metric(name=f"{count} tables, peak memory", value=peak, unit="MiB")


def _ticked(name: str, upkeep: PendingWorkFinder, tick: Callable[[], int]) -> Iterator[Metric]:
    before, began = upkeep.requests, time.process_time()
    runs = tick()
    yield Metric(name=f"{name}, runs asked for", value=runs, unit="")
    yield Metric(name=f"{name}, processes of these runs", value=runs * PROCESSES_OF_A_RUN, unit="")
    yield Metric(name=name, value=time.process_time() - began, unit="s")
    yield Metric(name=f"{name}, requests", value=upkeep.requests - before, unit="")


def _checked(tables: Sequence[TableDeclaration], history: Path) -> Iterator[Metric]:
    """Yield the number of ticks that a check of all tables needs.

    Also yield the time of a schedule's tick if all tables have changed before this tick.
    """
    from dagster import DagsterInstance, build_schedule_context

    from pipelines.automation import Automation
    from pipelines.schedules import CHECKED_AT_ONCE, build_schedules
    from storage_core.table import Table

    found = build_schedules(tables, [], {}, Automation(tables))
    schedule = next(each for each in found if each.name == "check_schedule")
    lines = [schedule.cron_schedule] if isinstance(schedule.cron_schedule, str) else schedule.cron_schedule
    yield Metric(name=f"{len(tables)} tables, ticks of checks", value=len(lines), unit="")
    for each in tables[:CHECKED_AT_ONCE]:
        Table.declare(each)
    history.mkdir()
    at = dt.datetime(2030, 1, 1, 3, 45, tzinfo=dt.UTC)
    with (
        DagsterInstance.local_temp(str(history), {"telemetry": {"enabled": False}}) as instance,
        build_schedule_context(instance, scheduled_execution_time=at) as context,
    ):
        began = time.process_time()
        runs = schedule.evaluate_tick(context).run_requests or []
        yield Metric(name=f"{len(tables)} tables, a tick of checks", value=time.process_time() - began, unit="s")
    yield Metric(name=f"{len(tables)} tables, a tick of checks, runs asked for", value=len(runs), unit="")


def _validated(folder: Path) -> float:
    """Return the processor seconds of `dagster definitions validate`, including its code server."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    program = [str(Path(sys.executable).parent / "dagster"), "definitions", "validate", "-m", "pipelines.definitions"]
    home = folder / "home"
    home.mkdir()
    given = {"TIDEMARK_TABLES": str(folder / "tables"), "DAGSTER_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(program, cwd=folder, env={**os.environ, **given}, capture_output=True, check=True)
    return spent() - before


if __name__ == "__main__":
    sys.exit(command(measure, __doc__.partition("\n")[0]))
