"""Audit: judge every invariant of splits and compactions by the files (docs/architecture/compaction.md, "Invariants").

python -m jobs.audit --table-uri … [--window START | --from A --to B] [--since VERSION | --commits N | --last-run]
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from jobs.reports.metrics import Metrics
from jobs.reports.report import JobReport
from jobs.requests.audit import AuditRequest, parse, parser
from jobs.running.command import command, on_spark
from jobs.running.run import JobRun
from jobs.spark import tasks
from jobs.spark.spark import Answer, Spark
from storage_core.audit.audit import AuditReport, Work, audit, bytes_read, execute, require_ours
from storage_core.audit.retained import Selection

LOG = logging.getLogger(__name__)

SUMMARY = "Judge every invariant of splits and compactions by the files. Writes nothing."

MOST_REPORTED = 1_000
"""Of more violations a report gives the number, and these."""

DRIVER_BYTES = 64 * 2**20
"""Reading less than this here is faster than starting Spark for it."""


def run(request: AuditRequest, spark: Spark) -> JobReport:
    """Audit what is requested and return what was found; a violation is a finding, not an error.

    One Spark task per split and merge, of many several; what is small is read by this process. Takes no lease and
    writes nothing. Raises `Unsupported` for a table whose log others keep.
    """
    job = JobRun("audit", request, spark)
    require_ours(job.before)
    request.windows.require_fits(job.before.config.window_seconds, job.before.config.other_windows)
    holds = request.windows.holds
    which = Selection(holds=holds, since=request.since, commits=request.commits, last_run=request.last_run)
    found = audit(job.table.store, job.before, which, run=partial(_execute, job))
    for each in found.violations:
        LOG.error("%s: %s: %s", each.invariant, each.path, each.message)
    return job.report("audited", metrics=Metrics(splits_in=found.splits), details=_details(found))


def _execute(job: JobRun, works: Sequence[Work]) -> Sequence[Answer]:
    if sum(map(bytes_read, works)) <= DRIVER_BYTES:
        return [execute(job.table.store, work) for work in works]
    return job.map(tasks.audit, [{"work": work} for work in works], writes=False)


def _details(found: AuditReport) -> dict[str, object]:
    return {
        "clean": found.clean,
        "splits": found.splits,
        "merges": found.merges,
        "violated": dict(sorted(Counter(each.invariant for each in found.violations).items())),
        "violations": [{**asdict(each), "advice": each.advice} for each in found.violations[:MOST_REPORTED]],
        "not_checkable": len(found.unchecked),
        "unchecked": [asdict(each) for each in found.unchecked[:MOST_REPORTED]],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code, which is 0 for findings too: they are in the report."""
    return command("audit", parser(SUMMARY), on_spark(parse, run), argv)


if __name__ == "__main__":
    sys.exit(main())
