"""Run times of test files. A test run uses measured times to distribute the files evenly to its processes.

The run prints new times, and the time at which each of its processes had no more tests. The processes should end at
about the same time.

`tests/run_times.json` contains the seconds of each file, as measured by `make test-times`. The test files with the
longest run times are executed first. Files that share the Spark session of the run stay in one process. A file without
a measured time counts as short.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).resolve().parents[1]
MEASURED = Path(__file__).with_suffix(".json")
SLOWEST = 20
TIERS = ("browser", "nightly", "extended")
"""Markers of tests that `make test` does not run.

The tier of a test is the first marker of this list that the test has.
"""

_SHARES_SPARK = re.compile(r"\bspark: Spark\b|^from tests\.e2e\.conftest import .*\bStory\b", re.MULTILINE)


@cache
def measured() -> Mapping[str, float]:
    """Return the seconds of each file, by its path from the root. The mapping is empty if nothing was measured."""
    times: dict[str, float] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    return times


def longest_first(file: str) -> tuple[bool, float]:
    """Return the sort key for the start order of files: files of the shared Spark session, then the longest files."""
    return not shares_spark(file), -measured().get(file, 0.0)


@cache
def shares_spark(file: str) -> bool:
    """Return True if tests of this file use the process's Spark session or the fixture `story`, which uses Spark."""
    return bool(_SHARES_SPARK.search((ROOT / file).read_text(encoding="utf-8")))


class OneSpark(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """A scheduler that gives each file to one worker. All files with the shared Spark session go to the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if shares_spark(file) else file


class RunTimes:
    """Reporter that sums test times per file and per tier, prints them at the end, and can write them to a file."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._files: dict[str, float] = defaultdict(float)
        self._tiers: dict[str, float] = defaultdict(float)
        self._began = time.monotonic()
        self._last_ends: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of a setup, a call or a teardown."""
        self._last_ends[getattr(report, "worker_id", "main")] = time.monotonic() - self._began
        self._files[report.nodeid.partition("::")[0]] += report.duration
        self._tiers[next((tier for tier in TIERS if tier in report.keywords), "first")] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the times of each tier and of the slowest files, in seconds summed over all processes."""
        for line in self._lines():
            terminalreporter.write_line(line)
        if self._output:
            times = {file: round(seconds, 1) for file, seconds in sorted(self._files.items()) if seconds >= 1}
            self._output.write_text(json.dumps(times, indent=0) + "\n")

    def _lines(self) -> Iterator[str]:
        yield "tiers: " + ", ".join(f"{tier} {seconds:.0f} s" for tier, seconds in _largest(self._tiers))
        ends = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sorted(self._last_ends.items()))
        yield f"last tests ended after: {ends}"
        yield f"slowest of {len(self._files)} files:"
        for file, seconds in _largest(self._files)[:SLOWEST]:
            yield f"{seconds:8.1f} s {file}"


def _largest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda each: -each[1])
