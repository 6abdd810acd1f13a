"""The Dagster jobs of a table: one per step, and three that take several assets at once."""

from __future__ import annotations

from dagster import AssetKey, AssetSelection, Definitions, define_asset_job

from assets.checks import AUDIT_ALL, AUDIT_TAG, check_keys
from assets.factory import asset_key, steps_of
from assets.launcher import JobName
from assets.names import identifier
from storage_core.declaration import TableDeclaration


def build_jobs(declaration: TableDeclaration) -> Definitions:
    """Return `<table>_<job>` per step, `<table>_upkeep` (every asset), `<table>_backfill` and `<table>_check`.

    `<table>_backfill` takes the partitioned assets, so that one ranged run fills and compacts a range. What compacts
    also audits what it compacted; only `<table>_check` reads every file of the table.
    """
    table = declaration.name
    steps = steps_of(declaration)
    windowed = [asset_key(table, step.name) for step in steps if step.windowed]
    selections = {
        job_name(table, job): AssetSelection.assets(*step_assets(declaration, job)) for job in jobs_of(declaration)
    }
    selections[f"{identifier(table)}_upkeep"] = AssetSelection.assets(*(asset_key(table, step.name) for step in steps))
    if windowed:
        selections[backfill_job_name(table)] = AssetSelection.assets(*windowed)
    jobs = [define_asset_job(name, selection) for name, selection in selections.items()]
    checks = AssetSelection.checks(*check_keys(declaration))
    return Definitions(jobs=[*jobs, define_asset_job(check_job_name(table), checks, tags={AUDIT_TAG: AUDIT_ALL})])


def jobs_of(declaration: TableDeclaration) -> list[JobName]:
    """Return the jobs that the table has assets for, in the order of its steps."""
    return list(dict.fromkeys(step.job for step in steps_of(declaration)))


def step_assets(declaration: TableDeclaration, job: JobName) -> list[AssetKey]:
    """Return the assets of a table that a job keeps: one, or one per index."""
    return [asset_key(declaration.name, step.name) for step in steps_of(declaration) if step.job == job]


def job_name(table: str, job: JobName) -> str:
    """Return the name of the Dagster job of one step."""
    return f"{identifier(table)}_{job}"


def backfill_job_name(table: str) -> str:
    """Return the name of the Dagster job that fills and compacts a range of windows."""
    return f"{identifier(table)}_backfill"


def check_job_name(table: str) -> str:
    """Return the name of the Dagster job that runs all checks of a table."""
    return f"{identifier(table)}_check"
