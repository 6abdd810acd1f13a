"""Publish: show the versions of a table that its mirrors do not show yet (decisions 0155, 0159).

python -m jobs.publish --table-uri …
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark.spark import Spark

SUMMARY = "Show the newest versions of a table to readers of Delta and Iceberg."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Publish what is not published in the formats that the table declares, in Delta where it declares none.

    No Spark task is needed, no lease and no commit of the table. A mirror is derived, and of two runs at once each of
    its commits is made by one. Raises what `Table.publish` raises.
    """
    job = JobRun("publish", request, spark)
    if request.dry_run:
        return job.report("planned")
    mirrors = [job.table.publish(each) for each in job.before.config.publish.published]
    version = min(job.before.version if each.version is None else each.version for each in mirrors)
    details = {"mirrors": [asdict(each) for each in mirrors]}
    return job.report(
        "committed" if any(each.commits for each in mirrors) else "nothing_to_do", version, details=details
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("publish", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
