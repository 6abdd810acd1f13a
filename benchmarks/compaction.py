"""Compaction: what its parts take, each against its peer or its bound.

What is timed and against what is said on top of each part: `compaction_planning`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks import compaction_planning
from benchmarks.figures import Figure, command


def measure(*, small: bool) -> Iterator[Figure]:
    """Yield the figures of one part after the other."""
    for part in (compaction_planning,):
        yield from part.measure(small=small)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
