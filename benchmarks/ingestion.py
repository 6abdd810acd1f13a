"""Ingestion: durable appends, their memory, distribution and merging, and reads of unmerged rows.

The module of each part describes its measurements and its peers: `durable_appends`, `writer_memory`,
`merging`, `unmerged`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks import durable_appends, merging, unmerged, writer_memory
from benchmarks.metrics import Metric, command


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of one part after another."""
    for part in (durable_appends, writer_memory, unmerged, merging):
        yield from part.measure(small=small)


if __name__ == "__main__":
    sys.exit(command(measure, __doc__))
