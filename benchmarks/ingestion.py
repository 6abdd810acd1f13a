"""Benchmarks of ingestion: durable appends, their memory, distribution and merging, and reads of unmerged rows.

The modules `durable_appends`, `writer_memory`, `merging` and `unmerged` describe their measurements and the systems
that they compare.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks import durable_appends, merging, unmerged, writer_memory
from benchmarks.metrics import Metric, command


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of each part."""
    for part in (durable_appends, writer_memory, unmerged, merging):
        yield from part.measure(small=small)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
