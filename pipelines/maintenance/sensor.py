"""The upkeep sensor, which reads the states of all tables in turn and requests the most urgent runs.

The sensor does not request a step of a table in these cases:

- A run of this step is waiting or running for the table.
- The step failed, and the pause after a failure is not over (`pipelines.runs`).
- The budget is used up (`pipelines.maintenance.budgets`).

Each tick has limits on requests, seconds and runs. The next tick continues at the table where the last tick ended. The
sensor keeps the state of idle tables only in memory. After a restart, the sensor reads all tables again, with the same
limits.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterRun,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
)
from dagster._utils.schedules import get_latest_completed_cron_tick

from assets.recording import report_up_to_date
from assets.run_tags import SENSOR
from assets.steps import asset_key, index_asset
from jobs.due_runs import TableInputs, plan_next_run
from pipelines.automation import UPKEEP_SENSOR, Automation
from pipelines.jobs import Job, jobs_of, step_assets
from pipelines.maintenance.budgets import Choice, choose, read_upkeep_of_all
from pipelines.maintenance.due_runs import (
    MOST_TABLES,
    DeclaredNow,
    Group,
    IdleFingerprint,
    WantedRun,
    grouped,
    has_same_assets,
    request_of,
)
from pipelines.runs import ActiveRuns, spent_bytes
from storage_core.base.clock import Clock, SystemClock
from storage_core.base.errors import TidemarkError
from storage_core.base.text import counted, listed
from storage_core.change.declaration import TableDeclaration
from storage_core.change.declaration_parts import UpkeepOfAllDeclaration
from storage_core.data.steps import OBSERVABLE
from storage_core.log.job_run import DueRun, TaskFailure

WHOLE_LOOK_SECONDS = 900
"""The sensor reads the whole state of an idle table after this number of seconds.

Some work appears only because time passes.

For example, a window becomes cold some time after its end. If the sensor knows when time-dependent work will be due, it
reads the table at that time. For example, the sensor knows when a writer will have been silent for long enough.
"""


_NOT_DECLARED = "no valid file declares the table any more. Correct the file, or reload the definitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class TickLimits:
    """The limits of a tick.

    Attributes:
        requests: The number of requests to storage.
        seconds: The duration.
        waiting: The number of requested runs that may wait at the same time.
        tables: The number of small tables that share a run.
        hour_seconds: The length of an hour of the budgets.
    """

    requests: int = 1_000
    seconds: float = 20
    waiting: int = 20
    tables: int = MOST_TABLES
    hour_seconds: float = 3600


class PendingWorkFinder:
    """Finds the pending work of tables for one sensor.

    Not thread-safe. The object remembers the last state of each table and the requested runs. The object also remembers
    since when each step waits. `requests` counts the requests of this object to storage. If `root` and `declared_now`
    are given, each tick reads the current shared settings and the currently declared tables.
    """

    def __init__(
        self,
        declarations: Sequence[TableDeclaration],
        assets_of_jobs: Mapping[str, Sequence[AssetKey]],
        clock: Clock | None = None,
        bounds: TickLimits | None = None,
        *,
        root: Path | None = None,
        declared_now: DeclaredNow | None = None,
        prefix: str = "",
    ) -> None:
        self._prefix = prefix
        self._declarations = {each.name: each for each in declarations}
        self._assets_of_jobs = assets_of_jobs
        self._clock = clock or SystemClock()
        self._bounds = bounds or TickLimits()
        self._began_ms = self._clock.now_ms()
        self._seen: dict[str, IdleFingerprint] = {}
        self._since_ms: dict[tuple[str, str], int] = {}
        self._asked_ms: dict[tuple[str, str], int] = {}
        self._not_yet: dict[str, list[str]] = {}
        self._reported: dict[str, int] = {}
        self._root = root
        self._declared_now = declared_now
        self._large_since_ms: dict[str, int] = {}
        self.requests = 0

    def tick(self, context: SensorEvaluationContext) -> SensorResult:
        """Return the runs to start, most urgent first. Also return the table at which the next tick begins.

        If the shared settings are invalid, the tick requests nothing and returns the problem.
        """
        try:
            of_all = read_upkeep_of_all(self._root)
        except TidemarkError as error:
            why = _problem("nothing is asked for", TaskFailure.of(error))
            return SensorResult(cursor=context.cursor, skip_reason=SkipReason(why))
        return self._tick(context, of_all)

    def _tick(self, context: SensorEvaluationContext, of_all: UpkeepOfAllDeclaration) -> SensorResult:
        began, spent = monotonic(), self.requests
        at_work = ActiveRuns.of(context.instance, self._assets_of_jobs, now_ms=self._clock.now_ms())
        wanted: list[WantedRun] = []
        problems: list[str] = []
        now = self._declarations if self._declared_now is None else self._declared_now.read()
        if gone := sorted(self._declarations.keys() - now.keys()):
            problems.append(f"{listed(gone)}: {_NOT_DECLARED}")
        names, done = [each for each in self._from(context.cursor) if each in now], 0
        for done, name in enumerate(names, start=1):  # noqa: B007  # `done` is used after the loop
            loaded = self._declarations[name]
            try:
                is_alone = not has_same_assets(now[name], loaded)
                wanted += [replace(each, is_alone=is_alone) for each in self._look(loaded, at_work, context.instance)]
            except TidemarkError as error:
                problems.append(_problem(name, TaskFailure.of(error)))
            if self.requests - spent >= self._bounds.requests or monotonic() - began >= self._bounds.seconds:
                break
        for problem in problems:
            context.log.warning("%s", problem)
        groups, choice = self._groups(context, wanted, at_work, of_all)
        for each in choice.chosen:
            of = (each.declaration.name, each.job)
            self._asked_ms[of] = self._since_ms[of] = self._clock.now_ms()
        looked = f"checked {done} of {counted(len(names), 'table')}: {choice}"
        own = self._own(at_work.waiting) + self._own(at_work.working)
        said = "; ".join([looked, *([f"{counted(own, 'run')} waiting or running"] if own else []), *problems])
        if choice.chosen and choice.deferred:  # if a tick has no runs, its skip reason is this text
            context.log.info("%s", said)
        return SensorResult(
            run_requests=[request_of(group, prefix=self._prefix) for group in groups],
            cursor=names[done % len(names)] if names else None,
            skip_reason=None if groups else SkipReason(said),
        )

    def _groups(
        self,
        context: SensorEvaluationContext,
        wanted: Sequence[WantedRun],
        at_work: ActiveRuns,
        of_all: UpkeepOfAllDeclaration,
    ) -> tuple[Sequence[Group], Choice]:
        """Return the most urgent runs that fit into the budgets and the free slots.

        Used bytes are counted only if there is a budget.
        """
        now_ms = self._clock.now_ms()
        budgets = (of_all, *(each.declaration.upkeep for each in wanted))
        is_counted = wanted and any(each.bytes_per_hour is not None for each in budgets)
        hour = dt.timedelta(seconds=self._bounds.hour_seconds)
        spent = spent_bytes(context.instance, now_ms=now_ms, hour=hour) if is_counted else {}
        choice = choose(wanted, of_all, spent=spent, now_ms=now_ms, since_ms=self._large_since_ms)
        waiting, working = self._own(at_work.waiting), self._own(at_work.working)
        room = self._bounds.waiting - waiting
        at_once = room if of_all.runs_at_once is None else of_all.runs_at_once - waiting - working
        groups = grouped(choice.chosen, most_tables=self._bounds.tables)
        kept = groups[: max(min(room, at_once), 0)]
        return kept, choice.only([each for group in kept for each in group])

    def _own(self, runs: Sequence[DagsterRun]) -> int:
        """Return how many of these runs this sensor requested."""
        return sum(run.tags.get(SENSOR) == f"{self._prefix}{UPKEEP_SENSOR}" for run in runs)

    def _from(self, cursor: str | None) -> list[str]:
        """Return all tables in order, and begin with the table at the cursor."""
        names = sorted(self._declarations)
        place = next((number for number, name in enumerate(names) if name >= (cursor or "")), 0)
        return [*names[place:], *names[:place]]

    def _look(self, declaration: TableDeclaration, at_work: ActiveRuns, instance: DagsterInstance) -> list[WantedRun]:
        """Return the steps that the table needs and that no current run does.

        For an idle table, this costs only one request. If an asset was never materialized and needs no run, it is
        reported as up to date.
        """
        name = declaration.name
        if not self._may_have_changed(declaration):
            return []
        inputs = TableInputs.of(declaration, self._clock)
        seen = IdleFingerprint.of(inputs)
        wanted, not_yet, coming_ms, is_idle = [], [], list[int](), True
        for job in (each for each in jobs_of(declaration) if each in OBSERVABLE):
            found = plan_next_run(job, inputs)
            if found.in_ms is not None:
                coming_ms.append(self._clock.now_ms() + found.in_ms)
            if (due := found.due) is None:
                self._since_ms.pop((name, job), None)
            elif not self._is_time(declaration, job):
                not_yet.append(job)
            else:
                is_idle = False
                wanted += self._wanted(declaration, job, due, at_work)
        self._not_yet[name] = not_yet
        self._report(inputs, at_work, instance)
        self.requests += _requests_of(inputs)
        if is_idle:
            self._seen[name] = replace(seen, due_ms=min(coming_ms, default=None))
        return wanted

    def _report(self, inputs: TableInputs, at_work: ActiveRuns, instance: DagsterInstance) -> None:
        """Report the assets that are up to date.

        If no asset is missing at a version, the instance is not queried again until the next version.
        """
        name, table = inputs.declaration.name, inputs.table
        if table is None or self._reported.get(name) == table.version:
            return
        apart, clock = at_work.busy | at_work.resting, inputs.clock
        if report_up_to_date(instance, inputs.declaration, table, lambda: inputs, apart=apart, clock=clock):
            self._reported[name] = table.version

    def _wanted(self, declaration: TableDeclaration, job: str, due: DueRun, at_work: ActiveRuns) -> list[WantedRun]:
        name, now_ms = declaration.name, self._clock.now_ms()
        late = (now_ms - self._since_ms.setdefault((name, job), now_ms)) / 1000
        assets = [asset_key(name, index_asset(each)) for each in due.indexes] or step_assets(declaration, job)
        free = at_work.free(assets)
        return [WantedRun(declaration=declaration, job=job, due=due, assets=free, late_seconds=late)] if free else []

    def _may_have_changed(self, declaration: TableDeclaration) -> bool:
        seen = self._seen.pop(declaration.name, None)
        if seen is None:
            return True
        whole_ms = seen.at_ms + WHOLE_LOOK_SECONDS * 1000
        is_over = self._clock.now_ms() >= min(whole_ms, seen.due_ms or whole_ms)
        if is_over or any(self._is_time(declaration, job) for job in self._not_yet.get(declaration.name, ())):
            return True
        self.requests += 1
        is_same, later = seen.is_same(declaration)
        if is_same:
            self._seen[declaration.name] = later
        return not is_same

    def _is_time(self, declaration: TableDeclaration, job: str) -> bool:
        """Return whether the cron line of the step was due after the last request.

        Without a cron line, the step is always due.
        """
        cron = declaration.schedule.cron_of(job)
        if not cron:
            return True
        now = dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC)
        last_ms = self._asked_ms.get((declaration.name, job), self._began_ms)
        return get_latest_completed_cron_tick(cron, now, "UTC").timestamp() * 1000 > last_ms


def build_upkeep_sensor(jobs: Sequence[Job], upkeep: PendingWorkFinder, automation: Automation) -> SensorDefinition:
    """Return the sensor, which may request runs of `jobs` and maintains the tables of `upkeep`."""
    left_out = sum(not automation.looks_after(each) for each in automation.tables)
    return SensorDefinition(
        name=f"{automation.prefix}{UPKEEP_SENSOR}",
        evaluation_fn=upkeep.tick,
        jobs=list(jobs),
        minimum_interval_seconds=automation.interval_seconds,
        default_status=automation.sensor_status,
        description="Checks all tables in turn and requests the runs for their pending work, the most urgent first."
        + (f" Automation is off for {counted(left_out, 'table')}." if left_out else ""),
    )


def _requests_of(inputs: TableInputs) -> int:
    """Return the number of requests to read the whole state.

    The number of requests includes the request for the table's version, all requests to its store, and the listings.
    """
    of_table = sum(inputs.table.store.requests.values()) if inputs.table else 0
    spec = inputs.declaration.landing_spec()
    landed = 1 + len(inputs.landed) // 1000 if spec else 0
    return 1 + of_table + landed + bool(inputs.declaration.primary_key)


def _problem(name: str, failed: TaskFailure) -> str:
    return f"{name}: {failed.kind}: {failed.message}"
