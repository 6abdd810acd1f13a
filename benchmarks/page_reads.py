"""The bytes of the pages that a query must read. DataFusion counts these bytes.

The query prunes with statistics and the page index.

DataFusion skips files, row groups and pages by their minimum and maximum values. DataFusion also skips a page if the
conditions on other columns exclude all its rows. Footers and indexes are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import datafusion

from benchmarks.peers import linked


def bytes_read(files: Sequence[Path], query: str) -> int:
    """Return the bytes of the pages that a query reads.

    The query reads the table `rows`, which contains the rows of all files.
    """
    settings = datafusion.SessionConfig().with_target_partitions(1)
    for name in ("pushdown_filters", "reorder_filters", "enable_page_index"):
        settings = settings.set(f"datafusion.execution.parquet.{name}", "true")
    with TemporaryDirectory() as folder:
        linked(files, Path(folder))
        session = datafusion.SessionContext(settings)
        session.sql(f"CREATE EXTERNAL TABLE rows STORED AS PARQUET LOCATION '{folder}/'").collect()
        found = session.sql(query)
        found.collect()
        measured = [metrics for _, metrics in found.execution_plan().collect_metrics()]
    counted = [each.value for metrics in measured for each in metrics.metrics() if each.name == "bytes_scanned"]
    return sum(value for value in counted if isinstance(value, int))
