"""What Dagster has of the report: the asset `report/written` for all tables, its job, and a daily schedule."""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    Definitions,
    MaterializeResult,
    MetadataValue,
    asset,
)

from assets.steps import asset_key
from pipelines.automation import Automation
from pipelines.jobs import scheduled
from pipelines.report.written import REPORT_PATH, report_file, write_report
from pipelines.runs.failed import last_failures_in
from pipelines.status.table_status import State, places_of
from pipelines.tables import DeclaredTables
from tidemark.io_manager.failures import typed_failures

WRITTEN = AssetKey(["report", "written"])
JOB = "report"
CRON = "15 5 * * *"


def build_report(declared: DeclaredTables, automation: Automation) -> Definitions:
    """Return the asset of all declared tables, the job `report`, and its schedule, every day at 05:15 UTC."""
    return scheduled(
        _written(declared),
        automation.schedule_status,
        job=JOB,
        cron=CRON,
        description="Requests the report of all tables.",
    )


def _written(declared: DeclaredTables) -> AssetsDefinition:
    @asset(
        key=WRITTEN,
        deps=[asset_key(each.declaration.name, "checkpointed") for each in declared.tables],
        description="One HTML file about all tables, for a browser.",
        group_name="report",
        kinds={"html"},
    )
    def written(context: AssetExecutionContext) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster recognises the bare class only
        places = places_of(declared)
        file = report_file(declared.root)
        with typed_failures():
            failures = last_failures_in(context.instance, [each.name for each in places])
            done = write_report(file, places, failures=failures)
        counts = {state.value: list(done.states.values()).count(state) for state in State}
        return MaterializeResult(
            metadata={
                "report": MetadataValue.url(REPORT_PATH),
                "path": MetadataValue.path(str(file)),
                "bytes": MetadataValue.int(done.bytes),
                **{f"tables_{state}": MetadataValue.int(count) for state, count in counts.items()},
            }
        )

    return written
