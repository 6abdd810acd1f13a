"""The schedules: one per step that the upkeep sensor does not ask for, with the cron lines of all tables and raw logs.

At each of its times it requests the runs of those whose line it is, unless one waits or works. Schedules never catch up
on missed ticks and need not: the next tick asks again. All are stopped until somebody starts them in the UI, so that
opening the UI changes nothing, unless a table says that its upkeep starts by itself (`pipelines.automation`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dagster import (
    AssetKey,
    DagsterRunStatus,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
)
from dagster._utils.schedules import get_latest_completed_cron_tick

from assets.checks import check_keys
from assets.distribution import distributed_key
from assets.launcher import JobName
from assets.raw_upkeep import raw_key, raw_steps
from assets.run_tags import PRIORITY, TABLE, VERSION
from jobs.reports.failure import Failed
from pipelines.automation import Automation
from pipelines.distribution import waiting_chunks
from pipelines.jobs import CHECK, step_assets
from pipelines.raw_logs import DeclaredRawLog
from pipelines.runs.at_work import AtWork
from pipelines.runs.requests import USUAL, reason_tags, run_request
from storage_core.declaration import TableDeclaration
from storage_core.errors import TidemarkError
from storage_core.raw_declaration import RawLogDeclaration
from storage_core.table import Table, exists

CHECKED_AT_ONCE = 50
"""Tables that one tick may open: on a remote store that takes seconds, and a tick has a minute."""

_FIRST_CHECK_MINUTE, _CHECK_MINUTES, _DAY_MINUTES = 3 * 60 + 45, 5, 24 * 60
_CHECK_PRIORITY = {PRIORITY: str(USUAL)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What a schedule may request at the times of a cron line: a run of these assets, of a table or raw log.

    `reason` asks storage why there should be one, where that is cheap, or why there is none.
    """

    declaration: TableDeclaration | RawLogDeclaration
    cron: str
    assets: Sequence[AssetKey]
    reason: Callable[[], str | SkipReason]

    @property
    def name(self) -> str:
        """What its runs are called by."""
        return self.declaration.name


def build_schedules(
    tables: Sequence[TableDeclaration],
    raw_logs: Sequence[DeclaredRawLog],
    assets_of_jobs: Mapping[str, Sequence[AssetKey]],
    automation: Automation,
) -> list[ScheduleDefinition]:
    """Return `<job>_schedule` of collections, checks, distribution, and the upkeep of raw logs (UTC), where there are.

    What an idle collection lists would be listed twice if a tick listed it before; so it asks only whether there is a
    table. A table is checked once per version. What automation leaves out is not asked for.
    """
    timed: dict[JobName, list[Timed]] = {"collect": [_collected(each) for each in tables]}
    timed["distribute"] = [_distributed(each) for each in raw_logs]
    for raw_log in raw_logs:
        for step in raw_steps(raw_log.declaration):
            key = raw_key(raw_log.declaration.name, step)
            timed.setdefault(step.job, []).append(
                Timed(
                    declaration=raw_log.declaration,
                    cron=raw_log.declaration.upkeep_schedule,
                    assets=[key],
                    reason=lambda: "as scheduled",
                )
            )
    schedules = [_schedule(job, each, assets_of_jobs, automation) for job, each in timed.items() if each]
    return [*schedules, _checks(automation)] if tables else schedules


def _collected(table: TableDeclaration) -> Timed:
    def reason() -> str | SkipReason:
        return "as scheduled" if exists(table.uri) else SkipReason("the table does not exist yet")

    return Timed(declaration=table, cron=table.schedule.collect, assets=step_assets(table, "collect"), reason=reason)


def _distributed(raw_log: DeclaredRawLog) -> Timed:
    return Timed(
        declaration=raw_log.declaration,
        cron=raw_log.declaration.schedule,
        assets=[distributed_key(raw_log.declaration.name)],
        reason=lambda: waiting_chunks(raw_log),
    )


def _schedule(
    job: JobName,
    timed: Sequence[Timed],
    assets_of_jobs: Mapping[str, Sequence[AssetKey]],
    automation: Automation,
) -> ScheduleDefinition:
    def tick(context: ScheduleEvaluationContext) -> Iterator[RunRequest | SkipReason]:
        now = context.scheduled_execution_time
        at_work = AtWork.of(context.instance, assets_of_jobs, now_ms=int(now.timestamp() * 1000))
        wanted = (each for each in timed if automation.looks_after(each.declaration))
        due = (each for each in wanted if _is_time(each.cron, now) and at_work.free(each.assets))
        yield from _answer(_requests(job, due, automation.prefix))

    crons = sorted({each.cron for each in timed})
    return _definition(job, crons, tick, description=f"Requests {job} runs.", automation=automation)


def _requests(job: JobName, due: Iterable[Timed], prefix: str) -> Iterator[RunRequest | SkipReason]:
    for each in due:
        try:
            reason = each.reason()
        except TidemarkError as error:
            reason = _skip("cannot be read", Failed.of(error))
        if isinstance(reason, SkipReason):
            yield SkipReason(f"{each.name}: {reason.skip_message}")
        else:
            request = run_request(job, each.name, each.assets, reason)
            yield request.with_replaced_attrs(run_key=each.name, job_name=f"{prefix}{job}")


def _answer(found: Iterable[RunRequest | SkipReason]) -> Iterator[RunRequest | SkipReason]:
    """The requests, or one reason why there is none."""
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
    """The schedule with a cron line per so many tables, from 3:45 on, so that no tick opens more of them."""
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
        return _skip(table.name, Failed.of(error))
    tags = {TABLE: table.name, VERSION: version}
    unfinished = [each for each in DagsterRunStatus if each.name not in ("FAILURE", "CANCELED")]
    if context.instance.get_runs_count(RunsFilter(job_name=job, tags=tags, statuses=unfinished)):
        return SkipReason(f"version {version} of {table.name} was checked")
    reason = reason_tags(f"version {version}")
    return RunRequest(table.name, tags={**tags, **reason, **_CHECK_PRIORITY}, asset_check_keys=check_keys(table))


def _skip(name: str, failed: Failed) -> SkipReason:
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
    """Whether the line has come within the minute of a tick, which is of one of the lines of its schedule."""
    return (now - get_latest_completed_cron_tick(cron, now + dt.timedelta(seconds=1), "UTC")).total_seconds() < 60
