"""Compaction: planning, the kernel against its peers, the job against engines, and the sizes and reads that result.

What is timed and against what is said on top of each part. `compaction_questions` asks which way of merging is best.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks import compaction_engines, compaction_kernel, compaction_planning, compaction_sizes
from benchmarks.figures import Figure, command


def measure(*, small: bool) -> Iterator[Figure]:
    """Yield the figures of one part after the other."""
    for part in (compaction_planning, compaction_kernel, compaction_engines, compaction_sizes):
        yield from part.measure(small=small)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
