"""Two Dagster sensors for alerts: one for failed runs, and one for tables that are late or reject too many rows.

The second sensor also reports fields and columns that drift in landed files (`Rejections.drifted`).

The sensors for alerts read `alerts.yaml` at each tick. A change of the file therefore takes effect at the next tick. A
tick reports the problems of the file. If a table is automated, the sensors are on by default. Otherwise, a person
starts the sensors in the UI.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dagster import (
    DagsterEvent,
    DagsterRun,
    Definitions,
    RunFailureSensorContext,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    run_failure_sensor,
)

from assets.run_tags import WILL_RETRY
from pipelines.alerts.delivery import Alert, deliver
from pipelines.alerts.receivers import ALERTS, AlertsDeclaration, read_alerts
from pipelines.automation import Automation
from pipelines.last_failures import said_by, tables_of
from pipelines.status import State, StatusTarget, TableStatus, collect_all_statuses, status_targets
from pipelines.tables import DeclaredRawLog, DeclaredTables
from storage_core.base.clock import Clock, SystemClock
from storage_core.base.text import counted, first_of, listed
from storage_core.maintain.rejections import DAY_MS

FAILED_RUNS, LATE_TABLES = "alerts_failed_runs", "alerts_late_tables"
INTERVAL_SECONDS = 300
MOST_PER_TICK = 48
"""The largest number of tables per tick. The next tick continues with the remaining tables."""
MOST_MS = 30_000
"""After this number of milliseconds, a tick does not begin with another table."""

FORGET_AFTER_MS: Final = 8 * DAY_MS
"""The number of milliseconds after which a reported field or column is forgotten, if it does not occur again.

A forgotten field or column is reported again when it occurs. A producer that sends files once a week therefore causes
one alert.
"""
MOST_REPORTED: Final = 100
"""The largest number of reported fields and columns of a table. A further field or column causes no alert."""

_BAD = frozenset({State.BEHIND, State.REJECTING, State.FAILED})
BEHIND_AND_REJECTING = "behind_and_rejecting"
"""The state of a table in the cursor if the table is both late (`behind`) and rejects too many rows."""
_SAID: Final = frozenset({*_BAD, BEHIND_AND_REJECTING})


@dataclass(frozen=True, slots=True)
class Cursor:
    """The reported tables with their states (behind, rejecting or unreadable), and the table that was read last.

    `drifted` contains the reported fields and columns of each table (`Rejections.drifted`). Each name has the time in
    milliseconds when a tick last saw it.
    """

    said: Mapping[str, str] = field(default_factory=dict)
    after: str = ""
    drifted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @staticmethod
    def of(text: str | None) -> Cursor:
        """Return the cursor that a text contains, or an empty cursor if the text is invalid."""
        try:
            found = json.loads(text or "{}")
            said = {str(key): str(value) for key, value in found["said"].items()}
            drifted = {
                str(table): {str(name): int(at) for name, at in names.items()}
                for table, names in found.get("drifted", {}).items()
            }
            return Cursor(said, str(found["after"]), drifted)
        except (ValueError, KeyError, TypeError, AttributeError):
            return Cursor()

    def to_text(self) -> str:
        """Return the cursor as a text that the method `of` can read."""
        drifted = {"drifted": {table: dict(names) for table, names in self.drifted.items()}} if self.drifted else {}
        return json.dumps({"said": dict(self.said), "after": self.after, **drifted})


@dataclass(frozen=True, slots=True)
class Ticked:
    """The result of a tick: the accepted alerts, the problems, and the cursor for the next tick."""

    cursor: Cursor
    sent: tuple[Alert, ...]
    problems: tuple[str, ...]


def build_alerts(
    declared: DeclaredTables, automation: Automation, raw_logs: Sequence[DeclaredRawLog] = ()
) -> Definitions:
    """Return the sensors `alerts_failed_runs` and `alerts_late_tables`. The two sensors do not request runs."""
    return Definitions(sensors=[_failed_runs(declared, automation), _late_tables(declared, automation, raw_logs)])


def _failed_runs(declared: DeclaredTables, automation: Automation) -> SensorDefinition:
    names = [each.declaration.name for each in declared.tables]

    @run_failure_sensor(
        name=f"{automation.prefix}{FAILED_RUNS}",
        description=f"Notifies the receivers in {ALERTS} of each failed run.",
        default_status=automation.sensor_status,
    )
    def failed(context: RunFailureSensorContext) -> None:  # a skip reason would make a tick with several runs fail
        run, receivers = context.dagster_run, read_alerts(declared.root)
        if run.tags.get(WILL_RETRY) == "true" or not receivers.receivers:
            return
        events = list(context.get_step_failure_events()) or [context.failure_event]
        at = SystemClock().now_ms()
        for problem in deliver(failure_alert(run, events, names, at=at), receivers).problems:
            context.log.error("alert not delivered: %s", problem)

    return failed


def failure_alert(run: DagsterRun, events: Sequence[DagsterEvent], tables: Sequence[str], *, at: int) -> Alert:
    """Return the alert for a failed run.

    The alert contains each failed step, its message, and the tables of the failed steps.
    """
    lines = [f"{each.step_key or run.job_name}: {said_by(each)}" for each in events]
    about = dict.fromkeys(table for each in events for table in tables_of(run, each.step_key, tables))
    of = f" of {listed(list(about))}" if about else ""
    return Alert(
        kind="run_failed",
        tables=tuple(about),
        text="\n".join([f"run {run.run_id} of {run.job_name}{of} failed", *map(str, first_of(lines, 10))]),
        at=at,
        run_id=run.run_id,
    )


def _late_tables(
    declared: DeclaredTables, automation: Automation, raw_logs: Sequence[DeclaredRawLog]
) -> SensorDefinition:
    places = [
        each
        for each in status_targets(declared)
        if each.freshness_ms is not None or each.landing or any(raw.declaration.feeds(each.name) for raw in raw_logs)
    ]

    def tick(context: SensorEvaluationContext) -> SkipReason:
        receivers = read_alerts(declared.root)
        if not receivers.receivers or not places:
            lacks = "no table has a freshness, a landing location or a raw log"
            return SkipReason(f"no receiver is declared in {ALERTS}" if places else lacks)
        done = check_late_tables(places, receivers, Cursor.of(context.cursor))
        for problem in done.problems:
            context.log.error("alert not delivered: %s", problem)
        context.update_cursor(done.cursor.to_text())
        late = counted(len(done.cursor.said), "table")
        return SkipReason(
            f"{late} late, unreadable or with too many rejected rows. {counted(len(done.sent), 'alert')} sent"
        )

    return SensorDefinition(
        name=f"{automation.prefix}{LATE_TABLES}",
        evaluation_fn=tick,
        minimum_interval_seconds=INTERVAL_SECONDS,
        description=f"Notifies the receivers in {ALERTS} of tables that are late or reject too many rows.",
        default_status=automation.sensor_status,
    )


def check_late_tables(
    places: Sequence[StatusTarget], receivers: AlertsDeclaration, cursor: Cursor, clock: Clock | None = None
) -> Ticked:
    """Read the tables after the cursor. Send an alert for each change of a table's state and for each new drift.

    A table can become late, reject too many rows, become unreadable, or recover. A landed file can contain an unknown
    field or a column with a changed type, which is called drift. One alert reports each new name. An alert about too
    many rejected rows also contains the new names.

    If no receiver accepts an alert, the next read of the table sends it again. Cost: the requests of
    `status.collect_status` per table.
    """
    now = clock or SystemClock()
    began = now.now_ms()
    ordered = sorted(places, key=lambda each: (each.name <= cursor.after, each.name))[:MOST_PER_TICK]
    said, after, drifted = dict(cursor.said), cursor.after, dict(cursor.drifted)
    sent: list[Alert] = []
    problems: list[str] = []
    for each in collect_all_statuses(ordered, now):
        after, name = each.place.name, each.place.name
        if said.get(name) == BEHIND_AND_REJECTING and _said(each) == State.BEHIND:
            said[name] = State.BEHIND  # the receivers have the alert that this table is late
        at, reported = now.now_ms(), dict(drifted.get(name, {}))
        for alert, names in _alerts_of(each, said.get(name, State.OK), reported, at):
            done = deliver(alert, receivers)
            problems += done.problems
            if done.taken:
                sent.append(alert)
                reported |= dict.fromkeys(names, at)
                if alert.kind != "drifted":
                    said[name] = _said(each)
        drifted[name] = _still_reported(each, reported, at)
        if now.now_ms() - began > MOST_MS:
            break
    known = {each.name for each in places}
    kept = {name: state for name, state in said.items() if name in known and state in _SAID}
    reported_of = {name: names for name, names in drifted.items() if name in known and names}
    return Ticked(Cursor(kept, after, reported_of), tuple(sent), tuple(problems))


def _has_recovered(found: TableStatus) -> bool:
    """Return whether landed rows or an empty quarantine show that a table has stopped rejecting rows.

    If no row arrived in the last 24 hours, the state is unknown, because a producer may send invalid rows once a day.
    """
    status = found.status
    if status is None or status.rejections is None or not status.quarantine_entries:
        return True
    return status.rejections.rows_in > 0


def _said(found: TableStatus) -> str:
    """Return the state for the cursor. When a late table begins to reject rows, its new state causes an alert."""
    return BEHIND_AND_REJECTING if found.state is State.BEHIND and found.is_rejecting else found.state.value


def _alerts_of(
    found: TableStatus, before: str, reported: Mapping[str, int], at: int
) -> list[tuple[Alert, Sequence[str]]]:
    """Return the alerts about a table, each with the fields and columns that the alert reports."""
    room = max(0, MOST_REPORTED - len(reported))
    new = [each for each in found.drifted if each not in reported][:room]
    text, alert = found.drift_text_about(new), _alert_of(found, before, at)
    if alert is not None and new and found.is_rejecting:
        return [(replace(alert, text=f"{alert.text}. {text}"), new)]
    drifted = Alert(
        kind="drifted",
        tables=(found.place.name,),
        text=f"{found.place.name} has new fields or other values. {text}",
        at=at,
    )
    return [*([(alert, [])] if alert is not None else []), *([(drifted, new)] if new else [])]


def _still_reported(found: TableStatus, reported: Mapping[str, int], at: int) -> dict[str, int]:
    """Return the names that still count as reported, each with the time of the last tick that found the name."""
    seen = {name: at if name in found.drifted else last for name, last in reported.items()}
    return {name: last for name, last in seen.items() if at - last <= FORGET_AFTER_MS}


def _alert_of(found: TableStatus, before: str, at: int) -> Alert | None:
    """Return an alert if a table's state changed since the last alert and the old or new state is bad."""
    name, state = (found.place.name,), found.state
    if _said(found) == before or (state not in _BAD and before not in _SAID):
        return None
    if before == State.REJECTING and state is State.OK and not _has_recovered(found):
        return None
    if found.error is not None:
        text = f"{found.place.name} cannot be read: {found.error.kind}: {found.error}"
        return Alert(kind="unreadable", tables=name, text=text, at=at)
    if state is State.BEHIND and found.status is not None:
        what = " and ".join(each.replace("_", " ") for each in found.status.behind)
        text = f"{found.place.name} is behind: {what} older than the freshness that it declares"
        parts = [text, found.rejection_text] if found.is_rejecting else [text]
        return Alert(kind="behind", tables=name, text=". ".join(parts), at=at)
    if state is State.REJECTING:
        text = f"{found.place.name} rejects rows: {found.rejection_text}"
        return Alert(kind="rejecting", tables=name, text=text, at=at)
    again = "no longer rejects too many rows" if before == State.REJECTING else "is fresh again"
    return Alert(kind="recovered", tables=name, text=f"{found.place.name} {again}", at=at)
