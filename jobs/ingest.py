"""Ingest: landed files become sorted, windowed splits, each row exactly once (docs/architecture/ingestion.md, "Batch
ingest").

python -m jobs.ingest --table-uri … [--declaration tables/x.yaml] [--window START | --from A --to B]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from jobs.reports.metrics import Metrics
from jobs.reports.prediction import Prediction
from jobs.reports.report import JobReport
from jobs.requests.request import JobRequest
from jobs.requests.window_range import EVERY_WINDOW, WindowRange
from jobs.running.command import table_command
from jobs.running.run import JobRun
from jobs.spark import tasks
from jobs.spark.spark import Spark
from storage_core.alteration import declared_changes
from storage_core.declaration import TableDeclaration, load
from storage_core.definition import check_unchanged
from storage_core.errors import InvalidInput
from storage_core.ingest.batch import may_have_new_rows, plan
from storage_core.ingest.landing import Landed, LandingSpec, reject_overlap, survey
from storage_core.ingest.tally import tally
from storage_core.ingest.work import IngestResult
from storage_core.log.actions import Add
from storage_core.rows.late import LateMetrics
from storage_core.rows.windows import by_start
from storage_core.split.context import context_of
from storage_core.table import Table, exists

_DAY_SECONDS = 24 * 3600

SUMMARY = "Ingest the landed files that are not in the table yet."


def run(request: JobRequest, spark: Spark) -> JobReport:
    """Ingest what is landed and not in yet, one Spark task per file, in one commit.

    What no key can name and what is no regular file is named and counted by every run (`not_read`).
    Of a Delta table, group after group of its versions, each in one commit (`jobs.delta`).
    Lines that are no rows go to the table's quarantine with file, line and reason; they stop nothing. Late rows go
    where the table's policy says (decision 0051). The landing place comes from the declaration, else from the table.
    Raises `CommitConflict` when another run ingested the same rows. A dry run neither creates the table
    nor changes its settings.
    """
    declaration = load(request.declaration) if request.declaration else None
    if declaration and request.dry_run and not exists(request.table_uri):
        return _plan_of_new_table(declaration, request)
    table = _declared(declaration, request) if declaration else None
    job = JobRun("ingest", request, spark, table, tells_windows=request.by_window or request.windows != EVERY_WINDOW)
    spec = (declaration and declaration.landing_spec()) or job.table.landing()
    if spec is None:
        where = request.declaration or f"{job.table.uri} (and no --declaration is given)"
        raise InvalidInput(
            f"{where}: no landing place is declared; add landing: {{uri: …, format: …}} to the table's file"
        )
    reject_overlap(spec.uri, job.table.uri, "the table")
    if spec.is_delta:
        return _from_delta(job, spark, spec, request)
    landed = survey(spec)
    work = plan(job.before, spec, landed.files, _windows(request.windows, job.before.config.window_seconds))
    if request.dry_run:
        work = [item for item in work if may_have_new_rows(item)]
    size = sum(item.landed.size for item in work)
    job.predict(Prediction(benefit=len(work), unit="files", bytes_in=size, puts=1 if work else 0))
    if not work:
        return job.report("nothing_to_do", details=_not_read(landed))
    if request.dry_run:
        planned = Metrics(bytes_in=size)
        return job.report("planned", metrics=planned, details={"files": len(work)} | _not_read(landed))
    context = context_of(job.before).to_json()
    read = sum(item.landed.size for item in work)
    answers = job.map(tasks.ingest, [{"context": context, "work": item.to_json()} for item in work], input_bytes=read)
    results = [IngestResult.from_json(answer["result"]) for answer in answers]
    actions = [action for result in results for action in result.actions]
    details = _details(results, spec) | _not_read(landed) | _far_times(results, job)
    if not actions:
        return job.report("nothing_to_do", details=details)
    late = sum((result.late for result in results), LateMetrics())
    metrics = replace(Metrics.of(results), **late.as_mapping())
    return job.commit(
        actions,
        operation="INGEST",
        metrics=metrics,
        details=details,
        by_window=_by_window(results),
        benefit=len(results),
    )


def _from_delta(job: JobRun, spark: Spark, spec: LandingSpec, request: JobRequest) -> JobReport:
    from jobs.delta.run import DeltaIngest  # and regions, which landed files do not need

    if request.windows != EVERY_WINDOW:
        raise InvalidInput(
            f"{job.table.uri}: a Delta table lands by its versions, not by windows; leave the windows out"
        )
    ingest = DeltaIngest(job, spark, spec)
    return ingest.plan() if request.dry_run else ingest.run()


def _plan_of_new_table(declaration: TableDeclaration, request: JobRequest) -> JobReport:
    """The plan of a run that would create the table first: it would take every landed file."""
    _windows(request.windows, declaration.window)
    spec = declaration.landing_spec()
    if spec is not None:
        reject_overlap(spec.uri, request.table_uri, "the table")
    landed = survey(spec) if spec and not spec.is_delta else Landed([])
    details = {"files": len(landed.files), "creates_table": True} | _not_read(landed)
    planned = Metrics(bytes_in=sum(file.size for file in landed.files))
    return JobReport(job="ingest", status="planned", version=0, metrics=planned, details=details)


def _declared(declaration: TableDeclaration, request: JobRequest) -> Table:
    """The table with the declared settings in force; on a dry run as it is, if they could be."""
    if not request.dry_run:
        return Table.declare(declaration, request.table_uri)
    table = Table.open(request.table_uri)
    is_delta = declaration.landing is not None and declaration.landing.is_delta
    declared_changes(declaration.name, declaration.schema(), table.schema, follows=is_delta)
    check_unchanged(declaration.name, declaration.config(), table.config)
    return table


def _windows(wanted: WindowRange, window_seconds: int | None) -> set[int | None] | None:
    """The window starts of a range, None for all of them. Which windows a file holds is known only after reading it."""
    wanted.require_fits(window_seconds)
    if wanted == EVERY_WINDOW:
        return None
    if wanted.null_only:
        return {None}
    if wanted.start is None or wanted.end is None or window_seconds is None:
        raise InvalidInput("ingest takes one --window, or both --from and --to, of a table with windows")
    first = wanted.start - wanted.start % window_seconds
    return set(range(first, wanted.end, window_seconds))


def _details(results: Sequence[IngestResult], spec: LandingSpec) -> dict[str, object]:
    rejected = tally(*(result.rejected for result in results))
    windows = {add.windowStart for result in results for add in result.adds}
    return {
        "landing": spec.uri,
        "files": len(results),
        "rejected": sum(rejected.values()),
        "rejected_before": sum(result.rejected_before for result in results),
        "rejected_reasons": rejected,
        "quarantine": [key for result in results for key in result.quarantine_keys],
        "windows": sorted(windows, key=by_start),
    }


def _far_times(results: Sequence[IngestResult], job: JobRun) -> dict[str, object]:
    """How many rows the retention takes out again, and how many are of windows that begin over a day ahead.

    Both are mostly times that were written or read wrong.
    """
    now, config = job.table.log.clock.now_ms() // 1000, job.before.config
    seconds, kept = config.window_seconds or 0, (config.retention_ms or 0) // 1000
    windowed = [add for result in results for add in result.adds if add.windowStart is not None]
    old = [each for each in windowed if kept and (each.windowStart or 0) + seconds + kept <= now]
    ahead = [each for each in windowed if (each.windowStart or 0) > now + _DAY_SECONDS]
    found = {"rows_older_than_retention": old, "rows_over_a_day_ahead": ahead}
    return {name: sum(add.numRecords or 0 for add in adds) for name, adds in found.items() if adds}


def _by_window(results: Sequence[IngestResult]) -> dict[int | None, Metrics]:
    adds: dict[int | None, list[Add]] = {}
    for add in (add for result in results for add in result.adds):
        adds.setdefault(add.windowStart, []).append(add)
    return {window: Metrics.of_adds(each) for window, each in adds.items()}


def _not_read(landed: Landed) -> dict[str, object]:
    """What lies in the landing place and is never read, said by every run for as long as it lies there."""
    return {"not_read": landed.not_read, "not_read_names": landed.not_read_names} if landed.not_read else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return table_command("ingest", SUMMARY, run, argv)


if __name__ == "__main__":
    sys.exit(main())
