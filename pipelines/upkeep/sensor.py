"""The upkeep sensor: one for all tables. It looks at them in turn, and asks for the runs that are worth most.

A step of a table that waits or works is not asked for again, and one that failed not before it rested
(`pipelines.runs.at_work`); nor is one whose budget is used up (`pipelines.upkeep.budgets`). A tick is bounded in
requests, seconds and runs; the next goes on where it ended. What was seen of idle tables is in memory only: a restart
looks at all of them anew, within the same bounds.
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

from assets.due_runs import OBSERVABLE_JOBS, DueRun, TableInputs, outlook
from assets.launcher import JobName
from assets.run_tags import SENSOR
from assets.steps import asset_key, index_asset
from assets.up_to_date import report_up_to_date
from jobs.reports.failure import Failed
from pipelines.automation import UPKEEP_SENSOR, Automation
from pipelines.jobs import Job, jobs_of, step_assets
from pipelines.runs.at_work import AtWork
from pipelines.runs.spent import spent_bytes
from pipelines.upkeep.budgets import Choice, choose, read_upkeep_of_all
from pipelines.upkeep.declared_now import DeclaredNow, has_same_assets
from pipelines.upkeep.grouping import MOST_TABLES, Group, grouped, request_of
from pipelines.upkeep.seen import Seen
from pipelines.upkeep.wanted import Wanted
from storage_core.clock import Clock, SystemClock
from storage_core.declaration import TableDeclaration
from storage_core.declaration_upkeep import UpkeepOfAllDeclaration
from storage_core.errors import TidemarkError
from storage_core.wording import counted, listed

WHOLE_LOOK_SECONDS = 900
"""An idle table is looked at as a whole after so long: time alone makes some work, such as windows that become cold.

Before it where a look found out when that is, as of the rows of a writer that will be silent for long enough."""


_NOT_DECLARED = "no sound file declares it any more; correct the file, or reload the definitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a tick may do: requests to storage, seconds, and runs of it that wait at once, of so many small tables.

    And how long an hour of the budgets is.
    """

    requests: int = 1_000
    seconds: float = 20
    waiting: int = 20
    tables: int = MOST_TABLES
    hour_seconds: float = 3600


class Upkeep:
    """Looks at tables for one sensor, and remembers of each what it saw, since when steps wait, and what it asked for.

    For one thread. `requests` counts what the looks cost. Each tick reads in `root` what is declared of all tables, and
    which of them are `declared_now`, if that is given.
    """

    def __init__(
        self,
        declarations: Sequence[TableDeclaration],
        assets_of_jobs: Mapping[str, Sequence[AssetKey]],
        clock: Clock | None = None,
        bounds: Bounds | None = None,
        *,
        root: Path | None = None,
        declared_now: DeclaredNow | None = None,
        prefix: str = "",
    ) -> None:
        self._prefix = prefix
        self._declarations = {each.name: each for each in declarations}
        self._assets_of_jobs = assets_of_jobs
        self._clock = clock or SystemClock()
        self._bounds = bounds or Bounds()
        self._began_ms = self._clock.now_ms()
        self._seen: dict[str, Seen] = {}
        self._since_ms: dict[tuple[str, JobName], int] = {}
        self._asked_ms: dict[tuple[str, JobName], int] = {}
        self._not_yet: dict[str, list[JobName]] = {}
        self._reported: dict[str, int] = {}
        self._root = root
        self._declared_now = declared_now
        self._large_since_ms: dict[str, int] = {}
        self.requests = 0

    def tick(self, context: SensorEvaluationContext) -> SensorResult:
        """Return what to run now, the most urgent first, and the table at which the next tick begins.

        Asks for nothing, and says why, while what is declared of all tables is not sound.
        """
        try:
            of_all = read_upkeep_of_all(self._root)
        except TidemarkError as error:
            why = _problem("nothing is asked for", Failed.of(error))
            return SensorResult(cursor=context.cursor, skip_reason=SkipReason(why))
        return self._tick(context, of_all)

    def _tick(self, context: SensorEvaluationContext, of_all: UpkeepOfAllDeclaration) -> SensorResult:
        began, spent = monotonic(), self.requests
        at_work = AtWork.of(context.instance, self._assets_of_jobs, now_ms=self._clock.now_ms())
        wanted: list[Wanted] = []
        problems: list[str] = []
        now = self._declarations if self._declared_now is None else self._declared_now.read()
        if gone := sorted(self._declarations.keys() - now.keys()):
            problems.append(f"{listed(gone)}: {_NOT_DECLARED}")
        names, done = [each for each in self._from(context.cursor) if each in now], 0
        for done, name in enumerate(names, start=1):  # noqa: B007  # how many is asked below
            loaded = self._declarations[name]
            try:
                is_alone = not has_same_assets(now[name], loaded)
                wanted += [replace(each, is_alone=is_alone) for each in self._look(loaded, at_work, context.instance)]
            except TidemarkError as error:
                problems.append(_problem(name, Failed.of(error)))
            if self.requests - spent >= self._bounds.requests or monotonic() - began >= self._bounds.seconds:
                break
        for problem in problems:
            context.log.warning("%s", problem)
        groups, choice = self._groups(context, wanted, at_work, of_all)
        for each in choice.chosen:
            of = (each.declaration.name, each.job)
            self._asked_ms[of] = self._since_ms[of] = self._clock.now_ms()
        looked = f"looked at {done} of {counted(len(names), 'table')}: {choice}"
        own = self._own(at_work.waiting) + self._own(at_work.working)
        said = "; ".join([looked, *([f"{counted(own, 'run')} waiting or at work"] if own else []), *problems])
        if choice.chosen and choice.deferred:  # a tick with runs has no reason to skip, which says it otherwise
            context.log.info("%s", said)
        return SensorResult(
            run_requests=[request_of(group, prefix=self._prefix) for group in groups],
            cursor=names[done % len(names)] if names else None,
            skip_reason=None if groups else SkipReason(said),
        )

    def _groups(
        self,
        context: SensorEvaluationContext,
        wanted: Sequence[Wanted],
        at_work: AtWork,
        of_all: UpkeepOfAllDeclaration,
    ) -> tuple[Sequence[Group], Choice]:
        """The runs that are worth most, within budgets and the room for runs. Bytes are counted where a budget is."""
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
        """How many of the runs the sensor asked for."""
        return sum(run.tags.get(SENSOR) == f"{self._prefix}{UPKEEP_SENSOR}" for run in runs)

    def _from(self, cursor: str | None) -> list[str]:
        """The tables in their order, beginning at the cursor, and going round."""
        names = sorted(self._declarations)
        place = next((number for number, name in enumerate(names) if name >= (cursor or "")), 0)
        return [*names[place:], *names[:place]]

    def _look(self, declaration: TableDeclaration, at_work: AtWork, instance: DagsterInstance) -> list[Wanted]:
        """What the table needs and has no run of; one in which nothing was to do is asked one thing only.

        What was never materialized and needs no run is reported as up to date.
        """
        name = declaration.name
        if not self._may_have_changed(declaration):
            return []
        inputs = TableInputs.of(declaration, self._clock)
        seen = Seen.of(inputs)
        wanted, not_yet, coming_ms, is_idle = [], [], list[int](), True
        for job in (each for each in jobs_of(declaration) if each in OBSERVABLE_JOBS):
            found = outlook(job, inputs)
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

    def _report(self, inputs: TableInputs, at_work: AtWork, instance: DagsterInstance) -> None:
        """Ask the instance once per version of a table, until nothing of it is missing at that version."""
        name, table = inputs.declaration.name, inputs.table
        if table is None or self._reported.get(name) == table.version:
            return
        apart, clock = at_work.busy | at_work.resting, inputs.clock
        if report_up_to_date(instance, inputs.declaration, table, lambda: inputs, apart=apart, clock=clock):
            self._reported[name] = table.version

    def _wanted(self, declaration: TableDeclaration, job: JobName, due: DueRun, at_work: AtWork) -> list[Wanted]:
        name, now_ms = declaration.name, self._clock.now_ms()
        late = (now_ms - self._since_ms.setdefault((name, job), now_ms)) / 1000
        assets = [asset_key(name, index_asset(each)) for each in due.indexes] or step_assets(declaration, job)
        free = at_work.free(assets)
        return [Wanted(declaration=declaration, job=job, due=due, assets=free, late_seconds=late)] if free else []

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

    def _is_time(self, declaration: TableDeclaration, job: JobName) -> bool:
        """Whether the cron line of the step has come since it was asked for last; without one it is always time."""
        cron = getattr(declaration.schedule, job)
        if cron is None:
            return True
        now = dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC)
        last_ms = self._asked_ms.get((declaration.name, job), self._began_ms)
        return get_latest_completed_cron_tick(cron, now, "UTC").timestamp() * 1000 > last_ms


def build_upkeep_sensor(jobs: Sequence[Job], upkeep: Upkeep, automation: Automation) -> SensorDefinition:
    """Return the sensor. `jobs` are those that it may ask for; `upkeep` is of the tables that it looks after."""
    left_out = sum(not automation.looks_after(each) for each in automation.tables)
    return SensorDefinition(
        name=f"{automation.prefix}{UPKEEP_SENSOR}",
        evaluation_fn=upkeep.tick,
        jobs=list(jobs),
        minimum_interval_seconds=automation.interval_seconds,
        default_status=automation.sensor_status,
        description="Looks at all tables in turn and requests the runs that storage asks for, the most urgent first."
        + (f" Automation is off for {counted(left_out, 'table')}." if left_out else ""),
    )


def _requests_of(inputs: TableInputs) -> int:
    """What a whole look cost: that there is a table, what the table's store counts, and its listings by thousands."""
    of_table = sum(inputs.table.store.requests.values()) if inputs.table else 0
    spec = inputs.declaration.landing_spec()
    landed = 1 + len(inputs.landed) // 1000 if spec else 0
    return 1 + of_table + landed + bool(inputs.declaration.primary_key)


def _problem(name: str, failed: Failed) -> str:
    return f"{name}: {failed.kind}: {failed.message}"
