"""What Dagster has of one raw log: its assets, and what its schedule asks before it requests a distribution."""

from __future__ import annotations

from dataclasses import replace

from dagster import AssetsDefinition, SkipReason

from assets.distribution import build_distributed_asset
from assets.raw_upkeep import build_raw_asset, raw_steps
from jobs import distribute
from jobs.spark.spark import Spark
from pipelines.raw_logs import DeclaredRawLog
from storage_core.wording import counted


def build_raw_log_assets(raw_log: DeclaredRawLog) -> list[AssetsDefinition]:
    """Return `<raw log>/distributed`, and `raw_healed` and `raw_collected` where the raw log has them."""
    declaration = raw_log.declaration
    upkeep = [build_raw_asset(declaration, step, raw_log.upkeep) for step in raw_steps(declaration)]
    return [build_distributed_asset(declaration, raw_log.request), *upkeep]


def waiting_chunks(raw_log: DeclaredRawLog) -> str | SkipReason:
    """Return why there is something to distribute, or why there is not. Reads listings and offsets only."""
    with Spark() as spark:  # a dry run has no work for it, so none is started
        planned = distribute.run(replace(raw_log.request, dry_run=True), spark)
    chunks, held = planned.details["chunks"], planned.details["held"]
    if isinstance(chunks, int) and chunks:
        return f"{counted(chunks, 'chunk')} waiting"
    return SkipReason("nothing to do" + (f"; held back by missing chunks: {held}" if held else ""))
