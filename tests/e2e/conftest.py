"""Fixtures of the end-to-end tests: the access log after all jobs, made once per session, and a browser."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.datasets import access_log_lines
from jobs.spark.spark import Spark
from storage_core.data.rows.window_range import EVERY_WINDOW, WindowRange, window_range
from storage_core.data.steps import options_for
from storage_core.log.job_run import JobReport, run
from tests.e2e.raw_access_log import Line, Log, read
from tests.support.batches import one_file_per_batch
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
    """One run of a job: its report, and the new files in the table's folder with their sizes."""

    report: JobReport
    new_files: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Story:
    """A table with one version per named step. Tests read the versions by time travel and write nothing."""

    uri: str
    root: Path
    landing: Path
    raw: Mapping[str, Log]
    steps: Mapping[str, Step]

    def version(self, step: str) -> int:
        """Return the version that the step made."""
        return self.steps[step].report.version

    def table(self, step: str) -> Table:
        """Open the table at the version that existed after the step."""
        return Table.open(self.uri, at=self.version(step))

    def lines(self, *, late: bool) -> list[Line]:
        """Return the lines of the raw files, with or without the lines of the late file."""
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
    """Return the access log after all jobs have run.

    The log lands in pieces, and jobs run between the pieces. The last file of the log contains late lines, from every
    hour of the log.

    | step | content of the table and its indexes |
    |---|---|
    | landed | the table has all lines except the late lines, and no index segments |
    | compacted | all lines except the late lines, in one sorted run per window, and no index segments |
    | indexed | the same lines as in `compacted`, and index segments for every split |
    | late | the table has all lines, and no index segment covers the splits with late lines |
    | half | as in `late`, with the windows of the first two days compacted |
    | whole | every window compacted, no split has a segment |
    | caught_up | every split has its segments |
    """
    root = tmp_path_factory.mktemp("access_log")
    declaration = _declaration(root)
    pieces = _pieces()
    steps: dict[str, Step] = {}

    def step(name: str, job: str, windows: WindowRange = EVERY_WINDOW) -> None:
        before = set(_files(root / "table"))
        uri, file = str(root / "table"), str(declaration)
        report = run(options_for(job, table_uri=uri, declaration=file, windows=windows), spark)
        files = _files(root / "table")
        steps[name] = Step(report, {key: size for key, size in files.items() if key not in before})

    _land(root / "landing", {name: lines for name, lines in pieces.items() if name != LATE_FILE})
    with one_file_per_batch():
        step("landed", "ingest")
    step("compacted", "compact")
    step("indexed", "catch_up")
    _land(root / "landing", {LATE_FILE: pieces[LATE_FILE]})
    step("late", "ingest")
    step("half", "compact", window_range(None, "2015-05-17T00:00", "2015-05-19T00:00"))
    step("whole", "compact")
    step("caught_up", "catch_up")
    raw = {name: read(lines) for name, lines in pieces.items()}
    return Story(str(root / "table"), root / "table", root / "landing", raw, steps)


def _pieces() -> dict[str, list[str]]:
    """Return three files of the log, cut in the middle of hours, and a late file with every 23rd line."""
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
    """Write the declaration of this repository with locations below `root`, and return the file."""
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
