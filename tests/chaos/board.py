"""Shared memory of all processes of a run, with the progress of each process and the start of its current work.

A collector may delete only files that no running work needs. Outside these tests, a fixed length of time (the horizon)
protects these files. Here, the clock of a collector returns `oldest_ms`, the start of the oldest running work.
Therefore the horizon can be almost zero, and a process can stay paused for any length of time.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

_CELL = struct.Struct("q")
_NOTHING = 2**63 - 1
_STOP = 0


class Board:
    """Numbers in a memory-mapped file.

    For each process, the file stores two numbers: the time at which the current work began, and the number of events.
    """

    def __init__(self, path: Path, places: int) -> None:
        if not path.exists():
            path.write_bytes(_CELL.pack(0) + (_CELL.pack(_NOTHING) + _CELL.pack(0)) * places)
        self._places = places
        with path.open("r+b") as file:
            self._cells = mmap.mmap(file.fileno(), 0)

    def stop(self) -> None:
        """Request the end of all processes."""
        self._set(_STOP, 1)

    @property
    def stopped(self) -> bool:
        """Return True if all processes should end."""
        return bool(self._get(_STOP))

    def hold(self, place: int, since_ms: int) -> None:
        """Record that this process needs the state of the tables at `since_ms`."""
        self._set(1 + 2 * place, since_ms)

    def free(self, place: int) -> None:
        """Record that this process needs no old state."""
        self._set(1 + 2 * place, _NOTHING)

    def count(self, place: int) -> None:
        """Count an event of this process."""
        self._set(2 + 2 * place, self.events(place) + 1)

    def events(self, place: int) -> int:
        """Return the number of events of a process."""
        return self._get(2 + 2 * place)

    def oldest_ms(self) -> int:
        """Return the start of the oldest running work, or the current time if no work is running."""
        return min(now_ms(), *(self._get(1 + 2 * place) for place in range(self._places)))

    def _get(self, cell: int) -> int:
        value: int = _CELL.unpack_from(self._cells, cell * _CELL.size)[0]
        return value

    def _set(self, cell: int, value: int) -> None:
        _CELL.pack_into(self._cells, cell * _CELL.size, value)


def now_ms() -> int:
    """Return the time of the machine's clock, as the collector reads it."""
    return time.time_ns() // 1_000_000
