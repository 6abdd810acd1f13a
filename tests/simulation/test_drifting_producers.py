"""A month of producers that add, drop, rename and retype fields, send broken lines, and send files again.

Under each declared rule, every line is in the table or in quarantine, and every value is stored or counted. The status
shows each anomaly, and one alert reports the anomaly within two runs. A retry after a correction of the declaration
adds all lines that are valid JSON and have an id.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from pipelines.alerts.receivers import AlertsDeclaration
from pipelines.alerts.sensors import Cursor, look_for_late
from pipelines.status import Looked, Place, look
from storage_core.base.clock import SystemClock
from storage_core.log.job_run import JobReport
from tests.simulation.seeds import naming, seed_blocks
from tests.support.drifting import Project
from tests.support.receivers import Web, serving
from tidemark import Table

DAYS, PRODUCERS, LINES = 30, 3, 12
BAD_DAY = 11
KNOWN = ("id", "n", "note", "extra")
COLUMNS = "{id: long!, n: int, note: string, extra: string}"
RULES = {
    "quarantine": "on_new_field: quarantine",
    "ignore": "on_new_field: ignore, on_type_conflict: widen",
    "add": "on_new_field: add, on_type_conflict: widen, max_new_fields: 3",
    "column": "on_new_field: 'column:extra'",
}
Line = dict[str, Any]


@dataclass
class Producer:
    """A producer whose lines change during the month."""

    random: random.Random
    fields: dict[str, str] = field(default_factory=lambda: {"n": "small", "note": "text"})
    names: int = 0

    def drift(self) -> None:
        """Change a field: add, drop, rename or retype it."""
        change, known = self.random.choice(["add", "add", "drop", "rename", "retype"]), sorted(self.fields)
        chosen = self.random.choice(known) if known else ""
        if change == "add" or not chosen:
            self.names += 1
            self.fields[f"new{self.names}"] = self.random.choice(["small", "text", "part", "flag", "deep"])
        elif change == "drop":
            del self.fields[chosen]
        elif change == "rename":
            self.fields[f"{chosen}_v2"] = self.fields.pop(chosen)
        else:
            self.fields[chosen] = self.random.choice(["wide", "text", "part"])

    def line(self, number: int) -> Line:
        values = {
            "small": number % 1000,
            "wide": 2**40 + number,
            "part": number / 4,
            "text": f"text {number}",
            "flag": number % 2 == 0,
            "deep": {"a": [number, None]},
        }
        return {"id": number, **{name: values[kind] for name, kind in self.fields.items() if number % 5}}


@dataclass
class Month:
    """A table during the month. `sent` contains each sent line by id."""

    project: Project
    random: random.Random
    sent: dict[int, Line] = field(default_factory=dict)
    broken: int = 0
    files: dict[str, str] = field(default_factory=dict)

    def day(self, number: int, producers: list[Producer]) -> None:
        """Land the files of a day. On some days, a producer changes, or an older file comes again."""
        for index, producer in enumerate(producers):
            if number and self.random.random() < 0.3:
                producer.drift()
            texts = []
            for _ in range(LINES):
                line = producer.line(len(self.sent) + 1)
                self.sent[line["id"]] = line
                texts.append(json.dumps(line))
                if number == BAD_DAY and self.random.random() < 0.2:
                    self.broken += 1
                    texts.append(f'{{"broken": {self.broken}')
            self.files[f"{number:02}-{index}.ndjson"] = "\n".join(texts)
        names = sorted(self.files)
        again = self.random.sample(names, 2) if number % 4 == 3 else []
        for name in [*names[-PRODUCERS:], *again]:
            (self.project.root / "landing" / name).write_text(self.files[name])

    def rows(self) -> list[Line]:
        return [*Table.open(self.project.uri).scan().to_arrow().to_pylist()]

    def check(self) -> None:
        """Check that each line is in the table or in quarantine, and in one of them only."""
        landed = Counter(row["id"] for row in self.rows())
        rejected = Counter(json.loads(text)["id"] for text in self.project.rejected_texts() if text.endswith("}"))
        assert landed + rejected == Counter([*self.sent])
        assert len(self.project.rejected_texts()) == rejected.total() + self.broken

    def unknown_values(self) -> Counter[str]:
        """For each field that is not a column, count its values in the lines that are in the table."""
        landed = {row["id"] for row in self.rows()}
        lines = [line for id_, line in self.sent.items() if id_ in landed]
        return Counter(name for line in lines for name in line if name not in KNOWN)


@pytest.mark.parametrize("rule", RULES)
@seed_blocks(1, block=1)
def test_no_line_of_a_drifting_month_is_lost(tmp_path: Path, rule: str, seeds: range) -> None:
    for seed in seeds:
        with naming(seed):
            (folder := tmp_path / f"{seed}").mkdir()
            _simulate(folder, rule, seed)


def _simulate(folder: Path, rule: str, seed: int) -> None:
    drawn = random.Random(seed)
    project = Project(folder).declare(f"format: ndjson, {RULES[rule]}", COLUMNS)
    month = Month(project, drawn)
    producers = [Producer(drawn) for _ in range(PRODUCERS)]
    counts, place, cursor, web = Counter[str](), Place(name="t", uri=project.uri), Cursor(), Web()
    alerts = AlertsDeclaration.model_validate({"receivers": [{"webhook": web.url}]})
    waiting: set[str] = set()
    with serving(web):
        for number in range(DAYS):
            month.day(number, producers)
            report = project.ingest()
            month.check()
            for name in ("fields_ignored", "fields_kept"):
                counts.update(cast("dict[str, int]", report.details.get(name, {})))
            found = look(place, SystemClock())
            cursor = look_for_late([place], alerts, cursor).cursor
            reported = {each["kind"] for each in web.taken}
            assert waiting <= reported, "an anomaly is reported within two runs"
            waiting = _anomalies(report, found)
    cursor = look_for_late([place], alerts, cursor).cursor
    kinds = Counter(each["kind"] for each in web.taken)
    assert kinds["rejecting"] >= 1
    assert kinds["rejecting"] - kinds["recovered"] in (0, 1)
    assert bool(kinds["drifted"]) == (rule != "quarantine")
    if rule in ("ignore", "column"):
        assert counts == month.unknown_values()
    if rule in ("add", "column"):
        _check_values(month, rule)
    _mend(month)


def _anomalies(report: JobReport, found: Looked) -> set[str]:
    """Return the kinds of alerts that the run must cause. Assert that the status already shows the anomalies."""
    assert found.status is not None
    metrics = report.metrics
    drifts = metrics.columns_added + metrics.columns_widened + metrics.fields_ignored + metrics.fields_kept
    if drifts:
        assert found.drift_text
    if metrics.rows_rejected:
        assert found.status.rejections is not None
        assert found.status.rejections.rows_rejected >= metrics.rows_rejected
    return {"drifted"} if drifts else set()


def _check_values(month: Month, rule: str) -> None:
    """Check that each value of a new field is in its column, or in the column for new fields."""
    for row in month.rows():
        line = month.sent[row["id"]]
        new = {name: value for name, value in line.items() if name not in KNOWN}
        if rule == "column":
            assert json.loads(row["extra"] or "{}") == new
        for name, value in new.items() if rule == "add" else ():
            found = row[name]
            assert found == value or json.loads(found) == value or str(found) == str(value)


def _mend(month: Month) -> None:
    """Declare columns wide enough for every value, and retry the quarantine.

    Only broken lines and values of wrong types stay in quarantine.
    """
    project = month.project
    known = Table.open(project.uri).schema
    wide = [
        f"{each.name}: {'long!' if each.name == 'id' else 'long' if each.name == 'n' else _name(each)}"
        for each in known
    ]
    project.declare("format: ndjson, on_new_field: 'column:extra'", "{" + ", ".join(wide) + "}")
    project.retry()
    month.check()
    left = [json.loads(text) for text in project.rejected_texts() if text.endswith("}")]
    names = {each.name: str(each.type) for each in known}
    assert all(any(_misfits(value, names.get(name, "")) for name, value in line.items()) for line in left)
    assert project.retry().status == "nothing_to_do"


def _name(column: Any) -> str:
    return {"int64": "long", "bool": "boolean"}.get(str(column.type), str(column.type))


def _misfits(value: object, type_: str) -> bool:
    """Return True if the value does not fit a column of this type, even after widening."""
    if type_ in ("int32", "int64"):
        return not isinstance(value, int) or isinstance(value, bool)
    if type_ == "double":
        return not isinstance(value, int | float)
    return type_ == "bool" and not isinstance(value, bool)
