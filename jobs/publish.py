"""Publish: show the versions of a table that its mirrors do not show yet (decision 0155).

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

SUMMARY = "Show the newest versions of a table to readers of Delta."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Publish as Delta what is not published. No Spark task is needed, no lease and no commit of the table.

    A mirror is derived, and of two runs at once each Delta commit is made by one. Raises what `Table.publish` raises.
    """
    job = JobRun("publish", request, spark)
    if request.dry_run:
        return job.report("planned")
    done = job.table.publish("delta")
    version = job.before.version if done.version is None else done.version
    return job.report("committed" if done.commits else "nothing_to_do", version, details=asdict(done))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("publish", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
