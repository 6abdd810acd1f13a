"""Ctrl-C and SIGTERM while Dagster runs in the process of a command.

During a run Dagster has both signals for itself: it ends the step that is under way, records that in the history, and
returns as from any other run; a signal that comes while it writes its history may be forgotten. So what makes one
run after the other has to hear of them from somewhere else.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from jobs.process.stop_signals import STOP_SIGNALS


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """While the block runs, the value says whether SIGINT or SIGTERM came, whatever handles them.

    Outside of runs both raise `KeyboardInterrupt`. In a thread other than the main one, to which no signal comes, the
    answer is always False.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    heard, written = socket.socketpair()
    with heard, written:
        heard.settimeout(0)
        written.settimeout(0)
        # Python writes the number of every signal there that any handler of Python's is called for.
        was_told = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        handlers = {each: signal.signal(each, signal.default_int_handler) for each in STOP_SIGNALS}
        try:
            yield _Ear(heard).heard
        finally:
            for each, handler in handlers.items():
                signal.signal(each, handler)
            signal.set_wakeup_fd(was_told)


class _Ear:
    """Remembers that a signal was read from the socket."""

    def __init__(self, source: socket.socket) -> None:
        self._source, self._heard = source, False

    def heard(self) -> bool:
        """Return whether one of the signals has come so far."""
        with suppress(BlockingIOError):
            self._heard = self._heard or bool(set(self._source.recv(4096)) & set(STOP_SIGNALS))
        return self._heard
