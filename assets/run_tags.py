"""The tags of runs. This module does not import Dagster.

Some tags control a run, some tags describe the run, and Dagster defines some tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

MODE_TAG = "tidemark/compaction"
"""The mode of a compaction.

Schedules and sensors request only merges that cost less than they save. A run without this tag finalizes the windows.
"""
STATE_TAG, COMPACT_STATE = "tidemark/state", "compact"
"""Requests a compact state of the table."""
ACCEPT_LATE_TAG, ACCEPT_LATE = "tidemark/late", "accept"
"""Lets a retry of the quarantine also add late rows."""
AUDIT_TAG, AUDIT_ALL = "tidemark/audit", "all"
"""Audits the whole table. Without the tag, a run audits only what the last compaction wrote."""
WINDOWS_TAG, ALL_WINDOWS = "tidemark/windows", "all"
"""Marks a run for all windows. Such a run has a partition only because Dagster requires one."""

TABLE = "tidemark/table"
TABLES = "tidemark/tables"
"""The number of small tables in a shared run. Their jobs share a process."""
REASON = "tidemark/reason"
VERSION = "tidemark/version"

# Dagster hides tags with this prefix in the UI. Their values are too long for a list of runs.
PROCESS = ".dagster/tidemark_process"
"""The process of the run, as `storage_core.base.process` writes it. A retry inherits the value of its parent."""
BYTES_TAG = ".dagster/tidemark_bytes"
"""The number of bytes that the run may read from each table (`bytes_tag`)."""

# Tags of a run of one partition, and of a ranged run. Dagster's own single-run backfills also have them.
PARTITION = "dagster/partition"
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"

BACKFILL_TAG = "dagster/backfill"  # for runs of a backfill from the UI
PRIORITY = "dagster/priority"
SENSOR = "dagster/sensor_name"
WILL_RETRY = "dagster/will_retry"


def bytes_tag(granted: Mapping[str, int]) -> dict[str, str]:
    """Return the tag with the granted bytes of each table, or no tag if nothing was granted."""
    return {BYTES_TAG: json.dumps(granted, separators=(",", ":"))} if granted else {}


def granted_bytes(tags: Mapping[str, str]) -> dict[str, int]:
    """Return the granted bytes of a run by table. An invalid tag is ignored."""
    try:
        found = json.loads(tags.get(BYTES_TAG, "{}"))
        return {str(name): int(size) for name, size in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def identifier(table: str) -> str:
    """Return the table's name for Dagster. Dagster does not allow dashes."""
    return table.replace("-", "_")
