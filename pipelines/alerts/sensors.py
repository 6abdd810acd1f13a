"""What Dagster has of alerts: two sensors for all tables, one for failed runs and one for tables that are behind.

Both read `alerts.yaml` at each tick, so a change is in force at once, and what is wrong with the file is on the tick.
They start by themselves if a table is automated, and in the UI otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagster import (
    DagsterEvent,
    DagsterRun,
    DefaultSensorStatus,
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
from pipelines.runs.failed import said_by, tables_of
from pipelines.status.table_status import Looked, Place, State, look_at_all, places_of
from pipelines.tables import DeclaredTables
from storage_core.clock import Clock, SystemClock
from storage_core.wording import counted, first_of, listed

FAILED_RUNS, LATE_TABLES = "alerts_failed_runs", "alerts_late_tables"
INTERVAL_SECONDS = 300
MOST_PER_TICK = 48
"""So many tables are looked at in one tick; the next one goes on behind them."""
MOST_MS = 30_000
"""After so long a tick begins to look at no other table."""

_BAD = frozenset({State.BEHIND, State.FAILED})


@dataclass(frozen=True, slots=True)
class Cursor:
    """Of which tables it was said that they are behind or unreadable, by state, and the table looked at last."""

    said: Mapping[str, str] = field(default_factory=dict)
    after: str = ""

    @staticmethod
    def of(text: str | None) -> Cursor:
        """Return what `text` says; a cursor of no tick, or of somebody else's making, says nothing."""
        try:
            found = json.loads(text or "{}")
            return Cursor({str(key): str(value) for key, value in found["said"].items()}, str(found["after"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return Cursor()

    def to_text(self) -> str:
        """Return what `of` takes back."""
        return json.dumps({"said": dict(self.said), "after": self.after})


@dataclass(frozen=True, slots=True)
class Ticked:
    """What one tick did: alerts that were taken by a receiver, what was wrong, and where the next one goes on."""

    cursor: Cursor
    sent: tuple[Alert, ...]
    problems: tuple[str, ...]


def build_alerts(declared: DeclaredTables, automation: Automation) -> Definitions:
    """Return the sensors `alerts_failed_runs` and `alerts_late_tables`; neither requests a run."""
    status = automation.sensor_status
    return Definitions(sensors=[_failed_runs(declared, status), _late_tables(declared, status)])


def _failed_runs(declared: DeclaredTables, status: DefaultSensorStatus) -> SensorDefinition:
    names = [each.declaration.name for each in declared.tables]

    @run_failure_sensor(
        name=FAILED_RUNS,
        description=f"Tells the receivers in {ALERTS} of each run that failed.",
        default_status=status,
    )
    def failed(context: RunFailureSensorContext) -> None:  # a reason to skip would fail a tick of several runs
        run, receivers = context.dagster_run, read_alerts(declared.root)
        if run.tags.get(WILL_RETRY) == "true" or not receivers.receivers:
            return
        events = list(context.get_step_failure_events()) or [context.failure_event]
        at = SystemClock().now_ms()
        for problem in deliver(failure_alert(run, events, names, at=at), receivers).problems:
            context.log.error("alert not delivered: %s", problem)

    return failed


def failure_alert(run: DagsterRun, events: Sequence[DagsterEvent], tables: Sequence[str], *, at: int) -> Alert:
    """Return what is said of a failed run: each failed step, what it said, and the tables that these are of."""
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


def _late_tables(declared: DeclaredTables, status: DefaultSensorStatus) -> SensorDefinition:
    places = [each for each in places_of(declared) if each.freshness_ms is not None]

    def tick(context: SensorEvaluationContext) -> SkipReason:
        receivers = read_alerts(declared.root)
        if not receivers.receivers or not places:
            return SkipReason(f"no receiver is declared in {ALERTS}" if places else "no table declares a freshness")
        done = look_for_late(places, receivers, Cursor.of(context.cursor))
        for problem in done.problems:
            context.log.error("alert not delivered: %s", problem)
        context.update_cursor(done.cursor.to_text())
        late = sum(each in (State.BEHIND, State.FAILED) for each in done.cursor.said.values())
        return SkipReason(f"{counted(late, 'table')} behind or unreadable, {counted(len(done.sent), 'alert')} sent")

    return SensorDefinition(
        name=LATE_TABLES,
        evaluation_fn=tick,
        minimum_interval_seconds=INTERVAL_SECONDS,
        description=f"Tells the receivers in {ALERTS} of tables that are behind the freshness they declare.",
        default_status=status,
    )


def look_for_late(
    places: Sequence[Place], receivers: AlertsDeclaration, cursor: Cursor, clock: Clock | None = None
) -> Ticked:
    """Look at the next tables and tell of each that became late, unreadable, or neither any more, once.

    What no receiver took is told again by the next look at the table. A table costs what `table_status.look` does.
    """
    now = clock or SystemClock()
    began = now.now_ms()
    ordered = sorted(places, key=lambda each: (each.name <= cursor.after, each.name))[:MOST_PER_TICK]
    said, after = dict(cursor.said), cursor.after
    sent: list[Alert] = []
    problems: list[str] = []
    for each in look_at_all(ordered, now):
        after, name = each.place.name, each.place.name
        if alert := _alert_of(each, said.get(name, State.OK), now.now_ms()):
            done = deliver(alert, receivers)
            problems += done.problems
            if done.taken:
                sent.append(alert)
                said[name] = each.state
        if now.now_ms() - began > MOST_MS:
            break
    known = {each.name for each in places}
    kept = {name: state for name, state in said.items() if name in known and state in _BAD}
    return Ticked(Cursor(kept, after), tuple(sent), tuple(problems))


def _alert_of(found: Looked, before: str, at: int) -> Alert | None:
    """What to say of a table whose state is another than the one that was said last, where either is bad."""
    name, state = (found.place.name,), found.state
    if state == before or (state not in _BAD and before not in _BAD):
        return None
    if found.error is not None:
        text = f"{found.place.name} cannot be read: {found.error.kind}: {found.error}"
        return Alert(kind="unreadable", tables=name, text=text, at=at)
    if state is State.BEHIND and found.status is not None:
        what = " and ".join(each.replace("_", " ") for each in found.status.behind)
        text = f"{found.place.name} is behind: {what} older than the freshness that it declares"
        return Alert(kind="behind", tables=name, text=text, at=at)
    return Alert(kind="recovered", tables=name, text=f"{found.place.name} is fresh again", at=at)
