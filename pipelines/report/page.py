"""One HTML file about tables: no script, no server, nothing from elsewhere, and every text in it escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from jobs.reports.prices import Prices
from pipelines.quantities import age, duration, size
from pipelines.report import svg
from pipelines.report.content import Content, Window
from pipelines.report.svg import Cell, Pair, Point, minute, text
from pipelines.runs.failed import LastFailure
from pipelines.status.words import index_lag, next_run
from storage_core.read.status import Status
from storage_core.wording import counted

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
.ok{color:#1a7f4b}.behind,.failing,.failed{color:#b3261e;font-weight:600}p{max-width:70ch}
svg{max-width:100%;height:auto;font-size:11px}.cell{fill:#0b5fa5}.before{fill:#9fb3c4}.after{fill:#0b5fa5}
.line{fill:none;stroke:#0b5fa5;stroke-width:1.5}.point{fill:#0b5fa5}.axis{fill:none;stroke:#cfd8e0}
"""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

_OWED = ("owed", "index lag", "unmerged", "quarantine entries", "next compaction")


def page(
    contents: Sequence[Content], *, now_ms: int, prices: Prices, failures: Mapping[str, LastFailure] | None = None
) -> str:
    """Return the file: a line per table, then a section for each."""
    known = failures or {}
    lines = [_line(each, known.get(each.looked.place.name), now_ms) for each in contents]
    head = ("table", "status", "rows", "size", "newest row", "commit", *_OWED, "last failure")
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
    if (status := looked.status) is None:
        shown += ["", "", "", "", *("" for _ in _OWED)]
    else:
        owed = ", ".join(f"{step} {each.count:,} {each.unit}" for step, each in status.owed.items())
        newest = "" if status.newest_row_at is None else f"{age(now_ms, status.newest_row_at)} ago"
        unknown = ", ".join(f"{step} ?" for step in status.unknown)
        shown += [f"{status.rows:,}", size(status.bytes), newest, f"{age(now_ms, status.committed_at)} ago"]
        shown += [", ".join(filter(None, (owed, unknown))), text(index_lag(status))]
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
        "freshness": "not declared" if status.freshness_ms is None else duration(status.freshness_ms),
        "behind": ", ".join(status.behind).replace("_", " ") or "nothing",
    }
    yield _table("metrics", (), [[text(name), text(value)] for name, value in metrics.items()])
    first = content.commits[-1].version if content.commits else 0
    yield (
        f"<p>Commits from version {first:,} on are counted: what they wrote, per byte of those that brought rows, is "
        "the write amplification.</p>"
    )


def _over_windows(windows: Sequence[Window]) -> Iterator[str]:
    """The heat map: a row per day, or per so many windows where they are longer; the newest rows that there are."""
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
    yield "<h3>Splits per window</h3><p>A row per day, or as many windows; the darker, the more splits.</p>"
    labels = [minute(row * columns * seconds * 1000)[:10] for row in rows]
    yield svg.heat_map("splits per window", labels, columns, cells)
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
        yield "<h3>Bytes before and after</h3><p>A pair of bars per commit that only moved rows.</p>"
        yield svg.pairs("bytes before and after", compactions[-MOST_PAIRS:])
    if content.commits:
        oldest_first = list(reversed(content.commits))
        yield "<h3>Log growth</h3>"
        grown = [
            Point(at=each.timestamp, value=each.version, title=f"version {each.version:,}, {minute(each.timestamp)}")
            for each in oldest_first
        ]
        yield svg.line("versions over time", grown)
        yield "<h3>Live splits</h3>"
        live = (
            Point(at=at, value=splits, title=f"{splits:,} splits, {minute(at)}") for at, splits in content.live_splits()
        )
        yield svg.line("live splits over time", list(live))


def _costs(content: Content, status: Status, prices: Prices) -> str:
    requests = content.requests
    lines = [
        ["PUT", f"{requests.put:,}", f"{requests.put / 1000 * prices.put:.4f}"],
        ["GET", f"{requests.get:,}", f"{requests.get / 1000 * prices.get:.4f}"],
        ["bytes kept, a month", f"{status.bytes:,}", f"{status.bytes / _GIB * prices.storage:.4f}"],
    ]
    why = (
        "<h3>Requests and their price</h3><p>What these commits took at least, by the log: a PUT per object, a GET per "
        "split that was replaced. Runs say in Dagster what they took.</p>"
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
    """A table of cells that are HTML already."""
    heads = "".join(f"<th>{each}</th>" for each in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f'<table class="{name}">{f"<tr>{heads}</tr>" if heads else ""}{body}</table>'
