"""Peak memory of some work, measured by the pages that the system counts for this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def grown_bytes(act: Callable[[], object]) -> int:
    """Run the work, and return the peak growth of this process in bytes.

    `ru_maxrss` would hide growth, because it begins with the peak of the parent process and never falls.
    """
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak to the present size
    before = _kilobytes("VmRSS")
    act()
    return (_kilobytes("VmHWM") - before) * 1024


def _kilobytes(metric: str) -> int:
    found = re.search(rf"^{metric}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1])
