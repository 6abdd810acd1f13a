"""Partitions whose last run did not end well: what a backfill of what failed does again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from storage_core.errors import Held

_BAD_ENDS = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
_ENDS = (*_BAD_ENDS, DagsterRunStatus.SUCCESS)


def unfinished(instance: DagsterInstance, keys: Iterable[AssetKey], names: Iterable[str]) -> set[str]:
    """Return those of the partitions whose last run of one of the assets failed or was cancelled without making it.

    Three queries per asset, whatever the number of partitions. Raises `Held` when a run has one of them in work.
    """
    wanted = set(names)
    found: set[str] = set()
    for key in keys:
        events = instance.event_log_storage
        attempts = events.get_latest_asset_partition_materialization_attempts_without_materializations(key)
        by_name = {name: run_id for name, (run_id, _) in attempts.items() if name in wanted}
        runs = _runs(instance, set(by_name.values()))
        for name, run_id in sorted(by_name.items()):
            run = runs.get(run_id)
            if run is not None and run.status not in _ENDS:
                raise _in_work(name, run)
            if run is not None and run.status in _BAD_ENDS:
                found.add(name)
    return found


def _runs(instance: DagsterInstance, run_ids: set[str]) -> Mapping[str, DagsterRun]:
    if not run_ids:
        return {}
    return {run.run_id: run for run in instance.get_runs(RunsFilter(run_ids=sorted(run_ids)))}


def _in_work(name: str, run: DagsterRun) -> Held:
    return Held(
        f"{name} is in work in the run {run.run_id}, which is {run.status.value}: whether it fails is not known yet; "
        "wait for its end, or, if its process is dead, mark the run as failed in the UI (`tidemark ui`)",
        partition=name,
        run_id=run.run_id,
    )
