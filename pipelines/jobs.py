"""The Dagster jobs. There is one job per step, for the assets of all tables and raw logs.

Each run selects assets of its job. The number of tables therefore does not change the number of jobs (decision 0037).
The job `check` runs all checks of all tables. The job `backfill` contains all partitioned assets. One run can therefore
ingest and compact a range of windows.
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
from assets.raw_logs import distributed_key, raw_key, raw_steps
from assets.run_tags import AUDIT_ALL, AUDIT_TAG, identifier
from assets.steps import asset_key, steps_of
from storage_core.change.declaration import RawLogDeclaration, TableDeclaration

BACKFILL, CHECK = "backfill", "check"


class StepJob(UnresolvedAssetJobDefinition):
    """A job for assets with different partitions, like Dagster's own job for all assets.

    `define_asset_job` rejects assets with different partitions, because the assets have no common partition. A run of
    this job has the partition of the assets that it selects. A run over all windows has no partition.
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
            # Without this executor, a project with no executor of its own would start a process for each step.
            executor_def=default_executor_def or in_process_executor,
        )


Job = UnresolvedAssetJobDefinition


def build_jobs(
    tables: Sequence[TableDeclaration], raw_logs: Sequence[RawLogDeclaration] = (), *, prefix: str = ""
) -> list[Job]:
    """Return one job for each step that a table or raw log has, and the jobs `backfill` and `check`.

    A table with `backfill_job` also gets the job `<table>_backfill`. Dagster's backfill command needs this job.
    Dagster's backfill command always runs all assets of a job, because the command cannot select assets. The compaction
    also audits the splits that it wrote. Only `check` reads every file of a table. All job names begin with `prefix`.
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
    """Return the assets of each step's job and of the job `backfill`."""
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


def jobs_of(declaration: TableDeclaration) -> list[str]:
    """Return the jobs with assets of this table, in the order of the table's steps."""
    return list(dict.fromkeys(step.job for step in steps_of(declaration)))


def step_assets(declaration: TableDeclaration, job: str) -> list[AssetKey]:
    """Return the assets of a table in a job. There is one asset, or one asset per index."""
    return [asset_key(declaration.name, step.name) for step in steps_of(declaration) if step.job == job]


def windowed_assets(declaration: TableDeclaration) -> list[AssetKey]:
    """Return the partitioned assets of a table."""
    return [asset_key(declaration.name, step.name) for step in steps_of(declaration) if step.windowed]


def backfill_job_name(table: str) -> str:
    """Return the name of the job for a table that declares `backfill_job`."""
    return f"{identifier(table)}_backfill"


def scheduled(
    made: AssetsDefinition, status: DefaultScheduleStatus, *, job: str, cron: str, description: str
) -> Definitions:
    """Return an asset for all tables, a job with only this asset, and the schedule `<job>_schedule` (UTC).

    The schedule requests the job and does not check for work first.
    """
    schedule = ScheduleDefinition(
        name=f"{job}_schedule",
        job_name=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        description=description,
        default_status=status,
    )
    return Definitions(assets=[made], jobs=[define_asset_job(job, AssetSelection.assets(made))], schedules=[schedule])
