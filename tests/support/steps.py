"""Measure work in steps instead of seconds. A step is an executed line of Python, or a call of Python or C code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Steps:
    """Counts the executed lines of Python, all calls, and the calls of each function while it is active."""

    def __init__(self) -> None:
        self.count = 0
        self.calls: dict[CodeType, int] = {}

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        """Count a line or a call. The method is a hook for `sys.settrace`."""
        self.count += 1
        if event == "call":
            self.calls[frame.f_code] = self.calls.get(frame.f_code, 0) + 1
        return self.trace

    def profile(self, _frame: FrameType, event: str, _argument: object) -> None:
        """Count a call of a C function. The method is a hook for `sys.setprofile`."""
        self.count += event == "c_call"

    def made(self, record: type) -> int:
        """Return the number of created instances of a class."""
        return self.calls.get(record.__init__.__code__, 0)  # type: ignore[misc]  # of the class itself


def steps_of(work: Callable[[], object]) -> Steps:
    """Run the work twice, and return the steps of the second run."""
    work()  # The first run includes work that is done only once per snapshot, such as parsing settings.
    steps, before = Steps(), sys.gettrace()
    sys.settrace(steps.trace)
    sys.setprofile(steps.profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    return steps
