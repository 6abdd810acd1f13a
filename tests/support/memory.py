"""How much memory some work takes at most, as the system counts the pages of this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def grown_bytes(act: Callable[[], object]) -> int:
    """Do it, and return by how many bytes this process grew at most meanwhile.

    `ru_maxrss` would hide growth: it begins with the peak of the process that started this one, and never falls.
    """
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # what the process has now is the peak
    before = _kilobytes("VmRSS")
    act()
    return (_kilobytes("VmHWM") - before) * 1024


def _kilobytes(metric: str) -> int:
    found = re.search(rf"^{metric}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1])
