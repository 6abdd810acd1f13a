"""Benchmarks of compaction: the kernel, the job, the sizes of files, planning, and a large window.

The module of each part describes its measurements and the other systems that it compares. `compaction_questions`
compares ways of merging.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks import compaction_engines, compaction_kernel, compaction_planning, compaction_sizes, large_window
from benchmarks.metrics import Metric, command


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of each part."""
    for part in (compaction_kernel, compaction_engines, compaction_sizes, compaction_planning, large_window):
        yield from part.measure(small=small)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
