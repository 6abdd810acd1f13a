"""Compaction: the kernel against its peers, the job against engines, the sizes, reads, planning, and a large window.

What is timed and against what is said on top of each part. `compaction_questions` answers which way of merging is best.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks import compaction_engines, compaction_kernel, compaction_planning, compaction_sizes, large_window
from benchmarks.metrics import Metric, command


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of one part after the other."""
    for part in (compaction_kernel, compaction_engines, compaction_sizes, compaction_planning, large_window):
        yield from part.measure(small=small)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
