"""What Dagster has of the SQL catalogue: `catalog/refreshed`, its job, and a schedule."""

from __future__ import annotations

from collections.abc import Sequence

from dagster import Definitions

from assets.cataloguing import build_catalog_asset
from assets.steps import asset_key
from jobs.requests.catalog import CatalogRequest
from pipelines.automation import Automation
from pipelines.jobs import scheduled
from pipelines.tables import DeclaredTable

JOB = "catalog_refresh"
CRON = "*/10 * * * *"


def build_catalog(tables: Sequence[DeclaredTable], automation: Automation) -> Definitions:
    """Return the asset of all declared tables, the job `catalog_refresh`, and its schedule, every 10 minutes.

    A refresh that finds nothing costs three requests of each table, so the schedule asks nothing before.
    """
    declared = [each.declaration for each in tables]
    request = CatalogRequest(tables=tuple(f"{each.name}={each.uri}" for each in declared))
    refreshed = build_catalog_asset(request, [asset_key(each.name, "checkpointed") for each in declared])
    return scheduled(
        refreshed,
        automation.schedule_status,
        job=JOB,
        cron=CRON,
        description="Requests a refresh of the SQL catalogue.",
    )
