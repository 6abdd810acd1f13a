"""Processor seconds, which measure the cost of work for any number of threads and processes.

Every ratio "per core" uses processor seconds. If two cores do the same work in half the time, the cost of the work is
the same.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc")
_SET_CHILD_SUBREAPER = 36
"""The number of an option of the system call `prctl`."""

_PARENT, _FIRST_TIME, _AFTER_TIMES = 1, 11, 15
"""The positions of fields in `/proc/<pid>/stat`. Position 0 is the field after the program name.

The fields contain the parent process and four time values. `_AFTER_TIMES` is the position of the field after the last
time value. The time values are user time and system time, first of the process, then of its children.
"""


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the user and system seconds of one call in this process and all descendants, even ended ones.

    Some processes, such as Spark's JVM, still run when the work ends. The time of a process that still runs is counted
    only on Linux. Linux reports this time in hundredths of a second.
    """
    before = _cost()
    work()
    return max(_cost() - before, 1e-6)


def adopt_orphans() -> None:
    """On Linux, adopt descendants, such as Spark's JVM, when their own parent ends.

    Without the adoption of orphans, the measured time would not include a descendant whose parent has ended.
    """
    if _PROC.is_dir():
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _cost() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + _of_running_children()


def _of_running_children() -> float:
    running = [fields for pid in descendants(os.getpid()) if (fields := _stat(_PROC / str(pid)))]
    ticks = sum(int(each) for fields in running for each in fields[_FIRST_TIME:_AFTER_TIMES])
    return ticks / float(os.sysconf("SC_CLK_TCK"))


def descendants(process: int) -> set[int]:
    """Return the running processes that this process started, directly or indirectly.

    On other systems than Linux, return none.
    """
    if not _PROC.is_dir():
        return set()
    every = {int(each.name): _stat(each) for each in _PROC.iterdir() if each.name.isdigit()}
    parents = {pid: int(fields[_PARENT]) for pid, fields in every.items() if fields}
    family = {process}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {process}


def _stat(process: Path) -> list[str]:
    """Return the fields after the program's name, because the name may contain spaces and parentheses.

    Return no fields for a process that has just ended.
    """
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
