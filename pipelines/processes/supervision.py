"""Supervision of programs. If one of the programs ends, it is restarted, and the others continue to run.

Each program has its own process group. Ctrl-C in a terminal therefore reaches only this process. If a program received
Ctrl-C during loading, it would print a traceback. When the programs are ready (`is_up`), this process forwards the
signal to the programs, their runs and their jobs.

On Linux, the programs end when this process ends, even if this process is killed. On macOS, the programs continue to
run, and a person must end them.
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
"""If a program runs for at least this number of seconds, it is restarted at once after its end.

If the program ends before this number of seconds, each pause before the next start is longer than the previous pause.
"""
LONGEST_PAUSE_SECONDS = 60.0
PATIENCE_SECONDS = 120.0

_PR_SET_PDEATHSIG = 1

LOG = logging.getLogger(__name__)


class SupervisedProgram:
    """A program that runs, or that waits for its restart."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the program."""
        self._name, self._command, self._environment = name, command, environment
        self._groups: list[int] = []
        self._process = self._start()
        self._started_at, self._pause = time.monotonic(), 0.0
        self._starts_at: float | None = None

    def restart_if_ended(self) -> None:
        """Restart the program if it has ended and its pause is over. Log this."""
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
        """Send the signal of Ctrl-C to the program and its child processes.

        This includes processes from before a restart.
        """
        for group in self._groups:
            _signal(group, signal.SIGINT)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the program in its own process group. Remember process groups of earlier starts that still exist."""
        process = start_program(self._command, self._environment, process_group=0)
        self._groups = [*filter(_signal, self._groups), process.pid]
        return process

    def terminate(self) -> None:
        """Send SIGTERM to the program."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def end(self, until: float) -> None:
        """Wait until the program ends or the monotonic clock shows `until`. Then kill the program."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def start_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    at_our_end: signal.Signals = signal.SIGTERM,
    process_group: int | None = None,
    *,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program. If the system supports this, the program gets a signal when this process ends.

    During the call, no other thread may run.

    Args:
        command: The program and its arguments.
        environment: Its environment.
        at_our_end: The signal.
        process_group: The process group. None is the group of this process, and 0 is a new group.
        pass_fds: File descriptors that the program inherits.
    """
    asked = _end_with_parent(at_our_end)
    return subprocess.Popen(
        command,
        env=environment,
        preexec_fn=asked,  # noqa: PLW1509  # no other thread runs
        process_group=process_group,
        pass_fds=pass_fds,
    )


def keep_running(
    programs: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    is_first_ready: Callable[[], bool] = lambda: True,
    is_up: Callable[[], bool] = lambda: True,
) -> None:
    """Run the programs until this process is interrupted. Then end all programs.

    The first program is started at once. The other programs start when the first program is ready, or after
    `PATIENCE_SECONDS`. The function calls `is_up` until `is_up` returns True.
    """
    kept: list[SupervisedProgram] = []
    waiting = list(programs.items())
    patient_until = time.monotonic() + PATIENCE_SECONDS
    up = False
    hung_up = signal.getsignal(signal.SIGHUP)
    if hung_up is signal.SIG_DFL:  # if a terminal is closed, only this process gets this signal
        signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGINT))
    try:
        while True:
            while waiting and (not kept or is_first_ready() or time.monotonic() > patient_until):
                name, command = waiting.pop(0)
                kept.append(SupervisedProgram(name, command, environment))
            time.sleep(LOOK_SECONDS)
            for each in kept:
                each.restart_if_ended()
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
    """Send the signal to the process group. For 0, send no signal. Return whether the group exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS raises `PermissionError` for a group that has ended
        return False
    return True


def _end_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return a function that a child process calls before it starts the program.

    The child process then gets the signal when its parent process ends. The setting stays in effect when the child
    process executes the program.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, number)

    return ask
