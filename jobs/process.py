"""The process of a job: the signals that stop it, its end with its parent, and its messages to Dagster Pipes.

A job reacts only to the first SIGINT or SIGTERM, so that later signals do not interrupt its cleanup. A job often gets
several signals. For example, a terminal sends Ctrl-C to all its processes, and Dagster forwards it. People press Ctrl-C
twice, and a supervisor sends more signals after a timeout. No signal may prevent the release of a lease.

A job ends when the process that started it for a run ends, because a killed process cannot end its children. Otherwise,
the job would continue although Dagster counts its run as failed and has started another run. The job checks every
second whether its parent has changed, on Linux and on macOS.

In a Pipes run, the job sends its report to Dagster, and the asset that launched the job turns the report into metadata
and check results. Outside of a Pipes run, the job sends nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

# Signals.


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def heard_once() -> Iterator[None]:
    """Inside the block, the first SIGINT or SIGTERM raises `KeyboardInterrupt`. Later signals do nothing.

    The argument of the exception is the number of the signal. Only the main thread receives signals. In other threads,
    nothing changes.
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
    """Restore the handlers of both signals after the block. Spark replaces the handler of SIGINT when it starts."""
    handlers = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for each, handler in handlers.items():
                signal.signal(each, handler)


# The parent process.


PARENT = "TIDEMARK_PARENT_PROCESS"
"""Environment variable with the id of a process. The job ends when this process ends."""

LOOK_SECONDS = 1.0

LOG = logging.getLogger(__name__)


def as_parent() -> dict[str, str]:
    """Return the environment variable that makes a job end when this process ends."""
    return {PARENT: str(os.getpid())}


@contextmanager
def ending_with_parent(environment: Mapping[str, str]) -> Iterator[None]:
    """Inside the block, the end of the process in `environment` sends SIGTERM to this process.

    Without the variable, nothing happens. Call this function in the main thread, because only this thread receives
    signals.
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
    LOG.error("process %d, which started this job, has ended. The job ends, too.", parent)
    # Signal the main thread itself. Only its own signal interrupts a call in which the main thread waits.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


# Dagster Pipes.


STARTED_BY_DAGSTER = "DAGSTER_PIPES_CONTEXT"
"""Environment variable that Dagster sets for a process under Pipes."""


def report_to_dagster(report: Mapping[str, object]) -> None:
    """Send the report, or the failure, to the Dagster run that launched this process. Do nothing without a run."""
    if STARTED_BY_DAGSTER not in os.environ:
        return
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:
        pipes.report_custom_message(dict(report))


def progress_to_dagster() -> Callable[[int, int], None] | None:
    """Return a function that logs progress in the Dagster run: the number of finished items and of all items.

    Return None without a run. `report_to_dagster` ends these messages.
    """
    if STARTED_BY_DAGSTER not in os.environ:
        return None
    from dagster_pipes import open_dagster_pipes

    def say(done: int, total: int) -> None:
        if not (pipes := open_dagster_pipes()).is_closed:
            pipes.log.info("%d of %d work items done", done, total)

    return say
