"""The sandboxes of this process: at most one per query at a time, and a few that wait for the next query."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import ClassVar

from storage_core.engine.sandbox.process import Sandbox

MOST_KEPT = 8


def prepare() -> None:
    """Begin to start a sandbox for the query that follows, unless one is kept. Raises `Unavailable`."""
    keep(taken())


def taken() -> Sandbox:
    """Return a sandbox that waits, or a new one. Raises `Unavailable` where the system gives no process."""
    with _Pool.lock:
        ready = [each for each in _Pool.waiting if each.is_ready]
        spent = [each for each in _Pool.waiting if each not in ready]
        found = ready.pop() if ready else None
        _Pool.waiting[:] = ready
    for each in spent:
        each.end()
    if found is None:
        found = Sandbox()
        with _Pool.lock:
            _Pool.living.add(found)
    return found


def keep(sandbox: Sandbox) -> None:
    """Keep a sandbox for the next query, or end it where enough are kept."""
    with _Pool.lock:
        if len(_Pool.waiting) < MOST_KEPT:
            _Pool.waiting.append(sandbox)
            return
    sandbox.end()


def end_all() -> None:
    """End all sandboxes, at the end of this process: also those of streams that are not read to their end."""
    with _Pool.lock:
        living = list(_Pool.living)
    for each in living:
        each.end()


class _Pool:
    # Mutable state at module level: the processes that a process has started are of the process.
    lock = threading.Lock()
    waiting: ClassVar[list[Sandbox]] = []
    living: ClassVar[weakref.WeakSet[Sandbox]] = weakref.WeakSet()


def _leave() -> None:
    """In a copy of the process, hold none of its sockets open: they would keep its sandboxes alive."""
    _Pool.lock, _Pool.waiting = threading.Lock(), []
    for each in _Pool.living:
        each.end()


os.register_at_fork(after_in_child=_leave)
atexit.register(end_all)
