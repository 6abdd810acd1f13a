"""The process of a job: signals, the end of the parent process, and messages to Dagster Pipes.

A job reacts only to the first SIGINT or SIGTERM. Later signals therefore do not interrupt the cleanup of the job. A job
often gets several signals. For example, a terminal sends Ctrl-C to all its processes, and Dagster forwards the signal.
A person presses Ctrl-C twice, or a supervisor sends another signal after a timeout. No signal may prevent the release
of a lease.

A process can start a job for a run. When this process ends, the job ends too, because a killed process cannot end its
children. Otherwise, the job would continue after Dagster has marked its run as failed and started another run. The job
checks every second whether its parent has changed, on Linux and on macOS.

In a Pipes run, the job sends its report to Dagster. The asset that launched the job converts the report into metadata
and check results. Outside a Pipes run, the job sends no report.
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
def interrupt_on_first_signal() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at the first SIGINT or SIGTERM inside the block. Later signals have no effect.

    The argument of the exception is the signal number. Only the main thread receives signals. The block therefore has
    no effect in other threads.
    """
    heard = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal heard
        if not heard:
            heard = True
            raise KeyboardInterrupt(number)

    with restore_signal_handlers():
        if threading.current_thread() is threading.main_thread():
            for each in STOP_SIGNALS:
                signal.signal(each, stop)
        yield


@contextmanager
def restore_signal_handlers() -> Iterator[None]:
    """Restore the handlers of both signals after the block. Spark replaces the SIGINT handler when Spark starts."""
    handlers = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for each, handler in handlers.items():
                signal.signal(each, handler)


# The parent process.


PARENT = "TIDEMARK_PARENT_PROCESS"
"""The name of an environment variable with the id of a process. The job ends when this process ends."""

LOOK_SECONDS = 1.0

LOG = logging.getLogger(__name__)


def parent_environment() -> dict[str, str]:
    """Return the environment variable that makes a job end when this process ends."""
    return {PARENT: str(os.getpid())}


@contextmanager
def end_with_parent(environment: Mapping[str, str]) -> Iterator[None]:
    """Send SIGTERM to this process if the process in `environment` ends during the block.

    If `environment` does not contain the parent process, this context manager does nothing. Call this function in the
    main thread, because only this thread receives signals.
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
    LOG.error("the process %d that started this job has ended, so this job also ends.", parent)
    # Send the signal to the main thread itself. Otherwise, the signal does not interrupt a call in which the main
    # thread waits.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


# Dagster Pipes.


STARTED_BY_DAGSTER = "DAGSTER_PIPES_CONTEXT"
"""The name of an environment variable that Dagster sets for a Pipes process."""


def report_to_dagster(report: Mapping[str, object]) -> None:
    """Send the report or the failure to the Dagster run that launched this process.

    Do nothing outside a Dagster run.
    """
    if STARTED_BY_DAGSTER not in os.environ:
        return
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:
        pipes.report_custom_message(dict(report))


def progress_to_dagster() -> Callable[[int, int], None] | None:
    """Return a function that logs the number of finished items and of all items in the Dagster run.

    Return None outside a Dagster run. After `report_to_dagster`, the function logs nothing.
    """
    if STARTED_BY_DAGSTER not in os.environ:
        return None
    from dagster_pipes import open_dagster_pipes

    def say(done: int, total: int) -> None:
        if not (pipes := open_dagster_pipes()).is_closed:
            pipes.log.info("%d of %d work items done", done, total)

    return say
