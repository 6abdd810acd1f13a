"""Two assets that use the table.

One asset is partitioned by day, and the other asset covers all days. Both are tables.
"""

# This module omits `from __future__ import annotations`, because Dagster reads the annotations.

from typing import Any

import duckdb
import pyarrow as pa
from dagster import AssetIn, AssetKey, BackfillPolicy, DailyPartitionsDefinition, asset

DAYS = DailyPartitionsDefinition(start_date="2026-01-01")
CLICKS = AssetKey(["clicks", "compacted"])


@asset(
    ins={"clicks": AssetIn(key=CLICKS, metadata={"columns": ["time", "visitor", "ms"]})},
    partitions_def=DAYS,
    backfill_policy=BackfillPolicy.single_run(),
    metadata={"tidemark/create": {"time_column": "day", "window": "1h"}},
)
def visits(clicks: duckdb.DuckDBPyRelation) -> pa.Table:
    """Clicks and milliseconds per visitor and day. A new result for a day replaces the old result for the same day."""
    counted = clicks.aggregate(
        "date_trunc('day', time) AS day, visitor, count(*) AS clicks, sum(ms)::BIGINT AS ms", "1, 2"
    )
    rows: Any = counted.to_arrow_table()
    return rows


@asset(metadata={"tidemark/create": {"primary_key": "visitor"}})
def visitors(visits: pa.Table) -> pa.Table:
    """The number of days and clicks of each visitor, in a keyed table.

    A new row replaces the old row of the same visitor.
    """
    grouped = visits.group_by("visitor").aggregate([("day", "count"), ("clicks", "sum")])
    return grouped.rename_columns({"day_count": "days", "clicks_sum": "clicks"})
