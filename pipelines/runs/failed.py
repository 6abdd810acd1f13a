"""The last failure of each table, from Dagster's history where there is one; without one Dagster is not loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assets.names import identifier
from assets.run_tags import TABLE
from pipelines.environment import DAGSTER_HOME
from storage_core.foreign_text import shortened

if TYPE_CHECKING:
    from dagster import AssetKey, DagsterEvent, DagsterInstance, DagsterRun, RunRecord

MOST_RUNS = 50
"""So many of the newest failed runs are looked into."""
_LONGEST_MESSAGE = 400
_INTERRUPTIONS = ("DagsterExecutionInterruptedError", "KeyboardInterrupt")
_ENDED_BY_DAGSTER = "This run has been marked as failed from outside the execution context"
_ASSET = re.compile(r"[a-z]+|index_.+")
"""The names of the assets of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFailure:
    """The newest failure of a step of a table: when (ms), in which run, and what it said.

    `is_over` where the asset was materialized or observed since, which a run with nothing to do does, or what failed
    were checks, and they were made again.
    """

    at: int
    run_id: str
    step: str
    message: str
    is_over: bool


def history_folder(root: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of Dagster's history for the declarations in `root`, or None where there is none yet."""
    folder = Path(environment.get(DAGSTER_HOME) or root / ".dagster")
    return folder if (folder / "dagster.yaml").exists() else None


def last_failures(folder: Path, tables: Collection[str]) -> dict[str, LastFailure]:
    """Return the newest failure of each table that has one among the `MOST_RUNS` newest failed runs.

    A query for the runs and one for each of them until every table has one, and one per failure. Raises what Dagster
    raises where its storage cannot be read.
    """
    from pipelines.instance import open_instance

    with open_instance(folder) as instance:
        return last_failures_in(instance, tables)


def last_failures_in(instance: DagsterInstance, tables: Collection[str]) -> dict[str, LastFailure]:
    """Return what `last_failures` does, of an instance that is open."""
    found: dict[str, LastFailure] = {}
    for record in _failed_runs(instance):
        if len(found) == len(tables):
            break
        for table, failure in _failures_of(instance, record, tables).items():
            found.setdefault(table, failure)
    return found


def _failed_runs(instance: DagsterInstance) -> list[RunRecord]:
    from dagster import DagsterRunStatus, RunsFilter

    return list(instance.get_run_records(RunsFilter(statuses=[DagsterRunStatus.FAILURE]), limit=MOST_RUNS))


def _failures_of(instance: DagsterInstance, record: RunRecord, tables: Collection[str]) -> dict[str, LastFailure]:
    """Of each table the failed step of this run; where none failed, the job, of those whose steps did not end well."""
    from dagster import DagsterEventType

    run = record.dagster_run
    kinds = {DagsterEventType.STEP_FAILURE, DagsterEventType.RUN_FAILURE}
    records = instance.get_records_for_run(run.run_id, of_type=kinds).records
    events = [(each.timestamp, each.event_log_entry.dagster_event) for each in records]
    has_failed_step = any(event and event.step_key for _, event in events)
    found: dict[str, LastFailure] = {}
    for at, event in events:
        if event is None or (has_failed_step and event.step_key is None):
            continue
        for table, assets in _failed_by(instance, run, event.step_key, tables).items():
            over = _is_over(instance, event.step_key, assets, at) if assets else _is_nothing_left(instance, run, at)
            found[table] = LastFailure(
                at=round(at * 1000),
                run_id=run.run_id,
                step=event.step_key or run.job_name,
                message=_message_of(instance, run, event, at),
                is_over=over,
            )
    return found


def _failed_by(
    instance: DagsterInstance, run: DagsterRun, step: str | None, tables: Collection[str]
) -> dict[str, list[AssetKey]]:
    """The tables of a failed step, or of a run that failed without one, each with the assets that were not done."""
    from pipelines.runs.assets_of import assets_of, not_done

    if step is not None:
        key = _asset_of(run, step, tables)
        return {key.path[0]: [key]} if key and key.path[0] in tables else {}
    undone = not_done(instance, run, assets_of(run))
    found = {table: [key for key in undone if key.path[0] == table] for table in tables_of(run, None, tables)}
    return {table: keys for table, keys in found.items() if keys or len(_about(run)) == 1}


def _is_over(instance: DagsterInstance, step: str | None, assets: Sequence[AssetKey], at: float) -> bool:
    """Whether what a failure left undone was done since; of a step of checks, whether they were made again."""
    is_of_checks = step is not None and step != assets[0].to_python_identifier()
    done_since = _is_checked_since if is_of_checks else _is_done_since
    return all(done_since(instance, key, at) for key in assets)


def _is_nothing_left(instance: DagsterInstance, run: DagsterRun, at: float) -> bool:
    """Whether a run that failed without a step had made all its assets; of a run of checks alone, as `_is_over`."""
    from pipelines.runs.assets_of import assets_of

    checked = {*(run.asset_selection or ()), *(each.asset_key for each in run.asset_check_selection or ())}
    return bool(assets_of(run)) or (bool(checked) and all(_is_checked_since(instance, key, at) for key in checked))


def _is_checked_since(instance: DagsterInstance, key: AssetKey, at: float) -> bool:
    from dagster import AssetCheckKey, DagsterEventType

    from assets.checks import AUDITED

    checks = [AssetCheckKey(key, name) for name, _ in AUDITED.values()]
    known = instance.event_log_storage.get_latest_asset_check_execution_by_key(checks).values()
    events = [each.event for each in known if each.event is not None]  # of a run that waits: that it is planned
    made = DagsterEventType.ASSET_CHECK_EVALUATION
    return any(each.dagster_event_type is made and each.timestamp > at for each in events)


def _is_done_since(instance: DagsterInstance, key: AssetKey, at: float) -> bool:
    made = instance.get_latest_materialization_event(key)
    observed = instance.fetch_observations(key, limit=1).records
    return max(made.timestamp if made else 0, *(each.timestamp for each in observed), 0) > at


def _message_of(instance: DagsterInstance, run: DagsterRun, event: DagsterEvent, at: float) -> str:
    """What `said_by` does; of a run that Dagster ended by itself what it noted until then: an error, or the last."""
    from dagster import DagsterEventType

    from assets.launcher import COMMITS_STAY

    if not (event.message or "").startswith(_ENDED_BY_DAGSTER):
        return said_by(event)
    noted = instance.all_logs(run.run_id, of_type=DagsterEventType.ENGINE_EVENT)
    causes = [each.dagster_event for each in noted if each.dagster_event and each.timestamp <= at]
    errors = [each for each in causes if getattr(each.event_specific_data, "error", None)]
    return f"{said_by((errors or causes or [event])[-1]).removesuffix('.')}; {COMMITS_STAY}"


def said_by(event: DagsterEvent) -> str:
    """Return what a failed step or run said, in one line of bounded length: of an error its first cause."""
    data = event.event_specific_data
    if described := getattr(getattr(data, "user_failure_data", None), "description", None):
        return _line(str(described))
    error = getattr(data, "error", None)
    while error is not None and error.cause is not None:
        error = error.cause
    if error is not None and error.cls_name in _INTERRUPTIONS:
        from pipelines.runs.dead import INTERRUPTED

        return INTERRUPTED
    return _line(event.message or "" if error is None else error.message)


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), _LONGEST_MESSAGE)


def tables_of(run: DagsterRun, step: str | None, tables: Collection[str]) -> list[str]:
    """Return the table that a failed step is of; of a run that failed without one, those that it was asked for."""
    if step is not None:
        key = _asset_of(run, step, tables)
        if key is not None or TABLE not in run.tags:
            return [each for each in tables if key and each == key.path[0]]
    about = _about(run)
    return [each for each in tables if each in about]


def _about(run: DagsterRun) -> Collection[str]:
    from pipelines.runs.assets_of import assets_of

    return {run.tags[TABLE]} if TABLE in run.tags else {key.path[0] for key in assets_of(run)}


def _asset_of(run: DagsterRun, step: str, tables: Collection[str]) -> AssetKey | None:
    """The asset that a step is for, by Dagster's names of steps: one of the run's, or else one of the tables.

    Names are matched as a whole, the longest table first: `web__errors__compacted` is of `web__errors`, not of `web`.
    """
    from dagster import AssetKey

    for key in run.asset_selection or ():
        if step == key.to_python_identifier():
            return key
    for table in sorted({key.path[0] for key in run.asset_selection or ()} | {*tables}, key=len, reverse=True):
        name = identifier(table)
        if step == f"{name}_invariants":
            return AssetKey([table, "compacted"])
        if step.startswith(f"{name}__") and _ASSET.fullmatch(asset := step.removeprefix(f"{name}__")):
            return AssetKey([table, asset])
    return None
