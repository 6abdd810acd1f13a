"""The last failure of each table. If Dagster has a history, the module reads the failures from this history."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assets.run_tags import TABLE, identifier
from storage_core.base.text import shortened

if TYPE_CHECKING:
    from dagster import AssetKey, DagsterEvent, DagsterInstance, DagsterRun, RunRecord

MOST_RUNS = 50
"""The number of the newest failed runs that the search examines."""
_LONGEST_MESSAGE = 400
_INTERRUPTIONS = ("DagsterExecutionInterruptedError", "KeyboardInterrupt")
_ENDED_BY_DAGSTER = "This run has been marked as failed from outside the execution context"
_ASSET = re.compile(r"[a-z]+|index_.+")
"""The pattern for the names of a table's assets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFailure:
    """The newest failure of a step that belongs to a table.

    Attributes:
        at: The time in milliseconds since the epoch.
        run_id: The run.
        step: The step that failed, or the job.
        message: The error message.
        is_over: Whether the failure is resolved. A failure of an asset is resolved if the asset was materialized or
            observed later. A run without work also records an observation. A failure of checks is resolved if the
            checks ran again.
    """

    at: int
    run_id: str
    step: str
    message: str
    is_over: bool


def last_failures(folder: Path, tables: Collection[str]) -> dict[str, LastFailure]:
    """Return the newest failure of each table. The search examines the `MOST_RUNS` newest failed runs.

    Cost: one query for the runs, and one query per failure. The function also needs one query per examined run, until
    it has found a failure of every table. Raises the errors of Dagster if Dagster's storage cannot be read.
    """
    from pipelines.instance import open_instance

    with open_instance(folder) as instance:
        return last_failures_in(instance, tables)


def last_failures_in(instance: DagsterInstance, tables: Collection[str]) -> dict[str, LastFailure]:
    """Return the result of `last_failures` for an open instance."""
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
    """Return the failed step of this run for each affected table.

    If no step failed, the affected tables are the unfinished tables. The result then contains the job name instead of a
    step.
    """
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
    """Return the tables of a failed step, or of a failed run without a failed step.

    The result also contains the unfinished assets of each table.
    """
    from pipelines.runs import assets_of, not_done

    if step is not None:
        key = _asset_of(run, step, tables)
        return {key.path[0]: [key]} if key and key.path[0] in tables else {}
    undone = not_done(instance, run, assets_of(run))
    found = {table: [key for key in undone if key.path[0] == table] for table in tables_of(run, None, tables)}
    return {table: keys for table, keys in found.items() if keys or len(_about(run)) == 1}


def _is_over(instance: DagsterInstance, step: str | None, assets: Sequence[AssetKey], at: float) -> bool:
    """Return whether all unfinished assets of a failure were materialized later.

    If checks failed, return whether the checks ran again later.
    """
    is_of_checks = step is not None and step != assets[0].to_python_identifier()
    done_since = _is_checked_since if is_of_checks else _is_done_since
    return all(done_since(instance, key, at) for key in assets)


def _is_nothing_left(instance: DagsterInstance, run: DagsterRun, at: float) -> bool:
    """Return whether a failed run materialized all its assets. No step of this run failed.

    If the run contains only asset checks, return whether all these checks ran again after the run.
    """
    from pipelines.runs import assets_of

    checked = {*(run.asset_selection or ()), *(each.asset_key for each in run.asset_check_selection or ())}
    return bool(assets_of(run)) or (bool(checked) and all(_is_checked_since(instance, key, at) for key in checked))


def _is_checked_since(instance: DagsterInstance, key: AssetKey, at: float) -> bool:
    from dagster import AssetCheckKey, DagsterEventType

    from assets.checks import CHECK_NAMES

    checks = [AssetCheckKey(key, name) for name in CHECK_NAMES]
    known = instance.event_log_storage.get_latest_asset_check_execution_by_key(checks).values()
    events = [
        each.event for each in known if each.event is not None
    ]  # Dagster stores a planned check without an event until the check runs
    made = DagsterEventType.ASSET_CHECK_EVALUATION
    return any(each.dagster_event_type is made and each.timestamp > at for each in events)


def _is_done_since(instance: DagsterInstance, key: AssetKey, at: float) -> bool:
    made = instance.get_latest_materialization_event(key)
    observed = instance.fetch_observations(key, limit=1).records
    return max(made.timestamp if made else 0, *(each.timestamp for each in observed), 0) > at


def _message_of(instance: DagsterInstance, run: DagsterRun, event: DagsterEvent, at: float) -> str:
    """Return the message of a failure. `said_by` formats the message.

    If Dagster itself ended the run, return the last error that Dagster recorded for the run. If Dagster recorded no
    error for the run, return the last event of the run.
    """
    from dagster import DagsterEventType

    from assets.launcher import COMMITS_STAY

    if not (event.message or "").startswith(_ENDED_BY_DAGSTER):
        return said_by(event)
    noted = instance.all_logs(run.run_id, of_type=DagsterEventType.ENGINE_EVENT)
    causes = [each.dagster_event for each in noted if each.dagster_event and each.timestamp <= at]
    errors = [each for each in causes if getattr(each.event_specific_data, "error", None)]
    return f"{said_by((errors or causes or [event])[-1]).removesuffix('.')}. {COMMITS_STAY}"


def said_by(event: DagsterEvent) -> str:
    """Return the message of a failed step or run as one line. The length of the line is limited.

    If the error has a chain of causes, return the message of the first cause.
    """
    data = event.event_specific_data
    if described := getattr(getattr(data, "user_failure_data", None), "description", None):
        return _line(str(described))
    error = getattr(data, "error", None)
    while error is not None and error.cause is not None:
        error = error.cause
    if error is not None and error.cls_name in _INTERRUPTIONS:
        from pipelines.runs import INTERRUPTED

        return INTERRUPTED
    return _line(event.message or "" if error is None else error.message)


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), _LONGEST_MESSAGE)


def tables_of(run: DagsterRun, step: str | None, tables: Collection[str]) -> list[str]:
    """Return the table of a failed step. Without a step, return the tables that the run was requested for."""
    if step is not None:
        key = _asset_of(run, step, tables)
        if key is not None or TABLE not in run.tags:
            return [each for each in tables if key and each == key.path[0]]
    about = _about(run)
    return [each for each in tables if each in about]


def _about(run: DagsterRun) -> Collection[str]:
    from pipelines.runs import assets_of

    return {run.tags[TABLE]} if TABLE in run.tags else {key.path[0] for key in assets_of(run)}


def _asset_of(run: DagsterRun, step: str, tables: Collection[str]) -> AssetKey | None:
    """Return the asset that belongs to the name of a step. An asset of the run has priority over other assets.

    The whole name must match. The search tries the tables with the longest names first. For example,
    `web__errors__compacted` belongs to `web__errors`, not to `web`.
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
