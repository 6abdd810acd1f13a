"""What Dagster has of one raw log: its assets, a job of each, and a schedule of each that runs as declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dagster import AssetSelection, Definitions, RunRequest, ScheduleDefinition, SkipReason, define_asset_job

from assets.distribution import build_distributed_asset, distributed_key
from assets.names import identifier
from assets.raw_upkeep import RawStep, build_raw_asset, raw_key, raw_steps
from jobs import distribute
from jobs.spark.spark import Spark
from pipelines.raw_logs import DeclaredRawLog
from pipelines.run_requests import reason_tags
from storage_core.wording import counted


def build_raw_log(raw_log: DeclaredRawLog) -> Definitions:
    """Return `<raw log>/distributed`, the job `<raw log>_distribute`, and its schedule by the declared cron (UTC).

    So for `raw_healed` and `raw_collected`, where the raw log has them, by its `upkeep_schedule`. The schedules are
    stopped until somebody starts them in the UI. Only that of distribution asks storage first.
    """
    distribution = _distribution(raw_log)
    return Definitions.merge(distribution, *(_upkeep(raw_log, step) for step in raw_steps(raw_log.declaration)))


def _upkeep(raw_log: DeclaredRawLog, step: RawStep) -> Definitions:
    declaration = raw_log.declaration
    name = f"{identifier(declaration.name)}_{step.job}"
    return Definitions(
        assets=[build_raw_asset(declaration, step, raw_log.upkeep)],
        jobs=[define_asset_job(name, AssetSelection.assets(raw_key(declaration.name, step)))],
        schedules=[
            ScheduleDefinition(
                name=f"{name}_schedule",
                job_name=name,
                cron_schedule=declaration.upkeep_schedule,
                execution_timezone="UTC",
                description=f"Requests a run of {step.job}.",
            )
        ],
    )


def _distribution(raw_log: DeclaredRawLog) -> Definitions:
    name = f"{identifier(raw_log.declaration.name)}_distribute"
    return Definitions(
        assets=[build_distributed_asset(raw_log.declaration, raw_log.request)],
        jobs=[define_asset_job(name, AssetSelection.assets(distributed_key(raw_log.declaration.name)))],
        schedules=[
            ScheduleDefinition(
                name=f"{name}_schedule",
                job_name=name,
                cron_schedule=raw_log.declaration.schedule,
                execution_timezone="UTC",
                execution_fn=lambda _context: tick(raw_log),
                description="Requests a run of distribution when closed segments wait.",
            )
        ],
    )


def tick(raw_log: DeclaredRawLog) -> Iterator[RunRequest | SkipReason]:
    """Yield a run when there is something to distribute, or why there is not. Reads listings and offsets only."""
    with Spark() as spark:  # a dry run has no work for it, so none is started
        planned = distribute.run(replace(raw_log.request, dry_run=True), spark)
    chunks, held = planned.details["chunks"], planned.details["held"]
    if isinstance(chunks, int) and chunks:
        yield RunRequest(tags=reason_tags(f"{counted(chunks, 'chunk')} waiting"))
    else:
        yield SkipReason("nothing to do" + (f"; held back by missing chunks: {held}" if held else ""))
