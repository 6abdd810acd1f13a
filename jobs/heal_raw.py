"""Heal a raw log: every store gets the chunks that it lacks from the others.

python -m jobs.heal_raw --raw-log raw_logs/x.yaml [--verify] [--dry-run]
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
from jobs.running.distribute_tables import raw_stores
from jobs.spark.spark import Spark
from storage_core.clock import SystemClock
from storage_core.ids import SystemIds
from storage_core.repair.raw_log import heal

SUMMARY = "Fill the stores of a raw log from one another."


def run(request: RawLogRequest, spark: Spark) -> JobReport:
    """Copy what a store lacks, in this process. A store that does not answer is in the report as `unreachable`."""
    costs = RunCosts(spark)
    raw, stores = raw_stores(request)
    found = heal(stores, clock=SystemClock(), ids=SystemIds(), verify=request.verify, dry_run=request.dry_run)
    done: Status = "committed" if found.bytes else "nothing_to_do"
    details = {"raw_log": raw.name, **asdict(found), "is_whole": found.is_whole}
    report = JobReport(
        job="heal_raw",
        status="planned" if request.dry_run else done,
        version=0,
        metrics=Metrics(bytes_out=found.bytes),
        details=details,
    )
    return costs.complete(report, stores)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return command("heal_raw", parser("heal_raw", SUMMARY), on_spark(parse, run), argv)


if __name__ == "__main__":
    sys.exit(main())
