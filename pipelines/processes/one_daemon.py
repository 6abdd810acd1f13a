"""One daemon per home of Dagster: two would ask for every run twice."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from storage_core.errors import Held


def require_no_other_daemon(home: Path) -> None:
    """Lock the home until this process, or the program that it becomes, has ended. Raises `Held` where another has.

    The lock is one of this machine.
    """
    lock = os.open(home / "daemon.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 20).decode(errors="replace") or "that starts"
        os.close(lock)
        raise Held(
            f"{home}: a daemon of Dagster looks after it already, kept by process {holder}; use that one, end it, or "
            "set another DAGSTER_HOME"
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    fcntl.fcntl(lock, fcntl.F_SETFD, 0)  # the program that this process becomes keeps it
