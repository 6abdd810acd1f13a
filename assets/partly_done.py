"""What a run shows of a job that did a part of its work: which partitions are done, and which failed of what.

A step fails as a whole. So the partitions that are done are recorded one by one before it fails, and only those of the
windows that failed are failed in the UI, in the status of a backfill, and for a run of the failed ones.
"""

from __future__ import annotations

from dagster import AssetExecutionContext, AssetKey, Failure, MetadataValue

from assets.launcher import PartlyDone
from assets.metadata import metadata_of, windows_failed
from assets.partitions import Span, is_of_all_windows, partition_key
from assets.recording import materialize_partitions
from storage_core.wording import listed

FAILED_PARTITIONS = "failed_partitions"


def record_part(
    context: AssetExecutionContext, key: AssetKey, partly: PartlyDone, debt_left: int, *, span: Span | None
) -> Failure:
    """Record the partitions of the run that are done, and return the failure that names the others."""
    report, metadata = partly.report, metadata_of(partly.report, debt_left)
    failed = {partition_key(window): why for window, why in windows_failed(report) if window is not None}
    if span is not None and (context.has_partition_key_range or is_of_all_windows(context)):
        materialize_partitions(context, key, report, span=span, failed=failed)
    return Failure(
        f"{_windows(failed)}{partly.description}",
        {**metadata, **partly.metadata, FAILED_PARTITIONS: MetadataValue.json(failed)},
        partly.allow_retries,
    )


def _windows(failed: dict[str, str]) -> str:
    return f"windows {listed(list(failed))}: " if failed else ""
