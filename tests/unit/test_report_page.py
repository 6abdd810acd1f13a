"""The report as text: for any names, errors and windows, it is one well-formed page without scripts."""

from __future__ import annotations

import datetime as dt
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from pipelines import report
from pipelines.last_failures import LastFailure
from pipelines.report import MOST_ROWS, Cell, Content, Pair, Point, Window, page
from pipelines.status import StatusTarget, TableStatus
from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.compact.pending_work import NextRun
from storage_core.log.job_run import Prices, read_prices
from storage_core.maintain.status import Status

HOSTILE = "</td></svg><script>x</script>'\"&\x00\x1b[31m\ud800"
HOUR = 3600
NEW_YEAR = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp())


class Seen(HTMLParser):
    """The HTML tags of a page, and the values of attributes such as `src` and `href` that can load a resource."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [f"{value}" for name, value in attrs if name in ("src", "href", "data", "action", "style")]
        assert not [name for name, _ in attrs if name.startswith("on")]


def looked(name: str, *, error: Corrupt | None = None) -> TableStatus:
    found = Status(
        uri=HOSTILE,
        kind="append",
        version=1,
        splits=3,
        rows=2,
        bytes=5,
        committed_at=0,
        newest_row_at=None,
        rows_came_at=None,
        pending={},
        indexes=(),
        regions=0,
        oldest_unmerged_ms=None,
        quarantine_entries=0,
        next_run=NextRun(),
        freed_bytes=0,
        freshness_ms=None,
        behind=(),
    )
    return TableStatus(
        place=StatusTarget(name=name, uri=HOSTILE), status=None if error else found, error=error, requests={}
    )


def windows(*starts: int, seconds: int = HOUR) -> list[Window]:
    return [Window(start=start, seconds=seconds, splits=1, rows=1, bytes=1) for start in starts]


def written(content: Content) -> str:
    failure = LastFailure(at=0, run_id="r", step=HOSTILE, message=HOSTILE, is_over=False)
    text = page([content], now_ms=0, prices=Prices(), failures={content.looked.place.name: failure})
    seen = Seen()
    seen.feed(text)
    assert seen.tags.isdisjoint({"script", "iframe", "object", "embed", "link", "img", "form", "base"})
    assert all(each.startswith("#") for each in seen.loaded)
    for part in text.split("<svg")[1:]:
        ET.fromstring(f"<svg{part.partition('</svg>')[0]}</svg>")  # noqa: S314  # our own text
    text.encode()
    return text


def test_names_errors_and_failures_of_others_are_text() -> None:
    assert "&lt;script&gt;" in written(Content(looked=looked(HOSTILE), windows=windows(NEW_YEAR)))
    assert "&lt;script&gt;" in written(Content(looked=looked(HOSTILE, error=Corrupt(HOSTILE))))


def test_long_values_are_broken_and_words_of_headers_are_not() -> None:
    style = page([], now_ms=0, prices=Prices()).partition("<style>")[2].partition("</style>")[0]
    broken = [rule.partition("{")[0].strip() for rule in style.split("}") if "overflow-wrap:anywhere" in rule]
    assert broken == ["td"]


def test_the_heat_map_has_the_newest_rows_and_outliers_take_one_each() -> None:
    days = [NEW_YEAR + day * 24 * HOUR for day in range(MOST_ROWS + 5)]
    text = written(Content(looked=looked("x"), windows=windows(*days, 250_000_000_000)))
    assert text.count('class="cell"') == MOST_ROWS
    assert "6 older cells are left out" in text


@pytest.mark.parametrize("seconds", [60, 900, HOUR, 24 * HOUR, 7 * 24 * HOUR])
def test_windows_of_any_length_have_a_cell_each_or_share_one(seconds: int) -> None:
    start = NEW_YEAR // seconds * seconds
    text = written(Content(looked=looked("x"), windows=windows(start, start + seconds, seconds=seconds)))
    assert text.count('class="cell"') == 2
    mixed = [*windows(start, start + seconds, seconds=seconds), *windows(start, seconds=2 * seconds)]
    assert "2026-01-01 00:00: 3 splits" in written(Content(looked=looked("x"), windows=mixed)) or seconds > 24 * HOUR


def test_plots_of_nothing_and_of_one_moment_are_drawn() -> None:
    point = Point(at=5, value=0, title="t")
    drawn = (report.line("l", [point]), report.pairs("p", []), report.heat_map("h", ["r"], 0, []))
    assert all(ET.fromstring(each).tag == "svg" for each in drawn)  # noqa: S314  # our own text
    assert "M90" in report.line("l", [point, point])
    assert report.heat_map("h", ["r"], 1, [Cell(row=0, column=0, strength=1.0, title="a")]).count("<rect") == 1
    assert report.pairs("p", [Pair(before=2, after=1, title="a")]).count("<rect") == 2
    assert report.minute(10**18) == f"{10**18} ms"


def test_prices_are_read_and_wrong_ones_refused() -> None:
    assert read_prices("put=1, get=2") == Prices(put=1.0, get=2.0)
    for wrong in ("put", "list=1", "put=-1", "put=nan", "put=inf"):
        with pytest.raises(InvalidInput):
            read_prices(wrong)
