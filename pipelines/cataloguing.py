"""What Dagster has of the SQL catalogue: `catalog/refreshed`, its job, and a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from dagster import AssetSelection, Definitions, ScheduleDefinition, define_asset_job

from assets.cataloguing import REFRESHED, build_catalog_asset
from assets.factory import asset_key
from jobs.requests.catalog import CatalogRequest
from pipelines.tables import DeclaredTable

JOB = "catalog_refresh"
CRON = "*/10 * * * *"


def build_catalog(tables: Sequence[DeclaredTable]) -> Definitions:
    """Return the asset of all declared tables, the job `catalog_refresh`, and its schedule, stopped, every 10 minutes.

    A refresh that finds nothing costs three requests of each table, so the schedule asks nothing before.
    """
    declared = [each.declaration for each in tables]
    request = CatalogRequest(tables=tuple(f"{each.name}={each.uri}" for each in declared))
    return Definitions(
        assets=[build_catalog_asset(request, [asset_key(each.name, "checkpointed") for each in declared])],
        jobs=[define_asset_job(JOB, AssetSelection.assets(REFRESHED))],
        schedules=[
            ScheduleDefinition(
                name=f"{JOB}_schedule",
                job_name=JOB,
                cron_schedule=CRON,
                execution_timezone="UTC",
                description="Requests a refresh of the SQL catalogue.",
            )
        ],
    )
