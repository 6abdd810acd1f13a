"""Ingest landed files as sorted splits per window, each row exactly once. Retry lines in quarantine.

See docs/architecture/ingestion.md, "Batch ingest".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from jobs.due_runs import TableInputs
from jobs.keyed_ingest import KeyedIngest
from storage_core.base.errors import CommitConflict, InvalidInput, TidemarkError
from storage_core.base.text import counted
from storage_core.change.creation import as_declared, grow
from storage_core.change.declaration import TableDeclaration, load
from storage_core.data.rows.window_range import EVERY_WINDOW, WindowRange
from storage_core.data.rows.windows import LateMetrics, by_start
from storage_core.data.steps import Ingest, RetryQuarantine
from storage_core.log.actions import Action, Add, Txn
from storage_core.log.job_run import (
    NO_METRICS,
    Answer,
    DueRun,
    Item,
    JobReport,
    JobRun,
    Metrics,
    PlannedRun,
    Prediction,
    TaskEnvironment,
    as_task,
    with_report,
)
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.quarantine import retry
from storage_core.split.context import SplitContext, context_of
from storage_core.store.resolve import open_store
from storage_core.table import Table, exists
from storage_core.write.ingest import batch
from storage_core.write.ingest.batch import (
    BatchResult,
    IngestWork,
    Unread,
    landed_bytes,
    may_have_new_rows,
    plan,
    reasons_of,
)
from storage_core.write.ingest.convert import tally
from storage_core.write.ingest.drift import NO_DRIFT, count_fields, name_drift
from storage_core.write.ingest.landing import Landed, LandingSpec, landing_of, reject_overlap, survey
from storage_core.write.ingest.progress import listed_app, pending, until_listing_ms, waiting_versions

if TYPE_CHECKING:
    from storage_core.write.ingest.announcements import Announcements

_DAY_SECONDS = 24 * 3600


def run_ingest(job: JobRun[Ingest]) -> JobReport:
    """Ingest all landed data that is not in the table yet.

    - From files: one Spark task ingests one batch of files. The rows of an append table get one commit. The rows of a
      keyed table get one commit per round of files (`jobs.keyed_ingest`, with its errors). Some entries are not regular
      files, and some names cannot be keys. Every run lists and counts these entries (`not_read`).
    - From a Delta table: the versions are ingested in groups, with one commit per group (`jobs.delta`).

    Invalid lines do not stop the run. The run writes invalid lines to the table's quarantine, with the file, the line
    and the reason. A setting of the table decides what happens to late rows (docs/architecture/ingestion.md). The
    declaration contains the landing location. Without a declaration, the location comes from the settings of the table.
    A dry run does not create the table and does not change its settings.

    Raises:
        CommitConflict: Other runs ingested the same rows during each plan (`job.carry_out`).
    """
    options = job.options
    declaration = load(options.declaration) if options.declaration else None
    if declaration and options.dry_run and not exists(options.table_uri):
        return _plan_of_new_table(declaration, job)
    if declaration and options.dry_run:
        job.before = as_declared(job.log, declaration)
    elif declaration:
        table = Table.declare(declaration, options.table_uri)
        job.use(table.log, table.snapshot)
    spec = (declaration and declaration.landing_spec()) or landing_of(job.before.metadata.configuration)
    if spec is None:
        landing = "landing: {uri: …, format: …}"
        if options.declaration:
            raise InvalidInput(f"{options.declaration}: no landing location is declared. Add {landing} to this file")
        raise InvalidInput(
            f"{job.uri}: no landing location is declared. Give --declaration FILE, and add {landing} to the file"
        )
    reject_overlap(spec.uri, job.uri, "the table")
    return _from_delta(job, spec) if spec.is_delta else _from_files(job, spec)


def run_retry_quarantine(job: JobRun[RetryQuarantine]) -> JobReport:
    """Retry the lines in quarantine with the present declaration. Each line is processed exactly once.

    Like an ingest, the retry first gives the table the settings of the declaration. A dry run does not change the
    settings of the table. The driver does the work. Raises the errors of `retry`.
    """
    options = job.options
    declaration = load(options.declaration) if options.declaration else None
    if declaration and not options.dry_run:
        table = Table.declare(declaration, options.table_uri)
        job.use(table.log, table.snapshot)
    spec = declaration.landing_spec() if declaration else landing_of(job.before.metadata.configuration)
    return retry(job, spec)


def _from_files(job: JobRun[Ingest], spec: LandingSpec) -> JobReport:
    if job.before.config.kind == "keyed" and job.options.windows != EVERY_WINDOW:
        raise InvalidInput(f"{job.uri}: ingest into a keyed table does not support windows. Leave the windows out.")
    windows = _windows(job.options.windows, job.before.config.window_seconds)
    if spec.queue is None or windows is not None or job.options.dry_run:
        return _from_landed(job, spec, _Found(survey(spec)), windows)
    from storage_core.write.ingest.announcements import Announcements  # most landing locations have no queue

    announced = Announcements(spec)
    now_ms = job.log.clock.now_ms()
    is_listed = until_listing_ms(job.before.txns, spec, now_ms) <= 0
    listing = survey(spec) if is_listed else None
    landed = announced.find(job.before, listing)
    listed = Txn(appId=listed_app(spec), version=now_ms if is_listed else job.before.txns[listed_app(spec)])
    found = _Found(landed, announced, listed)
    report = _from_landed(job, spec, found, None)
    try:
        announced.settle(gone=found.unread["gone"], changed=found.unread["changed"])
    except TidemarkError as error:  # the rows are in the table, and the queue sends the messages again
        raise with_report(error, found.with_queue(report)) from None
    return found.with_queue(report)


@dataclass(slots=True)
class _Found:
    """The landed files of a run, from a listing or from the messages of a queue.

    Attributes:
        listed: The record of the last listing, for a landing location with a queue.
        unread: The files that could not be read, by the reason.
    """

    landed: Landed
    announced: Announcements | None = None
    listed: Txn | None = None
    unread: Mapping[Unread, list[str]] = field(default_factory=lambda: {"gone": [], "changed": []})

    def record(self, snapshot: Snapshot) -> list[Action]:
        """Return the action that records the last listing, unless the snapshot has this or a newer record."""
        is_new = self.listed is not None and snapshot.txns.get(self.listed.appId, -1) < self.listed.version
        return [self.listed] if self.listed is not None and is_new else []

    def with_queue(self, report: JobReport) -> JobReport:
        """Return the report with details about the messages of the queue."""
        if self.announced is None or self.listed is None:
            return report
        details = {"announced": self.announced.details, "last_listed_ms": self.listed.version}
        return replace(report, details={**report.details, **details})


def _from_landed(
    job: JobRun[Ingest], spec: LandingSpec, found: _Found, windows: Collection[int | None] | None
) -> JobReport:
    landed = found.landed
    if job.before.config.kind == "keyed":
        read, about = partial(_read_files, job, found), _about(spec, landed)
        return KeyedIngest(job, spec, landed.files, read, _details, about, found.record).run()

    def planned_at(snapshot: Snapshot) -> list[IngestWork]:
        work = plan(snapshot, spec, landed.files, windows)
        return [item for item in work if may_have_new_rows(item)] if job.options.dry_run else work

    return job.carry_out(
        planned_at,
        partial(_ingested, job, spec, found),
        predict=lambda work: Prediction(
            benefit=len(work), unit="files", bytes_in=landed_bytes(work), puts=1 if work else 0
        ),
        leases=(),
        planned=lambda work: {
            "metrics": Metrics(bytes_in=landed_bytes(work)),
            "details": {"files": len(work)} | _not_read(landed),
        },
        nothing=lambda _: _nothing(job, spec, found),
    )


def _nothing(job: JobRun[Ingest], spec: LandingSpec, found: _Found) -> JobReport:
    """Record the listing if the run listed the location."""
    details = _about(spec, found.landed)
    if record := found.record(job.before):
        with suppress(CommitConflict):  # the next run will list the location again
            return job.commit(record, operation="INGEST", metrics=NO_METRICS, details=details)
    return job.report("nothing_to_do", details=details)


def _read_files(
    job: JobRun[Ingest], found: _Found, work: Sequence[IngestWork], table: Snapshot | None = None
) -> list[BatchResult]:
    """Execute the tasks of these files. Return the results in the order of the files, and note the unread files.

    The tasks use the columns of `table`. The default is the version on which the run is planned.
    """
    context = context_of(table or job.before).to_json()
    size = landed_bytes(work)
    tasks = job.executor.slots if job.executor.is_needed_for(size, 1) else 1  # reading `slots` may start Spark
    parts = batch.batches(work, tasks)
    items = [{"context": context, "works": [each.to_json() for each in part]} for part in parts]
    answers = job.map(ingest_files, items, input_bytes=size)
    results = [BatchResult.from_json(answer["result"]) for answer in answers]
    tried = {each.landed.path for each in work}
    for reason, names in found.unread.items():
        unread = [file.file for result in results for file in result.files if file.unread == reason]
        names[:] = [*(name for name in names if name not in tried), *unread]
    return results


def _ingested(job: JobRun[Ingest], spec: LandingSpec, found: _Found, work: Sequence[IngestWork]) -> JobReport:
    results = _read_files(job, found, work)
    drift = reduce(or_, (file.drift for result in results for file in result.files), NO_DRIFT)
    grown = grow(job.before, drift, spec.max_new_fields)
    waiting = {file.file for result in results for file in result.files if file.drift.changes_columns}
    if waiting:  # these files are read again, because no task knew the new fields that other tasks found
        results = [replace(each, files=tuple(f for f in each.files if f.file not in waiting)) for each in results]
        again = [replace(each, settled=grown.refused) for each in work if each.landed.path in waiting]
        results += _read_files(job, found, again, grown.snapshot)
    files = [file for result in results for file in result.files]
    actions = [action for result in results for action in result.actions]
    adds = [add for result in results for add in result.adds]
    grown = grown if adds else grown.without_changes(job.before)
    counts = count_fields(*(file.drift.counts for file in files))
    details = _details(results) | _about(spec, found.landed) | _far_times(adds, job) | grown.details
    details |= {spec.drift.counted_as: counts} if counts else {}
    actions += found.record(job.before)
    if not actions:
        return job.report("nothing_to_do", details=details)
    late = sum((file.late for file in files), LateMetrics())
    metrics = replace(
        Metrics.of(results),
        rows_rejected=sum(result.rows_rejected for result in results),
        **{spec.drift.counted_as: sum(counts.values())},
        columns_added=len(grown.added),
        columns_widened=len(grown.widened),
        **late.as_mapping(),
    )
    return job.commit(
        [*grown.actions, *actions],
        operation="INGEST",
        metrics=metrics,
        details=details,
        by_window=_by_window(adds),
        benefit=len(files),
        drifted=name_drift(
            reasons_of(results),
            counts | {name: drift.fields[name][0] for name in grown.added},
            grown.widened,
            grown.snapshot.schema.names,
        ),
    )


@as_task
def ingest_files(place: TaskEnvironment, item: Item) -> Answer:
    """Ingest a batch of landed files."""
    context = SplitContext.from_json(item["context"])
    works = [IngestWork.from_json(each) for each in item["works"]]
    result = batch.execute_batch(place.store, works, context=context, ids=place.ids, now_ms=place.clock.now_ms())
    return {"result": result.to_json()}


def _from_delta(job: JobRun[Ingest], spec: LandingSpec) -> JobReport:
    from jobs.delta import DeltaIngest  # most landing locations are not Delta tables

    if job.options.windows != EVERY_WINDOW:
        raise InvalidInput(f"{job.uri}: ingest from a Delta table does not support windows. Leave the windows out.")
    ingest = DeltaIngest(job, spec)
    return ingest.plan() if job.options.dry_run else ingest.run()


def _plan_of_new_table(declaration: TableDeclaration, job: JobRun[Ingest]) -> JobReport:
    """Return the plan of a run that would first create the table. The run would ingest every landed file."""
    _windows(job.options.windows, declaration.window)
    spec = declaration.landing_spec()
    if spec is not None:
        reject_overlap(spec.uri, job.options.table_uri, "the table")
    landed = survey(spec) if spec and not spec.is_delta else Landed([])
    about = _not_read(landed) if landed.files or spec is None else _about(spec, landed)
    details = {"files": len(landed.files), "creates_table": True} | about
    planned = Metrics(bytes_in=sum(file.size for file in landed.files))
    return job.report("planned", 0, metrics=planned, details=details)


def _windows(wanted: WindowRange, window_seconds: int | None) -> set[int | None] | None:
    """Return the window starts of a range, or None for all windows.

    The value None in the set means rows that have no window. The windows of a file are known only after the file was
    read.
    """
    wanted.require_fits(window_seconds)
    if wanted == EVERY_WINDOW:
        return None
    if wanted.null_only:
        return {None}
    if wanted.start is None or wanted.end is None or window_seconds is None:
        raise InvalidInput(
            "the windows of ingest are not valid. For a table with windows, give one --window, or both --from and --to"
        )
    first = wanted.start - wanted.start % window_seconds
    return set(range(first, wanted.end, window_seconds))


def _details(results: Sequence[BatchResult]) -> dict[str, object]:
    files = [file for result in results for file in result.files]
    adds = [add for result in results for add in result.adds]
    keys = [key for result in results for key in result.quarantine_keys]
    rejected = tally(*(file.rejected for file in files))
    windows = {add.windowStart for add in adds}
    return {
        "files": len(files),
        "rejected": sum(rejected.values()),
        "rejected_before": sum(file.rejected_before for file in files),
        "rejected_reasons": rejected,
        "quarantine": keys,
        "windows": sorted(windows, key=by_start),
    }


def _far_times(adds: Sequence[Add], job: JobRun[Ingest]) -> dict[str, object]:
    """Return the number of rows older than the retention, and the number of rows in windows over a day ahead.

    If a row is too old or too far ahead, its time was usually written or parsed incorrectly.
    """
    now, config = job.log.clock.now_ms() // 1000, job.before.config
    seconds, kept = config.window_seconds or 0, (config.retention_ms or 0) // 1000
    windowed = [add for add in adds if add.windowStart is not None]
    old = [each for each in windowed if kept and (each.windowStart or 0) + seconds + kept <= now]
    ahead = [each for each in windowed if (each.windowStart or 0) > now + _DAY_SECONDS]
    found = {"rows_older_than_retention": old, "rows_over_a_day_ahead": ahead}
    return {name: sum(add.numRecords or 0 for add in adds) for name, adds in found.items() if adds}


def _by_window(adds: Sequence[Add]) -> dict[int | None, Metrics]:
    found: dict[int | None, list[Add]] = {}
    for add in adds:
        found.setdefault(add.windowStart, []).append(add)
    return {window: Metrics.of_adds(each) for window, each in found.items()}


def _about(spec: LandingSpec, landed: Landed) -> dict[str, object]:
    """Return the landing location, and the entries there that no run reads.

    If the location is a local folder that does not exist, the result contains a note. A missing folder is not an error,
    because the first file may create it.
    """
    about: dict[str, object] = {"landing": spec.uri}
    if landed.is_missing:
        where = open_store(spec.uri).uri
        about["note"] = f"{where} does not exist. Create the folder, or correct `landing` in the declaration"
    return about | _not_read(landed)


def _not_read(landed: Landed) -> dict[str, object]:
    """Return the entries of the landing location that no run reads.

    Every run reports these entries until someone removes the entries.
    """
    return {"not_read": landed.not_read, "not_read_names": landed.not_read_names} if landed.not_read else {}


def due_ingest(inputs: TableInputs) -> DueRun | PlannedRun | None:
    """Return the run that the table needs now, or None.

    Landed data also needs a run if the table does not exist yet.
    """
    spec = inputs.declaration.landing_spec()
    snapshot = inputs.table.snapshot if inputs.table else None
    if spec is None:
        return None
    if spec.is_delta:
        versions = waiting_versions(spec.uri, snapshot)
        reason = f"{counted(len(versions), 'version')} of the Delta table"
        return DueRun(reason=reason, items=len(versions)) if versions else None
    if spec.queue is not None:
        return _due_announced(spec, snapshot, inputs.clock.now_ms())
    sizes = [file.size for file in (pending(snapshot, inputs.landed) if snapshot else inputs.landed)]
    if not sizes:
        return None
    reason = f"{counted(len(sizes), 'landed file')}, {counted(sum(sizes), 'byte')}"
    return DueRun(reason=reason, items=len(sizes), bytes=sum(sizes))


def _due_announced(spec: LandingSpec, snapshot: Snapshot | None, now_ms: int) -> DueRun | PlannedRun:
    """Return the run that is due for a landing location with a queue. Cost: at most one request to the queue."""
    from storage_core.write.ingest.announcements import Queue

    in_ms = 0 if snapshot is None else until_listing_ms(snapshot.txns, spec, now_ms)
    if in_ms <= 0:
        return DueRun(reason="a listing of the landing location")
    if waiting := Queue.of(spec).waiting():
        return DueRun(reason=f"{counted(waiting, 'message')} of the queue", items=waiting)
    return PlannedRun(due=None, in_ms=in_ms)
