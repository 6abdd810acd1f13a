"""Processor seconds: what a piece of work costs, however many threads and processes share it.

The unit of every ratio "per core": a side that takes half the time on two cores has won nothing.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc")
_PARENT, _FIRST_TIME, _AFTER_TIMES = 1, 11, 15
"""Fields of `/proc/<pid>/stat` behind the name of the program: its parent; user, system, and both of its children."""


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the user and system seconds of one call: of this process, its descendants, and those that ended.

    Of processes that still run when the work ends, the JVM of Spark among them, only Linux tells; in hundredths.
    """
    before = _cost()
    work()
    return max(_cost() - before, 1e-6)


def _cost() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + _of_running_children()


def _of_running_children() -> float:
    running = [fields for pid in descendants(os.getpid()) if (fields := _stat(_PROC / str(pid)))]
    ticks = sum(int(each) for fields in running for each in fields[_FIRST_TIME:_AFTER_TIMES])
    return ticks / float(os.sysconf("SC_CLK_TCK"))


def descendants(process: int) -> set[int]:
    """Return the running processes that this one started, or one of them; elsewhere than on Linux none."""
    if not _PROC.is_dir():
        return set()
    every = {int(each.name): _stat(each) for each in _PROC.iterdir() if each.name.isdigit()}
    parents = {pid: int(fields[_PARENT]) for pid, fields in every.items() if fields}
    family = {process}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {process}


def _stat(process: Path) -> list[str]:
    """The fields behind the name, which may hold blanks and parentheses; none of a process that has just ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
