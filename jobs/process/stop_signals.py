"""SIGINT and SIGTERM as a job hears them: once, so that what ends it is not broken off in its turn.

One Ctrl-C reaches a job twice: a terminal sends it to everything it runs, and Dagster hands on its own. People press it
twice, and a supervisor that waited long enough after a SIGTERM sends more. None of them may keep a lease from its
release.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def heard_once() -> Iterator[None]:
    """While the block runs, the first SIGINT or SIGTERM raises `KeyboardInterrupt`; those after it do nothing.

    The argument of what is raised is the number of the signal. In a thread other than the main one, to which no signal
    comes, nothing is changed.
    """
    heard = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal heard
        if not heard:
            heard = True
            raise KeyboardInterrupt(number)

    with handlers_kept():
        if threading.current_thread() is threading.main_thread():
            for each in STOP_SIGNALS:
                signal.signal(each, stop)
        yield


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put back what handles both signals when the block ends: Spark takes SIGINT for itself as it starts."""
    handlers = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for each, handler in handlers.items():
                signal.signal(each, handler)
