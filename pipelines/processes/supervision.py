"""Keeps programs running: one that ends is started again, and none of the others notices.

Each program has a process group of its own, so that Ctrl-C in a terminal reaches this process alone: a program that is
loading would answer it with a traceback. Once they are up (`is_up`) it is handed on, also to runs and their jobs.

On Linux the programs end with the process that keeps them, also when it is killed. On macOS they stay then, and have to
be ended by hand.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

LOOK_SECONDS = 0.5
END_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A program that ran for so long is started again at once; one that ends sooner, after a longer pause each time."""
LONGEST_PAUSE_SECONDS = 60.0
PATIENCE_SECONDS = 120.0

_PR_SET_PDEATHSIG = 1

LOG = logging.getLogger(__name__)


class Kept:
    """A program that is running, or is to be started again when its pause is over."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it."""
        self._name, self._command, self._environment = name, command, environment
        self._groups: list[int] = []
        self._process = self._start()
        self._started_at, self._pause = time.monotonic(), 0.0
        self._starts_at: float | None = None

    def look(self) -> None:
        """Start the program again if it has ended and its pause is over; say so."""
        now = time.monotonic()
        if self._starts_at is not None:
            if now >= self._starts_at:
                self._process = self._start()
                self._started_at, self._starts_at = now, None
            return
        if (code := self._process.poll()) is None:
            return
        steady = now - self._started_at >= STEADY_SECONDS
        self._pause = 0.0 if steady else min(max(1.0, 2 * self._pause), LONGEST_PAUSE_SECONDS)
        self._starts_at = now + self._pause
        LOG.warning("%s has ended with %d; it is started again in %.0f s", self._name, code, self._pause)

    def interrupt(self) -> None:
        """Do to the program, and to all that it started before and after a restart, what Ctrl-C in a terminal does."""
        for group in self._groups:
            _signal(group, signal.SIGINT)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the program in a group of its own; what is left of its former ones is kept in mind."""
        process = started(self._command, self._environment, process_group=0)
        self._groups = [*filter(_signal, self._groups), process.pid]
        return process

    def terminate(self) -> None:
        """Ask the program to end."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def end(self, until: float) -> None:
        """Wait for its end until that instant of the monotonic clock, then kill it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def started(
    command: Sequence[str],
    environment: Mapping[str, str],
    at_our_end: signal.Signals = signal.SIGTERM,
    process_group: int | None = None,
    *,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that gets the signal when this process ends, where the system can do that.

    It is in our process group, or in the one that is given; 0 is one of its own. No other thread may run. It gets the
    descriptors of `pass_fds`.
    """
    asked = _end_with_parent(at_our_end)
    return subprocess.Popen(
        command,
        env=environment,
        preexec_fn=asked,  # noqa: PLW1509  # no thread
        process_group=process_group,
        pass_fds=pass_fds,
    )


def keep_running(
    programs: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    is_first_ready: Callable[[], bool] = lambda: True,
    is_up: Callable[[], bool] = lambda: True,
) -> None:
    """Run the programs, each by its name, until this process is interrupted; then end them all.

    The others are started when the first is ready, or takes longer than `PATIENCE_SECONDS`. `is_up` is asked until it
    says yes.
    """
    kept: list[Kept] = []
    waiting = list(programs.items())
    patient_until = time.monotonic() + PATIENCE_SECONDS
    up = False
    hung_up = signal.getsignal(signal.SIGHUP)
    if hung_up is signal.SIG_DFL:  # a terminal that is closed tells this process alone
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGINT))
    try:
        while True:
            while waiting and (not kept or is_first_ready() or time.monotonic() > patient_until):
                name, command = waiting.pop(0)
                kept.append(Kept(name, command, environment))
            time.sleep(LOOK_SECONDS)
            for each in kept:
                each.look()
            if not up and is_up():
                up = True
                LOG.info("up: %s", ", ".join(programs))
    except KeyboardInterrupt as heard:
        LOG.info("ends: %s", ", ".join(programs))
        if up and signal.SIGTERM not in heard.args:
            for each in kept:
                each.interrupt()
    finally:
        for each in kept:
            each.terminate()
        until = time.monotonic() + END_SECONDS
        for each in kept:
            each.end(until)
        signal.signal(signal.SIGHUP, hung_up or signal.SIG_DFL)


def _signal(group: int, number: int = 0) -> bool:
    """Send the signal, or none, to the process group; return whether there is one."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group that has ended
        return False
    return True


def _end_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """What a child does before it becomes the program: be sent a signal when its parent ends, which outlasts that."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, number)

    return ask
