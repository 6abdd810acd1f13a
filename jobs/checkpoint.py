"""Checkpoint: write the Avro state of the newest version, so that opening the table stays fast.

python -m jobs.checkpoint --table-uri …
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jobs.reports.metrics import Metrics
from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark.spark import Spark
from storage_core.log.snapshot import Snapshot

SUMMARY = "Write the Avro state of the newest version."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Write the state unless it exists already. A state is derived: no commit is made, and no Spark task is needed.

    Raises `Held` while another run writes one.
    """
    job = JobRun("checkpoint", request, spark)
    with job.leased(_due, ["checkpoint"]) as due:
        if not due:
            return job.report("nothing_to_do")
        if request.dry_run:
            return job.report("planned")
        result = job.table.log.checkpoint(job.before)
        metrics = Metrics(splits_in=result.files, splits_out=result.files, bytes_out=result.bytes)
        return job.report("committed" if result.written else "nothing_to_do", metrics=metrics)


def _due(snapshot: Snapshot) -> Sequence[Snapshot]:
    return [] if snapshot.checkpoint_version == snapshot.version else [snapshot]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("checkpoint", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
