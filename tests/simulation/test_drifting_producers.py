"""A month of producers that add, drop, rename and retype fields, send broken lines, and send files again.

Under each declared rule, every line is in the table or in quarantine, and every value is stored or counted. A model in
plain Python predicts the place of each line and all counts. The status shows each anomaly, and one alert reports the
anomaly within two runs. A retry after a correction of the declaration adds all lines that can be rows.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from dagster import DagsterInstance, RepositoryDefinition, SensorDefinition, build_sensor_context

from assets.checks import check_quarantine
from pipelines.alerts.sensors import INTERVAL_SECONDS, LATE_TABLES, build_alerts
from pipelines.automation import Automation
from pipelines.cli import main
from pipelines.tables import read_tables
from storage_core.base.clock import HOUR_MS
from storage_core.change.declaration import load
from storage_core.log.job_run import JobReport
from storage_core.maintain.quarantine import pending_entries, summarize
from storage_core.maintain.rejections import DAY_MS
from tests.simulation.seeds import naming, run_until_met, seed_blocks
from tests.support.dirty_producers import Course, Day, Producer
from tests.support.drift_model import WHOLE_FILES, Expected, Model, parsed
from tests.support.drifting import Project
from tests.support.receivers import Web, serving
from tidemark import Table

DAYS = 30
START_MS = 1_800_000_000_000
MINUTE_MS = 60_000
INTERVAL_MS = INTERVAL_SECONDS * 1000
FORGET_AFTER_MS = 8 * DAY_MS
COLUMNS = {"id": "long", "site": "string", "n": "int", "note": "string", "extra": "string"}
NEW_FIELDS = ("quarantine", "ignore", "add", "column:extra")
TYPE_CONFLICTS = ("quarantine", "widen")
RULES = [(new, conflict) for new in NEW_FIELDS for conflict in TYPE_CONFLICTS]
MOST_NEW = 2
NAMES = re.compile(r"Fields and columns: ([^.]*)\.")

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Run:
    """The time of a run in the simulated month, and the expected effects of the run."""

    at: int
    expected: Expected


@dataclass(frozen=True)
class Reported:
    """An alert that the receiver accepted."""

    at: int
    kind: str
    names: tuple[str, ...]


@dataclass
class Receiver:
    """The receiver of alerts, and the sensor that sends the alerts. With `is_served=False`, no alert is accepted."""

    web: Web
    sensor: SensorDefinition
    repository: RepositoryDefinition
    instance: DagsterInstance
    cursor: str | None = None
    accepted: list[Reported] = field(default_factory=list)

    def tick(self, now_ms: int, *, is_served: bool) -> None:
        """Run the sensor once, as Dagster does."""
        self.web.status = 204 if is_served else 503
        self.web.taken.clear()
        with build_sensor_context(self.instance, self.cursor, repository_def=self.repository) as context:
            self.sensor(context)
            self.cursor = context.cursor
        for each in self.web.taken if is_served else ():
            assert each["tables"] == ["t"]
            named = NAMES.search(each["text"])
            self.accepted.append(Reported(now_ms, each["kind"], tuple(named[1].split(", ")) if named else ()))

    @property
    def is_told_of_rejections(self) -> bool:
        """Whether the last alert about the state reports too many rejected rows."""
        states = [each.kind for each in self.accepted if each.kind in ("rejecting", "recovered")]
        return states[-1:] == ["rejecting"]


@dataclass
class Month:
    """A simulated month: a project with one table, a model of the expected table, and the runs so far."""

    project: Project
    model: Model
    receiver: Receiver
    capfd: Capture
    limit: float
    now_ms: int = START_MS
    runs: list[Run] = field(default_factory=list)
    report: JobReport | None = None

    @property
    def table(self) -> Table:
        return Table.open(self.project.uri)

    def land(self, day: Day) -> None:
        """Write the files of a day."""
        for name, texts in [*day.landed.items(), *day.same.items(), *day.replaced.items()]:
            file = self.project.root / "landing" / name
            file.write_text("".join(f"{each}\n" for each in texts))
            os.utime(file, (self.now_ms / 1000, self.now_ms / 1000))

    def run(self, day: Day) -> None:
        """Ingest the files of a day, and compare the run and the table with the model."""
        expected = self.model.ingest(day.landed)
        self.model.reject_whole(day.replaced, expected)
        self.runs.append(Run(self.now_ms, expected))
        self.report = self.project.ingest()
        self._check_run(self.report, expected)
        self.check_lines()

    def check_lines(self) -> None:
        """Check that each line is in the table or in quarantine, once, and that all counts agree."""
        table = self.table
        landed = Counter(table.scan(["id"]).to_arrow().column("id").to_pylist())
        assert landed == Counter(row["id"] for row in self.model.rows.values())
        entries = [*pending_entries(table.store, table.snapshot)]
        rejected = Counter((str(each.unit[0]), line) for each in entries for line in each.lines)
        assert rejected == Counter(self.model.quarantine.keys())
        summaries = summarize(entries)
        assert all(each.reason for each in summaries)
        assert sum(each.count for each in summaries) == len(self.model.quarantine)

    def look(self, now_ms: int, *, is_served: bool = True) -> None:
        """Read the status and the alerts, and compare the status with the runs of the last 24 hours."""
        self.now_ms = now_ms
        was_told = self.receiver.is_told_of_rejections
        self.receiver.tick(now_ms, is_served=is_served)
        self._check_state_alert(is_served=is_served, was_told=was_told)
        sums, names = self._sums(), self.names()
        code = 7 if self.is_rejecting else 0
        (found,) = self._said(code, "status", "--json")
        assert found["status"] == ("rejecting" if self.is_rejecting else "ok")
        rejections: Mapping[str, Any] = found["rejections"] or {}
        assert bool(rejections) == self.is_measured
        if self.is_measured:
            assert {name: rejections[name] for name in sums} == sums
            assert rejections["drifted"] == sorted(names)

    def check_totals(self) -> None:
        """Compare the check of the asset, the metrics and the history with the model."""
        sums = self._sums()
        assert self.report is not None
        checked = check_quarantine(load(self.project.file), json.loads(self.report.to_json()))
        assert checked.passed == (not self.model.quarantine)
        assert checked.metadata["rows_rejected"].value == sums["rows_rejected"]
        assert checked.metadata["in_quarantine"].value == len(self.model.quarantine)
        (text,) = self._said(0, "metrics", "--json")
        shown = text["metrics"].splitlines()
        assert f'tidemark_table_rows_rejected{{table="t"}} {sums["rows_rejected"]}' in shown
        assert (f'tidemark_table_rows_read{{table="t"}} {sums["rows_in"]}' in shown) == self.is_measured
        metrics = [entry.metrics for entry in self.table.history() if entry.operation == "INGEST"]
        assert sum(each.get("rows_rejected", 0) for each in metrics) == len(self.model.quarantine)
        assert sum(each["rows_out"] for each in metrics) == len(self.model.rows)

    def window(self) -> list[Expected]:
        """Return the runs of the last 24 hours."""
        return [each.expected for each in self.runs if each.at > self.now_ms - DAY_MS]

    def names(self) -> set[str]:
        """Return the fields and columns that drifted in the last 24 hours."""
        return {name for each in self.window() for name in each.names}

    @property
    def is_measured(self) -> bool:
        """Whether the status counts rows. Rows are counted if lines are in quarantine, or if files may drift."""
        return bool(self.model.quarantine) or self.project.may_drift

    @property
    def is_rejecting(self) -> bool:
        """Whether the share of rejected rows of the last 24 hours is above the limit."""
        sums = self._sums()
        share = sums["rows_rejected"] / sums["rows_in"] if sums["rows_in"] else 0
        return bool(self.model.quarantine) and share > self.limit

    def check_alerts(self) -> None:
        """Check that exactly one alert reports each anomaly, and that this alert comes before the next run.

        An anomaly is reported again only after `FORGET_AFTER_MS` without this anomaly.
        """
        ends = [*(run.at for run in self.runs[1:]), self.now_ms + 1]
        last: dict[str, int] = {}
        for run, end in zip(self.runs, ends, strict=True):
            came = [each for each in self.receiver.accepted if run.at < each.at < end]
            reported = Counter(name for each in came for name in each.names)
            assert reported.keys() <= run.expected.names
            for name in run.expected.names:
                silence = run.at - last[name] if name in last else None
                if silence is None or silence > FORGET_AFTER_MS + DAY_MS:
                    assert reported[name] == 1, name
                else:
                    assert reported[name] <= (silence > FORGET_AFTER_MS), name
                last[name] = run.at

    def _check_state_alert(self, *, is_served: bool, was_told: bool) -> None:
        came = [each.kind for each in self.receiver.accepted if each.at == self.now_ms and each.kind != "drifted"]
        has_rows = self._sums()["rows_in"] > 0
        is_news = self.is_rejecting if not was_told else not self.is_rejecting and has_rows
        assert came == ([] if not is_news or not is_served else ["recovered" if was_told else "rejecting"])

    def _check_run(self, report: JobReport, expected: Expected) -> None:
        found = asdict(report.metrics)
        kept = self.model.new_field == "column"
        counts = {
            "rows_in": expected.rows_in,
            "rows_out": expected.rows_out,
            "rows_rejected": expected.rows_rejected,
            "fields_kept" if kept else "fields_ignored": expected.fields.total(),
            "columns_added": len(expected.added),
            "columns_widened": len(expected.widened),
        }
        assert {name: found[name] for name in counts} == counts
        assert report.details.get("columns_added", {}) == expected.added
        details = cast("Mapping[str, int]", report.details.get("fields_kept" if kept else "fields_ignored", {}))
        assert details == expected.fields
        committed = next(iter(self.table.history(1))).metrics
        assert {name: committed.get(name, 0) for name in counts} == counts
        assert committed.get("drifted", []) == sorted(expected.names)

    def _sums(self) -> dict[str, int]:
        kept = self.model.new_field == "column"
        runs = self.window()
        fields = sum(each.fields.total() for each in runs)
        return {
            "rows_in": sum(each.rows_in for each in runs),
            "rows_out": sum(each.rows_out for each in runs),
            "rows_rejected": sum(each.rows_rejected for each in runs),
            "fields_ignored": 0 if kept else fields,
            "fields_kept": fields if kept else 0,
            "columns_added": sum(len(each.added) for each in runs),
            "columns_widened": sum(len(each.widened) for each in runs),
        }

    def _said(self, code: int, *words: str) -> list[dict[str, Any]]:
        self.capfd.readouterr()
        assert main([*words]) == code, self.capfd.readouterr()
        return [json.loads(line) for line in self.capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize(("new_field", "conflict"), RULES)
@seed_blocks(1, block=1)
def test_no_line_of_a_drifting_month_is_lost_and_each_anomaly_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture, new_field: str, conflict: str, seeds: range
) -> None:
    for seed in seeds:
        (folder := tmp_path / f"{seed}").mkdir()
        monkeypatch.chdir(folder)
        with naming(seed):
            _simulate(folder, monkeypatch, capfd, (new_field, conflict), seed)


def _simulate(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture, rule: tuple[str, str], seed: int) -> Month:
    drawn = random.Random(seed)
    limit = drawn.choice([0.01, 0.2])
    project, model = _declared(folder, rule, limit)
    web = Web()
    with serving(web), DagsterInstance.ephemeral() as instance:
        month = Month(project, model, _receiver(folder, web, instance), capfd, limit)
        monkeypatch.setattr("storage_core.base.clock.SystemClock.now_ms", lambda _: month.now_ms)
        course = Course(drawn, [Producer(drawn, name) for name in "abc"], DAYS)
        for day in _days(month, course, drawn):
            month.land(day)
            month.run(day)
        month.check_alerts()
        assert (month.is_rejecting, month.names()) == (False, set()), "the month ends with valid files"
        _mend(month)
    return month


def _days(month: Month, course: Course, drawn: random.Random) -> Iterator[Day]:
    """Yield the files of each day. The sensor ticks after each run and before the next one.

    Two runs are up to 26 hours apart, so the last 24 hours may have no run. If a tick does not reach the receiver, the
    next tick follows after the interval of the sensor.
    """
    times = [START_MS + number * DAY_MS + drawn.randrange(2 * HOUR_MS) for number in range(DAYS + 1)]
    for number in range(DAYS):
        month.now_ms = times[number]
        yield course.day(number)
        is_served = drawn.random() < 0.8
        month.look(times[number] + MINUTE_MS, is_served=is_served)
        month.look(times[number + 1] - MINUTE_MS if is_served else month.now_ms + INTERVAL_MS)
        if number % 7 == 6:
            month.check_totals()


def _declared(folder: Path, rule: tuple[str, str], limit: float) -> tuple[Project, Model]:
    new_field, conflict = rule
    settings = f"format: ndjson, max_rejected: {limit}, on_new_field: '{new_field}', on_type_conflict: {conflict}"
    settings += f", max_new_fields: {MOST_NEW}" if new_field == "add" else ""
    columns = COLUMNS | {"id": "long!", "site": "string!"}
    project = Project(folder).declare(settings, _columns(columns))
    effect = new_field.partition(":")[0]
    return project, Model(dict(COLUMNS), {"id", "site"}, effect, widens=conflict == "widen", most_new=MOST_NEW)


def _columns(columns: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {type_}" for name, type_ in columns.items()) + "}"


def _receiver(folder: Path, web: Web, instance: DagsterInstance) -> Receiver:
    (folder / "alerts.yaml").write_text(f"receivers: [{{webhook: '{web.url}'}}]\n")
    definitions = build_alerts(read_tables(folder / "tables"), Automation())
    sensor = definitions.resolve_sensor_def(LATE_TABLES)
    return Receiver(web, sensor, definitions.get_repository_def(), instance)


def _mend(month: Month) -> None:
    """Declare wide columns for all fields. Retry the quarantined lines. Only lines that can never be rows remain."""
    month.table.relax_column("site")
    month.model.mend()
    columns = month.model.columns | {"id": "long!"}
    month.project.declare(f"format: ndjson, max_rejected: {month.limit}", _columns(columns))
    added = month.model.retry()
    report = month.project.retry()
    assert report.details.get("added") == added
    month.check_lines()
    _check_values(month)
    assert month.project.retry().status == "nothing_to_do"
    month.check_lines()


def _check_values(month: Month) -> None:
    """Check that each field of each row is in its column, or in the column for new fields."""
    found = sorted(map(_row, month.table.scan().to_arrow().to_pylist()))
    types = month.model.columns
    assert found == sorted(_row(_stored(line, types)) for line in month.model.rows.values())


def _row(row: Mapping[str, Any]) -> str:
    """Return the values of a row that are not null, with JSON texts as values."""
    values = {name: _value(value) for name, value in row.items() if value is not None}
    return json.dumps([values["id"], dict(sorted(values.items()))], sort_keys=True)


def _stored(line: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    casts = {"double": float, "boolean": bool}
    return {name: casts.get(types[name], lambda each: each)(value) for name, value in line.items()}


def _value(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


EVENTS = ("field", "column", WHOLE_FILES, "widened", "broken", "copy", "again", "mended", "left")


def test_the_months_have_every_kind_of_anomaly() -> None:
    def simulate(seed: int) -> Counter[str]:
        drawn, events = random.Random(seed), Counter[str]()
        course = Course(drawn, [Producer(drawn, name) for name in "abc"], DAYS)
        model = Model(dict(COLUMNS), {"id", "site"}, "add", widens=True, most_new=MOST_NEW)
        for number in range(DAYS):
            day = course.day(number)
            run = model.ingest(day.landed)
            model.reject_whole(day.replaced, run)
            events.update(name if name == WHOLE_FILES else name.partition(" ")[0] for name in run.names)
            events.update({"widened": len(run.widened), "again": len(day.same)})
            events["copy"] += sum("copy" in name for name in day.landed)
        events["broken"] += sum(parsed(text) is None for text in model.quarantine.values())
        model.mend()
        events["mended"] += model.retry()
        events["left"] += sum(parsed(text) is not None for text in model.quarantine.values())
        return events

    run_until_met(simulate, EVENTS)
