"""What runs already, by the instance: what waits or works is not asked for again, nor what failed a moment ago."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dagster import AssetKey, DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from jobs.running.holder import is_dead
from pipelines.unfinished import process_of

REST_SECONDS = 900
"""A step that failed is asked for again after so long."""

_WAITING = (DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED)
_WORKING = (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
_FAILED = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
_ENDED = (*_FAILED, DagsterRunStatus.SUCCESS)
_LONGEST = dt.timedelta(days=1)
_MOST_ENDED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """The assets of which a run waits or works (`busy`) or the last one failed lately (`resting`), and runs that wait.

    A run whose process is known to be dead holds nothing back, nor does one of a day ago: its end was not recorded.
    """

    busy: frozenset[AssetKey]
    resting: frozenset[AssetKey]
    waiting: tuple[DagsterRun, ...]

    @classmethod
    def of(
        cls, instance: DagsterInstance, assets_of_jobs: Mapping[str, Collection[AssetKey]], *, now_ms: int
    ) -> AtWork:
        """Ask the instance. Two queries, and one for each of the runs that failed lately."""
        now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        unfinished = RunsFilter(statuses=[*_WAITING, *_WORKING], created_after=now - _LONGEST)
        runs = [run for run in instance.get_runs(unfinished) if not is_dead(process_of(run))]
        lately = RunsFilter(statuses=list(_ENDED), updated_after=now - dt.timedelta(seconds=REST_SECONDS))
        ended = instance.get_runs(lately, limit=_MOST_ENDED)
        return cls(
            busy=frozenset(key for run in runs for key in _assets(run, assets_of_jobs)),
            resting=frozenset(_resting(instance, ended, assets_of_jobs)),
            waiting=tuple(run for run in runs if run.status in _WAITING),
        )

    def free(self, keys: Collection[AssetKey]) -> list[AssetKey]:
        """Return those of the assets for which a run may be asked now."""
        return [key for key in keys if key not in self.busy and key not in self.resting]


def _assets(run: DagsterRun, assets_of_jobs: Mapping[str, Collection[AssetKey]]) -> Collection[AssetKey]:
    """What the run is about; one that selects nothing runs the whole job."""
    return run.asset_selection or assets_of_jobs.get(run.job_name, ())


def _resting(
    instance: DagsterInstance, ended: Sequence[DagsterRun], assets_of_jobs: Mapping[str, Collection[AssetKey]]
) -> Iterator[AssetKey]:
    """Those that the newest run of each, which comes first, did not make."""
    known: set[AssetKey] = set()
    for run in ended:
        if run.status in _FAILED:
            yield from set(_failed_assets(instance, run, assets_of_jobs)) - known
        known.update(_assets(run, assets_of_jobs))


def _failed_assets(
    instance: DagsterInstance, run: DagsterRun, assets_of_jobs: Mapping[str, Collection[AssetKey]]
) -> Iterator[AssetKey]:
    """Those whose step failed, or all of them where the run ended without a step that failed."""
    failures = instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_FAILURE)
    steps = {each.dagster_event.step_key for each in failures if each.dagster_event}
    for key in _assets(run, assets_of_jobs):
        if not steps or key.to_python_identifier() in steps:
            yield key
