"""Forget: erase rows from a table and all stores that its rows went through, and say what still holds them.

python -m jobs.forget --table-uri … --where "user_id = 17" [--table NAME --raw-log raw_logs/x.yaml] [--report]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.reports.metrics import Metrics
from jobs.reports.report import JobReport
from jobs.requests.forget import ForgetRequest, parse, parser
from jobs.running.command import command, on_spark
from jobs.running.run import JobRun
from jobs.running.shared_place import require_shared
from jobs.spark.spark import Spark
from storage_core.declaration_file import is_text
from storage_core.declaration_parts import below
from storage_core.errors import InvalidInput
from storage_core.forget.raw_table import RawTable
from storage_core.raw_declaration import load_raw_log

SUMMARY = "Erase rows that meet a condition, and report what still holds them."


def run(request: ForgetRequest, spark: Spark) -> JobReport:
    """Forget in this process; `details` are what was done and the report (`docs/spec.md`, section 17).

    With `report` nothing is written, and the report is that of now. Raises what `Table.forget` raises.
    """
    job = JobRun("forget", request, spark)
    raw_logs = _raw_logs(request)
    if request.report:
        found = job.table.forget_report(request.where, raw_logs=raw_logs)
        return job.report("planned", found.version, details=found.to_dict())
    done = job.table.forget(request.where, raw_logs=raw_logs)
    details = {"rows": done.rows, "splits_rewritten": done.splits_rewritten, **done.report.to_dict()}
    return job.report(
        done.status,
        done.version,
        metrics=Metrics(rows_in=done.rows, splits_in=done.splits_rewritten),
        commit_id=done.commit_id or None,
        details=details,
    )


def _raw_logs(request: ForgetRequest) -> list[RawTable]:
    if request.raw_logs and request.table is None:
        raise InvalidInput("give --table, the name of the table in the records of the raw logs")
    root = Path(request.root or ".")
    declared = [load_raw_log(each if is_text(each) else root / each) for each in request.raw_logs]
    return [RawTable(request.table or "", [require_shared(below(root, uri)) for uri in each.uris]) for each in declared]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return command("forget", parser(SUMMARY), on_spark(parse, run), argv)


if __name__ == "__main__":
    sys.exit(main())
