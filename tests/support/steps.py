"""The amount of work, measured in steps instead of seconds: executed lines of Python, and calls, also of C code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Steps:
    """Counts each line of Python that runs while it is active, each call, and the calls of single functions."""

    def __init__(self) -> None:
        self.count = 0
        self.calls: dict[CodeType, int] = {}

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        """Count a line or a call, as a hook of `sys.settrace`."""
        self.count += 1
        if event == "call":
            self.calls[frame.f_code] = self.calls.get(frame.f_code, 0) + 1
        return self.trace

    def profile(self, _frame: FrameType, event: str, _argument: object) -> None:
        """Count a call of C, as a hook of `sys.setprofile`."""
        self.count += event == "c_call"

    def made(self, record: type) -> int:
        """Return the number of instances of a class that were made."""
        return self.calls.get(record.__init__.__code__, 0)  # type: ignore[misc]  # of the class itself


def steps_of(work: Callable[[], object]) -> Steps:
    """Return the steps of the work in its second run."""
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
