"""What Dagster keeps of a run: metrics of what was done, on the asset and on each partition, and never zeros over them.

A run with nothing to do is an observation. Only an asset, or a partition, that was never materialized is so by a run
that found nothing: then it is known to be empty. So plots over time and over partitions show work, and nothing else.
Dagster's own backfills take what their runs do not materialize for failed: these materialize what was done before with
the metrics that it has, and name the run that these are of (decision 0172).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dagster import (
    AssetCheckResult,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterEventType,
    DataVersion,
    EventLogRecord,
    MaterializeResult,
    MetadataValue,
)

from assets.launcher import Report
from assets.metadata import entries_in, mapping, metadata_of_partitions
from assets.partitions import Span, is_of_all_windows, partition_key
from assets.run_tags import BACKFILL_TAG

DATA_VERSION = "dagster/data_version"

METRICS_OF_RUN = "metrics_of_run"
"""The metadata by which a repeated materialization names the run that did the work."""

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
    elif report["status"] == "nothing_to_do" and (before := _last(context, key)) is not None:
        partition = context.partition_key if context.has_partition_key else None
        context.log_event(AssetObservation(key, description="nothing to do", metadata=metadata, partition=partition))
        if BACKFILL_TAG in context.run.tags:
            context.log_event(_repeated(key, before))
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
    Of one of Dagster's backfills there is one for all others that were asked for.
    """
    asked = [] if is_of_all_windows(context) else list(context.partition_keys)
    names = [name for name in asked or _touched(report, span) if name not in (failed or {})]
    known = _materialized(context, key, names) if asked else {}
    tags = {DATA_VERSION: str(report["version"])}
    idle: list[int] = []
    for name, shown in metadata_of_partitions(report, names).items():
        if name not in known or shown["status"].value == "committed":
            context.log_event(AssetMaterialization(key, partition=name, metadata=shown, tags=tags))
        else:
            idle.append(known[name])
    if BACKFILL_TAG in context.run.tags:
        for before in _records(context, key, idle):
            context.log_event(_repeated(key, before))


def _touched(report: Report, span: Span | None) -> list[str]:
    """The partitions of the windows that the job changed, without those that have no partition."""
    windows = [each["window"] for each in entries_in(mapping(report["details"]), "by_window")]
    starts = [span.partition_of(window) for window in windows if isinstance(window, int)] if span else []
    return [partition_key(start) for start in sorted({start for start in starts if start is not None})]


def _materialized(context: AssetExecutionContext, key: AssetKey, names: Sequence[str]) -> Mapping[str, int]:
    """The newest materialization of each of the partitions that have one, by its place in Dagster's storage."""
    kind = DagsterEventType.ASSET_MATERIALIZATION
    found: Mapping[str, int] = context.instance.get_latest_storage_id_by_partition(key, kind, set(names))
    return found


def _last(context: AssetExecutionContext, key: AssetKey) -> EventLogRecord | None:
    """The newest materialization of the asset, or of the partition that the run is about."""
    if context.has_partition_key:
        found = _records(context, key, _materialized(context, key, [context.partition_key]).values())
    else:
        found = context.instance.fetch_materializations(key, limit=1).records
    return next(iter(found), None)


def _records(context: AssetExecutionContext, key: AssetKey, places: Collection[int]) -> Sequence[EventLogRecord]:
    if not places:
        return []
    chosen = AssetRecordsFilter(key, storage_ids=list(places))
    found: Sequence[EventLogRecord] = context.instance.fetch_materializations(
        chosen, limit=len(places), ascending=True
    ).records
    return found


def _repeated(key: AssetKey, record: EventLogRecord) -> AssetMaterialization:
    before = record.asset_materialization
    if before is None:
        raise TypeError(f"record {record.storage_id} of Dagster's storage is no materialization")
    # An asset that was up to date from the beginning has no run, and one that is repeated names the run already.
    of_run = {METRICS_OF_RUN: MetadataValue.dagster_run(record.run_id)} if record.run_id else {}
    tags = {name: value for name, value in (before.tags or {}).items() if name == DATA_VERSION}
    metadata = {**of_run, **before.metadata}
    return AssetMaterialization(key, partition=before.partition, metadata=metadata, tags=tags)
