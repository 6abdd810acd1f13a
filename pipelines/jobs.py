"""The Dagster jobs: one per step, over the assets of all tables and raw logs. A run selects those that it is about.

So there are as many for five hundred tables as for one (decision 0160). `check` runs all checks of tables; `backfill`
takes the partitioned assets, so that one ranged run fills and compacts a range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from dagster import (
    AssetCheckKey,
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    DefaultScheduleStatus,
    Definitions,
    JobDefinition,
    ScheduleDefinition,
    define_asset_job,
    in_process_executor,
)
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.job.asset_job import build_asset_job, get_asset_graph_for_job
from dagster._core.definitions.executor_definition import ExecutorDefinition
from dagster._core.definitions.resource_definition import ResourceDefinition
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.checks import check_keys
from assets.distribution import distributed_key
from assets.launcher import JobName
from assets.names import identifier
from assets.raw_upkeep import raw_key, raw_steps
from assets.run_tags import AUDIT_ALL, AUDIT_TAG
from assets.steps import asset_key, steps_of
from storage_core.declaration import TableDeclaration
from storage_core.raw_declaration import RawLogDeclaration

BACKFILL, CHECK = "backfill", "check"


class StepJob(UnresolvedAssetJobDefinition):
    """A job over assets of different partitions, as Dagster's own job of all assets is one.

    `define_asset_job` refuses these: all of them together have no partition to run. Runs of this job have one by the
    assets that they select, and none where they are about all windows.
    """

    def resolve(
        self,
        asset_graph: AssetGraph,
        default_executor_def: ExecutorDefinition | None = None,
        resource_defs: Mapping[str, ResourceDefinition] | None = None,
    ) -> JobDefinition:
        """Return the job."""
        return build_asset_job(
            self.name,
            get_asset_graph_for_job(asset_graph, self.selection, allow_different_partitions_defs=True),
            allow_different_partitions_defs=True,
            resource_defs=resource_defs,
            # A project that names no executor would get a process for each step.
            executor_def=default_executor_def or in_process_executor,
        )


Job = UnresolvedAssetJobDefinition


def build_jobs(
    tables: Sequence[TableDeclaration], raw_logs: Sequence[RawLogDeclaration] = (), *, prefix: str = ""
) -> list[Job]:
    """Return the job of each step that some table or raw log has, `backfill` and `check`.

    And `<table>_backfill` of each table that declares `backfill_job`: Dagster's command for backfills of jobs takes no
    selection. What compacts also audits what it compacted; only `check` reads every file of a table. All names begin
    with the `prefix`.
    """
    jobs: list[Job] = [
        StepJob(name=name, selection=AssetSelection.assets(*keys))
        for name, keys in assets_of_jobs(tables, raw_logs, prefix=prefix).items()
    ]
    jobs += [
        define_asset_job(f"{prefix}{backfill_job_name(each.name)}", AssetSelection.assets(*windowed_assets(each)))
        for each in tables
        if each.backfill_job
    ]
    checks: list[AssetCheckKey] = [key for each in tables for key in check_keys(each)]
    audit = define_asset_job(f"{prefix}{CHECK}", AssetSelection.checks(*checks), tags={AUDIT_TAG: AUDIT_ALL})
    return [*jobs, audit] if checks else jobs


def assets_of_jobs(
    tables: Sequence[TableDeclaration], raw_logs: Sequence[RawLogDeclaration] = (), *, prefix: str = ""
) -> Mapping[str, Sequence[AssetKey]]:
    """Return the assets of the jobs of steps, and of `backfill`, by the name of the job."""
    found: defaultdict[str, list[AssetKey]] = defaultdict(list)
    for table in tables:
        for step in steps_of(table):
            found[step.job].append(asset_key(table.name, step.name))
        if windowed := windowed_assets(table):
            found[BACKFILL] += windowed
    for raw_log in raw_logs:
        found["distribute"].append(distributed_key(raw_log.name))
        for raw_step in raw_steps(raw_log):
            found[raw_step.job].append(raw_key(raw_log.name, raw_step))
    return {f"{prefix}{name}": keys for name, keys in found.items()}


def jobs_of(declaration: TableDeclaration) -> list[JobName]:
    """Return the jobs that the table has assets for, in the order of its steps."""
    return list(dict.fromkeys(step.job for step in steps_of(declaration)))


def step_assets(declaration: TableDeclaration, job: JobName) -> list[AssetKey]:
    """Return the assets of a table that a job keeps: one, or one per index."""
    return [asset_key(declaration.name, step.name) for step in steps_of(declaration) if step.job == job]


def windowed_assets(declaration: TableDeclaration) -> list[AssetKey]:
    """Return the partitioned assets of a table."""
    return [asset_key(declaration.name, step.name) for step in steps_of(declaration) if step.windowed]


def backfill_job_name(table: str) -> str:
    """Return the name of the Dagster job that a table has with `backfill_job`."""
    return f"{identifier(table)}_backfill"


def scheduled(
    made: AssetsDefinition, status: DefaultScheduleStatus, *, job: str, cron: str, description: str
) -> Definitions:
    """Return an asset of all tables with a job of its own, and `<job>_schedule` (UTC), which asks nothing."""
    schedule = ScheduleDefinition(
        name=f"{job}_schedule",
        job_name=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        description=description,
        default_status=status,
    )
    return Definitions(assets=[made], jobs=[define_asset_job(job, AssetSelection.assets(made))], schedules=[schedule])
