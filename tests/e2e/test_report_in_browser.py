"""The report as a person sees it: opened as a file in a real browser, and its metrics compared with the log."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page

from pipelines.cli import main
from storage_core.log.actions import Txn
from tests.support import upkeep
from tidemark import Table

pytestmark = pytest.mark.browser

SCHEMA = pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False), ("text", pa.string())])
WORDS = {"name": "words", "kind": "fulltext", "columns": ["text"]}
MIDNIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ATTACK = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two days of windows, some compacted and indexed, with later rows; a commit of others has a hostile name."""
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
    picture = tmp_path / "report.png"
    page.screenshot(path=str(picture), full_page=True)
    assert picture.stat().st_size > 20_000
