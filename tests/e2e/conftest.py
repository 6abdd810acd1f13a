"""The access log taken through all jobs, once per session, and read by many tests; and a browser."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from examples.datasets import access_log_lines
from jobs import catch_up, compact, ingest
from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.requests.window_range import EVERY_WINDOW, WindowRange, window_range
from jobs.spark.spark import Spark
from tests.e2e.raw_access_log import Line, Log, read
from tidemark import Table

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REPOSITORY = Path(__file__).parents[2]
LATE_FILE = "4-late.log"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One run of one job: its report, and the files that it made in the table's folder, with their sizes."""

    report: JobReport
    new_files: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Story:
    """A table whose versions are the steps of its life, by name; tests read them by time travel and write nothing."""

    uri: str
    root: Path
    landing: Path
    raw: Mapping[str, Log]
    steps: Mapping[str, Step]

    def version(self, step: str) -> int:
        """Return the version that the step made."""
        return self.steps[step].report.version

    def table(self, step: str) -> Table:
        """Open the table as it was after the step."""
        return Table.open(self.uri, at=self.version(step))

    def lines(self, *, late: bool) -> list[Line]:
        """Return the lines of the raw files, with or without those of the late one."""
        return [line for name, log in self.raw.items() if late or name != LATE_FILE for line in log.lines]


@pytest.fixture
def browser() -> Iterator[Browser]:
    """The Chromium that `make test-browser` found or installed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=os.environ.get("TIDEMARK_CHROMIUM"), args=CHROMIUM_FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory, spark: Spark) -> Story:
    """The access log lands in pieces, the last of them late, one line of every hour in it; in between all jobs run.

    | step | what the table and its indexes hold then |
    |---|---|
    | landed | all but the late lines; no segment |
    | compacted | the same as one sorted run per window; no segment |
    | indexed | the same; every split has its segments |
    | late | all lines; the late ones in splits without segments |
    | half | as before, the windows of the first two days compacted |
    | whole | every window compacted, no split has a segment |
    | caught_up | every split has its segments |
    """
    root = tmp_path_factory.mktemp("access_log")
    declaration = _declaration(root)
    request = JobRequest(table_uri=str(root / "table"), declaration=str(declaration))
    pieces = _pieces()
    steps: dict[str, Step] = {}

    def step(name: str, job: ModuleType, windows: WindowRange = EVERY_WINDOW) -> None:
        before = set(_files(root / "table"))
        report = job.run(replace(request, windows=windows), spark)
        files = _files(root / "table")
        steps[name] = Step(report, {key: size for key, size in files.items() if key not in before})

    _land(root / "landing", {name: lines for name, lines in pieces.items() if name != LATE_FILE})
    step("landed", ingest)
    step("compacted", compact)
    step("indexed", catch_up)
    _land(root / "landing", {LATE_FILE: pieces[LATE_FILE]})
    step("late", ingest)
    step("half", compact, window_range(None, "2015-05-17T00:00", "2015-05-19T00:00"))
    step("whole", compact)
    step("caught_up", catch_up)
    raw = {name: read(lines) for name, lines in pieces.items()}
    return Story(request.table_uri, root / "table", root / "landing", raw, steps)


def _pieces() -> dict[str, list[str]]:
    """The log cut in the middle of hours, and a late file with every 23rd line of the whole log."""
    lines = access_log_lines()
    early = [line for number, line in enumerate(lines) if number % 23]
    names = ("1.log", "2.log.gz", "3.log")
    cuts = (0, 3_300, 6_600, len(early))
    return {
        **{name: early[cuts[index] : cuts[index + 1]] for index, name in enumerate(names)},
        LATE_FILE: lines[::23],
    }


def _land(folder: Path, pieces: Mapping[str, list[str]]) -> None:
    folder.mkdir(exist_ok=True)
    for name, lines in pieces.items():
        data = ("\n".join(lines) + "\n").encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def _declaration(root: Path) -> Path:
    """The repository's own declaration, with its places moved below `root`."""
    text = (REPOSITORY / "tables" / "access_log.yaml").read_text()
    for declared, here in (("warehouse/access_log", "table"), ("landing/access_log", "landing")):
        assert text.count(declared) == 1
        text = text.replace(declared, str(root / here))
    path = root / "access_log.yaml"
    path.write_text(text)
    return path


def _files(root: Path) -> dict[str, int]:
    found = (path for path in root.rglob("*") if path.is_file() and ".tmp" not in path.parts)
    return {str(path.relative_to(root)): path.stat().st_size for path in found}
