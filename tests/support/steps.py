"""How much work something is, in steps and never in seconds: lines of Python run, functions called, of C as well."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Steps:
    """Counts, while it is watched by, each line that Python runs, each call, and the calls of single functions."""

    def __init__(self) -> None:
        self.count = 0
        self.calls: dict[CodeType, int] = {}

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        """Count a line or a call; what `sys.settrace` wants."""
        self.count += 1
        if event == "call":
            self.calls[frame.f_code] = self.calls.get(frame.f_code, 0) + 1
        return self.trace

    def profile(self, _frame: FrameType, event: str, _argument: object) -> None:
        """Count a call of C; what `sys.setprofile` wants."""
        self.count += event == "c_call"

    def made(self, record: type) -> int:
        """How many records of a class were made."""
        return self.calls.get(record.__init__.__code__, 0)  # type: ignore[misc]  # of the class itself


def steps_of(work: Callable[[], object]) -> Steps:
    """Return the steps of the work when it is done for the second time."""
    work()  # settings parsed, columns put together: what is done once per snapshot
    steps, before = Steps(), sys.gettrace()
    sys.settrace(steps.trace)
    sys.setprofile(steps.profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    return steps
