"""What commands that run a job share: which windows, how long to wait, and the run itself in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipelines.commands import output
from pipelines.commands.arguments import duration_ms
from storage_core.errors import InvalidInput

if TYPE_CHECKING:
    from jobs.reports.report import JobReport
    from jobs.requests.window_range import WindowRange
    from jobs.running.command import Requested
    from jobs.spark.spark import Spark


def run_job(run: Callable[[Requested, Spark], JobReport], request: Requested, *, as_json: bool) -> None:
    """Run a job in this process and print its report."""
    output.report(run_here(run, request), as_json=as_json)


def run_here(run: Callable[[Requested, Spark], JobReport], request: Requested) -> JobReport:
    """Run a job in this process, with Spark only where it has work, and return its report."""
    from jobs.spark.spark import Spark

    with Spark(request.master) as spark:
        return run(request, spark)


def waiting_ms(wait: str | None) -> int:
    """Return how long `--wait` says to wait for a lease, 0 without it. Raises `InvalidInput`."""
    return duration_ms("--wait", wait) or 0


def windows(window: str | None, start: str | None, end: str | None, *, everything: bool) -> WindowRange:
    """Return the windows that the options choose, all without any. Raises `InvalidInput` when they contradict."""
    from jobs.requests.window_range import window_range

    if everything and (window, start, end) != (None, None, None):
        raise InvalidInput("give either --all or windows (--window, --from, --to), not both")
    chosen = window_range(window, start, end)
    if chosen.start is not None and chosen.end is not None and chosen.end <= chosen.start:
        raise InvalidInput(f"--to {end} is not after --from {start}; the end is excluded")
    return chosen
