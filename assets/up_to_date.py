"""Reports assets that are up to date and were never materialized, so that the UI does not show them as missing.

A step without work gets no run, so no run materializes its asset. The event that this module reports belongs to no run
(decision 0187). An asset without partitions gets at most one event, and so does each window that has rows, per asset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet

from dagster import AssetKey, AssetMaterialization, DagsterInstance, MetadataValue

from assets.due_runs import OBSERVABLE_JOBS, TableInputs, outlook
from assets.partitions import Span, partition_key, span_of
from assets.recording import DATA_VERSION
from assets.steps import Step, asset_key, steps_of
from storage_core.clock import Clock
from storage_core.compaction.next_run import window_starts
from storage_core.compaction.policy import Mode
from storage_core.declaration import TableDeclaration
from storage_core.table import Table

MOST_AT_ONCE = 200
"""The largest number of windows that one call reports per asset. The newest windows come first."""


def report_up_to_date(
    instance: DagsterInstance,
    declaration: TableDeclaration,
    table: Table,
    look: Callable[[], TableInputs],
    *,
    apart: Collection[AssetKey] = (),
    clock: Clock | None = None,
) -> bool:
    """Report the assets and windows of the table that have no work left and were never materialized.

    Args:
        instance: The instance whose storage gets the events.
        declaration: The declaration of the table.
        table: The table at the version that the events name.
        look: Returns what shows which steps have work. Called only if an asset or a window is missing.
        apart: Assets that a run is about to materialize.
        clock: Decides which windows are partitions (default: the clock of the system).

    Returns:
        Whether no asset that was looked at is missing now.

    Cost:
        One query per asset of windows and one for all other assets. Once, the requests of `look`.
    """
    span = span_of(declaration, clock)
    steps = {
        asset_key(declaration.name, each.name): each for each in steps_of(declaration) if each.job in OBSERVABLE_JOBS
    }
    known = _materialized(instance, [key for key in steps if key not in apart])
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
"""The names of partitions. None stands for an asset without partitions."""


def _materialized(instance: DagsterInstance, keys: Sequence[AssetKey]) -> dict[AssetKey, bool]:
    """Whether each of the assets was ever materialized. One query."""
    records = instance.get_asset_records(keys) if keys else []
    found = {each.asset_entry.asset_key for each in records if each.asset_entry.last_materialization_record}
    return {key: key in found for key in keys}


def _missing(
    instance: DagsterInstance, key: AssetKey, table: Table, *, is_known: bool, span: Span | None
) -> _Partitions:
    """The windows that have rows and were never materialized, or the asset itself if it has no partitions."""
    if span is None:
        return set() if is_known else {None}
    starts = {span.partition_of(window) for window in window_starts(table.snapshot)}
    names = {partition_key(start) for start in starts if start is not None}
    return names - (instance.get_materialized_partitions(key) if is_known else set())


def _with_work(
    step: Step, inputs: TableInputs, table: Table, *, partitions: _Partitions, span: Span | None
) -> _Partitions:
    """Those of the partitions for which the step has work now."""
    if step.job == "compact" and step.windowed and span is not None:
        starts = {span.partition_of(each.window_start) for each in table.debt(Mode.POLICY)}
        return {partition_key(start) for start in starts if start is not None}
    due = outlook(step.job, inputs).due
    if due is None or (step.request.index is not None and step.request.index not in due.indexes):
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
