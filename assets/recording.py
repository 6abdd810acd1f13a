"""What Dagster keeps of a run: metrics of what was done, on the asset and on each partition, and never zeros over them.

A run with nothing to do is an observation. Only an asset, or a partition, that was never materialized is so by a run
that found nothing: then it is known to be empty. So plots over time and over partitions show work, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dagster import (
    AssetCheckResult,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterEventType,
    DataVersion,
    MaterializeResult,
    MetadataValue,
)

from assets.launcher import Report
from assets.metadata import entries_in, mapping, metadata_of_partitions
from assets.partitions import Span, is_of_all_windows, partition_key

DATA_VERSION = "dagster/data_version"

# An output without an event of its own, and which lets the steps after it run: what Dagster itself marks outputs with
# whose events were logged before. Without any output these steps would be skipped.
_LOGGED = {"__source_asset_observation__": MetadataValue.bool(True)}

Metadata = Mapping[str, MetadataValue[Any]]


def recorded(
    context: AssetExecutionContext,
    key: AssetKey,
    report: Report,
    metadata: Metadata,
    *,
    span: Span | None,
    checks: Sequence[AssetCheckResult] = (),
) -> MaterializeResult[None]:
    """Record what the run did, and return what the asset returns. `span` are its partitions, None for none.

    Of a run of several partitions, or of all windows of a partitioned asset, each partition shows what was done to its
    window, and an observation without a partition the whole run.
    """
    if span is not None and (context.has_partition_key_range or is_of_all_windows(context)):
        materialize_partitions(context, key, report, span=span)
        context.log_event(AssetObservation(key, description="all partitions of this run together", metadata=metadata))
    elif report["status"] == "nothing_to_do" and not _is_first(context, key):
        partition = context.partition_key if context.has_partition_key else None
        context.log_event(AssetObservation(key, description="nothing to do", metadata=metadata, partition=partition))
    else:
        version = DataVersion(str(report["version"]))
        return MaterializeResult(metadata=metadata, data_version=version, check_results=list(checks))
    return MaterializeResult(metadata=_LOGGED, check_results=list(checks))


def materialize_partitions(
    context: AssetExecutionContext,
    key: AssetKey,
    report: Report,
    *,
    span: Span | None,
    failed: Mapping[str, str] | None = None,
) -> None:
    """Record one by one the partitions in which something was done, or that were asked for and are empty.

    One event each, a row in Dagster's storage; it names the commit of its own window. Those that `failed` have none.
    """
    asked = [] if is_of_all_windows(context) else list(context.partition_keys)
    names = [name for name in asked or _touched(report, span) if name not in (failed or {})]
    known = _materialized(context, key, names) if asked else set()
    tags = {DATA_VERSION: str(report["version"])}
    for name, shown in metadata_of_partitions(report, names).items():
        if name not in known or shown["status"].value == "committed":
            context.log_event(AssetMaterialization(key, partition=name, metadata=shown, tags=tags))


def _touched(report: Report, span: Span | None) -> list[str]:
    """The partitions of the windows that the job changed, without those that have no partition."""
    windows = [each["window"] for each in entries_in(mapping(report["details"]), "by_window")]
    starts = [span.partition_of(window) for window in windows if isinstance(window, int)] if span else []
    return [partition_key(start) for start in sorted({start for start in starts if start is not None})]


def _materialized(context: AssetExecutionContext, key: AssetKey, names: Sequence[str]) -> set[str]:
    kind = DagsterEventType.ASSET_MATERIALIZATION
    return set(context.instance.get_latest_storage_id_by_partition(key, kind, set(names)))


def _is_first(context: AssetExecutionContext, key: AssetKey) -> bool:
    if context.has_partition_key:
        return not _materialized(context, key, [context.partition_key])
    return context.instance.get_latest_materialization_event(key) is None
