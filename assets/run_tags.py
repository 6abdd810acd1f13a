"""The tags of runs. This module does not import Dagster.

Some tags control a run, and some tags describe it. Other tags come from Dagster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

MODE_TAG = "tidemark/compaction"
"""The mode of a compaction.

Schedules and sensors request only merges that cost less than they save. A run without this tag finalizes the windows.
"""
STATE_TAG, COMPACT_STATE = "tidemark/state", "compact"
"""The tag that requests a compact state of the table (`storage_core.log.log`)."""
ACCEPT_LATE_TAG, ACCEPT_LATE = "tidemark/late", "accept"
"""The tag for a retry of quarantined rows. With this tag, the retry also adds late rows."""
AUDIT_TAG, AUDIT_ALL = "tidemark/audit", "all"
"""The tag of a run that audits the whole table. Without the tag, a run audits the files of the last compaction."""
WINDOWS_TAG, ALL_WINDOWS = "tidemark/windows", "all"
"""The tag of a run for all windows. A run for all windows has a partition only because Dagster requires one."""

TABLE = "tidemark/table"
TABLES = "tidemark/tables"
"""The number of small tables in a shared run. The jobs of these tables share a process."""
REASON = "tidemark/reason"
VERSION = "tidemark/version"

# Dagster hides tags with this prefix in the UI. The values of the tags with this prefix are too long for the page that
# lists the runs.
PROCESS = ".dagster/tidemark_process"
"""The process of the run, in the format of `storage_core.base.process`.

A retry inherits this tag from its parent run.
"""
BYTES_TAG = ".dagster/tidemark_bytes"
"""The number of bytes that the run may read from each table (`bytes_tag`)."""

# Tags of runs with one partition or with a range of partitions. Dagster's own single-run backfills also have these
# tags.
PARTITION = "dagster/partition"
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"

BACKFILL_TAG = "dagster/backfill"  # for runs of a backfill from the UI
PRIORITY = "dagster/priority"
SENSOR = "dagster/sensor_name"
WILL_RETRY = "dagster/will_retry"


def bytes_tag(granted: Mapping[str, int]) -> dict[str, str]:
    """Return a tag with the granted bytes of each table. Return no tag if nothing was granted."""
    return {BYTES_TAG: json.dumps(granted, separators=(",", ":"))} if granted else {}


def granted_bytes(tags: Mapping[str, str]) -> dict[str, int]:
    """Return the number of bytes that this run may read from each table. An invalid tag is ignored."""
    try:
        found = json.loads(tags.get(BYTES_TAG, "{}"))
        return {str(name): int(size) for name, size in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def identifier(table: str) -> str:
    """Return the table's name in the form that Dagster allows, without dashes."""
    return table.replace("-", "_")
