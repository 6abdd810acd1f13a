"""Collect: find what no retained version needs, and delete what has been so for the whole horizon.

Landed files that are gone are pruned from the log first (decision 0133): nothing else commits here.

python -m jobs.collect --table-uri … [--dry-run] [--horizon-ms 0]
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from jobs.reports.metrics import Metrics
from jobs.reports.prediction import Prediction
from jobs.reports.report import JobReport, Status
from jobs.requests.request import JobRequest
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark.spark import Spark
from storage_core.clock import SystemClock
from storage_core.errors import Unavailable
from storage_core.formats.gc_plan import Candidate
from storage_core.gc.collect import CollectionReport, collect
from storage_core.ingest.gone_files import prune_gone_files

LOG = logging.getLogger(__name__)

SUMMARY = "Delete what no retained version needs any more."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Prune landed files that are gone, and run both passes of the collector. `details` lists the candidates.

    The deletes are made by the driver, in batches: there is no data to move, and one process re-checks all roots.
    Raises `Held` while another run collects, and `Fenced` before the next batch when one took over.
    """
    job = JobRun("collect", request, spark)
    with nullcontext() if request.dry_run else job.holding("collect"):
        pruned = _prune(job, request)
        found = collect(
            job.table.store,
            job.table.log,
            clock=SystemClock(),
            horizon_ms=request.horizon_ms,
            dry_run=request.dry_run,
            require_held=job.require_held,
        )
    job.predict(Prediction(benefit=sum(each.size for each in found.noted), unit="bytes"))
    metrics = Metrics(bytes_in=found.candidate_bytes, bytes_out=found.candidate_bytes - found.bytes)
    if request.dry_run:
        return job.report("planned", metrics=metrics, details=_details(found) | pruned)
    done = found.deleted or found.pruned or any(pruned.values())
    status: Status = "committed" if done else "nothing_to_do"
    return job.report(status, metrics=metrics, details=_details(found) | pruned, benefit=found.bytes)


def _prune(job: JobRun, request: JobRequest) -> dict[str, object]:
    """How many files were pruned, of a table that has a landing place. One that does not answer stops nothing."""
    spec = job.table.landing()
    if spec is None or spec.is_delta:
        return {}
    try:
        done = prune_gone_files(job.table.log, spec, dry_run=request.dry_run, require_held=job.require_held)
    except Unavailable as error:
        LOG.warning("no landed file is pruned: %s", error)
        return {"pruned_files": 0, "pruned_transactions": 0}
    return {"pruned_files": done.files, "pruned_transactions": done.transactions}


def _details(found: CollectionReport) -> dict[str, object]:
    return {
        "candidates": [_candidate(each) for each in found.candidates],
        "by_reason": {str(reason): count for reason, count in found.by_reason.items()},
        "deleted": len(found.deleted),
        "deleted_bytes": found.bytes,
        "deleted_keys": list(found.deleted),
        "failed": dict(found.failed),
        "unknown_keys": list(found.unknown_keys),
        "pruned": dict(found.pruned),
        "horizon_ms": found.horizon_ms,
    }


def _candidate(candidate: Candidate) -> dict[str, object]:
    return {"key": candidate.key, "reason": str(candidate.reason), "size": candidate.size}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("collect", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
