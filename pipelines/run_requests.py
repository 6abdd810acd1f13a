"""What storage asks for, as Dagster run requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from dagster import RunRequest, SkipReason

from assets.due_runs import DueRun, DueRuns
from assets.factory import MODE_TAG, asset_key, index_asset
from assets.launcher import JobName
from assets.partitions import partition_key
from pipelines.jobs import job_name
from storage_core.compaction.policy import Mode
from storage_core.declaration import TableDeclaration
from storage_core.foreign_text import fitted

# Dagster's tags of a ranged run. Its own single-run backfills are made of them.
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
REASON = "tidemark/reason"
_LONGEST_REASON = 60


def answer(
    declaration: TableDeclaration, job: JobName, found: DueRuns, log: logging.Logger
) -> Iterator[RunRequest | SkipReason]:
    """Yield what to request of what storage asks for, or why there is nothing to request: the body of every tick."""
    for warning in found.warnings:
        log.warning("%s", warning)
    if found.wanted:
        yield from run_requests(declaration, job, found)
    else:
        yield SkipReason("; ".join(["nothing to do", *found.warnings]))


def run_requests(declaration: TableDeclaration, job: JobName, found: DueRuns) -> Iterator[RunRequest]:
    """Yield one run request per due run. Its key is the same as long as storage asks for the same thing."""
    for due_run in found.wanted:
        first, last = _bounds(declaration, due_run)
        span = f"{first}...{last} " if first else ""
        yield RunRequest(
            run_key=f"{declaration.name} {job} {span}{due_run.work_key}",
            job_name=job_name(declaration.name, job),
            partition_key=first if first == last else None,
            tags={**reason_tags(due_run.reason), **_mode_tags(job), **range_tags(first, last)},
            asset_selection=[asset_key(declaration.name, index_asset(name)) for name in due_run.indexes] or None,
        )


def reason_tags(reason: str) -> dict[str, str]:
    """Return the tag that says why a run was requested, cut to what a list of runs has room for."""
    return {REASON: fitted(reason, _LONGEST_REASON)}


def _mode_tags(job: JobName) -> dict[str, str]:
    return {MODE_TAG: Mode.POLICY.value} if job == "compact" else {}


def range_tags(first: str | None, last: str | None) -> dict[str, str]:
    """Return the tags that make a run one of a range of partitions; none for a single one, which is a partition key."""
    return {RANGE_START: first, RANGE_END: last} if first and last and first != last else {}


def _bounds(declaration: TableDeclaration, due_run: DueRun) -> tuple[str | None, str | None]:
    start, end, seconds = due_run.windows.start, due_run.windows.end, declaration.window
    if start is None or end is None or seconds is None:
        return None, None
    return partition_key(start), partition_key(end - seconds)
