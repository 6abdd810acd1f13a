"""The schedules.

The upkeep sensor does not request some steps. Each of these steps has one schedule. The schedule has the cron lines of
all tables and raw logs.

At each time that a cron line defines, the schedule requests runs for all tables that declare this cron line. If a run
for the same table and step is waiting or running, the schedule does not request another run. Schedules do not make up
for missed ticks, because the next tick requests the work again.

All schedules are stopped until a person starts them in the UI. Opening the UI therefore changes nothing. If the
automation of a table is on, the schedules start by themselves (`pipelines.automation`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterRunStatus,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
)
from dagster._utils.schedules import get_latest_completed_cron_tick

from assets.checks import check_keys
from assets.raw_logs import distributed_key, raw_key, raw_steps
from assets.run_tags import PRIORITY, TABLE, VERSION
from pipelines.automation import Automation
from pipelines.housekeeping import distribution_reason
from pipelines.jobs import CHECK, step_assets
from pipelines.runs import USUAL, ActiveRuns, reason_tags, run_request
from pipelines.tables import DeclaredRawLog
from storage_core.base.errors import TidemarkError
from storage_core.change.declaration import RawLogDeclaration, TableDeclaration
from storage_core.data.steps import TABLE_STEPS, Step
from storage_core.log.job_run import TaskFailure
from storage_core.table import Table, exists

CHECKED_AT_ONCE = 50
"""The largest number of tables that one tick opens.

A tick must end within one minute, and a remote store may need seconds per table.
"""

_FIRST_CHECK_MINUTE, _CHECK_MINUTES, _DAY_MINUTES = 3 * 60 + 45, 5, 24 * 60
_CHECK_PRIORITY = {PRIORITY: str(USUAL)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A run, for assets of one table or raw log, that a schedule may request when its cron line is due.

    `reason` takes Dagster's instance. `reason` returns the reason for a run, or a `SkipReason`. `reason` reads storage
    only if this read is cheap.
    """

    declaration: TableDeclaration | RawLogDeclaration
    cron: str
    assets: Sequence[AssetKey]
    reason: Callable[[DagsterInstance], str | SkipReason]

    @property
    def name(self) -> str:
        """The name of the table or raw log in the requested runs."""
        return self.declaration.name


def build_schedules(
    tables: Sequence[TableDeclaration],
    raw_logs: Sequence[DeclaredRawLog],
    assets_of_jobs: Mapping[str, Sequence[AssetKey]],
    automation: Automation,
) -> list[ScheduleDefinition]:
    """Return `<job>_schedule` (UTC) for each of these: collections, checks, distribution, and raw log maintenance.

    A job has a schedule only if a table or raw log needs it.

    A collection lists the store. If the tick checked for work first, it would list the store a second time. For a
    collection, the tick therefore checks only whether the table exists. Each version of a table is checked once. The
    schedules skip tables without automation.
    """
    timed = {
        step.name: [_timed(each, step) for each in tables if step.is_of(each) and each.schedule.cron_of(step.name)]
        for step in TABLE_STEPS
        if not step.is_observable
    }
    timed["distribute"] = [_distributed(each) for each in raw_logs]
    for raw_log in raw_logs:
        for step in raw_steps(raw_log.declaration):
            key = raw_key(raw_log.declaration.name, step)
            timed.setdefault(step.job, []).append(
                Timed(
                    declaration=raw_log.declaration,
                    cron=raw_log.declaration.upkeep_schedule,
                    assets=[key],
                    reason=lambda _: "as scheduled",
                )
            )
    schedules = [_schedule(job, each, assets_of_jobs, automation) for job, each in timed.items() if each]
    return [*schedules, _checks(automation)] if tables else schedules


def _timed(table: TableDeclaration, step: Step) -> Timed:
    def reason(_: DagsterInstance) -> str | SkipReason:
        return "as scheduled" if exists(table.uri) else SkipReason("the table does not exist yet")

    cron = table.schedule.cron_of(step.name)
    return Timed(declaration=table, cron=cron, assets=step_assets(table, step.name), reason=reason)


def _distributed(raw_log: DeclaredRawLog) -> Timed:
    return Timed(
        declaration=raw_log.declaration,
        cron=raw_log.declaration.schedule,
        assets=[distributed_key(raw_log.declaration.name)],
        reason=lambda instance: distribution_reason(raw_log, instance),
    )


def _schedule(
    job: str,
    timed: Sequence[Timed],
    assets_of_jobs: Mapping[str, Sequence[AssetKey]],
    automation: Automation,
) -> ScheduleDefinition:
    def tick(context: ScheduleEvaluationContext) -> Iterator[RunRequest | SkipReason]:
        now = context.scheduled_execution_time
        at_work = ActiveRuns.of(context.instance, assets_of_jobs, now_ms=int(now.timestamp() * 1000))
        wanted = (each for each in timed if automation.looks_after(each.declaration))
        due = (each for each in wanted if _is_time(each.cron, now) and at_work.free(each.assets))
        yield from _answer(_requests(job, due, automation.prefix, context.instance))

    crons = sorted({each.cron for each in timed})
    return _definition(job, crons, tick, description=f"Requests {job} runs.", automation=automation)


def _requests(
    job: str, due: Iterable[Timed], prefix: str, instance: DagsterInstance
) -> Iterator[RunRequest | SkipReason]:
    for each in due:
        try:
            reason = each.reason(instance)
        except TidemarkError as error:
            reason = _skip("cannot be read", TaskFailure.of(error))
        if isinstance(reason, SkipReason):
            yield SkipReason(f"{each.name}: {reason.skip_message}")
        else:
            request = run_request(job, each.name, each.assets, reason)
            yield request.with_replaced_attrs(run_key=each.name, job_name=f"{prefix}{job}")


def _answer(found: Iterable[RunRequest | SkipReason]) -> Iterator[RunRequest | SkipReason]:
    """Yield the requests. If there are no requests, yield one `SkipReason`."""
    skipped, is_any = [], False
    for each in found:
        if isinstance(each, RunRequest):
            is_any = True
            yield each
        else:
            skipped.append(str(each.skip_message))
    if not is_any:
        yield SkipReason("; ".join(["nothing to do", *skipped]))


def _checks(automation: Automation) -> ScheduleDefinition:
    """Return the schedule of checks.

    There is one cron line per group of tables, and the first is at 3:45. No tick therefore opens more than
    `CHECKED_AT_ONCE` tables.
    """
    tables = [each for each in automation.tables if automation.looks_after(each)]
    size = max(CHECKED_AT_ONCE, -(-len(tables) * _CHECK_MINUTES // _DAY_MINUTES))
    groups = {_check_cron(first // size): tables[first : first + size] for first in range(0, len(tables), size)}

    def tick(context: ScheduleEvaluationContext) -> Iterator[RunRequest | SkipReason]:
        now = context.scheduled_execution_time
        due = (table for cron, group in groups.items() if _is_time(cron, now) for table in group)
        yield from _answer(_check(each, context, f"{automation.prefix}{CHECK}") for each in due)

    description = "Checks each version of a table once, at night."
    crons = list(groups) or [_check_cron(0)]
    return _definition(CHECK, crons, tick, description=description, automation=automation)


def _check_cron(group: int) -> str:
    hour, minute = divmod((_FIRST_CHECK_MINUTE + group * _CHECK_MINUTES) % _DAY_MINUTES, 60)
    return f"{minute} {hour} * * *"


def _check(table: TableDeclaration, context: ScheduleEvaluationContext, job: str) -> RunRequest | SkipReason:
    try:
        version = str(Table.open(table.uri).version)
    except TidemarkError as error:
        return _skip(table.name, TaskFailure.of(error))
    tags = {TABLE: table.name, VERSION: version}
    unfinished = [each for each in DagsterRunStatus if each.name not in ("FAILURE", "CANCELED")]
    if context.instance.get_runs_count(RunsFilter(job_name=job, tags=tags, statuses=unfinished)):
        return SkipReason(f"version {version} of {table.name} was checked")
    reason = reason_tags(f"version {version}")
    return RunRequest(table.name, tags={**tags, **reason, **_CHECK_PRIORITY}, asset_check_keys=check_keys(table))


def _skip(name: str, failed: TaskFailure) -> SkipReason:
    return SkipReason(f"{name}: {failed.kind}: {failed.message}")


def _definition(
    job: str,
    crons: Sequence[str],
    tick: Callable[[ScheduleEvaluationContext], object],
    *,
    description: str,
    automation: Automation,
) -> ScheduleDefinition:
    return ScheduleDefinition(
        name=f"{automation.prefix}{job}_schedule",
        job_name=f"{automation.prefix}{job}",
        cron_schedule=crons[0] if len(crons) == 1 else crons,
        execution_timezone="UTC",
        execution_fn=tick,
        description=description,
        default_status=automation.schedule_status,
    )


def _is_time(cron: str, now: dt.datetime) -> bool:
    """Return whether the cron line is due in the same minute as this tick.

    The tick may also belong to another cron line of the same schedule.
    """
    return (now - get_latest_completed_cron_tick(cron, now + dt.timedelta(seconds=1), "UTC")).total_seconds() < 60
