"""The journal of a process: each call and its outcome, with times from a clock that all processes share.

The journal has a line before each call and a line after it. Each line is written in one piece. If a process is killed,
the journal therefore lacks only the end of its last call.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_core.base.errors import CommitConflict, CommitUnknown, Fenced, Held, TidemarkError, Unavailable
from tests.chaos.board import Board, now_ms

DONE, UNKNOWN, REFUSED = "done", "unknown", "refused"

_OUTCOMES: dict[type[TidemarkError], str] = {
    CommitUnknown: UNKNOWN,
    Unavailable: REFUSED,
    Fenced: REFUSED,
    CommitConflict: REFUSED,
    Held: REFUSED,
}
"""Outcomes that are allowed if several callers share a table and the store loses requests.

Any other outcome is a defect.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A call from a journal, with its start and its end. `ended` is None if the end was not recorded."""

    process: str
    number: int
    said: dict[str, Any]
    begun: int
    ended: int | None
    outcome: str
    found: Any = None

    @property
    def name(self) -> str:
        """The name by which error messages of the test refer to the call."""
        return f"{self.process}#{self.number}"


@dataclass(slots=True)
class Journal:
    """The calls of one process.

    The board (shared memory) has a cell for each process. The cell contains the time of the oldest state that the
    running call needs.
    """

    path: Path
    board: Board
    place: int
    calls: int = 0
    _file: int = field(init=False)

    def __post_init__(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def call(
        self, act: Callable[[], Any], *, goes_on: bool = False, keeps: bool = False, **said: object
    ) -> tuple[str, Any]:
        """Make a call, and return its outcome and result.

        A call with `goes_on` uses the state that the previous call kept. A call with `keeps` keeps its state for the
        next call.
        """
        self.calls += 1
        began_ms = now_ms()
        if not goes_on:
            self.board.hold(self.place, began_ms)
        self._write({"call": self.calls, "at": time.monotonic_ns(), **said})
        found, why = None, ""
        try:
            found = act()
            outcome = DONE
        except TidemarkError as error:
            known = next((each for kind, each in _OUTCOMES.items() if isinstance(error, kind)), None)
            if known is None:
                raise
            outcome, why = known, f"{error.kind}: {error}"
        self._write({"end": self.calls, "at": time.monotonic_ns(), "outcome": outcome, "found": found, "why": why})
        if keeps:
            self.board.hold(self.place, began_ms)
        else:
            self.board.free(self.place)
        self.board.count(self.place)
        return outcome, found

    def _write(self, line: dict[str, object]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read(path: Path) -> Iterator[Call]:
    """Yield the calls in a journal file. The last line or the end of the last call may be missing."""
    begun: dict[str, Any] | None = None
    for text in path.read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            return
        if "call" in line:
            begun = line
        elif begun is not None:
            yield _call(path, begun, line)
            begun = None
    if begun is not None:
        yield _call(path, begun, {"at": None, "outcome": UNKNOWN, "found": None})


def _call(path: Path, begun: dict[str, Any], ended: dict[str, Any]) -> Call:
    said = {name: value for name, value in begun.items() if name not in ("call", "at")}
    return Call(path.stem, begun["call"], said, begun["at"], ended["at"], ended["outcome"], ended["found"])
