"""The report as a user sees it: opened as a file in a real browser, and compared with the log."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
from collections import Counter
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page

from jobs.spark.spark import Spark
from pipelines.cli import main
from storage_core.data.rows.window_range import window_range
from storage_core.data.steps import Compact, Ingest
from storage_core.log.actions import Txn
from storage_core.log.job_run import run
from tests.support import upkeep
from tests.support.pictures import picture
from tidemark import Table

pytestmark = pytest.mark.browser

SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False), ("text", pa.string())])
WORDS = {"name": "words", "kind": "fulltext", "columns": ["text"]}
MIDNIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ATTACK = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table with two days of windows.

    Some windows are compacted and indexed. The table also has rows that were appended later, and a commit whose name
    contains HTML.
    """
    made = Table.create(str(tmp_path / "clicks<b>"), SCHEMA, time_column="at", window="1h", indexes=[WORDS])
    for _ in range(3):
        made.append([{"at": MIDNIGHT + dt.timedelta(hours=2 * hour), "text": "high tide"} for hour in range(20)])
    upkeep.compact(made)
    upkeep.catch_up(made)
    made = Table.open(made.uri)
    made.log.commit(made.snapshot, [Txn(appId="x", version=1)], operation=ATTACK)
    Table.open(made.uri).append({"at": MIDNIGHT, "text": "late"})
    return Table.open(made.uri)


def titles(page: Page, selector: str) -> list[str]:
    return page.locator(f"{selector} > title").all_text_contents()


def rows(page: Page, name: str) -> list[list[str]]:
    lines = page.locator(f"table.{name} tr").all()
    return [line.locator("td").all_text_contents() for line in lines if line.locator("td").count()]


def test_the_report_is_one_file_that_shows_what_the_log_says(table: Table, browser: Browser, tmp_path: Path) -> None:
    file, place = tmp_path / "report.html", str(tmp_path / "clicks<b>")
    assert main(["report", place, f"{tmp_path}/nowhere", "--output", str(file), "--prices", "put=5,get=4"]) == 0
    page, asked = browser.new_page(viewport={"width": 1100, "height": 1400}), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())

    assert page.title() == "Tidemark report"
    assert asked == [file.as_uri()]
    about = table.describe()
    overview = rows(page, "overview")
    assert [line[:3] for line in overview] == [["clicks<b>", "ok", "61"], ["nowhere", "failed", ""]]
    shown = dict(rows(page, "metrics"))
    assert shown["rows"] == f"{about['rows']:,}"
    assert shown["bytes"] == f"{about['bytes']:,}"
    assert shown["version"] == f"{table.version}"

    windows = json.loads(json.dumps(about["windows"]))
    expected = [
        f"{dt.datetime.fromtimestamp(each['window_start'], dt.UTC):%Y-%m-%d %H:%M}: {each['splits']:,} splits, "
        f"{each['rows']:,} rows, {each['bytes']:,} bytes"
        for each in windows
    ]
    assert titles(page, "rect.cell") == expected
    history = table.history()
    assert [line[2] for line in rows(page, "history")] == [entry.operation for entry in history]
    assert ATTACK in [line[2] for line in rows(page, "history")]
    assert titles(page, "svg[aria-label='live splits over time'] circle")[-1].startswith(
        f"{len(table.snapshot.splits)} "
    )
    (pair,) = titles(page, "g.pair")
    before, after = (int(each.replace(",", "")) for each in re.findall(r"([\d,]+)(?: →| bytes)", pair))
    compacted = Table.open(table.uri, at=4)
    assert (before, after) == (Table.open(table.uri, at=3).snapshot.bytes, compacted.snapshot.bytes)
    assert rows(page, "indexes") == [["words", "1", "1", "not measured"]]
    puts = next(line for line in rows(page, "costs") if line[0] == "PUT")
    assert float(puts[2]) == pytest.approx(int(puts[1].replace(",", "")) / 1000 * 5)


VISITS = """
name: visits
uri: {here}/visits
columns: {{at: timestamp!, page: string}}
time_column: at
window: 1h
sort_schema: page|at/V2
indexes: [{{name: pages, kind: fulltext, columns: [page]}}]
landing: {{uri: {here}/landing, format: ndjson}}
freshness: 1h
"""
DAYS, LATE = 5, 7


@pytest.fixture
def visits(tmp_path: Path, spark: Spark) -> Table:
    """Return a table with windows of several days. Some rows were ingested, and the other rows were appended.

    The first windows are compacted and then indexed. The later rows are neither compacted nor indexed.
    """
    declaration, landing = tmp_path / "visits.yaml", tmp_path / "landing"
    declaration.write_text(VISITS.format(here=tmp_path), encoding="utf-8")
    landing.mkdir()
    request = Ingest(table_uri=str(tmp_path / "visits"), declaration=str(declaration))
    for number in range(2):
        _land(landing / f"{number}.ndjson", number)
        run(request, spark)
    table = Table.open(request.table_uri)
    for number in range(3):
        table.append([{"at": at, "page": "appended"} for at in _hours(step=2 + number)])
    run(Compact(table_uri=table.uri, windows=window_range(None, "2026-01-01T00:00", "2026-01-03T00:00")), spark)
    upkeep.catch_up(Table.open(table.uri))
    Table.open(table.uri).append([{"at": MIDNIGHT, "page": "late"}] * LATE)
    return Table.open(table.uri)


def _hours(*, step: int) -> list[dt.datetime]:
    return [MIDNIGHT + dt.timedelta(hours=hour) for hour in range(0, DAYS * 24, step)]


def _land(file: Path, number: int) -> None:
    lines = [json.dumps({"at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "page": f"page {number}"}) for at in _hours(step=1)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_heat_map_growth_cost_and_lag_of_a_table_with_history_are_those_of_its_log(
    visits: Table, browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    assert main(["report", visits.uri, "--output", str(file), "--prices", "put=5,get=4,storage=1"]) == 0
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.goto(file.as_uri())
    then = [Table.open(visits.uri, at=version).snapshot for version in range(visits.version + 1)]

    counts = Counter(add.windowStart or 0 for add in visits.snapshot.splits.values())
    most = max(counts.values())
    cells = page.locator("svg[aria-label='splits per window'] rect.cell").evaluate_all(
        "cells => cells.map(cell => [cell.getBoundingClientRect().x, cell.getBoundingClientRect().y, "
        "Number(cell.getAttribute('fill-opacity'))])"
    )
    shown = [each.partition(": ")[2].split(" splits")[0] for each in titles(page, "rect.cell")]
    assert shown == [str(counts[window]) for window in sorted(counts)]
    assert [round(dark, 2) for _, _, dark in cells] == [
        round(0.15 + 0.85 * counts[window] / most, 2) for window in sorted(counts)
    ]
    by_day = [[cells[24 * day + hour] for hour in range(24)] for day in range(DAYS)]
    assert [len({y for _, y, _ in day}) for day in by_day] == [1] * DAYS
    assert [x for x, _, _ in by_day[0]] == sorted({x for x, _, _ in cells})
    assert [day[0][1] for day in by_day] == sorted({y for _, y, _ in cells})

    growth = titles(page, "svg[aria-label='versions over time'] circle")
    assert [each.split(",")[0] for each in growth] == [f"version {version}" for version in range(len(then))]
    live = titles(page, "svg[aria-label='live splits over time'] circle")
    assert [each.split(" ")[0] for each in live] == [f"{len(each.splits):,}" for each in then]
    added = [new.splits.keys() - old.splits.keys() for old, new in pairwise(then)]
    removed = [old.splits.keys() - new.splits.keys() for old, new in pairwise(then)]
    segments = [new.segments.keys() - old.segments.keys() for old, new in pairwise(then)]
    moved = [number for number, keys in enumerate(removed) if keys]
    assert titles(page, "g.pair") == [
        f"version {number + 1:,}: {sum(then[number].splits[key].size for key in removed[number]):,} → "
        f"{sum(then[number + 1].splits[key].size for key in added[number]):,} bytes"
        for number in moved
    ]
    puts = len(then) + sum(map(len, added)) + sum(map(len, segments))
    costs = {what: (count, price) for what, count, price in rows(page, "costs")}
    assert costs["PUT"] == (f"{puts:,}", f"{puts / 200:.4f}")
    assert costs["GET"] == (f"{sum(map(len, removed)):,}", f"{sum(map(len, removed)) / 250:.4f}")
    assert costs["stored bytes (price per month)"][0] == f"{visits.snapshot.bytes:,}"
    assert rows(page, "indexes") == [["pages", f"{LATE}", "1", "not measured"]]
    _same_as_status(visits, page)
    page.locator("section p").first.evaluate("place => { place.textContent = 'warehouse/visits' }")  # of no machine
    picture(page, tmp_path, "report", height=1000)


def _same_as_status(table: Table, page: Page) -> None:
    told = io.StringIO()
    with redirect_stdout(told):
        main(["status", table.uri, "--json"])
    status = json.loads(told.getvalue())
    owed = ", ".join(f"{step} {each['count']:,} {each['unit']}" for step, each in status["pending"].items())
    (line,) = rows(page, "overview")
    assert (line[0], line[1], line[2], line[6]) == ("visits", status["status"], f"{status['rows']:,}", owed)
    assert owed
