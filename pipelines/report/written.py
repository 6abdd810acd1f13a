"""Writing a report: one table after the other, then one file; and where that of all tables is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.reports.prices import Prices
from pipelines.report.content import MOST_COMMITS, content_of
from pipelines.report.page import page
from pipelines.runs.failed import LastFailure
from pipelines.status.table_status import Place
from pipelines.whole_file import write_whole
from storage_core.clock import Clock, SystemClock

REPORT = "TIDEMARK_REPORT"
"""The environment variable that names the file of all tables; else it is `report.html` beside `tables/`."""

REPORT_PATH = "/tidemark/report"
"""Where the webserver shows that file."""


def report_file(root: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the report of the declarations in this folder is written."""
    return (root / (environment.get(REPORT) or "report.html")).resolve()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """The file is written: its bytes, and the state of each table by name."""

    bytes: int
    states: Mapping[str, str]


def write_report(
    file: Path,
    places: Sequence[Place],
    *,
    failures: Mapping[str, LastFailure],
    prices: Prices | None = None,
    most_commits: int = MOST_COMMITS,
    recall: bool = False,
    clock: Clock | None = None,
) -> WrittenReport:
    """Write the report of these tables in place of what the file held, and return what was written.

    A table that cannot be read is in it with its error. Raises `NotWritten`.
    """
    now = clock or SystemClock()
    contents = [content_of(each, now, most_commits=most_commits, recall=recall) for each in places]
    text = page(contents, now_ms=now.now_ms(), prices=prices or Prices(), failures=failures)
    write_whole(file, text)
    looked = {each.looked.place.name: each.looked for each in contents}
    states = {name: each.state_after(failures.get(name)).value for name, each in looked.items()}
    return WrittenReport(bytes=len(text.encode()), states=states)
