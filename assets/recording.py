"""The events that Dagster stores for a run, with metrics of the work, for the asset and for each partition.

A run without work records an observation. A run without work would record zeros as its metrics. An observation keeps
these zeros from replacing the metrics of earlier work. There is one exception. A run without work materializes an asset
or partition that was never materialized. The materialization shows that the asset or partition is empty. Plots over
time and over partitions therefore show only the metrics of runs with work.

If a run of Dagster's own backfills does not materialize a partition, Dagster treats the partition as failed. Runs of
Dagster's own backfills therefore also materialize the partitions that have no work. The materialization of a partition
without work repeats the metrics of earlier work. The metadata contains the id of the run that did this work (decision
0038).

A step without work gets no run, so no run materializes its asset. The upkeep sensor reports this asset with an event
that has no run (decision 0038). The UI therefore does not show the asset as missing. An asset without partitions gets
at most one event without a run. For each window with rows of an asset with partitions, the sensor reports at most one
event without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from dagster import (
    AssetCheckResult,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterEventType,
    DagsterInstance,
    DataVersion,
    EventLogRecord,
    Failure,
    MaterializeResult,
    MetadataValue,
)

from assets.launcher import PartlyDone, Report
from assets.metadata import entries_in, mapping, metadata_of, metadata_of_partitions, windows_failed
from assets.run_tags import BACKFILL_TAG
from assets.steps import Span, TableStep, asset_key, is_of_all_windows, partition_key, span_of, steps_of
from jobs.due_runs import TableInputs, plan_next_run
from storage_core.base.clock import Clock
from storage_core.base.text import listed
from storage_core.change.declaration import TableDeclaration
from storage_core.compact.pending_work import window_starts
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import OBSERVABLE
from storage_core.table import Table

DATA_VERSION = "dagster/data_version"

FAILED_PARTITIONS = "failed_partitions"

METRICS_OF_RUN = "metrics_of_run"
"""Metadata of a repeated materialization. The metadata identifies the run that did the work."""

# This metadata marks an output, and Dagster then logs no other event for the output. Dagster sets
# `__source_asset_observation__` itself on outputs whose events are already logged. Without an output, Dagster would
# skip the next steps.
_LOGGED = {"__source_asset_observation__": MetadataValue.bool(True)}

Metadata = Mapping[str, MetadataValue[Any]]


def record_run(
    context: AssetExecutionContext,
    key: AssetKey,
    report: Report,
    metadata: Metadata,
    *,
    span: Span | None,
    checks: Sequence[AssetCheckResult] = (),
) -> MaterializeResult[None]:
    """Record the work of the run, and return the result of the asset. `span` contains the partitions of the asset.

    A run can have several partitions, or it can process all windows of a partitioned asset. In both cases, each
    partition gets the metrics of its own window. In addition, the run records one observation without a partition. This
    observation contains the metrics of the whole run.
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


def record_part(
    context: AssetExecutionContext, key: AssetKey, partly: PartlyDone, debt_left: int, *, span: Span | None
) -> Failure:
    """Record the finished partitions. Return a failure with a list of the failed partitions.

    A failure always concerns the whole step. This function therefore records the finished partitions before the step
    fails. Only the partitions of failed windows then count as failed in the UI and in backfills.
    """
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


def materialize_partitions(
    context: AssetExecutionContext,
    key: AssetKey,
    report: Report,
    *,
    span: Span | None,
    failed: Mapping[str, str] | None = None,
) -> None:
    """Record the partitions with work, and the requested partitions without rows.

    Each partition gets one event. An event is one row in Dagster's storage. An event contains the commit of the
    partition's own window. Partitions in `failed` get no event. In Dagster's own backfills, every requested partition
    that is not in `failed` gets an event, even if it had no work.
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
    """Return the partitions of the windows that the job changed. Windows outside all partitions are skipped."""
    windows = [each["window"] for each in entries_in(mapping(report["details"]), "by_window")]
    starts = [span.partition_of(window) for window in windows if isinstance(window, int)] if span else []
    return [partition_key(start) for start in sorted({start for start in starts if start is not None})]


def _materialized(context: AssetExecutionContext, key: AssetKey, names: Sequence[str]) -> Mapping[str, int]:
    """Return the id of the newest materialization of each partition in Dagster's storage.

    The result does not contain partitions that were never materialized.
    """
    kind = DagsterEventType.ASSET_MATERIALIZATION
    found: Mapping[str, int] = context.instance.get_latest_storage_id_by_partition(key, kind, set(names))
    return found


def _last(context: AssetExecutionContext, key: AssetKey) -> EventLogRecord | None:
    """Return the newest materialization.

    If the run has a partition, return the newest materialization of this partition.
    """
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
        raise TypeError(f"record {record.storage_id} of Dagster's storage is not a materialization")
    # If an asset never had work, its event has no run. If this materialization is itself a repetition, its metadata
    # already contains the id of the run that did the work.
    of_run = {METRICS_OF_RUN: MetadataValue.dagster_run(record.run_id)} if record.run_id else {}
    tags = {name: value for name, value in (before.tags or {}).items() if name == DATA_VERSION}
    metadata = {**of_run, **before.metadata}
    return AssetMaterialization(key, partition=before.partition, metadata=metadata, tags=tags)


# Assets that are up to date.


MOST_AT_ONCE = 200
"""The largest number of windows that one call reports per asset. The call reports the newest windows first."""


def report_up_to_date(
    instance: DagsterInstance,
    declaration: TableDeclaration,
    table: Table,
    look: Callable[[], TableInputs],
    *,
    apart: Collection[AssetKey] = (),
    clock: Clock | None = None,
) -> bool:
    """Report assets and windows that have no pending work and were never materialized.

    Args:
        instance: The instance. Its storage gets the events.
        declaration: The declaration of the table.
        table: The table at the version that the events contain.
        look: Returns the inputs that show which steps have work. The function is called only if an asset or a window
            was never materialized.
        apart: Assets that are not examined, because a run will materialize these assets soon.
        clock: Decides which windows are partitions (default: the clock of the system).

    Returns:
        True if every examined asset is materialized now.

    Cost:
        One query per asset with windows, and one query for all other assets. The requests of `look`, once.
    """
    span = span_of(declaration, clock)
    steps = {asset_key(declaration.name, each.name): each for each in steps_of(declaration) if each.job in OBSERVABLE}
    known = _ever_materialized(instance, [key for key in steps if key not in apart])
    missing = {
        key: _missing(instance, key, table, is_known=is_known, span=span if steps[key].windowed else None)
        for key, is_known in known.items()
    }
    if not any(missing.values()):
        return True
    inputs = look()
    is_complete = True
    for key, partitions in missing.items():
        ready = partitions - _with_work(steps[key], inputs, table, partitions=partitions, span=span)
        newest = sorted(ready, key=lambda each: each or "", reverse=True)[:MOST_AT_ONCE]
        for partition in newest:
            _report(instance, key, partition, table.version)
        is_complete = is_complete and len(newest) == len(partitions)
    return is_complete


_Partitions = AbstractSet[str | None]
"""Names of partitions. An asset without partitions has None as its only name."""


def _ever_materialized(instance: DagsterInstance, keys: Sequence[AssetKey]) -> dict[AssetKey, bool]:
    """Return for each asset whether it was ever materialized. One query."""
    records = instance.get_asset_records(keys) if keys else []
    found = {each.asset_entry.asset_key for each in records if each.asset_entry.last_materialization_record}
    return {key: key in found for key in keys}


def _missing(
    instance: DagsterInstance, key: AssetKey, table: Table, *, is_known: bool, span: Span | None
) -> _Partitions:
    """Return the partitions that have rows and were never materialized.

    For an asset without partitions, the only name in the result is None.
    """
    if span is None:
        return set() if is_known else {None}
    starts = {span.partition_of(window) for window in window_starts(table.snapshot)}
    names = {partition_key(start) for start in starts if start is not None}
    return names - (instance.get_materialized_partitions(key) if is_known else set())


def _with_work(
    step: TableStep, inputs: TableInputs, table: Table, *, partitions: _Partitions, span: Span | None
) -> _Partitions:
    """Return the partitions for which the step has work now."""
    if step.job == "compact" and step.windowed and span is not None:
        starts = {span.partition_of(each.window_start) for each in table.debt(Mode.POLICY)}
        return {partition_key(start) for start in starts if start is not None}
    due = plan_next_run(step.job, inputs).due
    if due is None or (step.index is not None and step.index not in due.indexes):
        return set()
    return partitions


def _report(instance: DagsterInstance, key: AssetKey, partition: str | None, version: int) -> None:
    instance.report_runless_asset_event(
        AssetMaterialization(
            key,
            partition=partition,
            description=f"up to date at version {version:,}: there is nothing to do",
            metadata={"status": MetadataValue.text("nothing_to_do"), "version": MetadataValue.int(version)},
            tags={DATA_VERSION: str(version)},
        )
    )
