"""What runs already, by the instance: what waits or works is not asked for again, nor what failed a moment ago."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from pipelines.runs.assets_of import assets_of, not_done

REST_SECONDS = 900
"""A step that failed is asked for again after so long."""

LAUNCH_REST_SECONDS = 60
"""So long it is where the run failed before it began, as one whose code server was killed."""

_WAITING = (DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED)
_WORKING = (DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING)
_FAILED = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
_ENDED = (*_FAILED, DagsterRunStatus.SUCCESS)
_LONGEST = dt.timedelta(days=1)
_MOST_ENDED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AtWork:
    """The assets of which a run waits or works (`busy`) or the last one failed lately (`resting`), and these runs.

    An asset whose step ended well in a run is neither, whatever the run does with others. A run whose process is dead
    is at work until `dead_runs_sensor` ends it: then Dagster tries it again by itself. One of a day ago holds nothing
    back: its end was not recorded.
    """

    busy: frozenset[AssetKey]
    resting: frozenset[AssetKey]
    waiting: tuple[DagsterRun, ...]
    working: tuple[DagsterRun, ...]

    @classmethod
    def of(
        cls, instance: DagsterInstance, assets_of_jobs: Mapping[str, Collection[AssetKey]], *, now_ms: int
    ) -> AtWork:
        """Ask the instance. Two queries, and one for each run of several assets that works or that failed lately."""
        now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        unfinished = RunsFilter(statuses=[*_WAITING, *_WORKING], created_after=now - _LONGEST)
        runs = instance.get_runs(unfinished)
        lately = RunsFilter(statuses=list(_ENDED), updated_after=now - dt.timedelta(seconds=REST_SECONDS))
        ended = [each for each in instance.get_run_records(lately, limit=_MOST_ENDED) if not _is_over(each, now)]
        return cls(
            busy=frozenset(key for run in runs for key in _busy(instance, run, assets_of(run, assets_of_jobs))),
            resting=frozenset(_resting(instance, [each.dagster_run for each in ended], assets_of_jobs)),
            waiting=tuple(run for run in runs if run.status in _WAITING),
            working=tuple(run for run in runs if run.status in _WORKING),
        )

    def free(self, keys: Collection[AssetKey]) -> list[AssetKey]:
        """Return those of the assets for which a run may be asked now."""
        return [key for key in keys if key not in self.busy and key not in self.resting]


def _busy(instance: DagsterInstance, run: DagsterRun, keys: Collection[AssetKey]) -> Collection[AssetKey]:
    return not_done(instance, run, keys) if len(keys) > 1 and run.status not in _WAITING else keys


def _is_over(record: RunRecord, now: dt.datetime) -> bool:
    """Whether a run failed before it began, and its rest is over."""
    if record.dagster_run.status is not DagsterRunStatus.FAILURE or record.start_time is not None:
        return False
    return record.update_timestamp.timestamp() + LAUNCH_REST_SECONDS < now.timestamp()


def _resting(
    instance: DagsterInstance, ended: Sequence[DagsterRun], assets_of_jobs: Mapping[str, Collection[AssetKey]]
) -> Iterator[AssetKey]:
    """Those that the newest run of each, which comes first, did not make."""
    known: set[AssetKey] = set()
    for run in ended:
        keys = assets_of(run, assets_of_jobs)
        if run.status in _FAILED:
            yield from set(not_done(instance, run, keys)) - known
        known.update(keys)
