"""How long files of tests take: the measured times that balance a run, and those that a run prints at its end.

`tests/run_times.json` holds the seconds of each file, as `make test-times` measured them. The longest files start
first. Files that share the one Spark session of the run stay in one process. A file without a time counts as short.
"""

from __future__ import annotations

import json
import re
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
"""Markers of tests that `make test` does not run; a test has the tier of the first that it carries."""

_SHARES_SPARK = re.compile(r"\bspark: Spark\b")


@cache
def measured() -> Mapping[str, float]:
    """Return the seconds of each file, by its path from the root; empty where none were measured."""
    times: dict[str, float] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    return times


def longest_first(file: str) -> tuple[bool, float]:
    """Return what sorts files into the order of their start: those of the one Spark session, then the longest."""
    return not shares_spark(file), -measured().get(file, 0.0)


@cache
def shares_spark(file: str) -> bool:
    """Return whether tests of this file use the Spark session of their process."""
    return bool(_SHARES_SPARK.search((ROOT / file).read_text(encoding="utf-8")))


class OneSpark(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """Give each worker process whole files, and one of them all files that use the shared Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if shares_spark(file) else file


class RunTimes:
    """Sum up what tests took, per file and per tier; print it at the end, and write it down when asked to."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._files: dict[str, float] = defaultdict(float)
        self._tiers: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a set-up, a call or a tear-down."""
        self._files[report.nodeid.partition("::")[0]] += report.duration
        self._tiers[next((tier for tier in TIERS if tier in report.keywords), "first")] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the time of each tier and of the slowest files, in seconds of all processes together."""
        for line in self._lines():
            terminalreporter.write_line(line)
        if self._output:
            times = {file: round(seconds, 1) for file, seconds in sorted(self._files.items()) if seconds >= 1}
            self._output.write_text(json.dumps(times, indent=0) + "\n")

    def _lines(self) -> Iterator[str]:
        yield "tiers: " + ", ".join(f"{tier} {seconds:.0f} s" for tier, seconds in _largest(self._tiers))
        yield f"slowest of {len(self._files)} files:"
        for file, seconds in _largest(self._files)[:SLOWEST]:
            yield f"{seconds:8.1f} s {file}"


def _largest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda each: -each[1])
