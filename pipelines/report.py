"""The HTML report about tables. `tidemark report` writes this report.

The module has four parts:

- The content: all data of the report about one table. These data are read from storage. The history comes from the
  table's log (docs/architecture/orchestration.md).
- The plots: heat maps, pairs of bars, and lines over time. They are SVG.
- The page: one HTML file without scripts and without external resources. All text in this file is escaped. Each mark of
  a plot has a `title`. A browser shows this title as a tooltip.
- The file: the location to which the report is written.
"""

from __future__ import annotations

import datetime as dt
import html
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from pipelines.last_failures import LastFailure
from pipelines.status import StatusTarget, TableStatus, collect_open_status, collect_status, index_lag, next_run
from pipelines.tables import age, duration, size, write_whole
from storage_core.base.clock import Clock, SystemClock
from storage_core.base.errors import TidemarkError, as_tidemark_error
from storage_core.base.text import counted, escaped
from storage_core.log.job_run import Prices
from storage_core.log.versions import Written, written
from storage_core.maintain.rejections import counts_text
from storage_core.maintain.status import Status
from storage_core.read.describe import describe
from storage_core.table import Table

# The content of a report.


MOST_COMMITS = 500
"""The default number of newest commits that the report reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The live splits of one window. If the splits have no window, `start` and `seconds` are None."""

    start: int | None
    seconds: int | None
    splits: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The minimum number of requests that the commits needed.

    A commit needs one PUT for itself and one PUT per object that it wrote. A commit also needs one GET per split that
    it replaced.
    """

    put: int
    get: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All data of the report about one table.

    Attributes:
        looked: The state of the table. The other fields are empty if the table cannot be read.
        windows: The windows with their live splits.
        commits: The commits, newest first.
        recalls: The recall of each vector index, if it was measured.
    """

    looked: TableStatus
    windows: Sequence[Window] = ()
    commits: Sequence[Written] = ()
    recalls: Mapping[str, float] = field(default_factory=dict)

    @property
    def write_amplification(self) -> float | None:
        """The bytes that all commits wrote, divided by the bytes that commits with new rows wrote.

        None if no commit added rows.
        """
        brought = sum(each.bytes_added for each in self.commits if each.brings_rows)
        total = sum(each.bytes_added + each.segment_bytes for each in self.commits)
        return total / brought if brought else None

    @property
    def requests(self) -> Requests:
        """The minimum number of requests that the commits needed."""
        return Requests(
            put=sum(1 + each.splits_added + each.segments_added for each in self.commits),
            get=sum(each.splits_removed for each in self.commits),
        )

    def live_splits(self) -> Iterator[tuple[int, int]]:
        """Yield the time (ms) of each commit and the number of live splits after it, oldest commit first.

        The numbers are computed backwards from the newest commit.
        """
        found = []
        live = 0 if self.looked.status is None else self.looked.status.splits
        for each in self.commits:
            found.append((each.timestamp, live))
            live += each.splits_removed - each.splits_added
        return reversed(found)


def content_of(place: StatusTarget, clock: Clock, *, most_commits: int = MOST_COMMITS, recall: bool = False) -> Content:
    """Return the content of the report about one table. Errors are not raised, because the result contains them.

    Cost: the requests of `maintain.status`, and one GET per commit. With `recall`, the function also reads all
    embeddings of the table.
    """
    try:
        table = Table.open(place.uri)
        looked = collect_open_status(table, place, clock)
        about = describe(table.store, table.snapshot, now_ms=clock.now_ms())
        commits = tuple(islice(written(table.store, table.version), most_commits))
        vectors = [each.name for each in table.config.indexes if recall and each.kind == "vector"]
        recalls = {name: table.recall(name).recall for name in vectors}
    except Exception as error:  # noqa: BLE001  # any error concerns only this table
        return Content(looked=_failed(place, as_tidemark_error(error), clock))
    return Content(looked=looked, windows=_windows(about), commits=commits, recalls=recalls)


def _failed(place: StatusTarget, error: TidemarkError, clock: Clock) -> TableStatus:
    if place.is_declared and error.kind == "not_found":
        return collect_status(place, clock)
    return TableStatus(place=place, error=error, requests={})


def _windows(about: Mapping[str, object]) -> list[Window]:
    listed = about["windows"]
    if not isinstance(listed, list):
        return []
    return [
        Window(
            start=each["window_start"],
            seconds=each["window_seconds"],
            splits=each["splits"],
            rows=each["rows"],
            bytes=each["bytes"],
        )
        for each in listed
    ]


# Plots.


WIDTH: Final = 960
_LABELS: Final = 90
_PLOT: Final = WIDTH - _LABELS - 10
_HEIGHT: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a heat map: its position, its strength from 0 to 1, and its tooltip."""

    row: int
    column: int
    strength: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two adjacent bars and their tooltip."""

    before: float
    after: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a line: its time in milliseconds, its value, and its tooltip."""

    at: int
    value: float
    title: str


def text(given: str) -> str:
    """Return the text in escaped form for HTML and SVG, including attributes."""
    return html.escape(escaped(given, keep="\n"))


def minute(milliseconds: int) -> str:
    """Return a time (UTC) as text without seconds.

    If the time is not between the years 1 and 9999, return the number of milliseconds.
    """
    try:
        instant = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms"
    return f"{instant:%Y-%m-%d %H:%M}"


def heat_map(name: str, rows: Sequence[str], columns: int, cells: Sequence[Cell]) -> str:
    """Return a heat map with one label per row."""
    width, height = min(24.0, _PLOT / max(columns, 1)), 16
    marks = [f'<text x="0" y="{number * height + 12}">{text(label)}</text>' for number, label in enumerate(rows)]
    marks += [
        f'<rect class="cell" x="{_LABELS + each.column * width:.1f}" y="{each.row * height}" width="{width - 1:.1f}" '
        f'height="{height - 1}" fill-opacity="{0.15 + 0.85 * each.strength:.2f}">'
        f"<title>{text(each.title)}</title></rect>"
        for each in cells
    ]
    return _svg(name, len(rows) * height, marks)


def pairs(name: str, found: Sequence[Pair]) -> str:
    """Return a plot with pairs of bars, from left to right."""
    most = max((max(each.before, each.after) for each in found), default=0) or 1
    step = min(40.0, _PLOT / max(len(found), 1))
    marks = [_axis(most)]
    for number, each in enumerate(found):
        left = _LABELS + number * step
        bars = ((each.before, left, "before"), (each.after, left + step * 0.4, "after"))
        drawn = (
            f'<rect class="{kind}" x="{x:.1f}" y="{_HEIGHT - _HEIGHT * value / most:.1f}" width="{step * 0.38:.1f}" '
            f'height="{_HEIGHT * value / most:.1f}"/>'
            for value, x, kind in bars
        )
        marks.append(f'<g class="pair"><title>{text(each.title)}</title>{"".join(drawn)}</g>')
    return _svg(name, _HEIGHT, marks)


def line(name: str, points: Sequence[Point]) -> str:
    """Return a plot with one line over time. The line stays at each value until the time of the next value."""
    most = max((each.value for each in points), default=0) or 1
    first, last = points[0].at, points[-1].at
    span = max(last - first, 1)
    places = [
        (_LABELS + _PLOT * (each.at - first) / span, _HEIGHT - _HEIGHT * each.value / most, each) for each in points
    ]
    path = f"M{places[0][0]:.1f},{places[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y, _ in places[1:])
    dots = (
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{text(each.title)}</title></circle>'
        for x, y, each in places
    )
    times = (
        f'<text x="{_LABELS}" y="{_HEIGHT + 14}">{minute(first)}</text>'
        f'<text x="{WIDTH - 10}" y="{_HEIGHT + 14}" text-anchor="end">{minute(last)}</text>'
    )
    return _svg(name, _HEIGHT + 18, [_axis(most), f'<path class="line" d="{path}"/>', *dots, times])


def _axis(most: float) -> str:
    return (
        f'<text x="0" y="12">{most:,.0f}</text><text x="0" y="{_HEIGHT}">0</text>'
        f'<path class="axis" d="M{_LABELS},0V{_HEIGHT}H{WIDTH - 10}"/>'
    )


def _svg(name: str, height: int, marks: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-label="{text(name)}" viewBox="0 0 {WIDTH} {height + 2}" '
        f'width="{WIDTH}" height="{height + 2}">{"".join(marks)}</svg>'
    )


# The HTML page.


MOST_ROWS: Final = 31
MOST_PAIRS: Final = 80
MOST_LISTED: Final = 50
_DAY: Final = 86_400
_MOST_COLUMNS: Final = 96
_GIB: Final = 2**30

_STYLE: Final = """
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1000px;padding:0 1rem;color:#1c2733}
h2{border-top:1px solid #cfd8e0;padding-top:1rem}h3{margin-bottom:.3rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:.15rem .8rem .15rem 0;vertical-align:top}td{overflow-wrap:anywhere}
th{font-weight:600;border-bottom:1px solid #cfd8e0}
.ok{color:#1a7f4b}.behind,.rejecting,.failing,.failed{color:#b3261e;font-weight:600}p{max-width:70ch}
svg{max-width:100%;height:auto;font-size:11px}.cell{fill:#0b5fa5}.before{fill:#9fb3c4}.after{fill:#0b5fa5}
.line{fill:none;stroke:#0b5fa5;stroke-width:1.5}.point{fill:#0b5fa5}.axis{fill:none;stroke:#cfd8e0}
"""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

_PENDING = ("pending", "index lag", "unmerged", "quarantine entries", "next compaction")


def page(
    contents: Sequence[Content], *, now_ms: int, prices: Prices, failures: Mapping[str, LastFailure] | None = None
) -> str:
    """Return the HTML text: an overview with one line per table, and one section per table."""
    known = failures or {}
    lines = [_line(each, known.get(each.looked.place.name), now_ms) for each in contents]
    head = ("table", "status", "rows", "size", "newest row", "commit", *_PENDING, "last failure")
    parts = [
        (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        ),
        f"<title>Tidemark report</title><style>{_STYLE}</style></head><body>",
        f"<h1>Tidemark report</h1><p>Written at {minute(now_ms)} UTC. All times are UTC.</p>",
        _table("overview", head, lines),
        *(_section(number, each, prices) for number, each in enumerate(contents)),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _line(content: Content, failure: LastFailure | None, now_ms: int) -> list[str]:
    looked = content.looked
    state = looked.state_after(failure).value.replace("_", " ")
    shown = [f'<a href="#{_anchor(content)}">{text(looked.place.name)}</a>', f'<span class="{state}">{state}</span>']
    known = [f"{step} {each.count:,} {each.unit}" for step, each in looked.pending.items()]
    pending = ", ".join([*known, *(f"{step} ?" for step in looked.unknown)])
    if (status := looked.status) is None:
        shown += ["", "", "", "", pending, *("" for _ in _PENDING[1:])]
    else:
        newest = "" if status.newest_row_at is None else f"{age(now_ms, status.newest_row_at)} ago"
        shown += [f"{status.rows:,}", size(status.bytes), newest, f"{age(now_ms, status.committed_at)} ago"]
        shown += [pending, text(index_lag(status))]
        shown += ["" if status.oldest_unmerged_ms is None else duration(status.oldest_unmerged_ms)]
        shown += [f"{status.quarantine_entries:,}", text(next_run(status))]
    failed = "" if failure is None or failure.is_over else f"{minute(failure.at)} {failure.step}: {failure.message}"
    return [*shown, text(failed)]


def _anchor(content: Content) -> str:
    return text(f"table-{content.looked.place.name}")


def _section(number: int, content: Content, prices: Prices) -> str:
    place = content.looked.place
    head = (
        f'<section id="{_anchor(content)}" data-number="{number}"><h2>{text(place.name)}</h2><p>{text(place.uri)}</p>'
    )
    status = content.looked.status
    if status is None:
        error = content.looked.error
        why = "not made yet" if error is None else f"{error.kind}: {error}"
        return f'{head}<p class="failed">{text(why)}</p></section>'
    parts = [head, *_about(content, status), *_over_windows(content.windows), *_over_commits(content)]
    parts += [_costs(content, status, prices), _indexes(content, status), _history(content), "</section>"]
    return "\n".join(parts)


def _about(content: Content, status: Status) -> Iterator[str]:
    run = status.next_run
    amplification = content.write_amplification
    rejected = "no row" if status.rejections is None else counts_text(status.rejections)
    metrics = {
        "version": f"{status.version:,}",
        "splits": f"{status.splits:,}",
        "rows": f"{status.rows:,}",
        "bytes": f"{status.bytes:,}",
        "write amplification": "" if amplification is None else f"{amplification:.2f}",
        "next compaction": f"{run.splits:,} → {run.outputs:,} splits, reads {run.read_bytes:,} bytes"
        if run.splits
        else "nothing to do",
        "retention frees": f"{status.freed_bytes:,} bytes",
        "oldest unmerged": "" if status.oldest_unmerged_ms is None else duration(status.oldest_unmerged_ms),
        "quarantine": counted(status.quarantine_entries, "entry", "entries"),
        "rejected": content.looked.rejection_text or rejected,
        "freshness": "not declared" if status.freshness_ms is None else duration(status.freshness_ms),
        "behind": ", ".join(status.behind).replace("_", " ") or "nothing",
    }
    yield _table("metrics", (), [[text(name), text(value)] for name, value in metrics.items()])
    first = content.commits[-1].version if content.commits else 0
    yield (
        f"<p>The write amplification counts commits from version {first:,} on: all written bytes per byte of the "
        "commits that added rows.</p>"
    )


def _over_windows(windows: Sequence[Window]) -> Iterator[str]:
    """Yield the heat map of the number of splits per window.

    If a day has at most 96 windows, each row shows one day. Otherwise, a row shows a fixed number of windows. The map
    shows only the newest `MOST_ROWS` rows.
    """
    timed = [each for each in windows if each.start is not None and each.seconds]
    if not timed:
        return
    seconds = max(each.seconds or 1 for each in timed)
    columns = max(1, min(_MOST_COLUMNS, _DAY // seconds)) if seconds < _DAY else MOST_ROWS
    by_cell: dict[tuple[int, int], list[Window]] = {}
    for each in timed:
        by_cell.setdefault(divmod((each.start or 0) // seconds, columns), []).append(each)
    rows = sorted({row for row, _ in by_cell})[-MOST_ROWS:]
    place = {row: number for number, row in enumerate(rows)}
    most = max(sum(each.splits for each in found) for found in by_cell.values())
    cells = [
        Cell(
            row=place[row],
            column=column,
            strength=sum(each.splits for each in found) / most,
            title=_cell(minute((row * columns + column) * seconds * 1000), found),
        )
        for (row, column), found in sorted(by_cell.items())
        if row in place
    ]
    yield "<h3>Splits per window</h3><p>One row per day, or per as many windows. A darker cell has more splits.</p>"
    labels = [minute(row * columns * seconds * 1000)[:10] for row in rows]
    yield heat_map("splits per window", labels, columns, cells)
    if left_out := len(by_cell) - len(cells):
        yield f"<p>{left_out:,} older cells are left out.</p>"


def _cell(start: str, found: Sequence[Window]) -> str:
    splits, rows, size_bytes = (sum(getattr(each, name) for each in found) for name in ("splits", "rows", "bytes"))
    return f"{start}: {splits:,} splits, {rows:,} rows, {size_bytes:,} bytes"


def _over_commits(content: Content) -> Iterator[str]:
    compactions = [
        Pair(
            before=each.bytes_removed,
            after=each.bytes_added,
            title=f"version {each.version:,}: {each.bytes_removed:,} → {each.bytes_added:,} bytes",
        )
        for each in reversed(content.commits)
        if not each.brings_rows and each.splits_removed and each.splits_added
    ]
    if compactions:
        yield "<h3>Bytes before and after</h3><p>One pair of bars per commit that only rewrote rows.</p>"
        yield pairs("bytes before and after", compactions[-MOST_PAIRS:])
    if content.commits:
        oldest_first = list(reversed(content.commits))
        yield "<h3>Log growth</h3>"
        grown = [
            Point(at=each.timestamp, value=each.version, title=f"version {each.version:,}, {minute(each.timestamp)}")
            for each in oldest_first
        ]
        yield line("versions over time", grown)
        yield "<h3>Live splits</h3>"
        live = (
            Point(at=at, value=splits, title=f"{splits:,} splits, {minute(at)}") for at, splits in content.live_splits()
        )
        yield line("live splits over time", list(live))


def _costs(content: Content, status: Status, prices: Prices) -> str:
    requests = content.requests
    lines = [
        ["PUT", f"{requests.put:,}", f"{requests.put / 1000 * prices.put:.4f}"],
        ["GET", f"{requests.get:,}", f"{requests.get / 1000 * prices.get:.4f}"],
        ["stored bytes (price per month)", f"{status.bytes:,}", f"{status.bytes / _GIB * prices.storage:.4f}"],
    ]
    why = (
        "<h3>Requests and their price</h3><p>The smallest number of requests of these commits, by the log: a PUT per "
        "object, and a GET per replaced split. Dagster shows the actual numbers of runs.</p>"
    )
    return why + _table("costs", ("what", "count", "price"), lines)


def _indexes(content: Content, status: Status) -> str:
    if not status.indexes:
        return ""
    lines = [
        [text(each.name), f"{each.rows:,}", f"{each.versions:,}", _recall(content.recalls.get(each.name))]
        for each in status.indexes
    ]
    return "<h3>Indexes</h3>" + _table("indexes", ("index", "rows behind", "versions behind", "recall"), lines)


def _recall(found: float | None) -> str:
    return "not measured" if found is None else f"{found:.3f}"


def _history(content: Content) -> str:
    lines = [
        [
            f"{each.version:,}",
            minute(each.timestamp),
            text(each.operation),
            f"+{each.splits_added:,} −{each.splits_removed:,}",
            f"{each.bytes_added:,}",
            text(", ".join(f"{name} {value}" for name, value in each.metrics.items() if value)[:300]),
        ]
        for each in content.commits[:MOST_LISTED]
    ]
    head = ("version", "time", "operation", "splits", "bytes written", "metrics")
    return "<h3>History</h3>" + _table("history", head, lines)


def _table(name: str, head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table. The cells already contain HTML."""
    heads = "".join(f"<th>{each}</th>" for each in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f'<table class="{name}">{f"<tr>{heads}</tr>" if heads else ""}{body}</table>'


# The file of the report.


REPORT = "TIDEMARK_REPORT"
"""The name of an environment variable. This variable contains the path of the report about all tables.

The default is `report.html` next to `tables/`.
"""

REPORT_PATH = "/tidemark/report"
"""The URL path of the report file on the webserver."""


def report_file(root: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the report for the declarations in this folder."""
    return (root / (environment.get(REPORT) or "report.html")).resolve()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """The result of a written report: the file size in bytes, and the state of each table by name."""

    bytes: int
    states: Mapping[str, str]


def write_report(
    file: Path,
    places: Sequence[StatusTarget],
    *,
    failures: Mapping[str, LastFailure],
    prices: Prices | None = None,
    most_commits: int = MOST_COMMITS,
    recall: bool = False,
    clock: Clock | None = None,
) -> WrittenReport:
    """Write the report of these tables to the file, replace an existing file, and return the result.

    If a table cannot be read, the report contains its error. Raises `NotWritten` if the file cannot be written.
    """
    now = clock or SystemClock()
    contents = [content_of(each, now, most_commits=most_commits, recall=recall) for each in places]
    text = page(contents, now_ms=now.now_ms(), prices=prices or Prices(), failures=failures)
    write_whole(file, text)
    looked = {each.looked.place.name: each.looked for each in contents}
    states = {name: each.state_after(failures.get(name)).value for name, each in looked.items()}
    return WrittenReport(bytes=len(text.encode()), states=states)
