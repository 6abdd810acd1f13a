"""What storage asks for, as Dagster run requests, each with its reason and its place in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster import AssetKey, RunRequest

from assets.launcher import JobName
from assets.run_tags import (
    ALL_WINDOWS,
    MODE_TAG,
    PARTITION,
    PRIORITY,
    RANGE_END,
    RANGE_START,
    REASON,
    TABLE,
    TABLES,
    WINDOWS_TAG,
)
from storage_core.compaction.policy import Mode
from storage_core.declaration_upkeep import USUAL_PRIORITY
from storage_core.foreign_text import fitted

_LONGEST_REASON = 60

FRESH = 10
_PRIORITY: Mapping[JobName, int] = {"ingest": FRESH, "merge": FRESH, "distribute": FRESH}
USUAL = -10
"""Fresh data goes first; what a person asks for, backfills among it, has 0 and goes before the rest of the upkeep."""


def run_request(
    job: JobName,
    name: str | Sequence[str],
    assets: Sequence[AssetKey],
    reason: str,
    *,
    is_late: bool = False,
    partition: str | None = None,
    table_priority: int = USUAL_PRIORITY,
) -> RunRequest:
    """Return the request of a run of a job on these assets of the table, or raw log, `name`, or of several tables.

    It has no run key: whether it is asked for already, the instance says (`at_work`). Upkeep `is_late` that waited so
    long that it goes with fresh data; by `table_priority` it goes before or behind others of its kind. The run is about
    all windows; where its assets follow others that are partitioned Dagster wants to know a `partition` of it
    nevertheless.
    """
    priority = (FRESH if is_late else _PRIORITY.get(job, USUAL)) + table_priority - USUAL_PRIORITY
    about = {TABLE: name} if isinstance(name, str) else {TABLES: str(len(name))}
    tags = {**reason_tags(reason), **about, PRIORITY: str(priority)}
    tags |= {MODE_TAG: Mode.POLICY.value} if job == "compact" else {}
    tags |= {PARTITION: partition, WINDOWS_TAG: ALL_WINDOWS} if partition else {}
    return RunRequest(job_name=job, tags=tags, asset_selection=list(assets))


def reason_tags(reason: str) -> dict[str, str]:
    """Return the tag that says why a run was requested, cut to what a list of runs has room for."""
    return {REASON: fitted(reason, _LONGEST_REASON)}


def range_tags(first: str | None, last: str | None) -> dict[str, str]:
    """Return the tags that make a run one of a range of partitions; none for a single one, which is a partition key."""
    return {RANGE_START: first, RANGE_END: last} if first and last and first != last else {}
