"""Refresh the SQL catalogue: bring each table in it to the head of its log.

python -m jobs.refresh_catalog --table clicks=s3://bucket/clicks [--url sqlite:///catalog.db]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jobs.reports.report import JobReport, with_report
from jobs.requests.catalog import CatalogRequest, catalog_url, parse, parser
from jobs.running.command import command, on_spark
from jobs.running.costs import RunCosts
from jobs.spark.spark import Spark
from storage_core.catalog.answers import Refreshed
from storage_core.catalog.opening import open_catalog
from storage_core.catalog.several import NotRefreshed, refreshed

SUMMARY = "Bring the SQL catalogue to the head of the log of each table."


def run(request: CatalogRequest, spark: Spark) -> JobReport:
    """Refresh every table in this process, one after the other; a table that is not made yet is left out.

    Raises the error of the first table that failed, with the report of all, once the others are done.
    """
    costs = RunCosts(spark)
    with open_catalog(catalog_url(request.url)) as catalog:
        done = list(refreshed(catalog, request.places))
    moved = [each for each in done if isinstance(each, Refreshed)]
    failed = [each for each in done if isinstance(each, NotRefreshed) and each.is_failure]
    report = JobReport(
        job="refresh_catalog",
        status="committed" if any(each.outcome != "current" for each in moved) else "nothing_to_do",
        version=0,
        details={
            "tables": {each.name: each.version for each in moved},
            "versions": sum(each.versions for each in moved),
            "loaded": {each.name: each.reason for each in moved if each.outcome == "loaded"},
            "failed": {each.name: str(each.error) for each in failed},
        },
    )
    report = costs.complete(report, [])
    if failed:
        raise with_report(failed[0].error, report)
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return command("refresh_catalog", parser("refresh_catalog", SUMMARY), on_spark(parse, run), argv)


if __name__ == "__main__":
    sys.exit(main())
