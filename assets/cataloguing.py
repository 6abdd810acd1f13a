"""The asset `catalog/refreshed`: every table in the SQL catalogue (docs/architecture/orchestration.md, "Assets")."""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

from collections.abc import Sequence
from dataclasses import replace

from dagster import AssetExecutionContext, AssetKey, AssetsDefinition, MaterializeResult, ResourceParam, asset

from assets.launcher import Launcher
from assets.metadata import metadata_of
from jobs.requests.catalog import CatalogRequest

REFRESHED = AssetKey(["catalog", "refreshed"])


def build_catalog_asset(request: CatalogRequest, after: Sequence[AssetKey]) -> AssetsDefinition:
    """Return the asset, which follows the last step of each table. It needs the resource `launcher`."""

    @asset(
        key=REFRESHED,
        deps=after,
        description="The SQL catalogue shows the newest version of every table.",
        group_name="catalog",
        kinds={"sql"},
        metadata={"job": "python -m jobs.refresh_catalog"},
    )
    def shown(context: AssetExecutionContext, launcher: ResourceParam[Launcher]) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster recognises the bare class only
        report = launcher.submit(context, "refresh_catalog", replace(request, run_id=context.run.run_id))
        return MaterializeResult(metadata=metadata_of(report))

    return shown
