"""The tags of runs: those by which a run is asked for what it does, those that say what it is, and Dagster's own."""

from __future__ import annotations

MODE_TAG = "tidemark/compaction"  # by which schedules and sensors ask for what pays now; without it one finalizes
STATE_TAG, COMPACT_STATE = "tidemark/state", "compact"  # asks for a compact state of the table
AUDIT_TAG, AUDIT_ALL = "tidemark/audit", "all"  # asks for the whole table; else it is what the last compaction wrote
WINDOWS_TAG, ALL_WINDOWS = (
    "tidemark/windows",
    "all",
)  # of all, though it has the partition that Dagster asks for

TABLE = "tidemark/table"
TABLES = "tidemark/tables"  # of a run of several small tables: how many; their jobs share a process
REASON = "tidemark/reason"
VERSION = "tidemark/version"

# Too long for a list of runs, and nothing for people: Dagster keeps tags of this prefix out of the UI.
PROCESS = ".dagster/tidemark_process"  # as `jobs.process.holder` names it; a retry begins with its parent's
BYTES_TAG = ".dagster/tidemark_bytes"  # how many bytes the run reads, by table (`assets.granted`)

# Of a run of one partition, and of a ranged run. Dagster's own single-run backfills are made of them.
PARTITION = "dagster/partition"
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"

BACKFILL_TAG = "dagster/backfill"  # of the runs of backfills that the UI launches
PRIORITY = "dagster/priority"
SENSOR = "dagster/sensor_name"
WILL_RETRY = "dagster/will_retry"
