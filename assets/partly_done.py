"""What a run shows of a job that did a part of its work: which partitions are done, and which failed of what.

A step fails as a whole. So the partitions that are done are recorded one by one before it fails, and only those of the
windows that failed are failed in the UI, in the status of a backfill, and for a run of the failed ones.
"""

from __future__ import annotations

from dagster import AssetExecutionContext, AssetKey, AssetMaterialization, Failure, MetadataValue

from assets.launcher import PartlyDone
from assets.metadata import metadata_of, metadata_of_partitions, windows_failed
from assets.partitions import partition_key
from storage_core.wording import listed

DATA_VERSION = "dagster/data_version"
FAILED_PARTITIONS = "failed_partitions"


def record_part(context: AssetExecutionContext, key: AssetKey, partly: PartlyDone, debt_left: int) -> Failure:
    """Record the partitions of a ranged run that are done, and return the failure that names the others.

    One event per partition that is done, a row in Dagster's storage each; it names the commit of its own window.
    """
    report, metadata = partly.report, metadata_of(partly.report, debt_left)
    failed = {partition_key(window): why for window, why in windows_failed(report) if window is not None}
    if context.has_partition_key_range:
        tags = {DATA_VERSION: str(report["version"])}
        done = [name for name in context.partition_keys if name not in failed]
        for name, shown in metadata_of_partitions(report, done).items():
            context.log_event(AssetMaterialization(key, partition=name, metadata=shown, tags=tags))
    return Failure(
        f"{_windows(failed)}{partly.description}",
        {**metadata, **partly.metadata, FAILED_PARTITIONS: MetadataValue.json(failed)},
        partly.allow_retries,
    )


def _windows(failed: dict[str, str]) -> str:
    return f"windows {listed(list(failed))}: " if failed else ""
