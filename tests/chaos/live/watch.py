"""Observations during a trial: waiting runs, and the time when the rows of a landed file become readable."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus

from storage_core.table import Table
from tests.chaos.live.producers import Call
from tests.chaos.live.tables import LANDED

WAITING = (DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED)
ENDED = (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
UPKEEP = "upkeep_sensor"


@dataclass(slots=True)
class Watch:
    """The samples of a trial. `twice` contains pairs of runs that waited at the same time for the same asset."""

    folder: Path
    instance: DagsterInstance
    most_waiting: int = 0
    twice: set[tuple[str, str]] = field(default_factory=set)
    visible: dict[tuple[str, int], float] = field(default_factory=dict)
    _tables: dict[str, Table] = field(default_factory=dict)

    def sample(self) -> None:
        """Take one sample of the run queue and of the tables that ingest files."""
        waiting = self.instance.get_runs(RunsFilter(statuses=list(WAITING)))
        self.most_waiting = max(self.most_waiting, len(waiting))
        for one, other in combinations(waiting, 2):
            if both := assets_of(one) & assets_of(other):
                self.twice.add((f"{one.run_id} {one.job_name}", f"{other.run_id} {other.job_name}: {sorted(both)}"))
        for name in LANDED:
            for batch in self._batches(name):
                self.visible.setdefault((name, batch), time.time())

    def _batches(self, name: str) -> Collection[int]:
        """Return the landed files whose rows are readable.

        If there was no commit since the last sample, return no file.
        """
        known = self._tables.get(name)
        version = None if known is None else known.version
        table = self._tables[name] = Table.open(str(self.folder / "warehouse" / name)) if known is None else known
        if table.refresh().version == version:
            return ()
        found: list[int] = table.sql("select distinct batch from t").column("batch").to_pylist()
        return found

    def ticks(self, name: str, since: float = 0) -> list[InstigatorTick]:
        """Return the completed ticks of a sensor or schedule, newest first."""
        kinds = (InstigatorType.SENSOR, InstigatorType.SCHEDULE)
        known = [each for kind in kinds for each in self.instance.all_instigator_state(instigator_type=kind)]
        state = next(each for each in known if each.instigator_name == name)
        found = self.instance.get_ticks(state.instigator_origin_id, state.selector_id, after=since)
        return [each for each in found if each.status is not TickStatus.STARTED]

    def is_quiet(self, since: float) -> bool:
        """Return True if all runs have ended, and no sensor has requested a run since the last end.

        Ticks before `since` do not count.
        """
        records = self.instance.get_run_records()
        if any(each.dagster_run.status not in ENDED for each in records):
            return False
        quiet_since = max(since, *(each.end_time or 0 for each in records))
        return all(is_idle(self.ticks(name, quiet_since)) for name in (UPKEEP, "distribute_schedule"))

    def report(self, landed: Sequence[Call]) -> Iterator[str]:
        """Yield the lines of a report about the trial."""
        runs = self.instance.get_runs()
        records = {each.dagster_run.run_id: each for each in self.instance.get_run_records()}
        yield f"runs: {dict(Counter(f'{run.job_name} {run.status.value}' for run in runs))}"
        works = [each.end_time - each.start_time for each in records.values() if each.start_time and each.end_time]
        waits = [each.start_time - each.create_timestamp.timestamp() for each in records.values() if each.start_time]
        yield f"seconds that runs waited: {spread(waits)}; worked: {spread(works)}; at most {self.most_waiting} waited"
        yield f"runs with nothing to do: {dict(Counter(run.job_name for run in self.idle_runs()))}"
        for name in LANDED:
            seconds = [at - call.at for call in landed if (at := self.visible.get((name, call.number)))]
            yield f"seconds until a landed file was visible in {name}: {spread(seconds)} of {len(landed)} files"

    def idle_runs(self) -> list[DagsterRun]:
        """Return the runs that succeeded without a materialization, because there was no work."""
        done = self.instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.SUCCESS]))
        return [run for run in done if not self._made(run)]

    def _made(self, run: DagsterRun) -> bool:
        return any(
            each.dagster_event is not None and each.dagster_event.is_step_materialization
            for each in self.instance.all_logs(run.run_id)
        )

    def last_of_each(self) -> Mapping[AssetKey, DagsterRun]:
        """Return the last run of each asset that had a run."""
        last: dict[AssetKey, DagsterRun] = {}
        for run in self.instance.get_runs():  # newest first
            for key in assets_of(run):
                last.setdefault(key, run)
        return last


def is_idle(ticks: Sequence[InstigatorTick]) -> bool:
    """Return True if the newest tick requested nothing."""
    return bool(ticks) and ticks[0].status is TickStatus.SKIPPED


def assets_of(run: DagsterRun) -> frozenset[AssetKey]:
    """Return the assets that a run makes, without checks. For a retry, return only the assets of the repeated steps."""
    steps = run.step_keys_to_execute
    made = run.asset_selection or ()
    return frozenset(key for key in made if steps is None or key.to_python_identifier() in steps)


def spread(seconds: Collection[float]) -> str:
    """Return the distribution of durations: minimum, quartiles, maximum."""
    ordered = sorted(seconds)
    if not ordered:
        return "none"
    return " / ".join(f"{ordered[round(part * (len(ordered) - 1) / 4)]:.0f}" for part in range(5))
