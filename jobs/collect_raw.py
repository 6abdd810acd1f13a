"""Collect a raw log: delete the chunks whose records every table has and that are older than the retention.

python -m jobs.collect_raw --raw-log raw_logs/x.yaml --table tables/a.yaml --table tables/b.yaml [--dry-run]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from jobs.reports.metrics import Metrics
from jobs.reports.report import JobReport, Status
from jobs.requests.raw_log import RawLogRequest, parse, parser
from jobs.running.command import command, on_spark
from jobs.running.costs import RunCosts
from jobs.running.distribute_tables import DistributeTables
from jobs.spark.spark import Spark
from storage_core.clock import SystemClock
from storage_core.errors import InvalidInput
from storage_core.gc.raw_log import HORIZON_MS, RawLogCollection, RawLogCollector
from storage_core.ids import SystemIds

SUMMARY = "Delete the chunks of a raw log that every table has and that are older than its retention."


def run(request: RawLogRequest, spark: Spark) -> JobReport:
    """Run both passes of the collector in this process. Without a declared retention nothing is deleted.

    A table that is not made yet, or cannot be opened, protects every chunk: the report has it in `protecting`. Raises
    `CommitConflict` where two collectors meet.
    """
    if request.horizon_ms is not None and request.horizon_ms < 0:
        raise InvalidInput(f"a horizon is at least 0 ms, found {request.horizon_ms}", horizon_ms=request.horizon_ms)
    costs = RunCosts(spark)
    job = DistributeTables.open(request)
    collector = RawLogCollector(
        source=job.source,
        stores=job.raw_stores,
        offsets=job.offsets,
        retention_ms=job.raw.retention,
        clock=SystemClock(),
        ids=SystemIds(),
        horizon_ms=HORIZON_MS if request.horizon_ms is None else request.horizon_ms,
    )
    found = collector.collect(dry_run=request.dry_run)
    done: Status = "committed" if any(found.deleted.values()) else "nothing_to_do"
    due = sum(each.size for several in found.candidates.values() for each in several)
    return costs.complete(
        JobReport(
            job="collect_raw",
            status="planned" if request.dry_run else done,
            version=0,
            metrics=Metrics(bytes_in=due, bytes_out=due - found.bytes),
            details=_details(job, found),
        ),
        job.stores,
    )


def _details(job: DistributeTables, found: RawLogCollection) -> dict[str, object]:
    return {
        "raw_log": job.raw.name,
        "retention_ms": job.raw.retention,
        "horizon_ms": found.horizon_ms,
        **asdict(found.backlog),
        "candidates": {uri: len(several) for uri, several in found.candidates.items()},
        "deleted": {uri: len(several) for uri, several in found.deleted.items()},
        "deleted_bytes": found.bytes,
        "failed": dict(found.failed),
        "unknown_tables": dict(found.unknown),
        "damaged": list(found.damaged),
        "unreachable": list(found.unreachable),
        "protecting": {**job.left_out, **{name: str(error) for name, error in job.failures.items()}},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return command("collect_raw", parser("collect_raw", SUMMARY), on_spark(parse, run), argv)


if __name__ == "__main__":
    sys.exit(main())
