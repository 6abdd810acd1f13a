"""The class for a metric of a benchmark, and the command line of every benchmark."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One measurement.

    Attributes:
        name: What was measured.
        value: The value, in `unit`.
        unit: The unit.
        against: The peer.
        ratio: The factor by which the value is better than that of the peer. Above 1 is better. None without a peer.
        aim: The target for the ratio, or None.
    """

    name: str
    value: float
    unit: str
    against: str | None = None
    ratio: float | None = None
    aim: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the ratio reaches the aim, or None without an aim."""
        return None if self.aim is None or self.ratio is None else self.ratio >= self.aim

    def to_json(self) -> str:
        """Return the metric as one line of JSON."""
        return json.dumps({**asdict(self), "holds": self.holds})

    def to_text(self) -> str:
        """Return the metric as one line for a terminal."""
        line = f"{self.name:<52} {self.value:>14,.3f} {self.unit:<8}"
        if self.ratio is not None:
            line += f" {self.ratio:>7.2f} x {self.against}"
        if self.aim is not None:
            line += f"  aim {self.aim:g}: {'holds' if self.holds else 'MISSED'}"
        return line


class Measure(Protocol):
    """A benchmark, which yields its metrics. With `small`, the benchmark takes only a few seconds."""

    def __call__(self, *, small: bool) -> Iterable[Metric]:
        """Run the measurement. Yield each metric as soon as it is known."""
        ...


def command(measure: Measure, summary: str, argv: Sequence[str] | None = None) -> int:
    """Run a benchmark as a command and print one line per metric. Return 0 if the benchmark raises no error."""
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--small", action="store_true", help="a few seconds' worth, to see that it runs")
    parser.add_argument("--json", action="store_true", help="one JSON object per metric")
    arguments = parser.parse_args(argv)
    for metric in measure(small=arguments.small):
        sys.stdout.write((metric.to_json() if arguments.json else metric.to_text()) + "\n")
        sys.stdout.flush()
    return 0


def seconds(work: Callable[[], object]) -> float:
    """Return the wall-clock time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median(values: Sequence[float]) -> float:
    """Return the median. The median is the right value on a machine with other load."""
    return statistics.median(values)


def in_turns(works: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """Call the functions in turns. Return the median milliseconds of each function, without the first turn."""
    turns = [[1000 * seconds(work) for work in works] for _ in range(runs + 1)]
    return [median(times) for times in zip(*turns[1:], strict=True)]


def beside(name: str, value: float, ours: float) -> Metric:
    """Return a metric that compares a peer's milliseconds with Tidemark's milliseconds."""
    return Metric(name=name, value=value, unit="ms", against="ours", ratio=ours / value)


def peak_mib() -> float:
    """Return the peak memory of this process.

    `getrusage` also counts the memory of the process from which this process was forked.
    """
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    (line,) = (each for each in status.read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def grown_mib(work: Callable[[], object], every_s: float = 0.005) -> float:
    """Return the largest growth of this process in MiB during a call. The memory is read at short intervals.

    Pages of mapped files do not count, because the operating system drops them when it needs memory.
    """
    most = before = _anonymous_mib()
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(every_s):
            most = max(most, _anonymous_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return max(most - before, 0.1)


def _anonymous_mib() -> float:
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return peak_mib()
    (line,) = (each for each in status.read_text().splitlines() if each.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def reset_peak() -> None:
    """Make `peak_mib` count from the current memory.

    On systems other than Linux, `peak_mib` counts from the start of the process.
    """
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")
