"""Rows that are left behind in a writer that nobody closed: said once, where it ends (decision 0044).

A process that ends says so as an error in the log, which goes to standard error unless logging is set up otherwise; a
child of `multiprocessing` when its function has returned, for most of them skip what other processes do at exit. A
writer that is dropped while its process goes on is a `ResourceWarning`: its rows are still written, but nobody would
hear that they could not be. Nothing is said where nothing is pending, by a copy of the process (decision 0087), or by
one that a signal ends, such as a worker of a pool that is terminated.
"""

from __future__ import annotations

import logging
import sys
import warnings
import weakref

from storage_core.process import HomeProcess
from storage_core.region.backlog import Backlog
from storage_core.wording import counted

_logger = logging.getLogger(__name__)

_LAST = -(2**31)


def say_what_is_lost(group: object, backlog: Backlog, name: str, home: HomeProcess) -> None:
    """Say what is left in the backlog when the object that writes it is gone, or the process ends."""
    end = weakref.finalize(group, _say_lost, backlog, name, home)  # it runs once, however often it is called
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize  # loaded in every child

        Finalize(group, end, exitpriority=_LAST)


def warn_when_dropped(writer: object, backlog: Backlog, name: str, home: HomeProcess) -> None:
    """Warn when the writer is dropped while rows are pending; the end of the process is not its business."""
    weakref.finalize(writer, _warn_dropped, backlog, name, home).atexit = False


# No lock in either: they may run anywhere, also in a thread that holds the writer's.
def _say_lost(backlog: Backlog, name: str, home: HomeProcess) -> None:
    rows = backlog.unheard_rows
    if rows and home.is_here:
        _logger.error(
            "%s: its writer ended without close(): %s given with durable=False not known to be durable, and lost "
            "unless a reader finds them; close the writer, or use it as a context manager",
            name,
            counted(rows, "row"),
        )


def _warn_dropped(backlog: Backlog, name: str, home: HomeProcess) -> None:
    rows = backlog.unheard_rows
    if rows and home.is_here:
        warnings.warn(
            f"{name}: its writer was dropped without close(), {counted(rows, 'row')} given with durable=False not "
            "durable yet; nobody hears whether they will be: close the writer, or use it as a context manager",
            ResourceWarning,
            stacklevel=2,
        )
