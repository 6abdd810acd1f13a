"""A job ends with the process that started it for a run: one that is killed can end nothing itself.

Without that, the job of a run that Dagster holds for failed would go on beside the one that is started in its place. It
is the same on Linux and macOS: the job looks every second whose child it is.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PARENT = "TIDEMARK_PARENT_PROCESS"
"""The variable by which a process says to a job that the job is to end with it: the id of the process."""

LOOK_SECONDS = 1.0

LOG = logging.getLogger(__name__)


def as_parent() -> dict[str, str]:
    """Return what a job that this process starts must be given in its environment, so that it ends with it."""
    return {PARENT: str(os.getpid())}


@contextmanager
def ending_with_parent(environment: Mapping[str, str]) -> Iterator[None]:
    """While the block runs, the end of the process in `environment` is a SIGTERM to this one: it stops as by a signal.

    Without that variable nothing happens. To be called in the main thread, which is where signals are heard.
    """
    if not (parent := environment.get(PARENT)):
        yield
        return
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(int(parent), ended), name="parent", daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()


def _watch(parent: int, ended: threading.Event) -> None:
    while os.getppid() == parent:
        if ended.wait(LOOK_SECONDS):
            return
    LOG.error("process %d, which started this job, has ended; so does the job", parent)
    # To the thread itself: what the main thread waits for is broken off only by a signal that it gets.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
