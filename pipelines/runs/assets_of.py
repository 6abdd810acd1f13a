"""Which assets a run is about, and which of them it did not do: of a run of many tables one may have failed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dagster import AssetKey, DagsterEventType, DagsterInstance, DagsterRun

NO_JOBS: Mapping[str, Collection[AssetKey]] = {}


def assets_of(run: DagsterRun, assets_of_jobs: Mapping[str, Collection[AssetKey]] = NO_JOBS) -> Collection[AssetKey]:
    """Return what the run is about: of a retry what it tries again; one that selects nothing runs the whole job."""
    keys = run.asset_selection or assets_of_jobs.get(run.job_name, ())
    steps = run.step_keys_to_execute
    return keys if steps is None else [key for key in keys if key.to_python_identifier() in steps]


def not_done(instance: DagsterInstance, run: DagsterRun, keys: Collection[AssetKey]) -> list[AssetKey]:
    """Return those of the assets whose step did not end well in this run. One query."""
    ended = instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_SUCCESS)
    steps = {each.dagster_event.step_key for each in ended if each.dagster_event}
    return [key for key in keys if key.to_python_identifier() not in steps]
