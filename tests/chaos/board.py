"""A board that all processes of a run share: how far each is, and which state of the tables it may still use.

A collector may only delete what nobody needs who is at work. It is told so here by no length of time: `oldest_ms` is
when the oldest work that is under way began, and a collector takes that for its clock. So its horizon can be next to
nothing, and a process may be stopped for as long as it likes.
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
    """Numbers in a file that every process maps: for each of so many places when its work began, and its events."""

    def __init__(self, path: Path, places: int) -> None:
        if not path.exists():
            path.write_bytes(_CELL.pack(0) + (_CELL.pack(_NOTHING) + _CELL.pack(0)) * places)
        self._places = places
        with path.open("r+b") as file:
            self._cells = mmap.mmap(file.fileno(), 0)

    def stop(self) -> None:
        """Ask everybody to end."""
        self._set(_STOP, 1)

    @property
    def stopped(self) -> bool:
        """Whether everybody is to end."""
        return bool(self._get(_STOP))

    def hold(self, place: int, since_ms: int) -> None:
        """Say that the work of this place needs what the tables were at this moment."""
        self._set(1 + 2 * place, since_ms)

    def free(self, place: int) -> None:
        """Say that this place needs nothing old."""
        self._set(1 + 2 * place, _NOTHING)

    def count(self, place: int) -> None:
        """Say that this place did something."""
        self._set(2 + 2 * place, self.events(place) + 1)

    def events(self, place: int) -> int:
        """Return how much a place did."""
        return self._get(2 + 2 * place)

    def oldest_ms(self) -> int:
        """Return when the oldest work began that is under way; now, where there is none."""
        return min(now_ms(), *(self._get(1 + 2 * place) for place in range(self._places)))

    def _get(self, cell: int) -> int:
        value: int = _CELL.unpack_from(self._cells, cell * _CELL.size)[0]
        return value

    def _set(self, cell: int, value: int) -> None:
        _CELL.pack_into(self._cells, cell * _CELL.size, value)


def now_ms() -> int:
    """Return the time of the machine's clock, as the collector has it."""
    return time.time_ns() // 1_000_000
