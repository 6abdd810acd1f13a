"""Checkpoint: write the Avro state of the newest version, so that opening the table stays fast.

python -m jobs.checkpoint --table-uri …
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jobs.reports.metrics import Metrics
from jobs.reports.prediction import Prediction
from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark.spark import Spark
from storage_core.log.checkpoints.compact import compact_state, has_compact_state
from storage_core.log.snapshot import Snapshot

SUMMARY = "Write the Avro state of the newest version."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Write the state unless it exists already. A state is derived: no commit is made, and no Spark task is needed.

    With `compact_state` it is the smallest (`log.checkpoints.compact`); that may take a version that changes nothing.
    Raises `Held` while another run writes one.
    """
    job = JobRun("checkpoint", request, spark)
    is_done = has_compact_state if request.compact_state else _has_state
    with job.leased(lambda snapshot: [] if is_done(snapshot) else [snapshot], ["checkpoint"]) as due:
        behind = _behind(job.before)
        job.predict(Prediction(benefit=behind, unit="versions", puts=2 if due else 0))
        if not due:
            return job.report("nothing_to_do")
        if request.dry_run:
            return job.report("planned")
        log = job.table.log
        if request.compact_state:
            result = compact_state(log, job.before, job_run_id=request.run_id)
        else:
            result = log.checkpoint(job.before)
        metrics = Metrics(splits_in=result.files, splits_out=result.files, bytes_out=result.bytes)
        if not result.written:
            return job.report("nothing_to_do", result.version, metrics=metrics)
        return job.report("committed", result.version, metrics=metrics, benefit=behind)


def _behind(snapshot: Snapshot) -> int:
    """How many versions opening the table replays."""
    return snapshot.version - (-1 if snapshot.checkpoint_version is None else snapshot.checkpoint_version)


def _has_state(snapshot: Snapshot) -> bool:
    return snapshot.checkpoint_version == snapshot.version


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("checkpoint", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
