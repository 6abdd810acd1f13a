"""Who holds a lease, as text: a run, and the process that works for it, so that a dead one need not be waited for.

`<run>@<host>/<boot>/<process namespace>/<process id>/<its start>`. A process of this very machine and namespace that
is not there any more is dead, whatever the clock says; of any other process nobody here can tell, and its lease has to
run out. To be wrong would cost work and never a row: a holder that was taken over is fenced.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_ENDED = "ZX"  # killed and not yet taken note of by its parent: it does nothing any more


def holder_of(run_id: str | None, process: int | None = None) -> str:
    """Return this process, or that of an id on this machine, as the holder of a lease, for the run of that id."""
    number = os.getpid() if process is None else process
    return f"{run_id or 'by hand'}@{_place()}/{number}/{_start_of(number)}"


def is_dead(holder: str) -> bool:
    """Return whether the holder was a process of this machine that has ended. False where that cannot be told."""
    place, _, started = holder.rpartition("@")[2].rpartition("/")
    place, _, process = place.rpartition("/")
    return bool(started) and process.isdecimal() and place == _place() and _start_of(int(process)) != started


def process_in(holder: str) -> str:
    """Return the process and the machine that a holder of this form names, as people read them."""
    host, *_, process, _ = holder.rpartition("@")[2].split("/")
    return f"process {process} on {host}"


def _place() -> str:
    """The machine since it was started, and who sees whose processes on it."""
    try:
        return f"{socket.gethostname()}/{_BOOT_ID.read_text().strip()}/{_NAMESPACE.readlink()}"
    except OSError:
        return f"{socket.gethostname()}/unknown/unknown"


def _start_of(process: int) -> str:
    """When a process was started, in ticks since the machine was; empty when there is none, or nobody says."""
    try:
        # The name, in brackets, may hold anything; of what follows it the first is the state, the 20th the start.
        after_name = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "" if after_name[0] in _ENDED else after_name[19]
    except (OSError, IndexError):
        return ""
